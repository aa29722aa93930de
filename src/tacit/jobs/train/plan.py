"""A training run that is ready to start: its config checked against its federation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ... import models, selection, speeds, topologies
from ...aggregate import Best
from ...algorithms.plan import count_steps, identify
from ...algorithms.types import State
from ...audit.poisoning import Adversaries
from ...config import conflicts
from ...config.train import BALANCED, TrainConfig, to_tables, with_optimizer
from ...config.train import MIN_ROWS as MIN_ROWS
from ...crypto.digest import Digests
from ...data.federation import Federation
from ...data.inputs import Inputs, tensors_of
from ...data.subgroups import Subgroups, attach
from ...engine.calling import LOGITS, LOSS, Part, SeveralOutputs, call
from ...engine.evaluation import Rules
from ...engine.losses import Objective, classes_last
from ...engine.task import Task
from ...errors import BadData, BadParameter
from ...guard import Noise, Stage
from ...guard.guard import Layout, round_up
from ...parameter_shapes import ParameterSet, is_arrays, to_module
from ...parameters import NONE, bad, check, to_table
from ...runtimes.cohort import Run
from ..devices import device_for
from . import guards
from .elsewhere import name_parties
from .objective import count_labels, outputs_of, resolve_loss, weigh_classes
from .table_defaults import choose_model, fit_model, recipe_of, table_defaults, with_parties


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(TrainConfig):
    """One run, checked against its federation: nothing is left open."""

    fed: Federation
    per_round: int
    local_epochs: tuple[int, ...]
    adversaries: Adversaries | None = None  # the attacks, and the parties drawn for each
    asked_per_round: int | None = None  # as it was given
    label: str = ""
    skew: str = ""
    members: tuple[int, ...] | None = None  # a baseline: these parties train by themselves
    pooled: bool = False  # the central baseline: all rows in one place
    public_sizes: tuple[int, ...] | None = (
        None  # with `private`: public numbers of rows; None: the exact ones
    )
    through: Any = None  # the runtime object, where `runtime` is "processes" or "parties"
    is_l2_given: bool = False  # else λ follows from the data
    preset: tuple[str, ...] = ()  # options that follow from the data being a table
    # with class_weight = "balanced": the training rows of all parties with each label; () if not known yet
    label_counts: tuple[int, ...] | None = None
    sums_only: bool = False  # the server sees metrics on held-out rows of all parties together only
    # of a model that returns a tuple or a mapping, for an own loss
    several_outputs: SeveralOutputs = dataclasses.field(
        default_factory=SeveralOutputs, compare=False, repr=False
    )

    @property
    def objective(self) -> Objective:
        """What local steps minimize; without weights as long as they are not known (`balance_classes`)."""
        weights = () if self.class_weight == BALANCED else self.class_weight or ()
        return Objective(self.loss or "cross_entropy", weights, self.l2 or 0.0, self.several_outputs)

    @property
    def outputs(self) -> int:
        """How many outputs a model needs: one for each class, label or target."""
        return outputs_of(self.fed)

    def run(self) -> Run:
        members = None if self.members is None else np.array(self.members)
        return Run(
            self.fed,
            self.algorithm,
            self.seed,
            self.per_round,
            np.array(self.local_epochs),
            self.batch_size,
            self.local_steps,
            members,
            None
            if not self.guard and self.sampling == "fixed"
            else lambda number: guards.chosen(self, number),
            None if self.adversaries is None else self.adversaries.updates,
            self.sizes,
        )

    @property
    def sizes(self) -> np.ndarray:
        """How many rows each party trains on, as others may know: exact, or noisy where ε hides a row."""
        return (
            self.fed.train.sizes.numpy()
            if self.public_sizes is None
            else np.array(self.public_sizes, dtype=np.int64)
        )

    @property
    def rules(self) -> Rules:
        """What is reported of held-out rows."""
        pipeline = self.fed.pipeline
        threshold = self.threshold if self.threshold is not None or pipeline is None else pipeline.threshold
        scale = 1.0 if pipeline is None or self.fed.classes is not None else pipeline.target[1]
        usual = "mse" if self.fed.classes is None else "cross_entropy"
        is_usual = self.loss in (None, usual, "focal") and (
            self.fed.classes is not None or self.fed.rows.y.dim() == 1
        )
        objective = None if is_usual else self.objective
        return Rules(
            self.fed.classes,
            self.min_rows,
            self.sums_only,
            threshold,
            scale,
            objective,
            self.metrics,
            models.count_members(self.model) if self.stops_members else 1,
        )

    @property
    def stops_members(self) -> bool:
        """Whether early stopping keeps the weights of each member's own best round.

        Only by the loss: no other metric of a single member is reported.
        """
        return self.patience is not None and self.stop_by == "loss" and models.count_members(self.model) > 1

    @property
    def party_rules(self) -> Rules:
        """What a party reports of its held-out rows: own metrics are of the test set, if there is one."""
        return self.rules._replace(own=None) if len(self.fed.test.y) else self.rules

    @property
    def talks(self) -> bool:
        """Whether parties exchange messages at all; in the baselines nobody does."""
        return not self.pooled and self.members is None

    @property
    def picks(self) -> bool:
        """Whether parties report a score first, and only the best of a round then sends its model.

        To an edge everyone sends: the edge reports further up how many rows it sums, which no score tells.
        """
        return self.algorithm.scores and isinstance(self.aggregate, Best) and self.topology is None

    @property
    def hides_sizes(self) -> bool:
        """Whether an ε that holds against the server covers how many rows a party has."""
        return self.private is not None or any(
            isinstance(s, Noise) and s.placement != "central" for s in self.guard
        )

    @property
    def asks_losses(self) -> bool:
        """Whether parties report the model's loss on their rows before participants are chosen."""
        return self.select is not None and type(self.select) not in (
            selection.BySize,
            selection.Available,
            selection.Fast,
        )  # a user's own rule may

    @property
    def noisy_figures(self) -> bool:
        """Whether parties report noisy figures (figures.py): real parties, where an ε is claimed.

        Simulations report exact counts.
        """
        return self._claims_epsilon and self.fed.classes is not None and self.client is None

    @property
    def reports(self) -> bool:
        """Whether parties report anything about their held-out rows.

        Real parties do not where an ε is claimed for a regression: its loss has no bound. Nor do those with
        training scripts of their own, to which alone their rows are known.
        """
        return self.client is None and (self.noisy_figures or not self._claims_epsilon)

    @property
    def _claims_epsilon(self) -> bool:
        return self.runtime == "parties" and any(isinstance(s, Noise) for s in self.guard)

    @property
    def evaluations(self) -> int:
        """How many evaluations of the run are covered by its ε."""
        return self.evaluations_in(0, self.rounds) if self.noisy_figures else 0

    def evaluations_in(self, first: int, last: int) -> int:
        """How many of the models after rounds `first` to `last` are to be evaluated."""
        return sum(self.evaluates(r) for r in range(first, last + 1))

    def evaluates(self, r: int) -> bool:
        """Whether the model after round r (counted from 1; 0: before training) is to be evaluated."""
        return r == self.rounds or (bool(self.evaluate_every) and r % self.evaluate_every == 0)

    @property
    def effective_update(self) -> float:
        """u = η·E·|D|/(B·K), the learning rate times the local steps of the mean client in a round.

        Runs with equal u are comparable across numbers of parties K.
        """
        if self.runtime == "parties":
            return float("nan")  # the number of rows is known only once the parties have joined
        if not self.algorithm.takes_steps:
            # FedSGD takes one step, at the server
            return float(self.algorithm.lr)  # type: ignore[attr-defined]
        rows, k = float(self.sizes.sum()), len(self.fed)
        b = self.batch_size or rows / k
        steps = (
            self.local_steps
            if self.local_steps is not None
            else float(np.mean(self.local_epochs)) * rows / (b * k)
        )
        return float(self.algorithm.lr * steps)  # type: ignore[attr-defined]

    @property
    def real_sampling(self) -> str:
        """How parties are drawn in fact."""
        return "everyone" if self.asked_per_round in (None, len(self.fed)) else self.sampling

    def edges(self) -> list[Plan]:
        """Return the plan of each edge of a Hierarchy; none without one."""
        if not isinstance(self.topology, topologies.Hierarchy):
            return []
        return [
            dataclasses.replace(
                self, members=tuple(group), per_round=min(self.per_round, len(group)), topology=None
            )
            for group in self.topology.groups(len(self.fed))[0]
        ]

    def update_counts(self) -> Iterator[int]:
        """How many updates are combined at a time: those of each round or, with a Hierarchy, of each edge."""
        n = len(self.fed)
        groups = self.topology.groups(n)[0] if isinstance(self.topology, topologies.Hierarchy) else [range(n)]
        if self.real_sampling == "everyone" and not self._selects_fewer:
            yield from map(len, groups)
        elif self.topology is None and self.sampling == "fixed" and not self._selects_fewer:
            yield self.per_round
        else:
            for r in range(self.rounds):
                who = self._selected(r)
                yield from (int(np.isin(group, who).sum()) for group in groups)

    @property
    def _selects_fewer(self) -> bool:
        """Whether `select` may choose fewer than per_round, and a simulation can tell how many."""
        return self.select is not None and not self.select.fills and self.runtime in ("cohort", "inprocess")

    def _selected(self, r: int) -> np.ndarray:
        """Return who takes part in round r; by a rule that does not choose by losses."""
        if self.select is None:
            return guards.chosen(self, r)
        n, takes = len(self.fed), seconds_of(self)
        seconds = None if takes is None else takes(np.arange(n), np.full(n, r))
        known = selection.PartyInfo(self.sizes, lambda who: np.zeros(len(who)), seconds)
        return selection.select(self.select, self.seed, r, known, self.per_round)

    @property
    def weights_hidden(self) -> bool:
        """Whether updates are weighted by numbers of rows that a hidden sum must cover."""
        return (
            self.algorithm.weighted
            and self.private is None  # all parties weigh the same
            and not any(isinstance(s, Noise) for s in self.guard)
        )

    def job(self, data_job: dict[str, Any] | None) -> dict[str, Any]:
        """Return the run as the tables of a job file.

        Without `data_job` the data came from Python, and only Python can load them again.
        """
        tables = to_tables(self)
        epochs = self.local_epochs
        tables["train"]["local_epochs"] = epochs[0] if len(set(epochs)) == 1 else list(epochs)
        if isinstance(self.topology, topologies.Gossip):
            tables["train"]["per_round"] = NONE  # everyone, as gossip requires
        if self.adversaries is not None:
            tables["adversaries"] = [to_table(attack) for attack in self.adversaries.attacks]
        skew = {} if self.fed.skew is None else {"skew": to_table(self.fed.skew)}
        if data_job is None:
            data = {
                "made_in": "python",
                "name": self.fed.name,
                "parties": len(self.fed),
                "seed": self.fed.seed,
            }
            return {"data": data | skew, **tables}
        if "skews" in data_job:  # of a comparison's list of skews, this run has one
            data_job = {k: v for k, v in data_job.items() if k not in ("skew", "skews")} | skew
        return {"data": data_job, **tables}


def make_plan(fed: Federation, *, label: str = "", skew: str = "", **options: Any) -> Plan:
    """Check every option by itself, with the others, and with the federation.

    Nothing is started or written when this raises.
    """
    if options.get("client") is not None:
        fed, options = _with_script(fed, options)
    if not isinstance(fed, Federation):
        hint = "A Dataset becomes one by .split(10) or .by(column)." if hasattr(fed, "split") else ""
        must_be = "a Federation: tacit.data.digits().split(10), or dataset.by(column)"
        raise bad("train", "fed", type(fed).__name__, must_be, hint)
    options = choose_model(options, fed)
    config = TrainConfig.of(**options)
    if preset := table_defaults(config, fed, options):
        config = TrainConfig.of(**options | preset)
    config = with_optimizer(config)
    parties = len(fed)
    if int(fed.train.sizes.min()) < 1:
        empty = fed.parties[int(fed.train.sizes.argmin())]
        raise BadData(
            f"{fed.name}: party {empty!r} has no training rows. Give min_size=1 when splitting, or leave the "
            "party out."
        )
    runtime, through = _resolve_runtime(config.runtime)
    topology = topologies.parse(config.topology, parties)
    speed = config.speed
    if config.pace is not None and speed is None and through is None:
        speed = speeds.Constant()  # a simulation needs a clock
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(TrainConfig)}
    p = Plan(
        **values
        | {
            "fed": fed,
            "model": config.model.pinned()
            if isinstance(config.model, models.Pretrained)
            else fit_model(config.model, fed, recipe_of(fed, config.runtime)),
            "algorithm": with_parties(config.algorithm, parties),
            "preset": tuple(preset),
            "per_round": _per_round(config, parties),
            "asked_per_round": config.per_round,
            "local_epochs": _local_epochs(config, parties),
            "local_steps": _local_steps(config),
            "device": device_for("train", config.device),
            "runtime": runtime,
            "through": through,
            "topology": topology,
            "speed": speed,
            "adversaries": Adversaries.assign(fed, config.adversaries, config.seed)
            if config.adversaries
            else None,
            "label": label or _label(config, topology),
            "skew": skew or ("natural" if fed.skew is None else str(fed.skew)),
            **resolve_loss(config, fed),
            "sums_only": any(stage.hides for stage in config.guard)
            or (isinstance(topology, topologies.Gossip) and topology.secure),
        }
    )
    if isinstance(speed, speeds.Given) and len(speed.seconds) != parties:
        raise bad("train", "speed", speed, f"of {parties} numbers, one for each party")
    conflicts.check(p)
    p.aggregate.check_data([fed.test.x])
    return _complete(p)


def _with_script(fed: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the federation and the options of a run whose parties have training loops of their own."""
    if isinstance(fed, Sequence) and not isinstance(fed, str):
        fed = name_parties(fed)
    if options.get("runtime") in (None, "cohort"):  # a script is a process
        options = {**options, "runtime": "processes"}
    if is_arrays(options.get("model")):
        options = {**options, "model": to_module(options["model"])}
        if isinstance(fed, Federation):  # arrays predict nothing: parties' own code does
            fed = dataclasses.replace(fed, test=fed.test._replace(x=fed.test.x[:0], y=fed.test.y[:0]))
    return fed, options


def _complete(p: Plan) -> Plan:
    """Fill in what follows from the data: class weights, malicious rows, public sizes, hidden weights."""
    changes: dict[str, Any] = {
        "guard": _with_max_rows(p),
        "class_weight": weigh_classes(p),
    }
    if p.class_weight == BALANCED:
        changes["label_counts"] = () if p.runtime == "parties" else tuple(count_labels(p.fed).tolist())
    fed = _with_subgroups(p)
    if p.threshold is not None and fed.pipeline is not None:  # predictions use it, too
        fed = dataclasses.replace(fed, pipeline=dataclasses.replace(fed.pipeline, threshold=p.threshold))
    if p.adversaries is not None:
        fed = p.adversaries.rows(fed)
    changes["fed"] = fed
    if p.private is not None:
        from .local_dp import public_sizes

        changes["public_sizes"] = public_sizes(p.private, p.fed, p.insecure_seed)
        changes["engine"] = "each"
    return dataclasses.replace(p, **changes)


def _with_subgroups(p: Plan) -> Federation:
    if p.runtime != "parties":
        return attach(p.fed, p.subgroups)
    if not p.subgroups or not p.through.layout:  # processes of one machine get theirs with their rows
        return p.fed
    from .party_rows import read_layout

    recipe = read_layout(p.through.layout)[0]
    groups = Subgroups.without_rows(p.subgroups, recipe.categories, recipe.numbers)
    return dataclasses.replace(p.fed, subgroups=groups)


def _per_round(config: TrainConfig, parties: int) -> int:
    if config.per_round is not None and config.per_round > parties:
        must_be = f"a whole number of at least 1 and at most {parties}, or None (everyone)"
        raise bad("train", "per_round", config.per_round, must_be)
    return config.per_round or parties


def _local_epochs(config: TrainConfig, parties: int) -> tuple[int, ...]:
    epochs = config.algorithm.local_epochs or config.local_epochs
    if isinstance(epochs, int | np.integer):
        return (int(epochs),) * parties
    if len(epochs) != parties:
        must_be = f"one whole number, or one for each of the {parties} parties"
        raise bad("train", "local_epochs", list(epochs), must_be)
    return tuple(map(int, epochs))


def _local_steps(config: TrainConfig) -> int | None:
    if config.algorithm.local_epochs is not None:
        return None
    return config.local_steps if config.algorithm.local_steps is None else config.algorithm.local_steps


def _with_max_rows(p: Plan) -> tuple[Stage, ...]:
    """Set what hidden weights are a share of, where parties are processes of this machine.

    Real parties must agree on it beforehand (config/conflicts): a server that chose it would choose whose
    update is rounded to zero.
    """
    if p.runtime != "processes" or not p.weights_hidden:
        return p.guard
    most = int(round_up(float(p.fed.train.sizes.max()))) if p.client is None else p.client.max_rows
    return tuple(
        dataclasses.replace(stage, max_rows=most) if stage.hides and stage.max_rows is None else stage  # type: ignore[type-var]
        for stage in p.guard
    )


def _label(config: TrainConfig, topology: Any) -> str:
    """Name a run in reports by what tells it from others: FedAvg, FedBuff(buffer=3)."""
    name = type(config.algorithm).__name__
    if isinstance(topology, topologies.Gossip):
        return f"{name} on {topology.graph.name}"
    if config.pace is None:
        return name
    numbers = {f.name: getattr(config.pace, f.name) for f in dataclasses.fields(config.pace)}
    shown = ", ".join(f"{k}={v:g}" for k, v in numbers.items() if isinstance(v, int | float))
    return f"{name}, {type(config.pace).__name__}({shown})"


def seconds_of(p: Plan) -> speeds.Seconds | None:
    """How long each party's pieces of work take, by the plan's speed."""
    if p.speed is None:
        return None
    steps = count_steps(p.sizes, np.array(p.local_epochs), p.batch_size, p.local_steps)
    return speeds.seconds(p.speed, p.seed, identify(p.fed.parties), steps)


def _resolve_runtime(runtime: Any) -> tuple[str, Any]:
    """Return the name of a runtime, and its object: ("processes", Processes(…))."""
    if runtime in ("cohort", "inprocess"):
        return runtime, None
    if runtime == "processes":
        from ...runtimes.processes import Processes

        runtime = Processes()
    kind = {"Processes": "processes", "Deployed": "parties"}.get(type(runtime).__name__)
    if kind is None:
        names = "one of 'cohort', 'inprocess', 'processes', or tacit.Processes(…)"
        raise bad("train", "runtime", runtime, names)
    return kind, check(runtime)


def prepare(p: Plan) -> tuple[Task, State]:
    """Build the model of a plan and its initial state; raise what can only be known with the model."""
    task = make_task(p)
    start = task.initial()

    @functools.cache
    def layout() -> Layout:
        return guards.layout_of_plan(p, task, start)

    conflicts.check_model(p, task, start, layout)
    if p.private is not None:
        layout()  # a step on no rows: what cannot be private is refused before anything is written
    return task, start


def prepare_stack(plans: Sequence[Plan]) -> tuple[Task, list[State]]:
    """Build the model that runs side by side share, and the initial state of each, which follows its seed."""
    first = plans[0]
    task, start = prepare(first)
    for p in plans[1:]:
        p.several_outputs.columns, p.several_outputs.kind = (
            first.several_outputs.columns,
            first.several_outputs.kind,
        )
    starts = {first.seed: start}
    for p in plans:
        if p.seed not in starts:
            other = make_task(p)
            _check_same_constants(task, other, p.seed)
            starts[p.seed] = other.initial()
    return task, [starts[p.seed] for p in plans]


def _check_same_constants(task: Task, other: Task, seed: int) -> None:
    ours, theirs = task.constants(), other.constants()
    differ = [name for name, value in ours.items() if not torch.equal(value, theirs[name])]
    if differ:
        raise BadParameter(
            f"train: runs with several seeds share the frozen part of a model, and {differ[0]!r} is another "
            f"with seed {seed}. Build the frozen part once, outside the function that builds the model, or "
            "run one seed at a time."
        )


def digest_constants(task: Task) -> str:
    """Return a digest of what all parties must have, because it is never sent; "" if there is nothing."""
    constants = task.constants()
    return Digests(constants).of().hex() if constants else ""


def make_task(p: Plan) -> Task:
    rows = p.fed.at(0)
    outputs = p.outputs
    is_ours = isinstance(p.model, str) or type(p.model) in models.ALL.values()
    if is_ours and isinstance(rows.x, Inputs):
        raise BadParameter(
            f"train: model {models.name_of(p.model)!r} takes one tensor, and a row of {p.fed.name} has "
            f"{rows.x.describe()}. Give your own nn.Module, whose forward takes these inputs."
        )
    module = models.build(p.model, tuple(rows.x.shape[1:]), outputs, p.seed).to(p.device)
    if isinstance(module, models.Characters) and not rows.x.is_floating_point():
        last = max(int(t.max()) for x in (rows.x, p.fed.test.x) for t in tensors_of(x) if t.numel())
        if last >= module.built[0]:
            raise BadData(
                f"train: {p.fed.name} has the token {last}, and the model knows 0 to {module.built[0] - 1}, "
                "as many as there are classes. "
                f"Say classes={last + 1} when you make the data."
            )
    if p.client is None or (len(rows.x) and not isinstance(module, ParameterSet)):
        fits(
            "train",
            module,
            models.name_of(p.model),
            rows.x[:2].to(p.device),
            p.fed.classes,
            p.fed.name,
            rows.y[:2],
            is_own=p.objective.is_own,
            part=LOSS if p.objective.is_of_model else p.several_outputs if p.objective.is_own else LOGITS,
        )
    task = Task(
        module,
        rows.x.to(p.device),
        rows.y.to(p.device),
        p.objective,
        p.precision,
    )
    if p.private is None:
        return task
    from .local_dp import PrivateTask

    return PrivateTask.of(task, p)


def _made_for(module: Any, rows: Any, why: str) -> str:
    """Return advice about a model that cannot take these rows, by their data types."""
    other = next(
        (q.dtype for q in module.parameters() if q.is_floating_point() and q.dtype != torch.float32), None
    )
    if other is not None:
        return f"Its parameters are {other}, and rows are float32: give model.float()."
    if not isinstance(rows, torch.Tensor):
        return "Its forward must take these arguments, by these names."
    if (
        rows.is_floating_point()
        and "tokens=True" not in why
        and any(isinstance(part, torch.nn.Embedding) for part in module.modules())
    ):
        return "It has an Embedding, which takes integers: load the data with from_arrays(…, tokens=True)."
    if not rows.is_floating_point():
        return (
            "The rows are integer tokens: give a model that begins with an Embedding, or load the data "
            "without tokens=True."
        )
    return "Give a model for this data, or reshape the rows."


def fits(
    owner: str,
    module: Any,
    name: str,
    rows: Any,
    classes: int | None,
    of: str,
    y: torch.Tensor | None = None,
    is_own: bool = False,
    part: Part = LOGITS,
) -> None:
    """Run two rows through the model, so that a wrong shape is one sentence and not a stack trace later."""
    import copy

    if not any(True for _ in module.parameters()):
        raise BadParameter(f"{owner}: model {name!r} has no parameters, so there is nothing to train.")
    lazy = [k for k, q in module.named_parameters() if torch.nn.parameter.is_lazy(q)]
    if lazy:
        raise BadParameter(
            f"{owner}: {', '.join(map(repr, lazy[:3]))} of model {name!r} have no values before a first "
            "batch (a lazy layer), and all parties must begin with the same. Call the model with a batch of "
            "zeros first."
        )
    if not any(q.requires_grad for q in module.parameters()):
        raise BadParameter(
            f"{owner}: every parameter of model {name!r} is frozen (requires_grad=False), so there is "
            "nothing to train."
        )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = call(copy.deepcopy(module).eval(), rows, part)
    except BadParameter as error:  # of what it returns
        raise BadParameter(f"{owner}: {str(error).replace('the model', f'model {name!r}', 1)}") from None
    except Exception as error:
        why = (str(error) or repr(error)).splitlines()[0]
        of_one = isinstance(rows, torch.Tensor)
        what = f"of shape {tuple(rows.shape[1:])}" if of_one else f"with the inputs {rows.describe()}"
        raise BadParameter(
            f"{owner}: model {name!r} cannot take rows {what}: {why}. {_made_for(module, rows, why)}"
        ) from error
    if is_own:  # what an own loss takes, it knows itself
        return
    each = () if y is None else tuple(y.shape[1:])  # labels or targets of a row
    every = len(each) > 0
    good = None if classes is None else (len(rows), *each, classes)
    if good is not None and len(each) > 1 and tuple(out.shape) == (len(rows), classes, *each):
        good = tuple(out.shape)  # images have their classes first
    if tuple(out.shape) != good and (good is not None or out.numel() != len(rows) * math.prod(each)):
        what = "is a regression, so it must return one number per row"
        if not good and every:
            what = f"has targets of shape {each}, so it must return as many numbers per row"
        elif good and len(each) > 1:
            what = f"has {classes} classes, so it must return logits of shape {(classes, *each)} per row"
        elif good:
            what = f"has {classes} classes, so it must return {classes} logits per " + (
                "token; LSTM(every=True) does" if every else "row"
            )
        raise BadParameter(
            f"{owner}: model {name!r} returns outputs of shape {tuple(out.shape[1:])}; {of} {what}."
        )
    if (
        good
        and classes != 1
        and len(rows)
        and bool((out >= 0).all())
        and bool(((classes_last(out, out.argmax(-1) if y is None else y).sum(-1) - 1).abs() < 1e-5).all())
    ):  # logits are not so even by chance
        raise BadParameter(
            f"{owner}: model {name!r} returns probabilities; the loss expects logits, and would apply the "
            "softmax a second time. Remove the softmax at its end."
        )

"""What a training run was asked to do, checked before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ... import aggregate as rules
from ... import algorithms, models, selection, speeds, topologies
from ... import pace as paces
from ...aggregate import Mean
from ...algorithms.plan import count_steps, identify
from ...algorithms.types import Algorithm
from ...audit.poisoning import Adversaries, attacks
from ...data.federation import Federation, check_one_label
from ...engine.task import Task
from ...errors import BadData, BadParameter
from ...guard import Noise, Stage, as_stages, check_visibility
from ...guard.guard import round_up
from ...parameters import bad, check, nearest, to_table, too_large
from ...runtimes.cohort import Run
from ..devices import device_for
from ..programs import to_the_end
from . import guards
from .conflicts import Asked, refuse

PRECISIONS = ("float32", "tf32", "bf16")
MIN_ROWS = 10  # of a party's held-out rows; a figure on fewer says too much about single rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run, checked: everything `train` was told."""

    fed: Federation
    model: Any
    algorithm: Algorithm
    rounds: int
    per_round: int
    local_epochs: tuple[int, ...]
    local_steps: int | None
    batch_size: int | None
    seed: int
    device: str = "cpu"
    precision: str = "float32"
    engine: str = "auto"
    runtime: str = "cohort"
    evaluate_every: int = 1
    landscape: bool = False
    label: str = ""
    skew: str = ""
    members: tuple[int, ...] | None = None
    pooled: bool = False  # the central baseline: all rows in one place
    guard: tuple[Stage, ...] = ()
    sampling: str = "fixed"
    secret_seed: int | None = None  # for tests only
    pace: Any = None  # None: synchronous rounds
    speed: Any = None  # None: no virtual clock
    aggregate: Any = Mean()
    adversaries: Adversaries | None = None
    select: Any = None  # None: drawn alike from all
    topology: Any = None  # None: one server with everybody around it
    private: Any = None  # None: local steps are not private; a private.DPSGD: each is one of it
    public_sizes: tuple[int, ...] | None = (
        None  # with `private`: what the parties' numbers of rows are taken to be; None: the exact ones
    )
    through: Any = None  # where `runtime` is "processes" or "parties": how they are reached
    min_rows: int = MIN_ROWS  # the fewest held-out rows on which a party reports counts
    sums_only: bool = (
        False  # single parties are hidden from the server, so held-out figures are of all parties together
    )

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
        """How many rows each party trains on, as far as anybody else may know: exact, or what stands for it
        where ε is for a row's presence.
        """
        return (
            self.fed.train.sizes.numpy()
            if self.public_sizes is None
            else np.array(self.public_sizes, dtype=np.int64)
        )

    @property
    def talks(self) -> bool:
        """Whether parties exchange messages at all; in the baselines nobody does."""
        return not self.pooled and self.members is None

    @property
    def picks(self) -> bool:
        """Whether parties state a score first, and only the best of a round then sends its model. To an edge
        everybody does: it says further up how many rows stand behind it, which a score does not tell.
        """
        return self.algorithm.scores and isinstance(self.aggregate, rules.Best) and self.topology is None

    @property
    def hides_sizes(self) -> bool:
        """Whether an ε that holds against the server covers how many rows a party has."""
        return any(isinstance(s, Noise) and s.placement != "central" for s in self.guard)

    @property
    def asks_losses(self) -> bool:
        """Whether parties are asked for the model's loss on their rows before it is settled who takes
        part.
        """
        return self.select is not None and type(self.select) not in (
            selection.BySize,
            selection.Available,
            selection.Fast,
        )  # a rule of one's own may

    @property
    def noisy_figures(self) -> bool:
        """Whether parties report noisy figures instead of counts (figures.py): real parties, where an ε is
        claimed. Simulations report exact counts.
        """
        return self._claims_epsilon and self.fed.classes is not None

    @property
    def reports(self) -> bool:
        """Whether parties report anything of their held-out rows. Real parties do not where an ε is claimed
        for a regression: its loss has no bound.
        """
        return self.noisy_figures or not self._claims_epsilon

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
        """u = η·E·|D|/(B·K): how far the mean client walks in a round; runs with equal u are comparable across K."""
        if self.runtime == "parties":
            return float("nan")  # how many rows there are, is known only once the parties have joined
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

    def job(self, data_job: dict[str, Any] | None) -> dict[str, Any]:
        """The run as the tables of a job file. Without `data_job` the data came from Python, and only Python
        can make them again.
        """
        epochs = self.local_epochs[0] if len(set(self.local_epochs)) == 1 else list(self.local_epochs)
        skew = {} if self.fed.skew is None else {"skew": to_table(self.fed.skew)}
        if data_job is None:
            data = {
                "made_in": "python",
                "name": self.fed.name,
                "parties": len(self.fed),
                "seed": self.fed.seed,
                **skew,
            }
        else:  # of a comparison's list of skews, this run has one
            data = (
                {k: v for k, v in data_job.items() if k not in ("skew", "skews")} | skew
                if "skews" in data_job
                else data_job
            )
        train = {
            "rounds": self.rounds,
            "per_round": self.per_round,
            "local_epochs": epochs,
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "device": self.device,
            "precision": self.precision,
            "engine": self.engine,
            "runtime": self.runtime,
            "evaluate_every": self.evaluate_every,
            "min_rows": self.min_rows,
            "landscape": self.landscape or None,
            "sampling": None if self.sampling == "fixed" else self.sampling,
            "secret_seed": self.secret_seed,
        }
        return {
            "data": data,
            "model": models.table_of(self.model),
            "algorithm": to_table(self.algorithm),
            "train": {k: v for k, v in train.items() if v is not None},
            **({"guard": [to_table(s) for s in self.guard]} if self.guard else {}),
            **({"private": to_table(self.private)} if self.private is not None else {}),
            **({"aggregate": to_table(self.aggregate)} if self.aggregate != Mean() else {}),
            **({"select": to_table(self.select)} if self.select is not None else {}),
            **({"topology": topologies.to_table(self.topology)} if self.topology is not None else {}),
            **({"adversaries": [to_table(a) for a in self.adversaries.attacks]} if self.adversaries else {}),
            **{k: to_table(v) for k, v in (("pace", self.pace), ("speed", self.speed)) if v is not None},
        }


def _whole(name: str, value: Any, least: int, most: int | None = None, none: str = "") -> Any:
    if value is None and none:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or value < least
        or (most is not None and value > most)
        or too_large(value)
    ):
        limits = f"a whole number of at least {least}" + (f" and at most {most}" if most is not None else "")
        raise bad("train", name, value, limits + (f", or None ({none})" if none else ""), too_large(value))
    return int(value)


def _one_of(name: str, value: Any, options: Iterable[str]) -> Any:
    if not isinstance(value, str) or value not in options:
        raise bad("train", name, value, "one of " + ", ".join(map(repr, options)))
    return value


def as_algorithm(algorithm: Any) -> Algorithm:
    """An algorithm, or the name of one, with every parameter checked."""
    if isinstance(algorithm, str):
        by_lower = {name.lower(): name for name in algorithms.ALL}
        algorithm = by_lower.get(algorithm.lower(), algorithm)
        if algorithm not in algorithms.ALL:
            raise bad(
                "train",
                "algorithm",
                algorithm,
                "one of " + ", ".join(algorithms.ALL),
                nearest(algorithm, list(algorithms.ALL)),
            )
        algorithm = algorithms.ALL[algorithm]()
    if not isinstance(algorithm, Algorithm):
        raise bad("train", "algorithm", algorithm, "an algorithm such as algorithms.FedAvg(lr=0.1)")
    return check(algorithm)


def as_rule(rule: Any) -> Any:
    """An aggregation rule, or the name of one, with every parameter checked."""
    if rule is None:
        return Mean()
    if isinstance(rule, str):
        by_lower = {name.lower(): name for name in rules.ALL}
        if rule.lower() not in by_lower:
            raise bad(
                "train", "aggregate", rule, "one of " + ", ".join(rules.ALL), nearest(rule, list(rules.ALL))
            )
        rule = rules.ALL[by_lower[rule.lower()]]()
    if not dataclasses.is_dataclass(rule) or isinstance(rule, type) or not rules.RULE.fits(rule):
        raise bad(
            "train",
            "aggregate",
            rule,
            "an aggregation rule such as aggregate.Median()",
            rules.RULE.advice(rule),
        )
    return check(rule)


def make_plan(
    fed: Federation,
    *,
    model: Any = "mlp",
    algorithm: Any = None,
    rounds: int = 10,
    per_round: int | None = None,
    local_epochs: int | Sequence[int] = 1,
    local_steps: int | None = None,
    batch_size: int | None = 32,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    engine: str = "auto",
    runtime: Any = "cohort",
    evaluate_every: int = 1,
    min_rows: int = MIN_ROWS,
    landscape: bool = False,
    guard: Any = None,
    sampling: str = "fixed",
    secret_seed: int | None = None,
    pace: Any = None,
    speed: Any = None,
    aggregate: Any = None,
    adversaries: Any = None,
    topology: Any = None,
    private: Any = None,
    select: Any = None,
    label: str = "",
    skew: str = "",
) -> Plan:
    """Check every value and fill in what was left open. Nothing has been started or written when this
    refuses.
    """
    if not isinstance(fed, Federation):
        hint = "A Dataset becomes one by .split(10) or .by(column)." if hasattr(fed, "split") else ""
        raise bad(
            "train",
            "fed",
            type(fed).__name__,
            "a Federation: tacit.data.digits().split(10), or dataset.by(column)",
            hint,
        )
    algorithm = as_algorithm(algorithms.FedAvg() if algorithm is None else algorithm)
    k = len(fed)
    if int(fed.train.sizes.min()) < 1:
        empty = fed.parties[int(fed.train.sizes.argmin())]
        raise BadData(
            f"{fed.name}: party {empty!r} has no training rows. Give min_size=1 when splitting, or leave "
            "the party out."
        )
    if isinstance(local_epochs, Sequence | np.ndarray) and not isinstance(local_epochs, str):
        epochs = tuple(_whole("local_epochs", e, 1) for e in local_epochs)
        if len(epochs) != k:
            raise bad(
                "train", "local_epochs", list(epochs), f"one whole number, or one for each of the {k} parties"
            )
    else:
        epochs = (_whole("local_epochs", local_epochs, 1),) * k
    steps = local_steps if algorithm.local_steps is None else algorithm.local_steps
    if algorithm.local_epochs is not None:
        epochs, steps = (algorithm.local_epochs,) * k, None
    device = device_for("train", device)
    runtime, through = _runtime(runtime)
    if isinstance(model, models.Pretrained):
        if runtime != "cohort":
            raise bad(
                "train",
                "runtime",
                runtime,
                "'cohort' with a model that starts from a file, which parties do not have",
                "Leave out weights, or runtime.",
            )
        model = model.pinned()
    if runtime != "cohort" and "server" in fed.parties:
        raise BadData(
            f"{fed.name}: a party is called 'server', which is the server's own name among the messages. "
            "Rename the party."
        )
    stages, rule, lies = as_stages(guard), as_rule(aggregate), attacks(adversaries)
    stages = _with_max_rows(stages, algorithm, fed, runtime)
    check_visibility(stages, rule, "find outliers. Aggregate with Mean,")
    check_visibility(stages, algorithm, "cluster the parties. Use another algorithm, such as IFCA,")
    rule.check_data([fed.test.x])
    if topology is not None:
        to_the_end("topology", through)
    topology, select, pace, speed = (
        topologies.made(topology, k),
        _select(select),
        _pace(pace),
        _speed(speed, k, runtime),
    )
    _one_of("sampling", sampling, ("fixed", "poisson"))
    wanted = _whole("per_round", per_round, 1, k, "everyone")
    refuse(Asked(algorithm, stages, rule, lies, runtime, pace, speed, select, topology, sampling, wanted, k))
    liars = Adversaries.among(fed, lies, _whole("seed", seed, 0, 2**63 - 1)) if lies else None
    fed = fed if liars is None else liars.rows(fed)
    if pace is not None and speed is None and through is None:
        speed = speeds.Constant()  # a simulation needs a clock
    if isinstance(topology, topologies.Gossip):
        label = label or f"{type(algorithm).__name__} on {topology.graph.name}"
    name = type(algorithm).__name__ + ("" if pace is None else f", {_named(pace)}")
    sizes = None
    if private is not None:
        from .local_dp import checked, public_sizes

        check_one_label("train, private", fed)

        private = checked(
            private, runtime, {"pace": pace, "topology": topology, "landscape": landscape or None}, select
        )
        sizes = public_sizes(private, fed, secret_seed)
        engine = "each" if engine == "auto" else engine
    return Plan(
        fed,
        model,
        algorithm,
        _whole("rounds", rounds, 1),
        wanted or k,
        epochs,
        _whole("local_steps", steps, 1, none="epochs decide"),
        _whole("batch_size", batch_size, 1, none="all rows at once"),
        _whole("seed", seed, 0, 2**63 - 1),
        device,
        _one_of("precision", precision, PRECISIONS),
        _one_of("engine", engine, ("auto", "stack", "each")),
        runtime,
        _whole("evaluate_every", evaluate_every, 0),
        bool(landscape),
        label or name,
        skew or ("natural" if fed.skew is None else repr(fed.skew)),
        guard=stages,
        sampling=sampling,
        secret_seed=_whole("secret_seed", secret_seed, 0, none="the operating system's randomness"),
        pace=pace,
        speed=speed,
        through=through,
        aggregate=rule,
        adversaries=liars,
        topology=topology,
        private=private,
        public_sizes=sizes,
        select=select,
        min_rows=_whole("min_rows", min_rows, 1),
        sums_only=any(s.hides for s in stages)
        or (isinstance(topology, topologies.Gossip) and topology.secure),
    )


def _with_max_rows(
    stages: tuple[Stage, ...], algorithm: Algorithm, fed: Federation, runtime: str
) -> tuple[Stage, ...]:
    """What hidden weights are a share of. Real parties must agree on it beforehand: a server that could
    choose it would choose whose update is rounded away.
    """
    hiding = next((s for s in stages if s.hides), None)
    if (
        hiding is None
        or hiding.max_rows is not None
        or not algorithm.weighted
        or any(isinstance(s, Noise) for s in stages)
    ):
        return stages
    if runtime == "parties":
        raise BadParameter(
            f"guard: {type(hiding).__name__} hides how many rows a party has, and its weight is a share of "
            "a number that all parties agree on. "
            f"Give {type(hiding).__name__} max_rows, such as max_rows = 10000; a party with more rows is "
            "counted as having max_rows. Or "
            "use an algorithm with weighted = false."
        )
    if runtime != "processes":
        return stages
    return tuple(
        dataclasses.replace(s, max_rows=int(round_up(float(fed.train.sizes.max())))) if s is hiding else s  # type: ignore[type-var]
        for s in stages
    )


def _select(given: Any) -> Any:
    """A rule for who is asked, checked."""
    if given is None:
        return None
    if isinstance(given, str) and given in selection.ALL:
        given = selection.ALL[given]()
    if not dataclasses.is_dataclass(given) or isinstance(given, type) or not selection.SELECTION.fits(given):
        raise bad(
            "train",
            "select",
            given,
            "one of " + ", ".join(f"selection.{name}(…)" for name in selection.ALL) + ", or None",
            selection.SELECTION.advice(given),
        )
    return check(given)


def _pace(given: Any) -> Any:
    """An asynchronous pace, checked."""
    if given is None:
        return None
    if isinstance(given, str) and given in paces.ALL:
        given = paces.ALL[given]()
    if type(given) not in paces.ALL.values():
        raise bad(
            "train",
            "pace",
            given,
            "one of pace.FedBuff(…), pace.FedAsync(…), pace.SAFA(…), or None (synchronous rounds)",
        )
    return check(given)


def _named(pace: Any) -> str:
    """Its name with its numbers, which tell two runs apart: FedBuff(buffer=3)."""
    numbers = {
        f.name: getattr(pace, f.name)
        for f in dataclasses.fields(pace)
        if isinstance(getattr(pace, f.name), int | float)
    }
    return f"{type(pace).__name__}({', '.join(f'{k}={v:g}' for k, v in numbers.items())})"


def _speed(given: Any, parties: int, runtime: str) -> Any:
    if given is None:
        return None
    if type(given) not in speeds.ALL.values():
        raise bad(
            "train",
            "speed",
            given,
            "one of " + ", ".join(f"speeds.{name}(…)" for name in speeds.ALL) + ", or None",
        )
    if runtime not in ("cohort", "inprocess"):
        raise bad("train", "speed", given, "None where parties are processes: they take the time they take")
    check(given)
    if isinstance(given, speeds.Given) and len(given.seconds) != parties:
        raise bad("train", "speed", given, f"of {parties} numbers, one for each party")
    return given


def seconds_of(p: Plan) -> speeds.Seconds | None:
    """How long each party's pieces of work take, by the plan's speed."""
    if p.speed is None:
        return None
    steps = count_steps(p.sizes, np.array(p.local_epochs), p.batch_size, p.local_steps)
    return speeds.seconds(p.speed, p.seed, identify(p.fed.parties), steps)


def _runtime(given: Any) -> tuple[str, Any]:
    """("processes", Processes(…)) and the like: the word a job file has, and what it stands for."""
    if isinstance(given, str):
        if _one_of("runtime", given, ("cohort", "inprocess", "processes")) != "processes":
            return given, None
        from ...runtimes.processes import Processes

        given = Processes()
    kind = {"Processes": "processes", "Deployed": "parties"}.get(type(given).__name__)
    if kind is None:
        raise bad(
            "train", "runtime", given, "one of 'cohort', 'inprocess', 'processes', or tacit.Processes(…)"
        )
    return kind, check(given)


def make_task(p: Plan) -> Task:
    rows = p.fed.at(0)
    outputs = p.fed.classes or 1
    module = models.build(p.model, tuple(rows.x.shape[1:]), outputs, p.seed).to(p.device)
    if isinstance(module, models.Characters) and not rows.x.is_floating_point():
        last = max(int(x.max()) for x in (rows.x, p.fed.test.x) if x.numel())
        if last >= module.built[0]:
            raise BadData(
                f"train: {p.fed.name} has the token {last}, and the model knows 0 to {module.built[0] - 1}, "
                "as many as there are classes. "
                f"Say classes={last + 1} when you make the data."
            )
    fits(
        "train",
        module,
        models.name_of(p.model),
        rows.x[:2].to(p.device),
        p.fed.classes,
        p.fed.name,
        every=rows.y.dim() > 1,
    )
    task = Task(
        module,
        rows.x.to(p.device),
        rows.y.to(p.device),
        "mse" if p.fed.classes is None else "cross_entropy",
        p.precision,
    )
    decay = 0.0 if p.algorithm.solver is None else p.algorithm.solver.weight_decay
    if task.frozen and decay:
        raise BadParameter(
            f"train: some layers of the model are frozen, and weight_decay={decay:g} of the solver would "
            "still draw them to zero. Train without "
            "weight decay, or let all layers learn."
        )
    if p.private is None:
        return task
    from .local_dp import PrivateTask

    return PrivateTask.of(task, p)


def _made_for(module: Any, rows: Any, why: str) -> str:
    """What to do about a model that cannot take these rows, where its kind of numbers says it."""
    other = next(
        (q.dtype for q in module.parameters() if q.is_floating_point() and q.dtype != torch.float32), None
    )
    if other is not None:
        return f"Its parameters are {other}, and rows are float32: give model.float()."
    if (
        rows.is_floating_point()
        and "tokens=True" not in why
        and any(isinstance(part, torch.nn.Embedding) for part in module.modules())
    ):
        return (
            "It has an Embedding, which reads whole numbers: make the data with from_arrays(…, tokens=True)."
        )
    if not rows.is_floating_point():
        return (
            "The rows are whole-number tokens: give a model that begins with an Embedding, or make the "
            "data without tokens=True."
        )
    return "Give a model made for this data, or reshape the rows."


def fits(
    owner: str, module: Any, name: str, rows: Any, classes: int | None, of: str, every: bool = False
) -> None:
    """Run two rows through the model now, so that a wrong shape is one sentence here and not a stack trace in
    round 1.
    """
    import copy

    if not any(True for _ in module.parameters()):
        raise BadParameter(
            f"{owner}: model {name!r} has no parameters, so there is nothing to train. Give one that has."
        )
    if not any(q.requires_grad for q in module.parameters()):
        raise BadParameter(
            f"{owner}: every parameter of model {name!r} is frozen (requires_grad=False), so there is "
            "nothing to train."
        )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = copy.deepcopy(module).eval()(rows)
    except Exception as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise BadParameter(
            f"{owner}: model {name!r} cannot take rows of shape {tuple(rows.shape[1:])}: {why}. "
            f"{_made_for(module, rows, why)}"
        ) from error
    if not isinstance(out, torch.Tensor):
        raise BadParameter(
            f"{owner}: model {name!r} gives a {type(out).__name__}; it must give one tensor of outputs."
        )
    good = None if classes is None else (*rows.shape[:2], classes) if every else (len(rows), classes)
    if tuple(out.shape) != good and (good is not None or out.numel() != len(rows)):
        what = "has one number to predict, so it must give one a row"
        if good:
            what = f"has {classes} classes, so it must give {classes} numbers a " + (
                "token; LSTM(every=True) does" if every else "row"
            )
        raise BadParameter(
            f"{owner}: model {name!r} gives outputs of shape {tuple(out.shape[1:])}; {of} {what}."
        )
    if (
        good
        and classes != 1
        and len(rows)
        and bool((out >= 0).all())
        and bool(((out.sum(-1) - 1).abs() < 1e-5).all())
    ):  # logits are not so even by chance
        raise BadParameter(
            f"{owner}: model {name!r} gives probabilities, numbers from 0 that add up to 1; the loss takes "
            "what stands before the softmax, and "
            "would apply it twice. Leave out the softmax at its end."
        )

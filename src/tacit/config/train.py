"""Every option of a training run, declared once.

`TrainConfig` declares each option with its type, default, check, documentation and place in a job file. The
keyword arguments of `train`, `compare`, `plan` and `gossip`, the tables of job files, `--set`, the job that a
run directory keeps, and the reference page are derived from it. `conflicts/` lists what cannot be combined.

A new option is one field here, and one property of the trainers that obey it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from .. import aggregate, algorithms, guard, models, own_code, pace, selection, speeds, topologies
from ..algorithms import solvers
from ..algorithms.types import Algorithm, Solver
from ..audit import poisoning
from ..audit.poisoning import Attack
from ..callbacks import Callback, FunctionCallback, RoundEnd
from ..data.subgroups import read_declared
from ..engine.losses import NAMES, OF_MODEL, model_loss
from ..engine.own_metrics import OwnMetrics, is_object
from ..errors import BadJob
from ..guard import Stage
from ..models import table_of as to_table_of
from ..parameters import (
    NONE,
    Kind,
    bad,
    check,
    choice,
    component,
    flag,
    from_table,
    nearest,
    real,
    resolve,
    to_table,
    whole,
)
from ..private.dpsgd import DPSGD
from ..script import Script, take_script

# what a run can be judged by; the second tuple is for regression, "loss" for both
CLASS_METRICS = ("accuracy", "auc", "average_precision", "brier", "f1", "precision", "recall")
REGRESSION_METRICS = ("r2", "mae", "rmse")
METRICS = ("loss", *CLASS_METRICS, *REGRESSION_METRICS)
BALANCED = "balanced"

MOST_TEXT = 4000  # characters of a text for the model card
MIN_ROWS = 10  # a metric on fewer held-out rows says too much about single rows

ALGORITHM = Kind("an algorithm", algorithms.ALL, base=Algorithm, example="algorithms.FedAvg(lr=0.1)")
RULE = aggregate.RULE._replace(example="aggregate.Median()")
PACE = Kind("an asynchronous pace", pace.ALL)
SPEED = Kind("a speed", speeds.ALL)
SELECTION = selection.SELECTION._replace(example="selection.PowerOfChoice(candidates=30)")


def _take(kind: Kind, name: str, none: bool | str = False) -> Callable[[Any, str], Any]:
    return lambda value, owner: resolve(value, kind, owner, name, none)


def take_algorithm(value: Any, owner: str) -> Algorithm:
    value = algorithms.FedAvg() if value is None else value
    name = value.get("name") if isinstance(value, Mapping) else value
    if own_code.is_code(name):
        raise BadJob(
            f"{owner}, algorithm: {name!r} is code of your own, which a job file can name only between real "
            "parties, who approve it. In a simulation give the object: tacit.train(…, algorithm=…)."
        )
    return resolve(value, ALGORITHM, owner, "algorithm")  # type: ignore[no-any-return]


def algorithm_table(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm as a table; a user's own has its full name, and the digest of its source."""
    table, cls = to_table(algorithm), type(algorithm)
    name = None if cls in algorithms.ALL.values() else own_code.name_of(cls)
    return table if name is None else {**table, "name": name, "digest": own_code.digest_of(name)}


def algorithm_from_table(table: Any, own: type | None, where: str) -> Algorithm:
    """Return the algorithm that a table describes; `own` is the class, where it is not one of tacit's."""
    if own is None or not isinstance(table, Mapping):
        return from_table(table, algorithms.ALL, where)  # type: ignore[no-any-return]
    if not issubclass(own, Algorithm):
        raise BadJob(f"{where}: {own!r:.80} does not extend algorithms.Algorithm.")
    members = {**algorithms.PARTS, own.__name__: own}
    rest = {k: v for k, v in table.items() if k not in ("name", "digest")}
    return from_table({"name": own.__name__, **rest}, members, where)  # type: ignore[no-any-return]


def take_rule(value: Any, owner: str) -> Any:
    return resolve(aggregate.Mean() if value is None else value, RULE, owner, "aggregate")


def _take_guard(value: Any, owner: str) -> tuple[Stage, ...]:
    if isinstance(value, list) and any(isinstance(stage, Mapping | str) for stage in value):
        value = [from_table(stage, guard.ALL, f"{owner}, guard[{i}]") for i, stage in enumerate(value)]
    return guard.as_stages(value)


def _take_adversaries(value: Any, owner: str) -> tuple[Attack, ...]:
    if isinstance(value, list) and any(isinstance(attack, Mapping) for attack in value):
        members = {cls.__name__: cls for cls in poisoning.ALL.values()}
        value = [from_table(table, members, f"{owner}, adversaries[{i}]") for i, table in enumerate(value)]
    return poisoning.attacks(value)


def _take_private(value: Any, owner: str) -> DPSGD | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        value = resolve({"name": "DPSGD", **value}, Kind("DP-SGD", {"DPSGD": DPSGD}), owner, "private")
    if not isinstance(value, DPSGD) or value.tree or value.sampling != "poisson":
        raise bad(
            owner,
            "private",
            value,
            "private.DPSGD(…) with sampling='poisson', or None",
            "Other samplings are for one data holder: tacit.train_private.",
        )
    if value.micro_batch is not None:
        raise bad(owner, "private.micro_batch", value.micro_batch, "None: local batches are small already")
    return check(value)


def _take_class_weight(value: Any, owner: str) -> Any:
    """Return "balanced", a dict by label, a tuple with a number for each class, or None."""
    if value is None or value == NONE:
        return None
    if value == BALANCED:
        return value
    numbers = value.values() if isinstance(value, Mapping) else value
    if (
        isinstance(value, str)
        or not isinstance(value, Mapping | list | tuple)
        or not value
        or not all(
            isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) and n >= 0
            for n in numbers
        )
        or not any(n > 0 for n in numbers)
    ):
        raise bad(
            owner,
            "class_weight",
            value,
            "'balanced', a number of at least 0 by label, such as {'ill': 4, 'healthy': 1}, a list with one "
            "for each class, or None (all weigh 1)",
        )
    if isinstance(value, Mapping):
        return {str(label): float(n) for label, n in value.items()}
    return tuple(map(float, value))


def _take_loss(value: Any, owner: str) -> Any:
    if value is None or value == NONE:
        return None
    if value == OF_MODEL:
        return model_loss
    if callable(value) and not isinstance(value, type):
        return value
    if own_code.is_code(value) or isinstance(value, Mapping):
        raise BadJob(
            f"{owner}, loss: {value!r:.80} is code of your own, which a job file can name only between real "
            "parties, who approve it. In a simulation give the function: tacit.train(…, loss=…)."
        )
    if not isinstance(value, str) or value not in NAMES:
        hint = nearest(value, list(NAMES)) if isinstance(value, str) else ""
        if isinstance(value, type):
            hint = f"Give an object: {value.__name__}(reduction='none')."
        must_be = f"one of {', '.join(map(repr, NAMES))}, 'model', a function of outputs and targets, or None"
        raise bad(owner, "loss", value, must_be, hint)
    return value


# entries of a round that a metric of the same name would replace
TAKEN = (
    "round",
    "seconds",
    "clock",
    "epsilon",
    "parties",
    "sampled",
    "tested",
    "dropped",
    "majority",
    "member_losses",
    "kind",
)


def _take_metrics(value: Any, owner: str) -> OwnMetrics | None:
    if value is None or isinstance(value, OwnMetrics):
        return value or None
    if isinstance(value, Mapping) and any(isinstance(m, str | Mapping) for m in value.values()):
        raise BadJob(
            f"{owner}, metrics: a job file can name code of your own only between real parties, who approve "
            "it. In a simulation give the functions: tacit.train(…, metrics={…})."
        )
    if not isinstance(value, Mapping) or not all(
        (callable(m) and not isinstance(m, type)) or is_object(m) for m in value.values()
    ):
        must_be = "a dict of names and functions of outputs and targets, or torchmetrics objects"
        raise bad(owner, "metrics", value, must_be)
    for name in value:
        _check_metric_name(name, owner)
    return OwnMetrics(dict(value)) or None


def _check_metric_name(name: Any, owner: str) -> None:
    if (
        not isinstance(name, str)
        or not name.isidentifier()
        or name in (*METRICS, *TAKEN)
        or name.endswith(("_low", "_high", "_error"))
        or name.startswith(("best_", "bytes_"))
    ):
        must_be = "a name of letters, digits and _ that no metric or entry of a round has"
        raise bad(owner, "the name of a metric", name, must_be, f"Taken: {', '.join((*METRICS, *TAKEN))}.")


OTHER_HOOKS = {"on_start", "measure", "on_end"}


def _take_callback(one: Any) -> Callback:
    if isinstance(one, Callback):
        return one
    return FunctionCallback(one.on_round_end if isinstance(one, RoundEnd) else one)


def _take_callbacks(value: Any, owner: str) -> tuple[Callback, ...]:
    if value is None:
        return ()
    if isinstance(value, Callback) or not isinstance(value, list | tuple):
        raise bad(owner, "callbacks", value, "a list of callbacks, or of functions of (record, model)")
    for one in value:
        if isinstance(one, type) or not (isinstance(one, Callback | RoundEnd) or callable(one)):
            must_be = "an object of tacit.callbacks, or with on_round_end, or a function of (record, model)"
            raise bad(owner, "callbacks", one, must_be)
        if not isinstance(one, Callback) and (hooks := sorted(set(dir(one)) & OTHER_HOOKS)):
            advice = f"{' and '.join(hooks)} would not be called: extend tacit.callbacks.Callback."
            raise bad(owner, "callbacks", one, "an object of tacit.callbacks", advice)
    found = tuple(_take_callback(one) for one in value)
    for name in (name for one in found for name in one.names):
        _check_metric_name(name, owner)
    return found


def _take_optimizer(value: Any, owner: str) -> Solver | None:
    if value is None or value == NONE:
        return None
    if isinstance(value, Solver):
        return check(value)
    given = value
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
        value = value.__name__
    if isinstance(value, Mapping | str):
        table = {"name": value} if isinstance(value, str) else dict(value)
        known = {name.lower(): name for name in (*solvers.ALL, *solvers.ELEMENTWISE)}
        name = known.get(str(table.get("name")).lower())
        if name is None or name == "Torch":
            must_be = f"one of {', '.join(n for n in known if n != 'torch')}, a solver or a function"
            close = nearest(str(table.get("name")), list(known)) if isinstance(given, str) else ""
            advice = close if close.startswith("Did") else "Others depend on layers, or need a closure."
            raise bad(owner, "optimizer", value, must_be, advice)
        if name in solvers.ELEMENTWISE:
            table |= {"name": "Torch", "optimizer": name}
        return from_table(table, solvers.ALL, f"{owner}, optimizer")  # type: ignore[no-any-return]
    if isinstance(value, torch.optim.Optimizer) or not callable(value):
        must_be = "a name, a solver, a class of torch.optim, or a function of parameters that returns one"
        if isinstance(value, torch.optim.Optimizer):  # its text has many lines
            advice = f"Each client has its own: give the class, optimizer=torch.optim.{type(value).__name__}."
            raise bad(owner, "optimizer", f"an object of {type(value).__name__}", must_be, advice)
        raise bad(owner, "optimizer", value, must_be)
    return solvers.OwnOptimizer(value)


def with_optimizer(config: TrainConfig) -> TrainConfig:
    """Return the config with its optimizer as the algorithm's solver, where it has one."""
    if config.optimizer is None:
        return config
    if "solver" not in {f.name for f in dataclasses.fields(config.algorithm)}:  # type: ignore[arg-type]
        raise bad(
            "train",
            "optimizer",
            config.optimizer,
            f"None: {type(config.algorithm).__name__} has its own local steps",
        )
    algorithm = dataclasses.replace(config.algorithm, solver=config.optimizer)  # type: ignore[type-var]
    return dataclasses.replace(config, algorithm=check(algorithm), optimizer=None)


def loss_name(loss: Any) -> Any:
    """Return a loss as a job file has it: a function by its name, which only Python can find again."""
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, own_code.OwnLoss):
        return loss.as_table()
    if loss is model_loss:
        return OF_MODEL
    return own_code.name_of(loss) or f"own: {getattr(loss, '__qualname__', type(loss).__name__)}"


def metrics_table(metrics: OwnMetrics) -> dict[str, Any]:
    """Return own metrics as a contract has them: each with its digest, or, on one machine, its name."""
    return {
        name: dict(metrics.code.get(name) or {"name": own_code.name_of(metric) or ""})
        for name, metric in metrics.metrics.items()
    }


def _take_intended_use(value: Any, owner: str) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        must_be = f"a text of at most {MOST_TEXT:,} characters"
        raise bad(owner, "intended_use", value if not isinstance(value, str) else "longer", must_be)
    return value


def keep(value: Any, owner: str) -> Any:
    """A model or a topology is checked when the data are known."""
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of one training run. Build it with `TrainConfig.of`, which checks every value."""

    model: Any = component(
        None,
        keep,
        takes="Model | None",
        doc="name of a model, an nn.Module, or a function that returns one; None: a linear model for rows "
        "from a table ('logistic', or 'linear' for regression), 'mlp' for other rows",
    )
    algorithm: Algorithm = component(
        None,
        take_algorithm,
        takes="str | Algorithm | None",
        compare="algorithms",
        doc="local steps and server step: algorithms.FedAvg(…) and others, or a name",
    )
    optimizer: Any = component(
        None,
        _take_optimizer,
        takes="str | Mapping[str, Any] | Solver | Callable[..., Any] | None",
        compare=False,
        doc="clients' optimizer, reset every round: 'sgd', 'adam', 'adamw', 'rmsprop', 'adagrad', a solver "
        "such as algorithms.AdamW(max_norm=1.0), another elementwise class of torch.optim or its name, or a "
        "function of parameters that returns one; None: the algorithm's solver",
    )
    rounds: int = whole(10, least=1, doc="rounds of training")
    per_round: int | None = whole(
        None, least=1, none="everyone", doc="parties that take part in a round; asynchronously: at a time"
    )
    local_epochs: int | tuple[int, ...] = whole(
        1, least=1, each="party", takes="int | Sequence[int]", doc="passes over a party's rows in a round"
    )
    local_steps: int | None = whole(
        None, least=1, none="epochs decide", doc="local steps in a round, instead of epochs"
    )
    batch_size: int | None = whole(32, least=1, none="all rows at once", doc="rows in a local step")
    seed: int = whole(
        0, least=0, compare="seeds", doc="random seed; noise and masks that protect data do not follow it"
    )
    device: str = component("cpu", keep, takes="str", simulated=True, doc="'cpu', 'cuda', 'cuda:0' or 'auto'")
    precision: str = choice("float32", ("float32", "tf32", "bf16"), doc="arithmetic of local steps")
    engine: str = choice(
        "auto",
        ("auto", "stack", "each", "compile"),
        simulated=True,
        doc="simulate clients as one stack, one after the other, or on a GPU with compiled steps",
    )
    ranks: str = choice(
        "auto",
        ("auto", "off"),
        simulated=True,
        doc="share the clients of every round among the processes that torchrun or srun started, if it did; "
        "'off': every process trains by itself",
    )
    runtime: Any = component(
        "cohort",
        keep,
        takes="str | Runtime",
        compare=False,
        simulated=True,
        doc="'cohort' simulates all clients in one tensor program, 'inprocess' runs a program for each "
        "party over messages, 'processes' (or tacit.Processes(…)) a process for each party",
    )
    evaluate_every: int = whole(1, least=0, doc="rounds between evaluations; 0: after the last round only")
    min_rows: int = whole(
        MIN_ROWS, least=1, doc="a party with fewer held-out rows reports no metrics on them"
    )
    landscape: bool = flag(
        False, simulated=True, doc="compute the loss around the final model, for the report"
    )
    guard: tuple[Stage, ...] = component(
        None,
        _take_guard,
        takes="Stage | Sequence[Stage] | None",
        compare="guards",
        doc="stages around every update: [guard.Clip(1.0), guard.Noise(multiplier=1.0)]",
    )
    sampling: str = choice(
        "fixed",
        ("fixed", "poisson"),
        doc="'fixed' draws per_round parties; 'poisson' draws each with probability per_round/parties",
    )
    insecure_seed: int | None = whole(
        None,
        least=0,
        none="the operating system's randomness",
        compare=False,
        simulated=True,
        doc="makes every secret replayable, for tests only; the result is stamped NOT PRIVATE",
    )
    pace: Any = component(
        None,
        _take(PACE, "pace", none="synchronous rounds"),
        takes="str | Pace | None",
        compare=False,
        doc="asynchronous training: pace.FedBuff(…), pace.FedAsync(…) or pace.SAFA(…)",
    )
    speed: Any = component(
        None,
        _take(SPEED, "speed", none="no virtual clock"),
        takes="Speed | None",
        compare=False,
        simulated=True,
        doc="how long local work takes on the virtual clock of a simulation: speeds.Lognormal(…)",
    )
    aggregate: Any = component(
        None,
        take_rule,
        takes="str | Rule | None",
        compare="aggregates",
        doc="how the server combines updates, instead of the mean: aggregate.Median() and others",
    )
    adversaries: Any = component(
        None,
        _take_adversaries,
        takes="Mapping[str, float] | Sequence[Attack] | None",
        simulated=True,
        doc="share of malicious parties in a simulation: {'sign_flip': 0.2}, or attacks from tacit.audit",
    )
    topology: Any = component(
        None,
        keep,
        takes="Topology | None",
        compare=False,
        simulated=True,
        doc="tacit.Hierarchy(…) instead of one server",
    )
    private: DPSGD | None = component(
        None,
        _take_private,
        takes="DPSGD | None",
        compare=False,
        doc="private.DPSGD(…): every local step is one of DP-SGD, and each party has an ε for its rows",
    )
    select: Any = component(
        None,
        _take(SELECTION, "select", none="drawn uniformly"),
        takes="str | Selection | None",
        compare=False,
        doc="how participants of a round are chosen: selection.PowerOfChoice(candidates=30)",
    )
    threshold: float | None = real(
        None,
        above=0,
        below=1,
        none="the more probable class",
        doc="probability from which the second of two classes is predicted",
    )
    subgroups: tuple[str, ...] = component(
        None,
        read_declared,
        takes="Sequence[str] | Mapping[str, Sequence[float]] | None",
        doc="columns by whose values metrics are also reported: ['sex', 'age: 40, 65', 'party']; those with "
        "fewer than min_rows rows are merged",
    )
    metric: str | None = choice(
        None,
        METRICS,
        none="auc if the largest class has more than 65% of the rows, else accuracy; r2 for regression",
        doc="metric on held-out rows that a run is judged by, and that early stopping follows",
    )
    stop_by: str | None = choice(
        None,
        METRICS,
        none="the metric that the run is judged by",
        doc="metric on the parties' held-out rows that early stopping follows, never on the test set",
    )
    loss: Any = component(
        None,
        _take_loss,
        takes="str | Callable[[Any, Any], Any] | None",
        doc="loss that local steps minimize: 'cross_entropy', 'focal' (rows that are classified well weigh "
        "less), 'bce' (labels that do not exclude each other), 'mse', 'mae', 'huber', 'poisson', or a "
        "function of outputs and targets that returns a loss per row, or one number for the batch; 'model': "
        "the loss that the model itself returns, as models of Hugging Face do if labels are among their "
        "inputs; None: "
        "cross_entropy, bce for several labels of 0 and 1 per row, mse for other numbers",
    )
    class_weight: Any = component(
        None,
        _take_class_weight,
        takes="str | Mapping[str, float] | Sequence[float] | None",
        doc="weight of a row in the loss by its class: 'balanced' (n / (classes · n of the class), from "
        "label counts summed over all parties), or {label: weight}",
    )
    l2: float | None = real(
        None,
        least=0,
        none="linear models on tables with n training rows: cross-validated, or 10/n, or 0.001 with noise; "
        "else 0",
        doc="λ of the penalty (λ/2)·‖W‖² on weights, not on biases, added to the mean loss",
    )
    metrics: OwnMetrics | None = component(
        None,
        _take_metrics,
        takes="Mapping[str, Any] | None",
        compare=False,
        simulated=True,
        doc="your own metrics by name: functions of outputs and targets that return a number, or "
        "torchmetrics objects; of the test set, or of the parties' held-out rows together",
    )
    callbacks: tuple[Callback, ...] = component(
        None,
        _take_callbacks,
        takes="Sequence[Any] | None",
        compare=False,
        simulated=True,
        doc="called after each round with its record and the model: callbacks.EarlyStopping(…) and others, "
        "or functions, which may return True to end the run",
    )
    client: Script | None = component(
        None,
        take_script,
        takes="str | Path | Script | Mapping[str, Any] | None",
        compare=False,
        doc="a script of yours that trains instead of local steps, started once for each party: it asks for "
        "tasks with tacit.client; tacit.Script('train.py', metrics=('accuracy',)) says more",
    )
    patience: int | None = whole(
        None,
        least=1,
        none="all rounds",
        doc="early stopping: evaluations without a better metric after which a run ends; its model is that "
        "of the best evaluated round, with several members and stop_by='loss' each that of its own",
    )
    intended_use: str = component(
        "",
        _take_intended_use,
        takes="str",
        doc="what the model is for and what not, for the model card; parties agree to it with the job",
    )

    @classmethod
    def of(cls, owner: str = "train", **options: Any) -> TrainConfig:
        """Check every option by itself and fill in the defaults."""
        fields = {f.name: f for f in dataclasses.fields(TrainConfig)}
        for name in options:
            if name not in fields:
                raise TypeError(f"{owner}() has no option {name!r}. {nearest(name, list(fields))}")
        values = {name: options.get(name, f.default) for name, f in fields.items()}
        for name, f in fields.items():
            if isinstance(values[name], np.ndarray):
                values[name] = values[name].tolist()
            if f.metadata["kind"] == "component":
                values[name] = f.metadata["take"](values[name], owner)
        return check(TrainConfig(**values), owner)


OPTIONS = {f.name: f for f in dataclasses.fields(TrainConfig)}
SIMULATED = tuple(name for name, f in OPTIONS.items() if f.metadata.get("simulated"))  # not for real parties
COMPONENTS = tuple(name for name, f in OPTIONS.items() if f.metadata["kind"] == "component")
# components that are keys of [train]
IN_TRAIN = ("device", "runtime", "class_weight", "subgroups", "intended_use", "loss")
TABLES = tuple(name for name in COMPONENTS if name not in IN_TRAIN)  # those with a table of their own
IN_PYTHON = ("metrics", "callbacks")  # objects, which no job file has, except for approved code
SETTINGS = tuple(name for name in OPTIONS if name not in TABLES)  # keys of [train]


def to_tables(config: TrainConfig) -> dict[str, Any]:
    """Return the tables of a job file that give this config again."""
    tables: dict[str, Any] = {
        "model": models.table_of(config.model),
        "algorithm": algorithm_table(config.algorithm),
    }
    values = {name: getattr(config, name) for name in SETTINGS} | {"loss": loss_name(config.loss)}
    tables["train"] = {
        name: NONE if v is None else list(v) if isinstance(v, tuple) else v for name, v in values.items()
    }
    if config.ranks == "auto":  # how many processes share a run is not a part of it
        del tables["train"]["ranks"]
    for name in TABLES[2:]:
        value = getattr(config, name)
        if name == "metrics" and value is not None and value.code:
            tables[name] = metrics_table(value)
        if name in IN_PYTHON:
            continue
        if value is None or value == () or (name == "aggregate" and value == aggregate.Mean()):
            continue
        if isinstance(value, tuple):
            tables[name] = [to_table(v) for v in value]
        elif name == "topology":
            tables[name] = dict(value) if isinstance(value, Mapping) else topologies.to_table(value)
        else:
            tables[name] = to_table(value)
    return tables


__all__ = [
    "MIN_ROWS",
    "OPTIONS",
    "SETTINGS",
    "SIMULATED",
    "TABLES",
    "TrainConfig",
    "to_table_of",
    "to_tables",
]

"""What may happen after each round of training: stop it, keep its best model, evaluate it, track it.

    tacit.train(fed, callbacks=[EarlyStopping("loss", patience=3), BestCheckpoint("best.safetensors")])

A callback reads the same record of a round that the journal and `run.history` have. A plain function of
(record, model) is one, too, and so is any object with `on_round_end(record, model)`. It may return True, or
raise `Stop`, to end the run after this round: the run then returns its `Result` as usual. Any other exception
ends the run as well, and has the result as `error.result`.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from .errors import BadParameter, MissingExtra
from .files import write_atomic
from .numbers import LOWER_IS_BETTER, is_finite

if TYPE_CHECKING:
    from torch import nn

Record = Mapping[str, Any]  # of a round: its number `round`, its metrics, seconds, bytes, ε


class Stop(Exception):
    """Raised by a callback: end the run after this round."""


class Callback:
    """What a callback may do; every method has a default that does nothing."""

    # The names of the metrics that `measure` returns.
    names: tuple[str, ...] = ()

    def on_start(self, run: Mapping[str, Any]) -> None:
        """Read the run's configuration, as tables of a job file, before the first round."""

    def measure(self, record: Record, model: nn.Module) -> Mapping[str, float]:
        """Return metrics to add to the record of this round, before it is written."""
        return {}

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        """Read the record and the model after a round; return True to end the run.

        `model` is a copy on the CPU, in evaluation mode.
        """
        return None

    def on_end(self, result: Any) -> None:
        """Read the result of the run."""


@runtime_checkable
class RoundEnd(Protocol):
    """An object of any class with `on_round_end(record, model)`, and none of the other hooks."""

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None: ...


class FunctionCallback(Callback):
    """A function of (record, model)."""

    def __init__(self, function: Callable[[Record, Any], Any]):
        self.function = function

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        asked = self.function(record, model)
        is_array = getattr(asked, "ndim", 0) != 0  # its truth value may be undefined
        if is_array or asked not in (None, True, False):
            raise BadParameter(
                f"callbacks: a function returned {asked!r:.60}; it must return True (end the run), False or "
                "None."
            )
        return bool(asked)


def _is_better(metric: str, mode: str | None, value: float, best: float, by: float = 0.0) -> bool:
    lower = metric in LOWER_IS_BETTER if mode is None else mode == "min"
    return math.isnan(best) or (value < best - by if lower else value > best + by)


def _read(record: Record, metric: str) -> float | None:
    """Return the metric of a record; None where the model was not evaluated, or diverged."""
    if metric in record:
        return float(record[metric]) if is_finite(record[metric]) else None
    if "loss" in record:
        known = sorted(
            k for k, v in record.items() if isinstance(v, float) and not k.endswith(("_low", "_high"))
        )
        raise BadParameter(f"callbacks: there is no metric {metric!r}. Known: {', '.join(known)}.")
    return None


@dataclass
class EarlyStopping(Callback):
    """End the run after `patience` evaluations without a better metric.

    `mode` is "min" or "max"; None: "min" for losses and errors, else "max". The model of the run is the last
    one; the option `patience` of `train` returns the best, chosen on held-out rows.
    """

    metric: str = "loss"
    patience: int = 5
    min_delta: float = 0.0
    mode: str | None = None
    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.mode not in (None, "min", "max") or self.patience < 1 or self.min_delta < 0:
            raise BadParameter(
                "EarlyStopping: mode must be 'min', 'max' or None, patience at least 1, and min_delta at "
                "least 0."
            )

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        value = _read(record, self.metric)
        if value is None and self.metric not in record:
            return None
        if value is not None and _is_better(self.metric, self.mode, value, self.best, self.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


@dataclass
class BestCheckpoint(Callback):
    """Write the model of the best round so far to `path`, as safetensors; `round` and `value` say which."""

    path: str | Path
    metric: str = "loss"
    mode: str | None = None
    round: int = field(default=0, init=False)
    value: float = field(default=math.nan, init=False)

    def __post_init__(self) -> None:
        if self.mode not in (None, "min", "max"):
            raise BadParameter(f"BestCheckpoint: mode is {self.mode!r}; it must be 'min', 'max' or None.")

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        from safetensors.torch import save

        value = _read(record, self.metric)
        if value is not None and _is_better(self.metric, self.mode, value, self.value):
            self.round, self.value = int(record["round"]), value
            state = {k: v.detach().contiguous().clone() for k, v in model.state_dict().items()}
            write_atomic(Path(self.path), save(state, {"round": str(self.round), self.metric: str(value)}))
        return None


class Evaluate(Callback):
    """Add metrics of your own to the records: functions of the model, by name, evaluated at the server."""

    def __init__(self, metrics: Mapping[str, Callable[[Any], float]], every: int = 1):
        if not metrics or not all(callable(f) for f in metrics.values()) or every < 1:
            raise BadParameter(
                "Evaluate: give a dict of names and functions of the model, and every of at least 1."
            )
        self.metrics, self.every, self.names = dict(metrics), every, tuple(metrics)

    def measure(self, record: Record, model: nn.Module) -> Mapping[str, float]:
        if record["round"] % self.every:
            return {}
        return {name: float(function(model)) for name, function in self.metrics.items()}


def _numbers(record: Record) -> dict[str, float]:
    """Return the finite numbers of a record, as trackers take them."""
    return {k: float(v) for k, v in record.items() if k not in ("round", "kind") and is_finite(v)}


class Progress(Callback):
    """Show how far a run is: a bar with its metrics in a notebook, lines on stderr elsewhere."""

    def __init__(self) -> None:
        self.rounds = 0
        self._display: Any = None
        self._html: Any = None

    def on_start(self, run: Mapping[str, Any]) -> None:
        rounds = run.get("train", {}).get("rounds")
        self.rounds = rounds if isinstance(rounds, int) else 0
        self._display = None
        # a notebook has them loaded; nobody else needs them installed
        ipython, display = (sys.modules.get(name) for name in ("IPython", "IPython.display"))
        if ipython is not None and display is not None and ipython.get_ipython() is not None:
            self._html = display.HTML
            self._display = display.display(self._html(self._bar(0, "")), display_id=True)

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        done = int(record["round"])
        names = ("accuracy", "auc", "r2", "loss", "epsilon")
        text = "  ".join(f"{k} {record[k]:.4g}" for k in names if is_finite(record.get(k)))
        if self._display is not None:
            self._display.update(self._html(self._bar(done, text)))
        else:
            print(f"round {done}/{self.rounds or '?'}  {text}", file=sys.stderr, flush=True)
        return None

    def _bar(self, done: int, text: str) -> str:
        bar = f'<progress value="{done}" max="{max(1, self.rounds)}" style="width:60%"></progress>'
        return f"{bar} round {done} of {self.rounds or '?'} <code>{html.escape(text)}</code>"


class TensorBoard(Callback):
    """Write every number of the records to TensorBoard's event files in `folder`."""

    def __init__(self, folder: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("callbacks.TensorBoard", "track", "tensorboard") from None
        self.writer: Any = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        for name, value in _numbers(record).items():
            self.writer.add_scalar(name, value, int(record["round"]))
        self.writer.flush()
        return None

    def on_end(self, result: Any) -> None:
        self.writer.close()


class MLflow(Callback):
    """Log options and every number of the records to the active MLflow run, or to a new one."""

    def __init__(self, **run: Any):
        """`run` are arguments of mlflow.start_run, such as run_name."""
        try:
            import mlflow
        except ImportError:
            raise MissingExtra("callbacks.MLflow", "mlflow", "mlflow-skinny") from None
        self.mlflow: Any = mlflow
        self.own = mlflow.active_run() is None
        if self.own:
            mlflow.start_run(**run)

    def on_start(self, run: Mapping[str, Any]) -> None:
        self.mlflow.log_params(_flat(run))

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        self.mlflow.log_metrics(_numbers(record), step=int(record["round"]))
        return None

    def on_end(self, result: Any) -> None:
        if self.own:
            self.mlflow.end_run()


class WandB(Callback):
    """Log options and every number of the records to a run of Weights & Biases."""

    def __init__(self, **run: Any):
        """`run` are arguments of wandb.init, such as project and mode="offline"."""
        try:
            import wandb
        except ImportError:
            raise MissingExtra("callbacks.WandB", "wandb", "wandb") from None
        self.run: Any = wandb.init(**run)

    def on_start(self, run: Mapping[str, Any]) -> None:
        self.run.config.update(_flat(run))

    def on_round_end(self, record: Record, model: nn.Module) -> bool | None:
        self.run.log(_numbers(record), step=int(record["round"]))
        return None

    def on_end(self, result: Any) -> None:
        self.run.finish()


def _flat(tables: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested tables as one: {"train.rounds": 5}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat

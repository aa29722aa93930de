"""Show a run's events on stderr while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..numbers import is_finite, judged_by, size
from ..progress import Progress
from ..report.markup import plain
from ..report.numbers import format_metric, format_seconds, metric_name
from ..runs import Event

NOISY = ("accuracy", "loss")  # what `<name>_error` is a standard error of


def summary(values: Mapping[str, Any], asked: str | None = None) -> str:
    """Format metrics, the one that the model is judged by first: 'accuracy 91.3%  loss 0.301'.

    A noisy metric has its standard error, 'accuracy 91.3% ± 2.0%'.
    """

    def figure(key: str) -> str:
        error = values.get(f"{key}_error") if key in NOISY else None
        return format_metric(key, values[key]) + ("" if error is None else f" ± {format_metric(key, error)}")

    names = dict.fromkeys((judged_by(values, asked), "loss", "epsilon"))
    words = {"epsilon": "ε"}
    return "  ".join(f"{words.get(k) or metric_name(k)} {figure(k)}" for k in names if k in values)


def result_line(metrics: Mapping[str, Any], asked: str | None = None, events: Sequence[Event] = ()) -> str:
    """Format the result of a run: its metric with the interval, and the largest class beside it.

    Of two classes, which the run's `events` name, the average precision is that of the second.

    'AUC 75.2% (95% interval 71.0% to 79.4%)  accuracy 88.0%, largest class 87.5%  loss 0.301'
    """
    metric = judged_by(metrics, asked)
    low, high = metrics.get(f"{metric}_low"), metrics.get(f"{metric}_high")
    parts = summary(metrics, asked).split("  ")
    labels = next((e["federation"].get("labels") or [] for e in events if e["kind"] == "start"), [])
    if metric == "average_precision" and len(labels) == 2:
        parts[0] = parts[0].replace(metric_name(metric), f"{metric_name(metric)} for {plain(labels[1])}", 1)
    if is_finite(low) and is_finite(high) and parts:
        parts[0] += f" (95% interval {format_metric(metric, low)} to {format_metric(metric, high)})"
    if is_finite(metrics.get("majority")):
        base = f"largest class {format_metric('accuracy', metrics['majority'])}"
        accuracy = f"accuracy {format_metric('accuracy', metrics.get('accuracy'))}, "
        parts.insert(1, base if metric == "accuracy" else accuracy + base)
    return "  ".join(parts)


class Watch:
    """Shows the events of a job: pass it as `watch`.

    `rounds` is the number of rounds of a resumed run; `began` is called once the run can be resumed.
    """

    def __init__(
        self,
        quiet: bool = False,
        *,
        rounds: int = 0,
        many: bool = False,
        began: Callable[[], None] = lambda: None,
    ):
        self.quiet, self.rounds, self.many, self.began = quiet, rounds, many, began
        self.notes: list[str] = []
        self._first: tuple[int, float] | None = (
            None  # the round this process began at, and when: a resumed run has done others before
        )
        self._side_by_side: list[
            str
        ] = []  # the runs of a comparison that were announced and have no round yet
        self._said = ""
        self._metric: str | None = None  # that the job asks for
        self._display = Progress(quiet)

    def __enter__(self) -> Watch:
        self._display.__enter__()
        self._display.start("preparing", self.rounds or None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def __call__(self, event: dict[str, Any]) -> None:
        self.began()
        if event["kind"] == "start":
            self._start(event)
        elif event["kind"] == "round":
            self._round(event)
        elif (
            event["kind"] == "note" and event["text"] not in self.notes
        ):  # side by side, runs often say the same
            self._line(f"note: {event['text']}")
            self.notes.append(event["text"])

    def _start(self, event: dict[str, Any]) -> None:
        self.rounds, self._first, self._metric = event["rounds"], None, event.get("metric")
        self._side_by_side.append(event["label"])

    def _round(self, event: dict[str, Any]) -> None:
        r, measured = event["round"], "" if self.many else summary(event, self._metric)
        now = time.monotonic()
        if self._side_by_side:
            self._begin(self._side_by_side)
            self._side_by_side = []
        self._first = self._first or (r, now)
        self._said = measured or self._said
        self._display.update(r, f"round {r}/{self.rounds}  {self._said}")
        if measured and not self._display.is_live:
            at, then = self._first
            eta = (
                f"  eta {format_seconds((now - then) / (r - at) * (self.rounds - r))}"
                if at < r < self.rounds
                else ""
            )
            self._line(f"round {r}/{self.rounds}  {self._said}{eta}")

    def _begin(self, labels: list[str]) -> None:
        """Announce runs that are trained together: their start events come before their rounds."""
        name = plain(" and ".join(dict.fromkeys(labels))) + (
            f", {len(labels)} runs side by side" if len(labels) > 1 else ""
        )
        self._display.start(name, self.rounds)
        if self.many and not self._display.is_live:
            self._line(name)

    def _line(self, text: str) -> None:
        self._display.line(plain(text))


class ClientWatch:
    """Shows what a client of real parties does: pass it as `watch` to `deployed.take_part`."""

    def __init__(self, quiet: bool = False):
        self._display = Progress(quiet)
        self._shown = self._rounds = 0

    def __enter__(self) -> ClientWatch:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "waiting":
            self._display.step(f"waiting for the server {event['server']!r}")
        elif event["kind"] == "accepted":
            self._rounds = event["rounds"]
            self._display.start("training", self._rounds)
        elif event["kind"] == "prepared":
            self._display.step(f"preparing the table with the others: {event['step']} of {event['steps']}")
            if event["step"] == event["steps"]:
                self._display.start("training", self._rounds)
        elif event["kind"] == "answered":
            traffic = f"sent {size(event['sent'])}  received {size(event['received'])}"
            text = f"round {event['round']}/{event['rounds']}  {traffic}"
            self._display.update(event["round"], text)
            if event["round"] != self._shown and not self._display.is_live:
                self._display.line(text)
            self._shown = event["round"]


def client_lines(value: dict[str, Any]) -> list[str]:
    """Say at the end what a client contributed and saw, from what `deployed.take_part` returns."""
    parts = {"training": value["epsilon"], "the preparation of the table": value["preparation_epsilon"]}
    spent = {what: cost for what, cost in parts.items() if cost is not None}
    epsilon = f"; its account is at ε = {sum(spent.values()):.4g}" if spent else ""
    if value["preparation_epsilon"] is not None:
        epsilon += f" ({' and '.join(f'{cost:.4g} for {what}' for what, cost in spent.items())})"
    few = "; it has fewer rows than agreed (min_rows) and contributed none" if value["small"] else ""
    lines = [
        f"the run is over: {value['party']} answered {value['rounds_answered']} of {value['rounds']} rounds "
        f"and {value['evaluations']} evaluations{epsilon}{few}",
        f"it sent {size(value['sent'])} and received {size(value['received'])}",
    ]
    if shown := result_line(value["metrics"], value["metric"]):
        lines.append(f"all parties together: {shown}")
    if value["model"] is not None:
        lines.append(f"the model is in {value['model']}: `tacit predict {value['model']} new.csv` uses it")
        lines.append(f"its SHA-256 is {value['model_sha256']}; compare it with the other parties'")
    else:
        lines.append("the server sent no final model")
    return [*lines, f"what {value['party']} saw and remembers is in {value['state']}"]

"""The model card: what a model is for, what it was trained on, how good it is, and what it revealed.

M. Mitchell et al.: "Model Cards for Model Reporting", FAT* 2019. It is made from a run's records, once as
Markdown (`card.md`) and once as a section of the report. Counts of rows follow the small-count rule: numbers
below `FEW` are not stated, and where the run claims an ε nothing exact about the rows is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..numbers import CHANCE, each, is_finite
from .layout import Page, Section
from .layout import table as html_table
from .markup import Safe, join, plain, tag
from .records import RunRecord

FEW = 10  # a number of rows below this is stated as "fewer than 10"
MOST_PARTIES = 30  # listed by name
MOST_VALUES = 30  # of a subgroup column
TO_FILL_IN = (
    "TO BE FILLED IN: who may use this model, for which decisions, on which people, and for which not. "
    'Set `intended_use = "…"` under [train] in the job file, or tacit.train(…, intended_use="…").'
)
METRICS = {  # in the order they are shown
    "accuracy": "accuracy",
    "auc": "AUC",
    "average_precision": "average precision",
    "brier": "Brier score",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "r2": "R²",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "loss": "loss",
    "majority": "accuracy of always guessing the majority class",
}


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Part:
    """One heading of the card: facts, sentences and tables."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    is_open: bool = False  # to be filled in by a person


def render_card(record: RunRecord, release: Mapping[str, Any] | None = None) -> str:
    """Return the card as Markdown. `release` is the content of pipeline.json."""
    name = record.federation.get("name") or "a data set"
    blocks = [f"# Model card: {_md(record.label)} on {_md(name)}"]
    stamps = (record.ledger or {}).get("stamps") or []
    blocks += [f"**{_md(s)}**" for s in stamps]
    for part in parts_of(record, release):
        blocks.append(f"## {part.title}")
        if part.facts:
            blocks.append("\n".join(f"- {_md(k)}: {_md(v)}" for k, v in part.facts.items()))
        blocks += [f"> **{_md(line)}**" if part.is_open else _md(line) for line in part.lines]
        blocks += [_md_table(table) for table in part.tables]
    return "\n\n".join(blocks) + "\n"


def card(page: Page) -> Section | None:
    """The card as a section of the report of one run."""
    if page.comparison or len(page.records) != 1 or not page.records[0].is_finished:
        return None
    body: list[Safe] = []
    record = page.records[0]
    parts = [_intended_use(record), _model(record, None), _metrics(record), *_subgroups(record)]
    for part in [*parts, _reproduction(record)]:  # other sections have the data, the ledger and the notes
        body.append(tag("h3", part.title))
        if part.facts:
            body.append(html_table(["", "value"], list(map(list, part.facts.items())), sortable=False))
        body += [tag("p", tag("strong", line) if part.is_open else line) for line in part.lines]
        body += [html_table(t.header, t.rows) for t in part.tables]
    return Section("card", "Model card", join(body))


def parts_of(record: RunRecord, release: Mapping[str, Any] | None) -> list[Part]:
    """Return the parts of the card in their order."""
    parts = [_intended_use(record), _model(record, release), _data(record), _metrics(record)]
    parts += _subgroups(record)
    parts.append(_privacy(record))
    parts.append(_reproduction(record))
    if record.notes:
        parts.append(Part("Notes of the run", lines=[f"· {note}" for note in record.notes]))
    return parts


def _intended_use(record: RunRecord) -> Part:
    text = str(_settings(record).get("intended_use") or "").strip()
    return Part("Intended use", lines=[text or TO_FILL_IN], is_open=not text)


def _model(record: RunRecord, release: Mapping[str, Any] | None) -> Part:
    model = record.start.get("model") or {}
    facts = {"model": str(model.get("name") or (release or {}).get("model", {}).get("name", "unknown"))}
    if model.get("parameters") is not None:
        facts["parameters"] = f"{model['parameters']:,}"
    facts["trained by"] = f"{record.label}, {record.done} of {record.planned} rounds"
    pipeline = (release or {}).get("pipeline")
    if isinstance(pipeline, Mapping):
        recipe = pipeline.get("recipe") if isinstance(pipeline.get("recipe"), Mapping) else {}
        facts["predicts"] = str(pipeline.get("label", ""))
        if labels := (release or {}).get("labels"):
            facts["classes"] = ", ".join(map(str, labels))
        if pipeline.get("threshold") is not None:
            facts["threshold"] = f"{pipeline['threshold']:g}"
        for kind in ("numbers", "categories", "dates", "embedded", "missing"):
            if names := list((recipe or {}).get(kind) or ()):
                facts[f"columns: {kind}"] = ", ".join(map(str, names))
    return Part("Model", facts)


def _data(record: RunRecord) -> Part:
    fed = record.federation
    parties = list(fed.get("parties") or [])
    facts = {"data set": str(fed.get("name", "")), "parties": str(len(parties)), "partition": record.skew}
    part = Part("Data", facts)
    sizes = fed.get("sizes") or []
    if not sizes:
        part.lines.append("Numbers of rows are not stated: they stay with the parties, or an ε covers them.")
        if len(parties) <= MOST_PARTIES:
            facts["names of the parties"] = ", ".join(map(str, parties))
        return part
    counts = fed.get("counts")
    labels = list(fed.get("labels") or [])
    totals = [sum(row[k] for row in counts) for k in range(len(labels))] if counts and labels else []
    # the total minus all other numbers would give a small one away
    is_exact = not any(0 < n < FEW for n in (*sizes, *totals))
    facts["rows"] = _count(sum(sizes)) if is_exact else f"about {round(sum(sizes), -1):,}"
    if totals and len(labels) <= MOST_VALUES:
        part.tables.append(Table(["class", "rows"], [[str(a), _count(n)] for a, n in zip(labels, totals)]))
    if len(parties) <= MOST_PARTIES:
        part.tables.append(Table(["party", "rows"], [[str(a), _count(n)] for a, n in zip(parties, sizes)]))
    else:
        facts["rows of a party"] = f"{_count(min(sizes))} to {_count(max(sizes))}"
    return part


def _metrics(record: RunRecord) -> Part:
    metrics = record.last("end").get("metrics") or {}
    labels = list(record.federation.get("labels") or [])
    of = {"average_precision": f" of {labels[1]}"} if len(labels) == 2 else {}
    rows = [
        [words + of.get(name, ""), _figure(metrics[name]), _interval(metrics, name)]
        for name, words in {**METRICS, **{own: own for own in record.own_metrics}}.items()
        if name in metrics
    ]
    part = Part("Metrics", tables=[Table(["metric", "value", "95% interval"], rows)] if rows else [])
    if not rows:
        part.lines.append("The model was not evaluated.")
        return part
    part.lines.append(_tested(record))
    accuracy, majority = metrics.get("accuracy"), metrics.get("majority")
    if isinstance(accuracy, float) and isinstance(majority, float) and accuracy <= majority:
        part.lines.append(
            f"The accuracy {accuracy:.3f} is not above {majority:.3f}, that of always guessing the majority "
            "class."
        )
    high = metrics.get("auc_high")
    if is_finite(high) and high < CHANCE:
        part.lines.append(
            f"The AUC is clearly below {CHANCE:g}: the scores rank rows in the wrong order. Do not use this "
            "model."
        )
    calibration = _details(record).get("calibration")
    if isinstance(calibration, Sequence) and not isinstance(calibration, str) and calibration:
        part.tables.append(
            Table(
                ["mean predicted probability", "share observed", "rows"],
                [
                    [_figure(p), _figure(share), _count(int(n))]
                    for p, share, n in calibration
                    if int(n) >= FEW
                ],
            )
        )
    return part


def _tested(record: RunRecord) -> str:
    """Say which rows the metrics are of, and how many where their number may be stated."""
    fed, matrix = record.federation, _details(record).get("confusion")
    test, held = fed.get("test_rows"), fed.get("held_rows")
    which = "rows that were not trained on: the test set, or the parties' held-out rows"
    if not fed.get("sizes"):  # real parties keep their numbers, or an ε covers them
        return f"On {which}."
    if test is not None and held is not None:
        which = "rows of the test set" if test else "rows that the parties held out of training"
    n = sum(map(sum, matrix)) if matrix else test or held
    return f"On {_count(int(n))} {which}." if n else f"On {which}."


def _subgroups(record: RunRecord) -> list[Part]:
    groups = _details(record).get("subgroups")
    if not isinstance(groups, Mapping) or not groups:
        return []
    tables = []
    for column, values in groups.items():
        names = [m for m in METRICS if any(m in row for row in values.values())]
        rows = [
            [
                str(value),
                _count(int(row["rows"])) if "rows" in row else "",
                *(_with_interval(row, name) for name in names),
            ]
            for value, row in list(values.items())[:MOST_VALUES]
        ]
        tables.append(Table([str(column), "rows", *(METRICS[m] for m in names)], rows))
    return [Part("Subgroups", tables=tables)]


def _privacy(record: RunRecord) -> Part:
    ledger = record.ledger or {}
    part = Part("Privacy and ledger", lines=[str(stamp) for stamp in ledger.get("stamps") or []])
    for s in ledger.get("spent") or []:
        part.lines.append(
            f"ε = {float(s['epsilon']):.4g} at δ = {float(s['delta']):g} for {each(str(s['unit']))}, by "
            f"{s['mechanism']}, against {s['adversary']}, assuming {s['sampling']} sampling. "
            f"{s.get('note', '')}".strip()
        )
    if not ledger.get("spent"):
        part.lines.append("No differential privacy: what the model says about any one person is not bounded.")
    if ledger.get("seen"):
        seen: dict[tuple[str, str, str], int] = {}
        for line in ledger["seen"]:
            who = (
                str(line["party"]),
                str(line["reveals"]),
                "simulated" if line["how"] == "ideal" else "executed",
            )
            seen[who] = seen.get(who, 0) + int(line["count"])
        many = len({party for party, *_ in seen}) > MOST_PARTIES
        rows: dict[tuple[str, str, str], int] = {}
        for (party, what, how), n in seen.items():
            key = ("a party" if many and party != "server" else party, what, how)
            rows[key] = rows.get(key, 0) + n
        part.tables.append(
            Table(
                ["who", "saw", "messages", "how"],
                [[who, what, f"{n:,}", how] for (who, what, how), n in rows.items()],
            )
        )
    return part


def _reproduction(record: RunRecord) -> Part:
    start = record.start
    facts = {
        "seed": str(record.seed),
        "time": str(start.get("time", "")),
        "runtime": str(start.get("runtime", "")),
    }
    versions = start.get("versions") or {"tacit": start.get("tacit", "")}
    facts |= {name: str(version) for name, version in versions.items() if version}
    facts["job"] = "job.toml in the run directory has every setting"
    return Part("Seeds and versions", {k: v for k, v in facts.items() if v and v != "None"})


def _settings(record: RunRecord) -> Mapping[str, Any]:
    settings = record.job.get("train") or {}
    return settings if isinstance(settings, Mapping) else {}


def _details(record: RunRecord) -> Mapping[str, Any]:
    """Return the curves and subgroups of the run's model, which with early stopping is not the last one."""
    last: Mapping[str, Any] = next((e for e in reversed(record.rounds) if "loss" in e), {})
    return {**last, **(record.last("end").get("metrics") or {})}


def _count(n: int) -> str:
    return f"{n:,}" if n >= FEW or n == 0 else f"fewer than {FEW}"


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _interval(metrics: Mapping[str, Any], name: str) -> str:
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    return "" if low is None or high is None else f"{_figure(low)} to {_figure(high)}"


def _with_interval(metrics: Mapping[str, Any], name: str) -> str:
    if name not in metrics:
        return ""
    interval = _interval(metrics, name)
    return _figure(metrics[name]) + (f" ({interval})" if interval else "")


_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def _md(value: object) -> str:
    """Escape text for Markdown: names come from other organizations and must be displayed literally."""
    return _SPECIAL.sub(r"\\\1", " ".join(plain(value).split()))


def _md_table(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_md(c) for c in cells) + " |"

    return "\n".join([row(table.header), "|" + "---|" * len(table.header), *map(row, table.rows)])

"""The sections of the report, made from records alone; an empty section is None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import attacks, clusters, figures, judging, nodes, timing, verdict
from .card import card
from .layout import Page, Section, figure, folding, grid, per_skew, table, tile
from .markup import Safe, join, plain, tag
from .numbers import (
    LOWER_IS_BETTER,
    count,
    format_metric,
    format_seconds,
    gap,
    is_finite,
    metric_title,
    names,
    percent,
    plus_minus,
    significant,
    size,
    truncate,
)
from .participants import participants
from .records import ALONE, CENTRAL, RunRecord
from .svg import Figure

MOST_LEDGER_ROWS = 12  # beyond it, parties that saw or sent the same thing share a row
MOST_LANDSCAPES = 2  # shown at once; the rest fold away
MOST_HOLDINGS = 2  # as above, of the data distribution, which is three charts for each skew


def summary(page: Page) -> Section:
    """A headline, the key figures, and sentences."""
    if page.comparison:
        sentences = [plain(s) for s in page.comparison.get("verdict") or []] or verdict.comparison(
            page.comparison
        )
        tiles = _comparison_tiles(page.comparison)
        score = page.comparison.get("metric", "accuracy")
        if any(f"best_{score}" in (row.get("metrics") or {}) for row in page.comparison.get("rows") or []):
            sentences.append(f"Results are from the last round. {verdict.caveat(score)}")
        diverged = [r for r in page.records if r.diverged is not None]
        if diverged:
            which = names(
                [f"{r.label} under {r.skew}, seed {r.seed}, round {r.diverged}" for r in diverged], 4
            )
            sentences.append(f"Diverged (loss NaN or infinite): {which}.")
        unfinished = [r for r in page.records if not r.is_finished]
        if unfinished:
            sentences.append(
                f"{count(len(unfinished))} of {count(len(page.records))} runs are not finished; their latest "
                "results are used."
            )
    else:
        sentences = [line for r in page.records for line in verdict.run(r)]
        tiles = _run_tiles(page.records[0])
    body = join(
        [
            tag("p", sentences[0], class_="headline"),
            tag("dl", tiles, class_="tiles"),
            tag("ul", [tag("li", s) for s in sentences[1:]], class_="sentences"),
            *(tag("p", s, class_="warning") for s in verdict.privacy(page.records)),
        ]
    )
    return Section("verdict", "Summary", body)


def _comparison_tiles(data: Mapping[str, Any]) -> list[Safe]:
    metric, tiles = data.get("metric", "accuracy"), []
    for skew in data["table"]["columns"][:4]:
        best = verdict.winner(data, skew)
        if not best:
            continue
        distance, split = verdict.to_central(data, best[0], skew), verdict.count_gains(data, best[0], skew)
        more = (
            []
            if distance is None
            else [f"{gap(metric, distance)} {'worse' if distance > 0 else 'better'} than central"]
        )
        more += (
            [f"{count(len(split[0]))} of {count(len(split[0]) + len(split[1]))} parties benefited"]
            if split
            else []
        )
        tiles.append(tile(skew, plus_minus(metric, best[1], best[2]), " · ".join([best[0], *more])))
    return tiles


def _run_tiles(run: RunRecord) -> list[Safe]:
    metrics, fed = run.metrics, run.federation
    loss = significant(metrics.get("loss")) if is_finite(metrics.get("loss")) else "NaN or infinite"
    if "accuracy_error" in metrics:
        accuracy = plus_minus("accuracy", metrics.get("accuracy"), metrics["accuracy_error"])
        result = tile("Accuracy (last round)", accuracy, f"loss {loss}, both with privacy noise")
    else:
        metric = run.metric
        within = judging.interval(metrics, metric)
        base = metrics.get("majority")
        more = [
            f"95% interval {within}" if within else "",
            f"accuracy {percent(metrics.get('accuracy'))}"
            if metric != "accuracy" and is_finite(base)
            else "",
            f"largest class {percent(base)}" if is_finite(base) else "",
            f"absolute error {significant(metrics.get('mae'))}" if metric == "r2" else "",
            f"loss {loss}" if metric != "loss" else "",
        ]
        value = loss if metric == "loss" else format_metric(metric, metrics.get(metric))
        result = tile(f"{metric_title(metric)} (last round)", value, ", ".join(filter(None, more)))
    took = format_seconds(run.last("end").get("seconds")) if run.is_finished else "not finished"
    sizes = fed.get("sizes") or []  # a server does not know the rows of real parties
    rows = f"{count(sum(sizes))} rows in total" if sizes else "row counts not recorded"
    # an infinite ε gives no privacy
    spent = [s for s in (run.ledger or {}).get("spent") or [] if is_finite(s.get("epsilon"))]
    if spent:
        budget = _budget(spent)
    elif run.ledger is None:
        budget = tile("Differential privacy", "not known yet")
    else:
        budget = tile("Differential privacy", "none", style="warn")
    return [
        result,
        tile("Rounds", f"{count(run.done)} of {count(run.planned)}", took),
        tile("Parties", count(len(fed.get("parties") or [])), rows),
        budget,
        *([] if run.audit is None else [attacks.audit_tile(run.audit)]),
    ]


def _budget(spent: Sequence[Mapping[str, Any]]) -> Safe:
    """What one person has spent: the preparation of the tables, and the largest of the other lines."""
    before = [s for s in spent if str(s.get("mechanism", "")).startswith("preparation:")]
    others = [s for s in spent if s not in before]
    most = max(others, key=lambda s: float(s["epsilon"]), default=None)
    lines = [*before[-1:], *([most] if most else [])]
    epsilon, delta = (sum(float(s.get(k) or 0) for s in lines) for k in ("epsilon", "delta"))
    parts = " + ".join(significant(s["epsilon"]) for s in lines)
    how = f", {parts} for preparation and training" if len(lines) > 1 else ""
    return tile("Privacy budget spent", f"ε = {significant(epsilon)}", f"δ = {significant(delta)}{how}")


def results(page: Page) -> Section | None:
    """Algorithms × skews, with the two baselines."""
    if not page.comparison:
        return None
    data = page.comparison
    metric, base, rows, keys, marks = data.get("metric", "accuracy"), verdict.baselines(data), [], {}, {}
    order = [
        *(x for x in data["table"]["index"] if x not in base),
        *(x for x in data["table"]["index"] if x in base),
    ]
    best = {skew: w[0] for skew in data["table"]["columns"] if (w := verdict.winner(data, skew))}
    for i, label in enumerate(order):
        row: list[Any] = [label]
        for j, skew in enumerate(data["table"]["columns"], 1):
            mean, error = verdict.cell(data, label, skew)
            if is_finite(mean):
                keys[i, j] = float(mean)
            away = None if label in base else verdict.to_central(data, label, skew)
            value = plus_minus(metric, mean, error)
            is_less = away is not None and away * (-1 if metric in LOWER_IS_BETTER else 1) > 0
            row.append(
                join(
                    [
                        tag("strong", value, tag("span", " best", class_="badge"))
                        if best.get(skew) == label
                        else value,
                        tag("small", f"{'−' if is_less else '+'}{gap(metric, away).split()[0]} vs. central")
                        if away is not None
                        else None,
                    ]
                )
            )
        marks[i] = "baseline" if label in base else ""
        rows.append(row)
    seeds = len({r.get("seed") for r in data.get("rows") or []})
    spread = f"mean ± standard error over {seeds} seeds" if seeds > 1 else "one seed, so no error bar"
    better = "lower is better" if metric in LOWER_IS_BETTER else "higher is better"
    note = tag(
        "p",
        "Baselines: ",
        tag("b", CENTRAL),
        " is one model trained on the pooled rows, which the parties may not do; ",
        tag("b", ALONE),
        " is each party training alone. The small numbers are the difference from the central model.",
        class_="quiet",
    )
    caption = f"{metric.capitalize()} on the global test set in the last round, {spread}; {better}."
    body = join(
        [table(["algorithm", *data["table"]["columns"]], rows, keys=keys, marks=marks, caption=caption), note]
    )
    return Section("results", "Results", body)


def _per_skew(page: Page, draw: Callable[..., Figure | None]) -> Safe | None:
    return per_skew(
        page.skews, lambda skew: draw(page.under(skew), title=page.title(skew), colors=page.colors)
    )


def charts(id: str, title: str, *draws: Callable[..., Figure | None]) -> Callable[[Page], Section | None]:
    """Make a section of figures, one of each kind for each skew."""

    def make(page: Page) -> Section | None:
        body = join([_per_skew(page, draw) for draw in draws])
        return Section(id, title, body) if body else None

    return make


def skews(page: Page) -> Section | None:
    # Row and label counts are exact, and no ε covers them: runs with an ε do not record them, and those of
    # earlier versions are not shown.
    if any((r.ledger or {}).get("spent") for r in page.records):
        return None
    parts = [
        join([tag("h3", skew) if len(page.skews) > 1 else None, grid([drawing])])
        for skew in page.skews
        if (drawing := figures.federation(page.under(skew)[0].federation))
    ]
    if not parts:
        return None
    several = len({r.seed for r in page.records}) > 1
    note = "Shown for the first seed; other seeds partition the rows differently." if several else ""
    body = [folding(parts, MOST_HOLDINGS, "skew"), tag("p", note, class_="quiet") if note else None]
    return Section("skew", "Data distribution", join(body))


def parties(page: Page) -> Section | None:
    entries = (page.comparison or {}).get("gain") or []

    def gain(skew: str) -> Figure | None:
        found = [g for g in entries if g.get("skew") == skew]
        return figures.gain(found, title=page.title(skew), colors=page.colors)

    if len(page.skews) == 1:  # both fit beside each other
        each = figures.per_party(page.records, title="", colors=page.colors)
        body = grid([each, gain(entries[0].get("skew")) if entries else None]) or join([])
    else:
        gains = per_skew(list(dict.fromkeys(g.get("skew") for g in entries)), gain)
        body = join([_per_skew(page, figures.per_party), gains])
    return Section("parties", "Results per party", body) if body else None


def without_server(page: Page) -> Section | None:
    """For gossip: the graph, the distance between nodes, and their accuracies."""
    runs = [r for r in page.records if r.last("graph")]
    if not runs:
        return None
    pictures = [
        grid([nodes.network(run.last("graph"), nodes.last_accuracies(run)), nodes.each_node(run)])
        for run in runs
    ]
    return Section(
        "nodes",
        "Decentralized training",
        join(
            [
                grid([nodes.consensus(runs, colors=page.colors), nodes.by_rounds(runs)]),
                folding([p for p in pictures if p], 3, "graph"),
            ]
        ),
    )


def parted(page: Page) -> Section | None:
    """For clustered training: the tree of clusters."""
    drawing = [
        figure(d) for r in page.records if (d := clusters.tree(r, r.label if len(page.records) > 1 else ""))
    ]
    return Section("clusters", "Clusters", folding(drawing, 3, "tree")) if drawing else None


def landscape(page: Page) -> Section | None:
    drawing: dict[tuple[str, str], list[Figure | None]] = {}
    for run in page.records:
        event = run.last("landscape")
        if event and (run.label, run.skew) not in drawing:
            title = " · ".join(x for x in (run.label if page.comparison else "", page.title(run.skew)) if x)
            drawing[run.label, run.skew] = [
                figures.landscape_line(event.get("line") or {}, title=title),
                figures.landscape_plane(event.get("plane") or {}, title=title),
            ]
    grids = [g for pair in drawing.values() if (g := grid(pair))]
    if not grids:
        return None
    return Section("landscape", "Loss landscape", folding(grids, MOST_LANDSCAPES, "landscape"))


def ledger(page: Page) -> Section:
    """What each party saw, and the privacy budget that was spent."""
    have = [r for r in page.records if r.ledger is not None]
    if not have:
        return Section(
            "ledger",
            "What each party saw",
            tag("p", "There is no ledger yet. It is written when the run ends.", class_="quiet"),
        )
    several = len({r.label for r in have}) > 1
    lines: dict[tuple[str, ...], list[Any]] = {}
    for run in have:
        for s in (run.ledger or {}).get("seen") or []:
            key = (
                run.label if several else "",
                *(plain(s.get(k, "")) for k in ("party", "sender", "kind", "reveals", "how")),
            )
            line = lines.setdefault(key, [0, 0])
            line[0], line[1] = line[0] + int(s.get("count") or 0), line[1] + int(s.get("bytes") or 0)
    rows: list[list[Any]] = []
    keys: dict[tuple[int, int], float] = {}
    for i, (key, (times, sent)) in enumerate(_merge_rows(lines).items()):
        label, party, sender, kind, reveals, how = key
        rows.append(
            [
                party,
                sender,
                kind,
                reveals,
                tag("span", how, class_=f"how {'ideal' if how == 'ideal' else ''}".strip()),
                count(times),
                size(sent),
                *([label] if several else []),
            ]
        )
        keys |= {(i, 5): float(times), (i, 6): float(sent)}
    header = [
        "seen by",
        "from",
        "message",
        "what it reveals",
        "protocol",
        "count",
        "bytes",
        *(["algorithm"] if several else []),
    ]
    runs = f", summed over {count(len(have))} runs" if len(have) > 1 else ""
    seen = (
        table(header, rows, keys=keys, caption=f"Messages between parties{runs}.")
        if rows
        else tag("p", "No messages were sent.")
    )
    ideal = any(key[5] == "ideal" for key in lines)
    note = (
        tag(
            "p",
            tag("b", "ideal"),
            ": the result of the protocol was computed directly in one process; its messages were not "
            "exchanged.",
            class_="quiet",
        )
        if ideal
        else None
    )
    return Section("ledger", "What each party saw", join([_spent(have, several), seen, note]))


def _merge_rows(lines: Mapping[tuple[str, ...], list[Any]]) -> dict[tuple[str, ...], list[Any]]:
    """Merge the rows of parties that saw or sent the same kind of message."""
    out: dict[tuple[str, ...], list[Any]] = dict(lines)
    for at in (2, 1):  # senders first, then those who saw
        if len(out) <= MOST_LEDGER_ROWS:
            break
        groups: dict[tuple[str, ...], list[tuple[str, list[Any]]]] = {}
        for key, value in out.items():
            groups.setdefault((*key[:at], *key[at + 1 :]), []).append((key[at], value))
        out = {}
        for rest, members in groups.items():
            who = names([m for m, _ in members]) if len(members) <= 3 else f"{count(len(members))} parties"
            out[(*rest[:at], who, *rest[at:])] = [
                sum(v[0] for _, v in members),
                sum(v[1] for _, v in members),
            ]
    return out


def _spent(have: Sequence[RunRecord], several: bool) -> Safe:
    rows = {
        tuple(
            [
                *([r.label] if several else []),
                *(
                    significant(s.get(k)) if is_finite(s.get(k)) else plain(s.get(k, ""))
                    for k in ("mechanism", "epsilon", "delta", "unit", "adversary", "sampling")
                ),
            ]
        ): None
        for r in have
        for s in (r.ledger or {}).get("spent") or []
    }
    header = [
        *(["algorithm"] if several else []),
        "mechanism",
        "ε",
        "δ",
        "protects",
        "against",
        "sampling assumed",
    ]
    spending = table(header, list(rows), caption="Privacy budget spent.") if rows else None
    covers = dict.fromkeys(
        plain(s["note"]) for r in have for s in (r.ledger or {}).get("spent") or [] if s.get("note")
    )  # what ε does not cover
    return join(
        [
            spending,
            *(tag("p", s, class_="quiet") for s in covers),
            *(tag("p", s, class_="warning") for s in verdict.privacy(have)),
        ]
    )


def reproduce(page: Page) -> Section:
    comparison, first = page.comparison, page.records[0] if page.records else None
    verb, name = (
        ("compare", plain(comparison.get("name", ""))) if comparison else ("run", first.name if first else "")
    )
    in_python = bool(
        first and isinstance(first.job.get("data"), dict) and first.job["data"].get("made_in") == "python"
    )
    if first and "epochs" in (first.job.get("private") or {}):
        verb = "train-private"
    elif first and first.start.get("runtime") == "parties on their own machines":
        verb = "party --kit KIT"
    commands = (
        ["# The data came from a Python program. Run it again with the settings below."]
        if in_python
        else [f"tacit {verb} job.toml"]
    )
    if name:  # a run kept in memory has no directory to name
        again = f"tacit {verb} job.toml" if verb.startswith("party") else f"tacit {verb}"
        stopped = (
            first and not comparison and not first.is_finished and not in_python and verb != "train-private"
        )  # which is not resumed
        commands += [f"{again} --resume {_quoted(name)}"] if stopped else []
        commands.append(f"tacit report {_quoted(name)}")
    text = (comparison or {}).get("job_text") or (first.toml if first else "")
    parts: list[Any] = [_copied("Commands", "\n".join(commands))]
    parts.append(
        _copied("job.toml", text)
        if text
        else tag("p", "job.toml is missing from the directory, so the job cannot be shown.", class_="quiet")
    )
    others = (
        [(r.name or r.label, r.toml) for r in page.records if r.toml and r.toml != text] if comparison else []
    )
    if others:
        parts.append(
            tag(
                "details",
                tag("summary", f"job.toml of {count(len(others))} run{'s' if len(others) > 1 else ''}"),
                [_copied(n, t) for n, t in others],
            )
        )
    if first:
        start = first.start
        model = start.get("model") or {}
        facts = [
            ("tacit", start.get("tacit")),
            *((start.get("versions") or {}).items()),
            ("runtime", start.get("runtime")),
            ("device", start.get("device")),
            ("model", f"{model.get('name')}, {count(model.get('parameters'))} parameters" if model else None),
            ("seeds", names(list(dict.fromkeys(str(r.seed) for r in page.records)), 10)),
            ("started", start.get("time")),
        ]
        updates = {
            r.label: r.start.get("effective_update")
            for r in page.records
            if is_finite(r.start.get("effective_update"))
        }
        if updates:
            same = len(set(updates.values())) == 1
            facts.append(
                (
                    "effective update u = η·E·|D| / (B·K)",
                    significant(next(iter(updates.values())))
                    if same
                    else "; ".join(f"{k} {significant(v)}" for k, v in updates.items()),
                )
            )
        parts.append(
            tag("dl", [(tag("dt", k), tag("dd", v)) for k, v in facts if v not in (None, "")], class_="facts")
        )
    return Section("reproduce", "How to reproduce", join(parts))


def _quoted(name: str) -> str:
    """Quote a directory's name for a shell."""
    return (
        name
        if name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        else "'" + name.replace("'", "'\\''") + "'"
    )


def _copied(title: str, content: str) -> Safe:
    button = tag(
        "button", "Copy", type="button", class_="copy", aria_label=f"Copy {title}", hidden="hidden"
    )  # the script shows it
    return tag(
        "div",
        tag("div", tag("span", truncate(title, 60)), button, class_="bar"),
        tag("pre", tag("code", content), tabindex=0),
        class_="code",
    )


def notes(page: Page) -> Section | None:
    sentences: dict[str, list[str]] = {}
    for note in (page.comparison or {}).get("notes") or []:
        sentences.setdefault(plain(note), [])
    for run in page.records:
        for note in (*run.notes, *run.warnings):
            sentences.setdefault(plain(note), []).append(run.name or run.label)
    where = len(page.records) > 1
    items = [
        tag("li", note, tag("small", f" ({names(list(dict.fromkeys(runs)), 3)})") if where and runs else None)
        for note, runs in sentences.items()
    ]
    return Section("notes", "Notes", tag("ul", items)) if items else None


ALL = (
    summary,
    attacks.section,
    participants,
    results,
    judging.judging,
    charts("curves", "Learning curves", figures.curves),
    charts("time", "Accuracy vs. time", timing.against_time, timing.ages),
    charts("bytes", "Accuracy vs. communication", figures.accuracy_against_bytes),
    charts("epsilon", "Accuracy vs. privacy budget", figures.accuracy_against_epsilon),
    skews,
    parties,
    parted,
    without_server,
    landscape,
    card,
    ledger,
    reproduce,
    notes,
)

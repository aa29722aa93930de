"""The result of a run or a comparison in sentences: the winner, the cost, the gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..numbers import CHANCE
from .markup import plain
from .numbers import (
    LOWER_IS_BETTER,
    count,
    format_metric,
    gap,
    is_finite,
    mean_error,
    metric_name,
    metric_title,
    names,
    percent,
    plus_minus,
    size,
    truncate,
    worst_decile,
)
from .records import BASELINES, CENTRAL, RunRecord


def caveat(metric: str = "accuracy") -> str:
    """Return why the best round is not the one to compare."""
    return (
        f"The best round is selected on the test set, so its {metric_name(metric)} is optimistic; compare "
        "algorithms by their last round."
    )


NOTHING = 5e-4  # a difference that rounds to 0.0 points


def comparison(data: Mapping[str, Any]) -> list[str]:
    """Return the sentences for compare.json; the first is the headline."""
    known = {skew: w for skew in data["table"]["columns"] if (w := winner(data, skew))}
    if not known:
        if _diverged(data):
            return ["Every federated algorithm diverged: no accuracy or loss can be compared.", *_rest(data)]
        return ["No federated algorithm has a result yet."]
    wins: dict[str, int] = {}
    for label, *_ in known.values():
        wins[label] = wins.get(label, 0) + 1
    leader = max(wins, key=lambda label: wins[label])
    many = len(known)
    head = (
        f"{leader} performs best under {next(iter(known))}"
        if many == 1
        else f"{leader} performs best under {'both' if many == 2 else f'all {many}'} skews"
        if wins[leader] == many
        else f"{leader} performs best under {wins[leader]} of {many} skews"
    )
    clear = [_clear(*w[1:]) for w in known.values() if w[0] == leader]
    if not any(clear) and any(w[3] for w in known.values()):
        head += ", but the differences may be due to chance"
    costs = [d for skew, w in known.items() if (d := to_central(data, w[0], skew)) is not None]
    return [
        f"{head}.{_cost(data.get('metric', 'accuracy'), costs)}",
        *(_under(data, skew, *w) for skew, w in known.items()),
        *_rest(data),
    ]


def _clear(mean: float, error: float | None, second: tuple[str, float, float | None] | None) -> bool:
    """Whether a lead exceeds one standard error of the difference; not with one seed."""
    return second is None or (
        is_finite(error) and abs(mean - second[1]) > math.hypot(error, second[2] or 0.0)
    )


def _cost(metric: str, distances: Sequence[float]) -> str:
    if not distances:
        return ""
    low, high = min(distances), max(distances)
    if high <= NOTHING:
        return " The best federated model matches or exceeds the central one."
    if low <= NOTHING:
        return f" Compared with one central model, federated training costs at most {gap(metric, high)}."
    figures = (
        gap(metric, high)
        if gap(metric, low) == gap(metric, high)
        else f"{gap(metric, low).split()[0]} to {gap(metric, high)}"
    )
    return f" Compared with one central model, federated training costs {figures}."


def _interval(metric: str, metrics: Mapping[str, Any]) -> str:
    low, high = metrics.get(f"{metric}_low"), metrics.get(f"{metric}_high")
    if not (is_finite(low) and is_finite(high)):
        return ""
    return f" (95% interval {format_metric(metric, low)} to {format_metric(metric, high)})"


def winner(
    data: Mapping[str, Any], skew: str
) -> tuple[str, float, float | None, tuple[str, float, float | None] | None] | None:
    """Return (label, mean, error, runner-up) of the best federated algorithm of a skew."""
    sign = 1 if data.get("metric", "accuracy") in LOWER_IS_BETTER else -1
    ranked = sorted(
        (
            (label, m, e)
            for label in data["table"]["index"]
            if label not in baselines(data)
            for m, e in [cell(data, label, skew)]
            if is_finite(m)
        ),
        key=lambda r: sign * r[1],
    )
    return (*ranked[0], ranked[1] if len(ranked) > 1 else None) if ranked else None


def baselines(data: Mapping[str, Any]) -> list[str]:
    return list(data.get("baselines") or BASELINES)


def cell(data: Mapping[str, Any], label: str, skew: str) -> tuple[Any, Any]:
    """Return mean and standard error, or a pair of None."""
    table = data["table"]
    if label not in table["index"] or skew not in table["columns"]:
        return None, None
    i, j = table["index"].index(label), table["columns"].index(skew)
    return table["mean"][i][j], (table.get("error") or {i: {j: None}})[i][j]


def to_central(data: Mapping[str, Any], label: str, skew: str) -> float | None:
    """Return P − P̂, how far the federated model is below the central one."""
    recorded = next(
        (
            d.get("to_central")
            for d in data.get("distance") or []
            if (d.get("label"), d.get("skew")) == (label, skew)
        ),
        None,
    )
    if is_finite(recorded):
        return recorded
    central, federated = cell(data, CENTRAL, skew)[0], cell(data, label, skew)[0]
    if not (is_finite(central) and is_finite(federated)):
        return None
    return (central - federated) * (-1 if data.get("metric", "accuracy") in LOWER_IS_BETTER else 1)


def count_gains(
    data: Mapping[str, Any], label: str, skew: str, where: str = ""
) -> tuple[list[str], list[tuple[str, float]]] | None:
    """Return (parties with P_i ≤ P̂, parties that did better alone and by how much).

    The second list is sorted, worst first. Results are on the global test set or, with where="_own", on each
    party's own held-out rows. Under label skew the first is easy to win, because a party alone has never seen
    most labels.
    """
    entry = next(
        (g for g in data.get("gain") or [] if (g.get("label"), g.get("skew")) == (label, skew)), None
    )
    pairs = (
        [
            (plain(p), a, b)
            for p, a, b in zip(
                entry["parties"], entry.get(f"local{where}") or [], entry.get(f"federated{where}") or []
            )
            if is_finite(a) and is_finite(b)
        ]
        if entry
        else []
    )
    if not pairs:
        return None
    sign = -1 if data.get("metric", "accuracy") in LOWER_IS_BETTER else 1
    return [p for p, a, b in pairs if sign * a <= sign * b], sorted(
        ((p, abs(a - b)) for p, a, b in pairs if sign * a > sign * b), key=lambda pair: -pair[1]
    )


def _under(
    data: Mapping[str, Any],
    skew: str,
    label: str,
    mean: float,
    error: float | None,
    second: tuple[str, float, float | None] | None,
) -> str:
    metric = data.get("metric", "accuracy")
    sentences = (
        f"{skew}: {label} reaches "
        f"{_named(metric, plus_minus(metric, mean, error))}"
        f"{_against_central(metric, to_central(data, label, skew))}."
    )
    sentences += _not_above_baseline(data, skew, label)
    if second:
        lead = abs(mean - second[1])
        if lead < NOTHING:
            sentences += f" {second[0]} is tied with it."
        elif _clear(mean, error, second):
            sentences += f" {second[0]} is second, {gap(metric, lead)} behind."
        else:
            why = "within the variation between seeds" if is_finite(error) else "from a single seed"
            sentences += (
                f" Its lead over {second[0]}, {gap(metric, lead)}, is {why} and may be due to chance."
            )
    split = count_gains(data, label, skew)
    if split is None:
        return sentences
    yes, no = split
    own = count_gains(data, label, skew, "_own") if metric == "accuracy" else None
    at_home = (
        f" On their own held-out rows, {count(len(own[0]))} of {count(len(own[0]) + len(own[1]))} do at "
        "least as well as alone."
        if own
        else ""
    )
    if not no:
        return (
            sentences
            + f" All {count(len(yes))} parties do at least as well on the global test set as alone.{at_home}"
        )
    worse = (
        f"{names([truncate(p) for p, _ in no])} did better alone (by "
        f"{'up to ' if len(no) > 1 else ''}{gap(metric, no[0][1])})"
    )
    return (
        sentences
        + f" On the global test set, {count(len(yes))} of {count(len(yes) + len(no))} parties benefited from "
        f"federated training; {worse}.{at_home}"
    )


def _named(metric: str, value: str) -> str:
    """Return '91.3%' for an accuracy, 'an AUC of 75.0%' for other metrics."""
    return value if metric == "accuracy" else f"{article(metric)} {metric_name(metric)} of {value}"


def article(metric: str) -> str:
    return "an" if metric_name(metric)[0] in "aeiouAFR" else "a"  # an AUC, an F1, an R²


BASED_ON = ("accuracy", "majority", "auc", "auc_high", "r2")  # whether a model is better than a constant


def _not_above_baseline(data: Mapping[str, Any], skew: str, label: str) -> str:
    """Say that an algorithm is no better than a constant prediction, if that is so."""
    runs = [
        row.get("metrics") or {}
        for row in data.get("rows") or []
        if (row.get("label"), row.get("skew")) == (label, skew)
    ]
    means = {k: mean_error(m.get(k) for m in runs)[0] for k in BASED_ON}
    return " " + said if (said := baseline(data.get("metric", "accuracy"), means)) else ""


def baseline(metric: str, metrics: Mapping[str, Any]) -> str:
    """Say that a model does not beat a constant prediction, if it does not.

    That is the mean of the target for a regression, and the largest class for a classification.
    """
    accuracy, majority, auc, high, r2 = (metrics.get(k) for k in BASED_ON)
    if is_finite(r2) and not is_finite(accuracy):
        return "" if r2 > 0 else "It does not beat always predicting the mean of the target."
    if is_finite(auc) and is_finite(high) and high < CHANCE:
        return (
            f"Its AUC, {percent(auc)}, is clearly below {percent(CHANCE)}, that of chance: its scores rank "
            "rows in the wrong order. Check the labels, and whether parties code columns differently."
        )
    if not (is_finite(accuracy) and is_finite(majority)):
        return ""
    if accuracy <= majority:
        said = (
            f"Its accuracy, {percent(accuracy)}, does not beat always predicting the largest class, "
            f"{percent(majority)}"
        )
        ranks = is_finite(auc) and auc > 0.5
        if metric in ("auc", "average_precision", "brier", "loss") and ranks:
            return f"{said}: its scores rank rows, but at its threshold it does not find the smaller class."
        return f"{said}."
    low = metrics.get("accuracy_low")
    if is_finite(low) and low <= majority:
        return (
            f"Its accuracy, {percent(accuracy)}, is not clearly above always predicting the largest class, "
            f"{percent(majority)}: the 95% interval begins at {percent(low)}."
        )
    return ""


def _against_central(metric: str, distance: float | None) -> str:
    if distance is None:
        return ""
    if abs(distance) < NOTHING:
        return ", equal to the central model"
    return f", {gap(metric, distance)} {'worse than' if distance > 0 else 'better than'} the central model"


def _rest(data: Mapping[str, Any]) -> list[str]:
    out = []
    seeds = {row.get("seed") for row in data.get("rows") or []}
    if len(seeds) == 1:
        out.append("Only one seed was run, so there is no error bar: small differences may be due to chance.")
    if diverged := _diverged(data):
        out.append(f"{names(diverged)} diverged under at least one skew. Try a smaller learning rate first.")
    return out


def _diverged(data: Mapping[str, Any]) -> list[str]:
    """Return the algorithms that finished without a finite result under some skew."""
    metric, table = data.get("metric", "accuracy"), data["table"]
    finished_cells = {
        (row.get("label"), row.get("skew"))
        for row in data.get("rows") or []
        if metric in (row.get("metrics") or {})
    }
    return [
        label
        for label, means in zip(table["index"], table["mean"])
        if any(
            not is_finite(m) and (label, skew) in finished_cells for skew, m in zip(table["columns"], means)
        )
    ]


def run(record: RunRecord) -> list[str]:
    """Return the sentences for a single run; the first is the headline."""
    metrics, parties = record.metrics, record.federation.get("parties") or []
    metric = record.metric
    rounds = f"{count(record.done)} round{'' if record.done == 1 else 's'}"
    if not metrics:
        return [
            f"{record.label} has no result yet: {count(record.done)} of {count(record.planned)} rounds are "
            "complete."
        ]
    # of privacy noise; the AUC's error is that of its bins
    error = metrics.get(f"{metric}_error") if metric in ("accuracy", "loss") else None
    is_too_noisy = metric == "accuracy" and error is not None and error >= 0.5  # a guess is as accurate
    reached = (
        format_metric(metric, metrics.get(metric))
        if error is None
        else plus_minus(metric, metrics.get(metric), error)
    )
    sentences = [
        f"{record.label} diverged: its loss became NaN or infinite in round {record.diverged}."
        if record.diverged is not None
        else f"{record.label} ran {rounds}. Its accuracy cannot be reported: its privacy noise has a "
        f"standard error of {percent(error)}."
        if is_too_noisy
        else f"{record.label} reaches {article(metric)} {metric_name(metric)} of {reached} after {rounds}"
        f"{_interval(metric, metrics)}."
    ]
    if record.diverged is None and not is_too_noisy and (said := baseline(metric, metrics)):
        sentences.append(said)
    labels = record.federation.get("labels") or []
    of = f" for {plain(labels[1])}" if len(labels) == 2 else ""
    if record.diverged is None and metric == "auc" and is_finite(metrics.get("average_precision")):
        sentences.append(
            f"Its average precision{of} is {percent(metrics['average_precision'])}, its accuracy "
            f"{percent(metrics.get('accuracy'))}."
        )
    if metric == "average_precision" and of:
        sentences.append(f"The average precision is that{of}.")
    if is_too_noisy:
        sentences.append(
            "The metrics are covered by ε. More parties, a larger ε or evaluate_every=0 reduce their noise."
        )
    elif error is not None:
        sentences.append("The metrics contain noise and are covered by ε; ± is their standard error.")
    if not record.is_finished:
        sentences.append(
            f"The run is not finished: this report covers {count(record.done)} of {count(record.planned)} "
            "rounds. It is still running, or it was stopped."
        )
    if record.diverged is not None:
        sentences.append("Results after that round are meaningless. Try a smaller learning rate first.")
    if stopping := record.last("stop"):
        each = stopping.get("member_rounds")
        if isinstance(each, list) and len(each) > 1 and all(type(r) is int for r in each):
            shown = names([count(r) for r in each], 8)
            sentences.append(f"Its networks are those of rounds {shown}: early stopping.")
        else:
            sentences.append(f"Its model is that of round {metrics.get('best_round', '?')}: early stopping.")
    elif is_finite(metrics.get(f"best_{metric}")):
        best = format_metric(metric, metrics[f"best_{metric}"])
        sentences.append(
            f"{metric_title(metric)} is {format_metric(metric, metrics.get(metric))} in the last round and "
            f"{best} in the best round ({metrics.get('best_round', '?')}). {caveat(metric)}"
        )
    values = record.party_accuracy
    worst = worst_decile(values)
    if len(worst) and len(values) > 1:
        who = names([truncate(plain(parties[i])) for i in worst if i < len(parties)], 3)
        sentences.append(
            "On their own held-out rows, the parties reach "
            f"{percent(mean_error(v for v in values if is_finite(v))[0])} on average "
            f"and the worst decile ({who}) {percent(mean_error(values[i] for i in worst)[0])}."
        )
    if total := record.total("bytes_up") + record.total("bytes_down"):
        tested = record.total("bytes_evaluation")
        both = f"{size(total)} of models and updates were sent in total"
        sentences.append(
            f"{both}, and {size(tested)} to evaluate models ({size(total + tested)})."
            if tested
            else f"{both}."
        )
    if record.label not in BASELINES and len(parties) != 1:
        sentences.append(
            "A single run has no baselines. Use tacit compare to compare it with one central model and with "
            "each party training alone."
        )
    return sentences


def privacy(records: Sequence[RunRecord]) -> list[str]:
    """Return what protects the parties, or that nothing does, for each run with a ledger."""
    unprotected: dict[str, list[str]] = {}
    out = []
    for record in records:
        if record.ledger is None or any(
            is_finite(s.get("epsilon")) for s in record.ledger.get("spent") or []
        ):
            continue
        seen = record.ledger.get("seen") or []
        who = sorted(
            {plain(s.get("party")) for s in seen if s.get("kind") == "Upload" and not record.hides_updates}
        )
        if seen:
            unprotected.setdefault(names(who, 3) if who else "", []).append(record.label)
    several = len({r.label for r in records}) > 1
    for readers, labels in unprotected.items():
        which = f" ({names(list(dict.fromkeys(labels)), 12)})" if several else ""
        readers = "the server" if readers == "server" else readers
        out.append(
            f"No differential privacy{which}: updates were visible in plaintext to {readers}."
            if readers
            else f"No differential privacy{which}: there is no bound on what the messages below reveal."
        )
    return out

"""tacit.compare: algorithms × skews × seeds, with the two baselines that matter."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch

from ..audit.poisoning import attacks, name_of
from ..config.compare import CompareConfig
from ..config.signature import with_options
from ..config.train import take_algorithm, take_rule
from ..data.federation import Federation, Holdings, Rows
from ..engine import evaluation
from ..engine.stacking import can_share_stack
from ..errors import BadData, BadParameter, BadRun
from ..guard import Noise, Stage, as_stages
from ..numbers import mean_error
from ..parameters import bad, nearest
from ..report import verdict
from ..report.records import ALONE, CENTRAL
from ..results import Comparison, Result
from ..runs import Event, encode_nonfinite, write_atomic
from .train.plan import Plan, make_plan
from .train.simulated import plain
from .train.train import train_side_by_side

if TYPE_CHECKING:
    from ..config.types import CompareOptions

VARY = (
    "guard",
    "local_epochs",
    "local_steps",
    "batch_size",
    "per_round",
    "sampling",
)  # what a row may have for itself
SEEDS = 10_000  # that one comparison may have


SHARED = CompareConfig.shared()
ALGORITHMS = "a list of algorithms such as [algorithms.FedAvg(), algorithms.Scaffold()]"
RULES = "a list of rules such as [aggregate.Median()]"


@with_options(CompareConfig.options() | SHARED)
def compare(
    feds: Federation | Sequence[Federation],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Train with every algorithm, on every federation, from every seed, next to two baselines.

    The baselines are one central model and each party alone. Runs that share a model and an algorithm are
    stacked, and each row equals the run by itself. The baselines take as many passes over the data as a party
    does (`rounds` × `local_epochs`). Tune them as carefully as the rest: distances are measured from them.
    They are not guarded.

    `aggregates`, `guards` and `variants` add rows, `adversaries` a column for each attack. Each row has its
    own privacy account, and a budget ends its own row only. `resume` continues a comparison in `out` that was
    stopped, to the same results except for what a guard draws from the operating system.
    """
    own = CompareConfig(**{name: v for name, v in options.items() if name in CompareConfig.options()})  # type: ignore[arg-type]
    common: dict[str, Any] = {name: v for name, v in options.items() if name in SHARED}
    algorithms, seeds, match, baseline = own.algorithms, own.seeds, own.match, own.baseline
    aggregates, guards, variants = own.aggregates, own.guards, own.variants
    adversaries = common.pop("adversaries", None)
    federations: list[Any] = list(feds) if isinstance(feds, list | tuple) else [feds]
    for fed in federations or [feds]:
        if not isinstance(fed, Federation):
            raise bad(
                "compare",
                "feds",
                type(fed).__name__,
                "a Federation (data.digits().split(10)), or a list of them",
            )
        if not len(fed.test.y) and not len(fed.held.index):
            raise BadData(
                f"{fed.name} has no test rows and no party holds any back, so nothing can be compared. "
                "Split it with held_fraction=0.1."
            )
    if len({fed.classes is None for fed in federations}) > 1:
        raise BadParameter(
            "compare: some federations have classes and some have numbers to predict; there is no score for "
            "both. Compare them apart."
        )
    algorithms = [take_algorithm(a, "compare") for a in _listed("algorithms", algorithms, ALGORITHMS)]
    if match not in (None, "effective_update"):
        raise bad("compare", "match", match, "None or 'effective_update'")
    many = f"a whole number from 1 to {SEEDS:,}, or a list of different seeds"
    seed_list = (
        list(range(min(seeds, SEEDS + 1)))
        if isinstance(seeds, int) and not isinstance(seeds, bool)
        else _listed("seeds", seeds, many)
    )
    if len(seed_list) > SEEDS or not seed_list or len(set(seed_list)) < len(seed_list):
        raise bad("compare", "seeds", seeds, many)
    if out is not None and not isinstance(out, str | Path):
        raise bad("compare", "out", out, "a directory for the comparison, or None (keep it in memory)")
    if resume and out is None:
        raise bad(
            "compare", "out", out, "the directory of the comparison to go on with", "Or leave out resume."
        )
    directory = None if out is None else Path(out)
    if (
        directory is not None
        and not resume
        and ((directory / "compare.json").exists() or (directory / "runs").exists())
    ):
        raise BadRun(
            f"{directory} already holds a comparison, or the beginning of one. Go on with it by "
            "resume=True, or give another directory."
        )
    rules = [
        take_rule(rule, "compare")
        for rule in ([None] if aggregates is None else _listed("aggregates", aggregates, RULES))
    ]
    lies = (None, *attacks(adversaries))
    columns = [
        (fed, lie, _column(skew, lie, len(federations) > 1, len(lies) > 1))
        for fed, skew in zip(federations, _names(federations))
        for lie in lies
    ]
    rows = [
        (
            a,
            {"aggregate": rule, "guard": stages, **changed},
            _row(
                [name] * (len(algorithms) > 1)
                + [word] * (aggregates is not None)
                + [words] * (guards is not None)
                + [other] * (variants is not None)
            )
            or name,
        )
        for a, name in zip(algorithms, _labels(algorithms, "algorithm"))
        for rule, word in zip(rules, _labels(rules, "rule"))
        for words, stages in _guards(guards).items()
        for other, changed in _variants(variants, guards is not None).items()
    ]
    plans = [
        make_plan(
            fed,
            algorithm=a,
            seed=s,
            label=label,
            skew=skew,
            adversaries=lie,
            **{**common, **changed},
        )
        for fed, lie, skew in columns
        for a, changed, label in rows
        for s in seed_list
    ]
    honest = {skew: fed for fed, _, skew in columns}
    if match:
        wanted = {
            p.label: p.effective_update for p in reversed(plans)
        }  # each algorithm's own, on the first federation
        plans = [_matched(p, wanted[p.label]) for p in plans]
    base: Any = plain(
        take_algorithm(baseline, "compare")
        if baseline is not None
        else next((a for a in algorithms if a.takes_steps), algorithms[0])
    )
    clean = [
        dataclasses.replace(
            p,
            fed=honest[p.skew],
            aggregate=take_rule(None, "compare"),
            adversaries=None,
            guard=(),
            sampling="fixed",
        )
        for p in plans
        if p.label == plans[0].label
    ]
    baselines = [b for p in clean for b in (_central(p, base), *_alone(p, base))]
    _can_be_tested([*plans, *baselines])
    results = _all([*plans, *baselines], directory, resume, data_job, watch)
    shown = [i for i, p in enumerate([*plans, *baselines]) if p.label != ALONE]
    summary = _summarise([*plans, *baselines], results, directory)
    summary["notes"] = [
        f"The baselines train with a learning rate of {base.lr:g} and {base.solver!r}, and see their rows "
        "as often as a party does."
    ]
    if directory is not None:
        write_atomic(directory / "compare.json", json.dumps(encode_nonfinite(summary), indent=1))
    return Comparison([results[i] for i in shown], summary, directory)


def _can_be_tested(plans: list[Plan]) -> None:
    for p in plans:
        if not len(p.fed.test.y) and not len(evaluation.reported_rows(p.fed, p.min_rows, p.sums_only)):
            raise BadData(
                f"{p.fed.name} has no test rows, and no party holds back at least min_rows={p.min_rows} "
                "rows, so nothing can be compared. Split it "
                "with a larger held_fraction, or lower min_rows."
            )


def _listed(name: str, value: Any, must_be: str) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise bad("compare", name, value, must_be)
    return list(value)


def _all(plans: list[Plan], directory: Path | None, resume: bool, data_job: Any, watch: Any) -> list[Result]:
    """Every run, grouped into stacks of what can share one."""
    groups: list[list[int]] = []
    for i, p in enumerate(plans):
        for group in groups:
            q = plans[group[0]]
            if (
                can_share_stack(p.algorithm, q.algorithm)
                and _shape(p) == _shape(q)
                and not p.algorithm.sees_each
            ):  # clusters part at different times
                group.append(i)
                break
        else:
            groups.append([i])
    results: list[Any] = [None] * len(plans)
    places = [
        None if directory is None or p.label == ALONE else directory / "runs" / _folder(i, p)
        for i, p in enumerate(plans)
    ]
    if resume and directory is not None:
        _same_comparison(directory, {place.name for place in places if place is not None})
    for n, group in enumerate(groups):
        outs = [places[i] for i in group]
        together = None if directory is None else directory / "state" / f"stack-{n:02d}.safetensors"
        for i, result in zip(
            group,
            train_side_by_side(
                [plans[i] for i in group],
                outs,
                resume=resume,
                together=together,
                watch=watch,
                data_jobs=[None if plans[i].label == CENTRAL else data_job for i in group],
            ),
        ):
            results[i] = result
    return results


def _same_comparison(directory: Path, expected: set[str]) -> None:
    if not (directory / "runs").is_dir():
        raise BadRun(
            f"{directory} holds no comparison to resume: there is no folder runs in it. Start it without "
            "resume."
        )
    strange = sorted(p.name for p in (directory / "runs").glob("*") if p.name not in expected)
    if strange:
        raise BadRun(
            f"{directory} holds another comparison: it has runs/{strange[0]}, and this one does not. Resume "
            "with the same settings, or start a new "
            "directory."
        )


def _shape(p: Plan) -> Any:
    """What runs must share to be stacked: the model, the length, the batches."""
    rows = p.fed.rows.x
    return (
        id(p.model) if not isinstance(p.model, str) else p.model,
        tuple(rows.shape[1:]),
        p.fed.classes,
        p.rounds,
        p.batch_size,
        p.local_steps,
        repr(p.aggregate),
        p.guard,
        p.sampling,
        p.skew if any(isinstance(s, Noise) and s.epsilon is not None for s in p.guard) else "",
    )  # a budget is one


def _folder(i: int, p: Plan) -> str:
    text = "".join(c if c.isalnum() else "-" for c in f"{p.label}-{p.skew}-{p.seed}".lower())
    return f"{i:02d}-" + "-".join(part for part in text.split("-") if part)


def _names(feds: list[Federation]) -> list[str]:
    """The skews' own names, with the data set's in front where there are several."""
    several = len({f.name for f in feds}) > 1
    names = [
        (f"{f.name}, " if several else "") + ("natural" if f.skew is None else repr(f.skew)) for f in feds
    ]
    for more in (lambda f: f"{len(f)} parties", lambda f: f"split with seed {f.seed}"):
        names = [n if names.count(n) == 1 else f"{n}, {more(f)}" for n, f in zip(names, feds)]
    if len(set(names)) < len(names):
        raise BadParameter(
            f"compare: the same federation stands twice: {'; '.join(names)}. Leave one out, or split with "
            "another seed."
        )
    return names


def _column(skew: str, attack: Any, feds: bool, lies: bool) -> str:
    """A column's name: the skew, the attack, or both where there are several of both."""
    if not lies:
        return skew
    lie = "no attack" if attack is None else f"{name_of(attack)} {attack.share:.0%}"
    return f"{skew}, {lie}" if feds else lie


def _row(words: list[str]) -> str:
    return ", ".join(words)


def _guards(given: Any) -> dict[str, tuple[Stage, ...]]:
    """{the name of a row: its stages}; a guard without a name is called by its stages."""
    if given is None:
        return {"": ()}
    if isinstance(given, Mapping) and given and all(isinstance(k, str) and k for k in given):
        return {name: as_stages(stages) for name, stages in given.items()}
    listed = [
        as_stages(g)
        for g in _listed(
            "guards",
            given,
            "a list of guards such as [None, [guard.Clip(1.0), guard.Noise(epsilon=3.0)]], or a dict by name",
        )
    ]
    named = {" → ".join(map(_short, stages)) or "no guard": stages for stages in listed}
    if len(named) < len(listed):
        raise BadParameter(f"compare: the same guard stands twice among {'; '.join(named)}. Leave one out.")
    return named


def _variants(given: Any, guarded: bool) -> dict[str, dict[str, Any]]:
    """{the name of a row: the settings it has for itself}."""
    if given is None:
        return {"": {}}
    if (
        not isinstance(given, Mapping)
        or not given
        or not all(isinstance(k, str) and k and isinstance(v, Mapping) for k, v in given.items())
    ):
        raise bad(
            "compare",
            "variants",
            given,
            'settings by name, such as {"plain": {}, "five steps": {"local_steps": 5}}',
        )
    for name, settings in given.items():
        for key in settings:
            if key not in VARY:
                raise bad(
                    "compare",
                    f"a setting of the variant {name!r}",
                    key,
                    f"one of {', '.join(map(repr, VARY))}",
                    nearest(key, list(VARY)),
                )
        if guarded and "guard" in settings:
            raise bad(
                "compare", "guards", "given", f"None where a variant has a guard of its own, as {name!r} has"
            )
    return {
        name: {k: as_stages(v) if k == "guard" else v for k, v in settings.items()}
        for name, settings in given.items()
    }


def _short(stage: Any) -> str:
    """Noise(epsilon=3.0): what was said about it, and not what follows by itself."""
    said = [
        f"{f.name}={getattr(stage, f.name)!r}"
        for f in dataclasses.fields(stage)
        if getattr(stage, f.name) != f.default
    ]
    return f"{type(stage).__name__}({', '.join(said)})"


def _labels(algorithms: Sequence[Any], what: str = "algorithm") -> list[str]:
    """An algorithm's (or a rule's) name; where it stands twice, with what differs: FedProx(mu=0.1)."""
    names = [type(a).__name__ for a in algorithms]
    labels = []
    for name, a in zip(names, algorithms):
        twins = [b for n, b in zip(names, algorithms) if n == name]
        differ = [
            f"{f.name}={getattr(a, f.name)!r}"
            for f in dataclasses.fields(a)
            if any(getattr(a, f.name) != getattr(b, f.name) for b in twins)
        ]
        labels.append(f"{name}({', '.join(differ)})" if differ else name)
    if len(set(labels)) < len(labels):
        raise BadParameter(
            f"compare: the same {what} stands twice: {', '.join(labels)}. Leave one out, or give them "
            "different parameters."
        )
    return labels


def _matched(p: Plan, u: float) -> Plan:
    """Epochs first, since they are whole; what remains goes into the learning rate."""
    factor = u / p.effective_update
    epochs = tuple(max(1, round(e * factor)) for e in p.local_epochs)
    fixed = p.local_steps is not None or p.algorithm.local_epochs is not None
    q = p if fixed else dataclasses.replace(p, local_epochs=epochs)
    lr = p.algorithm.lr * u / q.effective_update  # type: ignore[attr-defined]
    return dataclasses.replace(q, algorithm=dataclasses.replace(q.algorithm, lr=lr))  # type: ignore[type-var]


def _central(p: Plan, base: Any) -> Plan:
    """All rows in one place: what federating gives up by not being allowed to."""
    n = len(p.fed.train.index)
    one = dataclasses.replace(
        p.fed,
        train=Holdings(p.fed.train.index, p.fed.train.start[[0, -1]]),
        parties=("everyone",),
        held=Holdings(p.fed.held.index, p.fed.held.start[[0, -1]]),
    )
    assert int(one.train.start[-1]) == n
    held = evaluation.reported_rows(p.fed, p.min_rows, p.sums_only)
    if len(held) < len(p.fed.held.index) and not len(
        p.fed.test.y
    ):  # it is tested on the rows that the federated model is tested on, and has no others
        kept = torch.cat([p.fed.train.index, held])
        one = dataclasses.replace(
            one,
            rows=Rows(*(t[kept] for t in p.fed.rows)),
            train=Holdings.from_lists([torch.arange(n)]),
            held=Holdings.from_lists([torch.arange(n, len(kept))]),
        )
    # H steps of a party are H steps for each party here, unless a step already is a whole pass
    steps = p.local_steps if p.local_steps is None or p.batch_size is None else p.local_steps * len(p.fed)
    return dataclasses.replace(
        p,
        fed=one,
        algorithm=base,
        per_round=1,
        local_epochs=(round(float(np.mean(p.local_epochs))),),
        local_steps=steps,
        landscape=False,
        pooled=True,
        label=CENTRAL,
    )


def _alone(p: Plan, base: Any) -> list[Plan]:
    """Each party by itself: what it has without federating."""
    return [
        dataclasses.replace(p, algorithm=base, per_round=1, members=(k,), landscape=False, label=ALONE)
        for k in range(len(p.fed))
    ]


def _own(runs: list[Result], k: int) -> float | None:
    """The accuracy on party k's own held-out rows after the last round, mean over the runs; None where it has
    none.
    """
    last = [
        next((e["parties"]["accuracy"][k] for e in reversed(r.history) if "parties" in e), None) for r in runs
    ]
    known = [a for a in last if a is not None]
    return float(np.mean(known)) if known else None


def _summarise(plans: list[Plan], results: list[Result], directory: Path | None) -> dict[str, Any]:
    """compare.json: the table, who gained, how far from the central model, and the verdict in words."""
    score = "accuracy" if "accuracy" in results[0].metrics else "loss"
    labels, skews = list(dict.fromkeys(p.label for p in plans)), list(dict.fromkeys(p.skew for p in plans))
    by: dict[tuple[str, str, int], list[int]] = {}
    for i, p in enumerate(plans):
        by.setdefault((p.label, p.skew, p.seed), []).append(i)
    rows: list[dict[str, Any]] = []
    for (label, skew, seed), group in by.items():
        metrics = {
            k: float(np.mean([results[i].metrics[k] for i in group if k in results[i].metrics]))
            for k in results[group[0]].metrics
        }
        if any(results[i].ledger.spent for i in group):
            metrics["epsilon"] = max(s.epsilon for i in group for s in results[i].ledger.spent)
        run = None if directory is None or label == ALONE else f"runs/{_folder(group[0], plans[group[0]])}"
        rows.append({"label": label, "skew": skew, "seed": seed, "run": run, "metrics": metrics})
    cells = [
        [
            mean_error([r["metrics"][score] for r in rows if (r["label"], r["skew"]) == (label, skew)])
            for skew in skews
        ]
        for label in labels
    ]
    seeds = sorted({p.seed for p in plans})
    gain, distance = [], []
    behind = 1 if score == "accuracy" else -1  # P − P̂ above 0 always means that federating lost something
    for skew in skews:
        fed = next(p.fed for p in plans if p.skew == skew and p.label not in (CENTRAL, ALONE))
        alone = [
            float(np.mean([results[by[ALONE, skew, s][k]].metrics[score] for s in seeds]))
            for k in range(len(fed))
        ]
        alone_own = [_own([results[by[ALONE, skew, s][k]] for s in seeds], k) for k in range(len(fed))]
        for label in (x for x in labels if x not in (CENTRAL, ALONE)):
            ours = cells[labels.index(label)][skews.index(skew)][0]
            central = cells[labels.index(CENTRAL)][skews.index(skew)][0]
            runs = [results[by[label, skew, s][0]] for s in seeds]
            hidden = plans[by[label, skew, seeds[0]][0]].sums_only
            gain.append(
                {
                    "label": label,
                    "skew": skew,
                    "parties": list(fed.parties),
                    "local": alone,
                    "federated": [ours] * len(fed),
                    "local_own": [None] * len(fed) if hidden else alone_own,
                    "federated_own": [_own(runs, k) for k in range(len(fed))],
                }
            )
            distance.append(
                {
                    "label": label,
                    "skew": skew,
                    "to_central": None if central is None or ours is None else behind * (central - ours),
                }
            )
    summary: dict[str, Any] = {
        "metric": score,
        "rows": rows,
        "baselines": [CENTRAL, ALONE],
        "gain": gain,
        "distance": distance,
        "table": {
            "columns": skews,
            "index": labels,
            "mean": [[m for m, _ in row] for row in cells],
            "error": [[e for _, e in row] for row in cells],
        },
    }
    return summary | {"verdict": verdict.comparison(summary)}

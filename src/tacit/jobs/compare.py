"""tacit.compare: algorithms × skews × seeds, with the two baselines that matter."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..audit.poisoning import Attack, attacks, name_of
from ..config.compare import CompareConfig
from ..config.signature import with_options
from ..config.train import TrainConfig, take_algorithm, take_rule
from ..data.federation import Federation
from ..engine import evaluation
from ..engine.metrics import LOWER_IS_BETTER, judged_by
from ..errors import BadData, BadParameter, BadRun
from ..guard import Stage, as_stages
from ..numbers import mean_error
from ..parameters import bad, nearest
from ..report import verdict
from ..report.records import ALONE, CENTRAL
from ..results import Comparison, Result
from ..runs import Event, encode_nonfinite, write_atomic
from ..runtimes.ranks import is_follower
from . import compare_on_cluster as on_cluster
from .ray_cluster import RayCluster
from .stacks import alone_baselines, central_baseline, group_into_stacks
from .train.plan import Plan, make_plan
from .train.simulated import plain
from .train.table_defaults import choose_model, table_defaults
from .train.train import train_side_by_side

if TYPE_CHECKING:
    from ..config.types import CompareOptions

# what a row may have for itself
VARY = ("guard", "local_epochs", "local_steps", "batch_size", "per_round", "sampling")
SEEDS = 10_000  # that one comparison may have
SHARED = CompareConfig.shared()
ALGORITHMS = "a list of algorithms such as [algorithms.FedAvg(), algorithms.Scaffold()]"
RULES = "a list of rules such as [aggregate.Median()]"
GUARDS = "a list of guards such as [None, [guard.Clip(1.0), guard.Noise(epsilon=3.0)]], or a dict by name"


@with_options(CompareConfig.options() | SHARED)
def compare(
    feds: Federation | Sequence[Federation],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    on: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
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

    `on="ray"` or `on="ray://HOST:10001"` trains the cells (a row, a column, a seed) on the workers of a Ray
    cluster, with `cpus` cores (default: 1) and `gpus` GPUs each (default: one where the runs use a GPU; 0.25
    runs four on one). A cell whose worker dies begins again; with `out`, those that are done are kept.
    """
    own = CompareConfig(**{name: v for name, v in options.items() if name in CompareConfig.options()})  # type: ignore[arg-type]
    common: dict[str, Any] = {name: v for name, v in options.items() if name in SHARED}
    adversaries = attacks(common.pop("adversaries", None))
    federations = _federations(feds)
    if "algorithms" not in options:
        own, common = _with_table_defaults(own, common, federations)
    if own.match not in (None, "effective_update"):
        raise bad("compare", "match", own.match, "None or 'effective_update'")
    rows, seeds = _rows(own), _seeds(own.seeds)
    # rank 0 alone writes
    directory = None if is_follower(common.get("ranks", "auto")) else _directory(out, resume)
    columns = [
        (fed, attack, _column(skew, attack, len(federations) > 1, bool(adversaries)))
        for fed, skew in zip(federations, _names(federations))
        for attack in (None, *adversaries)
    ]
    plans = [
        make_plan(fed, seed=seed, label=label, skew=skew, adversaries=attack, **{**common, **changes})
        for fed, attack, skew in columns
        for label, changes in rows
        for seed in seeds
    ]
    if own.match:  # each row's own update, on the first federation
        target = {p.label: p.effective_update for p in reversed(plans)}
        plans = [_matched(p, target[p.label]) for p in plans]
    algorithms: list[Any] = [changes["algorithm"] for _, changes in rows]
    base: Any = plain(
        take_algorithm(own.baseline, "compare")
        if own.baseline is not None
        else next((a for a in algorithms if a.takes_steps), algorithms[0])
    )
    honest = {skew: fed for fed, _, skew in columns}
    clean = {"aggregate": take_rule(None, "compare"), "adversaries": None, "guard": (), "sampling": "fixed"}
    for p in [p for p in plans if p.label == plans[0].label]:
        unguarded = dataclasses.replace(p, fed=honest[p.skew], **clean)
        plans += [central_baseline(unguarded, base), *alone_baselines(unguarded, base)]
    _check_test_rows(plans)
    cluster = _cluster(on, cpus, gpus, plans)
    results = _train(plans, directory, resume, data_job, watch, cluster)
    summary = _summarize(plans, results, directory)
    summary["notes"] = [
        f"The baselines train {_name_training(base)}, and see their rows as often as a party does."
    ]
    if directory is not None:
        write_atomic(directory / "compare.json", json.dumps(encode_nonfinite(summary), indent=1))
    return Comparison([r for p, r in zip(plans, results) if p.label != ALONE], summary, directory)


def _name_training(base: Any) -> str:
    """Say how the baselines train: by an algorithm that has no local steps, or by the steps of a party."""
    return (
        f"by {type(base).__name__}"
        if base.solver is None
        else f"with a learning rate of {base.lr:g} and {base.solver!r}"
    )


def rows_of(
    options: Mapping[str, Any], federations: Sequence[Federation]
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Return (label and options of each row, the options of all rows) of a comparison, for a plan of each."""
    own = CompareConfig(**{k: v for k, v in options.items() if k in CompareConfig.options()})
    common = {k: v for k, v in options.items() if k in SHARED}
    if "algorithms" not in options:
        own, common = _with_table_defaults(own, common, federations)
    return _rows(own), {**common, "seed": _seeds(own.seeds)[0]}


def _with_table_defaults(
    own: CompareConfig, common: dict[str, Any], federations: Sequence[Federation]
) -> tuple[CompareConfig, dict[str, Any]]:
    """Return the options with the model and the training of tables, if all federations are from tables."""
    if not all(fed.pipeline is not None for fed in federations):
        return own, common
    common = choose_model(common, federations[0])
    honest = {k: v for k, v in common.items() if k != "adversaries"}  # columns with and without them
    preset = table_defaults(TrainConfig.of("compare", **honest), federations[0], honest)
    own = dataclasses.replace(own, algorithms=(preset.pop("algorithm", "FedAvg"),))
    return own, common | preset


def _federations(feds: Any) -> list[Federation]:
    federations: list[Any] = list(feds) if isinstance(feds, list | tuple) else [feds]
    for fed in federations or [feds]:
        if not isinstance(fed, Federation):
            must_be = "a Federation (data.digits().split(10)), or a list of them"
            raise bad("compare", "feds", type(fed).__name__, must_be)
        if not len(fed.test.y) and not len(fed.held.index):
            raise BadData(
                f"{fed.name} has no test rows and no party holds any back, so nothing can be compared. "
                "Split it with held_fraction=0.1."
            )
    if len({fed.classes is None for fed in federations}) > 1:
        raise BadParameter(
            "compare: some federations are classifications and some are regressions; no score fits both. "
            "Compare them separately."
        )
    return federations


def _seeds(seeds: Any) -> list[int]:
    must_be = f"a whole number from 1 to {SEEDS:,}, or a list of different seeds"
    is_count = isinstance(seeds, int) and not isinstance(seeds, bool)
    listed = list(range(min(seeds, SEEDS + 1))) if is_count else _listed("seeds", seeds, must_be)
    if not 0 < len(listed) <= SEEDS or len(set(listed)) < len(listed):
        raise bad("compare", "seeds", seeds, must_be)
    return listed


def _directory(out: Any, resume: bool) -> Path | None:
    if out is not None and not isinstance(out, str | Path):
        raise bad("compare", "out", out, "a directory for the comparison, or None (keep it in memory)")
    if out is None:
        if resume:
            must_be = "the directory of the comparison to resume"
            raise bad("compare", "out", out, must_be, "Or leave out resume.")
        return None
    directory = Path(out)
    if not resume and ((directory / "compare.json").exists() or (directory / "runs").exists()):
        raise BadRun(
            f"{directory} already holds a comparison, or the beginning of one. Resume it by resume=True, or "
            "give another directory."
        )
    return directory


def _rows(own: CompareConfig) -> list[tuple[str, dict[str, Any]]]:
    """Return the label and the options of each row: algorithms × rules × guards × variants."""
    algorithms = [take_algorithm(a, "compare") for a in _listed("algorithms", own.algorithms, ALGORITHMS)]
    rules = [None] if own.aggregates is None else _listed("aggregates", own.aggregates, RULES)
    rules = [take_rule(rule, "compare") for rule in rules]
    # where there is one value only, a row is not named after it
    is_named = [len(algorithms) > 1, *(x is not None for x in (own.aggregates, own.guards, own.variants))]
    rows = []
    for a, name in zip(algorithms, _labels(algorithms, "algorithm")):
        for rule, rule_name in zip(rules, _labels(rules, "rule")):
            for guard_name, stages in _guards(own.guards).items():
                for variant, changes in _variants(own.variants, own.guards is not None).items():
                    names = (name, rule_name, guard_name, variant)
                    label = ", ".join(n for n, shown in zip(names, is_named) if shown) or name
                    rows.append((label, {"algorithm": a, "aggregate": rule, "guard": stages, **changes}))
    return rows


def _check_test_rows(plans: list[Plan]) -> None:
    for p in plans:
        if not len(p.fed.test.y) and not len(evaluation.reported_rows(p.fed, p.min_rows, p.sums_only)):
            raise BadData(
                f"{p.fed.name} has no test rows, and no party holds back at least min_rows={p.min_rows} "
                "rows, so nothing can be compared. Split it with a larger held_fraction, or lower min_rows."
            )


def _listed(name: str, value: Any, must_be: str) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise bad("compare", name, value, must_be)
    return list(value)


def _train(
    plans: list[Plan],
    directory: Path | None,
    resume: bool,
    data_job: dict[str, Any] | None,
    watch: Callable[[Event], None] | None,
    cluster: RayCluster | None = None,
) -> list[Result]:
    """Train every run, those that can share a stack together; on a cluster, those of a cell."""
    outs = [
        None if directory is None or p.label == ALONE else directory / "runs" / _folder(i, p)
        for i, p in enumerate(plans)
    ]
    if resume and directory is not None:
        _check_same_comparison(directory, {out.name for out in outs if out is not None})
    if cluster is not None:
        folders = [None if out is None else out.name for out in outs]
        return on_cluster.train(plans, folders, directory, cluster, data_job, watch)
    results: dict[int, Result] = {}
    groups, state_of = group_into_stacks(plans), _state_of_stack
    if on_cluster.has_cells(directory):  # it was begun on a cluster
        groups, state_of = on_cluster.group_into_cells(plans), on_cluster.state_of
    for n, group in enumerate(groups):
        runs = train_side_by_side(
            [plans[i] for i in group],
            [outs[i] for i in group],
            resume=resume,
            together=None if directory is None else state_of(directory, n),
            watch=watch,
            data_jobs=[None if plans[i].label == CENTRAL else data_job for i in group],
        )
        results |= dict(zip(group, runs))
    return [results[i] for i in range(len(plans))]


def _state_of_stack(directory: Path, n: int) -> Path:
    return directory / "state" / f"stack-{n:02d}.safetensors"


def _cluster(on: str | None, cpus: float | None, gpus: float | None, plans: list[Plan]) -> RayCluster | None:
    if on is None:
        for name, value in (("cpus", cpus), ("gpus", gpus)):
            if value is not None:
                must_be = "left out without on, because only a cluster divides cores and GPUs"
                raise bad("compare", name, value, must_be)
        return None
    uses_gpu = any(p.device != "cpu" for p in plans)
    return RayCluster(on, cpus=1 if cpus is None else cpus, gpus=float(uses_gpu) if gpus is None else gpus)


def _check_same_comparison(directory: Path, expected: set[str]) -> None:
    if not (directory / "runs").is_dir():
        raise BadRun(
            f"{directory} holds no comparison to resume: there is no folder runs in it. Start it without "
            "resume."
        )
    unknown = sorted(p.name for p in (directory / "runs").glob("*") if p.name not in expected)
    if unknown:
        raise BadRun(
            f"{directory} holds another comparison: it has runs/{unknown[0]}, and this one does not. Resume "
            "with the same settings, or start a new directory."
        )


def _folder(i: int, p: Plan) -> str:
    text = "".join(c if c.isalnum() else "-" for c in f"{p.label}-{p.skew}-{p.seed}".lower())
    return f"{i:02d}-" + "-".join(part for part in text.split("-") if part)


def _names(feds: list[Federation]) -> list[str]:
    """Name each federation by its skew, and by its data set where there are several."""
    several = len({f.name for f in feds}) > 1
    names = [
        (f"{f.name}, " if several else "") + ("natural" if f.skew is None else str(f.skew)) for f in feds
    ]
    for more in (lambda f: f"{len(f)} parties", lambda f: f"split with seed {f.seed}"):
        names = [n if names.count(n) == 1 else f"{n}, {more(f)}" for n, f in zip(names, feds)]
    if len(set(names)) < len(names):
        raise BadParameter(
            f"compare: the same federation is listed twice: {'; '.join(names)}. Leave one out, or split with "
            "another seed."
        )
    return names


def _column(skew: str, attack: Attack | None, has_skews: bool, has_attacks: bool) -> str:
    """Name a column: the skew, the attack, or both where there are several of both."""
    if not has_attacks:
        return skew
    name = "no attack" if attack is None else f"{name_of(attack)} {attack.share:.0%}"
    return f"{skew}, {name}" if has_skews else name


def _guards(guards: Any) -> dict[str, tuple[Stage, ...]]:
    """Return the stages of each row by its name; a guard without a name is named after its stages."""
    if guards is None:
        return {"": ()}
    if isinstance(guards, Mapping) and guards and all(isinstance(k, str) and k for k in guards):
        return {name: as_stages(stages) for name, stages in guards.items()}
    listed = [as_stages(g) for g in _listed("guards", guards, GUARDS)]
    names = [" → ".join(map(_short, stages)) or "no guard" for stages in listed]
    if len(set(names)) < len(names):
        raise BadParameter(f"compare: the same guard is listed twice: {'; '.join(names)}. Leave one out.")
    return dict(zip(names, listed))


def _variants(variants: Any, has_guards: bool) -> dict[str, dict[str, Any]]:
    """Return the settings that each row has for itself, by its name."""
    if variants is None:
        return {"": {}}
    if (
        not isinstance(variants, Mapping)
        or not variants
        or not all(isinstance(k, str) and k and isinstance(v, Mapping) for k, v in variants.items())
    ):
        must_be = 'settings by name, such as {"plain": {}, "five steps": {"local_steps": 5}}'
        raise bad("compare", "variants", variants, must_be)
    for name, settings in variants.items():
        for key in settings:
            if key not in VARY:
                what, must_be = f"a setting of the variant {name!r}", f"one of {', '.join(map(repr, VARY))}"
                raise bad("compare", what, key, must_be, nearest(key, list(VARY)))
        if has_guards and "guard" in settings:
            must_be = f"None where a variant has a guard of its own, as {name!r} has"
            raise bad("compare", "guards", "given", must_be)
    return {
        name: {k: as_stages(v) if k == "guard" else v for k, v in settings.items()}
        for name, settings in variants.items()
    }


def _short(stage: Stage) -> str:
    """Return a stage without its default values: Noise(epsilon=3.0)."""
    fields = dataclasses.fields(stage)  # type: ignore[arg-type]
    values = {f.name: getattr(stage, f.name) for f in fields if getattr(stage, f.name) != f.default}
    return f"{type(stage).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


def _labels(components: Sequence[Any], what: str = "algorithm") -> list[str]:
    """Return the name of each algorithm or rule; where two share it, with what differs: FedProx(mu=0.1)."""
    names = [type(c).__name__ for c in components]
    labels = []
    for name, c in zip(names, components):
        others = [d for n, d in zip(names, components) if n == name]
        different = [
            f"{f.name}={getattr(c, f.name)!r}"
            for f in dataclasses.fields(c)
            if any(getattr(c, f.name) != getattr(d, f.name) for d in others)
        ]
        labels.append(f"{name}({', '.join(different)})" if different else name)
    if len(set(labels)) < len(labels):
        raise BadParameter(
            f"compare: the same {what} is listed twice: {', '.join(labels)}. Leave one out, or give them "
            "different parameters."
        )
    return labels


def _matched(p: Plan, u: float) -> Plan:
    """Match the effective update u: by local epochs first, which are whole, then by the learning rate."""
    factor = u / p.effective_update
    epochs = tuple(max(1, round(e * factor)) for e in p.local_epochs)
    fixed = p.local_steps is not None or p.algorithm.local_epochs is not None
    q = p if fixed else dataclasses.replace(p, local_epochs=epochs)
    lr = p.algorithm.lr * u / q.effective_update  # type: ignore[attr-defined]
    return dataclasses.replace(q, algorithm=dataclasses.replace(q.algorithm, lr=lr))  # type: ignore[type-var]


def _own(runs: list[Result], k: int) -> float | None:
    """Return the mean last accuracy on party k's own held-out rows; None where it has none."""
    last = [
        next((e["parties"]["accuracy"][k] for e in reversed(r.history) if "parties" in e), None) for r in runs
    ]
    known = [a for a in last if a is not None]
    return float(np.mean(known)) if known else None


def _summarize(plans: list[Plan], results: list[Result], directory: Path | None) -> dict[str, Any]:
    """Return the content of compare.json: the table, each party's gain, distances and the verdict."""
    score = judged_by(results[0].metrics, plans[0].metric)
    labels, skews = list(dict.fromkeys(p.label for p in plans)), list(dict.fromkeys(p.skew for p in plans))
    by: dict[tuple[str, str, int], list[int]] = {}
    for i, p in enumerate(plans):
        by.setdefault((p.label, p.skew, p.seed), []).append(i)
    rows: list[dict[str, Any]] = []
    for (label, skew, seed), group in by.items():
        metrics = {
            k: float(np.mean([results[i].metrics[k] for i in group if k in results[i].metrics]))
            for k, v in results[group[0]].metrics.items()
            if isinstance(v, int | float)
        }
        if any(results[i].ledger.spent for i in group):
            metrics["epsilon"] = max(s.epsilon for i in group for s in results[i].ledger.spent)
        run = None if directory is None or label == ALONE else f"runs/{_folder(group[0], plans[group[0]])}"
        rows.append({"label": label, "skew": skew, "seed": seed, "run": run, "metrics": metrics})
    cells = [
        [
            mean_error(
                [r["metrics"].get(score, math.nan) for r in rows if (r["label"], r["skew"]) == (label, skew)]
            )
            for skew in skews
        ]
        for label in labels
    ]
    seeds = sorted({p.seed for p in plans})
    gain, distance = [], []
    behind = (
        -1 if score in LOWER_IS_BETTER else 1
    )  # P − P̂ above 0 always means that federating lost something
    for skew in skews:
        fed = next(p.fed for p in plans if p.skew == skew and p.label not in (CENTRAL, ALONE))
        alone = [
            float(np.mean([results[by[ALONE, skew, s][k]].metrics.get(score, math.nan) for s in seeds]))
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

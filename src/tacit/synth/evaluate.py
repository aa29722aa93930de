"""Evaluation of synthetic tables: fidelity, utility and privacy, never combined.

    evaluation = tacit.synth.evaluate(real, synthetic, holdout=holdout, target="income")
    print(evaluation.table())
    evaluation.report("synth.html")

`real` is the table the generator was fitted to, `holdout` rows of the same population that it never saw.
Without a holdout there is no reference for copies and membership. Then utility is not computed either,
because alone it rewards copying: a bootstrap of the real table would score best.

`rank` compares generators metric by metric, after C. Yan, Y. Yan, Z. Wan, Z. Zhang, L. Omberg, J. Guinney,
S. D. Mooney, B. A. Malin: *A Multifaceted benchmarking of synthetic electronic health record generation
models*, Nature Communications 2022. They average weighted ranks over all metrics for a use case; here ranks
are averaged within a facet only, so that fidelity cannot compensate for a lack of privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import BadData, MissingExtra
from ..parameters import bad
from ..people import check_unique_names, encode_person
from . import fidelity, privacy, utility
from .columns import check_known
from .scores import Facet, MetricScore
from .table import Table
from .views import Views

FACETS: tuple[Facet, ...] = ("fidelity", "utility", "privacy")
PRIVACY_CHECKS = ("exact copies", "membership AUC")  # shown with every utility score
UNCERTAIN = 0.05  # half the width of the interval of a membership AUC that still tells .5 from .6
MAX_COPY_RATIO = 2.0  # relative to the natural rate, that of held-out rows


@dataclass
class Evaluation:
    """The scores of one synthetic table."""

    name: str
    scores: list[MetricScore]
    views: Views = field(repr=False)
    target: str | None = None

    def __getitem__(self, name: str) -> MetricScore:
        if name not in self._by_name:
            raise BadData(
                f"there is no score {name!r} in this evaluation. It has: {', '.join(self._by_name)}."
            )
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, MetricScore]:
        return {score.name: score for score in self.scores}

    def by_facet(self, facet: Facet) -> list[MetricScore]:
        """Return the scores of one facet.

        Utility always includes the copy rate and the membership AUC.
        """
        if facet not in FACETS:
            raise bad("Evaluation", "facet", facet, "one of " + ", ".join(map(repr, FACETS)))
        return [
            s
            for s in self.scores
            if s.metric.facet == facet or (facet == "utility" and s.name in PRIVACY_CHECKS)
        ]

    def table(self, facet: Facet | None = None) -> pd.DataFrame:
        """Return one row per metric.

        Its value, 95% interval if it has one, the value of unseen real rows, range, and which direction is
        better.
        """
        chosen = self.scores if facet is None else self.by_facet(facet)
        rows = [
            {
                "facet": s.metric.facet,
                "metric": s.name,
                "value": s.value,
                "low": s.interval[0] if s.interval else math.nan,
                "high": s.interval[1] if s.interval else math.nan,
                "real": math.nan if s.reference is None else s.reference,
                "range": f"{s.metric.low:g} … {s.metric.high:g}",
                "better": s.metric.better,
            }
            for s in chosen
        ]
        return pd.DataFrame(
            rows, columns=["facet", "metric", "value", "low", "high", "real", "range", "better"]
        ).set_index(["facet", "metric"])

    @property
    def warnings(self) -> list[str]:
        """What must be considered before the table is used."""
        messages = []
        copies = self["exact copies"]
        if copies.reference is None:
            if copies.value > 0:
                messages.append(
                    f"{copies.value:.1%} of the synthetic rows are copies of real rows; without a holdout "
                    "the natural rate is unknown."
                )
            messages.append("Without a holdout no attack was run and no utility computed: give holdout=….")
        elif (
            copies.value > MAX_COPY_RATIO * copies.reference + 1e-12
            and copies.interval is not None
            and copies.interval[0] > copies.reference
        ):
            messages.append(
                f"{copies.value:.1%} of the synthetic rows are copies of training rows, compared with "
                f"{copies.reference:.1%} of unseen real rows."
            )
        reveals = ": the synthetic table reveals membership in the training table better than chance."
        excess = " is above 0, the level for unseen people."
        for name, chance, meaning in (
            ("membership AUC", 0.5, reveals),
            ("membership AUC (calibrated)", 0.5, reveals),
            ("membership AUC (shadow fits)", 0.5, reveals),
            ("membership AUC (this table)", 0.5, reveals),
            ("singling-out risk", 0.0, excess),
            ("singling-out risk (one column)", 0.0, excess),
            ("linkability risk", 0.0, excess),
            ("inference risk", 0.0, excess),
        ):
            score = self._by_name.get(name)
            if score is not None and score.interval is not None and score.interval[0] > chance:
                low, high = score.interval
                messages.append(f"{name} {score.value:.3f} (95%: {low:.3f} to {high:.3f}){meaning}")
        attack = self._by_name.get("membership AUC")
        if (
            attack is not None
            and attack.interval is not None
            and attack.interval[1] - attack.value > UNCERTAIN
        ):
            messages.append(
                "The table is too small: with its held-out rows, a membership AUC is only known to "
                f"±{attack.interval[1] - attack.value:.2f}. The attacks do not show that it is safe."
            )
        return messages

    def report(self, path: str | Path, points: bool = True) -> Path:
        """Write one self-contained HTML file.

        It shows the real table (histograms, and up to 300 of its rows as points unless points=False): keep it
        where the real table is kept.
        """
        from .report import write

        return write(self, path, points)

    def __str__(self) -> str:
        table = self.table().to_string(float_format=lambda v: f"{v:.3f}", na_rep="")
        return "\n".join([table, *(f"! {w}" for w in self.warnings)])


def evaluate(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    holdout: pd.DataFrame | None = None,
    target: str | None = None,
    *,
    keys: Sequence[str] | None = None,
    table: Table | None = None,
    name: str = "synthetic",
    seed: int = 0,
    person: str | None = None,
) -> Evaluation:
    """Compare a synthetic table with the real one it was generated from.

    `target` is the column that models are trained to predict. `keys` are the columns an attacker is assumed
    to know (default: the first half of the columns without the target). `table` declares the columns; without
    it they are inferred from the real table. `seed` affects subsampling only. `person` is the column of the
    real and the held-out table that tells whose a row is, if people have several rows: nobody may be in both,
    and a person is singled out by what only her rows have.
    """
    try:
        import sklearn  # noqa: F401
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("tacit.synth.evaluate", "synth", "scikit-learn") from None
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("evaluate", "seed", seed, "a whole number of at least 0")
    for which, frame in (("real", real), ("synthetic", synthetic), ("holdout", holdout)):
        if isinstance(frame, pd.DataFrame):
            check_unique_names(frame, f"evaluate: {which} table")
    real, holdout, people = _take_people(real, holdout, person)
    views = Views(real, synthetic, holdout, table)
    views.real.person = people[0]
    if views.holdout is not None:
        views.holdout.person = people[1]
    if target is not None:
        views.column_index(target)
    key_columns = _key_columns(views, keys, target)
    # one stream per facet, so that adding a metric to one does not change the others
    streams = [np.random.default_rng([seed, k]) for k in range(3)]
    with threadpool_limits(1):  # many small fits: more threads were ten times slower on a busy machine
        scores = fidelity.measure(views, streams[0])
        if holdout is None:
            scores.append(privacy.exact_copies(views))
        else:
            scores += utility.measure(views, target, streams[1])
            scores += privacy.measure(views, key_columns, streams[2])
    return Evaluation(name, scores, views, target)


def _take_people(
    real: pd.DataFrame, holdout: pd.DataFrame | None, person: str | None
) -> tuple[pd.DataFrame, pd.DataFrame | None, list[np.ndarray | None]]:
    """Both tables without the column of people, and the person of each row."""
    if person is None:
        return real, holdout, [None, None]
    frames = [f for f in (real, holdout) if f is not None]
    people: list[np.ndarray | None] = [encode_person(f, person, [], "evaluate") for f in frames]
    if holdout is not None:
        both = set(real[person]) & set(holdout[person])
        if both:
            raise BadData(
                f"evaluate: {len(both):,} people ({person}) have rows in the real table and in the holdout, "
                "so the holdout is not unseen. Hold out people, not rows."
            )
    shown = [f.drop(columns=person) for f in frames]
    return shown[0], shown[1] if holdout is not None else None, [*people, None]


def _key_columns(views: Views, keys: Sequence[str] | None, target: str | None) -> list[int]:
    if keys is not None:
        if isinstance(keys, str) or not keys:
            raise bad("evaluate", "keys", keys, "a list of at least one column")
        return [views.column_index(k) for k in keys]
    others = [j for j, n in enumerate(views.names) if n != target]
    return others[: max(1, len(others) // 2)]


def rank(
    evaluations: Sequence[Evaluation], weights: Mapping[str, float] | None = None, detail: bool = False
) -> pd.DataFrame:
    """Return the mean rank of each generator in each facet; 1 is the best, ties share a rank.

    `weights` are the metrics' weights for a use case (default 1; 0 excludes one). `detail` returns the rank
    in each metric instead. Metrics that not all evaluations have are left out. A membership AUC below chance
    counts as chance.
    """
    names = [e.name for e in evaluations]
    if len(names) < 2:
        raise BadData(
            f"rank: there {'is one evaluation' if names else 'are no evaluations'}; give at least two to "
            "compare."
        )
    if len(set(names)) < len(names):
        raise BadData(
            f"rank: two evaluations are called {next(n for n in names if names.count(n) > 1)!r}. Give each "
            "a name: evaluate(…, name='CTGAN')."
        )
    scores = [e._by_name for e in evaluations]
    shared = [n for n in scores[0] if all(n in h and math.isfinite(h[n].value) for h in scores)]
    for name, weight in (weights or {}).items():
        check_known([name], shared, "rank: there is no metric", " in all evaluations")
        if not weight >= 0:
            raise bad("rank", f"the weight of {name!r}", weight, "a number of at least 0")
    columns = {}
    for name in shared:
        metric = scores[0][name].metric
        values = pd.Series(
            [max(0.5, h[name].value) if name.startswith("membership AUC") else h[name].value for h in scores],
            index=names,
        )
        columns[metric.facet, name] = values.rank(ascending=metric.better == "lower")
    ranks = pd.DataFrame(columns)
    if detail:
        return ranks
    out = {}
    for facet in FACETS:
        part = [(key, (weights or {}).get(key[1], 1.0)) for key in ranks.columns if key[0] == facet]
        total = sum(w for _, w in part)
        if total > 0:
            out[facet] = sum(ranks[key] * w for key, w in part) / total
    return pd.DataFrame(out, index=names)

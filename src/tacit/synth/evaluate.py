"""How good a synthetic table is, and how risky: fidelity, utility and privacy side by side, never averaged
into one number.

    seen = tacit.synth.evaluate(real, synthetic, holdout=holdout, target="income")
    print(seen.table())
    seen.report("synth.html")

`real` is the table the generator was fitted to, `holdout` rows of the same kind that it never saw. Without
them there is nothing to hold copies and membership against; then utility is not computed either, because
utility without them rewards copying: a bootstrap of the real table is the best synthetic table there is, and
no synthetic table at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData, MissingExtra
from ..parameters import bad
from . import fidelity, privacy, utility
from .scores import Facet, Score
from .table import Table
from .views import Views

if TYPE_CHECKING:
    from pandas import DataFrame

FACETS: tuple[Facet, ...] = ("fidelity", "utility", "privacy")
GUARDS = ("exact copies", "membership AUC")  # what stands beside every utility
COPIES_ALLOWED = 2.0  # times the natural rate, that of held-out rows


@dataclass
class Evaluation:
    name: str
    scores: list[Score]
    views: Views = field(repr=False)
    target: str | None = None

    def __getitem__(self, name: str) -> Score:
        for score in self.scores:
            if score.name == name:
                return score
        raise BadData(
            f"there is no score {name!r} in this evaluation. It has: "
            f"{', '.join(s.name for s in self.scores)}."
        )

    def of(self, facet: Facet) -> list[Score]:
        """The scores of one facet. Utility comes with the copy rate and the membership AUC, always."""
        if facet not in FACETS:
            raise bad("Evaluation", "facet", facet, "one of " + ", ".join(map(repr, FACETS)))
        return [
            s for s in self.scores if s.metric.facet == facet or (facet == "utility" and s.name in GUARDS)
        ]

    def table(self, facet: Facet | None = None) -> DataFrame:
        """One row a metric: its value, its 95% interval where it has one, what real unseen rows reach, and
        which way is better.
        """
        import pandas as pd

        chosen = self.scores if facet is None else self.of(facet)
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
        """What must be said before the table is used."""
        said = []
        held = {s.name: s for s in self.scores}
        copies, member = held["exact copies"], held.get("membership AUC")
        if copies.reference is None:
            if copies.value > 0:
                said.append(
                    f"{copies.value:.1%} of the synthetic rows are copies of real rows; without a holdout "
                    "nobody can say how many would be natural."
                )
            said.append(
                "Without a holdout neither membership nor any other attack was tried, and no utility is "
                "shown: give holdout=…."
            )
        elif (
            copies.value > COPIES_ALLOWED * copies.reference + 1e-12
            and copies.interval is not None
            and copies.interval[0] > copies.reference
        ):
            said.append(
                f"{copies.value:.1%} of the synthetic rows are copies of training rows; of unseen real rows "
                f"{copies.reference:.1%} are."
            )
        for score in (member, held.get("membership AUC (calibrated)")):
            if score is not None and score.interval is not None and score.interval[0] > 0.5:
                said.append(
                    f"{score.name} {score.value:.3f} (95%: {score.interval[0]:.3f} to "
                    f"{score.interval[1]:.3f}): whether somebody was in the training "
                    "table can be told from the synthetic one better than by chance."
                )
        for name in ("singling-out risk", "linkability risk", "inference risk"):
            score = held.get(name)
            if score is not None and score.interval is not None and score.interval[0] > 0:
                said.append(
                    f"{name} {score.value:.3f} (95%: {score.interval[0]:.3f} to {score.interval[1]:.3f}) is "
                    "above what works on unseen people."
                )
        return said

    def report(self, path: str | Path, points: bool = True) -> Path:
        """One self-contained HTML file. It shows the real table (histograms, and, unless points=False, up to
        300 of its rows as points): keep it where the real table is kept.
        """
        from .report import write

        return write(self, path, points)

    def __str__(self) -> str:
        lines = [self.table().to_string(float_format=lambda v: f"{v:.3f}", na_rep="")]
        return "\n".join([*lines, *(f"! {w}" for w in self.warnings)])


def evaluate(
    real: DataFrame,
    synthetic: DataFrame,
    holdout: DataFrame | None = None,
    target: str | None = None,
    *,
    keys: Sequence[str] | None = None,
    table: Table | None = None,
    name: str = "synthetic",
    seed: int = 0,
) -> Evaluation:
    """Compare a synthetic table with the real one it was made from.

    `target` is the column that models are trained to predict. `keys` are the columns an attacker is taken to
    know (default: the first half of the columns without the target). `table` says what the columns are;
    without it, it is read off the real table.
    """
    try:
        import sklearn  # noqa: F401
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise MissingExtra("tacit.synth.evaluate", "synth", "scikit-learn") from None
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("evaluate", "seed", seed, "a whole number of at least 0")
    views = Views(real, synthetic, holdout, table)
    if target is not None:
        views.at(target)
    known = _keys(views, keys, target)
    # one stream a facet, so that adding a metric to one leaves the figures of the others as they were
    streams = [np.random.default_rng([seed, k]) for k in range(3)]
    with threadpool_limits(
        1
    ):  # many small fits: threads that wait for each other on a busy machine took ten times as long
        scores = fidelity.measure(views, streams[0])
        if holdout is None:
            scores.append(privacy.exact(views))
        else:
            scores += utility.measure(views, target, streams[1])
            scores += privacy.measure(views, known, streams[2])
    return Evaluation(name, scores, views, target)


def _keys(views: Views, keys: Sequence[str] | None, target: str | None) -> list[int]:
    if keys is not None:
        if isinstance(keys, str) or not keys:
            raise bad("evaluate", "keys", keys, "a list of at least one column")
        return [views.at(k) for k in keys]
    others = [n for n in views.names if n != target]
    return [views.at(n) for n in others[: max(1, len(others) // 2)]]

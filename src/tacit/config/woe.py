"""The options of `tacit.boost.woe`, declared once, and the [stats] table of `tacit stats woe`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..parameters import bad, flag, real, refuse, whole
from .boost import Categories, Cuts, Value, _has_numbers, check_columns, typed

FINE = 50  # bins before adjacent ones are merged


@dataclasses.dataclass(frozen=True, kw_only=True)
class WoeConfig:
    """The options of binning by weight of evidence."""

    label: str = typed("", "label", str, "str", "the column with the outcome, of two values")
    event: Value | None = typed(
        None,
        "event",
        Value | None,
        "str | int | None",
        "the outcome that is an event (a default); None: the second",
    )
    features: Sequence[str] | None = typed(
        None, "features", list[str] | None, "list[str] | None", "columns used; None: all but the label"
    )
    categories: Categories | None = typed(
        None,
        "categories",
        list[str] | dict[str, list[Value]] | None,
        "list[str] | dict[str, list] | None",
        "columns that are categories, or their levels by column; None: columns that are not numeric",
    )
    missing_codes: Mapping[str, Sequence[Value]] | None = typed(
        None,
        "missing_codes",
        dict[str, list[Value]] | None,
        "dict[str, list] | None",
        "by column, the codes that mean \"missing\", like {'age': [-9999]}; the bins keep them",
    )
    labels: Sequence[Value] | None = typed(
        None, "labels", list[Value] | None, "list | None", "the two outcomes; None: they are found by a sum"
    )
    cuts: Cuts | None = typed(
        None,
        "cuts",
        dict[str, list[float]] | None,
        "dict[str, list[float]] | None",
        "declared cuts by column; None: quantiles",
    )
    bins: int = whole(8, least=2, most=255, doc="most bins of a column, without those of missing and others")
    fine: int | None = whole(
        None,
        least=2,
        most=255,
        none="50 with monotone and without epsilon, else `bins`",
        doc="quantile bins from which bins are merged",
    )
    monotone: bool = flag(True, doc="merge bins of a number until its event rate only rises or only falls")
    min_share: float = real(0.05, least=0, below=0.5, doc="smallest share of rows in a bin")
    min_rows: int = whole(20, least=1, doc="fewest rows in a bin, over all parties")
    min_cell: int = whole(5, least=1, doc="fewest events, and fewest others, in a bin")
    min_level_rows: int = whole(
        2,
        least=1,
        doc="a level of a category, or an outcome, that is not declared is found if a party has this many "
        "rows of it; all others are one level",
    )
    epsilon: float | None = real(
        None, above=0, none=True, doc="ε of differential privacy of a row; None: counts without noise"
    )
    delta: float = real(1e-6, above=0, below=1, doc="δ, with epsilon")
    bounds: Mapping[str, Sequence[float]] | None = typed(
        None,
        "bounds",
        dict[str, list[float]] | None,
        "dict[str, tuple] | None",
        "with epsilon: declared range of each number without cuts, like {'age': [18, 100]}",
    )

    def check(self) -> None:
        """Raise BadParameter for values that their declarations cannot describe, all at once."""
        owner = "boost.woe"
        refuse(
            (
                not isinstance(self.label, str) or not self.label,
                bad(owner, "label", self.label, "the name of the column with the outcome"),
            ),
            *check_columns(owner, self.label, self.features, self.categories),
            (
                self.labels is not None
                and not (isinstance(self.labels, list | tuple) and len(self.labels) == 2),
                bad(owner, "labels", self.labels, "the two outcomes, like ['paid', 'default']"),
            ),
            (
                self.cuts is not None and not _has_numbers(self.cuts),
                bad(owner, "cuts", self.cuts, "ascending numbers by column, like {'age': [40, 60]}"),
            ),
            (
                self.fine is not None and self.fine < self.bins,
                bad(owner, "fine", self.fine, f"at least bins ({self.bins})"),
            ),
            (
                self.bounds is not None and self.epsilon is None,
                bad(owner, "bounds", self.bounds, "None without epsilon"),
            ),
        )

    @property
    def first_bins(self) -> int:
        """The number of quantile bins that are merged; with noise as few as asked for."""
        if self.epsilon is not None:
            return self.fine or self.bins
        return self.fine or (max(FINE, self.bins) if self.monotone else self.bins)


WOE_OPTIONS = {f.name: f for f in dataclasses.fields(WoeConfig)}

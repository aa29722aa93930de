"""The options that all readers of tables share: `from_frame`, `from_csv`, `from_parquet`, `from_frames`.

They are declared here once: the signatures, the keys of [data] in a job file and the reference derive from
`TableOptions` and `DEFAULTS`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from ..errors import BadParameter
from ..parameters import nearest
from .recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])


class TableOptions(TypedDict, total=False):
    """The options of a table; `from_frame` explains them."""

    groups: Sequence[str]
    drop: Sequence[str]
    categories: Sequence[str]
    dates: Mapping[str, Sequence[str]] | None
    date_formats: Mapping[str, str] | None
    missing_codes: Mapping[str, Sequence[float | str]] | None
    spellings: Mapping[str, Mapping[str, str]] | None
    drop_rows: Mapping[str, Sequence[float | str]] | None
    missing_label: str
    scaling: str | Mapping[str, str]
    winsorize: str
    impute: str
    unseen: str
    fit: str | Recipe
    fit_epsilon: float | None
    fit_delta: float
    bounds: Mapping[str, Sequence[float]] | None
    regression: bool | None
    labels: Sequence[str]
    group: str | None
    time: str | None
    test_after: str | None
    test_fraction: float
    seed: int


DEFAULTS: dict[str, Any] = {
    "groups": (),
    "drop": (),
    "categories": (),
    "dates": None,
    "date_formats": None,
    "missing_codes": None,
    "spellings": None,
    "drop_rows": None,
    "missing_label": "refuse",
    "scaling": "standard",
    "winsorize": "auto",
    "impute": "mean",
    "unseen": "other",
    "fit": "federated",
    "fit_epsilon": None,
    "fit_delta": 1e-6,
    "bounds": None,
    "regression": None,
    "labels": (),
    "group": None,
    "time": None,
    "test_after": None,
    "test_fraction": 0.2,
    "seed": 0,
}
ENCODING = ("dates", "date_formats", "missing_codes", "spellings", "scaling", "winsorize", "impute", "unseen")
MISSING_LABEL = ("refuse", "drop")


def takes_table_options(function: F) -> F:
    """Give a function with `**options` the signature that `TableOptions` declares."""
    own = inspect.signature(function)
    hints = typing.get_type_hints(TableOptions)
    fixed = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    written = {name: getattr(a, "__forward_arg__", a) for name, a in TableOptions.__annotations__.items()}
    declared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=written[name]
        )
        for name in hints
    ]
    function.__signature__ = own.replace(parameters=[*fixed, *declared])  # type: ignore[attr-defined]
    function.__annotations__ = {
        **{k: v for k, v in function.__annotations__.items() if k != "options"},
        **hints,
    }
    return function


def resolve_options(owner: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, given or by default; raise for names that are not options."""
    for key in options:
        if key not in DEFAULTS:
            raise TypeError(
                f"{owner}() got an unexpected keyword argument {key!r}. {nearest(key, list(DEFAULTS))}"
            )
    values = {**DEFAULTS, **options}
    if isinstance(values["fit"], Recipe):
        given = [key for key in ENCODING if options.get(key, DEFAULTS[key]) != DEFAULTS[key]]
        if given:
            raise BadParameter(
                f"{owner}: both fit=Recipe(…) and {given[0]} are given. Declare {given[0]} in the recipe."
            )
    return values

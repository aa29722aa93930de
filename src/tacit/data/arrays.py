"""Data sets from arrays in memory, and the split into training rows and a global test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad
from .federation import Dataset, Rows, check_fraction, check_whole
from .inputs import Features, Inputs, Stored, outline_of
from .row_sources import stored_arrays


def from_arrays(
    x: Any,
    y: Any = None,
    *,
    test: Any = None,
    classes: int | None = None,
    name: str = "arrays",
    columns: Sequence[str] = (),
    labels: Sequence[str] = (),
    groups: dict[str, Any] | None = None,
    tokens: bool = False,
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    transform: Callable[[Any, torch.Generator], Any] | None = None,
) -> Dataset:
    """Make a data set from numpy arrays, tensors or lists.

    Integers (1.0 counts as one), booleans or text in `y` are classes; if any number has a fraction, all are
    regression targets, and `regression=True` makes integers targets too. Labels other than 0, 1, 2, … are
    numbered in sorted order, and their names are kept. With `tokens=True`, `x` stays integer, and `y` may
    have a label for each token, [N, T], −1 for none. `x` may be a dictionary of arrays, which are the named
    arguments of the model (Hugging Face's convention), or a tuple of arrays, its positional ones.

    A row may have several labels: those of 0 and 1 (−1: not known) that do not exclude each other, [N, C];
    a class for each pixel or step, [N, H, W] or [N, T] with `classes`, −1 for none; or several numbers, of
    any shape. Without `y`, each row is its own target (an autoencoder); a model of several inputs then
    returns its own loss (`loss="model"`).

    A memory-mapped `x` (`numpy.memmap`) stays on disk: rows are read batch by batch. `transform(x, rng)`
    changes the x of a row whenever it is trained on; `rng` is a `torch.Generator` that follows from (seed,
    round, party, step).

    `test` is (x, y), or x without `y`. Without it, a stratified `test_fraction` of the rows becomes the
    global test set.
    """
    if y is None and has_several(x):
        # the targets are among the inputs, for a model that returns its own loss
        y = np.zeros(len(next(iter(to_inputs(name, "x", x).parts.values()))), dtype=np.float32)
        test = None if test is None else (test, np.zeros(len(to_inputs(name, "test x", test)), np.float32))
        regression = True
    if y is None:
        y, test = x, None if test is None else (test, test)
        regression = True
    xs, ys = _features(name, "x", x, tokens), _array(name, "y", y)
    xt, yt = (
        (xs[:0], ys[:0])
        if test is None
        else (_features(name, "test x", test[0], tokens), _array(name, "test y", test[1]))
    )
    if transform is not None:
        xs, xt = (
            replace(x, transform=transform)
            if isinstance(x, Stored)
            else stored_arrays(name, _raw(x), transform)
            for x in (xs, xt)
        )
    for what, a, b in (("x and y", xs, ys), ("the test x and y", xt, yt)):
        if len(a) != len(b) or b.ndim < 1 or (tokens and b.ndim > 1 and b.shape != a.shape):
            raise BadData(
                f"{name}: {what} do not fit: {len(a)} rows and labels of shape {tuple(b.shape)}. Give one "
                "label a row"
                f"{', or one a token, [N, T]' if tokens else ', or several, [N, …]'}."
            )
    if len(xs) == 0:
        raise BadData(f"{name}: there are no rows. Give at least two.")
    if isinstance(xs, Inputs) and outline_of(xt) != outline_of(xs):
        of_test = xt.describe() if isinstance(xt, Inputs) else "one array"
        raise BadData(
            f"{name}: a test row has {of_test}, a training row {xs.describe()}. Give both the same inputs."
        )
    if isinstance(xs, Tensor) and xt.shape[1:] != xs.shape[1:]:
        raise BadData(
            f"{name}: a test row has shape {tuple(xt.shape[1:])}, a training row {tuple(xs.shape[1:])}. "
            "Encode both alike."
        )
    if (ys.shape[1:] != yt.shape[1:] if not tokens else ys.ndim != yt.ndim) and len(yt):
        raise BadData(
            f"{name}: labels of shape {tuple(ys.shape)} to train on and {tuple(yt.shape)} to test by. Give "
            "both a label a row, or both one a token."
        )
    names: tuple[str, ...] | None
    if ys.ndim == 1:
        yy, names = _targets(name, np.concatenate([ys, yt]), classes, regression)
    elif not tokens and (found := _several(name, np.concatenate([ys, yt]), classes, regression)) is not None:
        yy, names = found, None
    else:
        yy, names = _of_tokens(name, ys, yt if len(yt) else ys[:0], classes, regression)
    groups = {key: np.asarray(values) for key, values in (groups or {}).items()}
    for key, values in groups.items():
        if len(values) != len(xs):
            raise BadData(
                f"{name}: the group {key!r} has {len(values)} values for {len(xs)} rows. Give one a row."
            )
    if labels and names is not None and len(labels) != len(names):
        raise BadData(f"{name}: {len(labels)} names for {len(names)} labels. Give one name a label.")
    whole = Dataset(
        name,
        Rows(xs, yy[: len(ys)]),
        Rows(xt, yy[len(ys) :]),
        None if names is None else len(names),
        tuple(columns),
        tuple(labels) or names or (),
        groups,
    )
    return whole if test is not None else split_test_set(whole, test_fraction, seed)


def split_test_set(data: Dataset, fraction: float, seed: int, strata: np.ndarray | None = None) -> Dataset:
    """Move a stratified fraction of the rows into the global test set; strata are labels by default."""
    check_fraction(data.name, "test_fraction", fraction)
    check_whole(data.name, "seed", seed, 0)
    n = len(data)
    if strata is None:
        strata = (
            np.zeros(n, dtype=np.int64)
            if data.classes is None or data.rows.y.dim() > 1
            else data.rows.y.numpy()
        )
    tested = sample_stratified(strata, round(fraction * n), np.random.default_rng([int(seed), 4]))
    return select_rows(data, np.delete(np.arange(n), tested), tested)


def select_rows(data: Dataset, rest: np.ndarray, tested: np.ndarray) -> Dataset:
    """Return the data set with `rest` as training rows and `tested` as global test set."""
    return Dataset(
        data.name,
        _take(data.rows, rest),
        _take(data.rows, tested),
        data.classes,
        data.columns,
        data.labels,
        {key: values[rest] for key, values in data.groups.items()},
        {key: values[tested] for key, values in data.groups.items()},
        None if data.table is None else data.table.take(rest, tested),
        None if data.persons is None else data.persons[rest],
    )


def sample_stratified(strata: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` rows in proportion to the strata, without emptying any of them."""
    _, place, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    exact = sizes * count / max(len(strata), 1)
    take = np.minimum(np.floor(exact).astype(np.int64), sizes - 1)
    for k in np.argsort(take - exact, kind="stable")[: max(0, count - take.sum())]:
        take[k] += take[k] < sizes[k] - 1
    order = np.lexsort((rng.random(len(strata)), place))
    position = np.arange(len(strata)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rng.permutation(order[position < np.repeat(take, sizes)])


def _take(rows: Rows, index: np.ndarray) -> Rows:
    i = torch.from_numpy(np.ascontiguousarray(index, dtype=np.int64))
    return rows.take(i)


def _array(name: str, what: str, values: Any) -> np.ndarray:
    try:
        a = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError as error:
        raise BadData(
            f"{name}: {what} is not an array: {error}. Give every row the same shape; data.pad(…) fills up "
            "sequences of different lengths."
        ) from None
    if a.dtype == object and what.endswith("y"):
        import pandas as pd

        if (gaps := pd.isna(a)).any():  # otherwise 'None' and 'nan' would be classes
            raise BadData(
                f"{name}: {what} has {int(gaps.sum())} missing labels, the first in row "
                f"{int(gaps.argmax())}. Fill or drop them first."
            )
        a = a.astype(str)
    if a.dtype.kind not in "biufUS":
        raise BadData(
            f"{name}: {what} contains {a.dtype} values, not numbers"
            f"{' or text' if what.endswith('y') else ''}. "
            "Encode them first, "
            "or read the table with from_csv."
        )
    return a


def has_several(x: Any) -> bool:
    """Whether x is a dictionary or a tuple of arrays: several inputs of a model."""
    return isinstance(x, Mapping | Inputs) or (
        isinstance(x, tuple) and len(x) > 0 and all(isinstance(v, Tensor | np.ndarray) for v in x)
    )


def to_inputs(name: str, what: str, x: Any) -> Inputs:
    """Return several arrays as inputs: real numbers as float32, whole ones as int64, true and false as they
    are.
    """
    x = x.values() if isinstance(x, Inputs) else x
    parts = dict(x) if isinstance(x, Mapping) else dict(enumerate(x))
    if not parts:
        raise BadData(f"{name}: {what} is an empty dictionary. Give an array for each input of the model.")
    found = {str(k): _input(name, f"{what}[{k!r}]", values) for k, values in parts.items()}
    lengths = {k: len(t) for k, t in found.items()}
    if len(set(lengths.values())) > 1:
        raise BadData(
            f"{name}: the inputs of {what} have different numbers of rows: "
            f"{', '.join(f'{k} {n}' for k, n in lengths.items())}. Give each one entry per row."
        )
    return Inputs(found, isinstance(x, Mapping))


def _input(name: str, what: str, values: Any) -> Tensor:
    a = _array(name, what, values)
    if a.ndim < 1 or a.dtype.kind in "US":
        found = "text" if a.dtype.kind in "US" else "a single value"
        raise BadData(f"{name}: {what} is {found}. Give numbers, [rows, …]: encode text as tokens first.")
    if a.dtype.kind == "f":
        t = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32))
        if not torch.isfinite(t).all():
            row = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            raise BadData(f"{name}: {what} has a NaN or infinite value in row {row}. Fill it.")
        return t
    return torch.from_numpy(np.array(a, dtype=np.bool_ if a.dtype.kind == "b" else np.int64))


def _raw(x: Tensor | Inputs) -> Any:
    """Return the arrays of x, which a transform is called for row by row."""
    return x.values() if isinstance(x, Inputs) else x


def _is_mapped(x: Any) -> bool:
    parts = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple) else [x]
    return len(parts) > 0 and all(isinstance(v, np.memmap) for v in parts)


def _features(name: str, what: str, values: Any, tokens: bool) -> Features:
    if isinstance(values, Stored):
        return values
    if _is_mapped(values):
        return stored_arrays(name, values, real=not tokens and isinstance(values, np.memmap))
    if has_several(values):
        return to_inputs(name, what, values)
    a = _array(name, what, values)
    if a.dtype.kind in "US":
        raise BadData(
            f"{name}: {what} contains text, e.g. {str(a.flat[0])!r}. Encode it first, or read the table with "
            "from_csv."
        )
    if a.ndim < 2 and not tokens:
        raise BadData(
            f"{name}: {what} has shape {tuple(a.shape)}. Give one row an example: [rows, features] or "
            "[rows, channels, h, w]."
        )
    if tokens:
        if a.dtype.kind not in "biu":
            raise BadData(f"{name}: {what} contains {a.dtype} values; tokens must be integers.")
        if a.size and a.min() < 0:
            row = int((a < 0).reshape(len(a), -1).any(1).argmax())
            raise BadData(
                f"{name}: {what} has the token {a.min()} in row {row}; tokens count from 0. After the end "
                "of a row put any token, with the label −1."
            )
        return torch.from_numpy(a.astype(np.int64))
    x = torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32))
    if not torch.isfinite(x).all():
        row = int((~torch.isfinite(x)).reshape(len(x), -1).any(1).nonzero()[0])
        raise BadData(
            f"{name}: {what} has a NaN or infinite value in row {row}. Fill it, or read the "
            "table with from_csv."
        )
    return x


def _of_tokens(
    name: str, ys: np.ndarray, yt: np.ndarray, classes: int | None, regression: bool
) -> tuple[Tensor, tuple[str, ...]]:
    """Check labels of tokens, −1 for none; without `classes`, there are as many as the largest label + 1."""
    y = np.concatenate([ys, yt])
    if regression is not False:
        raise bad(name, "regression", regression, "False where tokens have labels: they are classes")
    if classes is not None:
        check_whole(name, "classes", classes, 2)
    if y.dtype.kind not in "iuf" or not np.isfinite(y).all() or (y != np.floor(y)).any():
        what = "text" if y.dtype.kind in "US" else y.dtype
        raise BadData(
            f"{name}: labels of tokens must be integers from 0, and −1 for none; these are {what}. Number "
            "them."
        )
    many = int(y.max(initial=0)) + 1 if classes is None else classes
    if y.dtype.kind == "u" and classes is None and many - 1 == np.iinfo(y.dtype).max:
        raise BadData(
            f"{name}: the label {many - 1} is what −1 becomes in {y.dtype}. Use a signed type for labels of "
            "tokens, such as int64."
        )
    if y.size and (y.min() < -1 or y.max() >= many):
        raise BadData(
            f"{name}: a token's label must be an integer from 0 to {many - 1}, or −1 for none; found "
            f"{int(y.min())} to {int(y.max())}."
        )
    if many < 2:
        raise BadData(
            f"{name}: every token has the label 0. There is nothing to learn from one class; give two or "
            "more."
        )
    for what, part in (("row", ys), ("test row", yt)):
        if len(unlabeled := np.flatnonzero((part < 0).all(axis=tuple(range(1, part.ndim))))):
            raise BadData(f"{name}: no token of {what} {unlabeled[0]} has a label. Leave the row out.")
    return torch.from_numpy(y.astype(np.int64)), tuple(str(c) for c in range(many))


def _several(name: str, y: np.ndarray, classes: int | None, regression: bool) -> Tensor | None:
    """Return labels of 0 and 1, or several numbers per row; None if they are classes of pixels or steps."""
    if y.dtype.kind in "US":
        raise BadData(f"{name}: several labels per row must be numbers; these are text. Number them.")
    if not isinstance(regression, bool):
        raise bad(name, "regression", regression, "True or False")
    t = torch.from_numpy(y.astype(np.float32))
    if not torch.isfinite(t).all():
        row = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
        raise BadData(f"{name}: a target is NaN or infinite in row {row}. Fill or drop it.")
    if regression or classes is not None:
        return t if regression else None
    if y.ndim == 2 and np.isin(y, (-1, 0, 1)).all():
        return t
    return None if (y == np.floor(y)).all() else t


def _targets(
    name: str, y: np.ndarray, classes: int | None, regression: bool
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return labels as numbers 0, 1, … and their names; (targets, None) for a regression."""
    if not isinstance(regression, bool):
        raise bad(name, "regression", regression, "True or False")
    if regression and (classes is not None or y.dtype.kind not in "iuf"):
        what = (
            f"classes={classes} was given"
            if classes is not None
            else f"y holds {'text' if y.dtype.kind in 'US' else 'true and false'}"
        )
        raise BadData(f"{name}: regression=True predicts numbers, and {what}. Leave one of them out.")
    if (
        y.dtype.kind == "f"
        and classes is None
        and not regression
        and len(y)
        and (np.abs(y) < 2**53).all()
        and (y == np.floor(y)).all()
    ):
        y = y.astype(np.int64)
    if regression or (y.dtype.kind == "f" and classes is None):
        t = torch.from_numpy(y.astype(np.float32))
        if not torch.isfinite(t).all():
            raise BadData(
                f"{name}: a target is NaN or infinite in row {int((~torch.isfinite(t)).nonzero()[0])}. "
                "Fill or drop it."
            )
        return t, None
    if classes is not None:
        check_whole(name, "classes", classes, 2)
        if y.dtype.kind in "US" or (y != y.astype(np.int64)).any() or y.min() < 0 or y.max() >= classes:
            raise BadData(
                f"{name}: with classes={classes} every label must be a whole number from 0 to {classes - 1}; "
                f"found {str(np.unique(y)[[0, -1]].tolist())[1:-1]}."
            )
        return torch.from_numpy(y.astype(np.int64)), tuple(str(c) for c in range(classes))
    kinds, place = np.unique(y, return_inverse=True)
    if len(kinds) < 2:
        raise BadData(
            f"{name}: every row has the label {str(kinds[0])!r}. There is nothing to learn from one class; "
            "give two or more."
        )
    return torch.from_numpy(place.astype(np.int64)), tuple(str(k) for k in kinds.tolist())

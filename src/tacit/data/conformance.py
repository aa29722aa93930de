"""Conformance checks of data sets and skews, public in `tacit.testing`."""

# ruff: noqa: PT017, PT018  (those rules are for tests; this is the library that tests call)
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..errors import TacitError
from ..parameters import from_table, to_table
from .arrays import from_arrays
from .federation import Dataset, Federation, Rows
from .inputs import Features, tensors_of
from .skews import IID, ByColumn, ConceptDrift, Dirichlet, LabelsPerParty, Skew


def check_dataset(dataset: Dataset | Callable[[], Dataset]) -> Dataset:
    """Check types, shapes, labels, groups and partitions; for a constructor, also that two calls agree."""
    if callable(dataset):
        with _no_global_randomness(getattr(dataset, "__name__", "the constructor")):
            build, dataset = dataset, dataset()
        again = build()
        assert all(_same(a, b) for a, b in zip((*dataset.rows, *dataset.test), (*again.rows, *again.test))), (
            f"{dataset.name}: two builds with the same arguments differ"
        )
    name = dataset.name
    assert isinstance(dataset, Dataset), f"{dataset!r} is not a Dataset"
    assert name and isinstance(name, str), "a data set needs a name"
    assert len(dataset) >= 2, f"{name}: fewer than two rows"
    for what, rows in (("rows", dataset.rows), ("test", dataset.test)):
        _check_rows(f"{name}.{what}", rows, dataset.classes, may_be_missing=dataset.table is not None)
    assert dataset.rows.x.shape[1:] == dataset.test.x.shape[1:], (
        f"{name}: test rows have another shape than training rows"
    )
    assert not dataset.labels or len(dataset.labels) == dataset.classes, (
        f"{name}: {len(dataset.labels)} names for {dataset.classes} labels"
    )
    assert not dataset.columns or len(dataset.columns) == math.prod(dataset.rows.x.shape[1:]), (
        f"{name}: columns do not name every feature"
    )
    if dataset.classes is not None:
        assert len(torch.unique(dataset.rows.y)) >= 2, f"{name}: all training rows have the same label"
    for key, values in dataset.groups.items():
        assert len(values) == len(dataset), (
            f"{name}: group {key!r} has {len(values)} values for {len(dataset)} rows"
        )
        check_federation(dataset.by(key), len(dataset))
    for key, values in dataset.test_groups.items():
        assert len(values) == len(dataset.test.y), (
            f"{name}: test group {key!r} has {len(values)} values for {len(dataset.test.y)} rows"
        )
    check_federation(dataset.split(2, IID()), len(dataset))
    return dataset


def check_federation(fed: Federation, rows: int, min_size: int = 1, exact: bool = True) -> Federation:
    """Check owners and uses of the rows, that every party can train, and the summary."""
    parties = len(fed)
    assert len(set(fed.parties)) == parties, f"{fed.name}: two parties have the same name"
    assert len(fed.train.start) == len(fed.held.start) == parties + 1, (
        f"{fed.name}: holdings for another number of parties"
    )
    index = torch.cat([fed.train.index, fed.held.index])
    once = torch.equal(index.sort().values, torch.arange(len(fed.rows.y)))
    assert once, f"{fed.name}: a row has no owner, or two, or is trained on and held"
    assert len(index) == rows if exact else len(index) <= rows, (
        f"{fed.name}: {len(index)} of {rows} rows partitioned"
    )
    assert int(fed.sizes.min()) >= min_size, (
        f"{fed.name}: a party has {int(fed.sizes.min())} rows, fewer than {min_size}"
    )
    assert int(fed.train.sizes.min()) >= 1, f"{fed.name}: a party has nothing to train on"
    for what, r in (("rows", fed.rows), ("test", fed.test)):
        _check_rows(f"{fed.name}.{what}", r, fed.classes)
    summary = fed.summary()
    assert summary["sizes"] == fed.sizes.tolist() and len(summary["parties"]) == parties, (
        f"{fed.name}: the summary's sizes are wrong"
    )
    if fed.classes is not None:
        labels = (
            (fed.rows.y >= 0).reshape(len(fed.rows.y), -1).sum(1)
        )  # labels of a row: one, or one for each labeled token
        held = torch.zeros(parties, dtype=torch.int64).index_add_(0, fed.owner, labels)
        assert [sum(row) for row in summary["counts"]] == held.tolist(), (
            f"{fed.name}: the summary's label counts do not add up"
        )
    return fed


def check_skew(skew: Skew, parties: int = 4) -> None:
    """Check a skew.

    It must partition every row once, respect the minimum size, depend on the seed alone, use no global
    randomness, and refuse bad arguments.
    """
    dataset, parties = _rows_for(skew, parties)
    n = len(dataset)
    exact = not (isinstance(skew, Dirichlet) and skew.variant == "party")
    with _no_global_randomness(str(skew)):
        fed = dataset.split(parties, skew, seed=3, min_size=5)
    check_federation(fed, n, min_size=5, exact=exact)
    again, other = (
        dataset.split(parties, skew, seed=3, min_size=5),
        dataset.split(parties, skew, seed=4, min_size=5),
    )
    assert _equal(fed, again), f"{skew}: the same seed gave two federations"
    assert not _equal(fed, other), f"{skew}: another seed gave the same federation"
    none_held = dataset.split(parties, skew, seed=3, held_fraction=0, min_size=5)
    assert none_held.held.sizes.sum() == 0, f"{skew}: held_fraction=0 held rows back"
    assert torch.equal(none_held.owner, fed.owner), f"{skew}: another held_fraction changed the partition"
    check_federation(dataset.split(parties, skew, held_fraction=0.99, min_size=5), n, exact=exact)
    for round in (0, 1, 7, 50):
        rows = fed.at(round)
        _check_rows(f"{skew} in round {round}", rows, fed.classes)
        assert rows.x.shape == fed.rows.x.shape and rows.y.shape == fed.rows.y.shape, (
            f"{skew}: rows change shape in round {round}"
        )
        assert torch.equal(rows.y, fed.at(round).y), f"{skew}: round {round} is not the same twice"
        alone = fed.party(1)
        mine = torch.cat([fed.train.of(1), fed.held.of(1)])
        assert torch.equal(alone.at(round).y, rows.y[mine]), (
            f"{skew}: a party alone sees other labels than in the simulation"
        )
    assert isinstance(skew, ConceptDrift) or fed.at(50) is fed.rows, f"{skew}: rows change over rounds"
    back = from_table(to_table(skew), {type(skew).__name__: type(skew)}, "skew")
    assert repr(back) == repr(skew), f"{skew}: {back} after a round trip through a job file"
    good: dict[str, Any] = {"parties": parties, "skew": skew}
    wrong: list[dict[str, Any]] = [{"parties": p} for p in (0, -1, n + 1, 2.5, "three", True)]
    for request in (*wrong, {"min_size": n}, {"min_size": 0}, {"held_fraction": 1.0}, {"seed": -1}):
        try:
            dataset.split(**{**good, **request})
        except TacitError as error:
            assert "it must be" in str(error), (
                f"{skew} with {request}: the refusal does not say what is allowed: {error}"
            )
        else:
            raise AssertionError(f"{skew} with {request} was accepted")


def _rows_for(skew: Skew, parties: int) -> tuple[Dataset, int]:
    """Make a data set that suits the skew: with as many labels as it needs, and its column."""
    classes, n = 6, 600
    if isinstance(skew, LabelsPerParty) and not isinstance(skew.labels, int):
        classes, parties = sum(skew.labels), len(skew.labels)
    rng = np.random.default_rng(11)
    y = np.arange(n) % classes
    x = rng.standard_normal((n, 5)).astype(np.float32) + y[:, None]
    groups = (
        {skew.column: np.array([f"g{k % parties}" for k in rng.permutation(n)])}
        if isinstance(skew, ByColumn)
        else {}
    )
    return from_arrays(x, y, test=(x[:20], y[:20]), name="conformance", groups=groups), parties


def _check_rows(where: str, rows: Rows, classes: int | None, may_be_missing: bool = False) -> None:
    x, y = rows
    assert len(x) == len(y), f"{where}: {len(x)} examples and {len(y)} labels"
    for part in tensors_of(x):
        assert part.dtype in (torch.float32, torch.int64), (
            f"{where}: x is {part.dtype}, not float32 (or int64 tokens)"
        )
        assert may_be_missing or not part.is_floating_point() or bool(torch.isfinite(part).all()), (
            f"{where}: x has NaN or infinite values"
        )
    if classes is None:
        assert y.dtype == torch.float32, f"{where}: targets of a regression are {y.dtype}, not float32"
    else:
        assert y.dtype == torch.int64, f"{where}: labels are {y.dtype}, not int64"
        least = 0 if y.dim() == 1 else -1  # a token may have none
        assert not len(y) or (int(y.min()) >= least and int(y.max()) < classes), (
            f"{where}: a label is not in 0 … {classes - 1}"
        )


def _same(a: Features, b: Features) -> bool:
    return a.shape == b.shape and all(
        torch.equal(t.nan_to_num(), u.nan_to_num()) if t.is_floating_point() else torch.equal(t, u)
        for t, u in zip(tensors_of(a), tensors_of(b))
    )


def _equal(a: Federation, b: Federation) -> bool:
    pairs = [*zip(a.train, b.train), *zip(a.held, b.held), *zip(a.rows, b.rows)]
    return a.parties == b.parties and all(_same(*pair) for pair in pairs)


@contextmanager
def _no_global_randomness(what: str) -> Iterator[None]:
    """Assert that the code inside does not touch the global generators of numpy and torch."""
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    yield
    assert torch.equal(torch_state, torch.get_rng_state()), f"{what} used torch's global randomness"
    same = all(map(np.array_equal, numpy_state, np.random.get_state()))
    assert same, f"{what} used numpy's global randomness"

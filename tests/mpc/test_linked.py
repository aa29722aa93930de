"""Linkage on shares: the opened bits are those of the ideal function, and each step computes what it says."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from tacit.errors import BadData, ProtocolError
from tacit.mpc import linked
from tacit.mpc.linked import LinkField, LinkTerms, Side
from tacit.parties import Ledger
from tacit.runtimes import InProcess

MISSING = 1 << 16
FIELDS = (LinkField(8, (64, 32), -3000, (5000, 2000)), LinkField(16, (64,), -4000, (9000,)))


def make_side(rows: int, slots: list[np.ndarray], rng: np.random.Generator) -> Side:
    """Filters of four values each, the same ones in every case, so that many are equal; some are missing."""
    filters, counts = [], []
    for f in FIELDS:
        values = (np.random.default_rng(f.bits).random((4, f.bits)) < 0.4).astype(np.uint8)
        bits = values[rng.integers(0, 4, rows)]
        bits[rng.random(rows) < 0.15] = 0
        filters.append(bits)
        sizes = bits.sum(1).astype(np.int64)
        counts.append(np.where(sizes > 0, sizes, MISSING))
    return linked.make_side(filters, counts, MISSING, slots)


def make_case(seed: int, shapes: tuple[tuple[int, int, int], ...]) -> tuple[LinkTerms, Side, Side]:
    """Blocks of `keys` keys: a record is in at most one block of each."""
    rng = np.random.default_rng(seed)
    rows, keys = (sum(n * g for n, _, g in shapes), sum(m * g for _, m, g in shapes)), 3
    slots: list[list[np.ndarray]] = [[], []]
    free = [{k: list(rng.permutation(rows[side] // 2)) for k in range(keys)} for side in (0, 1)]
    for n, m, g in shapes:
        for side, size in enumerate((n, m)):
            block = np.full((g, size), -1, np.int64)
            for at in range(g):
                pool = free[side][at % keys]
                for place in range(size - int(rng.integers(2)) if size > 1 else 1):
                    block[at, place] = pool.pop() if pool else -1
            slots[side].append(block)
    terms = LinkTerms(("left", "right"), "helper", rows, keys, FIELDS, 1000, shapes)
    return terms, *(make_side(rows[side], slots[side], rng) for side in (0, 1))


def play(terms: LinkTerms, left: Side, right: Side, ledger: Ledger | None = None, tap: Any = None) -> Any:
    programs: dict[str, Any] = {"helper": functools.partial(linked.helper, names=["left", "right"])}
    for name, side in zip(terms.names, (left, right)):
        programs[name] = functools.partial(linked.holder, terms=terms.to_dict(), side=side)
    return InProcess().run_sync(tap.on(programs) if tap else programs, ledger=ledger)


SHAPES = [
    ((1, 1, 9),),
    ((1, 1, 6), (1, 2, 4), (2, 4, 5), (8, 4, 3)),
    ((4, 1, 3), (4, 4, 7)),
]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_protocol_equals_its_ideal_function(seed: int, shapes: Any) -> None:
    terms, left, right = make_case(seed, shapes)
    found, expected = play(terms, left, right), linked.ideal(terms, left, right)
    assert found["left"].tolist() == found["right"].tolist() == expected.tolist()
    i, j = (linked.find_rows(terms, s.slots, k, expected) for k, s in enumerate((left, right)))
    assert (i >= 0).all()
    assert (j >= 0).all()
    assert len(set(i.tolist())) == len(set(j.tolist())) == len(i)


def test_the_cases_have_matches_and_pairs_that_do_not_match() -> None:
    cases = [make_case(seed, shapes) for seed in range(3) for shapes in SHAPES]
    sizes = [len(linked.ideal(*case)) for case in cases]
    assert sum(size > 0 for size in sizes) >= 7
    assert all(size < terms.pairs for size, (terms, _, _) in zip(sizes, cases))


def test_it_is_the_same_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "PIECE", 24)
    monkeypatch.setattr(linked, "SIGNS", 50)
    terms, left, right = make_case(5, ((1, 1, 6), (2, 4, 5), (8, 4, 2)))
    parts = [p for piece in linked.pieces(terms) for p in piece]
    assert sum((p.stop - p.start) * terms.shapes[p.shape][0] * terms.shapes[p.shape][1] for p in parts) == 110
    assert len(list(linked.pieces(terms))) > 3
    assert play(terms, left, right)["left"].tolist() == linked.ideal(terms, left, right).tolist()


def test_of_two_candidates_the_better_one_matches_worked_by_hand() -> None:
    """Rows 0 and 1 of the right table are like row 0 of the left one; row 1 equal, row 0 in one field only."""
    one = np.eye(8, dtype=np.uint8)[:2]
    other = np.zeros((2, 16), np.uint8)
    other[0, :4], other[1, 8:] = 1, 1
    ones, eights = np.array([1, 1]), np.array([4, 8])
    left = linked.make_side([one[:1], other[:1]], [ones[:1], eights[:1]], MISSING, [np.array([[0]])])
    right = linked.make_side(
        [one[[0, 0]], other[[1, 0]]], [ones, eights[[1, 0]]], MISSING, [np.array([[0, 1]])]
    )
    terms = LinkTerms(("left", "right"), "helper", (1, 2), 1, FIELDS, 0, ((1, 2, 1),))
    assert play(terms, left, right)["left"].tolist() == [1]  # pair 0 has 4000 − 4000, pair 1 has 4000 + 5000
    above = LinkTerms(("left", "right"), "helper", (1, 2), 1, FIELDS, 9001, ((1, 2, 1),))
    assert play(above, left, right)["left"].tolist() == []
    at = LinkTerms(("left", "right"), "helper", (1, 2), 1, FIELDS, 9000, ((1, 2, 1),))
    assert play(at, left, right)["left"].tolist() == [1]


def test_products_of_bytes_are_exact() -> None:
    """The largest ones: 256 products of 255 · 255 are just below 2^24, where float32 ends to be exact."""
    x = torch.full((1, 2, 256), 255, dtype=torch.uint8)
    assert linked.multiply(x, x, (256,)).flatten().tolist() == [255 * 255 * 256 % 256] * 4
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 256, (3, n, 40), generator=g, dtype=torch.uint8) for n in (2, 5))
    expected = (a[..., 8:].long() @ b[..., 8:].long().mT) % 256
    assert torch.equal(linked.multiply(a, b, (8, 32))[1].long(), expected)


def test_records_are_arranged_each_in_its_own_row() -> None:
    """7 slots of records 5, 2 and 9, two of them empty, into 4 rows of 4."""
    rows = torch.tensor([5, -1, 2, 5, 9, 5, -1])
    order = linked.arrange(rows, 4, 4)
    assert sorted(order.tolist()) == list(range(7 + 16))
    grid = order[:16].reshape(4, 4).tolist()
    assert [{k for k in row if k < 7} for row in grid] == [{2}, {0, 3, 5}, {4}, set()]


def test_the_ledger_says_that_only_match_bits_were_opened() -> None:
    terms, left, right = make_case(1, ((2, 2, 4),))
    ledger = Ledger()
    play(terms, left, right, ledger)
    masked = {"MaskedFilters", "MaskedFactors", "MaskedValues", "MaskedBits", "MaskedSigns", "PermutedOrder"}
    dealt = {"TapeKey", "Corrections"}
    assert {line.kind for line in ledger.seen} == {"LinkSettings", "MatchShare"} | masked | dealt
    assert {line.kind for line in ledger.seen if line.party == "helper"} == {"LinkSettings"}


def test_terms_that_could_overflow_are_refused() -> None:
    terms = LinkTerms(("left", "right"), "helper", (1, 1), 1, FIELDS, 0, ((256, 256, 65),))
    with pytest.raises(BadData, match="4259840 candidate pairs with padding; at most 4194304"):
        linked.check_terms(terms)
    for keys in (0, 1 << 40):  # the places of each record's slots
        with pytest.raises(ProtocolError, match="sizes out of range"):
            linked.check_terms(LinkTerms(("left", "right"), "helper", (1, 1), keys, FIELDS, 0, ((1, 1, 1),)))
    for shapes in (((0, 1, 1),), ((-2, -2, 1),), ((1, 1, -1),), ((512, 1, 1),)):
        with pytest.raises(ProtocolError, match="sizes out of range"):
            linked.check_terms(LinkTerms(("left", "right"), "helper", (1, 1), 1, FIELDS, 0, shapes))
    heavy = (LinkField(8, (64,), 0, (1 << 21,)),)
    with pytest.raises(BadData, match="weights of the fields are too large"):
        linked.check_terms(LinkTerms(("left", "right"), "helper", (1, 1), 1, heavy, 0, ((1, 1, 1),)))

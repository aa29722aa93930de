"""Attacks on boosted trees by homomorphic encryption: what parties see, and what happens if one of them lies."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from tacit.errors import PartyFailed
from tacit.jobs.vertical import boost_programs
from tacit.mpc import encrypted_histograms as he
from tacit.mpc import histogram_terms as kinds
from tacit.mpc import leaf_transfers
from tacit.mpc.extension import Correlations, Extended
from tacit.mpc.leaf_scores import ideal
from tacit.parties import decode
from tacit.runtimes import InProcess
from tests.security.test_mpc import looks_uniform
from tests.security.test_regress_with_errors_attacks import Lying, only
from tests.security.test_regression_attacks import Recorder
from tests.security.test_vertical_boost_attacks import NAMES, ROWS, lie, patterns_of, programs, tables


def low_bytes(values: torch.Tensor) -> torch.Tensor:
    """The lowest 56 of 59 bits, as bytes."""
    words = values.contiguous().flatten().view(torch.uint8).reshape(-1, 8)
    assert int(values.min()) >= 0
    assert int(values.max()) < 1 << 59
    return words[:, :7]


def test_all_that_is_sent_before_the_sums_are_opened_is_uniform_and_nobody_else_is_there() -> None:
    """`looks_uniform` states its false-alarm probability."""
    recorder = Recorder()
    recorder.run_sync(programs(backend="he", trees=4))
    sent = [(by, to, decode(frame)) for by, to, _, frame in recorder.tap.frames]
    assert {by for by, _, _ in sent} == set(NAMES)
    for kind in ("MaskedVectors", "SumShares"):
        values = [low_bytes(m.values) for _, _, m in sent if m.kind == kind]
        assert values
        assert looks_uniform(values), kind
    to_shop = {m.kind for _, to, m in sent if to == "shop"}
    assert to_shop == {
        *("LabelShape", "EncryptionKey", "EncryptedMasks", "MaskedVectors", "ChosenSplits"),
        *("TransferOffer", "Extended", "TreeShapes", "MaskedLeaves"),
    }
    to_bank = {m.kind for _, to, m in sent if to == "bank"}
    assert to_bank == {"CellLayout", "EncryptedSums", "SumShares", "TransferChoices", "Correlations"}
    for kind, name in (("Extended", "columns"), ("Correlations", "values")):
        some = [getattr(m, name) for _, _, m in sent if m.kind == kind]
        assert looks_uniform([torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in some]), kind


def test_no_foreign_threshold_is_in_a_message() -> None:
    """8 bytes or more: a random hit in 10 MB has a probability below 1e-11."""
    from tacit.boost.vertical_bins import OwnBins

    frames, _ = tables()
    recorder = Recorder()
    recorder.run_sync(programs(backend="he"))
    for owner in ("shop", "bank"):
        bins = OwnBins.fit(frames[owner], [], 8, 5, owner)
        sent = b"".join(bytes(frame) for _, to, _, frame in recorder.tap.frames if to != owner)
        assert len(sent) > 1000
        assert not any(pattern in sent for pattern in patterns_of(bins))


def test_the_label_holder_learns_sides_of_the_rows_of_its_node_only() -> None:
    """What it computes from the messages is False outside of the node, and the shop's split inside of it."""
    seen = []
    before = he.EncryptedLabelSide.sides

    async def watched(self: Any, name: str, records: Any, members: np.ndarray, serials: Any = ()) -> Any:
        out = await before(self, name, records, members, serials)
        seen.append((members, out))
        return out

    he.EncryptedLabelSide.sides = watched  # type: ignore[method-assign]
    try:
        InProcess().run_sync(programs(backend="he", trees=2, depth=3))
    finally:
        he.EncryptedLabelSide.sides = before  # type: ignore[method-assign]
    assert len(seen) > 1
    for members, left in seen:
        assert not (left & ~members).any()
        assert (left.sum(axis=1) >= 5).all()
        assert ((members & ~left).sum(axis=1) >= 5).all()


def swap(ciphertexts: list[bytes]) -> list[bytes]:
    return [*ciphertexts[1:], ciphertexts[0]]


@pytest.mark.parametrize(
    ("liar", "change", "words"),
    [
        (
            "shop",
            only(kinds.SumShares, lambda m: kinds.SumShares(m.values + 1)),
            "the sums of 'shop' do not add up",
        ),
        (
            "shop",
            only(he.EncryptedSums, lambda m: he.EncryptedSums(m.first, m.ciphertexts[1:])),
            "'shop' sent 17 sums; expected 18",
        ),
        (
            "shop",
            only(he.EncryptedSums, lambda m: he.EncryptedSums(m.first, swap(m.ciphertexts))),
            "the sums of 'shop' do not add up",
        ),
        (
            "shop",
            only(he.EncryptedSums, lambda m: he.EncryptedSums(m.first, [b"x"] * len(m.ciphertexts))),
            "an encrypted sum of 'shop' cannot be read",
        ),
        (
            "shop",
            only(kinds.CellLayout, lambda m: kinds.CellLayout(m.settings, [256] * 4000, [False] * 4000)),
            "'shop' announced columns with cells that no table has",
        ),
        (
            "shop",
            only(kinds.CellLayout, lambda m: kinds.CellLayout("{}", m.widths, m.is_category)),
            "have different settings",
        ),
        (
            "shop",
            only(Correlations, lambda m: Correlations(m.first, m.values[1:])),
            "Both parties must run the same program",
        ),
        (
            "bank",
            only(he.EncryptionKey, lambda m: he.EncryptionKey(b"no key")),
            "the public key cannot be read",
        ),
        (
            "bank",
            only(he.EncryptedMasks, lambda m: he.EncryptedMasks(m.first + 1, m.ciphertexts)),
            "'bank' sent 1 encrypted masks from row 1 on; expected 1 from row 0 on",
        ),
        (
            "bank",
            only(he.EncryptedMasks, lambda m: he.EncryptedMasks(0, [b"x"])),
            "an encrypted mask of 'bank' cannot be read",
        ),
        (
            "bank",
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values.repeat(9, 1))),
            "'bank' asked for 18 sums, and sent masks for 8",
        ),
        (
            "bank",
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values[:, 1:])),
            "'bank' sent masked numbers of shape",
        ),
        (
            "bank",
            only(he.ChosenSplits, lambda m: he.ChosenSplits(m.records.repeat(9, 1))),
            "'bank' asked for 9 splits; the agreed trees have at most 6",
        ),
        (
            "bank",
            only(he.ChosenSplits, lambda m: he.ChosenSplits(torch.full_like(m.records, 200))),
            "a split is not one of this party's columns",
        ),
        (
            "bank",
            only(Extended, lambda m: Extended(m.first, m.columns[128:])),
            "Both parties must run the same program",
        ),
        (
            "bank",
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(torch.tensor(1))),
            r"'bank' sent masked numbers of shape \(\)",
        ),
        (
            "bank",
            only(he.ChosenSplits, lambda m: he.ChosenSplits(torch.tensor(1, dtype=torch.uint8))),
            "'bank' asked for 0 splits",
        ),
    ],
)
def test_a_party_that_lies_is_refused(liar: str, change: Any, words: str) -> None:
    with pytest.raises(PartyFailed, match=words):
        lie(liar, change, backend="he")


@pytest.mark.parametrize(
    ("liar", "change", "words"),
    [
        (
            "bank",
            only(boost_programs.BackEnd, lambda m: boost_programs.BackEnd("none")),
            "'bank' chose the back-end 'none'; there are shares, he",
        ),
        (
            "shop",
            only(boost_programs.CellCount, lambda m: boost_programs.CellCount(1, -5)),
            "'shop' announced columns with cells that no table has",
        ),
    ],
)
def test_a_lie_about_the_choice_of_the_back_end_is_refused(liar: str, change: Any, words: str) -> None:
    with pytest.raises(PartyFailed, match=words):
        lie(liar, change, backend="auto")


def test_masks_for_more_sums_than_agreed_are_refused() -> None:
    """The agreed trees need 8 vectors; a label holder that encrypts a second batch gets no answer to it."""
    started = programs(backend="he")

    async def attacker(me: Any) -> None:
        settings = started["bank"].keywords["settings"]
        terms = boost_programs.make_terms(NAMES, "bank", "", ROWS, settings, 1)
        await me.send("shop", boost_programs.LabelShape(1))
        side = he.EncryptedLabelSide(me, terms)
        await side.start()
        await side._encrypt()
        side._batches = [terms.vectors]
        await side._encrypt()

    with pytest.raises(PartyFailed, match="masks for more than the 8 sums that the agreed trees need"):
        InProcess().run_sync({**started, "bank": attacker})


def score(own: dict[str, torch.Tensor], outputs: list[int], runtime: Any, change: Any = None) -> Any:
    names = list(own)

    async def program(me: Any, name: str) -> Any:
        me = Lying(me, change) if change is not None and name == "b" else me
        base = 0.5 if name == "a" else 0.0
        return await leaf_transfers.add_leaves(me, names, "b", own[name], outputs, base)

    return runtime.run_sync({n: functools.partial(program, name=n) for n in names})


def test_scores_without_a_helper_are_those_of_the_ideal_function_and_all_else_is_uniform() -> None:
    """Three parties; the receiver is not the first. `looks_uniform` states its false-alarm probability."""
    g = torch.Generator().manual_seed(0)
    own = {n: torch.randint(0, 2, (50, 12), generator=g) for n in "abc"}
    own["a"] = own["a"] * torch.randint(-(2**40), 2**40, (50, 12), generator=g)
    outputs = [k % 2 for k in range(12)]
    recorder = Recorder()
    results = score(own, outputs, recorder)
    assert torch.equal(results["b"], ideal(list(own.values()), outputs, 0.5))
    assert results["a"] is None
    assert results["c"] is None
    sent = [decode(f) for _, _, _, f in recorder.tap.frames]
    shares = [m.values for m in sent if m.kind == "LeafShare"]
    assert len(shares) == 2
    assert looks_uniform(shares)
    words = [
        torch.frombuffer(bytearray(m.values), dtype=torch.int64) for m in sent if m.kind == "Correlations"
    ]
    assert len(words) == 3
    assert looks_uniform(words)


def test_scores_of_other_sizes_are_refused() -> None:
    own = {n: torch.ones((4, 3 if n == "a" else 2), dtype=torch.int64) for n in "ab"}
    with pytest.raises(PartyFailed, match="All parties need their parts of the same model"):
        score(own, [0, 0], InProcess())
    own = {n: torch.ones((4, 2), dtype=torch.int64) for n in "ab"}
    change = only(leaf_transfers.LeafSize, lambda m: leaf_transfers.LeafSize(m.rows, 7))
    with pytest.raises(PartyFailed, match="All parties need their parts of the same model"):
        score(own, [0, 0], InProcess(), change)

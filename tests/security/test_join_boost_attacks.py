"""Boosted trees on a join that stays shared: what each party receives, and parties that deviate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import PartyFailed
from tacit.jobs.vertical import join_boost
from tacit.mpc import shared_trees
from tacit.mpc.beaver import MaskedFactors
from tacit.mpc.histogram_terms import LeafKey, MaskedLeaves
from tacit.mpc.shared_trees import SplitShare, TreeLayout, TreesFollow, TreeShare
from tacit.mpc.split_search import SUM
from tacit.parties.codec import decode, kind_of
from tacit.parties.conformance import Tap
from tacit.runtimes.inprocess import InProcess
from tests.mpc.at_table import MASKED
from tests.mpc.at_trees import Rows, make_programs, make_rows, make_terms
from tests.protocols.test_psi import meddled


def run(rows: Rows, terms: Any, change: tuple[str, type, Callable[[Any], Any]] | None = None) -> Any:
    programs = make_programs(terms, rows)
    if change is not None:
        who, kind, alter = change
        programs[who] = meddled(programs[who], kind, lambda held, m: [alter(m)])
    tap = Tap()
    return InProcess().run_sync(tap.on(programs)), tap


def kinds(tap: Tap, who: str) -> set[str]:
    return {kind_of(frame) for frame in tap.view(who)}


def test_each_party_receives_masked_words_and_what_is_stated() -> None:
    """Of the opened kinds: both the bit and the splits, the holder of the label alone the values of leaves."""
    rows = make_rows(400)
    _, tap = run(rows, make_terms(rows, label_at=1, trees=2, depth=2, bins=12))
    masked = {*MASKED, "MaskedNumbers"}
    assert kinds(tap, "a") - masked == {"TreeLayout", "EnoughShare", "SplitShare"}
    assert kinds(tap, "b") - masked == {"TreeLayout", "EnoughShare", "SplitShare", "TreeShare"}
    assert kinds(tap, "h") == {"TreeLayout", "TreesFollow"}


def test_messages_have_the_same_sizes_whoever_is_matched() -> None:
    """But for the splits, which are of the nodes that a split leads to."""
    sizes = []
    for seed in (1, 2):
        rows = make_rows(400)
        chosen = torch.randperm(400, generator=torch.Generator().manual_seed(seed))[: 150 * seed]
        rows.match = torch.zeros(400, dtype=torch.int64).index_fill_(0, chosen, 1) * rows.present
        _, tap = run(rows, make_terms(rows, trees=2, depth=2, bins=12))
        frames = [(to, kind_of(f), len(f)) for _, to, _, f in tap.frames]
        sizes.append(sorted(f for f in frames if f[1] not in ("SplitShare", "MaskedBits", "MaskedSigns")))
    assert sizes[0] == sizes[1]


def test_a_person_alone_in_a_bin_is_in_no_leaf_alone() -> None:
    """The attack of a holder of the label with a column about one person: the gain would be largest there."""
    rows = make_rows(600)
    target = int(torch.nonzero(rows.match)[7])
    rows.codes[:, 0] = 1 + (torch.arange(600) == target).long()
    rows.y = torch.where(torch.arange(600) == target, 40.0, rows.y.double())
    terms = make_terms(rows, 0, objective="regression", trees=2, depth=3, min_rows=20, bins=12)
    found = run(rows, terms)[0]["a"]
    cells = [one.cells for one in found.candidates]
    chosen = {cells[place - 1] for tree in found.picks for level in tree for place in level if place}
    assert chosen
    assert not any(cell < rows.columns[0][0].width for split in chosen for cell in split)


def test_a_first_party_with_the_weight_of_twenty_in_a_bin_passes_min_rows() -> None:
    """What is stated: inputs are not verified. A cell of 20 for one person counts as 20 people, and the
    holder of the label then learns a leaf about this person alone.
    """
    rows = make_rows(600)
    target = int(torch.nonzero(rows.match)[7])
    rows.y = torch.where(torch.arange(600) == target, 6.0, 0.0)
    terms = make_terms(rows, 0, objective="regression", trees=1, depth=1, min_rows=20, bins=12)
    programs, honest = make_programs(terms, rows), shared_trees._mask_own

    async def mask_own(ctx: Any, name: str, shape: Any, value: Any) -> Any:
        if value is not None:
            value = torch.zeros_like(value)
            value[target, 0] = 20
        return await honest(ctx, name, shape, value)

    async def attacker(me: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_trees, "_mask_own", mask_own)
            return await programs["a"](me)

    found = InProcess().run_sync({**programs, "a": attacker})["a"]
    place = found.picks[0][0][0]
    assert found.candidates[place - 1].cells[0] == 0
    leaf = float(found.leaves[0, 0]) / 2**SUM
    assert leaf == pytest.approx(0.3 * 20 * 6.0 / 21, abs=1e-4)  # her label follows


def test_a_leaf_of_the_first_tree_tells_the_holder_of_the_label_its_size() -> None:
    """What is stated: −η (n p − positives)/(n p (1 − p) + 1) fits few whole numbers n of at least min_rows."""
    rows = make_rows(400)
    terms = make_terms(rows, 0, trees=1, depth=1, min_rows=20, bins=12)
    found = InProcess().run_sync(make_programs(terms, rows, base=0.3))["a"]
    p = 1 / (1 + np.exp(-0.3))
    one = found.candidates[found.picks[0][0][0] - 1]
    assert one.party == 0  # only then the holder can check its guess
    codes, y = rows.counted(terms)
    starts = np.cumsum([0, *(c.width for c in rows.columns[0])])
    column = one.column
    left = torch.isin(codes[:, column], torch.tensor(one.cells) - int(starts[column]) + 1) ^ one.flips
    leaf = float(found.leaves[0, 0]) / 2**SUM
    fits = [
        (n, positives)
        for n in range(20, 401)
        for positives in range(n + 1)
        if abs(-0.3 * (n * p - positives) / (n * p * (1 - p) + 1) - leaf) < 2.0**-21
    ]
    assert (int(left.sum()), int(y[left].sum())) in fits
    assert len(fits) < 5


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        (lambda m: replace(m, widths=[200, *m.widths[1:]]), "at most 12 cells"),  # more bins than agreed
        (lambda m: replace(m, widths=[*m.widths, 5]), "agreed are 3 columns"),
        (lambda m: replace(m, widths=m.widths[1:]), "agreed are 3 columns"),
        (lambda m: replace(m, widths=[0, *m.widths[1:]]), "at most 12 cells"),
        (lambda m: replace(m, has_missing=[]), "agreed are 3 columns"),
        (lambda m: replace(m, settings=m.settings.replace('"min_rows": 20', '"min_rows": 1')), "has other settings"),
        (lambda m: replace(m, settings=m.settings.replace('"rows": 300', '"rows": 900')), "has other settings"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("who", ["a", "b"])
def test_layouts_that_were_not_agreed_on_are_refused(who: str, alter: Any, text: str) -> None:
    rows = make_rows(300)
    with pytest.raises(PartyFailed, match=text):
        run(rows, make_terms(rows, trees=1, depth=1, bins=12), (who, TreeLayout, alter))


def test_a_party_with_more_rows_than_bins_is_refused() -> None:
    rows = make_rows(300)
    programs = make_programs(make_terms(rows, trees=1, depth=1, bins=12), rows)
    wrong = [torch.cat([v, v]) for v in programs["b"].keywords["rows"]]
    programs["b"] = functools.partial(programs["b"].func, **{**programs["b"].keywords, "rows": wrong})
    with pytest.raises(PartyFailed, match="rows of another shape"):
        InProcess().run_sync(programs)


def test_masked_rows_of_another_number_are_refused() -> None:
    rows = make_rows(300)
    alter = lambda m: replace(m, values=[torch.cat([v, v]) for v in m.values])  # noqa: E731
    with pytest.raises(PartyFailed, match="'b' sent shapes"):
        run(rows, make_terms(rows, trees=1, depth=1, bins=12), ("b", MaskedFactors, alter))


def test_splits_that_do_not_exist_are_refused() -> None:
    rows = make_rows(300)
    alter = lambda m: replace(m, values=[m.values[0] + 10_000])  # noqa: E731
    with pytest.raises(PartyFailed, match=r"opened split .*, which does not exist"):
        run(rows, make_terms(rows, trees=1, depth=1, bins=12), ("b", SplitShare, alter))


def test_values_of_other_leaves_are_refused() -> None:
    rows = make_rows(300)
    alter = lambda m: replace(m, values=[m.values[0][:, :1], m.values[1]])  # noqa: E731
    with pytest.raises(PartyFailed, match="'a' sent shapes"):
        run(rows, make_terms(rows, trees=1, depth=2, bins=12), ("a", TreeShare, alter))


def test_a_first_party_that_goes_on_with_few_people_stays_alone() -> None:
    """It tells the helper that trees follow; the second party has seen the bit and stops."""
    rows = make_rows(300)
    rows.match = rows.match * (rows.match.cumsum(0) <= 30)
    programs = make_programs(make_terms(rows, trees=1, depth=1, bins=12), rows)
    programs["a"] = meddled(programs["a"], TreesFollow, lambda held, m: [TreesFollow(True)])
    tap = Tap()
    found = InProcess().run_sync(tap.on(programs))
    assert found["b"] is None
    assert "SplitShare" not in kinds(tap, "a") | kinds(tap, "b")


def tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(200)], "x": rng.normal(size=200).round(2)})
    frame["z"] = rng.normal(size=200).round(2)
    frame["y"] = (frame.x + frame.z > 0).astype(int)
    return {"bank": frame[["id", "x", "y"]], "shop": frame[["id", "z"]].iloc[20:]}


@pytest.mark.parametrize(
    ("who", "kind", "alter", "text"),
    [
        ("helper", LeafKey, lambda m: LeafKey(b"short"), "a key of 5 bytes"),
        ("bank", MaskedLeaves, lambda m: MaskedLeaves(m.values[:-1]), "masked values of other leaves"),
        ("bank", MaskedLeaves, lambda m: MaskedLeaves(m.values.double()), "masked values of other leaves"),
    ],
)
def test_leaves_for_predictions_are_checked(
    who: str, kind: type, alter: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    for name in ("hold", "help_trees"):
        honest = getattr(join_boost, name)

        async def program(me: Any, honest: Any = honest, **more: Any) -> Any:
            run = functools.partial(honest, **more)
            if me.name != who:
                return await run(me)
            return await meddled(run, kind, lambda held, m: [alter(m)])(me)

        monkeypatch.setattr(join_boost, name, program)
    with pytest.raises(PartyFailed, match=text):
        table.boost("y", trees=1, depth=1)


def test_the_party_without_the_label_gets_no_value_of_a_leaf() -> None:
    """Its part has the shape, its own splits and the values under the mask; the helper has the mask alone."""
    found = tacit.join(tables(), on="id", reveal="shares").boost("y", trees=2, depth=2)
    shop = found.parts["shop"].to_dict()
    assert {"base", "labels", "leaf_key", "losses"}.isdisjoint(shop)
    assert set(shop["trees"][0]) == {"left", "owner", "split"}
    assert {s["column"] for s in shop["splits"]} == {"z"}
    kept = [line.kind for line in found.ledger.seen if line.party == "helper"]
    assert set(kept) == {"RowShape", "TreeLayout", "TreesFollow", "SumsEnd"}


def test_opened_shares_of_one_party_are_random() -> None:
    """The same rows give other shares of the same splits: a share alone says nothing."""
    rows = make_rows(300)
    terms = make_terms(rows, trees=1, depth=1, bins=12)
    shares = []
    for _ in range(2):
        _, tap = run(rows, terms)
        frame = next(f for f in tap.view("a") if kind_of(f) == "SplitShare")
        message = decode(frame)
        assert isinstance(message, SplitShare)
        shares.append(message.values[0])
    assert not torch.equal(*shares)

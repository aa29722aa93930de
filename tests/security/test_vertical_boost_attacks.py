"""Attacks on boosted trees over columns of several parties by their own participants: what they see, what is in
their memory, and what happens if one of them lies.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.boost.vertical_bins import OwnBins
from tacit.boost.vertical_checks import find_false_sums, find_false_trees
from tacit.config.vertical_boost import VerticalBoostConfig
from tacit.errors import BadData, PartyFailed, QueryRefused
from tacit.jobs.boost.query import BoostPolicy
from tacit.jobs.vertical import boost_programs
from tacit.jobs.vertical.boost import plain_settings
from tacit.jobs.vertical.boost_deployed import check_policy
from tacit.jobs.vertical.boost_parts import BoostPart, read_any
from tacit.jobs.vertical.boost_predict import predict_here
from tacit.mpc import histogram_terms as kinds
from tacit.mpc.histograms import LabelSide, find_roots
from tacit.mpc.leaf_scores import add_leaves, draw_mask, help_leaves, ideal
from tacit.parties import decode
from tacit.runtimes import InProcess
from tests.security.memory import scan_after, shift
from tests.security.test_mpc import looks_uniform
from tests.security.test_regress_with_errors_attacks import Lying, only
from tests.security.test_regression_attacks import Recorder

NAMES = ["bank", "shop"]
ROWS = 300


def tables(n: int = ROWS) -> tuple[dict[str, pd.DataFrame], np.ndarray]:
    rng = np.random.default_rng(0)
    frames = {
        "bank": pd.DataFrame({"a": rng.normal(size=n)}),
        "shop": pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n)}),
    }
    y = (frames["bank"]["a"] + 2 * frames["shop"]["x"] + rng.logistic(size=n) > 0).to_numpy(float)
    return frames, y


def programs(**options: Any) -> dict[str, Any]:
    """The programs as `tacit.boost.train` starts them."""
    frames, y = tables()
    few = {"trees": 2, "depth": 2, "bins": 8, "min_rows": 5, "backend": "shares"}
    config = VerticalBoostConfig(**{**few, **options})
    helper_name = "" if config.backend == "he" else "helper"
    shared = {"names": NAMES, "helper": helper_name, "settings": plain_settings(config)}
    own = {n: OwnBins.fit(f, [], config.bins, config.min_rows, n) for n, f in frames.items()}
    rows = {n: {"codes": torch.from_numpy(own[n].encode(frames[n])), "bins": own[n].to_dict()} for n in NAMES}
    label = functools.partial(
        boost_programs.hold_label, y=torch.from_numpy(y), labels=["0", "1"], **shared, **rows["bank"]
    )
    shop = functools.partial(boost_programs.hold_columns, label_at="bank", **shared, **rows["shop"])
    if not helper_name:
        return {"bank": label, "shop": shop}
    helper = functools.partial(boost_programs.help_all, label_at="bank", rows=ROWS, **shared)
    return {"bank": label, "shop": shop, "helper": helper}


def lie(liar: str, change: Any, **options: Any) -> Any:
    started = programs(**options)
    honest = started[liar]

    async def lying(me: Any) -> Any:
        return await honest(Lying(me, change))

    return InProcess().run_sync({**started, liar: lying})


def test_all_that_is_sent_before_the_sums_are_opened_is_uniform() -> None:
    """`looks_uniform` states its false-alarm probability."""
    for reveal in ("sums", "splits"):
        recorder = Recorder()
        recorder.run_sync(programs(reveal=reveal, trees=6))
        sent = [(by, to, decode(frame)) for by, to, _, frame in recorder.tap.frames]
        for kind in ("MaskedCells", "MaskedVectors", "SumCorrections", "SumShares", "PaddedSums"):
            values = [m.values for _, _, m in sent if m.kind == kind]
            values = [v for one in values for v in (one if isinstance(one, list) else [one])]
            assert bool(values) == (kind != ("PaddedSums" if reveal == "sums" else "SumShares"))
            assert not values or looks_uniform(values), kind
        to_shop = {m.kind for _, to, m in sent if to == "shop"}
        wanted = {"LabelShape", "TapeKey", "MaskedVectors", "SplitRequest", "TreeShapes", "MaskedLeaves"}
        assert to_shop == wanted | ({"PadKey"} if reveal == "splits" else set())
        to_bank = {m.kind for by, to, m in sent if to == "bank" and by == "shop"}
        assert to_bank == {"CellLayout", "MaskedCells", "SplitSides"} | (
            {"SumShares"} if reveal == "sums" else set()
        )
        bits = [v for _, _, m in sent if m.kind == "SplitSides" for v in (m.masked, m.share)]
        assert looks_uniform([*bits, *(m.members for _, _, m in sent if m.kind == "SplitRequest")])


def test_the_label_holder_learns_sides_of_the_rows_of_its_node_only() -> None:
    """What it computes from the messages is False outside of the node, and the shop's split inside of it."""
    seen = []
    before = LabelSide.sides

    async def watched(self: Any, name: str, records: Any, members: np.ndarray, serials: Any = ()) -> Any:
        out = await before(self, name, records, members, serials)
        seen.append((members, out))
        return out

    LabelSide.sides = watched  # type: ignore[method-assign]
    try:
        InProcess().run_sync(programs(trees=4, depth=3))
    finally:
        LabelSide.sides = before  # type: ignore[method-assign]
    assert len(seen) > 3
    for members, left in seen:
        assert not (left & ~members).any()
        assert (left.sum(axis=1) >= 5).all()
        assert ((members & ~left).sum(axis=1) >= 5).all()


def patterns_of(bins: OwnBins) -> list[bytes]:
    """The cuts of a column as they could be in memory: neighbors as numbers, and each as text."""
    out = []
    for feature in bins.bins.features:
        cuts = feature.cuts or ()
        for kind in (np.float32, np.float64):
            pair = np.asarray(cuts[:2], dtype=kind).tobytes()
            out += [pair, np.asarray(cuts[-2:], dtype=kind).tobytes()]
        out += [repr(float(c)).encode() for c in cuts]
    return out


@pytest.mark.parametrize("reveal", ["sums", "splits"])
def test_no_foreign_threshold_is_in_a_message(reveal: str) -> None:
    frames, _ = tables()
    recorder = Recorder()
    recorder.run_sync(programs(reveal=reveal))
    for owner in ("shop", "bank"):
        bins = OwnBins.fit(frames[owner], [], 8, 5, owner)
        sent = b"".join(bytes(frame) for by, to, _, frame in recorder.tap.frames if to != owner)
        assert len(sent) > 1000
        # 8 bytes or more: a random hit in 1 MB has a probability below 1e-12
        assert not any(pattern in sent for pattern in patterns_of(bins))


@pytest.mark.slow
def test_no_foreign_threshold_is_in_the_memory_of_a_party() -> None:
    """Each party runs in a process of its own, which searches its memory at the end. The owner's process has
    its thresholds, so the search finds what is there. A pattern has at least 8 bytes: in 4 GB of memory a
    random hit has a probability below 1e-9.
    """
    used = InProcess().run_sync(programs())
    frames, _ = tables()
    patterns = []
    for name in NAMES:
        split = next(s for s in used[name]["splits"] if s["below"] is not None)
        cuts = next(
            f.cuts
            for f in OwnBins.fit(frames[name], [], 8, 5, name).bins.features
            if f.name == split["column"]
        )
        pairs = [np.asarray(cuts[:2], dtype=kind).tobytes() for kind in (np.float32, np.float64)]
        text = repr(split["below"]).encode()
        assert len(text) >= 8
        patterns += [shift(p) for p in (text, *pairs)]
    started = {
        name: functools.partial(
            scan_after,
            program=f"tacit.jobs.vertical.boost_programs:{program.func.__name__}",
            patterns=patterns,
            **program.keywords,
        )
        for name, program in programs().items()
    }
    results = tacit.Processes().run_sync(started)
    assert results["bank"]["found"][0]
    assert results["shop"]["found"][3]
    assert not any(results["bank"]["found"][3:])
    assert not any(results["shop"]["found"][:3])
    assert not any(results["helper"]["found"])


@pytest.mark.parametrize(
    ("liar", "change", "words"),
    [
        (
            "shop",
            only(kinds.SumShares, lambda m: kinds.SumShares(m.values + 1)),
            "the sums of 'shop' do not add up",
        ),
        (
            "helper",
            only(kinds.SumCorrections, lambda m: kinds.SumCorrections([v + 1 for v in m.values])),
            "the sums of 'shop' do not add up",
        ),
        (
            "shop",
            only(kinds.SumShares, lambda m: kinds.SumShares(m.values[:, :-1])),
            "'shop' sent sums of shape",
        ),
        (
            "shop",
            only(kinds.MaskedCells, lambda m: kinds.MaskedCells(m.start, m.values.double())),
            "'shop' sent masked cells of shape .* torch.float64",
        ),
        (
            "shop",
            only(kinds.MaskedCells, lambda m: kinds.MaskedCells(7, m.values)),
            "'shop' sent its masked cells in another order",
        ),
        (
            "shop",
            only(kinds.CellLayout, lambda m: kinds.CellLayout(m.settings, [10**6], [False])),
            "'shop' announced columns with cells that no table has",
        ),
        (
            "shop",
            only(kinds.CellLayout, lambda m: kinds.CellLayout("{}", m.widths, m.is_category)),
            "have different settings",
        ),
        (
            "shop",
            only(kinds.SplitSides, lambda m: kinds.SplitSides(m.masked[:, 1:], m.share)),
            "'shop' sent sides of shape",
        ),
        (
            "bank",
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values.repeat(9, 1))),
            "'bank' asked for 18 sums; the agreed trees need at most 8",
        ),
        (
            "bank",
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values[:, 1:])),
            "'bank' sent masked numbers of shape",
        ),
        (
            "bank",
            only(kinds.SumRequest, lambda m: kinds.SumRequest(10**6, [], [], [])),
            "'bank' asked for more sums than the agreed trees need",
        ),
        (
            "bank",
            only(kinds.SideRequest, lambda m: kinds.SideRequest("nobody", 1)),
            "'bank' asked for splits that the agreed trees do not have",
        ),
        (
            "bank",
            only(
                kinds.SplitRequest,
                lambda m: kinds.SplitRequest(m.records.repeat(9, 1), [], m.members.repeat(9, 1)),
            ),
            "'bank' asked for 9 splits; the agreed trees have at most 6",
        ),
        (
            "bank",
            only(
                kinds.SplitRequest,
                lambda m: kinds.SplitRequest(torch.full_like(m.records, 200), [], m.members),
            ),
            "a split is not one of this party's columns",
        ),
        (
            "bank",
            only(
                kinds.TreeShapes,
                lambda m: kinds.TreeShapes([v * 0 for v in m.left], m.owner, m.split),
            ),
            "the label holder sent a split without an owner or children",
        ),
        (
            "bank",
            only(kinds.TreeShapes, lambda m: kinds.TreeShapes(m.left, m.owner, [v + 99 for v in m.split])),
            "the label holder sent a split that its owner does not have",
        ),
        (
            "bank",
            only(boost_programs.LabelShape, lambda m: boost_programs.LabelShape(500)),
            "'bank' announced 500 trees in each round",
        ),
    ],
)
def test_a_party_that_lies_about_shapes_or_sums_is_refused(liar: str, change: Any, words: str) -> None:
    with pytest.raises(PartyFailed, match=words):
        lie(liar, change)


@pytest.mark.parametrize(
    ("liar", "change", "words"),
    [
        (
            "bank",
            only(boost_programs.SumUnits, lambda m: boost_programs.SumUnits([0.0, 1.0])),
            "'bank' sent units that no gradient has",
        ),
        (
            "bank",
            only(kinds.SumRequest, lambda m: kinds.SumRequest(m.vectors, [-1, 5], [0, 0], [])),
            "'bank' sent nodes that do not belong to its sums",
        ),
        (
            "bank",
            only(kinds.SplitRequest, lambda m: kinds.SplitRequest(m.records, [0] * 3, m.members)),
            "'bank' sent splits without their pads",
        ),
        (
            "bank",
            only(
                kinds.SplitRequest,
                lambda m: kinds.SplitRequest(m.records, [-1] * len(m.serials), m.members),
            ),
            "there is no split -1",
        ),
        (
            "helper",
            only(
                kinds.SplitCandidates,
                lambda m: kinds.SplitCandidates(m.gains, m.records[..., 1:]),
            ),
            "'helper' sent splits of shape",
        ),
    ],
)
def test_a_party_that_lies_about_hidden_splits_is_refused(liar: str, change: Any, words: str) -> None:
    with pytest.raises(PartyFailed, match=words):
        lie(liar, change, reveal="splits")


STUMPS = kinds.TreeShapes(*([torch.tensor([v], dtype=torch.int32)] * 2 for v in (0, -1, -1)))  # two leaves


def test_a_label_holder_that_deviates_learns_in_which_anonymous_cells_rows_are() -> None:
    """The protocol is for semi-honest parties: a label holder that gives each of 63 rows a bit of its own reads
    the cells of all of them from one sum, so that the sums of the agreed trees suffice for every row. The
    ledger says so. Names and cuts stay hidden.
    """
    frames, _ = tables()
    codes = OwnBins.fit(frames["shop"], [], 8, 5, "shop").encode(frames["shop"])
    rows, read = range(20, 83), {}
    started = programs()

    async def attacker(me: Any) -> None:
        settings = started["bank"].keywords["settings"]
        terms = boost_programs.make_terms(NAMES, "bank", "helper", ROWS, settings, 1)
        await me.send(["shop", "helper"], boost_programs.LabelShape(1))
        await me.recv("helper", kinds.LeafKey)
        side = LabelSide(me, terms, lambda v, cells: v @ cells)
        await side.start()
        vector = np.zeros((1, ROWS), np.int64)
        vector[0, rows] = 1 << np.arange(63)
        read["cells"] = (await side.sums(vector))["shop"][0]
        await side.finish(STUMPS, "")
        await me.send("shop", kinds.MaskedLeaves(torch.zeros(2, dtype=torch.int64)))

    result = InProcess().run_sync({**started, "bank": attacker})
    assert result["shop"]["splits"] == []
    widths = 8 + 1
    for bit, row in enumerate(rows):
        found = np.flatnonzero(read["cells"] >> bit & 1) % widths
        assert sorted(found.tolist()) == sorted(codes[row].tolist())
    assert "A label holder that deviates can choose numbers and rows" in boost_programs.ASSUMES


def deepen(m: kinds.TreeShapes) -> kinds.TreeShapes:
    """The first leaf of the first tree is split once more, by the label holder: its depth is 3, not 2."""
    left, owner, split = (list(v) for v in (m.left, m.owner, m.split))
    node = int((owner[0] == -1).nonzero()[-1])
    n = len(left[0])
    for values, here, leaf in ((left, n, 0), (owner, 0, -1), (split, 99, -1)):
        values[0] = torch.cat([values[0], torch.tensor([leaf, leaf], dtype=torch.int32)])
        values[0][node] = here
    return kinds.TreeShapes(left, owner, split)


def exchange(m: kinds.TreeShapes) -> kinds.TreeShapes:
    """The shop's first two splits change places."""
    split = [v.clone() for v in m.split]
    for s, owner in zip(split, m.owner):
        mine = (owner == 1) & (s < 2)
        s[mine] = 1 - s[mine]
    return kinds.TreeShapes(m.left, m.owner, split)


def repeat(m: kinds.TreeShapes) -> kinds.TreeShapes:
    """Each of the shop's splits is its first one: scores would show it at every node."""
    split = [torch.where(owner == 1, 0, s) for s, owner in zip(m.split, m.owner)]
    return kinds.TreeShapes(m.left, m.owner, split)


def forget(m: kinds.TreeShapes) -> kinds.TreeShapes:
    """The shop's last split is the label holder's: the shop would keep one that no tree has."""
    owner = [v.clone() for v in m.owner]
    last = max(int(s[o == 1].max()) for s, o in zip(m.split, owner) if (o == 1).any())
    for o, s in zip(owner, m.split):
        o[(o == 1) & (s == last)] = 0
    return kinds.TreeShapes(m.left, owner, m.split)


def lengthen(m: kinds.TreeShapes, times: int = 2) -> kinds.TreeShapes:
    return kinds.TreeShapes(*(list(v) * times for v in (m.left, m.owner, m.split)))


@pytest.mark.parametrize("backend", ["shares", "he"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lengthen, "4 trees; 2 are agreed"),
        (lambda m: kinds.TreeShapes(m.left[:1], m.owner[:1], m.split[:1]), "1 trees; 2 are agreed"),
        (lambda m: STUMPS, "other splits than it asked for"),
        (deepen, "a tree that is deeper than the agreed 2"),
        (repeat, "other splits than it asked for"),
        (exchange, "other splits than it asked for"),
        (forget, "other splits than it asked for"),
        (lambda m: kinds.TreeShapes(m.left, m.owner[:1], m.split), "incomplete trees"),
    ],
    ids=["more", "fewer", "none", "deeper", "repeated", "exchanged", "forgotten", "incomplete"],
)
def test_trees_of_another_shape_than_was_asked_for_are_refused(backend: str, change: Any, words: str) -> None:
    """A holder keeps the trees for predictions to come: scores of other trees would show other conditions."""
    with pytest.raises(PartyFailed, match=words):
        lie("bank", only(kinds.TreeShapes, change), backend=backend)


def test_splits_of_one_depth_are_asked_for_at_once() -> None:
    """Two splits that were asked for in one request are not told to be at different depths, or of two rounds."""
    rules = boost_programs.make_rules(plain_settings(VerticalBoostConfig(trees=2, depth=2)))
    root = {"left": [1, 0, 0], "owner": [1, -1, -1], "split": [0, -1, -1]}
    below = {"left": [1, 3, 0, 0, 0], "owner": [0, 1, -1, -1, -1], "split": [0, 1, -1, -1, -1]}
    assert find_false_trees([root, below], 1, 1, [0, 1], rules) == ""
    assert "at another depth" in find_false_trees([root, below], 1, 1, [0, 0], rules)
    both = {
        "left": [1, 3, 5, 0, 0, 0, 0],
        "owner": [0, 1, 1, -1, -1, -1, -1],
        "split": [0, 0, 1, -1, -1, -1, -1],
    }
    alone = {"left": [0], "owner": [-1], "split": [-1]}
    assert find_false_trees([both, alone], 1, 1, [0, 0], rules) == ""
    assert "at another depth" in find_false_trees([both, alone], 1, 1, [0, 1], rules)


ONE = 1 << 44  # a row's count, in the word of its Hessian


def spike(m: kinds.MaskedVectors) -> kinds.MaskedVectors:
    """Gradients from which the cells of 36 rows could be read: a bit of each above all gradients."""
    values = m.values.clone()
    values[0, :36] += 1 << torch.arange(27, 63)
    return kinds.MaskedVectors(values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (only(kinds.MaskedVectors, spike), "gradients that the agreed loss does not have"),
        (
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values - ONE)),
            "sums with more rows than there are|gradients that the agreed loss does not have",
        ),
        (
            only(kinds.MaskedVectors, lambda m: kinds.MaskedVectors(m.values + 9 * ONE)),
            "sums with more rows than there are|gradients that the agreed loss does not have",
        ),
        (
            only(kinds.SumRequest, lambda m: kinds.SumRequest(m.vectors, [-1], [0], m.columns)),
            "a tree that begins with",
        ),
        (
            only(kinds.SumRequest, lambda m: kinds.SumRequest(m.vectors, [-1, -1], [0, 0], m.columns)),
            "neither roots nor the two children of a node",
        ),
    ],
    ids=["bits", "fewer than none", "more than all", "a node as a root", "rows without a parent"],
)
def test_the_helper_refuses_gradients_and_nodes_that_no_agreed_tree_has(change: Any, words: str) -> None:
    """With reveal="splits" the helper opens the sums, so it sees what the holders cannot."""
    with pytest.raises(PartyFailed, match=words):
        lie("bank", change, reveal="splits")


def test_nodes_are_roots_or_two_siblings_of_one_parent() -> None:
    """Otherwise the helper would search rows of the label holder's choice, which no parent has."""
    assert list(find_roots([-1, -1], [0, 1])) == [True, True]
    assert list(find_roots([-1, 0, 1, -1], [0, 0, 1, 1])) == [False] * 4
    for parents, news in (
        ([-1, -1], [0, 0]),  # two that are summed, of no parent
        ([0], [0]),  # a sibling alone
        ([-1, 0, 1], [0, 0, 0]),
        ([0, 1], [0, 0]),
        ([-1, 0, -1, 0], [0, 0, 1, 1]),  # a parent that is split twice
    ):
        assert find_roots(parents, news) is None


def honest_level(**options: Any) -> tuple[Any, ...]:
    """The words of a root and of two children of 300 rows over columns of 3 and 2 cells, and their rules."""
    rules = boost_programs.make_rules(
        plain_settings(VerticalBoostConfig(**{"reveal": "splits", "min_rows": 5, **options}))
    )
    rng = np.random.default_rng(0)
    g, h = rng.integers(-(1 << 26), 1 << 26, ROWS), rng.integers(1, 1 << 24, ROWS)
    cells = np.stack([rng.integers(0, 3, ROWS), 3 + rng.integers(0, 2, ROWS)], axis=1)
    left = np.arange(ROWS) < 100
    sums = np.zeros((3, 5, 2), np.int64)
    for node, inside in enumerate((np.ones(ROWS, bool), left, ~left)):
        for column in range(2):
            np.add.at(sums[node], cells[inside, column], np.stack([g, h + ONE], axis=1)[inside])
    return sums, np.array([True, False, False]), rules, (g, h, cells)


def test_honest_sums_pass_and_a_node_of_one_row_does_not() -> None:
    sums, is_root, rules, (g, h, cells) = honest_level()
    assert find_false_sums(sums, [3, 2], is_root, ROWS, rules) == ""
    one = np.zeros((1, 5, 2), np.int64)
    for cell in cells[7]:
        one[0, cell] = g[7], h[7] + ONE
    sibling = sums[:1] - one  # as the helper computes it
    both = np.concatenate([one, sibling])
    assert find_false_sums(both, [3, 2], np.array([False, False]), ROWS, rules) == (
        "a node of 1 rows; a leaf must have 5"
    )
    assert "begins with 1 rows" in find_false_sums(one, [3, 2], np.array([True]), ROWS, rules)
    # a sibling that is no part of its parent
    outside = sums[1:2] - sums[2:3]
    assert "fewer than none" in find_false_sums(outside, [3, 2], np.array([False]), ROWS, rules)
    # some rows are held out: a root has fewer, but not one
    held = honest_level(held_out=0.5)[2]
    assert find_false_sums(sums[:1], [3, 2], np.array([True]), ROWS, held) == ""
    assert "begins with 1 rows" in find_false_sums(one, [3, 2], np.array([True]), ROWS, held)


def test_columns_that_add_up_to_other_sums_are_refused_by_the_helper() -> None:
    """A holder that moves a share between cells of one column shows in the others."""
    change = only(kinds.PaddedSums, lambda m: kinds.PaddedSums(m.values + torch.arange(m.values.shape[1])))
    for liar in ("shop", "bank"):
        with pytest.raises(PartyFailed, match="do not add up to those of other columns"):
            lie(liar, change, reveal="splits")


def test_scores_are_opened_to_the_receiver_alone_and_by_the_values_of_training() -> None:
    """Products of conditions are sums of values; what everybody else sees is uniform. A label holder that enters other
    values than those of training gets numbers that are none of the sums which they would give.
    """
    g = torch.Generator().manual_seed(0)
    names, key, leaves = ["a", "b", "c"], bytes(range(32)), 12
    own = {n: torch.randint(0, 2, (50, leaves), generator=g) for n in names}
    values = torch.randint(-(2**40), 2**40, (leaves,), generator=g)
    mask = draw_mask(key, leaves)
    outputs = [k % 2 for k in range(leaves)]

    def start(receiver: str, entered: torch.Tensor) -> dict[str, Any]:
        started: dict[str, Any] = {
            n: functools.partial(
                add_leaves,
                names=names,
                helper="h",
                receiver=receiver,
                own=own[n],
                outputs=outputs,
                values=entered if n == "a" else values - mask,
                mask=mask if n == "a" else None,
                base=0.5 if n == "a" else 0.0,
            )
            for n in names
        }
        return {**started, "h": functools.partial(help_leaves, names=names, key=key)}

    recorder = Recorder()
    results = recorder.run_sync(start("b", values))
    factors = [own["a"] * values, own["b"], own["c"]]
    assert torch.equal(results["b"], ideal(factors, outputs, 0.5))
    assert results["a"] is None
    assert results["c"] is None
    assert results["h"] == 50
    sent = [(to, decode(f)) for _, to, _, f in recorder.tap.frames]
    kinds_of_c = {m.kind for to, m in sent if to == "c"}
    assert kinds_of_c == {"TapeKey", "MaskedFactors", "Corrections", "LeafTape"}
    for to in ("a", "c"):
        words = [m.values for t, m in sent if t == to and "values" in m.forms]
        assert looks_uniform([v for w in words for v in (w if isinstance(w, list) else [w])])
    # the attack: powers of two as values would show which leaves a row is in
    edited = torch.tensor([1 << (2 * k + 8) for k in range(leaves)])
    found = InProcess().run_sync(start("a", edited))["a"]
    wanted = ideal([own["a"] * edited, own["b"], own["c"]], outputs, 0.5)
    inside = own["a"] * own["b"] * own["c"]
    touched = torch.stack([inside[:, k::2].sum(1) > 0 for k in range(2)], 1)
    # a uniform word equals the wanted one with probability 2^-64; rows without a leaf have c_L of 0 in sum only
    assert not bool((found == wanted).any())
    assert bool(touched.any())


def test_policies_are_checked_before_anything_is_sent() -> None:
    settings = plain_settings(VerticalBoostConfig(trees=50, depth=5, min_rows=5, backend="he"))
    policy = BoostPolicy(min_rows=10, max_trees=20, max_depth=4, reveal="splits", backends=("shares",))
    with pytest.raises(QueryRefused) as refused:
        check_policy(policy, settings, "helper")
    for words in ("min_rows is 5", "trees is 50", "depth is 5", "requires 'splits'", "Nothing was sent"):
        assert words in str(refused.value)
    assert "backend is 'he', which may be 'he', and this party accepts 'shares'" in str(refused.value)
    agreed = {**settings, "trees": 20, "depth": 4, "min_rows": 10}
    for backend, helper, accepted in (
        ("auto", "helper", ("shares",)),  # the label holder might choose 'he'
        ("auto", "", ("shares",)),
        ("shares", "helper", ("he",)),
    ):
        with pytest.raises(QueryRefused, match="this party accepts"):
            check_policy(BoostPolicy(backends=accepted), {**agreed, "backend": backend}, helper)
    check_policy(BoostPolicy(backends=("he",)), {**agreed, "backend": "auto"}, "")
    check_policy(
        policy,
        {**settings, "trees": 20, "depth": 4, "min_rows": 10, "reveal": "splits", "backend": "auto"},
        "helper",
    )


def test_damaged_parts_are_refused(tmp_path) -> None:
    frames, y = tables()
    ids = np.arange(ROWS)
    with_ids = {n: f.assign(id=ids) for n, f in frames.items()}
    with_ids["bank"]["y"] = y.astype(int)
    model = tacit.boost.train(with_ids, on="id", label="y", trees=1, depth=2)
    place = model.save(tmp_path / "model")
    file = place / "bank" / "part.json"
    content = json.loads(file.read_text())
    tree = content["trees"][0]
    for change in (
        {"kind": "regression"},
        {"party": "nobody"},
        {"objective": "ranking"},
        {"outputs": 0},
        {"labels": ["0"]},
        {"trees": [{**tree, "left": [0] * len(tree["left"])}]},
        {"trees": [{**tree, "value": [float("nan")] * len(tree["left"])}]},
        {"trees": [{**tree, "owner": [7] * len(tree["left"])}]},
        {"splits": [{"column": "a", "missing_left": True, "below": 123.0}]},
        {"splits": [{"column": "b"}]},
        {"bins": {"features": [], "merge": [[0]]}},
    ):
        file.write_text(json.dumps({**content, **change}))
        with pytest.raises(BadData, match="is no part of boosted trees, or it is damaged"):
            read_any(file.parent)
    file.write_text("[")
    with pytest.raises(BadData, match="cannot be read"):
        read_any(file.parent)


def test_edited_leaf_values_stop_a_joint_prediction_and_show_nothing(tmp_path, monkeypatch) -> None:
    """The label holder writes 2^k into leaf k of its file, so that each new person's score would name the leaf."""
    frames, y = tables()
    ids = [f"p{k}" for k in range(ROWS)]
    parties = {n: f.assign(id=ids) for n, f in frames.items()}
    parties["bank"]["y"] = y.astype(int)
    trained = tacit.boost.train(parties, on="id", label="y", trees=1, depth=2, bins=8, min_rows=5)
    trained.save(tmp_path / "parts")
    files = {}
    for name, frame in parties.items():
        files[name] = str(tmp_path / f"{name}.csv")
        frame.drop(columns="y", errors="ignore").head(60).to_csv(files[name], index=False)
    predict_here(tmp_path / "parts", files, tmp_path / "honest.csv")
    file = tmp_path / "parts" / "bank" / "part.json"
    part = json.loads(file.read_text())
    tree = part["trees"][0]
    leaf = [k for k, owner in enumerate(tree["owner"]) if owner == -1]
    for power, node in enumerate(leaf):
        tree["value"][node] = float(2**power)
    honest_mark = read_any(tmp_path / "parts" / "bank").mark
    file.write_text(json.dumps(part))
    with pytest.raises(PartyFailed, match="parts of different runs"):
        predict_here(tmp_path / "parts", files, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    # a program that does not check itself: the others' shares are of the values of training
    before = BoostPart.mark
    monkeypatch.setattr(BoostPart, "mark", property(lambda p: honest_mark if p.has_label else before.fget(p)))
    predict_here(tmp_path / "parts", files, tmp_path / "out.csv")
    made = pd.read_csv(tmp_path / "out.csv")["p(1)"].to_numpy()
    wanted = 1 / (1 + np.exp(-(part["base"] + 2.0 ** np.arange(len(leaf)))))
    # words are uniform in ±2^31: within 2^-20 of one of 4 values with a probability below 1e-14 for 60 rows
    assert len(leaf) == 4
    margins = np.log(np.clip(made, 1e-300, None)) - np.log(np.clip(1 - made, 1e-300, None))
    near = np.abs(margins[:, None] - (part["base"] + 2.0 ** np.arange(4))[None]) < 2.0**-20
    assert not near.any(), (made, wanted)

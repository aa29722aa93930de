"""Parties that deviate, and questions that add up, in a join whose membership stays shared."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.crypto import okvs
from tacit.errors import BadParameter, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs.vertical import join_shares
from tacit.jobs.vertical.join_shares import SecretTable
from tacit.mpc import shared_join
from tacit.mpc.shared_join import RowShape
from tacit.mpc.shared_logistic import LogisticStart, check_start
from tacit.mpc.shared_moments import ColumnScales
from tacit.parties.conformance import Tap
from tacit.protocols import psi_circuit, psi_oprf
from tacit.protocols.psi_circuit import CircuitLayout
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

SESSION = b"s" * 32


def run_match(
    mine: np.ndarray, theirs: np.ndarray, receiver: Any = None, change: tuple[type, Any] | None = None
) -> tuple[dict[str, Any], Tap]:
    sender: Any = functools.partial(
        psi_circuit.sender,
        digests=theirs,
        payload=np.zeros((len(theirs), 0), np.uint64),
        other="receiver",
        theirs=len(mine),
        session=SESSION,
    )
    if change is not None:
        sender = meddled(sender, change[0], lambda held, m: [change[1](m)])
    receiver = receiver or functools.partial(
        psi_circuit.receiver, digests=mine, other="sender", theirs=len(theirs), session=SESSION, width=0
    )
    tap = Tap()
    return InProcess().run_sync(tap.on({"receiver": receiver, "sender": sender})), tap


def matches(made: dict[str, Any]) -> set[int]:
    """The receiver's rows that are matched, in the clear."""
    same = made["receiver"].words[:, 0] == made["sender"].words[:, 0]
    return set(made["receiver"].rows[same].tolist())


def test_a_receiver_with_a_known_id_in_the_same_bin_learns_whether_the_sender_has_another() -> None:
    """What the module states: both ids' words of that bin are equal exactly if the sender has both."""
    theirs = digests(range(500))
    layout = CircuitLayout(100, 500, SESSION, 0)
    bins, _ = layout.hash_all(digests(range(1000)))
    for wanted in (7, 700):  # an id of the sender's, and another
        known = next(k for k in range(500) if k != wanted and bins[k, 0] == bins[wanted, 0])
        asked = digests([wanted, known])

        async def attacker(me: Any, asked: np.ndarray = asked) -> Any:
            _, keys = layout.hash_all(asked)
            own = np.ascontiguousarray(keys[:, 0])  # two keys for one bin, where an honest party has one
            vole = await psi_oprf.connect_receiver(me, "sender", SESSION)
            values = await psi_oprf.send_store(me, "sender", layout, vole, 0, own)
            parts = []
            while sum(map(len, parts)) < layout.hint:
                parts.append(np.frombuffer((await me.recv("sender", psi_circuit.Hint)).entries, np.uint64))
            return psi_circuit._read_hint(layout, own, values, np.concatenate(parts).reshape(-1, 1))

        made, _ = run_match(np.zeros((100, 16), np.uint8), theirs, attacker)
        one, other = made["receiver"][:, 0].tolist()
        assert (one == other) == (wanted < 500)


def test_a_receiver_cannot_ask_in_all_three_bins_of_its_ids() -> None:
    """The store has entries for 1.3·n + 104 keys, and three keys for each id are more."""
    layout, ids = CircuitLayout(300, 300, SESSION, 0), digests(range(300))
    keys = layout.hash_all(ids)[1].reshape(-1, 16)
    with pytest.raises(ProtocolError, match="could not be solved"):
        okvs.encode(keys, layout.targets(keys), layout.key("store"), os.urandom, layout.room)


def test_a_sender_that_sends_a_wrong_table_can_hide_matches_and_sees_nothing() -> None:
    honest, honest_tap = run_match(digests(range(30)), digests(range(20, 60)))
    assert matches(honest) == set(range(20, 30))
    for entries in (os.urandom, bytes):
        change = psi_circuit.Hint, lambda m, e=entries: replace(m, entries=e(len(m.entries)))
        made, tap = run_match(digests(range(30)), digests(range(20, 60)), change=change)
        assert matches(made) == set()
        assert [len(f) for f in tap.view("sender")] == [len(f) for f in honest_tap.view("sender")]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, first=m.first + 1),
        lambda m: replace(m, entries=m.entries[:-8]),
        lambda m: replace(m, entries=b""),
    ],
)
def test_a_table_of_another_size_is_refused(change: Any) -> None:
    with pytest.raises(PartyFailed, match=r"first entry, bytes of the hint"):
        run_match(digests(range(30)), digests(range(40)), change=(psi_circuit.Hint, change))


N = 150


def tables() -> dict[str, pd.DataFrame]:
    """All of the first 60 are shared, and one of those in 'north'."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(N)], "owed": rng.normal(500, 100, N).round(2)})
    frame["region"] = np.where((np.arange(N) == 5) | (np.arange(N) > 110), "north", "south")
    frame["income"] = rng.normal(3000, 400, N).round(2)
    return {"bank": frame[["id", "income", "region"]], "office": frame[["id", "owed"]].iloc[:60]}


@pytest.fixture(scope="module")
def left() -> SecretTable:
    return tacit.join(tables(), on="id", reveal="shares", how="left")


def test_a_sum_over_a_group_with_one_matched_person_is_not_shown(left: SecretTable) -> None:
    """40 people of the bank are in the north; one of them owes the office money, and the sum would be hers."""
    by = left.total("owed", by="region")
    assert by["total"].isna().all()  # with the total of all, the south would tell it, too
    assert left.total("income", by="region")["total"].notna().all()
    assert left.total("owed") == round(tables()["office"].owed.sum(), 2)


def test_a_count_of_matched_people_is_shown_only_if_the_others_are_enough_too(left: SecretTable) -> None:
    by = left.count_above("office.matched", 0, by="region")
    assert np.isnan(by.loc["north", "count"])  # one of 40


@pytest.mark.parametrize("flag", [lambda ids: ids == "p5", lambda ids: ids != "p5"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_column_about_one_person_opens_no_moments(how: str, flag: Any) -> None:
    """Its product with another column would be that person's value there, or follow from it."""
    frames = tables()
    frames["office"]["flag"] = flag(frames["office"].id).astype(int)
    frames["bank"]["spike"] = np.arange(N) % 7 + 1e6 * (frames["bank"].id == "p5")
    table = tacit.join(frames, on="id", reveal="shares", how=how)
    table.describe(["income", "owed"])
    for columns in (["income", "flag"], ["owed", "spike"]):
        with pytest.raises(QueryRefused, match="Or a column is about few people"):
            table.describe(columns)


def test_moments_of_a_left_join_need_people_without_a_match() -> None:
    """Sums over all less those over matched people are about the others."""
    frames = tables()
    frames["bank"] = frames["bank"].iloc[:65]
    table = tacit.join(frames, on="id", reveal="shares", how="left")
    with pytest.raises(QueryRefused, match="Or fewer than the minimum are not matched"):
        table.describe(["income", "owed"])


def test_thresholds_cannot_be_moved_by_a_second_question(left: SecretTable) -> None:
    left.count_above("income", 3000)
    for again in (
        lambda: left.count_above("income", 3001),
        lambda: left.count_above("-income", -3001),
        lambda: left.total("income", above=3000),
    ):
        with pytest.raises(QueryRefused, match="another question with thresholds of this measure"):
            again()


def test_a_group_of_one_person_with_the_weight_of_ten_passes_the_minimum(
    left: SecretTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stated: inputs are not verified, so a first party that deviates can open one person's value."""
    honest = join_shares.prepare

    def prepare(queries: Any, terms: Any, who: str, frame: Any, side: Any, decimals: int) -> Any:
        measures, groups = honest(queries, terms, who, frame, side, decimals)
        if side.own is not None:
            groups = [(["one"], 10 * (side.own == 5).long().reshape(1, -1))]
        return measures, groups

    monkeypatch.setattr(join_shares, "prepare", prepare)
    office = tables()["office"]
    assert left.total("office.owed", by="region").loc["one", "total"] == pytest.approx(10 * office.owed[5])


def test_the_helper_sees_shapes_and_names_of_groups() -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    table.total("owed", by="region")
    table.describe()
    seen = {line.kind for line in table.ledger.seen if line.party == "helper"}
    assert seen == {"RowShape", "QuerySettings", "GroupNames", "ColumnScales"}


def match_programs(change: tuple[str, type, Any]) -> dict[str, Any]:
    names, ids = ("bank", "office"), digests(range(20))
    words = torch.zeros(20, 1, dtype=torch.int64)
    programs: dict[str, Any] = {
        "bank": functools.partial(join_shares.match_first, names=names, helper="h", digests=ids, width=1),
        "office": functools.partial(
            join_shares.match_second, names=names, helper="h", digests=ids, payload=words
        ),
        "h": functools.partial(join_shares.help_match, names=names),
    }
    who, kind, alter = change
    programs[who] = meddled(programs[who], kind, lambda held, m: [alter(m)])
    return programs


@pytest.mark.parametrize("field", ["bins", "bits", "words"])
def test_rows_of_another_shape_are_refused(field: str) -> None:
    change = "office", RowShape, lambda m: replace(m, **{field: getattr(m, field) + 1})
    with pytest.raises(PartyFailed, match="has rows of another shape"):
        InProcess().run_sync(match_programs(change))


@pytest.mark.parametrize("shape", [(-1, 40, 0), (5, 400, 0), (2**40, 40, 0), (5, 40, 2**20)])
def test_a_helper_refuses_shapes_that_no_join_has(shape: tuple[int, int, int]) -> None:
    async def tell(me: Any) -> None:
        await me.send("h", RowShape(*shape))

    helper = functools.partial(shared_join.help_match, names=("bank", "office"))
    with pytest.raises(PartyFailed, match="has rows of another shape"):
        InProcess().run_sync({"bank": tell, "office": tell, "h": helper})


def test_scales_of_other_columns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    honest = join_shares.shared_moments.holder

    async def holder(me: Any, **more: Any) -> Any:
        if me.name != "office":
            return await honest(me, **more)
        program = functools.partial(honest, **more)
        return await meddled(program, ColumnScales, lambda held, m: [replace(m, exponents=[10**6])])(me)

    monkeypatch.setattr(join_shares.shared_moments, "holder", holder)
    with pytest.raises(PartyFailed, match="sent scales of other columns"):
        table.describe(["owed"])


def start_of(people: int = 60, labeled: int = 20, label: int = 0, transform: Any = None) -> LogisticStart:
    transform = torch.ones(2, 1, dtype=torch.int64) if transform is None else transform
    return LogisticStart(people, labeled, label, transform)


@pytest.mark.parametrize(
    "start",
    [
        start_of(labeled=3),  # a label that few people have: their rows would be known
        start_of(labeled=55),
        start_of(people=2**40),
        start_of(label=7),
        start_of(transform=torch.zeros(50, 50).long()),
        start_of(transform=torch.full((2, 1), 2**40)),
        start_of(transform=torch.ones(2, 1)),
    ],
)
def test_starts_of_a_logistic_regression_that_no_join_has_are_refused(start: LogisticStart) -> None:
    check_start("bank", start_of(), 1)
    with pytest.raises(ProtocolError, match="'bank' started a logistic regression over"):
        check_start("bank", start, 1)


def test_one_person_is_never_enough() -> None:
    table = tacit.join(tables(), on="id", reveal="shares")
    with pytest.raises(BadParameter, match=r"at least 10 \(minimum\)"):
        table.enough(1)
    with pytest.raises(BadParameter, match="minimum is 1"):
        tacit.join(tables(), on="id", reveal="shares", minimum=1)

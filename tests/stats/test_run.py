"""Programs of sums on every runtime: the same bits, also after a kill."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadParameter, PartyFailed, ProtocolError
from tacit.guard import SecAgg
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import QueryNotAgreed, SumContract
from tacit.jobs.stats.parties import coordinator, member
from tacit.jobs.stats.run import run_sums
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.processes import Processes
from tacit.stats.tables import from_plain, to_plain
from tests.stats.programs import Variance, dying_member

FRAMES = {
    "north": pd.DataFrame({"x": [1.0, None, 2.5]}),
    "south": pd.DataFrame({"x": [6.0]}),
    "west": pd.DataFrame({"x": [0.1, 1e9, -3.0]}),
}
PROGRAM = Variance("x")


def test_simulation_messages_and_processes_give_the_same_bits():
    pooled = pd.concat(FRAMES.values())["x"]
    runs = [run_sums(PROGRAM, FRAMES, runtime=r) for r in ("cohort", "inprocess", "processes")]
    assert {value for value, _ in runs} == {runs[0][0]}
    assert runs[0][0] == pytest.approx((pooled.mean(), pooled.var()), rel=1e-14)
    assert [{line.how for line in ledger.seen} for _, ledger in runs] == [
        {"ideal"},
        {"executed"},
        {"executed"},
    ]


def test_an_active_adversary_costs_signatures_and_gives_the_same_bits():
    active = run_sums(PROGRAM, FRAMES, runtime="inprocess", guard=SecAgg(threshold=1.0, adversary="active"))
    curious = run_sums(PROGRAM, FRAMES, runtime="inprocess")
    assert active[0] == curious[0] == run_sums(PROGRAM, FRAMES)[0]

    def key_bytes(ledger):
        return sum(line.bytes for line in ledger.seen if line.kind == "AdvertisedKeys")

    assert key_bytes(active[1]) >= key_bytes(curious[1]) + 64 * len(FRAMES)  # Ed25519


@pytest.mark.parametrize("moment", ["mask", "send"])
def test_a_party_that_is_killed_in_a_sum_and_restarted_changes_no_bit(tmp_path, moment):
    contract = SumContract.of(PROGRAM, list(FRAMES))
    notes: list[str] = []
    programs = {
        name: functools.partial(
            dying_member if name == "south" else member,
            contract=contract.text,
            table=to_plain(frame),
            state=str(tmp_path),
            **({"marker": str(tmp_path / "killed"), "moment": moment} if name == "south" else {}),
        )
        for name, frame in FRAMES.items()
    }
    programs["server"] = functools.partial(coordinator, contract=contract, program=PROGRAM, note=notes.append)
    result = Processes(restart=True).run_sync(programs, here=["server"])["server"]
    assert (tmp_path / "killed").exists()
    assert any("'south' was restarted" in note for note in notes)
    assert result == run_sums(PROGRAM, FRAMES)[0]


def test_a_party_compares_the_whole_contract_before_it_reads_a_row():
    agreed = SumContract.of(PROGRAM, list(FRAMES))
    offered = SumContract.of(Variance("y"), list(FRAMES))
    with pytest.raises(QueryNotAgreed, match=r'options.column \(agreed: "x", offered: "y"\)'):
        agreed.check_offer(offered.text)
    assert QueryNotAgreed.outside == "it has not agreed to this query"
    with pytest.raises(QueryNotAgreed, match="is not one"):
        agreed.check_offer("[" * 10_000)
    agreed.check_offer(agreed.text)


def test_another_query_of_the_coordinator_is_refused_over_messages():
    from tacit.runtimes.inprocess import InProcess

    agreed, offered = (SumContract.of(Variance(c), list(FRAMES)) for c in ("x", "y"))
    programs = {
        name: functools.partial(member, contract=agreed.text, table=to_plain(f), state=None)
        for name, f in FRAMES.items()
    }
    programs["server"] = functools.partial(coordinator, contract=offered, program=Variance("y"))
    with pytest.raises(PartyFailed, match="not the agreed one"):
        InProcess().run_sync(programs)


def test_answers_survive_on_disk_and_cannot_be_reset(tmp_path):
    first = AnswerFile(tmp_path, "south", "c" * 64)
    first.bind_table("rows")
    first.keep(0, b"sent", np.array([1, -5]))
    second = AnswerFile(tmp_path, "south", "c" * 64)
    sent, vector = second.find(0)
    assert (sent, vector.tolist()) == (b"sent", [1, -5])
    assert second.find(1) is None
    with pytest.raises(ProtocolError, match="have changed"):
        second.bind_table("other rows")
    with pytest.raises(ProtocolError, match="another process"):
        first.keep(0, b"other", np.array([2, 2]))
    assert AnswerFile(tmp_path, "north", "c" * 64).find(0) is None


def test_a_recorded_step_is_in_one_opened_sum(tmp_path):
    file = AnswerFile(tmp_path, "south", "c" * 64)
    assert file.commit(0).upload(["a", "b"])
    assert not AnswerFile(tmp_path, "south", "c" * 64).commit(0).upload(["a", "b", "c"])
    assert AnswerFile(tmp_path, "south", "c" * 64).commit(0).upload(["b", "a"])
    assert file.commit(0).reveal()
    assert not AnswerFile(tmp_path, "south", "c" * 64).commit(0).reveal()
    assert not file.commit(0).upload(["a", "b"])


def test_a_table_survives_its_plain_form():
    frame = pd.DataFrame(
        {
            "n": [1, 2],
            "x": [0.5, np.nan],
            "ok": pd.array([True, None], dtype="boolean"),
            "text": ["007", None],
            "kind": pd.Categorical(["b", "a"]),
            "k": pd.array([3, None], dtype="Int64"),
        }
    )
    back = from_plain(to_plain(frame))
    assert back["text"].tolist() == ["007", None]
    assert back["kind"].tolist() == ["b", "a"]
    assert back["n"].tolist() == [1, 2]
    assert back["ok"].isna().tolist() == [False, True]
    assert back["k"].to_numpy()[0] == 3
    assert np.isnan(back["k"].to_numpy()[1])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"runtime": "cloud"}, "runtime is 'cloud'"),
        ({"guard": "none"}, "guard is 'none'"),
        ({"guard": SecAgg(neighbors=2)}, "neighbors"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(BadParameter, match=match):
        run_sums(PROGRAM, FRAMES, **options)


def test_a_single_party_has_no_secure_sum():
    with pytest.raises(BadParameter, match="a sum of one party is its own"):
        run_sums(PROGRAM, {"a": FRAMES["north"]}, runtime="inprocess")


def _run_without(absent, wait, threshold=1.0):
    """Run parties of which one never starts."""
    contract = SumContract.of(PROGRAM, list(FRAMES), threshold=threshold)
    programs = {
        name: functools.partial(member, contract=contract.text, table=to_plain(frame), state=None)
        for name, frame in FRAMES.items()
        if name != absent
    }

    async def never_starts(me):
        return None

    programs[absent] = never_starts
    programs["server"] = functools.partial(
        coordinator, contract=contract, program=PROGRAM, wait=wait, within=0.2
    )
    return InProcess().run_sync(programs)["server"]


def test_a_coordinator_waits_as_long_as_it_is_told_for_parties_to_start():
    with pytest.raises(PartyFailed, match=r"'west' did not start within 0\.2 s, so 'server' stopped"):
        _run_without("west", 0.2)


def test_below_a_threshold_of_1_enough_parties_are_enough():
    found = _run_without("west", 60.0, threshold=0.6)
    both = pd.concat([FRAMES["north"], FRAMES["south"]])["x"]
    assert found == pytest.approx((both.mean(), both.var()), rel=1e-14)

"""The ledger adds up, survives JSON, and reads as sentences."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import BadParameter, BadRun
from tacit.numbers import size
from tacit.parties.ledger import Ledger, Seen, Spend
from tacit.parties.message import Message


class LedgerUpload(Message, reveals="the party's weighted model update"):
    n: int


names = st.sampled_from(["server", "p0", "p1"])
events = st.lists(
    st.tuples(
        names,
        names,
        st.sampled_from(["Up", "Down"]),
        st.integers(0, 5),
        st.integers(0, 10**6),
        st.sampled_from(["executed", "ideal"]),
    )
)


def book(entries) -> Ledger:
    ledger = Ledger()
    for party, sender, kind, count, total, how in entries:
        ledger.record(party, sender, kind, f"what {kind} says", count=count, bytes=total, how=how)
    return ledger


@given(events, events)
def test_merging_two_ledgers_is_recording_both_in_one(first, second):
    merged = book(first)
    merged.merge(book(second))
    assert merged == book(first + second)


@given(events)
def test_nothing_is_lost_by_adding_up(entries):
    ledger = book(entries)
    assert sum(s.count for s in ledger.seen) == sum(e[3] for e in entries)
    assert sum(s.bytes for s in ledger.seen) == sum(e[4] for e in entries)
    assert len(ledger.seen) == len({(p, s, k, h) for p, s, k, _, _, h in entries})


@given(events)
def test_a_ledger_survives_json(entries):
    ledger = book(entries)
    ledger.spend(Spend("Gaussian", 1.5, 1e-5, "client", "the server", "Poisson"))
    ledger.spend(Spend("none", math.inf, 0, "client", "anyone", "no", note="nothing is guaranteed."))
    ledger.stamp("NOT PRIVATE: because")
    text = json.dumps(ledger.to_dict(), allow_nan=False)
    assert Ledger.from_dict(json.loads(text)) == ledger


def test_the_dictionary_has_the_fields_of_ledger_json():
    ledger = Ledger()
    ledger.record("server", "p0", LedgerUpload, count=20, bytes=12345)
    ledger.spend(Spend("Gaussian", 2.5, 1e-5, "client", "the server", "Poisson"))
    assert ledger.to_dict() == {
        "seen": [
            {
                "party": "server",
                "sender": "p0",
                "kind": "LedgerUpload",
                "reveals": "the party's weighted model update",
                "count": 20,
                "bytes": 12345,
                "how": "executed",
            }
        ],
        "spent": [
            {
                "mechanism": "Gaussian",
                "epsilon": 2.5,
                "delta": 1e-5,
                "unit": "client",
                "adversary": "the server",
                "sampling": "Poisson",
            }
        ],
        "stamps": [],
    }


def test_a_printed_ledger_is_sentences_with_the_stamp_on_top():
    ledger = Ledger()
    ledger.record("server", "p0", LedgerUpload, count=20, bytes=12345)
    ledger.record(
        "server", "each of 1000 parties", "Masked", "the sum", count=1000, bytes=4_000_000, how="ideal"
    )
    ledger.spend(Spend("Gaussian", 2.5941, 1e-5, "client", "the server", "Poisson"))
    ledger.stamp("NOT PRIVATE: because")
    ledger.stamp("NOT PRIVATE: because")
    assert str(ledger).splitlines() == [
        "NOT PRIVATE: because",
        "server saw 20 LedgerUpload from p0 (12.3 kB): the party's weighted model update",
        "server saw 1000 Masked from each of 1000 parties (4 MB): the sum [ideal: computed in one place by "
        "the simulation, not executed]",
        "spent ε = 2.594, δ = 1e-05 for each client, by Gaussian, against the server, assuming Poisson "
        "sampling.",
    ]
    assert str(Ledger()) == "nobody saw anything, and no privacy was spent."


def test_many_parties_are_one_line_in_print_and_many_in_the_table():
    ledger = Ledger()
    for i in range(50):
        ledger.record("server", f"p{i}", LedgerUpload, bytes=100)
        ledger.record(f"p{i}", "server", "Model", "the model", count=2, bytes=10)
    assert str(ledger).splitlines() == [
        "server saw 50 LedgerUpload from 50 parties (p0, p1, p2, …) (5 kB): the party's weighted model "
        "update",
        "50 parties (p0, p1, p2, …) saw 100 Model from server (500 B): the model",
    ]
    table = ledger.table()
    assert len(table) == 100
    assert table["bytes"].sum() == 5500
    assert list(Ledger().table().columns) == list(table.columns) == list(Seen.__dataclass_fields__)


def test_bad_entries_are_refused():
    ledger = Ledger()
    with pytest.raises(BadParameter, match="reveals is None; it must be a sentence"):
        ledger.record("a", "b", "Word")
    with pytest.raises(BadParameter, match="how is 'guessed'; it must be 'executed' or 'ideal'"):
        ledger.record("a", "b", LedgerUpload, how="guessed")
    with pytest.raises(BadParameter, match="at least 0"):
        ledger.record("a", "b", LedgerUpload, count=-1)
    with pytest.raises(BadParameter, match="epsilon is -1; it must be"):
        Spend("Gaussian", -1, 0, "client", "anyone", "Poisson")
    with pytest.raises(BadParameter, match="delta is 2; it must be a probability"):
        Spend("Gaussian", 1, 2, "client", "anyone", "Poisson")
    for broken in (
        {},
        {"seen": [{}], "spent": [], "stamps": []},
        {"seen": [], "spent": [{"epsilon": "x"}], "stamps": []},
    ):
        with pytest.raises(BadRun, match="not a ledger"):
            Ledger.from_dict(broken)


def test_sizes_are_human_readable():
    said = {
        0: "0 B",
        999: "999 B",
        1000: "1 kB",
        12345: "12.3 kB",
        5 * 10**6: "5 MB",
        2 * 10**9: "2 GB",
        3 * 10**12: "3 TB",
    }
    assert {n: size(n) for n in said} == said


def test_the_ledger_alone_loads_neither_torch_nor_msgpack():
    import subprocess
    import sys

    code = (
        "import sys, tacit.parties; tacit.parties.Ledger(); sys.exit(bool({'torch', 'msgpack', 'pandas'} "
        "& set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

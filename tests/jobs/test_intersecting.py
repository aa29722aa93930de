"""tacit.psi and tacit.align as users call them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, BadParameter
from tacit.jobs.vertical.psi import align_rows
from tacit.parties.party import Party
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.processes import Processes


def test_the_receivers_own_spelling_is_returned() -> None:
    found = tacit.psi(receiver=["A-17 ", "B-23", "007"], sender=["a-17", "7", "x"])
    assert found.value == ["A-17 "]
    assert found.size == 1
    assert found.sizes == {"receiver": 3, "sender": 3}
    assert found.rows["receiver"].tolist() == [0]
    assert "sender" not in found.rows
    assert found.method == "dh"


def test_rows_of_both_are_in_one_order_and_the_original_rows() -> None:
    """Duplicates and empty ids shift rows: what comes back counts in the rows that were given."""
    left, right = ["", "c", "a", "a", "b"], ["x", "b", "", "A", "c"]
    found = tacit.psi(left, right, reveal="both")
    assert [left[r] for r in found.rows["receiver"]] == [right[r].lower() for r in found.rows["sender"]]
    assert sorted(found.value) == ["a", "b", "c"]
    assert found.rows["receiver"].tolist() == [r for r in found.rows["receiver"].tolist() if r in (1, 2, 4)]
    assert len(found.notes) == 3
    assert (
        found.notes[0]
        == "the ids of 'receiver': 1 of 5 ids are missing (empty; row 1); these rows are left out."
    )


def test_size_and_sum() -> None:
    assert tacit.psi(range(20), range(5, 40), reveal="size").value == 15
    found = tacit.psi(
        ["a", "b"],
        ["b", "c", "a"],
        reveal="sum",
        values=np.array([10, 100, 1000]),
        policy=tacit.PsiPolicy(min_ids=2, min_overlap=2),
    )
    assert (found.value, found.size) == (1010, 2)
    assert found.rows == {}


def test_a_large_set_takes_the_oprf_and_gives_the_same_rows() -> None:
    ids = [f"p{i}" for i in range(10_500)]
    found = tacit.psi(ids, [*ids[5000:], "q"], reveal="both")
    assert found.method == "oprf"
    assert sorted(found.rows["receiver"].tolist()) == list(range(5000, 10_500))
    assert np.array_equal(found.rows["receiver"], found.rows["sender"] + 5000)


def test_three_tables_are_aligned() -> None:
    tables = {
        "bank": ["c", "a", "b", "d"],
        "shop": pd.Series(["b", "z", "c"]),
        "city": (i for i in ["x", "b", "C", "a"]),
    }
    found = tacit.align(tables)
    assert sorted(found.value) == ["b", "c"]
    order = [["c", "a", "b", "d"][r] for r in found.rows["bank"]]
    assert (
        [["b", "z", "c"][r] for r in found.rows["shop"]]
        == [["x", "b", "c", "a"][r] for r in found.rows["city"]]
        == order
    )
    assert found.sizes == {"bank": 4, "shop": 3, "city": 4}
    said = [line.reveals for line in found.ledger.seen if line.kind == "Conclusion"]
    assert said == [
        "how many ids each holds ('shop' 3, 'city' 4), and which of its own ids all share (2 of 4)",
        "that 'bank' holds 4 ids, and which of its own ids all share (2 of 3)",
        "that 'bank' holds 4 ids, and which of its own ids all share (2 of 4)",
    ]
    alone = tacit.align({"a": ["x"], "b": ["x"], "c": ["x"]}, reveal="leader")
    assert list(alone.rows) == ["a"]
    assert alone.size == 1


@pytest.mark.parametrize("parties", [["a", "b"], ["b", "a", "c"]])
def test_a_program_that_continues_gets_its_rows_in_the_common_order(parties: list[str]) -> None:
    ids = {"a": ["1", "2", "3"], "b": ["3", "9", "1"], "c": ["0", "1", "", "3"]}

    def program(name: str) -> Any:
        async def run(me: Party) -> list[str]:
            return [ids[name][row] for row in (await align_rows(me, ids[name], parties=parties)).rows]

        return run

    made = InProcess().run_sync({name: program(name) for name in parties})
    assert sorted(made["a"]) == ["1", "3"]
    assert all(rows == made["a"] for rows in made.values())


def test_between_processes() -> None:
    found = tacit.psi(range(50), range(25, 99), reveal="both", runtime=Processes())
    assert sorted(found.value) == list(range(25, 50))
    assert np.array_equal(found.rows["receiver"], found.rows["sender"] + 25)
    assert tacit.psi(
        range(20), range(25), reveal="sum", values=[*range(25)], runtime=Processes()
    ).value == sum(range(20))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"method": "rsa"}, "psi: method is 'rsa'; it must be one of 'auto', 'dh', 'oprf'"),
        (
            {"reveal": "everything"},
            "psi: reveal is 'everything'; it must be one of 'receiver', 'both', 'size', 'sum'",
        ),
        ({"reveal": "sum"}, "psi: values is 'None'; it must be given with reveal='sum', and only then"),
        ({"values": [1]}, "psi: values is '1 numbers'; it must be given with reveal='sum', and only then"),
        ({"policy": 3}, "psi: policy is 3; it must be a tacit.PsiPolicy(…)"),
        (
            {"policy": tacit.PsiPolicy(reveal=("all",))},
            "psi: reveal is ('all',); it must be one or more of 'receiver', 'both', 'size', 'sum'",
        ),
        ({"policy": tacit.PsiPolicy(min_overlap=-1)}, "psi: min_overlap is -1; it must be a whole number"),
        ({"names": ("a", "a")}, "psi: names is ('a', 'a'); it must be different words, one for each party"),
        (
            {"runtime": "cohort"},
            "psi: runtime is 'cohort'; it must be one of 'inprocess', 'processes', or tacit.InProcess(…) or",
        ),
        (
            {"reveal": "sum", "values": [1, 2]},
            "the values of 'sender': there are 2 for 1 rows; there must be one for each.",
        ),
        (
            {"reveal": "sum", "values": [1.5]},
            "the values of 'sender' are float64; the sum is exact, so they must be integers.",
        ),
    ],
)
def test_unsupported_requests_are_refused_in_one_sentence(more: dict[str, Any], text: str) -> None:
    with pytest.raises((BadParameter, BadData), match=re.escape(text)):
        tacit.psi(["a"], ["a"], **more)


def test_values_of_a_repeated_id_are_refused() -> None:
    with pytest.raises(BadData, match="duplicate or empty ids"):
        tacit.psi(["a"], ["a", "A"], reveal="sum", values=[1, 2])


@pytest.mark.parametrize(
    ("ids", "more", "text"),
    [
        ({"a": ["x"]}, {}, "align: 1 party given; at least two are needed"),
        (
            {"a": ["x"], "b": ["x"]},
            {"reveal": "size"},
            "align: reveal is 'size'; it must be one of 'leader', 'all'",
        ),
        (
            {"a": ["x"], "b": ["x"], "c": ["x"]},
            {"method": "rsa"},
            "align: method is 'rsa'; it must be one of 'auto', 'dh', 'oprf'",
        ),
    ],
)
def test_what_cannot_be_aligned(ids: dict[str, list[str]], more: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameter, match=re.escape(text)):
        tacit.align(ids, **more)

"""Models between three real processes with a party that is killed and restarted.

An exact model has the bits of the simulation. A private one ends, and the restarted party answers with the
noise that it drew before: its answers are those on its disk. Each test starts three processes.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.cox import make_program
from tacit.jobs.stats.parties import coordinator, member
from tacit.protocols.sum_program import ideal
from tacit.runtimes.processes import Processes
from tacit.stats.private_hazards import STEPS, PrivateCoxProgram
from tacit.stats.tables import to_plain

from .programs import dying_member
from .references import ll_data, split

EXACT = make_program(
    "age + fin", "week", "arrest", "efron", (), False, None, 4.0, 1, 0.0, None, {}, "drop", 25, 5, "w"
)
PRIVATE = PrivateCoxProgram(
    "age + fin",
    "week",
    "arrest",
    (13.0, 26.0, 52.0),
    3,
    5.0,
    1e-6,
    {"age": (15.0, 50.0), "fin": (0.0, 1.0)},
    {},
)


@pytest.mark.parametrize("program", [EXACT, PRIVATE], ids=["weighted cox", "private cox"])
def test_a_killed_and_restarted_party_changes_nothing(program, tmp_path):
    rows = ll_data("rossi")
    fed = split(rows.assign(w=1 + rows["prio"] % 3), 3)
    contract = SumContract.of(program, list(fed))
    notes: list[str] = []
    programs = {
        name: functools.partial(
            dying_member if name == "p1" else member,
            contract=contract.text,
            table=to_plain(frame),
            state=str(tmp_path),
            **({"marker": str(tmp_path / "killed"), "moment": "send"} if name == "p1" else {}),
        )
        for name, frame in fed.items()
    }
    programs["server"] = functools.partial(coordinator, contract=contract, program=program, note=notes.append)
    found = Processes(restart=True).run_sync(programs, here=["server"])["server"]
    assert (tmp_path / "killed").exists()
    assert any("'p1' was restarted" in note for note in notes)
    if program is EXACT:
        expected = ideal(program, fed)
        assert found.beta.tobytes() == expected.beta.tobytes()
        assert found.covariance.tobytes() == expected.covariance.tobytes()
        assert found.loglik == expected.loglik
        return
    assert np.isfinite(found.beta).all()
    for file in tmp_path.glob("sums-*.jsonl"):  # one vector for each step, also of the party that died
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        answers = [line["step"] for line in lines if line["what"] == "answer"]
        assert sorted(answers) == list(range(STEPS))

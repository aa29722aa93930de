"""Attacks on a party in `tacit.boost`: a server that sends bins, trees and nodes of its choice.

What is sent down decides whose gradients are summed. A party cannot know the sum over all parties, so what
protects its rows is what it does with a message: it refuses what the agreed program never sends, it answers a
step once, and with min_party_rows it adds nothing of a node in which it has few rows.
"""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.boost import trees
from tacit.boost.agreement import Terms
from tacit.boost.program import BoostProgram, to_down
from tacit.boost.xgboost_json import to_json
from tacit.config.boost import BoostConfig
from tacit.errors import BadData, PartyFailed, ProtocolError, QueryRefused, TacitError
from tacit.jobs.boost.deployed import _received
from tacit.jobs.boost.query import BoostPolicy, check_policy
from tacit.jobs.stats.contract import QueryNotAgreed, SumContract
from tacit.jobs.stats.parties import coordinator, party
from tacit.jobs.stats.policy import StatsPolicy, check_least
from tacit.protocols.checked_sums import OPENED, Checker, make_tags
from tacit.protocols.sum_program import KeptAnswers, SumStep, _answer
from tacit.runtimes.inprocess import InProcess
from tacit.stats import level_sketch
from tests.boost.tables import make_program, make_table

SESSION = bytes(8)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(400)


def first_step(program: BoostProgram, table: pd.DataFrame) -> tuple[int, dict]:
    """Run the steps before the first tree; return the number of the first tree step and what it sends."""
    steps = program.coordinate()
    step, down = 0, next(steps)
    while "growing" not in down:
        down = steps.send(program.local(step, table, down))
        step += 1
    return step, dict(down)


def ask(down: dict, tree: trees.Tree, node: int, round_: int = 0, finished: bytes = b"") -> dict:
    return to_down(agreed_of(down), round_, finished, [tree], [(0, node)])


def agreed_of(down: dict) -> dict:
    return {name: down[name] for name in ("agreed", "levels") if name in down}


def isolate(program: BoostProgram, table: pd.DataFrame, person: int) -> tuple[dict, trees.Tree, int, int]:
    """Return a tree whose splits lead to one person, and the node that has nobody else."""
    _, down = first_step(program, table)
    bins = program._read(down).agreed.bins
    codes = bins.encode(table)
    tree, node, rows = trees.Tree(), 0, np.ones(len(table), bool)
    for f in (0, 0, 1, 1, 3, 3):
        code = int(codes[person, f])
        cut = code if (rows & (codes[:, f] > code)).any() else code - 1
        if rows.sum() == 1 or not 0 <= cut < bins.widths[f]:
            continue
        left, right = tree.divide(node, trees.Split(f, cut, False, 1.0))
        goes_left = codes[:, f] <= cut
        node, rows = (left, rows & goes_left) if goes_left[person] else (right, rows & ~goes_left)
    return down, tree, node, int(rows.sum())


def test_a_node_with_few_rows_gets_nothing_of_a_party(table):
    """Without min_party_rows, the histogram of the node is the gradient of one person: the attack works."""
    open_program, closed = make_program(depth=6), make_program(depth=6, min_party_rows=5)
    for program in (open_program, closed):
        down, tree, node, count = isolate(program, table, person=int(table["a"].argmax()))
        assert count < 5
        step = len(program.about.stages)
        histogram = program.local(step, table, ask(down, tree, node)).reshape(-1, 3)
        rows = histogram[:, 2].sum()
        assert rows == (count * 4 if program is open_program else 0)  # four columns
    assert not histogram.any()


def test_a_small_node_is_not_the_difference_of_its_parent_and_its_sibling(table):
    """The parent minus one child is the other: with few rows in one, a party adds to neither."""
    program = make_program(depth=6, min_party_rows=20)
    step, down = first_step(program, table)
    bins = program._read(down).agreed.bins
    codes = bins.encode(table)[:, 0]
    cut = int(np.sort(codes)[4])  # five to a few people go left
    tree = trees.Tree()
    left, right = tree.divide(0, trees.Split(0, cut, False, 1.0))
    few = int((codes <= cut).sum())
    assert 0 < few < 20
    counts = [
        program.local(step, table, ask(down, t, n)).reshape(-1, 3)[: bins.widths[0] + 1, 2].sum()
        for t, n in ((trees.Tree(), 0), (tree, left), (tree, right))
    ]
    assert counts == [len(table), 0, 0]


def attack(name: str, program: BoostProgram, table: pd.DataFrame) -> dict:
    """Return a message that the agreed program never sends."""
    _, down = first_step(program, table)
    root = trees.Tree()
    agreed = json.loads(bytes(down["agreed"].tolist()))

    def with_agreed(**changes) -> dict:
        text = json.dumps({**agreed, **changes}).encode()
        return {**down, "agreed": torch.tensor(list(text), dtype=torch.uint8)}

    deep = trees.Tree()
    for node in (0, 1, 3, 5, 7):
        deep.divide(node, trees.Split(0, 1, False, 1.0))
    finished = trees.to_bytes([root] * program.trees)
    match name:
        case "another round than the trees":
            return ask(down, root, 0, round_=1)
        case "more rounds than agreed":
            return ask(down, root, 0, round_=program.trees, finished=finished)
        case "a larger tree than agreed":
            return ask(down, deep, 9)
        case "a node outside the tree":
            return ask(down, root, 7)
        case "a node twice":
            return to_down(agreed_of(down), 0, b"", [root], [(0, 0), (0, 0)])
        case "two growing trees":
            return to_down(agreed_of(down), 0, b"", [root, root], [(0, 0)])
        case "other columns":
            return with_agreed(bins=agreed["bins"][:2])
        case "a column of another kind":
            return with_agreed(bins=[{"name": b["name"], "cuts": [0.0]} for b in agreed["bins"]])
        case "more bins than agreed":
            cuts = list(np.linspace(-1, 1, 200))
            return with_agreed(bins=[{"name": "a", "cuts": cuts}, *agreed["bins"][1:]])
        case "an infinite unit":
            return with_agreed(scale=[1e308 * 10, 1.0])
        case "a weight for one class":
            return with_agreed(weights=[0.0, 1.0])
        case "no bins":
            return {**down, "agreed": torch.zeros(0, dtype=torch.uint8)}
        case "more nodes than are sent":
            return {**down, "growing": torch.tensor([0, 0, 0, 0, 255, 255, 255, 255], dtype=torch.uint8)}
        case "no round":
            return {**down, "growing": torch.zeros(7, dtype=torch.uint8)}
        case "half a tree":
            return {**down, "growing": down["growing"][:-1]}
        case "no trees":
            return {k: v for k, v in down.items() if k != "trees"}
        case "nodes as numbers with a point":
            return {**down, "growing": down["growing"].double()}
    raise AssertionError(name)


ATTACKS = [
    "another round than the trees",
    "more rounds than agreed",
    "a larger tree than agreed",
    "a node outside the tree",
    "a node twice",
    "two growing trees",
    "other columns",
    "a column of another kind",
    "more bins than agreed",
    "an infinite unit",
    "a weight for one class",
    "no bins",
    "more nodes than are sent",
    "no round",
    "half a tree",
    "no trees",
    "nodes as numbers with a point",
]


@pytest.mark.parametrize("name", ATTACKS)
def test_what_the_agreed_program_never_sends_is_refused(table, name):
    program = make_program(trees=2, depth=2, bins=64)
    step, good = first_step(program, table)
    assert len(program.local(step, table, good)) == program.length(step, good)
    message = attack(name, program, table)
    with pytest.raises(BadData):
        program.local(step, table, message)


def answering(program: BoostProgram, table: pd.DataFrame) -> tuple[KeptAnswers, int, dict]:
    """A party that has answered every step up to the first tree."""
    answers, steps = KeptAnswers(), program.coordinate()
    step, down = 0, dict(next(steps))
    while "growing" not in down:
        _, vector = _answer("p", program, table, answers, SumStep(step, SESSION, SESSION, down))
        step, down = step + 1, dict(steps.send(vector))
    _answer("p", program, table, answers, SumStep(step, SESSION, SESSION, down))
    return answers, step, down


def test_a_step_is_answered_once_and_repeated_to_the_bit(table):
    program = make_program(depth=3)
    answers, step, down = answering(program, table)
    kept = answers.find(step)
    assert kept is not None
    again = _answer("p", program, table, answers, SumStep(step, bytes(range(8)), SESSION, down))
    assert np.array_equal(again[1], kept[1])
    other = trees.Tree()
    left, _ = other.divide(0, trees.Split(0, 3, False, 1.0))
    with pytest.raises(ProtocolError, match="A step is answered once"):
        _answer("p", program, table, answers, SumStep(step, SESSION, SESSION, ask(down, other, left)))
    with pytest.raises(ProtocolError, match="before step"):
        _answer("p", program, table, answers, SumStep(step + 2, SESSION, SESSION, down))
    with pytest.raises(ProtocolError, match="the agreed program has"):
        _answer("p", program, table, answers, SumStep(program.max_steps, SESSION, SESSION, down))


def test_trees_that_were_exchanged_midway_are_computed_from_the_start(table):
    """A party remembers margins between steps; other finished trees must not be added to them."""
    program = make_program(depth=3)
    step, down = first_step(program, table)
    grown = trees.Tree()
    grown.divide(0, trees.Split(0, 5, False, 1.0))
    grown.value[1:] = [0.5, -0.5]
    other = trees.Tree()
    other.divide(0, trees.Split(1, 9, False, 1.0))
    other.value[1:] = [-0.25, 0.25]
    messages = [ask(down, trees.Tree(), 0, 1, trees.to_bytes([tree])) for tree in (grown, other, grown)]
    found = [program.local(step + k, table, message) for k, message in enumerate(messages)]
    fresh = [make_program(depth=3).local(step + 1, table.copy(), message) for message in messages]
    for ours, theirs in zip(found, fresh):
        assert np.array_equal(ours, theirs)
    assert not np.array_equal(found[0], found[1])


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"model": torch.zeros(3)},
        {"model": torch.tensor([123], dtype=torch.uint8)},
        {"model": torch.tensor(list(b"[]"), dtype=torch.uint8)},
    ],
)
def test_a_model_that_is_none_is_not_written(sent):
    with pytest.raises(TacitError):
        _received(sent, ("a",))


def test_an_owner_requires_what_the_server_cannot_lower():
    policy = BoostPolicy(min_party_rows=5, min_rows=10, max_trees=50, max_depth=4)
    with pytest.raises(QueryRefused) as error:
        check_policy(policy, BoostConfig(label="y", trees=100))
    for part in ("min_party_rows is 1", "min_rows is 1", "trees is 100", "depth is 6"):
        assert part in str(error.value)
    check_policy(policy, BoostConfig(label="y", trees=50, depth=4, min_rows=10, min_party_rows=5))
    check_policy(policy, BoostConfig(label="y", trees=50, depth=4, epsilon=1.0))


# --- levels of a category -----------------------------------------------------------------------------------


def patients(party: int) -> pd.DataFrame:
    """A party's rows: an id of each row, a rare diagnosis, and a city that many rows have."""
    rng = np.random.default_rng(party)
    frame = pd.DataFrame(
        {
            "id": [f"patient {party}-{k}" for k in range(40)],
            "diagnosis": ["healthy"] * 38 + ["measles"] * 2,
            "city": rng.choice(["riga", "oslo"], 40),
            "ill": np.tile(["no", "yes"], 20),
        }
    )
    frame.loc[0, "diagnosis"] = "plague"  # one row at every party, three over all
    return frame


PATIENTS = {f"p{k}": patients(k) for k in range(3)}
COLUMNS_OF_PATIENTS = ("id", "diagnosis", "city")


def levels_program(**options) -> BoostProgram:
    terms = Terms(COLUMNS_OF_PATIENTS, "ill", "binary", COLUMNS_OF_PATIENTS, **options)
    return BoostProgram(terms.to_dict(), trees=2, depth=2)


def run_levels(program: BoostProgram, changes: dict | None = None) -> tuple[list, list]:
    """Run the parties of an agreed program; return what was sent and the sums, which a server changes."""
    contract = SumContract.of(program, list(PATIENTS))
    sent, sums = [], []

    class Lying(BoostProgram):
        def coordinate(self):
            steps = program.coordinate()
            down = next(steps)
            while True:
                sent.append({**down, **(changes or {}).get(len(sums), {})})
                sums.append((yield sent[-1]))
                try:
                    down = steps.send(sums[-1])
                except StopIteration as end:
                    return end.value

    lying = Lying(**{f.name: getattr(program, f.name) for f in dataclasses.fields(program)})
    programs = {
        name: functools.partial(party, contract=contract, read=lambda f=frame: f, answers=KeptAnswers())
        for name, frame in PATIENTS.items()
    }
    InProcess().run_sync(
        {**programs, "server": functools.partial(coordinator, contract=contract, program=lying)}
    )
    return sent, sums


def test_values_that_one_row_of_a_party_has_are_in_no_message():
    """Before, the first sum opened the id of every person, and the diagnosis that one person has."""
    sent, sums = run_levels(levels_program())
    assert level_sketch.decode(sums[0]) == [
        (1, "healthy"), (1, "measles"), (2, "oslo"), (2, "riga"), (3, "no"), (3, "yes"),
    ]  # fmt: skip
    texts = b"".join(bytes(v.reshape(-1).view(torch.uint8).tolist()) for down in sent for v in down.values())
    assert b"measles" in texts
    assert b"patient" not in texts
    assert b"plague" not in texts
    open_sums = run_levels(levels_program(min_level_rows=1))[1]
    assert sum(text.startswith("patient") for _, text in level_sketch.decode(open_sums[0])) == 120


def name_levels(down: dict, column: str, levels: list[str]) -> dict:
    """Return the vectors of a step with levels of the server's choice."""
    found = json.loads(bytes(down["levels"].tolist()))
    out = {"levels": torch.tensor(list(json.dumps({**found, column: levels}).encode()), dtype=torch.uint8)}
    if "agreed" in down:
        agreed = json.loads(bytes(down["agreed"].tolist()))
        for feature in agreed["bins"]:
            if feature["name"] == column:
                feature["levels"] = levels
        out["agreed"] = torch.tensor(list(json.dumps(agreed).encode()), dtype=torch.uint8)
    return out


def test_a_server_cannot_ask_for_a_value_that_it_knows_or_guesses():
    """With the level "plague", the root's histogram counts the people who have it, and who of them is ill."""
    program = levels_program()
    sent, _ = run_levels(program)
    assert "growing" in sent[2]
    guesses = ["healthy", "plague"]
    first, tree = ({**sent[k], **name_levels(sent[k], "diagnosis", guesses)} for k in (1, 2))
    rows = program.local(2, PATIENTS["p0"], tree).reshape(-1, 3)[:, 2]
    assert sorted(rows[2:6]) == [0, 1, 2, 37]  # missing, plague, measles, healthy: what it would be told
    for step, changes, refusal in (
        (1, first, r"step 2 does not follow from the sums before: 'levels' is not what follows"),
        (2, tree, r"step 3 does not follow from the sums before: 'levels' is not what followed before"),
    ):
        with pytest.raises(PartyFailed, match=refusal):
            run_levels(program, {step: changes})
    with pytest.raises(BadData, match="levels of 'diagnosis' that were not found before"):
        program.local(2, PATIENTS["p0"], {**tree, "levels": sent[2]["levels"]})
    with pytest.raises(BadData, match="'levels' of this step is missing"):
        program.local(2, PATIENTS["p0"], {name: v for name, v in tree.items() if name != "levels"})


def test_a_server_cannot_claim_that_another_sum_of_levels_was_opened():
    """The sum of levels has tags under a key that the server has not: a sum with "plague" in it is refused."""
    program = levels_program()
    contract = SumContract.of(program, list(PATIENTS))
    assert contract.tables["checked"] == 1
    kept = KeptAnswers()
    kept.keep_key(bytes(32))
    checker = Checker("p0", program, list(PATIENTS), kept, 1)
    vectors = [program.local(0, frame, {}) for frame in PATIENTS.values()]
    tagged = [
        np.concatenate([v, make_tags(bytes(32), 0, list(PATIENTS), u, v)]) for u, v in zip(PATIENTS, vectors)
    ]
    total = np.sum(tagged, axis=0)
    added = level_sketch.encode([(1, "plague")])
    forged = total.copy()
    forged[: len(added)] += added
    steps = program.coordinate()
    next(steps)
    down = dict(steps.send(forged[: len(added)].copy()))
    assert "plague" in bytes(down["levels"].tolist()).decode()
    with pytest.raises(ProtocolError, match="its tags are wrong"):
        checker.check(1, {**down, OPENED: torch.from_numpy(forged)})
    with pytest.raises(ProtocolError, match="'levels' is not what follows"):
        checker.check(1, {**down, OPENED: torch.from_numpy(total)})


def test_a_server_cannot_lower_the_rows_that_a_level_needs():
    """The number is in the contract, and the owner's policy bounds it."""
    mine, theirs = (SumContract.of(levels_program(min_level_rows=n), list(PATIENTS)) for n in (2, 1))
    with pytest.raises(QueryNotAgreed, match=r"min_level_rows \(agreed: 2, offered: 1\)"):
        mine.check_offer(theirs.text)
    with pytest.raises(QueryRefused, match="min_level_rows is 1, and this party requires 2"):
        check_policy(BoostPolicy(), BoostConfig(label="ill", min_level_rows=1))
    with pytest.raises(QueryRefused, match="min_level_rows is 2, and this party requires 5"):
        check_policy(BoostPolicy(min_level_rows=5), BoostConfig(label="ill"))
    declared = BoostConfig(label="ill", min_level_rows=1, labels=["no", "yes"], categories={"id": ["a", "b"]})
    check_policy(BoostPolicy(), declared)
    with pytest.raises(QueryRefused, match="min_level_rows = 1, and this party's policy requires 2"):
        check_least(StatsPolicy(), {"min_level_rows": 1})


def test_rare_values_are_one_level_in_training_and_in_prediction():
    """A simulation, secure sums and the pooled rows of the found levels give the same trees."""
    models = [
        tacit.boost.train(PATIENTS, label="ill", trees=2, depth=2, min_child_weight=0, runtime=runtime)
        for runtime in ("cohort", "inprocess")
    ]
    texts = [json.dumps(to_json(model.booster)) for model in models]
    assert texts[0] == texts[1]
    assert "plague" not in texts[0]
    assert "patient" not in texts[0]
    rare = patients(0)[:1]
    other = rare.assign(diagnosis="a value that nobody had", id="nobody")
    assert models[0].predict(rare) == models[0].predict(other)
    assert models[0].notes[0].startswith("'id' is not used: no party has 2 rows with one of its values")
    woe = [
        tacit.boost.woe(PATIENTS, label="ill", min_rows=1, min_share=0, runtime=runtime).table("diagnosis")
        for runtime in ("cohort", "inprocess")
    ]
    assert woe[0].equals(woe[1])
    assert "plague" not in woe[0].to_string()

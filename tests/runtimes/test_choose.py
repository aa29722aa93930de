"""The `runtime` argument means the same in every verb: a name, an object, or None."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import BadParameter
from tacit.runtimes.choose import choose_runtime

X, Y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 2
LEFT = tacit.data.from_arrays(X.numpy(), Y.numpy())
ROWS = pd.DataFrame({"age": [20, 30, 40, 50]})
CASH = pd.DataFrame({"id": range(20), "cash": range(20)})
PEOPLE = pd.DataFrame({"name": ["Ada Byron", "Alan Turing"]})
IDS = tacit.data.from_frame(
    pd.DataFrame({"id": list("abcd"), "x": [1.0, 2, 3, 4], "ill": ["no", "yes"] * 2}),
    label="ill",
    id="id",
    test_fraction=0,
)
VERBS: dict[str, Any] = {
    "run_programs": lambda runtime: tacit.run_programs({"a": return_name}, runtime=runtime),
    "psi": lambda runtime: tacit.psi(["x", "y"], ["y"], runtime=runtime),
    "align": lambda runtime: tacit.align({"a": ["x"], "b": ["x"], "c": ["x"]}, runtime=runtime),
    "splitnn": lambda runtime: tacit.splitnn(
        {"a": X}, {"b": Y}, configuration="vanilla", epochs=1, runtime=runtime
    ),
    "regress": lambda runtime: tacit.regress(
        {"a": X[:, :1], "b": X[:, 1:]}, {"b": Y}, solver="newton", test_fraction=0, runtime=runtime
    ),
    "join": lambda runtime: tacit.join({"a": CASH, "b": CASH}, on="id", runtime=runtime),
    "link": lambda runtime: tacit.link(PEOPLE, PEOPLE, fields={"name": "name"}, runtime=runtime),
    "infer": lambda runtime: tacit.infer(torch.nn.Linear(2, 1), X, runtime=runtime),
    "ftl": lambda runtime: tacit.ftl(IDS, IDS, epochs=0, first_epochs=0, runtime=runtime),
    "synthesize": lambda runtime: tacit.synthesize(
        {"a": ROWS, "b": ROWS}, {"age": tacit.synth.integer(0, 120)}, runtime=runtime
    ),
    "train": lambda runtime: tacit.train(LEFT.split(3, seed=0), rounds=1, runtime=runtime),
    "plan": lambda runtime: tacit.plan(LEFT.split(3, seed=0), rounds=1, runtime=runtime),
    "gossip": lambda runtime: tacit.gossip(
        LEFT.split(3, seed=0), graph=tacit.graphs.ring(3), rounds=1, runtime=runtime
    ),
    "pate": lambda runtime: tacit.pate(
        LEFT.split(3, seed=0), public=X, queries=1, teachers=3, runtime=runtime
    ),
}


async def return_name(me: Any) -> str:
    return str(me.name)


def test_every_verb_with_a_runtime_is_tested_here() -> None:
    functions = {name: getattr(tacit, name) for name in tacit.__all__}
    verbs = [
        n
        for n, f in functions.items()
        if inspect.isfunction(f) and "runtime" in inspect.signature(f).parameters
    ]
    assert sorted(verbs) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_runtime_is_refused_with_one_text_in_every_verb(verb: str) -> None:
    text = "runtime is 'process'; it must be one of "
    if verb in ("train", "plan", "gossip"):  # which can also simulate without messages
        text += "'cohort', 'inprocess', 'processes', or tacit.Processes(…)."
    else:
        text += (
            "'inprocess', 'processes', or tacit.InProcess(…) or tacit.Processes(…). Did you mean 'processes'?"
        )
    with pytest.raises(BadParameter, match=re.escape(text)):
        VERBS[verb]("process")


@pytest.mark.parametrize("verb", ["run_programs", "psi", "align", "splitnn", "synthesize"])
def test_a_name_and_an_object_give_the_same(verb: str) -> None:
    by_name, by_object, default = (VERBS[verb](r) for r in ("inprocess", tacit.InProcess(), None))
    values = [
        r.metrics if verb == "splitnn" else r.sample(5) if verb == "synthesize" else r.value
        for r in (by_name, by_object, default)
    ]
    assert repr(values[0]) == repr(values[1]) == repr(values[2])


def test_the_name_of_processes_starts_processes() -> None:
    assert tacit.psi(["x", "y"], ["y"], runtime="processes").value == ["y"]


def test_a_deadline_is_refused_where_every_party_must_stay() -> None:
    with pytest.raises(
        BadParameter, match=r"psi: deadline of the runtime is 5\.0; it must be None\. No party"
    ):
        tacit.psi(["x"], ["x"], runtime=tacit.Processes(deadline=5.0))
    assert choose_runtime("train", tacit.Processes(deadline=5.0)) == tacit.Processes(deadline=5.0)


def test_the_old_name_of_run_programs_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"tacit\.run is now tacit\.run_programs"):
        run = tacit.run
    assert run is tacit.run_programs

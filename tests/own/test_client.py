"""A user's own training script is a party of a simulated federation: same model, same guards, clear errors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard
from tacit.errors import BadJob, BadParameter, PartyFailed, TacitError
from tacit.jobs.train.client import Client, run_script
from tacit.jobs.train.own_loop import Exchange, LoopMember
from tacit.jobs.train.plan import make_plan, make_task
from tacit.parameter_shapes import ParameterShapes, to_module
from tests.own.scripts import sklearn_loop, torch_loop

SCRIPTS = Path(__file__).with_name("scripts")
FED = data.digits().split(3, seed=0)
OPTIONS: dict[str, Any] = {
    "rounds": 2,
    "batch_size": None,
    "local_epochs": 2,
    "algorithm": algorithms.FedAvg(lr=0.5),
}


def script(kind: str, **more: Any) -> tacit.Script:
    return tacit.Script(str(SCRIPTS / "torch_loop.py"), (kind, "{party}"), **more)


def state(run: Any) -> dict[str, torch.Tensor]:
    return dict(run.model.state_dict())


def test_a_script_with_the_same_loop_gives_the_model_of_train() -> None:
    ours = tacit.train(FED, model=torch_loop.build("plain"), **OPTIONS)
    theirs = tacit.train(
        FED, model=torch_loop.build("plain"), client=script("plain", metrics=("loss",)), **OPTIONS
    )
    for name, value in state(ours).items():
        assert torch.allclose(state(theirs)[name], value, atol=1e-5)
    assert theirs.metrics["accuracy"] == ours.metrics["accuracy"]  # on the test set, at the server
    assert [row["client_loss"] > 0 for row in theirs.history] == [True, True]
    assert not any("client_kept" in row for row in theirs.history)  # nobody agreed to send it
    assert "its metrics (loss), in the clear" in str(theirs.ledger)
    assert not [seen for seen in theirs.ledger.seen if seen.kind == "Tested"]


def test_only_trainable_parameters_and_statistics_leave_a_script() -> None:
    model = torch_loop.build("norm")
    ours, theirs = (
        tacit.train(FED, model=model, **OPTIONS, **more)
        for more in ({"runtime": "inprocess"}, {"client": script("norm")})
    )
    for name, value in state(ours).items():
        assert torch.allclose(state(theirs)[name].float(), value.float(), atol=1e-5), name
    assert torch.equal(state(theirs)["frozen.weight"], model.frozen.weight)
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad) + 2 * 64
    assert theirs.history[-1]["bytes_up"] < 3 * (4 * numbers + 300)


def test_guards_stay_outside_of_the_script() -> None:
    stages = [guard.Clip(20.0), guard.Quantize(bits=32, stochastic=False), guard.SecAgg(threshold=0.7)]
    plain, hidden = (
        tacit.train(FED, model=torch_loop.build("plain"), client=script("plain"), guard=g, **OPTIONS)
        for g in (None, stages)
    )
    for name, value in state(plain).items():
        assert torch.allclose(state(hidden)[name], value, atol=1e-4)
    assert not [seen for seen in hidden.ledger.seen if seen.kind == "Upload"]
    private = tacit.train(
        FED,
        model=torch_loop.build("plain"),
        client=script("plain"),
        guard=[guard.Clip(0.5), guard.Noise(epsilon=5.0, delta=1e-5)],
        **OPTIONS,
    )
    (spent,) = private.ledger.spent
    assert 4.0 < spent.epsilon <= 5.0


def test_scikit_learn_and_numpy_arrays_average_as_by_hand() -> None:
    start = {"coef_": np.zeros((1, 30)), "intercept_": np.zeros(1)}
    run = tacit.train(
        ["a", "b", "c"],
        model=start,
        client=tacit.Script(str(SCRIPTS / "sklearn_loop.py"), ("{party}",), metrics=("accuracy",)),
        rounds=3,
    )
    arrays, accuracy = start, 0.0
    for _ in range(3):
        models = {}
        for party in "abc":
            x, y = sklearn_loop.rows_of(party)
            models[party] = len(y), sklearn_loop.fit(arrays, x, y), x, y
        total = sum(n for n, *_ in models.values())
        arrays = {k: sum(n * getattr(m, k) for n, m, *_ in models.values()) / total for k in start}
        accuracy = sum(n * m.score(x, y) for n, m, x, y in models.values()) / total
    for name, value in arrays.items():
        assert np.allclose(state(run)[name].numpy(), value, atol=1e-5)
    assert run.metrics == {"client_accuracy": pytest.approx(accuracy)}
    assert accuracy > 0.97


def test_an_exception_in_a_loop_ends_the_run_and_says_where() -> None:
    with pytest.raises(PartyFailed, match="party 'p1' failed: ZeroDivisionError: in row 17") as caught:
        tacit.train(FED, model=torch_loop.build("plain"), client=script("fails"), **OPTIONS)
    assert any("torch_loop.py" in note for note in caught.value.__notes__)


def test_a_script_without_a_client_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("print('nothing')\n")
    with pytest.raises(PartyFailed, match=r"empty\.py ended without a tacit\.client"):
        tacit.train(["a", "b"], model=nn.Linear(2, 1), client=tmp_path / "empty.py", rounds=1)


LEAVING = {  # scripts that end as if nothing had happened, before the run does
    "exits in the loop": ("with tacit.client() as c:\n    sys.exit()", "ended with SystemExit"),
    "hides an error": (
        "try:\n    with tacit.client() as c:\n        1 / 0\nexcept ZeroDivisionError:\n    pass",
        "ended with ZeroDivisionError",
    ),
    "never connects": ("c = tacit.client()\nsys.exit(0)", "the script of 'a' ended before the run did"),
}


@pytest.mark.parametrize("how", LEAVING)
def test_a_script_that_ends_early_with_the_code_0_fails_and_keeps_nobody_waiting(
    tmp_path: Path, how: str
) -> None:
    text, said = LEAVING[how]
    (tmp_path / "leaves.py").write_text(f"import sys\nimport tacit\n{text}\n")

    def party(exchange: Exchange) -> dict[str, Any]:
        import asyncio

        asyncio.run(exchange.fail())
        return {}

    with pytest.raises(TacitError, match=said):
        run_script(tmp_path / "leaves.py", (), Client("a", party))


# what a loop may send -----------------------------------------------------------------------------------------


def member(model: Any, **more: Any) -> LoopMember:
    client = tacit.Script("loop.py", max_rows=100, metrics=("auc",))
    p = make_plan(["a"], model=model, client=client, rounds=2, **more)
    task = make_task(p)
    settings = (p.algorithm, p.seed, 1, p.batch_size, None, None, p.rules)
    return LoopMember(Exchange("a"), p, "a", p.fed, task, *settings)


def answer(here: LoopMember, use: Any) -> Any:
    """What the party would send if its loop does `use(exchange, task)`."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(here.local(0, here.task.initial(), {}))
        except TacitError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        use(here.exchange, here.exchange.next())
    finally:
        here.exchange.abort(TacitError("over"))
        thread.join(300)
    return found[0]


GOOD: dict[str, Any] = {"weight": torch.ones(1, 2), "bias": np.ones(1)}


@pytest.mark.parametrize(
    ("weights", "rows", "metrics", "words"),
    [
        ([1.0], 5, {"auc": 0.5}, "weights is 'list'; it must be a dict of arrays"),
        ({"weight": torch.ones(1, 2)}, 5, {"auc": 0.5}, "the weights have no 'bias', which is trained"),
        (GOOD | {"bias": torch.ones(2)}, 5, {"auc": 0.5}, r"'bias' has the shape \(2,\); in this job"),
        (GOOD | {"bias": np.array([np.nan])}, 5, {"auc": 0.5}, "'bias' contains NaN or infinity"),
        (GOOD | {"bias": "one"}, 5, {"auc": 0.5}, "'bias' is 'str'; it must be a tensor or an array"),
        (GOOD, 101, {"auc": 0.5}, r"rows is 101; .* at most 100 \(max_rows of the job\)"),
        (GOOD, 0, {"auc": 0.5}, "rows is 0; it must be a whole number of at least 1"),
        (GOOD, 2.5, {"auc": 0.5}, "rows is 2.5; it must be a whole number"),
        (GOOD, 5, None, "the metrics have no 'auc', which the parties of this job send"),
        (GOOD, 5, {"auc": float("nan")}, "the metric 'auc' is nan; it must be a finite number"),
        (GOOD, 5, [0.5], "metrics is .*; it must be a dict"),
    ],
)
def test_what_a_loop_may_not_send_is_refused_and_may_be_sent_again(
    weights: Any, rows: Any, metrics: Any, words: str
) -> None:
    def use(exchange: Exchange, task: Any) -> None:
        with pytest.raises(BadParameter, match=words):
            exchange.send(weights, rows, metrics)
        exchange.send(GOOD, 5, {"auc": 0.5})

    here = member(nn.Linear(2, 1))
    weight, vectors, _ = answer(here, use)
    assert weight == 5
    assert vectors["metrics"].tolist() == [0.5]
    assert torch.allclose(vectors["delta"], 1 - here.task.initial()["w"])


def test_every_task_is_answered_once() -> None:
    def twice(exchange: Exchange, task: Any) -> None:
        exchange.send(GOOD, 5, {"auc": 0.5})
        with pytest.raises(BadParameter, match=r"round 1 is answered\. Call send once for every task"):
            exchange.send(GOOD, 5, {"auc": 0.5})

    def never(exchange: Exchange, task: Any) -> None:
        with pytest.raises(BadParameter, match="round 1 was not answered"):
            exchange.next()

    answer(member(nn.Linear(2, 1)), twice)
    assert str(answer(member(nn.Linear(2, 1)), never)) == "over"
    with pytest.raises(BadParameter, match="no task was received yet"):
        Exchange("a").send(GOOD, 5, {})


def test_a_loop_that_leaves_early_or_fails_ends_its_party() -> None:
    ends: list[str] = []

    def party(exchange: Exchange) -> dict[str, Any]:
        import asyncio

        try:
            asyncio.run(exchange.fail())
        except TacitError as error:
            ends.append(error.outside)
            raise
        return {}

    early = "the training loop ended after round 0, before the run did"
    with pytest.raises(BadParameter, match=early), Client("a", party):
        pass
    with pytest.raises(KeyError), Client("a", party):
        raise KeyError("a value of a row")
    assert ends == [
        "its own training loop ended before the run did",
        "its own training loop ended with an error (KeyError)",
    ]
    with pytest.raises(BadParameter, match="this script was not started by tacit"):
        tacit.client()


def test_the_error_of_a_party_reaches_its_loop() -> None:
    def party(exchange: Exchange) -> dict[str, Any]:
        raise BadJob("the server ended the run")

    with pytest.raises(BadJob, match="the server ended the run"), Client("a", party) as c:
        for _ in c:
            pass


# models as shapes ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.ones(4), persistent=False)


def test_the_weights_of_a_task_are_what_load_state_dict_wants() -> None:
    """A tied parameter has two names, a counter is an integer, and a transient buffer has no name at all."""
    model = Tied()
    here = member(ParameterShapes.of(model))
    assert [s.name for s in here.task.parameters] == [n for n, _ in model.named_parameters()]
    assert here.task.dim == sum(p.numel() for p in model.parameters())

    def use(exchange: Exchange, task: Any) -> None:
        model.load_state_dict(task.weights)  # strict
        with torch.no_grad():
            model.embed.weight += 2
        exchange.send(model.state_dict(), 7, {"auc": 0.5})

    weight, vectors, _ = answer(here, use)
    assert weight == 7
    assert set(vectors) == {"delta", "buffers", "metrics"}
    assert vectors["delta"].sum() == 2 * 15


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"shapes": {"a": [0]}},
        {"shapes": {"a": ["2"]}},
        {"shapes": {"a..b": [2]}},
        {"shapes": [["a", [2]], ["a", [2]]]},
        {"shapes": {"a": [2], "a.b": [2]}},
        {"shapes": {"a": [10**6, 10**6]}},
        {"shapes": {"a": [2]}, "transient": ["b"]},
        {"shapes": {"a": [2]}, "aliases": {"c": "b"}},
        {"shapes": "all"},
    ],
)
def test_bad_shapes_are_refused(table: dict[str, Any]) -> None:
    from tacit.parameters import from_table

    with pytest.raises(BadJob):
        from_table({"name": "shapes", **table}, {"shapes": ParameterShapes}, "contract, model")


def test_arrays_are_a_model() -> None:
    module = to_module({"dense.kernel": np.ones((2, 3)), "bias": [1.0, 2.0]})
    assert {k: tuple(v.shape) for k, v in module.state_dict().items()} == {
        "dense.kernel": (2, 3),
        "bias": (2,),
    }
    with pytest.raises(BadParameter, match="'kernel' is 'str'; it must be a tensor or an array"):
        to_module({"kernel": "x"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"algorithm": "Scaffold"}, "the local steps of Scaffold are tacit's own"),
        ({"algorithm": algorithms.FedAvg(option="I")}, "the local steps of FedAvg are tacit's own"),
        ({"l2": 0.1}, "l2: the loss is the script's own"),
        ({"runtime": "inprocess"}, "a script is a process of its own"),
        ({"local_steps": 3}, "the script has its own steps"),
        ({"patience": 3}, "known to their scripts only"),
        ({"client": {"max_rows": 5}}, "there is no script"),
        (
            {"client": {"path": "a.py", "metrics": ["auc"]}, "guard": guard.Clip(1.0)},
            "updates that the guard",
        ),
    ],
)
def test_what_a_script_replaces_cannot_be_asked_for(more: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        make_plan(["a", "b"], **{"model": nn.Linear(2, 1), "client": "loop.py", **more})

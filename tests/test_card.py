"""Errors that occur only on CUDA, tested without a GPU: everything that takes a `device` is compared with the CPU on
a fake GPU (card.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard, models, pace
from tacit.algorithms.types import Batch, LocalState
from tacit.engine.task import Task
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.processes import Processes

from . import card, on_a_gpu
from .own.test_inputs import federation as several_inputs
from .own.test_task_outputs import Moon
from .own.two_inputs import two_inputs


def federation(rows: int = 120) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3))).argmax(1)
    return data.from_arrays(x, y, classes=3, test=(x[:30], y[:30])).split(
        3, skew=data.Quantity(0.8), seed=0, min_size=9
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def apart(a: nn.Module, b: nn.Module) -> float:
    return max(
        float((p.cpu() - q.cpu()).abs().max())
        for p, q in zip(a.state_dict().values(), b.state_dict().values())
    )


def both(**options: Any) -> tuple[Any, Any]:
    told = {"rounds": 2, "batch_size": 16, "seed": 3, "runtime": "inprocess", "model": network, **options}
    fed = federation(45)  # a few steps a party: the card is the same in all of them
    here = tacit.train(fed, device="cpu", **told)
    with card.pretended():
        there = tacit.train(fed, device="cuda", **told)
    assert there.events[0]["device"] == "cuda"
    assert apart(here.model, there.model) < 1e-6
    return here, there


WRONG = {
    "adds": lambda x, c: x + c,
    "multiplies": lambda x, c: c @ x,
    "chooses": lambda x, c: torch.where(x > 0, c, c),
    "joins": lambda x, c: torch.cat([x, c]),
    "places of the card": lambda x, c: x[c.long()],
    "numpy": lambda x, c: c.numpy(),
    "an array": lambda x, c: np.asarray(c),
    "whole numbers": lambda x, c: c.long() @ c.long(),
    "draws into": lambda x, c: c.normal_(generator=torch.Generator()),
    "draws": lambda x, c: torch.randn(2, device="cuda", generator=torch.Generator()),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_card_refuses_what_a_card_refuses(wrong: Any) -> None:
    with card.pretended(), pytest.raises((RuntimeError, TypeError)):
        wrong(torch.ones(2, 2), torch.ones(2, 2).to("cuda"))


def test_the_card_takes_what_a_card_takes() -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with card.pretended():
        c = x.to("cuda")
        assert c.is_cuda
        assert (c @ c.T).device == torch.device("cuda:0")
        assert torch.equal(
            (c * torch.tensor(2.0))[:, [1, 2]].cpu(), 2 * x[:, [1, 2]]
        )  # a number of the CPU, and places of the CPU
        c[torch.tensor([0])] = 0
        assert float(c[0].abs().sum()) == 0
        assert float(x[0].abs().sum()) > 0
        w = torch.ones(4, device="cuda", requires_grad=True)
        (
            torch.vmap(lambda row: row @ w)(c).sum()
            + torch.randn(1, device="cuda", generator=torch.Generator("cuda"))
        ).backward()
        assert torch.allclose(w.grad.cpu(), c.sum(0).cpu())
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    "model", [models.CNN(), models.CNN(crop=2, flip=True)], ids=["plain", "moved pictures"]
)
def test_a_stack_of_convolutional_networks(model: models.CNN) -> None:
    """There the gradient is written out, and so are the answers (tacit.engine.pooled); here autograd makes
    them, client by client.
    """
    rng = np.random.default_rng(0)
    x, y = (
        torch.from_numpy(rng.normal(size=(12, 1, 8, 8)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 10, 12)),
    )
    here = Task(model.build((1, 8, 8), 10), x, y)
    w = here.initial()["w"] + torch.from_numpy(rng.normal(scale=0.05, size=(3, here.dim)).astype(np.float32))
    index = torch.from_numpy(rng.integers(0, 12, (3, 5)))

    def visit(task: Task, w: torch.Tensor, index: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return task.gradient(LocalState(w, {}, {}, w[0]), Batch(index, torch.ones(5, device=w.device), key))[
            0
        ]

    alone = torch.stack([visit(here, *client) for client in zip(w, index, torch.arange(3))])
    right = torch.stack([(here.predict(v, x).argmax(-1) == y).sum() for v in w])
    with card.pretended():
        there = Task(here.module, x.to("cuda"), y.to("cuda")).for_stacking()
        with torch.no_grad():
            got = torch.vmap(lambda *client: visit(there, *client))(
                w.to("cuda"), index.to("cuda"), torch.arange(3).to("cuda")
            )
        assert torch.allclose(got.cpu(), alone, rtol=1e-4, atol=1e-6)
        assert torch.equal(there.count_correct(w.to("cuda"), there.x, there.y).cpu(), right)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("every", [True, False])
def test_a_stack_of_networks_of_characters(every: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (60, 6))
    y = np.where((rng.random((60, 6)) < 0.2) & (np.arange(6) > 0), -1, x) if every else x[:, 2]
    fed = data.from_arrays(x, y, classes=5, tokens=True, test=(x[:20], y[:20])).split(
        4, skew=data.Quantity(0.8), seed=0, min_size=5
    )
    told: dict[str, Any] = {
        "model": models.LSTM(embedding=3, hidden=6, every=every),
        "rounds": 2,
        "batch_size": 4,
        "seed": 3,
    }
    here = tacit.train(fed, device="cpu", **told)
    with card.pretended():
        there = tacit.train(fed, device="cuda", **told)
    assert there.events[0]["runtime"] == "cohort, clients stacked"
    assert apart(here.model, there.model) < 1e-5


@pytest.mark.parametrize("options", [{"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"}])
@pytest.mark.parametrize("algorithm", [algorithms.FedAvg(lr=0.1), Moon(lr=0.1)])
def test_rows_of_several_inputs(algorithm: Any, options: Any) -> None:
    told = {"model": two_inputs, "rounds": 2, "batch_size": 8, "algorithm": algorithm, **options}
    here = tacit.train(several_inputs(), device="cpu", **told)
    with card.pretended():
        there = tacit.train(several_inputs(), device="cuda", **told)
    assert apart(here.model, there.model) < 1e-5


def test_rows_that_are_read_and_changed_while_training() -> None:
    x, y = several_inputs().rows
    fed = data.from_arrays(
        x.values(),
        y,
        transform=lambda row, rng: {**row, "numbers": row["numbers"] + torch.rand(4, generator=rng)},
    ).split(3, seed=0)
    here = tacit.train(fed, model=two_inputs, rounds=2, device="cpu")
    with card.pretended():
        there = tacit.train(fed, model=two_inputs, rounds=2, device="cuda")
    assert apart(here.model, there.model) < 1e-5


@pytest.mark.parametrize("name", list(algorithms.ALL))
def test_every_algorithm_over_messages(name: str) -> None:
    both(algorithm=algorithms.ALL[name]())


@pytest.mark.parametrize(
    "options",
    [
        {"guard": [guard.Sparsify(top_k=0.5), guard.Clip(1.0)]},
        {"pace": pace.FedBuff(buffer=2)},
        {"pace": pace.FedBuff(buffer=2), "runtime": "cohort"},
        {"aggregate": tacit.aggregate.Median()},
        {"landscape": True},
    ],
)
def test_settings_in_addition_to_the_algorithm(options: Any) -> None:
    both(model="logistic", **options)


def test_hidden_sums() -> None:
    """Not to the last bit: what is hidden is rounded by the OS's dice first."""
    told = {
        "rounds": 1,
        "model": "logistic",
        "runtime": "inprocess",
        "guard": [guard.Clip(50.0), guard.Quantize(bits=28), guard.SecAgg(threshold=0.6)],
    }
    with card.pretended():
        there = tacit.train(federation(), device="cuda", **told)
    assert apart(tacit.train(federation(), **told).model, there.model) < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"algorithm": algorithms.Scaffold(lr=0.1), "model": tacit.models.MLP(hidden=(8,))},
        {"engine": "each"},
    ],
)
def test_stacked_clients(options: Any) -> None:
    """But for recorded graphs, which only a real card can show."""
    both(runtime="cohort", **options)


def test_a_run_resumes_there(tmp_path: Any) -> None:
    told = {
        "algorithm": algorithms.FedRep(lr=0.1),
        "model": network,
        "batch_size": 16,
        "seed": 3,
        "runtime": "inprocess",
    }
    whole = tacit.train(federation(), device="cpu", rounds=3, **told)

    def stop(event: Any) -> None:
        if event.get("round") == 2:
            raise RuntimeError("stopped on purpose")

    with card.pretended():
        with pytest.raises(RuntimeError, match="stopped on purpose"):
            tacit.train(federation(), device="cuda", rounds=3, out=tmp_path / "run", watch=stop, **told)
        run = tacit.train(federation(), device="cuda", rounds=3, out=tmp_path / "run", resume=True, **told)
    assert apart(whole.model, run.model) < 1e-6


@pytest.mark.parametrize("options", [{}, {"mode": "push", "rounds": 4}])
def test_gossip(options: Any) -> None:
    told = {"model": "logistic", "graph": tacit.graphs.ring(3), "rounds": 2, **options}
    here = tacit.gossip(federation(), **told)
    with card.pretended():
        assert apart(here.model, tacit.gossip(federation(), device="cuda", **told).model) < 1e-6


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedRep"])
def test_real_parties_and_their_server(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that processes run, all in this one: a card cannot be pretended in another process."""
    told = {"algorithm": algorithms.ALL[name](lr=0.1), "rounds": 2}
    monkeypatch.setattr(
        Processes,
        "stream",
        lambda self, programs, emitter, **_: InProcess(self.seed).stream(programs, emitter),
    )
    both(runtime="processes", **told)


def test_private_training_and_teachers() -> None:
    fed = federation()
    table = data.from_arrays(
        fed.rows.x.numpy(), fed.rows.y.numpy(), classes=3, test=(fed.test.x.numpy(), fed.test.y.numpy())
    )
    private = {"model": "logistic", "epsilon": 3.0, "epochs": 1, "batch_size": 20, "insecure_seed": 1}
    taught = {
        "model": "logistic",
        "teachers": 3,
        "queries": 5,
        "aggregator": tacit.private.GNMax(sigma=3.0),
        "student": tacit.private.Student(steps=5),
    }
    here = tacit.train_private(table, **private)
    with card.pretended():
        assert apart(here.model, tacit.train_private(table, device="auto", **private).model) < 1e-5
        student = tacit.pate(
            table, device="auto", **taught
        ).student  # the noise in its teachers' votes is the OS's, so it is another one each time
    assert all(p.device.type == "cuda" and torch.isfinite(p.cpu()).all() for p in student.parameters())


def test_shares() -> None:
    with card.pretended():
        on_a_gpu.field_arithmetic("cuda")
        on_a_gpu.checked_tensors("cuda")


@pytest.mark.parametrize("name", list(on_a_gpu.PROTOCOLS))
def test_networks_on_shares(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)
    ).eval()
    with card.pretended():
        on_a_gpu.network_on_shares("cuda", name, model, torch.randn(2, 1, 4, 4), ("argmax",))


@pytest.mark.parametrize(
    "name",
    ["with a helper", *(pytest.param(n, marks=pytest.mark.slow) for n in list(on_a_gpu.PROTOCOLS)[1:])],
)
def test_tokens_on_shares(name: str) -> None:
    model, ids = on_a_gpu.shared_reader()
    with card.pretended():
        on_a_gpu.network_on_shares("cuda", name, model, ids, ("logits",))


@pytest.mark.parametrize("name", on_a_gpu.GENERATORS)
def test_generators(name: str) -> None:
    with card.pretended():
        on_a_gpu.generator(
            name,
            "cuda",
            rows=400,
            draws=100,
            epochs=3,
            **({"steps": 10, "width": 16} if name == "TabDDPM" else {"width": 16}),
        )

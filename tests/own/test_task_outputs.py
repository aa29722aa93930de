"""Own algorithms that use logits, features and labels: the same in the stack, the loop and parties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

import tacit
from tacit import algorithms, data
from tacit.algorithms import SGD, Algorithm, Batch, Upload
from tacit.algorithms.plan import identify, plan
from tacit.engine.task import Task
from tacit.errors import BadParameter
from tacit.parameters import part, real

from .test_inputs import federation, flat, two_inputs


@dataclass(frozen=True)
class Moon(Algorithm):
    """Q. Li, B. He, D. Song: "Model-Contrastive Federated Learning", CVPR 2021, algorithm 1.

    ℓ = ℓ_sup + μ·ℓ_con, where ℓ_con draws a row's features towards those of the global model and away from
    those of the client's previous model, with temperature τ.
    """

    lr: float = real(0.1, above=0, doc="η")
    mu: float = real(1.0, least=0, doc="μ")
    temperature: float = real(0.5, above=0, doc="τ")
    solver: Any = part(SGD(), doc="the local step")
    sends: ClassVar[tuple[str, ...]] = ()

    def client_state(self, w: Tensor) -> dict[str, Tensor]:
        return {"previous": w.clone()}

    def step(self, current: Any, batch: Batch, task: Any, down: Any, previous: Tensor) -> Any:
        def loss(w: Tensor) -> Tensor:
            z, far, near = (task.features(v, batch, current.buffers) for v in (w, previous, down["w"]))
            alike = (
                torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1) / self.temperature
            )
            contrast = alike.logsumexp(1) - alike[:, 0]
            return (
                task.loss(w, batch, current.buffers)
                + self.mu * (contrast * batch.live).sum() / batch.live.sum()
            )

        return self.solver.step(current, grad(loss)(current.w), self.solver.rate(self.lr, down))

    def local(self, task: Any, down: Any, mine: Any, batches: Any) -> Any:
        current = batches.fold(self.step, self.solver.start(down), task, down, mine["previous"])
        upload = Upload(batches.size, {"delta": current.w - down["w"], **current.buffers})
        return upload, {"previous": current.w}

    def merge(self, w: Tensor, state: Any, mean: Any, fraction: Any) -> Any:
        return w + mean["delta"], state


@dataclass(frozen=True)
class Distilled(Algorithm):
    """Clients keep to the global model's logits: the distillation term of FedGKD, ‖logits − teacher's‖²."""

    lr: float = real(0.1, above=0, doc="η")
    gamma: float = real(0.5, least=0, doc="γ")
    solver: Any = part(SGD(), doc="the local step")

    def step(self, current: Any, batch: Batch, task: Any, down: Any) -> Any:
        teacher = task.logits(down["w"], batch, current.buffers).detach()

        def loss(w: Tensor) -> Tensor:
            logits = task.logits(w, batch, current.buffers)
            own = logits.logsumexp(1) - logits.gather(1, task.labels(batch)[:, None])[:, 0]
            each = own + self.gamma * (logits - teacher).square().mean(1)
            return (each * batch.live).sum() / batch.live.sum()

        return self.solver.step(current, grad(loss)(current.w), self.solver.rate(self.lr, down))

    def local(self, task: Any, down: Any, mine: Any, batches: Any) -> Any:
        current = batches.fold(self.step, self.solver.start(down), task, down)
        return Upload(batches.size, {"delta": current.w - down["w"], **current.buffers}), mine

    def merge(self, w: Tensor, state: Any, mean: Any, fraction: Any) -> Any:
        return w + mean["delta"], state


def by_hand(fed: data.Federation, mu: float, temperature: float, lr: float, rounds: int) -> Tensor:
    """MOON with modules, optimizers and autograd, as its authors describe it."""
    x, y = fed.rows
    ids, world = identify(fed.parties), two_inputs()
    previous = [two_inputs() for _ in fed.parties]

    def features(model: nn.Module, at: Tensor) -> Tensor:
        kept: list[Tensor] = []
        hook = model.out.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
        model(**{k: t[at] for k, t in x.parts.items()})
        hook.remove()
        return kept[0]

    for r in range(rounds):
        total, mean = 0, torch.zeros_like(flat(world))
        for k in range(len(fed)):
            model, mine = two_inputs(), fed.train.of(k)
            model.load_state_dict(world.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            batches = plan(0, r, ids[k : k + 1], np.array([len(mine)]), 1, 8).of(0)
            for index, live in zip(batches.index, batches.live):
                at = mine[index[live > 0]]
                with torch.no_grad():
                    far, near = features(previous[k], at), features(world, at)
                z = features(model, at)
                alike = (
                    torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1) / temperature
                )
                con = F.cross_entropy(alike, torch.zeros(len(at), dtype=torch.long))
                optimizer.zero_grad()
                (F.cross_entropy(model.out(z), y[at]) + mu * con).backward()
                optimizer.step()
            previous[k] = model
            total += len(mine)
            mean += len(mine) * flat(model)
        nn.utils.vector_to_parameters(mean / total, world.parameters())
    return flat(world)


def test_moon_by_features_equals_moon_by_modules_on_rows_of_several_inputs() -> None:
    fed = federation()
    options = {"model": two_inputs, "rounds": 3, "batch_size": 8, "algorithm": Moon(lr=0.3, mu=2.0)}
    expected = by_hand(fed, 2.0, 0.5, 0.3, 3)
    for how in ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"}):
        run = tacit.train(fed, **options, **how)
        torch.testing.assert_close(flat(run.model), expected, rtol=0, atol=1e-5)
    plain = tacit.train(fed, **{**options, "algorithm": algorithms.FedAvg(lr=0.3)})
    assert not torch.allclose(flat(plain.model), expected, atol=1e-4)


@pytest.mark.parametrize("algorithm", [Moon(lr=0.1), Distilled(lr=0.1)])
def test_algorithms_that_use_outputs_pass_the_conformance_suite(algorithm: Algorithm) -> None:
    tacit.testing.check_algorithm(algorithm)


def test_without_its_term_distillation_is_fedavg() -> None:
    fed = federation()
    a, b = (
        flat(tacit.train(fed, model=two_inputs, rounds=2, algorithm=algorithm).model)
        for algorithm in (Distilled(lr=0.3, gamma=0.0), algorithms.FedAvg(lr=0.3))
    )
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_dpsgd_refuses_algorithms_that_use_rows_in_ways_its_noise_does_not_cover() -> None:
    fed = federation()
    for algorithm in (Moon(lr=0.1), Distilled(lr=0.1)):
        with pytest.raises(BadParameter, match="which no noise covers"):
            tacit.train(
                fed,
                model=two_inputs,
                rounds=1,
                algorithm=algorithm,
                private=tacit.private.DPSGD(clip=1.0, noise_multiplier=1.0, delta=1e-5),
            )


def test_a_model_without_a_layer_has_no_features() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, *, x: Tensor) -> Tensor:
            return x * self.scale

    task = Task(Bare(), data.inputs.Inputs({"x": torch.ones(4, 2)}), torch.zeros(4, dtype=torch.long))
    batch = Batch(torch.arange(2), torch.ones(2), torch.zeros((), dtype=torch.int64))
    with pytest.raises(BadParameter, match="features: no layer of the model"):
        task.features(task.initial()["w"], batch)

"""Federated LoRA of a Hugging Face model through peft: only adapters are trained, sent, clipped and private."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, data, guard
from tacit.algorithms.types import Batch, LocalState
from tacit.errors import BadParameter
from tacit.jobs.train.plan import make_plan, make_task
from tacit.private import DPSGD

G = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 20, (60, 9), generator=G)
IDS[:, 1::2] = IDS[:, ::2][:, :4]  # every second token repeats the one before it
FED = data.from_arrays(IDS[:, :-1], IDS[:, 1:], tokens=True, classes=20).split(3, seed=0)
BIG = algorithms.FedAvg(lr=2.0)


class Logits(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A Llama of 24,000 random parameters, with adapters of rank 4; nothing is downloaded."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=20, max_position_embeddings=16, **sizes))
    return Logits(get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])))


def trainable(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def test_only_adapters_are_trained_and_sent(model: nn.Module) -> None:
    run = tacit.train(FED, model=model, rounds=3, algorithm=BIG)
    before, after = dict(model.named_parameters()), dict(run.model.named_parameters())
    assert run.metrics["loss"] < run.events[[e["kind"] for e in run.events].index("round")]["loss"]
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(trainable(model))
    numbers = sum(p.numel() for p in trainable(model).values())
    assert run.history[-1]["bytes_up"] < 3 * (4 * numbers + 300)


def test_the_frozen_base_is_in_memory_once_for_all_clients(model: nn.Module) -> None:
    task = make_task(make_plan(FED, model=model))
    copies = [task.copy(), task.on(*FED.at(0)).copy(), task.for_stacking().module]
    for name, p in copies[0].named_parameters():
        places = {dict(c.named_parameters())[name].data_ptr() for c in copies}
        assert len(places) == (3 if p.requires_grad else 1), name


def test_secure_aggregation_of_adapters_gives_the_same_model(model: nn.Module) -> None:
    stages = [guard.Clip(50.0), guard.Quantize(bits=30, stochastic=False), guard.SecAgg(threshold=0.7)]
    plain, hidden = (
        tacit.train(FED, model=model, rounds=2, algorithm=BIG, guard=g, evaluate_every=0)
        for g in (None, stages)
    )
    for name, value in trainable(plain.model).items():
        assert torch.allclose(dict(hidden.model.named_parameters())[name], value, atol=1e-4)


def test_personalization_gives_each_party_adapters_of_its_own(model: nn.Module) -> None:
    run = tacit.train(FED, model=model, rounds=2, algorithm=algorithms.Ditto(lr=1.0), evaluate_every=0)
    own = [torch.cat([v.reshape(-1) for v in trainable(m).values()]) for m in run.models().values()]
    assert not torch.allclose(own[0], own[1])
    base = {n: p for n, p in run.model.named_parameters() if n not in trainable(model)}
    for other in run.models().values():
        assert all(torch.equal(dict(other.named_parameters())[n], p) for n, p in base.items())


def gradient(module: nn.Module, fed: Any, settings: DPSGD, rows: Tensor, **more: Any) -> Any:
    """The task, and its gradient on these rows."""
    task = make_task(make_plan(fed, model=module, private=settings, **more))
    start, ones = task.initial(), torch.ones(len(rows))
    task.left, task.now = 1, task.now._replace(width=len(rows))
    at = LocalState(start["w"], {}, {}, torch.zeros(()))
    return task, task.gradient(at, Batch(rows, ones, torch.zeros((), dtype=torch.int64)))[0]


def test_dp_sgd_clips_the_gradient_of_each_sequence(model: nn.Module) -> None:
    """With a label for each token: the loss of a row is the mean over its tokens. Torch computes the gradient of
    one sequence at a time, and clips it, for comparison.
    """
    rows, clip = FED.train.of(0)[:6], 0.05
    task, found = gradient(model, FED, DPSGD(clip=clip, noise_multiplier=0.0), rows)
    total = torch.zeros(task.dim)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for i in rows.tolist():
        loss = F.cross_entropy(model(FED.rows.x[i : i + 1])[0], FED.rows.y[i])
        g = torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss, parameters)])
        total += g * min(1.0, clip / float(g.norm()))
    assert torch.allclose(found, total / len(rows), atol=1e-5)
    assert float(found.norm()) < clip


def test_private_adapters_of_real_noise_spend_their_epsilon(model: nn.Module) -> None:
    run = tacit.train(FED, model=model, rounds=2, private=DPSGD(epsilon=8.0, delta=1e-4), evaluate_every=0)
    assert all(7 < s.epsilon <= 8 for s in run.ledger.spent)
    assert len(run.ledger.spent) == 3


# per-example gradients that cannot be right -------------------------------------------------------------------


class Unusual(nn.Module):
    """A layer that is called in a way that hides whose each of its rows is."""

    def __init__(self, how: str):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.adapter, self.head = how, nn.Linear(4, 4), nn.Linear(4, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.view(len(x), 3, 4)
        if self.how == "flattened":
            out = self.adapter(steps.reshape(-1, 4)).view(len(x), 3, 4)
        elif self.how == "reordered":
            out = self.adapter(steps.flip(0)).flip(0)
        elif self.how == "weight outside":
            out = self.adapter(steps) + F.linear(steps, self.adapter.weight)
        else:
            out = self.adapter(steps)
        return self.head(torch.tanh(out).mean(1))


X = torch.randn(60, 12, generator=G)
PLAIN = data.from_arrays(X, (X[:, 0] > 0).long()).split(3, seed=0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flattened", "for 2 examples, layers received 6 rows, so whole examples cannot be clipped"),
        ("reordered", "is not the gradient of that example alone"),
        ("weight outside", "is not the gradient of that example alone"),
    ],
)
def test_a_layer_that_is_called_in_an_unusual_way_is_refused(how: str, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(PLAIN, model=Unusual(how), rounds=1, private=DPSGD(epsilon=8.0, delta=1e-4))


@pytest.mark.parametrize("how", ["usual", "flattened", "weight outside"])
def test_method_functional_separates_examples_whatever_a_layer_is_given(how: str) -> None:
    module, rows, clip = Unusual(how), PLAIN.train.of(1)[:5], 0.02
    settings = DPSGD(clip=clip, noise_multiplier=0.0, method="functional")
    task, found = gradient(module, PLAIN, settings, rows)
    total = torch.zeros(task.dim)
    for i in rows.tolist():
        loss = F.cross_entropy(module(PLAIN.rows.x[i : i + 1]), PLAIN.rows.y[i : i + 1])
        parts = torch.autograd.grad(loss, list(module.adapter.parameters()))
        g = torch.cat([v.reshape(-1) for v in parts])
        total += g * min(1.0, clip / float(g.norm()))
    assert torch.allclose(found, total / len(rows), atol=1e-6)

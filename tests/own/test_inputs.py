"""Rows of several tensors: the same model from the stack, the loop, parties and a plain torch loop."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, data, guard
from tacit.algorithms.plan import identify, plan
from tacit.data.inputs import Inputs, blank_from, is_outline, outline_of
from tacit.errors import BadData, BadParameter, BadRun

from .two_inputs import TwoInputs, two_inputs

LR, ROUNDS, BATCH = 0.3, 3, 8


def rows(n: int = 90) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 7, (n,), generator=g)
    sequences = [torch.randint(1, 11, (int(t),), generator=g) for t in lengths]
    ids, mask = data.pad(sequences)
    numbers = torch.randn(n, 4, generator=g)
    y = (numbers[:, 0] > 0).long() + (ids[:, 0] > 5).long()
    return {"ids": ids, "mask": mask, "numbers": numbers}, y


def federation(x: object = None, parties: int = 3) -> data.Federation:
    named, y = rows()
    return data.from_arrays(named if x is None else x, y, name="two").split(parties, seed=0)


def train(fed: data.Federation, **options: object) -> tacit.Result:
    options = {"model": two_inputs, "rounds": ROUNDS, "batch_size": BATCH, **options}
    return tacit.train(fed, algorithm=algorithms.FedAvg(lr=LR), **options)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def fedavg(fed: data.Federation, model: nn.Module) -> Tensor:
    """McMahan et al. 2017 by hand: torch's SGD at each party, the mean weighted by rows."""
    x, y = fed.rows
    assert isinstance(x, Inputs)
    ids = identify(fed.parties)
    w = {k: v.clone() for k, v in model.state_dict().items()}
    for r in range(ROUNDS):
        total, sums = 0, {k: torch.zeros_like(v) for k, v in w.items()}
        for k in range(len(fed)):
            model.load_state_dict(w)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            mine = fed.train.of(k)
            batches = plan(0, r, ids[k : k + 1], np.array([len(mine)]), 1, BATCH).of(0)
            for index, live in zip(batches.index, batches.live):
                at = mine[index[live > 0]]
                optimizer.zero_grad()
                F.cross_entropy(model(**{n: t[at] for n, t in x.parts.items()}), y[at]).backward()
                optimizer.step()
            total += len(mine)
            for name, v in model.state_dict().items():
                sums[name] += len(mine) * v
        w = {k: v / total for k, v in sums.items()}
    model.load_state_dict(w)
    return flat(model)


def test_dict_inputs_give_the_same_model_stacked_one_by_one_and_in_a_plain_torch_loop() -> None:
    fed = federation()
    stacked, each = (train(fed, engine=engine) for engine in ("stack", "each"))
    by_hand = fedavg(fed, two_inputs())
    torch.testing.assert_close(flat(stacked.model), by_hand, rtol=0, atol=1e-5)
    torch.testing.assert_close(flat(each.model), by_hand, rtol=0, atol=1e-5)
    assert not any("cannot be stacked" in e.get("text", "") for e in stacked.events)
    assert stacked.metrics["accuracy"] == pytest.approx(each.metrics["accuracy"])


def test_a_tuple_of_arrays_are_the_positional_arguments_of_the_model() -> None:
    x, _ = rows()
    by_name, by_place = train(federation()), train(federation(tuple(x.values())))
    assert torch.equal(flat(by_name.model), flat(by_place.model))


@pytest.mark.parametrize("options", [{}, {"guard": [guard.Clip(1.0), guard.Quantize(32), guard.SecAgg()]}])
def test_parties_train_the_same_model_on_dict_inputs(options: dict[str, object]) -> None:
    fed = federation()
    simulated, parties = train(fed, **options), train(fed, runtime="inprocess", **options)
    torch.testing.assert_close(flat(simulated.model), flat(parties.model), rtol=0, atol=1e-5)
    assert simulated.metrics["accuracy"] == pytest.approx(parties.metrics["accuracy"])


def test_processes_train_the_same_model_on_dict_inputs() -> None:
    fed = federation()
    simulated, processes = train(fed, rounds=2), train(fed, rounds=2, runtime="processes")
    torch.testing.assert_close(flat(simulated.model), flat(processes.model), rtol=0, atol=1e-5)


def test_hierarchy_edges_know_the_inputs_from_their_outline() -> None:
    fed = federation(parties=4)
    tree = tacit.Hierarchy(edges=2)
    simulated, parties = (
        train(fed, rounds=2, topology=tree, runtime=runtime) for runtime in ("cohort", "inprocess")
    )
    torch.testing.assert_close(flat(simulated.model), flat(parties.model), rtol=0, atol=1e-5)


def test_dpsgd_on_dict_inputs_clips_as_one_example_at_a_time_does() -> None:
    """Without noise: the step is the mean of clipped gradients of single rows, computed by plain autograd."""
    fed = federation(parties=1)
    settings = tacit.private.DPSGD(clip=0.1, noise_multiplier=0.0)
    run = train(fed, rounds=1, batch_size=None, private=settings, insecure_seed=3)
    model, (x, y), mine = two_inputs(), fed.rows, fed.train.of(0)
    assert isinstance(x, Inputs)
    total = torch.zeros_like(flat(model))
    for i in mine.tolist():
        loss = F.cross_entropy(model(**{k: t[i : i + 1] for k, t in x.parts.items()}), y[i : i + 1])
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(model.parameters()))])
        total += g * min(1.0, 0.1 / float(g.norm()))
    torch.testing.assert_close(flat(run.model), flat(model) - LR * total / len(mine), rtol=0, atol=1e-5)


def test_a_resumed_run_with_dict_inputs_equals_one_that_was_never_stopped(tmp_path) -> None:
    fed = federation()
    whole = train(fed, rounds=4)
    first = train(fed, rounds=2, out=tmp_path / "run")
    more = train(fed, rounds=4, resume=first)
    assert torch.equal(flat(whole.model), flat(more.model))
    x, y = rows()
    changed = {**x, "numbers": x["numbers"] + 1}
    with pytest.raises(BadRun, match=r"the data .* changed"):
        train(data.from_arrays(changed, y, name="two").split(3, seed=0), rounds=6, resume=first)


def test_predict_takes_a_dictionary_also_after_the_run_is_loaded(tmp_path) -> None:
    fed = federation()
    run = train(fed, out=tmp_path / "run")
    x, _ = rows()
    table = run.predict(x)
    with torch.no_grad():
        p = run.model(**x).softmax(1)
    np.testing.assert_allclose(table[["p(0)", "p(1)", "p(2)"]].to_numpy(), p, atol=1e-6)
    loaded = tacit.load(tmp_path / "run", model=TwoInputs)
    assert loaded.predict(x).equals(table)
    with pytest.raises(BadParameter, match=r"rows is .*; it must be a dictionary of arrays: ids, mask"):
        run.predict(np.zeros((3, 4)))
    with pytest.raises(BadParameter, match="as in training: ids int64"):
        run.predict({**x, "ids": x["ids"].float()})
    with pytest.raises(BadParameter, match="models of one input"):
        run.export(tmp_path / "model.onnx")
    pipeline = tmp_path / "run" / "pipeline.json"
    damaged = json.loads(pipeline.read_text())
    damaged["metadata"]["inputs"]["parts"]["ids"] = ["int64", [10**12, -1]]
    pipeline.write_text(json.dumps(damaged))
    with pytest.raises(BadRun, match="cannot be read"):
        tacit.load(tmp_path / "run", model=TwoInputs)


def test_an_outline_restores_types_and_shapes() -> None:
    x = Inputs({"a": torch.zeros(3, 2), "b": torch.ones(3, dtype=torch.bool)})
    outline = json.loads(json.dumps(outline_of(x)))
    assert is_outline(outline)
    assert outline_of(blank_from(outline, 5)) == outline_of(x)
    assert len(blank_from(outline, 5)) == 5


class WithLogits(nn.Module):
    """A model that returns an object, and its own loss where it is given labels, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = two_inputs()

    def forward(self, labels: Tensor | None = None, **x: Tensor) -> dict[str, Tensor]:
        logits = self.inner(**x)
        return (
            {"logits": logits}
            if labels is None
            else {"loss": F.cross_entropy(logits, labels), "logits": logits}
        )


def test_an_object_with_logits_counts_as_these_logits() -> None:
    fed = federation()
    assert torch.equal(flat(train(fed, model=WithLogits).model), flat(train(fed).model))


def test_loss_model_trains_by_the_loss_that_the_model_returns() -> None:
    """That loss is the mean cross-entropy, so that the model is the one of loss='cross_entropy'."""
    x, y = rows()
    own = data.from_arrays({**x, "labels": y}, name="two", test_fraction=0.2).split(3, seed=0)
    run = train(own, model=WithLogits, loss="model")
    by_hand = WithLogits()
    torch.testing.assert_close(flat(run.model), fedavg_by_own_loss(own, by_hand), rtol=0, atol=1e-5)
    assert run.config["train"]["loss"] == "model"
    with torch.no_grad():
        parts = [own.test.x[i : i + 32] for i in range(0, len(own.test.y), 32)]
        losses = [float(run.model(**p.parts)["loss"]) * len(p) for p in parts]
    assert run.metrics["loss"] == pytest.approx(sum(losses) / len(own.test.y), abs=1e-6)
    in_parties = train(own, model=WithLogits, loss="model", runtime="inprocess")
    torch.testing.assert_close(flat(in_parties.model), flat(run.model), rtol=0, atol=1e-5)


def fedavg_by_own_loss(fed: data.Federation, model: nn.Module) -> Tensor:
    x = fed.rows.x
    labels = x.parts["labels"]
    rest = Inputs({k: v for k, v in x.parts.items() if k != "labels"})

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.inner

        def forward(self, **x: Tensor) -> Tensor:
            return self.inner(**x)

    return fedavg(dataclasses.replace(fed, rows=data.Rows(rest, labels)), Logits())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, y: data.from_arrays({}, y), "x is an empty dictionary"),
        (lambda x, y: data.from_arrays({**x, "ids": x["ids"][:5]}, y), "different numbers of rows: ids 5, mask 90"),
        (lambda x, y: data.from_arrays({"a": ["p", "q"]}, [0, 1]), r"x\['a'\] is text"),
        (lambda x, y: data.from_arrays({"a": [[1.0, float("nan")]] * 2}, [0, 1]), "NaN or infinite value in row 0"),
        (
            lambda x, y: data.from_arrays(x, y, test=({"ids": x["ids"]}, y)),
            r"a test row has ids int64 \(6,\), a training row ids",
        ),
        (lambda x, y: data.from_arrays([[1, 2], [3]], [0, 1], tokens=True), r"data\.pad\(…\) fills up sequences"),
        (lambda x, y: data.pad([]), "there are no sequences"),
        (lambda x, y: data.pad([[1, 2], []]), "sequence 1 is empty"),
        (lambda x, y: data.pad([[1, 2], [3, 4, 5]], length=2), "sequence 1 has 3 steps, more than length=2"),
        (lambda x, y: data.pad([torch.zeros(2, 3), torch.zeros(2, 4)]), r"different shapes, such as \(3,\) and \(4,\)"),
        (
            lambda x, y: data.from_arrays(x, y).split(3, skew=data.FeatureNoise(0.1)),
            "FeatureNoise: needs rows of one tensor in memory, and these have several inputs",
        ),
    ],
)  # fmt: skip
def test_bad_inputs_are_refused_with_what_to_do(make, text) -> None:
    x, y = rows()
    with pytest.raises(BadData, match=text):
        make(x, y)


def test_models_that_cannot_take_these_inputs_are_refused() -> None:
    fed = federation()
    with pytest.raises(
        BadParameter, match=r"model 'mlp' takes one tensor, and a row of two has ids int64 \(6,\)"
    ):
        train(fed, model="mlp")

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, numbers: Tensor) -> Tensor:
            return self.out(numbers)

    with pytest.raises(
        BadParameter, match=r"cannot take rows with the inputs ids int64.*must take these arguments"
    ):
        train(fed, model=Other)
    with pytest.raises(BadParameter, match="without a loss, and loss='model' needs one"):
        train(fed, model=WithLogits, loss="model")


def test_padding_keeps_values_and_says_which_are_real() -> None:
    out, mask = data.pad([[1, 2, 3], [4]], value=9, length=4)
    assert out.tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert data.pad([torch.zeros(2, 3), torch.ones(1, 3)])[0].shape == (2, 2, 3)

"""Perceptrons side by side as one model: equal to as many networks in a plain torch loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data, guard, models
from tacit.algorithms import FedAdam
from tacit.engine import dense
from tacit.engine.losses import Objective
from tacit.engine.members import Members, as_one_network
from tacit.engine.task import Task
from tacit.errors import BadParameter
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.party_rows import read_layout
from tacit.jobs.train.plan import make_plan

HIDDEN = [guard.Clip(norm=20.0), guard.Quantize(), guard.SecAgg()]
THREE = models.MLP((6, 4), members=3)


def frame(rows: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    z = x @ [1.0, -0.7, 0.4] + x[:, 0] * x[:, 1] + 0.5 * rng.logistic(size=rows)
    table = pd.DataFrame(x, columns=list("abc")).assign(
        ward=rng.choice(["north", "south"], rows), site=rng.choice(["s", "t", "t"], rows)
    )
    return table.assign(y=np.where(z > 0.5, "ill", "well"), cost=z)


def federation(label: str = "y", **options: Any) -> data.Federation:
    table = frame().drop(columns="cost" if label == "y" else "y")
    return data.from_frame(table, label=label, groups=["site"], test_fraction=0.0).by("site", **options)


FED = federation(held_fraction=0.3)


def vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("label", ["y", "cost"])
def test_a_run_equals_networks_in_a_plain_loop(label: str) -> None:
    """FedAdam with one full-batch step: each network follows its own gradient, as if it were alone."""
    fed = federation(label, held_fraction=0.0)
    adam, l2, rounds = FedAdam(lr=0.1, server_lr=0.01, tau=1e-3), 0.01, 6
    run = tacit.train(
        fed, model=THREE, algorithm=adam, rounds=rounds, local_steps=1, batch_size=512, l2=l2, seed=4
    )
    start = models.build(THREE, tuple(fed.rows.x.shape[1:]), 1 if label == "cost" else 2, seed=4)
    x, y = fed.rows.x[fed.train.index], fed.rows.y[fed.train.index]
    for first, trained in zip(start.members, run.model.members):
        parameters = list(first.parameters())
        moments = [(torch.zeros_like(p), torch.full_like(p, adam.tau**2)) for p in parameters]
        for _ in range(rounds):
            out = first(x)
            loss = (
                nn.functional.mse_loss(out[:, 0], y)
                if label == "cost"
                else nn.functional.cross_entropy(out, y)
            )
            loss = loss + l2 / 2 * sum((p**2).sum() for p in parameters if p.dim() > 1)
            for k, g in enumerate(torch.autograd.grad(loss, parameters)):
                m, v = moments[k]
                moments[k] = m, v = 0.9 * m - 0.1 * adam.lr * g, 0.99 * v + 0.01 * (adam.lr * g) ** 2
                parameters[k].data += adam.server_lr * m / (v.sqrt() + adam.tau)
        assert torch.allclose(vector(first), vector(trained), atol=2e-5)
    starts = [vector(member) for member in models.build(THREE, (5,), 2, seed=4).members]
    assert not torch.allclose(starts[0], starts[1])  # initial weights of their own
    mean = torch.stack([member(x) for member in run.model.members]).mean(0)
    assert torch.allclose(run.model(x), mean, atol=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "own"])
def test_stack_loop_and_messages_give_the_same_model(loss: str) -> None:
    own = {"loss": lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")}
    options: dict[str, Any] = own if loss == "own" else {"loss": loss, "class_weight": "balanced"}
    common = {
        "model": THREE,
        "algorithm": algorithms.FedAvg(lr=0.3),
        "rounds": 3,
        "batch_size": 16,
        **options,
    }
    stack, *others = (
        vector(tacit.train(FED, **common, **how).model)
        for how in ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"})
    )
    for other in others:
        assert torch.allclose(stack, other, atol=1e-5)


def test_secure_aggregation_and_processes_train_the_same_members() -> None:
    common: dict[str, Any] = {"model": THREE, "rounds": 2, "algorithm": algorithms.FedAvg(lr=0.3)}
    plain = vector(tacit.train(FED, **common).model)
    assert torch.allclose(vector(tacit.train(FED, **common, runtime="processes").model), plain, atol=1e-5)
    hidden = tacit.train(FED, **common, guard=HIDDEN, min_rows=1)
    assert torch.allclose(vector(hidden.model), plain, atol=0.01)  # 16 bits of ±20
    assert not torch.allclose(vector(tacit.train(FED, **common | {"rounds": 1}).model), plain, atol=0.01)


def test_the_written_out_gradient_is_the_sum_of_the_members_own() -> None:
    """One client in a stack: autograd of each network's loss on the same rows."""
    module = models.build(THREE, (5,), 2, seed=0)
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    y = torch.arange(9) % 2
    task = Task(module, x, y, Objective()).for_stacking()
    assert task.dense is not None
    from tacit.engine.dense import gradient

    w, index = task.initial()["w"][None], torch.arange(9)[None]
    g = gradient(task.dense, w, x, y, index, torch.ones(1, 9), members=3)[0]
    total = sum(nn.functional.cross_entropy(member(x), y) for member in module.members)
    expected = torch.cat([p.flatten() for p in torch.autograd.grad(total, list(module.parameters()))])
    assert torch.allclose(g, expected, atol=1e-6)


def test_batches_of_different_lengths_are_cut_without_a_change_of_the_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients with 0 to 40 rows, in pieces of a few clients: the gradient of each of their networks alone."""
    monkeypatch.setattr(dense, "AT_ONCE", 64)
    module = models.build(THREE, (5,), 2, seed=0)
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    y, rows = torch.arange(40) % 2, torch.tensor([0, 1, 3, 8, 9, 17, 40, 40, 33])
    layers = Task(module, x, y, Objective()).for_stacking().dense
    assert layers is not None
    w = torch.randn(len(rows), 3 * layers[-1].bias.stop, generator=torch.Generator().manual_seed(2))
    live = (torch.arange(40) < rows[:, None]).float()
    index = torch.arange(40).expand(len(rows), 40)
    g = dense.gradient(layers, w, x, y, index, live, members=3)
    for k in range(3):
        part = slice(k * w.shape[1] // 3, (k + 1) * w.shape[1] // 3)
        alone = dense.gradient(layers, w[:, part].contiguous(), x, y, index, live)
        assert torch.allclose(g[:, part], alone, atol=1e-6)
    assert not g[0].any()


@pytest.mark.parametrize("malicious", [None, "fish"])
def test_an_audit_inverts_the_update_that_the_members_make(malicious: str | None) -> None:
    """Its search follows the loss of each member, as a client does: one row is found to rounding."""
    sgd = {"algorithm": algorithms.FedAvg(lr=0.3), "local_steps": 1, "batch_size": 512, "min_rows": 1}
    run = tacit.train(FED, model=THREE, rounds=1, **sgd)
    found = tacit.audit.invert(run, 1, method="cosine", bounds=None, malicious=malicious)
    assert abs(found.distance) < 1e-4
    assert found.each_psnr[0] > 40


def test_one_row_has_the_score_of_its_row_in_a_file_everywhere(tmp_path: Path) -> None:
    run = tacit.train(FED, model=THREE, seed=1, out=tmp_path / "run", min_rows=1)
    assert isinstance(run.model, Members)
    assert len(run.model.members) == 3
    new = frame(50).drop(columns=["y", "cost", "site"])
    expected = run.predict(new)
    loaded = tacit.load(tmp_path / "run")
    for rows in (new, new.iloc[[7]]):
        pd.testing.assert_frame_equal(loaded.predict(rows), expected.loc[rows.index], rtol=0, atol=1e-9)
    session = onnxruntime.InferenceSession(
        run.export(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    feed = {k: new[k].to_numpy(float)[:, None] for k in "abc"}
    feed["ward"] = new["ward"].to_numpy(object)[:, None]
    (p,) = session.run(["probabilities"], feed)
    np.testing.assert_allclose(p, expected[["p(ill)", "p(well)"]], rtol=0, atol=1e-9)
    program = torch.export.load(run.export(tmp_path / "m.pt2")).module()
    encoded = torch.as_tensor(run.pipeline.encode(new))
    np.testing.assert_allclose(program(encoded).detach(), expected[["p(ill)", "p(well)"]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("hidden", [(6, 4), (5,), ()])
def test_a_wide_perceptron_is_the_same_function(hidden: tuple[int, ...]) -> None:
    """Private inference evaluates it on shares."""
    module = models.build(models.MLP(hidden, members=3), (5,), 2, seed=0).eval()
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(as_one_network(module)(x), module(x), atol=1e-6)
    result = tacit.infer(module, x)
    assert torch.allclose(torch.as_tensor(result.value).float(), module(x).detach(), atol=1e-2)


def test_a_resumed_run_has_the_members_of_an_uninterrupted_one(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == 10:
            raise Stop

    common: dict[str, Any] = {"model": THREE, "seed": 2, "min_rows": 1}
    whole = tacit.train(FED, **common)
    with pytest.raises(Stop):
        tacit.train(FED, **common, out=tmp_path / "half", watch=interrupt)
    resumed = tacit.train(FED, **common, out=tmp_path / "half", resume=True)
    assert resumed.config["model"]["members"] == 3
    assert torch.equal(vector(resumed.model), vector(whole.model))


def test_a_model_is_one_network_unless_members_are_asked_for() -> None:
    for model in ("mlp", models.MLP((5,)), models.MLP((5,), members=1)):
        assert isinstance(models.build(model, (5,), 2, seed=0), nn.Sequential)
    one, two = (models.build(models.MLP((5,), members=m), (5,), 2, seed=0) for m in (1, 2))
    assert torch.equal(vector(one), vector(two.members[0]))  # the first member starts where one network does


def test_a_comparison_has_the_members_of_a_run() -> None:
    """Federated and central; the first is the run that `train` has with the same options."""
    common: dict[str, Any] = {"model": THREE, "min_rows": 1}
    compared = tacit.compare(FED, seeds=1, **common)
    runs = [*compared.results, tacit.train(FED, **common, seed=0)]
    assert [r.config["model"]["members"] for r in runs] == [3] * 3
    assert torch.allclose(vector(runs[0].model), vector(runs[-1].model), atol=1e-4)


def test_parties_agree_to_the_number_of_members() -> None:
    """A server that asks for another number than the job has is refused."""
    layout = {"label": "y", "labels": ["ill", "well"], "numbers": list("abc")}
    recipe = read_layout(layout).recipe
    fed = Elsewhere.of("clinics", ("a", "b"), (len(recipe.columns),), ("ill", "well"), recipe.columns)

    def contract(model: Any, **options: Any) -> Contract:
        p = make_plan(fed, model=model, runtime=Deployed(None, layout), **options)
        return Contract.of(p, layout, "server", [4])

    agreed = contract(models.MLP(members=4))
    assert agreed.tables["model"]["members"] == 4
    assert Contract.read(agreed.text).plan().model.members == 4
    # the defaults of tables have four networks; other settings have one, and contracts as they were
    assert contract("mlp").tables["model"]["members"] == 4
    assert "members" not in contract("mlp", rounds=5).tables["model"]
    found = agreed.differences(contract(models.MLP(members=64)))
    assert any(line.startswith("model.members") for line in found), found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"private": {"epsilon": 8.0, "delta": 1e-4}, "algorithm": algorithms.FedAvg(lr=0.1)}, "DP-SGD"),
        ({"algorithm": algorithms.FedPer()}, "FedPer"),
        ({"algorithm": algorithms.FedRep()}, "FedRep"),
    ],
    ids=["private", "FedPer", "FedRep"],
)
def test_what_takes_the_members_for_one_network_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadParameter, match=rf"{why}.*members=1"):
        tacit.train(FED, model=THREE, rounds=2, **options)
    assert not isinstance(tacit.train(FED, model=models.MLP((5,)), rounds=1, **options).model, Members)


def test_private_training_of_one_data_set_refuses_members_too() -> None:
    table = data.from_frame(frame().drop(columns=["cost", "site"]), label="y")
    with pytest.raises(BadParameter, match=r"train_private.*share the norm.*members=1"):
        tacit.train_private(table, model=THREE, epsilon=8.0, epochs=1)


def test_features_of_a_layer_are_refused() -> None:
    module = models.build(THREE, (5,), 2, seed=0)
    task = Task(module, torch.randn(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(BadParameter, match=r"members=1"):
        task.features(task.initial()["w"], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("members", [0, 65, 1.5])
def test_a_bad_number_of_members_is_refused(members: Any) -> None:
    with pytest.raises(BadParameter, match="members"):
        models.build(models.MLP((5,), members=members), (5,), 2, seed=0)

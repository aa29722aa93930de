"""The engine that stacks clients: whatever way clients are run, the model that comes out is the same."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, data, models
from tacit.algorithms.plan import identify, plan
from tacit.engine.stacking import can_share_stack, group_by_size
from tacit.engine.task import Task
from tacit.jobs.train.plan import Plan, make_plan, make_task
from tacit.runtimes.client_states import ClientStates
from tacit.runtimes.cohort import Cohort

FEATURES, CLASSES, PARTIES = 6, 3, 5


def federation(skew: Any = None, parties: int = PARTIES, rows: int = 100, seed: int = 0) -> data.Federation:
    """Ragged parties of a noisy linear problem."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES))
    y = (x @ rng.normal(size=(FEATURES, CLASSES)) + rng.normal(size=(rows, CLASSES))).argmax(1)
    return data.from_arrays(x, y, classes=CLASSES).split(
        parties, skew=skew or data.Quantity(0.7), seed=seed, min_size=3
    )


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8),
        nn.Dropout(0.3),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, 8),
        nn.Dropout(0.1),
        nn.Linear(8, CLASSES),
    )


def vector(result: tacit.Result) -> Tensor:
    """Every parameter and buffer of the final model."""
    return torch.cat([v.reshape(-1).double() for v in result.model.state_dict().values()])


def three_ways(fed: data.Federation, model: Any, algorithm: Any, **settings: Any) -> list[tacit.Result]:
    ways = ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"})
    return [
        tacit.train(fed, model=model, algorithm=algorithm, **{"rounds": 2, "seed": 3, **settings}, **way)
        for way in ways
    ]


def assert_same(results: list[tacit.Result], tolerance: float = 1e-5) -> None:
    first = vector(results[0])
    assert torch.isfinite(first).all()
    for other in results[1:]:
        assert (vector(other) - first).abs().max() < tolerance
        for a, b in zip(results[0].history, other.history, strict=True):
            assert a["sampled"] == b["sampled"]
            assert a["bytes_up"] == b["bytes_up"]
            assert a["bytes_down"] == b["bytes_down"]
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)


# stack = each = parties -------------------------------------------------------------------------------------


def check_three_ways(name: str, seed: int, **settings: Any) -> None:
    """Ragged parties, each with its own epochs, some of them sampled; three rounds, so that client state is
    used again.
    """
    assert_same(
        three_ways(
            federation(seed=seed % 3),
            smooth,
            algorithms.ALL[name](lr=0.02),
            rounds=3,
            seed=seed,
            **settings,
        )
    )


@pytest.mark.parametrize("name", algorithms.ALL)
def test_stack_each_and_parties_give_the_same_model(name: str) -> None:
    check_three_ways(name, 8, local_epochs=[3, 1, 2, 1, 2], per_round=3, batch_size=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.ALL)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    epochs=st.lists(st.integers(1, 3), min_size=PARTIES, max_size=PARTIES),
    per_round=st.integers(1, PARTIES),
    batch=st.sampled_from([None, 1, 7, 500]),
    steps=st.sampled_from([None, None, 4]),
    seed=st.integers(0, 99),
)
def test_whatever_the_settings_stack_each_and_parties_give_the_same_model(
    name: str, epochs: list[int], per_round: int, batch: int | None, steps: int | None, seed: int
) -> None:
    check_three_ways(
        name, seed, local_epochs=epochs, per_round=per_round, batch_size=batch, local_steps=steps
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.FedAvg(lr=0.05, solver=algorithms.Adam(schedule=algorithms.Exponential(0.9))),
        algorithms.FedAvg(
            lr=0.05, option="I", solver=algorithms.SGD(momentum=0.9, nesterov=True, weight_decay=0.01)
        ),
        algorithms.FedNova(
            lr=0.05, mu=0.1, solver=algorithms.SGD(momentum=0.5, schedule=algorithms.Cosine(10))
        ),
        algorithms.Scaffold(lr=0.05, option="i", solver=algorithms.SGD(schedule=algorithms.Inverse(0.1))),
    ],
    ids=lambda a: type(a).__name__ + type(a.solver).__name__,
)
def test_solvers_and_schedules_do_not_depend_on_the_engine(algorithm: Any) -> None:
    assert_same(three_ways(federation(), smooth, algorithm, local_epochs=2, batch_size=8, per_round=3))


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedNova", "FedSGD", "FedDyn"])
def test_batch_norm_is_the_same_in_a_stack_alone_and_at_parties(name: str) -> None:
    """State dicts are compared whole, so this holds the averaged running statistics too. Batches of 7 leave
    short, padded ones.
    """
    results = three_ways(
        federation(),
        normed,
        algorithms.ALL[name](lr=0.05),
        local_epochs=[1, 3, 2, 1, 2],
        batch_size=7,
        per_round=4,
    )
    assert_same(results)
    assert not torch.equal(results[0].model.state_dict()["1.running_mean"], torch.zeros(8))


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold"])
def test_dropout_is_the_same_in_a_stack_alone_and_at_parties(name: str) -> None:
    results = three_ways(federation(), dropping, algorithms.ALL[name](lr=0.05), local_epochs=2, batch_size=7)
    assert_same(results)
    without = tacit.train(
        federation(),
        model=lambda: _same_start(dropping(), 0.0),
        algorithm=algorithms.ALL[name](lr=0.05),
        local_epochs=2,
        batch_size=7,
        rounds=2,
        seed=3,
    )
    assert (vector(without) - vector(results[0])).abs().max() > 1e-3  # it did drop


def _same_start(module: nn.Module, p: float) -> nn.Module:
    for layer in module:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Dropout):
            layer.p = p
    return module


def test_channel_dropout_on_images_is_the_same_every_way() -> None:
    rng = np.random.default_rng(0)
    fed = data.from_arrays(rng.normal(size=(80, 1, 6, 6)), rng.integers(0, 3, 80), classes=3).split(
        3, skew=data.Quantity(0.7), min_size=3
    )
    results = three_ways(
        fed,
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.Dropout2d(0.4),
            nn.BatchNorm2d(4),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(64, 3),
        ),
        algorithms.FedAvg(lr=0.05),
        batch_size=7,
    )
    assert_same(results)
    assert not [e for r in results for e in r.events if e["kind"] == "note" and "random numbers" in e["text"]]


@pytest.mark.parametrize("model", ["logistic", models.MLP((8, 8))], ids=["logistic", "mlp"])
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedNAG"])
def test_perceptrons_are_the_same_every_way(model: Any, name: str) -> None:
    """Their gradients are written out in a stack, and autograd's elsewhere."""
    assert_same(
        three_ways(
            federation(),
            model,
            algorithms.ALL[name](lr=0.05),
            local_epochs=[1, 3, 2, 1, 2],
            batch_size=7,
            per_round=4,
        )
    )


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedSGD"])
def test_whole_batches_of_unequal_parties_are_the_same_every_way(name: str) -> None:
    """In a stack they are padded to the largest, so they are stacked with parties of similar size."""
    rng = np.random.default_rng(1)
    whole = data.from_arrays(rng.normal(size=(400, FEATURES)), rng.integers(0, CLASSES, 400), classes=CLASSES)
    fed = whole.split(9, skew=data.Quantity(0.4), seed=1, min_size=3)
    assert fed.sizes.max() > 20 * fed.sizes.min()
    assert_same(
        three_ways(
            fed,
            smooth,
            algorithms.ALL[name](lr=0.05),
            local_epochs=[1, 3, 2, 1, 2, 1, 1, 4, 2],
            batch_size=None,
            per_round=7,
        )
    )


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([9], [[0]]),
        ([8, 4, 3, 2, 2, 1], [[0, 1], [2, 3, 4], [5]]),
        ([5, 5, 5], [[0, 1, 2]]),
        ([100, 40, 19], [[0], [1], [2]]),
        ([10, 1000, 12, 900], [[1, 3], [2, 0]]),
    ],
)
def test_no_client_is_stacked_with_one_of_more_than_twice_its_size(
    sizes: list[int], cut: list[list[int]]
) -> None:
    assert [part.tolist() for part in group_by_size(np.array(sizes))] == cut


@pytest.mark.parametrize("every", [1, 2])
def test_drifting_concepts_are_the_same_every_way(every: int) -> None:
    assert_same(
        three_ways(
            federation(data.ConceptDrift(every=every)),
            smooth,
            algorithms.FedAvg(lr=0.1),
            rounds=5,
            batch_size=8,
        )
    )


def test_a_concept_changes_in_the_round_the_skew_says() -> None:
    """Round r (from 1) trains and is tested on fed.at(r). With one full-batch step a round the whole run is
    gradient descent on it.
    """
    fed = federation(data.ConceptDrift(every=2), parties=2)
    run = tacit.train(fed, model="logistic", algorithm=algorithms.FedSGD(lr=0.3), rounds=5, batch_size=None)
    layer = models.build("logistic", (FEATURES,), CLASSES, 0)
    for r in range(1, 6):
        rows, test = fed.at(r), fed.test_at(r)
        grads = torch.autograd.grad(
            F.cross_entropy(layer(rows.x[fed.train.index]), rows.y[fed.train.index]), list(layer.parameters())
        )
        with torch.no_grad():
            for p, g in zip(layer.parameters(), grads):
                p -= 0.3 * g
            assert run.history[r - 1]["loss"] == pytest.approx(
                float(F.cross_entropy(layer(test.x), test.y)), abs=1e-5
            )
    assert not torch.equal(fed.at(2).y, fed.at(3).y)


def test_regression_is_the_same_every_way() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    fed = data.from_arrays(x, x @ [1.0, -2.0, 0.5, 0.25] + 0.1).split(4, skew=data.Quantity(0.7), min_size=3)
    results = three_ways(fed, "logistic", algorithms.FedAvg(lr=0.05), rounds=8, local_epochs=2, batch_size=8)
    assert_same(results)
    assert results[0].metrics["loss"] < 0.1


def test_frozen_layers_stay_where_they_are() -> None:
    def half_frozen() -> nn.Module:
        module = smooth()
        for p in module[0].parameters():  # type: ignore[index]
            p.requires_grad_(False)
        return module

    results = three_ways(federation(), half_frozen, algorithms.FedAvg(lr=0.1))
    assert_same(results)
    start = models.build(half_frozen, (FEATURES,), CLASSES, 3).state_dict()
    end = results[0].model.state_dict()
    assert torch.equal(start["0.weight"], end["0.weight"])
    assert not torch.equal(start["2.weight"], end["2.weight"])


# several runs in one stack ----------------------------------------------------------------------------------


def played(plans: list[Plan], rounds: int = 2, **options: Any) -> Cohort:
    task = make_task(plans[0])
    cohort = Cohort(task, [make_task(p).initial() for p in plans], [p.run() for p in plans], **options)
    for r in range(rounds):
        cohort.round(r)
    return cohort


def assert_as_alone(plans: list[Plan], **options: Any) -> None:
    together = played(plans, **options)
    for i, p in enumerate(plans):
        alone = played([p], **options)
        assert torch.allclose(together.w[i], alone.w[0], atol=1e-5, rtol=0)
        for key, value in alone.state.items():
            assert torch.allclose(together.state[key][i], value[0], atol=1e-5, rtol=0), key
        if alone.buffers is not None:
            assert torch.allclose(together.buffers[i], alone.buffers[0], atol=1e-5, rtol=0)
        for key, value in alone.save(0).items():
            assert torch.allclose(together.save(i)[key].double(), value.double(), atol=1e-4, rtol=0), key


@pytest.mark.parametrize("name", algorithms.ALL)
@pytest.mark.parametrize("engine", ["stack", pytest.param("each", marks=pytest.mark.slow)])
def test_runs_in_one_stack_come_out_as_if_each_ran_alone(name: str, engine: str) -> None:
    """Seeds, skews, sizes of federations and the learning rate differ. Two rounds of four of at most seven
    parties: client state is used again.
    """
    feds = [federation(), federation(data.Dirichlet(0.5), parties=7, seed=1)]
    plans = [
        make_plan(
            fed,
            model=smooth,
            algorithm=algorithms.ALL[name](lr=lr),
            seed=seed,
            per_round=4,
            local_epochs=2,
            batch_size=8,
        )
        for fed, lr, seed in ((feds[0], 0.05, 0), (feds[1], 0.05, 0), (feds[1], 0.1, 4))
    ]
    assert_as_alone(plans, engine=engine)


@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.FedAvg(lr=0.05),
        algorithms.Scaffold(lr=0.05),
        algorithms.FedDyn(lr=0.05),
        algorithms.FedAdam(lr=0.05),
    ],
    ids=lambda a: type(a).__name__,
)
def test_runs_that_differ_in_the_seed_only_come_out_as_alone(algorithm: Any) -> None:
    assert_as_alone(
        [
            make_plan(federation(), model=normed, algorithm=algorithm, seed=s, per_round=4, batch_size=8)
            for s in (0, 1, 5)
        ]
    )


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (algorithms.FedProx, "mu", (0.0, 0.1, 1.0)),
        (algorithms.FedDyn, "alpha", (0.01, 0.1, 0.5)),
        (algorithms.FedAdam, "tau", (1e-3, 1e-2, 0.1)),
        (algorithms.FedAdam, "beta2", (0.9, 0.99, 0.5)),
        (algorithms.Scaffold, "server_lr", (1.0, 0.5, 0.7)),
        (algorithms.FedNAG, "gamma", (0.0, 0.5, 0.9)),
        (algorithms.FedNova, "mu", (0.0, 0.1, 1.0)),
    ],
)
def test_a_hyper_parameter_is_one_more_axis(kind: Any, field: str, values: tuple[float, ...]) -> None:
    assert_as_alone(
        [
            make_plan(
                federation(), model=smooth, algorithm=kind(lr=0.05, **{field: v}), per_round=4, batch_size=8
            )
            for v in values
        ]
    )


def test_runs_of_some_members_equal_those_alone_and_train_on_their_own_rows_only() -> None:
    base = make_plan(federation(), model=smooth, algorithm=algorithms.FedAvg(lr=0.1), batch_size=8)
    some = [
        dataclasses.replace(base, members=m, per_round=n) for m, n in (((1,), 1), ((3,), 1), ((0, 2, 4), 2))
    ]
    assert_as_alone([base, *some])
    only = base.fed.party(1)
    alone = tacit.train(
        only, model=smooth, algorithm=algorithms.FedAvg(lr=0.1), batch_size=8, rounds=2, evaluate_every=0
    )
    w = torch.cat([p.reshape(-1) for p in alone.model.parameters()])
    assert torch.allclose(played([some[0]]).w[0], w, atol=1e-5)


def test_runs_under_drift_share_a_stack() -> None:
    fed = federation(data.ConceptDrift(every=1))
    assert_as_alone(
        [
            make_plan(fed, model=smooth, algorithm=algorithms.FedAvg(lr=0.1), seed=s, batch_size=8)
            for s in (0, 1)
        ]
    )


def test_only_plain_numbers_may_differ_within_a_stack() -> None:
    a = algorithms.FedAvg(lr=0.1)
    assert can_share_stack(a, algorithms.FedAvg(lr=0.5, server_lr=2.0))
    assert not can_share_stack(a, algorithms.FedProx(lr=0.1))
    assert not can_share_stack(a, algorithms.FedAvg(weighted=False))
    assert not can_share_stack(a, algorithms.FedAvg(solver=algorithms.SGD(momentum=0.9)))
    assert not can_share_stack(algorithms.LocalSGD(local_steps=1), algorithms.LocalSGD(local_steps=2))


# memory -----------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["FedAvg", "Scaffold", "FedDyn"]),
    memory=st.sampled_from([1.0, 2e4, 5e4, 1e9]),
    runs=st.integers(1, 3),
)
def test_chunks_by_memory_change_nothing(name: str, memory: float, runs: int) -> None:
    chunked = played(_plans_for_chunks(name, runs), engine="stack", memory=memory)
    assert torch.allclose(_weights_without_chunks(name, runs), chunked.w, atol=1e-6, rtol=0)


def _plans_for_chunks(name: str, runs: int) -> list[Plan]:
    return [
        make_plan(
            federation(),
            model=smooth,
            algorithm=algorithms.ALL[name](lr=0.05),
            seed=s,
            per_round=4,
            batch_size=8,
            local_epochs=2,
        )
        for s in range(runs)
    ]


@functools.cache
def _weights_without_chunks(name: str, runs: int) -> Tensor:
    return played(_plans_for_chunks(name, runs), engine="stack").w


def test_a_small_memory_does_make_chunks() -> None:
    p = make_plan(federation(), model=smooth, batch_size=8)
    sizes = p.fed.train.sizes.numpy()
    assert played([p], engine="stack", memory=1.0, rounds=1)._chunk(sizes, sizes) == 1
    assert played([p], engine="stack", memory=5e4, rounds=1)._chunk(sizes, sizes) < played(
        [p], engine="stack", memory=1e6, rounds=1
    )._chunk(sizes, sizes)


def test_what_a_row_keeps_for_the_backward_pass_is_counted_without_touching_the_model_or_the_random_state() -> (
    None
):
    task = make_task(
        make_plan(
            federation(),
            model=lambda: nn.Sequential(
                nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES)
            ),
        )
    )
    before, state = task.initial()["buffers"], torch.get_rng_state()
    assert task.bytes_kept() >= 4 * (FEATURES + 8)
    assert torch.equal(task.initial()["buffers"], before)
    assert torch.equal(torch.get_rng_state(), state)


def test_clients_that_never_took_part_use_no_memory() -> None:
    kept = ClientStates(100_000)
    kept.get(np.array([7, 99_999]), {"c": torch.zeros(3)})
    kept.put(np.array([99_999]), {"c": torch.ones(1, 3)})
    assert len(kept.values["c"]) == 2
    again = ClientStates(100_000)
    again.load(kept.save())
    got = again.get(np.array([99_999, 7, 5]), {"c": torch.zeros(3)})["c"]
    assert got[:, 0].tolist() == [1.0, 0.0, 0.0]


# models that cannot be stacked ------------------------------------------------------------------------------


class Deciding(nn.Module):
    """Looks at a value to decide: vmap cannot express it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum().item() > 0 else self.layer(-x)


class Warning_(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return self.layer(x)


def notes(result: tacit.Result) -> list[str]:
    return [e["text"] for e in result.events if e["kind"] == "note"]


def text_federation() -> data.Federation:
    rng = np.random.default_rng(0)
    return data.from_arrays(
        rng.integers(0, 5, (60, 6)), rng.integers(0, 5, 60), classes=5, tokens=True
    ).split(3, seed=0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(5, 2), nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0][:, -1])


def test_a_recurrent_model_of_your_own_runs_and_says_why_it_is_not_stacked() -> None:
    stacked = tacit.train(text_federation(), model=Recurrent, rounds=2, engine="stack")
    by_messages = tacit.train(text_federation(), model=Recurrent, rounds=2, runtime="inprocess")
    (note,) = notes(stacked)
    assert note.startswith("this model cannot be stacked, so clients run one by one: ")
    assert len(note) > 65  # torch's own words follow
    assert stacked.events[0]["runtime"] == "cohort, clients one by one"
    assert (vector(stacked) - vector(by_messages)).abs().max() < 1e-5


def test_a_model_that_branches_on_values_falls_back_to_the_loop() -> None:
    (note,) = notes(tacit.train(federation(), model=Deciding, rounds=1, engine="stack"))
    assert note.startswith("this model cannot be stacked, so clients run one by one: ")
    assert ".item()" in note


def test_compiled_steps_need_a_gpu_and_without_one_the_run_says_so() -> None:
    asked, usual = (tacit.train(federation(), rounds=2, engine=engine) for engine in ("compile", "auto"))
    assert notes(asked) == ["the model was not compiled: compiled steps need a GPU (device='cuda')"]
    assert torch.equal(vector(asked), vector(usual))


def test_the_steps_of_a_private_task_are_never_recorded() -> None:
    """A replay would repeat the noise."""
    rows = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)

    class Private(Task):
        pass

    with pytest.raises(TypeError, match="must not be recorded"):
        Private(nn.Linear(4, 2), *rows).for_recording()


@pytest.mark.filterwarnings("ignore:old")
def test_a_model_that_warns_still_runs() -> None:
    result = tacit.train(federation(), model=Warning_, rounds=1, engine="stack")
    assert notes(result) == ["this model cannot be stacked, so clients run one by one: old"]


def test_a_model_with_random_numbers_of_its_own_is_noted_repeats_and_leaves_the_callers_state() -> None:
    class Noisy(Deciding):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + torch.randn_like(x) if self.training else x)

    state = torch.get_rng_state()
    a, b = (tacit.train(federation(), model=Noisy, rounds=2, engine="each") for _ in range(2))
    assert any("draws random numbers" in note for note in notes(a))
    assert torch.equal(vector(a), vector(b))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "give", [smooth(), smooth, models.MLP((8,)), "logistic"], ids=["module", "factory", "spec", "name"]
)
def test_a_model_may_be_a_module_a_factory_a_spec_or_a_name(give: Any) -> None:
    result = tacit.train(federation(), model=give, rounds=2)
    assert isinstance(result.model, nn.Module)
    assert not result.model.training
    assert result.model(torch.zeros(2, FEATURES)).shape == (2, CLASSES)


def test_a_module_keeps_its_values_and_is_not_changed() -> None:
    mine = smooth()
    before = {k: v.clone() for k, v in mine.state_dict().items()}
    result = tacit.train(federation(), model=mine, rounds=1, algorithm=algorithms.FedAvg(lr=1e-9))
    assert all(torch.equal(before[k], v) for k, v in mine.state_dict().items())
    assert all(torch.allclose(before[k], v, atol=1e-6) for k, v in result.model.state_dict().items())


# precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["stack", "each"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_runs_and_is_near_float32(precision: str, engine: str) -> None:
    full, low = (
        tacit.train(federation(), model=smooth, rounds=3, engine=engine, precision=p)
        for p in ("float32", precision)
    )
    distance = (vector(full) - vector(low)).abs().max()
    assert distance < 0.05
    if precision == "bf16":
        assert distance > 0  # it did compute in fewer bits
    assert {v.dtype for v in low.model.state_dict().values()} == {torch.float32}


# plans ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    batch=st.sampled_from([None, 1, 3, 8]),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_a_plan_visits_every_row_once_per_epoch_alone_as_in_a_stack(
    sizes: list[int], batch: int | None, epochs: int, seed: int
) -> None:
    ids = identify([f"p{k}" for k in range(len(sizes))])
    stack = plan(seed, 2, ids, np.array(sizes), epochs, batch)
    for s, size in enumerate(sizes):
        mine, alone = stack.of(s), plan(seed, 2, ids[s : s + 1], np.array([size]), epochs, batch).of(0)
        for steps in mine.index[mine.live > 0].reshape(epochs, size):
            assert sorted(steps.tolist()) == list(range(size))
        assert torch.equal(mine.index[mine.live > 0], alone.index[alone.live > 0])
        assert torch.equal(mine.key, alone.key)
        assert mine.index.max() < size  # padding repeats the client's own rows


@pytest.mark.parametrize("engine", ["stack", "each"])
def test_a_diverging_run_does_not_affect_the_others_in_its_stack(engine: str) -> None:
    plans = [
        make_plan(federation(), model=smooth, algorithm=algorithms.Scaffold(lr=lr), per_round=3, batch_size=8)
        for lr in (0.05, 1e38, 0.1)
    ]
    together = played(plans, engine=engine)
    assert not torch.isfinite(together.w[1]).all()
    for i in (0, 2):
        assert torch.allclose(together.w[i], played([plans[i]], engine=engine).w[0], atol=1e-5, rtol=0)

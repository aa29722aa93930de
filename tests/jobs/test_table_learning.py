"""Losses, early stopping and defaults for tables: the same in every runtime, and equal to scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import algorithms, data, guard, models
from tacit.config import job as config
from tacit.engine.losses import Objective
from tacit.engine.task import Task
from tacit.errors import BadParameter
from tacit.jobs.stacks import alone_baselines, central_baseline
from tacit.jobs.train import stopping, table_defaults
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.objective import balance_classes
from tacit.jobs.train.party_rows import read_layout
from tacit.jobs.train.plan import make_plan
from tacit.jobs.train.preparing import program_of
from tacit.protocols.sum_program import ideal


def frame(rows: int = 400, seed: int = 0, sites: int = 5, codes: int = 0) -> pd.DataFrame:
    """Return rows of unequal sites with shifted features; one label in five is 'ill'."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, sites + 1)
    site = rng.choice(sites, rows, p=shares / shares.sum())
    x = rng.normal(size=(rows, 4)) + 0.5 * site[:, None]
    z = x @ np.array([1.0, -0.7, 0.4, 0.0]) + rng.logistic(size=rows)
    table = pd.DataFrame(x, columns=list("abcd")).assign(site=[f"s{k}" for k in site])
    if codes:
        code = rng.integers(codes, size=rows)
        z = z + 2 * np.sin(code)
        table["code"] = [f"I{k:03d}" for k in code]
    return table.assign(y=np.where(z > np.quantile(z, 0.8), "ill", "well"), cost=z)


def federation(**options: Any) -> data.Federation:
    table = frame(**options).drop(columns="cost")
    return data.from_frame(table, label="y", groups=["site"], test_fraction=0.0).by("site", held_fraction=0.3)


FED = federation()
OBJECTIVES: list[dict[str, Any]] = [
    {"class_weight": "balanced"},
    {"loss": "focal"},
    {"l2": 0.05},
    {"loss": "focal", "class_weight": {"ill": 4.0, "well": 0.5}, "l2": 0.01},
]
PLAIN = algorithms.FedAvg(lr=0.3)


def vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("options", OBJECTIVES, ids=lambda o: " ".join(o))
@pytest.mark.parametrize("model", ["logistic", models.MLP((5,))], ids=["logistic", "mlp"])
def test_stack_loop_and_messages_give_the_same_model(options: dict[str, Any], model: Any) -> None:
    common = {"model": model, "algorithm": PLAIN, "rounds": 3, "batch_size": 16, **options}
    stack, *others = (
        vector(tacit.train(FED, **common, **how).model)
        for how in ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"})
    )
    for other in others:
        assert torch.allclose(stack, other, atol=1e-6)
    plain = vector(tacit.train(FED, **{**common, "loss": None, "class_weight": None, "l2": 0.0}).model)
    assert not torch.allclose(stack, plain, atol=1e-4)  # the option changes the model


def test_processes_train_with_the_same_objective() -> None:
    common: dict[str, Any] = {"model": "logistic", "algorithm": PLAIN, "rounds": 2, **OBJECTIVES[-1]}
    here, there = (tacit.train(FED, **common, runtime=r).model for r in ("cohort", "processes"))
    assert torch.allclose(vector(here), vector(there), atol=1e-6)


def test_regression_in_a_stack_equals_the_loop() -> None:
    table = frame().drop(columns="y")
    fed = data.from_frame(table, label="cost", groups=["site"], test_fraction=0.0).by("site")
    common: dict[str, Any] = {"algorithm": PLAIN, "rounds": 3, "batch_size": 16, "l2": 0.01}
    for model in ("linear", models.MLP((5,))):
        stack, each = (
            vector(tacit.train(fed, model=model, engine=e, **common).model) for e in ("stack", "each")
        )
        assert torch.allclose(stack, each, atol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "mse"])
@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 1.0)])
def test_written_out_gradients_equal_autograd(loss: str, weights: tuple[float, ...]) -> None:
    if loss == "mse" and weights:
        weights = ()
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(2, 7, 1 if loss == "mse" else 3, generator=generator, requires_grad=True)
    y = (
        torch.randn(2, 7, generator=generator)
        if loss == "mse"
        else torch.randint(3, (2, 7), generator=generator)
    )
    share = torch.rand(2, 7, generator=generator)
    objective = Objective(loss, weights)
    tensor = objective.weights(out.device)
    total = sum((objective.of_rows(out[i], y[i], tensor) * share[i]).sum() for i in range(2))
    (by_autograd,) = torch.autograd.grad(total, out)  # type: ignore[arg-type]
    assert torch.allclose(objective.by_outputs(out.detach(), y, share, tensor), by_autograd, atol=1e-6)


def test_focal_loss_of_one_row_by_hand() -> None:
    """p = 1/(1 + e) for logits (0, 1) and class 0: −(1 − p)²·log p."""
    p = 1 / (1 + np.e)
    loss = Objective("focal").of_rows(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    assert float(loss) == pytest.approx(-((1 - p) ** 2) * np.log(p), rel=1e-6)


def test_the_penalty_leaves_biases_and_frozen_layers_alone() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    task = Task(module, torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), Objective(l2=0.5))
    w = torch.ones(task.dim)
    change = task.add_penalty(torch.zeros(task.dim), w)
    expected = torch.cat(
        [torch.zeros(2), torch.full((4,), 0.5), torch.zeros(2)]
    )  # the frozen weight is not in it
    assert torch.equal(change, expected)


@pytest.mark.parametrize("weight", [None, "balanced"])
def test_federated_logistic_regression_equals_scikit_learn_on_pooled_rows(weight: str | None) -> None:
    """The objective of unequal parties is that of the pooled rows, so the optimum is scikit-learn's.

    Two logits share a coefficient β as ±β/2, so λ/2·‖W‖² is λ/4·β²: C = 2/(λ·n).
    """
    from sklearn.linear_model import LogisticRegression

    l2 = 0.01
    run = tacit.train(FED, model="logistic", class_weight=weight, l2=l2)
    x, y = FED.rows.x[FED.train.index].numpy(), FED.rows.y[FED.train.index].numpy()
    pooled = LogisticRegression(C=2 / (l2 * len(y)), class_weight=weight, tol=1e-10, max_iter=2000).fit(x, y)
    layer = run.model[1]
    found = (layer.weight[1] - layer.weight[0]).detach().numpy()
    assert np.allclose(found, pooled.coef_[0], atol=2e-3)
    assert float((layer.bias[1] - layer.bias[0]).detach()) == pytest.approx(pooled.intercept_[0], abs=2e-3)


def test_federated_ridge_equals_scikit_learn_on_pooled_rows() -> None:
    """mean (y − xβ)² + λ/2·β² has the optimum of Ridge with α = λ·n/2."""
    from sklearn.linear_model import Ridge

    table = frame().drop(columns="y")
    fed = data.from_frame(table, label="cost", groups=["site"], test_fraction=0.0).by("site")
    run = tacit.train(fed, model="linear", l2=0.02)
    x, y = fed.rows.x[fed.train.index].numpy(), fed.rows.y[fed.train.index].numpy()
    pooled = Ridge(alpha=0.02 * len(y) / 2).fit(x, y)
    assert np.allclose(run.model[1].weight.detach().numpy()[0], pooled.coef_, atol=1e-3)


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    y = FED.rows.y[FED.train.index].numpy()
    p = make_plan(FED, model="logistic", class_weight="balanced")
    assert p.class_weight == pytest.approx(compute_class_weight("balanced", classes=np.array([0, 1]), y=y))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_weight": {"ill": 2.0}}, "with a weight for each of"),
        ({"class_weight": [1.0, 2.0, 3.0]}, "of 2 numbers, one for each of"),
        ({"class_weight": {"ill": -1.0, "well": 1.0}}, "a number of at least 0 by label"),
        ({"class_weight": "even"}, "'balanced', a number"),
        ({"loss": "mse"}, "'mse' is not for a classification"),
        ({"metric": "r2"}, "'r2' is not for a classification"),
        ({"model": "linear"}, "'linear' is a regression"),
        ({"patience": 3, "evaluate_every": 0}, "evaluate_every=0"),
        ({"patience": 3, "algorithm": "Ditto"}, "a model for each party or cluster"),
        ({"patience": 3, "guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)]}, "ε of Noise"),
        (
            {"class_weight": "balanced", "guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)]},
            "no ε covers",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=words.replace("(", r"\(")):
        tacit.train(FED, **{"model": "logistic", **options}, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_linear_regression_is_never_called_logistic() -> None:
    fed = data.from_frame(frame().drop(columns="y"), label="cost", groups=["site"]).by("site")
    for model in ("linear", "logistic", models.Logistic()):
        run = tacit.train(fed, model=model, rounds=1)
        assert run.config["model"]["name"] == "linear"
        assert run.events[0]["model"]["name"] == "linear"
        assert "logistic" not in str(run.config)


# --------------------------------------------------------------------------------------------- early stopping

STOPS: dict[str, Any] = {
    "model": models.MLP((16,)),
    "algorithm": algorithms.FedAvg(lr=0.5),
    "rounds": 60,
    "batch_size": 16,
    "metric": "auc",
    "patience": 3,
}


def stop_of(run: Any) -> dict[str, Any]:
    (event,) = [e for e in run.events if e["kind"] == "stop"]
    return event


@pytest.mark.parametrize(
    "stages", [None, [guard.Clip(9.0), guard.Quantize(bits=24), guard.SecAgg(threshold=0.6)]]
)
def test_a_run_stops_at_the_same_round_in_simulation_and_over_messages(stages: Any) -> None:
    here, there = (tacit.train(FED, **STOPS, guard=stages, runtime=r) for r in ("cohort", "inprocess"))
    a, b = stop_of(here), stop_of(there)
    assert a["early"]
    assert a["round"] < STOPS["rounds"]
    assert (a["round"], a["best_round"]) == (b["round"], b["best_round"])
    assert torch.allclose(vector(here.model), vector(there.model), atol=1e-4)


def test_the_model_is_that_of_the_best_evaluated_round() -> None:
    run = tacit.train(FED, **STOPS)
    stop = stop_of(run)
    history = {e["round"]: e["auc"] for e in run.events if e["kind"] == "round" and e["round"]}
    assert stop["value"] == max(history.values()) == run.metrics["auc"]
    assert stop["round"] - stop["best_round"] == STOPS["patience"]
    again = tacit.train(FED, **{**STOPS, "patience": None, "rounds": stop["best_round"]})
    assert torch.equal(vector(run.model), vector(again.model))
    assert any(e["kind"] == "note" and e["text"].startswith("early stopping") for e in run.events)
    assert run.events[-1]["kind"] == "end"


@pytest.mark.parametrize(
    "stages", [None, [guard.Clip(9.0), guard.Quantize(bits=24), guard.SecAgg(threshold=0.6)]]
)
def test_a_global_test_set_judges_and_held_out_rows_choose(stages: Any) -> None:
    table = frame().drop(columns="cost")
    fed = data.from_frame(table, label="y", groups=["site"]).by("site", held_fraction=0.3)
    runs = [tacit.train(fed, **STOPS, guard=stages, runtime=r) for r in ("cohort", "inprocess")]
    for run in runs:
        stop, rounds = (
            stop_of(run),
            {e["round"]: e for e in run.events if e["kind"] == "round" and e["round"]},
        )
        best = rounds[stop["best_round"]]
        assert stop["value"] == max(e["validation"]["auc"] for e in rounds.values())
        assert run.metrics["auc"] == best["auc"] != best["validation"]["auc"]
    assert stop_of(runs[0])["best_round"] == stop_of(runs[1])["best_round"]


def test_a_run_can_stop_by_another_metric_than_it_is_judged_by() -> None:
    run = tacit.train(FED, **{**STOPS, "metric": "auc", "stop_by": "loss", "rounds": 12})
    stop, rounds = stop_of(run), {e["round"]: e for e in run.events if e["kind"] == "round" and e["round"]}
    assert (stop["metric"], run.metric) == ("loss", "auc")
    assert stop["value"] == min(e["loss"] for e in rounds.values())
    assert run.metrics["auc"] == rounds[stop["best_round"]]["auc"]


def test_stop_by_needs_patience_and_a_metric_of_the_task() -> None:
    with pytest.raises(BadParameter, match=r"stop_by.*the run has none"):
        make_plan(FED, model="mlp", rounds=5, stop_by="loss")
    with pytest.raises(BadParameter, match=r"stop_by.*'r2' is not for a classification"):
        make_plan(FED, model="mlp", stop_by="r2")


@pytest.mark.parametrize("test_fraction", [0.0, 0.25])
def test_a_table_without_reported_rows_stops_after_fixed_rounds(
    test_fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No party holds back min_rows rows. Neither is the test set used instead, nor are all rounds run."""
    monkeypatch.setattr(stopping, "BLIND_ROUNDS", 10)
    table = frame(rows=200).drop(columns="cost")
    fed = data.from_frame(table, label="y", groups=["site"], test_fraction=test_fraction).by(
        "site", held_fraction=0.05
    )
    assert 0 < int(fed.held.sizes.max()) < 10
    p = make_plan(fed, model=models.MLP((5,)))
    assert (p.rounds, p.stop_by) == (table_defaults.NETWORK["rounds"], "loss")
    # the options of the job file, as a resumed run has them
    named = {name: getattr(p, name) for name in p.preset} | {"l2": p.l2, "model": p.model}
    runs = [
        tacit.train(fed, model=p.model),
        tacit.train(fed, **named),
        tacit.train(fed, model=p.model, runtime="inprocess"),
    ]
    for run in runs:
        assert max(e["round"] for e in run.events if e["kind"] == "round") == 10
        assert not any(e["kind"] == "stop" for e in run.events)
        assert any(e["kind"] == "note" and e["text"].startswith("nothing to stop by") for e in run.events)
        assert torch.allclose(vector(run.model), vector(runs[0].model), atol=1e-5)


def test_a_network_without_held_out_rows_has_fixed_rounds() -> None:
    table = frame().drop(columns="cost")
    fed = data.from_frame(table, label="y", groups=["site"]).by("site", held_fraction=0.0)
    p = make_plan(fed, model="mlp")
    assert (p.rounds, p.patience, p.stop_by) == (table_defaults.BLIND_ROUNDS, None, None)


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        ({}, "loss"),
        ({"metric": "f1"}, "f1"),
        ({"class_weight": "balanced"}, "auc"),
        ({"loss": "focal"}, "auc"),
        ({"stop_by": "brier"}, "brier"),
    ],
    ids=str,
)
def test_a_network_stops_by_the_metric_asked_for_or_by_the_loss(options: dict[str, Any], metric: str) -> None:
    assert make_plan(FED, model="mlp", **options).stop_by == metric


def test_patience_none_trains_for_fixed_rounds() -> None:
    p = make_plan(FED, model="mlp", patience=None)
    assert (p.rounds, p.patience, p.stop_by) == (table_defaults.BLIND_ROUNDS, None, None)


def test_early_stopping_predicts_by_the_threshold_of_the_run() -> None:
    table = frame().drop(columns="cost")
    fed = data.from_frame(table, label="y", groups=["site"]).by("site", held_fraction=0.3)
    options = {**STOPS, "metric": "f1", "threshold": 0.2, "rounds": 6}
    here, there = (tacit.train(fed, **options, runtime=r) for r in ("cohort", "inprocess"))
    figures = [[e["validation"]["f1"] for e in run.events if "validation" in e] for run in (here, there)]
    assert figures[0] == pytest.approx(figures[1], abs=1e-6)
    assert stop_of(here)["best_round"] == stop_of(there)["best_round"] == here.metrics["best_round"]
    assert here.metrics["best_f1"] == here.metrics["f1"]


def test_stacked_runs_stop_each_at_its_own_round() -> None:
    compared = tacit.compare(
        FED,
        algorithms=[algorithms.FedAvg(lr=0.5)],
        seeds=3,
        **{k: v for k, v in STOPS.items() if k != "algorithm"},
    )
    runs = [r for r in compared.results if r.events[0]["label"] == "FedAvg"]
    assert len({stop_of(r)["round"] for r in runs}) > 1
    for r in runs:
        alone = tacit.train(FED, **STOPS, seed=r.events[0]["seed"])
        assert stop_of(alone)["best_round"] == stop_of(r)["best_round"]
        assert torch.allclose(vector(alone.model), vector(r.model), atol=1e-4)


def test_a_resumed_run_stops_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = tacit.train(FED, **STOPS, out=tmp_path / "whole")
    best = stop_of(whole)["best_round"]

    class Stop(Exception):
        pass

    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] == best + 2:  # the best model is behind, in the state
            raise Stop

    with pytest.raises(Stop):
        tacit.train(FED, **STOPS, out=tmp_path / "half", watch=interrupt)
    resumed = tacit.train(FED, **STOPS, out=tmp_path / "half", resume=True)
    assert stop_of(resumed) == stop_of(whole)
    assert torch.equal(vector(resumed.model), vector(whole.model))
    ended = tacit.train(FED, **STOPS, out=tmp_path / "half", resume=True)  # nothing is left to do
    assert torch.equal(vector(ended.model), vector(whole.model))


def test_processes_are_told_that_training_ended_early() -> None:
    """They end by themselves: a party that was not told would keep the run from returning."""
    run = tacit.train(FED, **{**STOPS, "model": "logistic", "patience": 1, "rounds": 20}, runtime="processes")
    assert stop_of(run)["round"] < 20
    assert run.metrics["auc"] == stop_of(run)["value"]


# --------------------------------------------------------------------------------------------------- defaults


def test_a_table_chooses_how_it_is_trained_and_says_so() -> None:
    run = tacit.train(FED, model="logistic")
    job, notes = run.config, [e["text"] for e in run.events if e["kind"] == "note"]
    assert (job["algorithm"]["name"], job["algorithm"]["parties"]) == ("FedLBFGSCV", len(FED))
    assert (job["train"]["rounds"], job["train"]["l2"]) == (30, 0.0)
    assert any("chosen for this table" in text and "l2=cross-validated" in text for text in notes)
    assert any(text.startswith("l2 = ") and "cross-validation" in text for text in notes)
    network = make_plan(FED, model="mlp")
    assert isinstance(network.algorithm, algorithms.FedAdam)
    assert (network.local_steps, network.patience, network.stop_by, network.l2) == (1, 20, "loss", 0.003)


@pytest.mark.parametrize(
    "options",
    [{"rounds": 10}, {"algorithm": "FedAvg"}, {"local_epochs": 1}, {"batch_size": 32}, {"local_steps": 1}],
    ids=lambda o: next(iter(o)),
)
def test_whoever_says_how_to_train_chooses_all_of_it(options: dict[str, Any]) -> None:
    p = make_plan(FED, model="mlp", **options)
    assert p.preset == ()
    assert p.algorithm == algorithms.FedAvg()
    assert p.patience is None


def test_without_a_model_a_table_has_a_linear_one_and_other_rows_a_network(tmp_path: Path) -> None:
    assert make_plan(FED).model == models.Logistic()
    cost = data.from_frame(frame().drop(columns="y"), label="cost", groups=["site"]).by("site")
    assert make_plan(cost).model == models.Linear()
    assert make_plan(data.digits().split(3)).model == models.MLP()
    compared = tacit.compare(FED)
    assert "FedLBFGSCV" in compared.table().index
    assert {run.config["model"]["name"] for run in compared.results} == {"logistic"}
    frame().drop(columns="cost").to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "job.toml").write_text('[data]\npath = "t.csv"\nlabel = "y"\nby = "site"\n')
    job = config.load(tmp_path / "job.toml")
    options = {k: v for k, v in job.train().items() if k != "data_job"}
    assert make_plan(job.federations()[0], **options).model == models.Logistic()
    assert deployed_plan(model=None).model == models.Logistic()


def test_the_penalty_of_linear_models_follows_from_the_number_of_rows() -> None:
    """λ_k = 10/(K·n_k) of real parties, averaged by rows as their gradients are, is the 10/n of a simulation."""
    sizes = FED.train.sizes.tolist()
    n, masked = sum(sizes), [guard.Clip(5.0), guard.Quantize(), guard.SecAgg(max_rows=1000)]
    mean = sum(rows / n * table_defaults.party_l2(rows, len(sizes)) for rows in sizes)
    assert mean == pytest.approx(10 / n, rel=1e-12)
    for options in (  # one λ for all algorithms of a comparison
        {"algorithm": PLAIN},
        {"algorithm": algorithms.FedLBFGS()},
        {"algorithm": algorithms.FedAdam(), "per_round": 2},
        {"guard": masked},
    ):
        assert make_plan(FED, model="logistic", **options).l2 == 10 / n
        assert deployed_plan(**options).l2 is None
    assert make_plan(FED, model="logistic", guard=masked).algorithm == algorithms.FedLBFGS()
    noisy = {"algorithm": algorithms.FedLBFGS(), "guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)]}
    assert make_plan(FED, model="logistic", **noisy).l2 == 0.001  # n is hidden


@pytest.mark.parametrize("algorithm", [PLAIN, algorithms.FedLBFGSCV()], ids=["10/n", "cross-validated"])
def test_a_party_alone_has_the_penalty_of_its_own_rows(algorithm: algorithms.Algorithm) -> None:
    p = make_plan(FED, model="logistic", algorithm=algorithm)
    for k, alone in enumerate(alone_baselines(p, p.algorithm)):
        if isinstance(alone.algorithm, algorithms.FedLBFGSCV):
            assert (alone.algorithm.parties, alone.l2) == (1.0, 0.0)
        else:
            assert alone.l2 == 10 / int(FED.train.sizes[k])
    given = make_plan(FED, model="logistic", algorithm=PLAIN, l2=0.5)
    assert {q.l2 for q in alone_baselines(given, PLAIN)} == {0.5}
    assert central_baseline(given, PLAIN).l2 == 0.5


def test_other_options_replace_single_defaults() -> None:
    p = make_plan(FED, model="logistic", l2=0.0, evaluate_every=2, algorithm=None)
    assert (p.l2, p.evaluate_every, p.rounds) == (0.0, 2, 30)
    assert make_plan(FED, model="mlp", patience=4).patience == 4
    arrays = data.digits().split(3)
    assert make_plan(arrays, model="logistic").preset == ()
    assert make_plan(arrays, model="logistic").l2 == 0.0


def test_a_job_file_without_an_algorithm_has_the_same_defaults(tmp_path: Path) -> None:
    frame().drop(columns="cost").to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "t.csv"\nlabel = "y"\nby = "site"\ngroups = ["site"]\n[model]\nname = "logistic"\n'
    )
    job = config.load(tmp_path / "job.toml")
    (fed,) = job.federations()
    run = tacit.train(fed, **job.train(), out=tmp_path / "run")
    assert run.config["algorithm"]["name"] == "FedLBFGSCV"
    again = config.of_run(tmp_path / "run")
    assert again.train()["algorithm"] == algorithms.FedLBFGSCV(parties=float(len(fed)))


def test_a_party_computes_with_the_objective_of_the_contract() -> None:
    """What a party minimizes is in the contract, as numbers, so a server cannot change it unseen."""
    p = make_plan(
        FED,
        model="logistic",
        algorithm=PLAIN,
        class_weight="balanced",
        loss="focal",
        l2=0.01,
        patience=2,
        metric="auc",
        runtime="processes",
    )
    contract = Contract.of(p, None, "server", [4])
    theirs = Contract.read(contract.text).plan()
    assert theirs.objective == p.objective
    assert (theirs.metric, theirs.patience) == ("auc", 2)
    other = make_plan(FED, model="logistic", algorithm=PLAIN, class_weight={"ill": 9, "well": 1})
    found = contract.differences(Contract.of(other, None, "server", [4]))
    assert any(line.startswith("train.class_weight") for line in found)


LAYOUT: dict[str, Any] = {"label": "y", "labels": ["ill", "well"], "numbers": list("abcd")}
CLINICS = ("a", "b", "c")


def deployed_plan(layout: dict[str, Any] = LAYOUT, parties: tuple[str, ...] = CLINICS, **options: Any) -> Any:
    recipe = read_layout(layout).recipe
    fed = Elsewhere.of("clinics", parties, (len(recipe.columns),), tuple(layout["labels"]), recipe.columns)
    return make_plan(fed, **{"model": "logistic", "runtime": Deployed(None, layout), **options})


@pytest.mark.parametrize("model", ["logistic", "mlp", "table_network"])
def test_real_parties_without_an_algorithm_derive_one_contract(model: str) -> None:
    """The server's contract and that of a party with the same job are equal, and have the defaults of tables."""
    p = deployed_plan(model=model)
    contract = Contract.of(p, LAYOUT, "server", [4])
    theirs = Contract.read(contract.text).plan()
    assert Contract.of(theirs, LAYOUT, "server", [4]).digest == contract.digest
    assert Contract.of(deployed_plan(model=model), LAYOUT, "server", [4]).digest == contract.digest
    cross_validated = {"algorithm": algorithms.FedLBFGSCV(parties=3.0)}
    preset = table_defaults.LINEAR | cross_validated if model == "logistic" else table_defaults.NETWORK
    for name, value in preset.items():
        assert getattr(p, name) == getattr(theirs, name) == value
    assert p.l2 == theirs.l2 == (0.0 if model == "logistic" else 0.003)
    other = Contract.of(deployed_plan(model=model, rounds=7), LAYOUT, "server", [4])
    assert any(line.startswith("train.rounds") for line in contract.differences(other))


def test_balanced_weights_of_real_parties_follow_from_the_preparation() -> None:
    p = deployed_plan(class_weight="balanced")
    contract = Contract.of(p, LAYOUT, "server", [4])
    assert contract.tables["train"]["class_weight"] == "balanced"
    assert "how many rows have each label" in contract.describe()
    theirs = Contract.read(contract.text).plan()
    program = program_of(theirs, LAYOUT)
    assert program is not None
    tables = {n: frame(rows, seed=k).iloc[:, :-1] for k, (n, rows) in enumerate(zip(CLINICS, (50, 90, 20)))}
    fitted = ideal(program, tables)
    pooled = pd.concat(tables.values())
    fed = data.from_frame(pooled.drop(columns="site"), label="y", test_fraction=0.0).split(
        1, held_fraction=0.0
    )
    simulated = make_plan(fed, model="logistic", class_weight="balanced")
    assert balance_classes(theirs, fitted).class_weight == simulated.class_weight
    assert balance_classes(theirs, fitted).objective == simulated.objective
    assert program_of(deployed_plan(), LAYOUT).counts_labels is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("layout", "parties"),
    [
        ({}, ("a", "b")),
        ({"fit": "party"}, CLINICS),
        ({"mean": [0.0] * 4, "std": [1.0] * 4}, CLINICS),
    ],
    ids=["two parties", "own statistics", "declared statistics"],
)
def test_balanced_weights_without_a_preparation_are_refused(
    layout: dict[str, Any], parties: tuple[str, ...]
) -> None:
    with pytest.raises(BadParameter, match="which are summed with the statistics of the tables"):
        deployed_plan({**LAYOUT, **layout}, parties, class_weight="balanced")
    deployed_plan({**LAYOUT, **layout}, parties, class_weight={"ill": 4, "well": 1})
    deployed_plan({**LAYOUT, "fit": "federated"}, ("a", "b"), class_weight="balanced")


def test_balanced_weights_with_a_private_preparation_are_refused() -> None:
    table = frame().drop(columns="cost")
    bounds = {name: (-5, 9) for name in "abcd"}
    fed = data.from_frame(table, label="y", groups=["site"], fit_epsilon=1.0, bounds=bounds).by("site")
    with pytest.raises(BadParameter, match="which no ε covers"):
        tacit.train(fed, model="logistic", class_weight="balanced")


def test_the_ledger_has_the_label_counts() -> None:
    for runtime in ("cohort", "inprocess"):
        run = tacit.train(FED, model="logistic", class_weight="balanced", runtime=runtime)
        lines = [line for line in run.ledger.seen if line.kind == "LabelCounts"]
        assert [line.party for line in lines] == ["server", "5 parties, together"]
        counts = torch.bincount(FED.rows.y[FED.train.index]).tolist()
        assert list(run.pipeline.label_counts) == counts  # type: ignore[union-attr]
    plain = tacit.train(FED, model="logistic", class_weight={"ill": 4, "well": 1})
    assert not any(line.kind == "LabelCounts" for line in plain.ledger.seen)
    assert plain.pipeline.label_counts == ()  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------- embeddings


def test_an_embedded_column_is_a_lookup_in_a_table() -> None:
    """The product with a one-hot row is nn.Embedding's row; a missing value, all zeros, adds nothing."""
    net = models.TableNetwork(hidden=(3,), starts=(1,), sizes=(20,)).build((22,), 2)
    front: Any = net[0]
    table = front.tables[0].weight.T
    x = torch.zeros(3, 22)
    x[:, 0], x[:, 21] = 5.0, 7.0
    x[0, 1 + 4] = x[1, 1 + 19] = 1.0
    out = front(x)
    looked_up = torch.nn.functional.embedding(torch.tensor([4, 19]), table)
    assert torch.equal(out[:2, 2:], looked_up)
    assert torch.equal(out[2], torch.tensor([5.0, 7.0] + [0.0] * 8))


def test_a_table_network_embeds_columns_with_many_categories() -> None:
    fed = federation(rows=600, codes=30)
    p = make_plan(fed, model="table_network")
    assert (p.algorithm, p.l2) == (table_defaults.EMBEDDINGS["algorithm"], 0.0)  # rare categories are learned
    assert make_plan(fed, model=models.TableNetwork(above=99)).l2 == table_defaults.NETWORK["l2"]
    columns = fed.pipeline.columns  # type: ignore[union-attr]
    (start,), (size,) = p.model.starts, p.model.sizes
    assert all(name.startswith("code=") for name in columns[start : start + size])
    assert size > 16
    assert sum(name.startswith("code=") for name in columns) == size
    stack, each, messages = (
        vector(tacit.train(fed, model="table_network", algorithm=PLAIN, rounds=2, **how).model)
        for how in ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"})
    )
    assert torch.allclose(stack, each, atol=1e-6)
    assert torch.allclose(stack, messages, atol=1e-6)
    assert Contract.read(Contract.of(p, None, "server", [len(columns)]).text).plan().model == p.model


def test_blocks_that_do_not_fit_are_refused() -> None:
    for starts, sizes in (((1,), (30,)), ((4, 2), (3, 3)), ((1,), ())):
        with pytest.raises(BadParameter, match="starts and sizes"):
            models.TableNetwork(starts=starts, sizes=sizes).build((22,), 2)

"""Own metrics: of the test set, or over the parties; functions and torchmetrics objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor

import tacit
from tacit import algorithms, data, guard
from tacit.errors import BadParameter

FED = data.gaussian_blobs(rows=200, seed=0).split(4, skew=data.Quantity(alpha=2.0), seed=0, held_fraction=0.3)
APART = type(FED)(**{**vars(FED), "test": type(FED.test)(FED.test.x[:0], FED.test.y[:0])})
OPTIONS: dict[str, Any] = {"model": "logistic", "rounds": 2, "algorithm": algorithms.FedAvg(lr=0.1)}
CLASSES = int(FED.classes or 0)


def hit(out: Tensor, y: Tensor) -> Tensor:
    return (out.argmax(1) == y).float().mean()


def margin(out: Tensor, y: Tensor) -> float:
    top = out.topk(2, dim=1).values
    return float((top[:, 0] - top[:, 1]).mean())


def objects() -> dict[str, Any]:
    return {
        "hit": hit,
        "margin": margin,
        "tm_accuracy": torchmetrics.Accuracy("multiclass", num_classes=CLASSES, average="micro"),
        "tm_f1": torchmetrics.F1Score("multiclass", num_classes=CLASSES, average="macro"),
    }


@pytest.mark.parametrize("fed", [FED, APART], ids=["test set", "parties"])
def test_metrics_are_those_of_all_rows_and_in_every_record(fed: Any) -> None:
    run = tacit.train(fed, metrics=objects(), min_rows=1, **OPTIONS)
    rows = fed.test if len(fed.test.y) else fed.rows
    index = torch.arange(len(rows.y)) if len(fed.test.y) else fed.held.index
    out, y = run.model(rows.x[index]).detach(), rows.y[index]
    assert run.metrics["hit"] == pytest.approx(run.metrics["accuracy"])
    assert run.metrics["tm_accuracy"] == pytest.approx(run.metrics["accuracy"])
    # sums of states: the F1 score of all rows, not a mean of the parties'
    assert run.metrics["tm_f1"] == pytest.approx(run.metrics["f1"], abs=1e-6)
    assert run.metrics["margin"] == pytest.approx(margin(out, y), rel=1e-5)
    assert all("margin" in row for row in run.history)


def test_parties_with_few_rows_are_in_no_metric() -> None:
    sizes = APART.held.sizes
    least = int(sizes.max())
    run = tacit.train(APART, metrics={"hit": hit}, min_rows=least, **OPTIONS)
    assert run.metrics["hit"] == pytest.approx(run.metrics["accuracy"])


def sums() -> dict[str, Any]:
    auc = torchmetrics.AUROC("multiclass", num_classes=CLASSES, thresholds=20)
    return {
        **objects(),
        "a_tm_auc": auc,
        "confident": torchmetrics.HingeLoss("multiclass", num_classes=CLASSES),
    }


HIDDEN = [guard.Clip(20.0), guard.Quantize(bits=32, stochastic=False), guard.SecAgg(threshold=0.7)]


@pytest.mark.parametrize("how", [{}, {"guard": HIDDEN}], ids=["clear", "hidden"])
def test_parties_send_sums_of_metrics_that_give_those_of_the_simulation(how: dict[str, Any]) -> None:
    here, there = (
        tacit.train(APART, metrics=sums(), min_rows=1, runtime=runtime, **OPTIONS, **how)
        for runtime in ("cohort", "inprocess")
    )
    for name in sums():
        assert there.metrics[name] == pytest.approx(here.metrics[name], rel=1e-4)
    assert there.metrics["tm_f1"] == pytest.approx(there.metrics["f1"], abs=1e-6)
    assert any("sums of the job's own metrics (hit" in s.reveals for s in there.ledger.seen)


def test_processes_compute_functions_that_they_can_import() -> None:
    here, there = (
        tacit.train(APART, metrics={"margin": margin}, min_rows=1, runtime=runtime, **OPTIONS)
        for runtime in ("cohort", "processes")
    )
    assert there.metrics["margin"] == pytest.approx(here.metrics["margin"], rel=1e-4)


def test_parties_with_few_rows_send_no_sums_of_metrics() -> None:
    least = int(APART.held.sizes.max())
    run = tacit.train(APART, metrics={"hit": hit}, min_rows=least, runtime="inprocess", **OPTIONS)
    assert run.metrics["hit"] == pytest.approx(run.metrics["accuracy"])


def nothing(out: Tensor, y: Tensor) -> float:
    return float("nan")


def test_a_metric_that_is_not_a_number_leaves_the_hidden_sum_of_the_others_alone() -> None:
    run = tacit.train(
        APART, metrics={"nothing": nothing}, min_rows=1, runtime="inprocess", guard=HIDDEN, **OPTIONS
    )
    assert run.metrics["nothing"] != run.metrics["nothing"]
    assert run.metrics["loss"] < 10


@pytest.mark.parametrize(
    ("metric", "runtime", "words"),
    [
        (torchmetrics.AUROC("multiclass", num_classes=3), "inprocess", "has states that are not sums"),
        (torchmetrics.MaxMetric(), "inprocess", "has states that are not sums"),
        (torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()), "inprocess", "states that are not sums"),
        (torchmetrics.MeanMetric(), "processes", "is an object of this process"),
    ],
)
def test_metrics_whose_sums_no_party_can_send_are_refused(metric: Any, runtime: str, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(APART, metrics={"m": metric}, runtime=runtime, **OPTIONS)


def test_messages_give_the_same_metrics_of_a_test_set() -> None:
    here, there = (
        tacit.train(FED, metrics=objects(), runtime=runtime, **OPTIONS).metrics
        for runtime in ("cohort", "inprocess")
    )
    for name in objects():
        assert there[name] == pytest.approx(here[name], rel=1e-4)


def test_they_are_in_the_report_and_on_the_card(tmp_path: Any) -> None:
    run = tacit.train(FED, metrics={"margin": margin}, out=tmp_path / "run", **OPTIONS)
    assert "your own metric" in run.report().read_text()
    assert "| margin |" in run.card()


def test_the_users_object_stays_as_it_was() -> None:
    metric = torchmetrics.MeanMetric()
    metric.update(torch.tensor(3.0))
    tacit.train(FED, metrics={"tm": torchmetrics.Accuracy("multiclass", num_classes=CLASSES)}, **OPTIONS)
    assert float(metric.compute()) == 3.0


@pytest.mark.parametrize(
    ("metrics", "more", "words"),
    [
        ({"accuracy": hit}, {}, "the name of a metric is 'accuracy'; it must be a name"),
        ({"my hit": hit}, {}, "the name of a metric is 'my hit'"),
        ([hit], {}, "it must be a dict of names and functions"),
        ({"hit": torchmetrics.Accuracy}, {}, "it must be a dict of names and functions"),
        ({"all": lambda out, y: out}, {}, r"metrics: 'all' returns a tensor of shape"),
        ({"bad": lambda out, y: 1 / 0}, {}, "metrics: 'bad' cannot be computed from outputs of shape"),
    ],
)
def test_metrics_that_cannot_be_used_are_refused(metrics: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(FED, metrics=metrics, **OPTIONS, **more)


def test_without_a_test_set_only_sums_leave_a_party() -> None:
    exact = torchmetrics.AUROC("multiclass", num_classes=CLASSES)
    with pytest.raises(BadParameter, match="'auroc' keeps every prediction"):
        tacit.train(APART, metrics={"auroc": exact}, **OPTIONS)
    assert 0 <= tacit.train(FED, metrics={"auroc": exact}, **OPTIONS).metrics["auroc"] <= 1
    binned = torchmetrics.AUROC("multiclass", num_classes=CLASSES, thresholds=50)
    assert "auroc" in tacit.train(APART, metrics={"auroc": binned}, min_rows=1, **OPTIONS).metrics

"""Evaluation with more classes than a confusion matrix has room for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit import algorithms, data
from tacit.engine import metrics
from tacit.engine.intervals import intervals
from tacit.engine.metrics import count, describe, measure_all
from tacit.engine.subgroups import Tally
from tacit.errors import ProtocolError
from tacit.jobs.train.counts import pack_tally, unpack_tally

from .own.memory import measure_peak

CLASSES = 20_000  # the vocabulary of a small language model
MB = 2**20


def outputs(n: int, classes: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes, (n,), generator=g)
    out = torch.randn(n, classes, generator=g)
    out[torch.arange(n // 2), y[: n // 2]] += 8.0
    return out, y


def test_metrics_from_counts_by_class_are_those_of_the_matrix(monkeypatch) -> None:
    out, y = outputs(200, 7)
    exact = measure_all(count(out, y, 7, curves=False)) | intervals(count(out, y, 7, curves=False))
    monkeypatch.setattr(metrics, "MANY_CLASSES", 6)
    condensed = count(out, y, 7)
    assert condensed.confusion.shape == (3, 7)
    found = measure_all(condensed) | intervals(condensed)
    kept = {"loss", "accuracy", "precision", "recall", "f1", "brier", "majority"}
    ends = {f"{name}_{end}" for name in ("loss", "accuracy", "brier") for end in ("low", "high")}
    assert set(found) == kept | ends
    for name in found:
        assert found[name] == pytest.approx(exact[name], abs=1e-6), name
    assert describe(condensed) == {}


def test_counting_20000_classes_takes_megabytes() -> None:
    """A matrix of all pairs of float64 takes 3.2 GB, and histograms of scores 330 MB."""
    out, y = outputs(300, CLASSES)
    with measure_peak() as peak:
        found = measure_all(count(out, y, CLASSES))
    assert peak.growth < 250 * MB, f"{peak.growth / MB:.0f} MB"
    assert found["accuracy"] == pytest.approx(float((out.argmax(1) == y).float().mean()))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, 4)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embedding(ids))


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_a_language_model_of_20000_words_trains_and_is_evaluated(runtime: str) -> None:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, CLASSES, (36, 5), generator=g)
    fed = data.from_arrays(ids, ids.clone(), tokens=True, classes=CLASSES).split(3, seed=0, held_fraction=0.3)
    with measure_peak() as peak:
        run = tacit.train(
            fed,
            model=Words(),
            rounds=1,
            batch_size=4,
            algorithm=algorithms.FedAvg(lr=1.0),
            runtime=runtime,
            min_rows=1,
        )
    assert peak.growth < 400 * MB, f"{peak.growth / MB:.0f} MB"
    with torch.no_grad():
        logits = run.model(fed.test.x)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), fed.test.y.flatten())
    assert run.metrics["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert "confusion" not in run.metrics


def test_counts_by_class_that_do_not_add_up_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "MANY_CLASSES", 6)
    out, y = outputs(200, 7)
    tally, blank = Tally(count(out, y, 7)), Tally(count(out[:0], y[:0], 7))
    sent = pack_tally(tally)
    assert torch.equal(unpack_tally(sent, blank).total.confusion, tally.total.confusion)
    more = tally.total.confusion.clone()
    more[2, 0] += 1
    for confusion in (more, tally.total.confusion.roll(1, 0)):
        with pytest.raises(ProtocolError, match="do not add up"):
            unpack_tally(pack_tally(Tally(tally.total._replace(confusion=confusion))), blank)

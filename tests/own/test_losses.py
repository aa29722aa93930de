"""Any loss: by name or a function, for one label or several per row. Each equals torch's own, and gives the
same model stacked, one by one and over messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from tacit import algorithms, private
from tacit.data.arrays import from_arrays
from tacit.engine.losses import Objective
from tacit.errors import BadParameter

RNG = np.random.default_rng(0)
N = 90
X = RNG.normal(size=(N, 6)).astype(np.float32)
FAST: dict[str, Any] = {"rounds": 2, "batch_size": 8, "algorithm": algorithms.FedAvg(lr=0.1)}


def smooth(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy with smoothed labels: a loss per row."""
    return F.cross_entropy(out, y, reduction="none", label_smoothing=0.1)


def contrast(out: Tensor, y: Tensor) -> Tensor:
    """Rows of one class attract each other: one number for the batch."""
    z = F.normalize(out, dim=1)
    same = (y[:, None] == y[None, :]).float()
    return ((z @ z.T) * (1 - 2 * same)).mean()


def split(y: Any, x: Any = X, **more: Any) -> Any:
    return from_arrays(x, y, **more).split(3, seed=0, held_fraction=0.2)


def weights(run: Any) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


# names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("mse", F.mse_loss),
        ("mae", F.l1_loss),
        ("huber", F.huber_loss),
        ("poisson", F.poisson_nll_loss),
        ("bce", F.binary_cross_entropy_with_logits),
    ],
)
@pytest.mark.parametrize("shape", [(7,), (7, 4), (7, 2, 3)], ids=str)
def test_a_named_loss_is_torchs(name: str, reference: Any, shape: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    out = torch.randn(shape, generator=g) * 3
    y = torch.randint(0, 2, shape, generator=g).float()
    expected = reference(out, y, reduction="none").reshape(7, -1).mean(1)
    assert torch.allclose(Objective(name).of_rows(out, y), expected, atol=1e-6)


def test_labels_of_pixels_are_torchs_cross_entropy_and_minus_one_is_ignored() -> None:
    g = torch.Generator().manual_seed(0)
    out, y = torch.randn(5, 3, 4, 4, generator=g), torch.randint(-1, 3, (5, 4, 4), generator=g)
    each = F.cross_entropy(out, y, reduction="none", ignore_index=-1)
    expected = torch.stack([e[t >= 0].mean() for e, t in zip(each, y)])
    assert torch.allclose(Objective().of_rows(out, y), expected, atol=1e-6)
    assert torch.allclose(Objective().of_rows(out.movedim(1, -1), y), expected, atol=1e-6)


def test_unknown_labels_are_ignored() -> None:
    out, y = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[1.0, -1.0, 0.0]])
    known = F.binary_cross_entropy_with_logits(out[:, [0, 2]], y[:, [0, 2]])
    assert torch.allclose(Objective("bce").of_rows(out, y), known[None])


# kinds of rows ----------------------------------------------------------------------------------------------


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x)


class Tagger(nn.Module):
    """A label for every step of a sequence of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x)


IMAGES = RNG.normal(size=(N, 1, 4, 4)).astype(np.float32)
STEPS = RNG.normal(size=(N, 5, 2)).astype(np.float32)
TAGS = (STEPS[..., 0] > 0).astype(int) + (STEPS[..., 1] > 0)
TAGS[:, 3:] = np.where(np.arange(N)[:, None] % 2, TAGS[:, 3:], -1)  # half of the sequences are shorter
MANY = (X[:, :4] + 0.3 * RNG.normal(size=(N, 4)) > 0).astype(int)
COUNTS = RNG.poisson(np.exp(X[:, 0] / 2))
CASES: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "several labels": (
        lambda: split(MANY),
        {"model": "mlp"},
        {"loss", "accuracy", "auc", "average_precision", "brier"},
    ),
    "pixels": (
        lambda: split((IMAGES[:, 0] > 0.5).astype(int) + (IMAGES[:, 0] > 0), IMAGES),
        {"model": Segmenter},
        {"loss", "accuracy", "precision", "recall", "f1"},
    ),
    "steps of sequences": (
        lambda: split(TAGS, STEPS, classes=3),
        {"model": Tagger},
        {"loss", "accuracy", "f1"},
    ),
    "reconstruction": (
        lambda: split(None, IMAGES),
        {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 16))},
        {"loss", "mae", "rmse"},
    ),
    "several numbers": (lambda: split(X[:, :2] * 1.5), {"model": "mlp"}, {"loss", "mae", "rmse"}),
    "counts": (
        lambda: split(COUNTS, regression=True),
        {"model": "mlp", "loss": "poisson"},
        {"loss", "r2", "mae", "rmse"},
    ),
    "huber": (lambda: split(X[:, 0] * 1.5), {"model": "mlp", "loss": "huber"}, {"loss", "r2", "mae"}),
    "own, by row": (
        lambda: split((X[:, 0] > 0).astype(int)),
        {"model": "mlp", "loss": smooth},
        {"loss", "accuracy", "precision", "recall", "f1"},
    ),
    "own, by batch": (
        lambda: split((X[:, 0] > 0).astype(int)),
        {"model": "mlp", "loss": contrast},
        {"loss", "accuracy"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_stack_loop_and_messages_give_the_same_model_and_only_metrics_that_apply(
    case: str, tmp_path: Path
) -> None:
    make, options, shown = CASES[case]
    fed = make()
    stacked, each, parties = (
        tacit.train(fed, **FAST, **options, engine=engine, runtime=runtime, min_rows=1)
        for engine, runtime in (("stack", "cohort"), ("each", "cohort"), ("auto", "inprocess"))
    )
    assert torch.allclose(weights(stacked), weights(each), atol=1e-5)
    assert torch.allclose(weights(stacked), weights(parties), atol=1e-5)
    assert not torch.allclose(weights(stacked), weights(tacit.train(fed, **{**FAST, "rounds": 1}, **options)))
    named = {k for k in stacked.metrics if "_" not in k or k == "average_precision"} - {"confusion"}
    assert shown <= named
    out = stacked.model(fed.test.x).detach()
    expected = stacked.origin.objective.of_each(out, fed.test.y).mean()
    if case == "steps of sequences":  # labels are evaluated, and sequences differ in length
        expected = F.cross_entropy(out.movedim(-1, 1), fed.test.y, ignore_index=-1)
    assert stacked.metrics["loss"] == pytest.approx(float(expected), rel=1e-4)
    if "several" in case or "own" in case or case == "reconstruction":
        assert named <= shown | {"precision", "recall", "f1", "majority", "curve", "calibration"}
    assert parties.metrics["loss"] == pytest.approx(stacked.metrics["loss"], rel=1e-4)
    stacked.report(tmp_path / "report.html")  # which reads whatever metrics there are


def test_without_a_test_set_the_sums_of_the_parties_are_the_same_metrics() -> None:
    for case, (make, options, _) in CASES.items():
        fed = make()
        fed = type(fed)(**{**vars(fed), "test": type(fed.test)(fed.test.x[:0], fed.test.y[:0])})
        here, there = (
            tacit.train(fed, **FAST, **options, runtime=runtime, min_rows=1).metrics
            for runtime in ("cohort", "inprocess")
        )
        assert here.keys() == there.keys(), case
        if case != "own, by batch":  # its batches of held-out rows are those of each party
            for key in ("loss", "accuracy", "auc", "rmse", "r2"):
                if key in here:
                    assert there[key] == pytest.approx(here[key], rel=1e-4), (case, key)


def test_metrics_of_several_labels_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, roc_auc_score

    fed = split(MANY)
    run = tacit.train(fed, **{**FAST, "rounds": 10}, model="mlp")
    p = torch.sigmoid(run.model(fed.test.x)).detach().numpy()
    y = fed.test.y.numpy()
    assert run.config["train"]["loss"] == "bce"
    assert run.metrics["accuracy"] == pytest.approx(accuracy_score(y.ravel(), p.ravel() > 0.5))
    assert abs(run.metrics["auc"] - roc_auc_score(y, p, average="macro")) <= run.metrics["auc_error"] + 1e-9
    assert run.metrics["auc"] > 0.8
    scored = run.predict(fed.test.x)
    assert list(scored.columns) == [f"p({k})" for k in range(4)]
    assert np.allclose(scored.to_numpy(), p, atol=1e-5)


def test_rates_of_counts_are_predicted_on_their_own_scale() -> None:
    fed = split(COUNTS, regression=True)
    run = tacit.train(fed, **{**FAST, "rounds": 10}, model="linear", loss="poisson")
    rates = run.model(fed.test.x).detach().exp()[:, 0].numpy()
    assert np.allclose(run.predict(fed.test.x)["prediction"], rates, rtol=1e-4)
    assert run.metrics["mae"] == pytest.approx(np.abs(rates - fed.test.y.numpy()).mean(), rel=1e-4)


def test_processes_import_an_own_loss() -> None:
    fed = split((X[:, 0] > 0).astype(int))
    here, there = (
        tacit.train(fed, **FAST, model="logistic", loss=smooth, runtime=runtime, evaluate_every=0)
        for runtime in ("cohort", "processes")
    )
    assert torch.allclose(weights(here), weights(there), atol=1e-5)
    assert there.config["train"]["loss"] == "tests.own.test_losses:smooth"


# refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "crossentropy"}, "loss is 'crossentropy'; it must be one of 'cross_entropy'"),
        ({"loss": nn.CrossEntropyLoss}, r"Give an object: CrossEntropyLoss\(reduction='none'\)"),
        (
            {"loss": "bce"},
            "'bce' is not for a classification.* If 'bce' is meant, make the federation with regression=True",
        ),
        ({"loss": lambda out, y: out}, r"shape \(2, 2\) for 2 rows; it must return a loss per row, \[2\]"),
        ({"loss": lambda out, y: 1.0}, "the function returns a float"),
        ({"loss": smooth, "class_weight": [1.0, 2.0]}, "an own loss weighs classes itself"),
        (
            {"loss": contrast, "private": private.DPSGD(epsilon=5.0, delta=1e-2)},
            "one number for a batch, and DP-SGD clips the gradient of each row",
        ),
    ],
)
def test_losses_that_cannot_be_used_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(split((X[:, 0] > 0).astype(int)), model="mlp", **options)


def test_numbers_that_a_loss_is_not_for_are_refused() -> None:
    with pytest.raises(BadParameter, match="has numbers below 0"):
        tacit.train(split(X[:, 0]), model="mlp", loss="poisson")
    with pytest.raises(BadParameter, match="'bce' is for labels of 0 and 1"):
        tacit.train(split(X[:, 0]), model="mlp", loss="bce")


def test_parties_cannot_count_by_class_what_has_no_output_for_each_class() -> None:
    fed = split((X[:, 0] > 0).astype(int))
    options = {"model": nn.Linear(6, 3), "loss": contrast, "rounds": 1}
    assert "accuracy" not in tacit.train(fed, **options).metrics
    with pytest.raises(BadParameter, match=r"the model returns \(3,\) numbers for 2 classes"):
        tacit.train(fed, **options, runtime="inprocess")


def test_an_own_loss_of_each_row_is_private_by_row() -> None:
    fed = split((X[:, 0] > 0).astype(int))
    run = tacit.train(
        fed, rounds=1, model="logistic", loss=smooth, private=private.DPSGD(epsilon=5.0, delta=1e-2)
    )
    assert torch.isfinite(weights(run)).all()


def test_a_loss_over_batches_is_noted() -> None:
    run = tacit.train(split((X[:, 0] > 0).astype(int)), **FAST, model="mlp", loss=contrast)
    notes = [e["text"] for e in run.events if e["kind"] == "note"]
    assert any("clients run one by one" in text for text in notes)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: smooth(out, y).detach(), "has no gradient with respect to the outputs"),
        (lambda out, y: (out.argmax(1) != y).float(), "has no gradient with respect to the outputs"),
        (lambda out, y: smooth(out, y.float()), r"outputs of shape \(2, 2\) and targets .*: RuntimeError"),
        (lambda out, y, w: smooth(out, y), r"TypeError: .*'w'.*called with \(outputs, targets\)"),
    ],
    ids=["detached", "counted", "wrong type", "three arguments"],
)
def test_a_loss_that_fails_or_cannot_be_learned_from_is_refused_before_training(
    loss: Any, words: str
) -> None:
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(BadParameter, match=words):
        tacit.train(split(y), model="logistic", loss=loss, **FAST)

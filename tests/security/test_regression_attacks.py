"""Attacks on `tacit.regress` by its own participants, on the breast cancer table: a label holder that wants
the other party's columns, and a party with columns that wants the labels of the training rows. The attacker
follows the protocol and keeps everything it was sent (semi-honest).

Both attacks succeeded against the encrypted mode, which is withdrawn: 100% of the cells, and labels with AUC
1.0. Here they are made on all values that the parties open together, once as the protocol is and once with
its masks set to zero, where they must succeed: that shows that they look in the right places.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import tacit
from tacit import data
from tacit.errors import BadParameter, QueryRefused
from tacit.jobs.vertical.regress import Regression
from tacit.mpc.regression import Basis, RegressionTerms
from tacit.mpc.tape import Tape
from tacit.mpc.truncate import Truncation
from tacit.parties import Ledger, decode
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess
from tests.security.test_mpc import looks_uniform

KNOWN = 7  # rows of the other party that the label holder knows already
OPENINGS = ("MaskedFactors", "MaskedProducts", "MaskedValues", "MaskedBits", "MaskedSigns")


class Recorder:
    """The in-process runtime, with every frame kept."""

    def __init__(self) -> None:
        self.tap = Tap()

    def run_sync(self, programs, ledger: Ledger | None = None):
        return InProcess().run_sync(self.tap.on(programs), ledger=ledger)

    def sent(self, sender: str, to: str) -> list[tuple[str, Tensor]]:
        """(kind, tensor) for each tensor of each message, in order."""
        messages = [decode(frame) for by, at, _, frame in self.tap.frames if (by, at) == (sender, to)]
        return [(m.kind, v) for m in messages if "values" in m.forms for v in m.values]  # type: ignore[attr-defined]

    def opened(self) -> list[tuple[str, Tensor]]:
        """What guest and host know of each opened word: the sum of both shares. Truncations add 2^62 to keep
        it positive.
        """
        both = zip(self.sent("guest", "host"), self.sent("host", "guest"))
        words = [
            (kind, a + b)
            for (kind, a), (other, b) in both
            if kind == other and kind in OPENINGS and a.dtype is torch.int64
        ]
        return [(kind, v - (1 << 62) if kind == "MaskedProducts" else v) for kind, v in words]


def table(columns: int) -> tuple[dict[str, Tensor], Tensor]:
    """The host holds the last columns of the breast cancer table, the guest three others. Labels are
    shuffled, so that no column predicts them: an attacker that finds them has them from the protocol, not
    from the model.
    """
    rows = data.breast_cancer().rows
    y = rows.y[torch.randperm(len(rows.y), generator=torch.Generator().manual_seed(1))]
    return {"guest": rows.x[:, :3], "host": rows.x[:, -columns:]}, y


def fit(x, y, **settings) -> tuple[Recorder, Regression]:
    recorder = Recorder()
    return recorder, tacit.regress(x, {"guest": y}, test_fraction=0, runtime=recorder, **settings)


def unmask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mask is 0: the protocol computes the same, and opens everything in the clear."""
    monkeypatch.setattr(Tape, "draw", lambda self, shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype))


def open_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate as three parties do, who open the products under masks: an attack needs these openings. Two
    parties open one bit of their shares instead (`test_two_parties_open_no_product_to_truncate_it`).
    """
    monkeypatch.setattr(Truncation, "among", lambda self, parties: self)


def rebuild_columns(vectors: list[np.ndarray], truth: np.ndarray) -> float:
    """The share of the host's unknown cells that come within 0.01 standard deviations.

    Scores of the host lie in the span of its p columns. The attacker takes the p strongest directions of all
    vectors it saw, one value a row, and the rows it knows fix the map from them to the columns.
    """
    seen = np.stack([v - v.mean() for v in vectors if v.std() > 0], 1)
    base = np.linalg.svd(seen / np.linalg.norm(seen, axis=0), full_matrices=False)[0][:, : truth.shape[1]]
    truth = (truth - truth.mean(0)) / truth.std(0)
    found = base @ np.linalg.lstsq(base[:KNOWN], truth[:KNOWN], rcond=None)[0]
    return float((np.abs(found - truth)[KNOWN:] <= 0.01).mean())


def guess_labels(batches: list[np.ndarray], gradients: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """−residual for each row, by least squares from Xᵀr = g of every step: large where the label is 1."""
    equations = np.zeros((sum(map(len, gradients)), len(x)))
    at = 0
    for batch, g in zip(batches, gradients):
        equations[at : at + len(g), batch] = x[batch].T
        at += len(g)
    return -np.linalg.lstsq(equations, np.concatenate(gradients), rcond=1e-9)[0]


def scores_seen(recorder: Recorder, n: int, width: int) -> list[np.ndarray]:
    """The scores of all rows in every step, as the truncation right after the product with the coefficients
    opens them, and every column of the table.
    """
    words, found = recorder.opened(), []
    for (kind, v), (after, score) in itertools.pairwise(words):
        if (kind, tuple(v.shape), after, tuple(score.shape)) == (
            "MaskedFactors",
            (1, width),
            "MaskedProducts",
            (1, n),
        ):
            found.append(score.double()[0].numpy())
        elif kind == "MaskedFactors" and tuple(v.shape) == (n, width):
            found += [column.double().numpy() for column in v.T]
    return found


@pytest.mark.parametrize(("solver", "scored"), [("newton", 6), ("descent", 5)])  # newton: one step more
@pytest.mark.parametrize("masked", [True, False])
def test_the_label_holder_rebuilds_no_column_unless_masks_are_off(masked, solver, scored, monkeypatch):
    """Random directions put a cell within 0.01 deviations in about 1% of the cases (a density of at most 0.4
    times 0.02): 5% of 3,934 cells never happens.
    """
    x, y = table(KNOWN)
    open_products(monkeypatch)
    if not masked:
        unmask(monkeypatch)
    recorder, _ = fit(
        {"host": x["host"]}, y, epochs=5, solver=solver
    )  # the guest holds the label alone, so that every score is the host's
    seen = scores_seen(recorder, len(y), KNOWN + 1)
    assert len(seen) == KNOWN + 1 + scored
    found = rebuild_columns(seen, x["host"].double().numpy())
    assert found < 0.05 if masked else found == 1.0


@pytest.mark.parametrize("masked", [True, False])
def test_a_party_with_columns_finds_no_label_unless_masks_are_off(masked, monkeypatch):
    """36 batches of 16 rows and 20 columns: 720 equations for 569 labels, if gradients were opened. A guess
    that has nothing to do with the labels has AUC 0.5 with a deviation of 0.025; outside 0.35 to 0.65 with
    probability 2e-9.
    """
    x, y = table(20)
    open_products(monkeypatch)
    if not masked:
        unmask(monkeypatch)
    recorder, _ = fit(x, y, epochs=1, batch_size=16, momentum=0.0)
    width, k = 3 + 20 + 1, -(-len(y) // 16)
    gradients = [
        v.double()[0, 3:23].numpy()
        for kind, v in recorder.opened()
        if kind == "MaskedProducts" and tuple(v.shape) == (1, width)
    ][1::3][:k]
    own = (
        Basis.of(RegressionTerms(("guest", "host"), "guest", "helper", len(y)), x["host"])
        .apply(x["host"])
        .numpy()
    )
    auc = roc_auc_score(y.numpy(), guess_labels([np.arange(i, len(y), k) for i in range(k)], gradients, own))
    assert 0.35 < auc < 0.65 if masked else auc > 0.95


def test_two_parties_open_no_product_to_truncate_it():
    """One bit of each value, under a mask: eight values in a byte."""
    x, y = table(KNOWN)
    recorder, _ = fit(x, y, epochs=1)
    sent = [v for kind, v in recorder.sent("guest", "host") if kind == "MaskedProducts"]
    assert len(sent) > 5
    assert {v.dtype for v in sent} == {torch.uint8}


def test_what_is_opened_does_not_grow_with_the_number_of_steps():
    """Each party gets one message with its own coefficients, the label holder two more: whether the fit has
    converged, and the sums over the test rows; all else is uniform.
    """
    x, y = table(20)
    for epochs in (1, 4):
        recorder = Recorder()
        tacit.regress(x, {"guest": y}, epochs=epochs, runtime=recorder)
        for sender, to, sizes in (
            ("guest", "host", {"CoefficientShare": [20]}),
            ("host", "guest", {"CoefficientShare": [4], "StepShare": [3], "MetricShare": [4]}),
        ):
            values = recorder.sent(sender, to)
            assert {
                kind: [v.numel() for k, v in values if k == kind]
                for kind, _ in values
                if kind not in OPENINGS
            } == sizes
            assert looks_uniform([v for kind, v in values if kind in OPENINGS and v.dtype is torch.int64])
        assert {decode(frame).kind for frame in recorder.tap.view("helper")} == {"ColumnCount"}


def test_own_coefficients_tell_a_party_little_about_single_labels():
    """After one step from zero the coefficients are a gradient: 20 equations for 569 labels. By chance such a
    fit has an AUC of about 0.5 + 0.4·√(20/569).
    """
    x, y = table(20)
    _, run = fit(x, y, epochs=1, momentum=0.0)
    z = (x["host"] - x["host"].mean(0)).double()
    assert roc_auc_score(y.numpy(), (z @ run.weights["host"]).numpy()) < 0.7


def test_coefficients_that_would_give_labels_away_are_refused():
    x, y = table(20)
    with pytest.raises(
        BadParameter,
        match=r"the number of columns of 'host' is 20; it must be at most 10 with 100 training rows\. "
        r"Coefficients are equations",
    ):
        fit({who: v[:100] for who, v in x.items()}, y[:100], solver="newton")
    with pytest.raises(QueryRefused, match=r"24 coefficients and 100 rows; at least 240 rows are required"):
        fit({who: v[:100] for who, v in x.items()}, y[:100])


def test_metrics_of_few_rows_are_refused():
    """The loss of a single row is its score."""
    x, y = table(2)
    with pytest.raises(
        BadParameter,
        match=r"the number of test rows is 1; it must be 0 or at least 10\. Metrics of fewer rows would "
        r"reveal scores",
    ):
        tacit.regress(x, {"guest": y}, test=({who: v[:1] for who, v in x.items()}, y[:1]))


def test_the_encrypted_mode_is_withdrawn():
    x, y = table(2)
    with pytest.raises(
        BadParameter, match=r"secure is 'encrypted'; it must be 'shared'\. The encrypted mode was withdrawn"
    ):
        tacit.regress(x, {"guest": y}, secure="encrypted")

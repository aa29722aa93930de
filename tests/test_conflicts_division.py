"""What does not go together because the server divides by what parties send; other clashes are tested with
the room whose rule they are.
"""

from __future__ import annotations

import pytest

import tacit
from tacit import data, guard
from tacit.algorithms import IFCA, SGD, FedNova, QFedAvg
from tacit.errors import BadParameter

NOISE, FEW, COARSE = (
    [guard.Clip(1.0), guard.Noise(multiplier=1.0)],
    [guard.Sparsify(random_k=0.3)],
    [guard.Clip(1.0), guard.Quantize(bits=16)],
)


@pytest.mark.parametrize(
    ("algorithm", "stages", "said"),
    [
        (
            FedNova(tau="harmonic"),
            NOISE,
            r"of FedNova .* \(tau='harmonic'\), and Noise may bring that near zero.* Use tau='mean', or "
            r"leave Noise out",
        ),
        (FedNova(tau="harmonic"), FEW, "Sparsify may leave that out.* Use tau='mean', or leave Sparsify out"),
        (
            FedNova(tau="harmonic"),
            COARSE,
            "Quantize with 16 bits may round that to zero.* Use tau='mean', or bits=24",
        ),
        (QFedAvg(), NOISE, "of QFedAvg .* Use another algorithm, or leave Noise out"),
        (QFedAvg(), FEW, "Use another algorithm, or leave Sparsify out"),
        (IFCA(), NOISE, "of IFCA .* Use another algorithm, or leave Noise out"),
        (IFCA(), FEW, "Use another algorithm, or leave Sparsify out"),
    ],
    ids=range(7),
)
def test_what_a_server_divides_by_has_to_come_through(algorithm, stages, said):
    fed, told = data.gaussian_blobs(rows=60, seed=0).split(3), {"model": "logistic", "rounds": 1}
    with pytest.raises(BadParameter, match=said):
        tacit.train(fed, algorithm=algorithm, guard=stages, **told)
    assert len(tacit.train(fed, algorithm=FedNova(), guard=stages, **told).history) == 1


def test_on_a_fine_grid_the_harmonic_mean_comes_through():
    fed = data.gaussian_blobs(rows=200, seed=0).split(5, skew=data.Quantity(0.5), seed=0)
    told = {
        "model": "logistic",
        "rounds": 3,
        "algorithm": FedNova(tau="harmonic", solver=SGD(momentum=0.9)),
        "local_epochs": 5,
        "batch_size": 4,
    }
    hidden = [guard.Clip(1.0), guard.Quantize(bits=28), guard.SecAgg()]
    clear, summed = (tacit.train(fed, guard=stages, **told).model for stages in ([guard.Clip(1.0)], hidden))
    assert all((p - q).abs().max() < 1e-2 for p, q in zip(clear.parameters(), summed.parameters()))

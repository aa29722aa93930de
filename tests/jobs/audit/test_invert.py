"""Inversion of what the server of a real run sees, with and without a guard."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.audit import inversion
from tacit.data.federation import Rows
from tacit.errors import BadParameter
from tacit.jobs.audit.uploads import _with_victim, module_at_start, observe

OPTIONS = {"model": models.MLP(hidden=(64,)), "algorithm": algorithms.FedAvg(lr=0.1), "rounds": 1}


@pytest.fixture(scope="module")
def fed():
    return data.digits().split(10, seed=0)


def run_of(fed, **options):
    return tacit.train(fed, **OPTIONS | {"batch_size": None} | options)


@pytest.fixture(scope="module")
def plain(fed):
    return run_of(fed)


@pytest.mark.parametrize(("batch_size", "epochs"), [(None, 1), (None, 3), (4, 1)])
def test_the_server_sees_what_the_engine_sends(fed, batch_size, epochs):
    """The update of the run's own engine equals plain autograd; batches are in the engine's own order."""
    p = run_of(fed, batch_size=batch_size, local_epochs=epochs).origin
    rows = Rows(*(t[fed.train.index[:4]] for t in fed.rows))
    module = module_at_start(p)
    view = observe(p, module, rows)
    expected = inversion.update_of(
        module, rows.x, rows.y, inversion.ClientSteps(4, 0.1, batch_size, epochs), cross_entropy
    )
    for a, b in zip(view.update, expected):
        assert torch.allclose(a, b, atol=1e-5)
    assert (view.client.rows, view.client.epochs, view.parties) == (4, epochs, 1)


def test_a_rounds_update_shows_the_row(plain):
    found = audit.invert(plain, 1)
    assert (found.method, found.psnr > 60, found.rows_within) == ("analytic", True, 1.0)
    assert audit.invert(plain, 1, at="end").psnr > 60


def test_larger_batches_show_less(plain):
    """The curve of batches of 1, 4, 8 and 32 falls."""
    share = [audit.invert(plain, n, method="analytic").rows_within for n in (1, 4, 8, 32)]
    assert share[0] == 1.0
    assert share == sorted(share, reverse=True)
    assert share[-1] < 0.1


def test_more_local_steps_show_less(fed):
    once = audit.invert(run_of(fed, batch_size=4), 8, method="analytic")
    often = audit.invert(run_of(fed, batch_size=4, local_epochs=10), 8, method="analytic")
    assert often.rows_within <= once.rows_within
    assert often.rows_within < 0.3


def test_clipping_alone_stops_nothing(fed):
    found = audit.invert(run_of(fed, guard=guard.Clip(0.1)), 1)
    assert found.psnr > 60
    assert found.seen == "this party's update after Clip"


def test_noise_of_the_server_does_not_protect_from_the_server(fed):
    noisy = run_of(fed, guard=[guard.Clip(0.5), guard.Noise(multiplier=1.0, placement="central")])
    assert audit.invert(noisy, 1).psnr > 60


@pytest.mark.parametrize("stages", [[], [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]])
def test_noise_of_dp_sgd_stops_it_and_its_clipping_alone_does_not(fed, stages):
    """The victim's rows are all in each batch, with the noise of the run's own parties: 1,437 / 10 rows, of which
    Poisson sampling draws 16. A noise calibrated to a party that always draws its only row would be larger.
    """
    private = tacit.private.DPSGD(epsilon=8.0, delta=1e-3)
    run = run_of(fed, batch_size=16, guard=stages, private=private)
    found = audit.invert(run, 1, method="analytic")
    assert found.rows_within == 0
    plan = _with_victim(run.origin, Rows(*(t[:1] for t in fed.rows)), not stages)
    assert plan.private.epsilon is None
    assert 0 < plan.private.noise_multiplier < 1.5
    if not stages:
        clipped = run_of(fed, batch_size=16, private=tacit.private.DPSGD(noise_multiplier=0.0, delta=1e-3))
        assert audit.invert(clipped, 1, method="analytic").psnr > 60


def test_noise_of_the_party_stops_it(fed):
    """The noise is from the operating system. PSNR above 20 dB by chance: below 1e-8, since the update is 300
    times smaller than the noise.
    """
    noisy = run_of(fed, guard=[guard.Clip(0.5), guard.Noise(multiplier=1.0, placement="local")])
    found = audit.invert(noisy, 1, steps=30)
    assert found.psnr < 20
    assert found.rows_within == 0.0


def test_secure_aggregation_leaves_a_sum_over_all_parties(fed):
    hidden = run_of(fed, guard=[guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()])
    found = audit.invert(hidden, 1, method="analytic")
    assert found.rows_within == 0.0
    assert found.rows > 1000
    assert found.seen == "the mean of 10 parties' updates"
    assert "10 parties" in found.notes[0]


def test_a_malicious_server_reads_batches_that_an_honest_one_cannot(fed):
    run = run_of(fed, model=models.MLP(hidden=(600, 16)))
    assert audit.invert(run, 32, method="analytic").rows_within < 0.4
    assert audit.invert(run, 32, method="analytic", malicious="imprint").rows_within > 0.6


def test_tables_are_rebuilt_column_by_column():
    """Breast cancer (30 real columns, standardized, no bounds)."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype("float32")
    run = run_of(data.from_arrays(x, y).split(4, seed=0), model=models.MLP(hidden=(128,)))
    one, four = audit.invert(run, 1, bounds=None), audit.invert(run, 4, bounds=None, method="analytic")
    assert (one.values_within, one.rows_within) == (1.0, 1.0)
    assert 0 < four.rows_within <= four.values_within
    assert one.ssim is None


def test_runs_that_send_no_sgd_steps_are_refused(fed):
    with pytest.raises(BadParameter, match="do not send the result of SGD steps"):
        audit.invert(run_of(fed, algorithm=algorithms.FedAvg(lr=0.1, solver=algorithms.Adam())), 1)
    with pytest.raises(BadParameter, match="a number from 1 to"):
        audit.invert(run_of(fed), 10**6)


def test_the_page_shows_originals_and_reconstructions(plain, tmp_path):
    page = audit.invert(plain, 2).report(tmp_path / "i.html").read_text(encoding="utf-8")
    assert page.count("<img") == 4
    assert "rows_within" in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mcmahan", "lenet"])
def test_the_published_networks_are_inverted_above_30_db(kind):
    """McMahan's CNN (1,663,370 parameters) by cosine matching, DLG's LeNet by L-BFGS; three digits each, enlarged
    to 28 × 28. On MNIST itself: benchmarks/audit.py.
    """
    from torch import nn

    small = data.digits().rows
    x = nn.functional.interpolate(small.x.reshape(-1, 1, 8, 8)[:10], size=(28, 28), mode="bilinear")
    rows = Rows(x, small.y[:10])
    model, method = models.build("cnn", (1, 28, 28), 10, 0), "cosine"
    if kind == "lenet":
        sizes = ((1, 2), (12, 2), (12, 1))
        layers = [nn.Sequential(nn.Conv2d(c, 12, 5, padding=2, stride=s), nn.Sigmoid()) for c, s in sizes]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, method = nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 49, 10)), "dlg"
            for p in model.parameters():
                nn.init.uniform_(p, -0.5, 0.5)
    each = [
        audit.invert(model, (rows.x[k : k + 1], rows.y[k : k + 1]), method=method, steps=200).psnr
        for k in range(3)
    ]
    assert sorted(each)[1] > 30


def test_class_fishing_reads_a_row_from_a_batch_that_an_honest_server_cannot(fed, plain):
    """Of 64 rows, those of the rarest class; the honest server reads at most 3 exactly."""
    run = run_of(fed, model=models.MLP(hidden=(64, 64)))
    assert audit.invert(run, 64, method="analytic").rows_within < 0.05
    y = fed.rows.y[fed.train.index[:64]]
    once = torch.cat([torch.nonzero(y != 3)[:, 0], torch.nonzero(y == 3)[:1, 0]])
    rows = fed.rows.take(fed.train.index[once])
    found = audit.invert(run, tuple(rows), malicious="fish", target=3)
    assert (found.method, found.found, found.rows_within) == ("analytic", 1, 1.0)
    assert found.rows == len(once)
    assert found.notes == (f"class fishing: 1 of {len(once)} rows have class 3",)
    with pytest.raises(BadParameter, match="malicious='fish'"):
        audit.invert(plain, 4, target=3)
    with pytest.raises(BadParameter, match="a class of the rows"):
        audit.invert(run, (rows.x[:1], rows.y[:1]), malicious="fish", target=3)


def test_a_fished_update_is_that_of_the_row_alone():
    """A CNN of images: of the update of 16 rows, what precedes the last layer is that of the one row."""
    images = data.digits(images=True)
    take = torch.cat([torch.nonzero(images.rows.y != 7)[:15, 0], torch.nonzero(images.rows.y == 7)[:1, 0]])
    module = models.build(models.CNN(channels=(4, 8), hidden=(16,), kernel=3, padding=1), (1, 8, 8), 10, 0)
    fished = inversion.fish_weights(module, 7)
    x, y = images.rows.x[take], images.rows.y[take]
    together = inversion.update_of(fished, x, y, inversion.ClientSteps(16), cross_entropy)
    alone, part, client = inversion.fish_out(fished, together, inversion.ClientSteps(16), 7)
    assert client.rows == 1
    expected = inversion.update_of(alone, x[-1:], y[-1:], inversion.ClientSteps(1), cross_entropy)
    assert len(part) == len(expected) == len(together) - 2
    for a, b in zip(part, expected):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        assert b.abs().max() > 1e-3
    steps = audit.invert(module, (x, y), malicious="fish", target=7, steps=1, batch_size=4)
    assert "1 of 16 rows" in steps.notes[0]


def test_class_fishing_fails_behind_secure_aggregation(fed):
    """The class has rows at all parties; no row of a mean over more than 100 is exact."""
    guards = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
    found = audit.invert(run_of(fed, guard=guards), 32, malicious="fish", method="analytic")
    assert found.rows_within == 0.0

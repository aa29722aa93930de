"""A participant draws classes that only others have; digits, one class for each of ten parties."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, audit, data, guard, private
from tacit.audit.generator import Generator, nearest_classes
from tacit.errors import BadData, BadParameter

OPTIONS = {"model": "mlp", "algorithm": algorithms.FedAvg(lr=0.1), "rounds": 18, "evaluate_every": 18}


@pytest.fixture(scope="module")
def fed():
    return data.digits().split(10, skew=data.LabelsPerParty(1), seed=0)


@pytest.fixture(scope="module")
def run(fed):
    return tacit.train(fed, **OPTIONS)


@pytest.fixture(scope="module")
def found(run):
    return audit.gan(run)


def test_the_classes_of_all_others_are_drawn(found, tmp_path):
    """7 of 9 recognized by chance: at most 1/7! = 2e-4."""
    assert found.recognized >= 7
    assert found.share > 0.6
    assert found.p_value < 1e-3
    assert found.accuracy > 0.5
    assert found.accuracy_before > 0.6
    assert len(found.victims) == 9
    assert found.rebuilt.shape == (9 * 64, 64)
    assert found.save_picture(tmp_path / "gan.png").read_bytes()[:4] == b"\x89PNG"
    assert "data:image/png" in found.report(tmp_path / "x.html").read_text()
    assert found.to_dict()["recognized"] == found.recognized
    assert found.save(tmp_path / "x.json").exists()
    assert "recognized" in found._repr_html_()


def test_secure_aggregation_does_not_stop_it(fed):
    """The attacker needs the model, which it receives as everyone does."""
    guards = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
    found = audit.gan(tacit.train(fed, **OPTIONS, guard=guards))
    assert found.recognized >= 7
    assert "hidden in a sum" in found.notes[1]


def test_noise_for_parties_stops_it_and_the_model(fed):
    """ε = 8 for a party of ten, with noise of a fixed seed. Of 9 classes, 7 are recognized by chance with
    probability below 1/7! = 2e-4. The accuracy is lost, too: ten parties are too few for this ε to be useful.
    """
    guards = [guard.Clip(0.5), guard.Noise(epsilon=8, delta=1e-2)]
    run = tacit.train(fed, **OPTIONS, guard=guards, insecure_seed=0)
    found = audit.gan(run)
    assert found.recognized < 7
    assert found.share < 0.5
    assert run.metrics["accuracy"] < 0.6


def test_one_victim_and_fewer_rounds(run):
    told = []
    found = audit.gan(run, victim=3, attacker="p01", rounds=2, steps=2, watch=lambda *at: told.append(at))
    assert (found.victims, found.attacker, found.rounds) == ((3,), "p01", 2)
    assert told == [(1, 2), (2, 2)]
    assert found.p_value in (0.1, 1.0)


def test_an_attacker_that_is_stopped_takes_part_honestly(run):
    found = audit.gan(run, steps=1, watch=lambda done, all: done == 1)
    assert found.accuracy == found.accuracy_before
    assert "stopped in round 1 of 18" in found.notes[1]


def test_the_attacker_sends_what_it_trained_on(run):
    """Without poison, the attacked run is the run: the attacker only listens."""
    listening = audit.gan(run, poison=False, steps=1)
    assert listening.accuracy == listening.accuracy_before
    assert audit.gan(run, steps=1).accuracy != listening.accuracy


@pytest.mark.parametrize("shape", [(1, 28, 28), (64,), (3, 10, 9), (7,)])
def test_a_generator_draws_rows_between_its_bounds(shape):
    made = Generator(shape, (2, 5), torch.tensor(-1.0), torch.tensor(3.0))
    rows, classes = made.draw(4, torch.Generator().manual_seed(0))
    assert rows.shape == (8, *shape)
    assert classes.tolist() == [2] * 4 + [5] * 4
    assert -1 <= rows.min() <= rows.max() <= 3


def test_nearest_rows_by_hand():
    classes, at = nearest_classes(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[5.0, 5.0], [0.0, 2.0]]), torch.tensor([7, 8])
    )
    assert (classes.tolist(), at.tolist()) == ([8], [1])


def test_an_attacker_that_cannot_poison_says_so(fed):
    nova = tacit.train(fed, **OPTIONS | {"algorithm": algorithms.FedNova(lr=0.1), "rounds": 2})
    with pytest.raises(BadParameter, match="Use poison=False: it then only listens"):
        audit.gan(nova, steps=1)
    assert audit.gan(nova, steps=1, poison=False).accuracy == pytest.approx(nova.metrics["accuracy"])


def test_runs_and_arguments_that_do_not_fit_are_refused(run, fed):
    with pytest.raises(BadParameter, match="classes that p01 has no row of"):
        audit.gan(run, victim=11, attacker=1)
    with pytest.raises(BadParameter, match="a party's name"):
        audit.gan(run, attacker="nobody")
    with pytest.raises(BadParameter, match="steps"):
        audit.gan(run, steps=0)
    everyone = tacit.train(data.digits().split(3, seed=0), model="logistic", rounds=1, evaluate_every=0)
    with pytest.raises(BadData, match="nobody needs to draw it"):
        audit.gan(everyone)
    rows = private.DPSGD(epsilon=8, delta=1e-2)
    alone = dataclasses.replace(run, origin=dataclasses.replace(run.origin, private=rows))
    with pytest.raises(BadParameter, match="Leave out pace, topology and private"):
        audit.gan(alone)
    numbers = data.from_arrays(np.zeros((40, 3), "float32"), np.arange(40) / 7).split(2, seed=0)
    with pytest.raises(BadParameter, match="the attack draws a class"):
        audit.gan(tacit.train(numbers, rounds=1))

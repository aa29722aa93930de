"""How long work takes in a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from tacit import speeds
from tacit.algorithms.plan import identify
from tacit.errors import BadJob, BadParameter
from tacit.parameters import check, from_table, to_table

IDS = identify([f"p{k}" for k in range(4000)])
STEPS = np.arange(1, 4001)
ALL = np.arange(4000)


def draw(speed, numbers=0, seed=0):
    return speeds.seconds(check(speed), seed, IDS, STEPS)(ALL, np.full(4000, numbers))


@pytest.mark.parametrize(
    "speed",
    [
        speeds.Constant(2.0),
        speeds.Lognormal(sigma=0.3),
        speeds.Exponential(varies="party"),
        speeds.Given((1.0, 2.0)),
    ],
)
def test_a_speed_is_restored_from_its_table(speed):
    assert from_table(to_table(speed), speeds.ALL, "speed") == speed


@pytest.mark.parametrize("speed", [speeds.Lognormal(), speeds.Exponential()], ids=lambda s: type(s).__name__)
def test_times_follow_from_seed_party_and_piece_of_work_alone(speed):
    assert (draw(speed) == draw(speed)).all()
    assert (draw(speed) != draw(speed, seed=1)).any()
    some = np.array([7, 3])
    assert (speeds.seconds(speed, 0, IDS, STEPS)(some, np.zeros(2)) == draw(speed)[some]).all()


def test_a_partys_own_speed_stays_and_a_drawn_one_changes():
    assert (draw(speeds.Lognormal(varies="party"), 0) == draw(speeds.Lognormal(varies="party"), 5)).all()
    assert (draw(speeds.Lognormal(varies="work"), 0) != draw(speeds.Lognormal(varies="work"), 5)).all()


def test_lognormal_and_exponential_have_the_moments_they_say():
    """4000 draws with a fixed seed. The mean of ln t has a standard error of 0.5/√4000 = 0.008, its deviation
    one of 0.0056, an exponential's mean one of 0.047: five of each, a false alarm of 6e-7 each for a random
    seed.
    """
    logs = np.log(draw(speeds.Lognormal(median=2.0, sigma=0.5)))
    assert abs(logs.mean() - np.log(2)) < 0.04
    assert abs(logs.std() - 0.5) < 0.028
    assert abs(draw(speeds.Exponential(mean=3.0)).mean() - 3.0) < 0.24


def test_per_step_the_time_grows_with_the_work():
    assert (draw(speeds.Constant(0.5, per="step")) == 0.5 * STEPS).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "seconds is ()"),
        ((1.0, 0.0), "seconds is (1.0, 0.0)"),
        ((1.0, float("inf")), "seconds is (1.0, inf)"),
        ("fast", "seconds is 'fast'"),
    ],
)
def test_times_that_are_none_are_refused(given, said):
    with pytest.raises(BadParameter, match="it must be a list with a number above 0 for each party") as told:
        check(speeds.Given(given))
    assert said in str(told.value)


def test_an_unknown_speed_in_a_job_is_named_with_those_there_are():
    with pytest.raises(BadJob, match=r"'Lognorml' is not known here\. Did you mean 'Lognormal'\?"):
        from_table({"name": "Lognorml"}, speeds.ALL, "speed")

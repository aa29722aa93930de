"""Helper processes multiply as this one does, refuse what it refuses, and end with it."""

from __future__ import annotations

import os

import pytest

from tacit.crypto import group
from tacit.crypto.manycore import WORTH, PointPool
from tacit.errors import ProtocolError

KEY = group.scalar(os.urandom)
POINTS = group.elements(os.urandom(16 * 50), 16, b"test")


def test_helpers_and_this_process_give_the_same() -> None:
    digests = os.urandom(16 * 50)
    with PointPool(WORTH + 1, helpers=2) as many, PointPool(WORTH + 1, helpers=1) as one:
        assert many.multiply(KEY, POINTS) == one.multiply(KEY, POINTS) == group.multiply(KEY, POINTS)
        assert many.lift(digests, 16, b"about", KEY) == one.lift(digests, 16, b"about", KEY)
        assert len(many._helpers) == 2
        assert not one._helpers
        processes = [helper.process for helper in many._helpers]
        assert all(p.poll() is None for p in processes)
    assert [p.poll() for p in processes] == [0, 0]


def test_few_points_start_no_process() -> None:
    with PointPool(WORTH, helpers=2) as shop:
        assert shop.multiply(KEY, POINTS) == group.multiply(KEY, POINTS)
        assert not shop._helpers


def test_a_point_that_a_helper_refuses_is_named_here_and_the_helper_lives_on() -> None:
    with PointPool(WORTH + 1, helpers=2) as shop:
        with pytest.raises(ProtocolError, match=r"^ffff"):
            shop.multiply(KEY, POINTS + b"\xff" * 32)
        assert shop.multiply(KEY, POINTS) == group.multiply(KEY, POINTS)
        with pytest.raises(ProtocolError, match="31 bytes are not a multiple"):
            shop.multiply(KEY, POINTS[:31])


def test_a_failed_run_leaves_no_process_behind() -> None:
    def run() -> None:
        with PointPool(WORTH + 1, helpers=2) as shop:
            shop.multiply(KEY, POINTS)
            processes.extend(helper.process for helper in shop._helpers)
            raise RuntimeError("the run fails")

    processes: list = []
    with pytest.raises(RuntimeError):
        run()
    assert len(processes) == 2
    assert all(p.poll() is not None for p in processes)


def test_a_helper_that_is_killed_is_an_error_that_says_so() -> None:
    with PointPool(WORTH + 1, helpers=2) as shop:
        shop.multiply(KEY, POINTS)
        shop._helpers[0].process.kill()
        shop._helpers[0].process.wait()
        with pytest.raises(
            ProtocolError, match="a worker process that multiplies points ended before it answered"
        ):
            shop.multiply(KEY, POINTS)

"""One thread a test, and real processes that fork from one that has imported torch."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and torch are imported; processes inherit it

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from . import warm

# The same examples in every run, and no deadline: a busy machine must not fail a test. To look for new
# examples: pytest --hypothesis-profile explore
settings.register_profile(
    "same",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


def pytest_collection_finish() -> None:
    """What thousands of collected tests hold lives until the end: the garbage collector need not visit it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The generators that a test did not seed do not depend on which tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """No test cuts the power, and a kill loses nothing that was written: do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", warm.skip_sync)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two workers share few cores, and the threads of small models only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Iterator[None]:
    """The processes of `Processes` do not import torch anew in every test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", warm.create_subprocess_exec)
        yield
    warm.process.stop()


@pytest.fixture(autouse=True)
def ended_processes() -> Iterator[None]:
    """A test that fails leaves no process, and no open pipe of one, to the tests after it."""
    before = len(warm.started)
    yield
    warm.end_since(before)


@pytest.fixture
def new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the processes of `Processes` as its users do, in a new interpreter."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", warm.start_anew)

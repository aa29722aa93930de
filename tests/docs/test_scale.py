"""The tables of docs/explanation-scale.md are those of benchmarks/scale_model.py, and the model fits its points."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from .pages import ROOT


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", ROOT / "benchmarks" / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_model"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_model(model: ModuleType) -> None:
    page = (ROOT / "docs" / "explanation-scale.md").read_text()
    assert model.table_of_points() in page
    assert model.table_of_needs(model.Fleet()) in page


def test_the_model_predicts_the_point_that_it_was_not_fitted_to(model: ModuleType) -> None:
    """Rounds and memory within a tenth; joining, of which retries are a part, within a quarter."""
    point, join, a_round, memory = model.check()[1]
    assert a_round == pytest.approx(point.round, rel=0.1)
    assert memory == pytest.approx(point.memory, rel=0.1)
    assert join == pytest.approx(point.join, rel=0.25)


def test_needs_grow_with_the_devices_as_a_count_by_hand_says(model: ModuleType) -> None:
    """A hundred thousand devices for 6 hours a day, a round of 100: 25,000 there, 130 asked, 2.08 GB at 8 MB."""
    needs = model.Fleet(devices=1e5, a_round=100, rounds=10, parameters=2e6, eligible=6.0).needs()
    assert needs["connected devices"] == 25_000
    assert needs["devices asked a round"] == 130
    assert needs["GB a round"] == pytest.approx(2.08)
    assert needs["hours"] == 0.5
    more = model.Fleet(devices=1e6, a_round=100, rounds=10, parameters=2e6, eligible=6.0).needs()
    assert more["hubs (and edges)"] > needs["hubs (and edges)"]

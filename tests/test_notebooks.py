"""What a notebook shows: tables of results, ledgers, federations and plans, and the progress of a run."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import tacit
from tacit import callbacks, data
from tacit.parties.ledger import Ledger

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run() -> Any:
    return tacit.train(data.iris().split(3, seed=0), model="logistic", algorithm="FedAvg", rounds=2)


def test_a_result_shows_its_text_and_who_saw_what(run: Any) -> None:
    shown = run._repr_html_()
    assert "<details><summary>Who saw what" in shown
    assert "<td>server</td>" in shown


def test_a_ledger_is_two_tables(run: Any) -> None:
    shown = run.ledger._repr_html_()
    assert shown.count("<table>") == 1
    assert "No privacy was spent." in shown
    assert Ledger()._repr_html_() == "<p>Nobody saw anything.</p><p>No privacy was spent.</p>"


def test_a_plan_is_a_table_of_who_would_see_what() -> None:
    shown = tacit.plan(data.iris().split(3, seed=0), model="logistic", rounds=2)._repr_html_()
    assert "<table" in shown
    assert "server" in shown


def test_a_federation_shows_sizes_and_escapes_names() -> None:
    import pandas as pd

    rows = pd.DataFrame({"a": range(40), "y": ["no", "yes"] * 20})
    shown = data.from_frames({EVIL: rows, "b": rows}, label="y")._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert shown.count("<tr>") == 3


def test_a_data_set_shows_classes_and_columns_and_no_small_count() -> None:
    import pandas as pd

    kinds = ["often"] * 40 + ["seldom"] * 9 + ["miller"]
    rows = pd.DataFrame({"a": range(50), EVIL: kinds, "y": ["no"] * 30 + ["yes"] * 17 + ["smith"] * 3})
    shown = data.from_frame(rows, label="y", groups=["a"], name="b", test_fraction=0)._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "miller" not in shown  # a category of one row, as "…=miller" a feature
    assert "smith" not in shown
    assert "<td>no</td><td>30</td>" in shown
    assert "<td>yes</td><td>not shown</td>" in shown  # 50 − 30 − 17 would be the three others
    assert "<td>1 other class</td><td>not shown</td>" in shown
    assert "1 column: " in shown
    assert "parties can be made by &#x27;a&#x27;" in shown


def test_a_data_set_without_classes_or_columns_shows_its_sizes() -> None:
    import numpy as np

    shown = data.from_arrays(np.zeros((40, 2)), np.arange(40) / 3, name="heights")._repr_html_()
    assert "<td>" not in shown
    assert "a number to predict" in shown
    assert data.iris()._repr_html_().count("<td>") == 6


class Display:
    """What IPython's display returns, for as much as the callback uses."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, markup: str, display_id: bool = False) -> Display:
        assert display_id
        self.shown.append(markup)
        return self

    def update(self, markup: str) -> None:
        self.shown.append(markup)


def train(callback: Any) -> None:
    tacit.train(
        data.iris().split(3, seed=0), model="logistic", algorithm="FedAvg", rounds=2, callbacks=[callback]
    )


def test_progress_updates_one_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Display()
    module: Any = types.ModuleType("IPython")
    module.get_ipython = object
    module.display = types.ModuleType("IPython.display")
    module.display.display, module.display.HTML = seen.display, str
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    train(callbacks.Progress())
    assert 'value="0" max="2"' in seen.shown[0]
    assert 'value="2" max="2"' in seen.shown[-1]
    assert "accuracy" in seen.shown[-1]


def test_progress_is_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    train(callbacks.Progress())
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("round 2/2  accuracy")

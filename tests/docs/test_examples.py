"""The demo: what it prints and where it writes, at a size a test can afford; and that the README shows the
table it prints.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from .pages import ROOT


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("demo")


def test_the_demo_prints_table_verdict_and_report_and_never_writes_over_itself(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "rounds": 1, "local_epochs": 1})
    monkeypatch.setattr(demo, "SKEWS", demo.SKEWS[:1])
    monkeypatch.setattr(demo, "ALGORITHMS", demo.ALGORITHMS[:2])
    monkeypatch.setattr(demo, "SEEDS", 1)
    for name in ("demo-run", "demo-run-2"):
        demo.main()
        printed = capsys.readouterr().out
        assert f"{name}/report.html" in printed
        assert "FedAvg" in printed
        assert "local only" in printed
        assert "performs best under" in printed
        found = json.loads(Path(name, "compare.json").read_text())
        assert found["table"]["index"] == ["FedAvg", "FedProx", "central", "local only"]
        assert Path(name, "report.html").stat().st_size > 10_000
        landscapes = [
            e for e in Path(name).glob("runs/*/events.jsonl") if '"kind": "landscape"' in e.read_text()
        ]
        assert len(landscapes) == 2, "one for each algorithm, none for the central model"


def test_the_readme_shows_the_table_of_this_demo(demo: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    table = next(line for line in text.splitlines() if "Dirichlet(alpha=0.3)" in line)
    assert all(repr(skew) in table for skew in demo.SKEWS)
    rows = [line.split() for line in text.splitlines()]
    for label in (*(type(a).__name__ for a in demo.ALGORITHMS), "central"):
        assert any(r[:1] == [label] and r.count("±") == len(demo.SKEWS) for r in rows), (
            f"the README's table has no row {label}"
        )


def test_each_algorithm_of_the_demo_is_one_of_its_twelve_tuned_candidates(demo: ModuleType) -> None:
    tune = importlib.import_module("tune_demo")
    for algorithm in demo.ALGORITHMS:
        tries = list(tune.candidates(type(algorithm).__name__))
        assert len(tries) == 12
        assert algorithm in tries

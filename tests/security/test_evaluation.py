"""Evaluation must not tell the outcome of single patients: a reader of events.jsonl, of the report or of compare.json attacks it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, data, guard
from tacit.data import Holdings, Rows

FEATURES = 4
SIMULATED = [{"engine": "stack"}, {"engine": "each"}]
HIDDEN = [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg()]


def hospitals(held: list[int], test_rows: int = 0, train_rows: int = 3, seed: int = 0) -> data.Federation:
    """One hospital for each entry of `held`, with that many held-out patients. Outcomes are half noise, so that no model gets all of them right."""
    rng, train, back, at = np.random.default_rng(seed), [], [], 0
    for n in held:
        train.append(list(range(at, at + train_rows)))
        back.append(list(range(at + train_rows, at + train_rows + n)))
        at += train_rows + n
    x = rng.normal(size=(at + test_rows, FEATURES))
    y = (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.int64)
    x, y = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    return data.Federation("hospitals", Rows(x[:at], y[:at]), Holdings.from_lists(train), Holdings.from_lists(back), Rows(x[at:], y[at:]), 2,
                           tuple(f"h{k:03d}" for k in range(len(held))))


def run(fed: data.Federation, out: Path, **how: Any) -> tacit.Result:
    return tacit.train(fed, model="logistic", rounds=2, batch_size=None, out=out, **{"algorithm": algorithms.FedAvg(lr=0.5), **how})


def rounds_in(out: Path) -> list[dict[str, Any]]:
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [e for e in events if e["kind"] == "round" and e["round"]]


def attack(fed: data.Federation, result: tacit.Result, told: dict[str, float]) -> int:
    """How many patients' outcomes follow from {hospital: accuracy on its one held-out patient} and that patient's features."""
    right = 0
    for name, accuracy in told.items():
        (row,) = fed.held.of(fed.parties.index(name))
        with torch.no_grad():
            guess = int(result.model(fed.rows.x[row : row + 1]).argmax())
        right += int(fed.rows.y[row]) == (guess if accuracy > 0.5 else 1 - guess)
    return right


def told_by_events(fed: data.Federation, out: Path) -> dict[str, float]:
    each = rounds_in(out)[-1].get("parties", {}).get("accuracy", [])
    return {name: a for name, a in zip(fed.parties, each) if a is not None}


def told_by_report(fed: data.Federation, page: Path) -> dict[str, float]:
    """Whatever percentage stands in one table row, or in one mark, with a hospital's name."""
    text = html.unescape(page.read_text())
    found = re.findall(r"\b(h\d{3})\b(?:</t[hd]>\s*<td[^>]*>|: |</?\w+[^>]*>|\s)*([\d.]+)\s?%", text)
    return {name: float(value) / 100 for name, value in found if name in fed.parties}


@pytest.mark.parametrize("how", [*SIMULATED, {"runtime": "inprocess"}, {"guard": HIDDEN}],
                         ids=["stack", "each", "parties", "SecAgg"])
@pytest.mark.parametrize("test_rows", [0, 20], ids=["no test set", "test set"])
def test_with_one_patient_held_out_at_each_of_174_hospitals_nobodys_outcome_is_told(tmp_path: Path, how: dict[str, Any], test_rows: int) -> None:
    """Before: 174 of 174, from events.jsonl and, for up to 40 hospitals, from the report."""
    fed = hospitals([1] * 174, test_rows)
    result = run(fed, tmp_path / "run", **how)
    assert attack(fed, result, told_by_events(fed, tmp_path / "run")) == 0
    few = hospitals([1] * 30, test_rows)
    result = run(few, tmp_path / "few", **how)
    page = result.report()
    assert attack(few, result, told_by_report(few, page)) == 0

"""Every verb returns an object with the same methods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tacit
from tacit import data, models
from tacit.errors import BadRun
from tacit.report import read_run
from tacit.results import JobResult
from tests.jobs.studies import small

FED = data.gaussian_blobs(rows=80, seed=0).split(3, seed=0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobResult]:
    out = tmp_path_factory.mktemp("study")
    return {
        "train": tacit.train(FED, model="logistic", rounds=2),
        "compare": tacit.compare(FED, model="logistic", rounds=1),
        "study": tacit.study(small(out), quick=True, out=out / "run"),
    }


@pytest.mark.parametrize("verb", ["train", "compare", "study"])
def test_a_result_has_a_ledger_a_report_a_save_and_plain_values(
    verb: str, results: dict[str, JobResult], tmp_path: Path
) -> None:
    result = results[verb]
    assert isinstance(result, JobResult)
    assert isinstance(result.ledger, tacit.Ledger)
    assert result.report(tmp_path / "page.html") == tmp_path / "page.html"
    assert "<html" in (tmp_path / "page.html").read_text()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert result.save(tmp_path / "saved") == tmp_path / "saved"
    assert list((tmp_path / "saved").iterdir())
    assert "<" in result._repr_html_()


def test_a_saved_run_is_a_run_directory(results: dict[str, JobResult], tmp_path: Path) -> None:
    result = results["train"]
    assert isinstance(result, tacit.Result)
    result.save(tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert [e["round"] for e in record.rounds if e["round"]] == [1, 2]
    from safetensors.torch import load_file

    model = models.build("logistic", tuple(FED.rows.x.shape[1:]), FED.classes or 1, 0)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    x = FED.rows.x[:4]
    assert torch.equal(model(x), result.model(x))
    with pytest.raises(BadRun):
        result.save(tmp_path / "run")  # a run is never overwritten

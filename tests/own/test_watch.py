"""An exception in `watch` does not lose the model: the run ends, and the exception has its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data
from tacit.errors import BadData

FED = data.gaussian_blobs(rows=90, seed=0).split(3, seed=0)
OPTIONS: dict[str, Any] = {"model": "logistic", "batch_size": 16}


def weights(run: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def fail_at(r: int) -> Any:
    def watch(event: dict[str, Any]) -> None:
        if event["kind"] == "round" and event["round"] >= r:
            raise ZeroDivisionError("of the user's own")

    return watch


@pytest.mark.parametrize("runtime", ["cohort", "inprocess", "processes"])
def test_an_exception_in_watch_has_the_model_of_the_rounds_before_it(runtime: str) -> None:
    with pytest.raises(ZeroDivisionError, match="of the user's own") as caught:
        tacit.train(FED, rounds=5, watch=fail_at(2), runtime=runtime, **OPTIONS)
    result = caught.value.result  # type: ignore[attr-defined]
    two = tacit.train(FED, rounds=2, **OPTIONS)
    assert torch.allclose(weights(result), weights(two), atol=1e-6)
    assert result.metrics["accuracy"] == pytest.approx(two.metrics["accuracy"])
    assert [row["round"] for row in result.history] == [1, 2]
    assert "the model so far is error.result.model" in caught.value.__notes__[0]


def test_such_a_run_is_resumed_as_if_nothing_had_happened(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tacit.train(FED, rounds=4, watch=fail_at(2), out=tmp_path / "run", **OPTIONS)
    assert "resume=True" in caught.value.__notes__[0]
    resumed = tacit.train(FED, rounds=4, out=tmp_path / "run", resume=True, **OPTIONS)
    assert torch.equal(weights(resumed), weights(tacit.train(FED, rounds=4, **OPTIONS)))
    assert [row["round"] for row in resumed.history] == [1, 2, 3, 4]


def test_before_the_first_round_the_exception_is_raised_as_it_is() -> None:
    def watch(event: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        tacit.train(FED, rounds=2, watch=watch, **OPTIONS)
    assert not hasattr(caught.value, "result")


def test_arrays_in_the_cells_of_a_table_are_refused_all_at_once() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "y": list("abab")})
    frame["embedding"] = [np.zeros(3)] * 4
    frame["tags"] = [["x"], None, ["y"], ["z"]]
    with pytest.raises(BadData) as caught:
        data.from_frame(frame, "y")
    assert "the cells of 'embedding' are of type ndarray" in str(caught.value)
    assert "the cells of 'tags' are of type list" in str(caught.value)
    assert data.from_frame(frame, "y", drop=["embedding", "tags"]).columns == ("age",)

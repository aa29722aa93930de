"""Write a model for other programs: ONNX (.onnx) and torch.export (.pt2)."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadParameter, BadRun
from ..files import check_free, write_atomic
from .release import Release
from .score import ready

ENDINGS = (".onnx", ".pt2")
EXAMPLES = 3  # rows of the example that is traced; torch treats 0 and 1 as fixed sizes


class Scorer(nn.Module):
    """A model from encoded rows on: probabilities [rows, classes], or a regression's numbers [rows]."""

    def __init__(self, release: Release, module: nn.Module):
        super().__init__()
        self.module = ready(release, module)
        self.is_regression = release.is_regression
        self.is_double = release.spec is not None and not release.tokens
        mean, std = (0.0, 1.0) if release.pipeline is None else release.pipeline.target
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(x.double() if self.is_double else x).double()
        if self.is_regression:
            return out.reshape(-1) * self.std + self.mean
        return out.softmax(1)


def export(
    release: Release, module: nn.Module, path: str | Path, *, encoded: bool = False, force: bool = False
) -> Path:
    """Write the model to a new file, as `Result.export` describes; return its path."""
    file = Path(path)
    if file.suffix.lower() not in ENDINGS:
        raise BadParameter(f"export: {file} must end in .onnx or .pt2, which determines the format.")
    if release.loss or (release.is_regression and release.outputs > 1):
        raise BadParameter(
            "export: files are written for models of classes and of one number, whose outputs mean the same "
            f"everywhere; this one has {release.outputs} outputs"
            + (f" and the loss {release.loss!r}" if release.loss else "")
            + ". Export run.model itself: torch.onnx.export(run.model, …)."
        )
    if release.inputs is not None:
        raise BadParameter(
            "export: files are written for models of one input, and this one has several: "
            f"{', '.join(release.inputs['parts'])}. Export run.model itself: torch.onnx.export(run.model, …)."
        )
    check_free(file, force, ())
    is_encoded = encoded or release.pipeline is None
    scorer = Scorer(release, module).eval()
    example = torch.zeros(EXAMPLES, *release.shape, dtype=torch.int64 if release.tokens else torch.float32)
    if file.suffix.lower() == ".onnx":
        from .onnx_file import to_onnx

        content = to_onnx(release, scorer, example, is_encoded)
    else:
        content = _to_pt2(release, scorer, example)
    write_atomic(file, content)
    return file


def _to_pt2(release: Release, scorer: Scorer, example: Tensor) -> bytes:
    """Return a torch.export program; its extra file pipeline.json says how its input is encoded."""
    out = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            program = torch.export.export(
                scorer, (example,), dynamic_shapes={"x": {0: torch.export.Dim("rows")}}
            )
            extra = {"pipeline.json": json.dumps({**release.to_dict(), "input": "encoded rows"})}
            torch.export.save(program, out, extra_files=extra)
    except Exception as error:  # torch raises what it likes for code that it cannot trace
        raise cannot_trace(release, "torch.export", error) from error
    return out.getvalue()


def cannot_trace(release: Release, what: str, error: Exception) -> BadRun:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return BadRun(
        f"export: {what} cannot express the model {release.name!r}: {reason[0][:300]}. Use one of tacit's "
        "own models, or model code without branches on values."
    )


def describe(release: Release, is_encoded: bool) -> dict[str, Any]:
    """Return what a file's metadata states about its input and output."""
    facts: dict[str, Any] = {
        "made_by": "tacit",
        "model": release.name,
        "input": "encoded rows" if is_encoded else "columns of the table",
        "output": "prediction" if release.is_regression else "probabilities, prediction",
        "labels": json.dumps(list(release.labels)),
        "versions": json.dumps(release.metadata.get("versions", {})),
    }
    if release.pipeline is not None:
        facts["label"] = release.pipeline.label
        facts["encoded_columns"] = json.dumps(list(release.pipeline.recipe.columns))
        if is_encoded:  # so that another program can do the preparation
            facts["pipeline"] = json.dumps(release.pipeline.to_dict())
        if release.pipeline.threshold is not None:
            facts["threshold"] = repr(release.pipeline.threshold)
    return facts

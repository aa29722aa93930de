"""What a model needs besides its weights to be used: its architecture, and the pipeline of its table.

A run directory holds it as `pipeline.json`, beside `model.safetensors`:

    format      "tacit pipeline 1"
    model       name, and the [model] table that builds it (null if the model is code); shape of a row,
                whether it is a sequence of tokens; number of outputs
    pipeline    `data.Pipeline.to_dict()`: columns, categories, statistics, label names, threshold; null
                if the rows did not come from a table
    labels      names of the classes; empty for a regression
    metadata    what the writer adds (the run, the party); `reading`: separator, decimal and encoding of the
                files it was trained on, where the job declares them
    sha256      digest of model.safetensors; null until the model is trained

It is written before training starts, without the digest, and again with it when the model is there. No file
contains code, and none is read with pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import models
from ..data.inputs import is_outline, outline_of
from ..data.table_files import reading_in
from ..errors import BadData, BadJob, BadParameter, BadRun
from ..files import write_atomic
from ..parameters import from_table
from ..runs import MODEL, encode_model

if TYPE_CHECKING:
    from ..data.federation import Dataset, Federation
    from ..data.pipeline import Pipeline

FILE = "pipeline.json"
FORMAT = "tacit pipeline 1"
MOST_OUTPUTS = 100_000  # classes of a model; a larger number in a file is damage or an attack
DAMAGED = "It was modified or damaged after it was written. Restore it from a copy."


@dataclass(frozen=True)
class Release:
    """How to use a model: `spec` builds it (None: it is code), `pipeline` prepares rows of its table."""

    name: str  # of the model
    spec: dict[str, Any] | None  # the [model] table
    shape: tuple[int, ...]  # of one encoded row
    outputs: int
    labels: tuple[str, ...] = ()  # of the classes; none: a regression
    tokens: bool = False  # whether a row is a sequence of whole numbers
    pipeline: Pipeline | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Any,
        fed: Federation | Dataset,
        pipeline: Pipeline | None,
        threshold: float | None = None,
        **metadata: Any,
    ) -> Release:
        """Describe how to use a model that is trained on a federation or on one holder's rows.

        `threshold` replaces that of the pipeline, if it is given.
        """
        classes = fed.classes
        if pipeline is not None and threshold is not None:
            pipeline = dataclasses.replace(pipeline, threshold=threshold)
        labels = fed.labels or tuple(str(c) for c in range(classes or 0))
        if not isinstance(fed.rows.x, Tensor):
            metadata["inputs"] = outline_of(fed.rows.x)
        return cls(
            models.name_of(model),
            spec_of(model),
            tuple(fed.rows.x.shape[1:]),
            classes or max(1, math.prod(fed.rows.y.shape[1:])),
            pipeline.labels if pipeline is not None and pipeline.labels else labels,
            not fed.rows.x.is_floating_point(),
            pipeline,
            metadata,
        )

    @property
    def loss(self) -> str:
        """The loss of the run, by which outputs are read; empty: cross-entropy or squared error."""
        return str(self.metadata.get("loss", ""))

    @property
    def inputs(self) -> dict[str, Any] | None:
        """What a row is, if the model has several inputs: `outline_of` them."""
        found = self.metadata.get("inputs")
        return found if isinstance(found, dict) else None

    @property
    def is_regression(self) -> bool:
        return not self.labels

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": {
                "name": self.name,
                "spec": self.spec,
                "shape": list(self.shape),
                "outputs": self.outputs,
                "tokens": self.tokens,
            },
            "labels": list(self.labels),
            "pipeline": None if self.pipeline is None else self.pipeline.to_dict(),
            "metadata": self.metadata,
        }

    @classmethod
    def from_dict(cls, values: Any, where: str = FILE) -> Release:
        """Return what `to_dict` returned; BadRun if the values are anything else."""
        from ..data.pipeline import Pipeline

        try:
            if values["format"] != FORMAT:
                raise BadRun(
                    f"{where} has the format {values['format']!r}; this version of tacit reads {FORMAT!r}. "
                    "Use the version that wrote it."
                )
            model, labels, metadata = values["model"], values["labels"], values.get("metadata") or {}
            shape, outputs, spec = model["shape"], model["outputs"], model["spec"]
            whole = [*shape, outputs]
            if (
                not all(type(n) is int and n >= 0 for n in whole)
                or not 1 <= outputs <= MOST_OUTPUTS
                or type(model["tokens"]) is not bool
                or not (spec is None or isinstance(spec, dict))
                or not isinstance(metadata, dict)
                or not isinstance(metadata.get("reading", {}), dict)
                or not ("inputs" not in metadata or is_outline(metadata["inputs"]))
                or not all(isinstance(label, str) for label in (model["name"], *labels))
                or (labels and len(labels) != outputs)
            ):
                raise ValueError("a value of the wrong type or size")
            pipeline = None if values["pipeline"] is None else Pipeline.from_dict(values["pipeline"])
            return cls(
                model["name"], spec, tuple(shape), outputs, tuple(labels), model["tokens"], pipeline, metadata
            )
        except (KeyError, TypeError, ValueError, AttributeError, BadData) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else error
            raise BadRun(f"{where} cannot be read: {why}. {DAMAGED}") from error

    def _build(self, where: str, device: str) -> nn.Module:
        """Build the model with initial values; on the meta device without any."""
        if self.spec is None:
            raise BadRun(
                f"{where}: the model {self.name!r} is code of the program that trained it, and its file "
                "holds only the weights. Pass the model: tacit.load(directory, model=…), an nn.Module or a "
                "function that returns one."
            )
        try:
            spec = from_table(self.spec, models.ALL, f"{where}, model")
            with torch.device(device):
                return self._given(spec)
        except (BadJob, BadParameter) as error:
            raise BadRun(f"{error} {DAMAGED}") from None

    def load_module(self, content: bytes, where: str, model: Any = None) -> nn.Module:
        """Return the module with the weights of a safetensors file, on the CPU, ready to predict."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(content)
        except (SafetensorError, ValueError) as error:
            raise BadRun(f"{where}: {MODEL} cannot be read: {error}. {DAMAGED}") from error
        found = {k: tuple(v.shape) for k, v in tensors.items()}
        # a file that lies about sizes must not allocate them: shapes are compared on the meta device first
        outline = self._build(where, "meta") if model is None else self._given(model)
        expected = {k: tuple(v.shape) for k, v in outline.state_dict().items()}
        wrong = sorted(k for k in {*expected, *found} if expected.get(k) != found.get(k))
        if wrong:
            names = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
            given = "the given model" if model is not None else f"the model {self.name!r} of {FILE}"
            raise BadRun(
                f"{where}: {MODEL} does not fit {given}: {names} differ or are missing. "
                + ("Give the model that was trained." if model is not None else DAMAGED)
            )
        module = self._build(where, "cpu") if model is None else outline
        module.load_state_dict(tensors)
        return module.cpu().eval()

    def _given(self, model: Any) -> nn.Module:
        return models.build(model, self.shape, self.outputs, 0)


def spec_of(model: Any) -> dict[str, Any] | None:
    """Return the [model] table that builds a model from scratch; None if it is code."""
    if isinstance(model, models.Pretrained):
        model = model.spec
    if isinstance(model, str):
        return {"name": model} if model in models.ALL else None
    return models.table_of(model) if type(model) in models.ALL.values() else None


def reading_of(data: Mapping[str, Any] | None) -> dict[str, dict[str, str]]:
    """Return how files are read that are like those of a job, as metadata; empty if [data] does not say."""
    found = reading_in(data or {})
    return {"reading": found} if found else {}


def write_release(
    folder: str | Path, release: Release, module: nn.Module | None = None, **metadata: Any
) -> Path:
    """Write pipeline.json and, with a trained `module`, model.safetensors into a folder; return the folder.

    The model is written first. A reader who finds an older pipeline.json beside it sees that the digests
    differ. `metadata` is added to that of the release.
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    digest = None
    if module is not None:
        content = encode_model(module)
        digest = hashlib.sha256(content).hexdigest()
        write_atomic(where / MODEL, content)
    release = dataclasses.replace(release, metadata={**release.metadata, **metadata})
    text = json.dumps({**release.to_dict(), "sha256": digest}, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomic(where / FILE, text + "\n")
    return where


def has_release(folder: str | Path) -> bool:
    return (Path(folder) / FILE).is_file()


def check_release(folder: str | Path) -> None:
    """Raise BadRun, with the folders near it that hold a model, unless this one does."""
    where = Path(folder)
    if not where.is_dir():
        raise BadRun(f"there is no directory {where}. Give the directory of a finished run.")
    if has_release(where):
        return
    found = sorted(str(file.parent) for depth in ("*", "*/*") for file in where.glob(f"{depth}/{FILE}"))
    raise BadRun(
        f"{where} holds no model of a run: it has no {FILE}. "
        + (
            f"These do: {', '.join(found[:10])}."
            if found
            else "Give the directory of a run of this version of tacit, or the folder in which a party keeps "
            "its model; a part of a split network takes its rows by --file."
        )
    )


def read_release(folder: str | Path) -> tuple[Release, str | None]:
    """Return (release, digest of the model) of a folder; the digest is None before the model is trained."""
    check_release(folder)
    file = Path(folder) / FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRun(f"{file} cannot be read: {error}. {DAMAGED}") from error
    release = Release.from_dict(values, str(file))
    digest = values.get("sha256")
    if not (digest is None or isinstance(digest, str)):
        raise BadRun(f"{file} cannot be read: sha256 is {digest!r}. {DAMAGED}")
    return release, digest


def read_model(folder: str | Path, model: Any = None) -> tuple[Release, nn.Module]:
    """Return the release and the trained model of a folder. `model` is needed if the model is code."""
    release, digest = read_release(folder)
    file = Path(folder) / MODEL
    if digest is None:
        raise BadRun(
            f"{folder} has no trained model yet: the run is not finished. Let it finish, or resume it "
            f"(`tacit run --resume {folder}`)."
        )
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadRun(f"{file} cannot be read: {error.strerror or error}. {DAMAGED}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise BadRun(f"{file} is not the model that {FILE} describes: its digest differs. {DAMAGED}")
    return release, release.load_module(content, str(folder), model)

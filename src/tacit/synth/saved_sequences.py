"""Files of `PrivateSequences`: tensors as safetensors, the rest as JSON in the header; no code, no event."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import BadData, BadParameter, TacitError
from ..files import write_atomic
from ..parameters import check
from ..parties.ledger import Ledger
from ..results import check_absent
from .columns import Column
from .generator import GeneratorState
from .marginals import Support
from .private import pack_model, unpack_model
from .private_sequences import FittedSequences, PrivateSequences, Step
from .table import Table

FORMAT = "tacit.synth.private_sequences/1"


def save_sequences(model: PrivateSequences, path: str | Path, force: bool) -> Path:
    """Write a fitted model to one file, which must not exist unless `force`."""
    from safetensors.torch import save

    fitted = model.fitted
    start = pack_model(fitted.start, fitted.start_support)
    header = {
        "format": FORMAT,
        "parameters": asdict(model),
        "entity": fitted.entity,
        "time": fitted.time.to_dict(),
        "attributes": fitted.attributes.to_dict(),
        "events": fitted.events.to_dict(),
        "names": fitted.names,
        "start": start.metadata,
        "steps": [[s.parent, s.column] for s in fitted.steps],
        "place": [p.tolist() for p in fitted.step_support.place],
        "rare": [r.tolist() for r in fitted.step_support.rare],
        "ledger": fitted.ledger.to_dict(),
    }
    tensors = {f"start {name}": t for name, t in start.tensors.items()}
    tensors |= {
        f"step {k}": torch.from_numpy(np.ascontiguousarray(s.table)) for k, s in enumerate(fitted.steps)
    }
    file = Path(path) if force else check_absent(path)
    try:
        write_atomic(file, save(tensors, metadata={"tacit": json.dumps(header, allow_nan=False)}))
    except OSError as error:
        raise BadParameter(
            f"save: {file} cannot be written: {error.strerror}. Choose a writable location."
        ) from None
    return file


def is_private_sequences_file(path: str | Path) -> bool:
    """Whether a file was written by `PrivateSequences.save`."""
    try:
        return bool(_read_header(Path(path).read_bytes())["format"] == FORMAT)
    except (OSError, KeyError, ValueError, TypeError):
        return False


def load_private_sequences(path: str | Path) -> PrivateSequences:
    """Load what `PrivateSequences.save` wrote; it samples the same events as before."""
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    like = "Give a file written by PrivateSequences.save."
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}. {like}") from None
    try:
        header = _read_header(data)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, and this reads {FORMAT!r}")
        parameters = check(PrivateSequences(**header["parameters"]))
        model = parameters.restore(_unpack(header, load_tensors(data)))
        model.sample(1)  # parts that do not fit together fail here, not in the middle of a sample
    except (
        SafetensorError,
        KeyError,
        IndexError,
        ValueError,
        TypeError,
        AttributeError,
        TacitError,
    ) as error:
        raise BadData(
            f"{path} is not a model of sequences saved by tacit ({type(error).__name__}: {error}). {like}"
        ) from None
    return model


def _unpack(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> FittedSequences:
    start = {k.removeprefix("start "): t for k, t in tensors.items() if k.startswith("start ")}
    model, support = unpack_model(GeneratorState(start, header["start"]))
    assert support is not None
    place, rare = (tuple(np.array(v, np.int64) for v in header[k]) for k in ("place", "rare"))
    steps = [
        Step(int(parent), int(column), tensors[f"step {k}"].numpy())
        for k, (parent, column) in enumerate(header["steps"])
    ]
    step_support = Support(place, rare)
    sizes = step_support.sizes
    for s in steps:
        if s.table.shape != (sizes[s.parent], sizes[s.column]):
            raise ValueError(f"step {s.parent} → {s.column} has {s.table.shape} cells")
    return FittedSequences(
        str(header["entity"]),
        Column.from_dict(header["time"]),
        Table.from_dict(header["attributes"]),
        Table.from_dict(header["events"]),
        [str(n) for n in header["names"]],
        model,
        support,
        steps,
        step_support,
        Ledger.from_dict(header["ledger"]),
    )


def _read_header(data: bytes) -> dict[str, Any]:
    """Read tacit's part of a safetensors header: eight bytes of length, then JSON."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tacit"])
    return header

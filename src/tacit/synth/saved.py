"""Fitted generators as files.

Tensors are in the safetensors format, everything else is JSON in its header. Reading such a file runs no
code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter
from ..files import write_atomic
from ..parties.ledger import Ledger
from .table import Table

if TYPE_CHECKING:
    from .generator import Generator

FORMAT = "tacit.synth/1"


def write(generator: Generator, path: Path) -> Path:
    """Write a fitted generator to `path`."""
    from safetensors.torch import save

    header = {
        "format": FORMAT,
        "generator": type(generator).__name__,
        "parameters": dataclasses.asdict(generator),  # type: ignore[call-overload]
        "table": generator.table.to_dict(),
        "facts": generator.state.metadata,
        "history": generator.history,
        "ledger": generator.ledger.to_dict(),
    }
    tensors = {name: t.detach().cpu().contiguous() for name, t in generator.state.tensors.items()}
    try:
        write_atomic(path, save(tensors, metadata={"tacit": json.dumps(header, allow_nan=False)}))
    except OSError as error:
        raise BadParameter(
            f"save: {path} cannot be written: {error.strerror}. Choose a writable location."
        ) from None
    return path


def load(path: str | Path, also: Sequence[type[Generator]] = ()) -> Generator:
    """Load a generator saved with `Generator.save`; it samples the same rows as before.

    `also` lists generator classes of your own that the file may contain.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    from . import ALL
    from .generator import GeneratorState

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(
            f"{path} cannot be read: {error.strerror}. Give a file written by Generator.save."
        ) from None
    try:
        header = _header(data)
        cls = {**ALL, **{c.__name__: c for c in also}}[header["generator"]]
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in header["parameters"].items()}
        state = GeneratorState(
            dict(load_tensors(data)), header["facts"], header["history"], Ledger.from_dict(header["ledger"])
        )
        return cls(**parameters).restore(Table.from_dict(header["table"]), state)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadData(
            f"{path} is not a generator saved by tacit ({type(error).__name__}: {error}). Give a file "
            "written by Generator.save."
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """Read tacit's part of a safetensors header: eight bytes of length, then JSON."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tacit"])
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, and this version of tacit reads {FORMAT!r}")
    return header

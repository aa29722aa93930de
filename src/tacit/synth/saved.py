"""A fitted generator as one file: tensors in the safetensors format, everything else as JSON in its header.
Reading it runs no code.
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
    from .generator import Fitted, Generator

FORMAT = "tacit.synth/1"


def write(fitted: Fitted, path: Path) -> Path:
    from safetensors.torch import save

    about = {
        "format": FORMAT,
        "generator": type(fitted.generator).__name__,
        "parameters": dataclasses.asdict(fitted.generator),  # type: ignore[call-overload]
        "table": fitted.table.to_dict(),
        "facts": fitted.learned.facts,
        "history": fitted.history,
        "ledger": fitted.ledger.to_dict(),
    }
    tensors = {name: t.detach().cpu().contiguous() for name, t in fitted.learned.tensors.items()}
    try:
        write_atomic(path, save(tensors, metadata={"tacit": json.dumps(about, allow_nan=False)}))
    except OSError as error:
        raise BadParameter(
            f"save: {path} cannot be written: {error.strerror}. Choose a place you may write to."
        ) from None
    return path


def load(path: str | Path, also: Sequence[type[Generator]] = ()) -> Fitted:
    """A generator that was saved with `Fitted.save`; it samples as it did. `also` names generators of your
    own that may be in the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as tensors_of

    from . import ALL
    from .generator import Fitted, Learned

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(
            f"{path} cannot be read: {error.strerror}. Give the file that Fitted.save wrote."
        ) from None
    try:
        about = _header(data)
        cls = {**ALL, **{c.__name__: c for c in also}}[about["generator"]]
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in about["parameters"].items()}
        learned = Learned(
            dict(tensors_of(data)), about["facts"], about["history"], Ledger.from_dict(about["ledger"])
        )
        return Fitted(cls(**given), Table.from_dict(about["table"]), learned)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadData(
            f"{path} is no generator that tacit saved ({type(error).__name__}: {error}). Give the file that "
            "Fitted.save wrote."
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """safetensors: eight bytes of length, then a JSON header whose `__metadata__` is ours."""
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tacit"])
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}, and this version of tacit reads {FORMAT!r}")
    return about

"""Messages between parties: typed, frozen, and each kind declares what its receiver learns.

    class Upload(Message, reveals="the party's weighted model update"):
        weight: float
        update: Tensor

The class becomes a frozen dataclass. Its kind on the wire is its class name, so names must be unique. A
message does not contain its sender, which is known from the connection.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, ClassVar, dataclass_transform

import torch
from torch import Tensor

from ..errors import ProtocolError
from .forms import FieldType, TensorField, field_type_of, raw

KINDS: dict[str, type[Message]] = {}


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    kind: ClassVar[str]
    reveals: ClassVar[str]
    forms: ClassVar[dict[str, FieldType]]
    field_places: ClassVar[dict[str, tuple[FieldType, str]]]  # with the names of the fields in errors
    # no receiver changes its tensors or gives them to others: parties of one process that are sent one frame
    # may share what it holds (as SharedVectors, sum_steps.py)
    is_read_only: ClassVar[bool]
    vector: ClassVar[str | None]  # the field of a message that is one tensor

    def __init_subclass__(cls, *, reveals: str = "", is_read_only: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parent = cls.__mro__[1]
        if parent is not Message:
            raise ProtocolError(
                f"message {cls.__name__} inherits from {parent.__name__}; derive it directly from Message."
            )
        if not isinstance(reveals, str) or not reveals.strip():
            raise ProtocolError(
                f"message {cls.__name__} does not say what it reveals. Declare it as: "
                f'class {cls.__name__}(Message, reveals="what the receiver learns, in one sentence").'
            )
        known = KINDS.get(cls.__name__)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ProtocolError(
                f"two messages have the name {cls.__name__!r}: {known.__module__}.{known.__qualname__} and "
                f"{cls.__module__}.{cls.__qualname__}. "
                "The name identifies the kind on the wire; rename one of them."
            )
        cls.kind, cls.reveals, cls.is_read_only = cls.__name__, reveals.strip(), is_read_only
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in names:
            if name in ("kind", "reveals", "forms", "field_places", "is_read_only", "vector"):
                raise ProtocolError(
                    f"message {cls.__name__} has a field {name!r}, a name every message already uses. "
                    "Rename the field."
                )
        cls.forms = {name: field_type_of(hints[name], f"{cls.__name__}.{name}") for name in names}
        cls.field_places = {name: (form, f"{cls.kind}.{name}") for name, form in cls.forms.items()}
        is_vector = len(names) == 1 and isinstance(cls.forms[names[0]], TensorField)
        cls.vector = names[0] if is_vector else None
        KINDS[cls.__name__] = cls

    def __eq__(self, other: object) -> bool:
        """Compare kind and the bits of every field (so NaN equals itself)."""
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in self.forms)

    __hash__ = None  # type: ignore[assignment]  # a message holds tensors

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={_brief(getattr(self, name))}' for name in self.forms)})"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (
            isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        ):
            return False
        return a.numel() == 0 or torch.equal(raw(a), raw(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{k}: {_brief(v)}" for k, v in list(value.items())[:8])
            + (", …" if len(value) > 8 else "")
            + "}"
        )
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"

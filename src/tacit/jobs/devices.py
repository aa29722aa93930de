"""Where numbers are computed: what is taken as `device`, and how tensors come there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import bad


def device_for(verb: str, asked: Any) -> str:
    """`asked`, if it is there; for "auto" a card where there is one."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = asked.partition(":") if isinstance(asked, str) else ("", "", "")
    if kind not in ("cpu", "cuda") or (":" in asked and not (kind == "cuda" and number.isdecimal())):
        raise bad(verb, "device", asked, "'cpu', 'cuda', 'cuda:0' and so on, or 'auto'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadParameter(
            f"{verb}: device is {asked!r}, and torch finds no CUDA device here. Use device='cpu', or 'auto' "
            "to take a GPU where there is one."
        )
    if number and int(number) >= torch.cuda.device_count():
        raise BadParameter(
            f"{verb}: device is {asked!r}, and the last CUDA device here is "
            f"'cuda:{torch.cuda.device_count() - 1}'. Use one that is there."
        )
    return str(asked)


def placed(device: torch.device | str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What came in a message or from a disk, where the computing is done."""
    return {k: v.to(device) for k, v in state.items()}

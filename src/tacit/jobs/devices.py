"""The `device` argument of verbs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import bad


def device_for(verb: str, device: str) -> str:
    """Return the name of a device that exists; "auto" is a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("cpu", "cuda") or (":" in device and not (kind == "cuda" and number.isdecimal())):
        raise bad(verb, "device", device, "'cpu', 'cuda', 'cuda:0' and so on, or 'auto'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadParameter(
            f"{verb}: device is {device!r}, and torch finds no CUDA device here. Use device='cpu', or 'auto' "
            "to take a GPU where there is one."
        )
    if number and int(number) >= torch.cuda.device_count():
        raise BadParameter(
            f"{verb}: device is {device!r}, and the last CUDA device here is "
            f"'cuda:{torch.cuda.device_count() - 1}'. Use one that is there."
        )
    return device


def placed(device: torch.device | str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors from a message or a file on the device."""
    return {k: v.to(device) for k, v in state.items()}

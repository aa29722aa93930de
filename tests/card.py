"""A fake GPU: tensors that report the device "cuda:0", store their numbers on the CPU, and refuse what a real GPU
refuses.

    with card.pretended():
        tacit.infer(model, x, device="cuda")

CI has no GPU. Errors on a GPU are nearly always that two tensors of one operation are on different devices, that
a generator is for the other device, that numpy gets a tensor of the GPU, or that an operation on integers exists
on the CPU only. All of these fail here too. Speed, kernels and the last bits do not show: `on_a_gpu.py` tests
those.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.runtimes import cohort
from tacit.runtimes.fold import FoldEngine

PLACE = torch.device("cuda:0")
INSIDE = torch.device(
    "lazy:0"
)  # what torch believes inside: the one accelerator that a build for the CPU takes without a driver
MEMORY = 10**9
FLOATS_ONLY = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addmv",
    "mv",
    "dot",
    "vdot",
    "convolution",
    "convolution_overrideable",
)
MOVES = ("_to_copy", "copy_", "copy")
INDEXED = (
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_unsafe_index_put",
)  # places may be the CPU's


class Refused(RuntimeError):
    pass


class OnCard(Tensor):
    """A tensor of the card: its shape and type for torch to see, its numbers in `held`."""

    held: Tensor
    device = PLACE  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> OnCard:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=INSIDE,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnCard({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Generator(torch.Generator):
    """`torch.Generator("cuda")`, which a build for the CPU does not have."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")
        made.place = torch.device(device).type  # type: ignore[attr-defined]
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return PLACE if self.place == "cuda" else torch.device("cpu")  # type: ignore[attr-defined]


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation: on the CPU's numbers, its result where a card would have it, or refused as a card would
    refuse it.
    """
    name = func._schema.name.partition("::")[2]
    tensors = list(tensors_of((args, kwargs)))
    there = [x for x in tensors if isinstance(x, OnCard)]
    if there and name not in MOVES:
        together = [x for x in (args[0], *args[2:3]) if isinstance(x, Tensor)] if name in INDEXED else tensors
        strangers = [
            x
            for i, x in enumerate(together)
            if not isinstance(x, OnCard) and (x.ndim or (i == 0 and name in INDEXED))
        ]
        if strangers:
            raise Refused(
                f"{func}: tensors of the card and of the CPU ({[tuple(x.shape) for x in strangers]}) in one "
                "operation"
            )
        if name in FLOATS_ONLY and not any(x.is_floating_point() for x in there):
            raise Refused(f"{func} is not implemented for {there[0].dtype} on a card")
    asked = kwargs.get("device")
    result_there = bool(there) if asked is None else asked.type in ("cuda", INSIDE.type)
    if asked is not None and result_there:
        kwargs = {**kwargs, "device": "cpu"}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    known = {id(x.held): x for x in there}  # what an operation changed in place is the tensor it was given
    out = KERNELS.get(name, func)(*held(args), **held(kwargs))
    return placed_where(out, known, result_there)


# What a schema allows to be nested: tuples, lists and the dict of keywords. torch's pytree takes everything, and
# three quarters of the time of an operation.
def tensors_of(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list, dict)):
        for y in x.values() if isinstance(x, dict) else x:
            yield from tensors_of(y)


def held(x: Any) -> Any:
    if isinstance(x, OnCard):
        return x.held
    if isinstance(x, dict):
        return {k: held(v) for k, v in x.items()}
    return type(x)(map(held, x)) if type(x) in (tuple, list) else x


def placed_where(x: Any, known: dict[int, OnCard], there: bool) -> Any:
    """The result as the program sees it: on the card, if `there`."""
    if isinstance(x, Tensor):
        return known[id(x)] if id(x) in known else OnCard(x) if there else x
    return type(x)(placed_where(y, known, there) for y in x) if type(x) in (tuple, list) else x


def cell(read: Tensor, before: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel of torch's LSTM does, which a CPU does not have; `on_a_gpu.py` holds what a real card
    makes of it to the CPU.
    """
    into, forget, new, out = (read + before).chunk(4, -1)
    gates = into.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = gates[1] * c + gates[0] * gates[2]
    return gates[3] * after.tanh(), after, torch.cat(gates, -1)


def cell_back(
    by_h: Tensor, by_c: Tensor | None, c: Tensor, after: Tensor, gates: Tensor, bias: bool
) -> tuple[Tensor, Tensor, None]:
    assert not bias
    into, forget, new, out = gates.chunk(4, -1)
    dc = by_h * out * (1 - after.tanh() ** 2) + (0 if by_c is None else by_c)
    by_gates = (
        dc * new * into * (1 - into),
        dc * c * forget * (1 - forget),
        dc * into * (1 - new**2),
        by_h * after.tanh() * out * (1 - out),
    )
    return torch.cat(by_gates, -1), dc * forget, None


KERNELS = {"_thnn_fused_lstm_cell": cell, "_thnn_fused_lstm_cell_backward_impl": cell_back}  # of a card alone


class Everything(TorchDispatchMode):
    """Operations that are given nothing of the card may still make something there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Renamed(TorchFunctionMode):
    """Where a program says "cuda", torch reads another name: it would ask a driver that is not there. Also
    what torch does without a mode's seeing it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        kwargs = {k: renamed(v) for k, v in (kwargs or {}).items()}
        drawn, here = kwargs.get("generator"), isinstance(args[0], OnCard) if args else False
        if drawn is not None and (drawn.device.type == "cuda") != (
            kwargs["device"] is INSIDE if "device" in kwargs else here
        ):
            raise Refused(f"{func}: a generator for {drawn.device} draws for the other place")
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is INSIDE:
            return func(*args, **{**kwargs, "device": "cpu"}).to(INSIDE)
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.tolist and here:
            return args[0].held.tolist()
        if func == Tensor.data.__set__ and here:  # type: ignore[attr-defined]
            args[0].held = args[1].held
            return None
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (
                args[0],
                tuple(map(placed, args[1])) if isinstance(args[1], tuple) else placed(args[1]),
                *args[2:],
            )
        return func(*[renamed(x) for x in args], **kwargs)


def placed(index: Any) -> Any:
    return torch.tensor(index) if isinstance(index, (list, np.ndarray)) else index


def renamed(x: Any) -> Any:
    return (
        INSIDE
        if (isinstance(x, str) and x in ("cuda", "cuda:0"))
        or (isinstance(x, torch.device) and x.type == "cuda")
        else x
    )


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Within it there is a card, and it is what "auto" takes. The engine's recorded graphs are off: they hold
    kernels, and there are none.
    """
    seeds = Generator("cuda")
    answers = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "synchronize": lambda *a: None,
        "get_rng_state": lambda *a: seeds.get_state(),
        "set_rng_state": lambda state, *a: seeds.set_state(state),
        "default_generators": (seeds,),
        "mem_get_info": lambda *a: (MEMORY, MEMORY),
    }
    with (
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.object(cohort, "FoldEngine", Unrecorded),
        mock.patch.object(torch, "Generator", Generator),
        Renamed(),
        Everything(),
    ):
        yield


class Unrecorded(FoldEngine):
    def __init__(self, graphs: bool = False):
        super().__init__(graphs=False)

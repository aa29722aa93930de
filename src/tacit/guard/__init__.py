"""Stages that protect or compress updates: clip, add noise, quantize and hide, in this order.

The server undoes them in reverse on the sum.
"""

from .clip import Clip
from .counts import Laplace, RandomizedResponse
from .encrypt import Encrypt
from .guard import Guard, Layout, as_stages
from .lazy import Lazy
from .lightsecagg import LightSecAgg
from .noise import Noise
from .quantize import Quantize
from .secagg import SecAgg
from .sparsify import Sparsify
from .stage import Clients, Form, Stage

ALL: dict[str, type[Stage]] = {
    "Lazy": Lazy,
    "Sparsify": Sparsify,
    "Clip": Clip,
    "Noise": Noise,
    "Quantize": Quantize,
    "SecAgg": SecAgg,
    "LightSecAgg": LightSecAgg,
    "Encrypt": Encrypt,
}

__all__ = [
    "ALL",
    "Clients",
    "Clip",
    "Encrypt",
    "Form",
    "Guard",
    "Laplace",
    "Layout",
    "Lazy",
    "LightSecAgg",
    "Noise",
    "Quantize",
    "RandomizedResponse",
    "SecAgg",
    "Sparsify",
    "Stage",
    "as_stages",
]

"""Functions of shared numbers, made of products and comparisons. Each states its domain and its error, for
16 fractional bits; each bit less doubles the error.

| function      | domain                | error at most                     | how |
|---------------|-----------------------|-----------------------------------|---|
| reciprocal    | 2^-10 ≤ |x| ≤ 2^15    | 2^-14 + 2^-14 / |x|               | scaled into [1/2, 1), then Newton-Raphson |
| rsqrt         | 2^-10 ≤ x ≤ 2^15      | 2^-14 + 2^-13 / √x                | scaled into [1/4, 1), then Newton-Raphson |
| sqrt          | 0, and as rsqrt       | 2^-13 + 2^-13 · √x                | x · 1/√x in the scaled range |
| log           | 2^-10 ≤ x ≤ 2^15      | 2^-12 + 2^-16 / x                 | scaled into [1/2, 1), polynomial |
| exp           | x ≤ 10; 0 below −16   | 2^-14 + 2^-15 · e^x               | (polynomial at x/16)^16 |
| sigmoid, tanh | all                   | 2^-13                             | exp(−|x|), Newton-Raphson in [1, 2] |
| softmax       | all, n ≤ 2^14 of them | 2^-12 + n · 2^-22                 | exp(x − max x), reciprocal of the sum |
| gelu          | all                   | 2^-12                             | max(x, 0) − polynomial at |x| in [0, 4] |
| mean (`times`)| |mean| < 2^24; of 2^k all | 2^-15 + 2^-15 · |mean|        | a public factor with 22 bits, or 2^-k |
| layer norm    | as rsqrt, of the variance; n · variance < 2^30 | 2^-13 · (4 + |x − mean| / σ) · max(1, 1/σ) | rsqrt of the variance |

Tests hold each to its line over the domain. Outside, a result is wrong without a sign of it, as in every
such scheme; `debug=True` opens the arguments, checks them and fails. It also takes away all secrecy, and
the ledger says so.

Inner steps carry 22 fractional bits: their values are small, and sixteenth powers would show every lost
bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import beaver, compare
from . import truncate as truncation
from .beaver import MATMUL, MUL, Bilinear
from .compare import Signed
from .seat import Seat

LOW, HIGH = -10, 15  # the powers of two between which numbers are scaled into one octave
FINE = 22  # fractional bits of inner steps
FAR = 32  # bits that one truncation may take off
COARSE = 2.0**-15  # of a public factor
EXP_LOW, EXP_HIGH, EXP_SQUARES = (
    -16.0,
    10.0,
    4,
)  # e^-16 is less than a unit of 22 bits; e^10 with 44 fractional bits is below 2^59
GELU_END = 4.0  # beyond, x·(1 − Φ(x)) is below 2^-12

Step = Callable[..., Awaitable[Any]]


class Steps(NamedTuple):
    """What every function is made of. Shares in the ring have these; tagged ones have their own
    (`elements.py`).
    """

    product: Step
    known: Step  # with a public factor
    square: Step
    truncate: Step
    sign: Step
    largest: Step
    argmax: Step
    watch: Step  # in debug mode: does a product stay in range?


async def _known(seat: Seat, x: Tensor, public: Tensor, op: Bilinear) -> Tensor:
    await beaver.watch(seat, op, x, seat.public(public, x))
    return op(x, public)


RING = Steps(
    beaver.product,
    _known,
    beaver.square,
    truncation.truncate,
    compare.sign,
    compare.largest,
    compare.argmax,
    beaver.watch,
)


async def product(seat: Seat, x: Tensor, y: Tensor, op: Bilinear = MUL) -> Tensor:
    return await (seat.steps or RING).product(seat, x, y, op)


async def square(seat: Seat, x: Tensor) -> Tensor:
    return await (seat.steps or RING).square(seat, x)


async def truncate(seat: Seat, v: Tensor, bits: int | None = None) -> Tensor:
    return await (seat.steps or RING).truncate(seat, v, bits)


async def sign(seat: Seat, x: Tensor) -> Signed:
    return await (seat.steps or RING).sign(seat, x)


async def largest(seat: Seat, x: Tensor) -> Tensor:
    return await (seat.steps or RING).largest(seat, x)


async def argmax(seat: Seat, x: Tensor) -> Tensor:
    return await (seat.steps or RING).argmax(seat, x)


async def mul(seat: Seat, x: Tensor, y: Tensor, op: Bilinear = MUL, bits: int | None = None) -> Tensor:
    """[x ∘ y], and `bits` fractional bits taken off."""
    return await truncate(seat, await product(seat, x, y, op), bits)


async def scale(seat: Seat, x: Tensor, public: Tensor, op: Bilinear = MUL) -> Tensor:
    """[x] ∘ public encoded numbers."""
    return await truncate(seat, await (seat.steps or RING).known(seat, x, public, op))


async def times(seat: Seat, x: Tensor, factor: float) -> Tensor:
    """[x] times one public number, |x · factor| < 2^(40−f), as a rule 2^24; exact for 2^-k. It is taken with 22 fractional bits, and where these would leave
    an error above 2^-15 of it (1/n of thousands), its power of two is taken off x first.
    """
    if not factor:
        return torch.zeros_like(x)
    part, power = math.frexp(factor)  # factor = part · 2^power, 1/2 ≤ |part| < 1
    if abs(part) == 0.5 and 0 < 1 - power <= FAR:
        return await truncate(seat, x if factor > 0 else -x, 1 - power)
    if abs(round(factor * 2**FINE) / 2**FINE - factor) > COARSE * abs(factor):
        down = min(-power, FAR)
        x, factor = await truncate(seat, x, down), factor * 2.0**down
    most = 2.0 ** (beaver.ROOM - FINE - seat.fixed.fraction) / abs(factor)
    await seat.expect(x, -most, most, f"a multiplication by {factor:g}")
    return await truncate(seat, x * round(factor * 2**FINE), FINE)


def plus(seat: Seat, x: Tensor, number: float, bits: int | None = None) -> Tensor:
    return x + seat.public(round(number * 2 ** (seat.fixed.fraction if bits is None else bits)), x)


async def relu(seat: Seat, x: Tensor) -> Tensor:
    return (await sign(seat, x)).positive


async def polynomial(seat: Seat, x: Tensor, coefficients: tuple[float, ...], bits: int) -> Tensor:
    """Σ c_k x^k, |x| ≤ 1, with `bits` fractional bits: the powers in ⌈log₂ degree⌉ steps, and one truncation for the sum."""
    powers, degree = x.unsqueeze(0), len(coefficients) - 1
    while len(powers) < degree:
        more = min(len(powers), degree - len(powers))
        powers = torch.cat(
            [powers, await mul(seat, powers[-1:].expand(more, *x.shape), powers[:more], bits=bits)]
        )
    codes = torch.tensor([round(c * 2**bits) for c in coefficients[1:]], device=x.device).reshape(
        -1, *[1] * x.dim()
    )
    return plus(seat, await truncate(seat, (powers * codes).sum(0), bits), coefficients[0], bits)


async def octaves(seat: Seat, x: Tensor, edges: list[int]) -> Tensor:
    """[x ≥ 2^e] for each edge, compared all at once."""
    return (await sign(seat, torch.stack([plus(seat, x, -(2.0**e)) for e in edges]))).bit


def looked_up(seat: Seat, bits: Tensor, table: list[float]) -> Tensor:
    """With 22 fractional bits: table[k] where k + 1 edges are passed (table[0] also where none is): linear in
    the bits, so nothing is sent.
    """
    codes = [round(v * 2**FINE) for v in table]
    total = torch.zeros_like(bits[0]) + seat.public(codes[0], bits[0])
    for bit, before, after in zip(bits[1:], codes, codes[1:]):
        total = total + bit * (after - before)
    return total


async def reciprocal(
    seat: Seat, x: Tensor, low: int = LOW, high: int = HIGH, positive: bool = False
) -> Tensor:
    """1. |x| · 2^-k in [1/2, 1);  2. its inverse;  3. times 2^-k, and x's sign."""
    sense = None
    if not positive:
        signed = await sign(seat, x)
        x, sense = 2 * signed.positive - x, 2 * signed.bit - seat.public(1, x)
    await seat.expect(x, 2.0**low, 2.0**high, "reciprocal (of |x|)")
    bits = await octaves(seat, x, list(range(low, high + 1)))
    down = looked_up(seat, bits, [2.0 ** -(e + 1) for e in range(low, high + 1)])
    near = await mul(seat, x, down)
    y = await mul(seat, await inverse(seat, near, FINE), down, bits=2 * FINE - seat.fixed.fraction)
    return y if sense is None else await product(seat, y, sense)


async def inverse(seat: Seat, x: Tensor, bits: int) -> Tensor:
    """1/x for x in [1/2, 1] by Newton-Raphson, y ← y(2 − xy). It begins within 9% at 2.9142 − 2x; errors are
    squared: three steps leave 2^-33.
    """
    y = plus(seat, -2 * x, 2.9142, bits)
    for _ in range(3):
        y = await mul(seat, y, plus(seat, -(await mul(seat, x, y, bits=bits)), 2.0, bits), bits=bits)
    return y


async def _roots(seat: Seat, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """x · 4^-k in [1/4, 1), its 1/√ by Newton-Raphson (y ← y(3 − xy²)/2, two steps from a polynomial), and
    the octave.
    """
    edges = list(range(LOW, HIGH + 1, 2))
    bits = await octaves(seat, x, edges)
    near = await mul(seat, x, looked_up(seat, bits, [2.0 ** -(e + 2) for e in edges]))
    y = await polynomial(seat, near, _fit("rsqrt"), FINE)
    for _ in range(2):
        xyy = await mul(seat, near, await truncate(seat, await square(seat, y), FINE), bits=FINE)
        y = await mul(seat, y, plus(seat, -xyy, 3.0, FINE), bits=FINE + 1)
    return near, y, bits, edges


async def rsqrt(seat: Seat, x: Tensor, extra: int = 0) -> Tensor:
    """1/√x, with `extra` fractional bits more than usual."""
    await seat.expect(x, 2.0**LOW, 2.0**HIGH, "rsqrt")
    _, y, bits, edges = await _roots(seat, x)
    back = looked_up(seat, bits, [2.0 ** (-(e + 2) // 2) for e in edges])
    return await mul(seat, y, back, bits=2 * FINE - seat.fixed.fraction - extra)


async def sqrt(seat: Seat, x: Tensor) -> Tensor:
    await seat.expect(x, 0.0, 2.0**HIGH, "sqrt")
    near, y, bits, edges = await _roots(seat, x)
    root = await mul(seat, near, y, bits=FINE)
    return await mul(
        seat,
        root,
        looked_up(seat, bits, [2.0 ** ((e + 2) // 2) for e in edges]),
        bits=2 * FINE - seat.fixed.fraction,
    )


async def log(seat: Seat, x: Tensor) -> Tensor:
    """ln x = ln(x · 2^-k) + k ln 2."""
    await seat.expect(x, 2.0**LOW, 2.0**HIGH, "log")
    f, edges = seat.fixed.fraction, list(range(LOW, HIGH + 1))
    bits = await octaves(seat, x, edges)
    near = await mul(seat, x, looked_up(seat, bits, [2.0 ** -(e + 1) for e in edges]))
    centred = plus(seat, 4 * near, -3.0, FINE)  # [1/2, 1) → [−1, 1)
    fine = await polynomial(seat, centred, _fit("log"), FINE)
    return await truncate(
        seat, fine + looked_up(seat, bits, [(e + 1) * math.log(2) for e in edges]), FINE - f
    )


async def _exp(seat: Seat, x: Tensor) -> Tensor:
    """e^x with 22 fractional bits: max(x, −16) / 16 lies in [−1, 5/8], where a polynomial is taken to the
    16th power.
    """
    x = plus(seat, await relu(seat, plus(seat, x, -EXP_LOW)), EXP_LOW)
    y = await polynomial(seat, x * 2 ** (FINE - seat.fixed.fraction - EXP_SQUARES), _fit("exp"), FINE)
    for _ in range(EXP_SQUARES):
        y = await truncate(seat, await square(seat, y), FINE)
    return y


async def exp(seat: Seat, x: Tensor) -> Tensor:
    await seat.expect(x, -math.inf, EXP_HIGH, "exp")
    return await truncate(seat, await _exp(seat, x), FINE - seat.fixed.fraction)


async def sigmoid(seat: Seat, x: Tensor) -> Tensor:
    """s = 1 / (1 + e^−|x|) lies in [1/2, 1); σ(x) = 1 − s + [x ≥ 0](2s − 1)."""
    signed = await sign(seat, x)
    e = await _exp(seat, x - 2 * signed.positive)  # −|x|
    twice = await inverse(
        seat, plus(seat, e, 1.0, FINE), FINE + 1
    )  # 1 + e, read with one bit more, is (1 + e)/2; its inverse is 2s
    s = await truncate(seat, twice, FINE + 2 - seat.fixed.fraction)
    return plus(seat, -s, 1.0) + await product(seat, signed.bit, plus(seat, 2 * s, -1.0))


async def tanh(seat: Seat, x: Tensor) -> Tensor:
    """2σ(2x) − 1."""
    return plus(seat, 2 * await sigmoid(seat, 2 * x), -1.0)


async def softmax(seat: Seat, x: Tensor, dim: int = -1) -> Tensor:
    x = x.movedim(dim, -1)
    e = await _exp(seat, x - (await largest(seat, x)).unsqueeze(-1))
    total = await truncate(
        seat, e.sum(-1, keepdim=True), FINE - seat.fixed.fraction
    )  # at least 1: the largest term
    over = await reciprocal(seat, total, -1, max(1, math.ceil(math.log2(x.shape[-1]))), positive=True)
    return (await mul(seat, e, over.expand_as(e), bits=FINE)).movedim(-1, dim)


async def gelu(seat: Seat, x: Tensor) -> Tensor:
    """x·Φ(x) = max(x, 0) − u(1 − Φ(u)) with u = |x|, cut at 4."""
    positive = await relu(seat, x)
    u = x - 2 * positive  # −|x|
    left = await relu(seat, plus(seat, u, GELU_END))  # 4 − |x|, at least 0
    centred = plus(seat, -left * 2 ** (FINE - seat.fixed.fraction - 1), 1.0, FINE)  # |x|/2 − 1
    return positive - await truncate(
        seat, await polynomial(seat, centred, _fit("gelu"), FINE), FINE - seat.fixed.fraction
    )


async def layer_norm(seat: Seat, x: Tensor, dims: int, eps: float) -> Tensor:
    """(x − mean) / √(variance + ε) over the last `dims` dimensions."""
    flat = x.flatten(-dims)
    n = flat.shape[-1]
    centred = flat - await times(seat, flat.sum(-1, keepdim=True), 1 / n)
    await (seat.steps or RING).watch(
        seat, MATMUL, centred.unsqueeze(-2), centred.unsqueeze(-1)
    )  # Σ (x − mean)², which is not truncated on the way
    variance = await times(
        seat, await truncate(seat, (await square(seat, centred)).sum(-1, keepdim=True)), 1 / n
    )
    extra = FINE - seat.fixed.fraction
    over = await rsqrt(seat, plus(seat, variance, eps), extra)
    return (await mul(seat, centred, over.expand_as(centred), bits=FINE)).reshape(x.shape)


@functools.cache
def _fit(name: str) -> tuple[float, ...]:
    """The polynomial through the Chebyshev nodes, in powers of the variable; the degree is the least that
    stays below 2^-18 (rsqrt: below 1%).
    """
    low, high, degree = {
        "rsqrt": (0.25, 1.0, 5),
        "log": (-1.0, 1.0, 9),
        "exp": (-1.0, 0.625, 7),
        "gelu": (-1.0, 1.0, 12),
    }[name]
    made = np.polynomial.Chebyshev.interpolate(lambda v: _true(name, v), degree, domain=[low, high])
    return tuple(float(c) for c in made.convert(kind=np.polynomial.Polynomial).coef)


def _true(name: str, v: np.ndarray) -> np.ndarray:
    if name == "rsqrt":
        return v**-0.5
    if name == "log":
        return np.log((v + 3) / 4)
    if name == "exp":
        return np.exp(v)
    return np.array([(u := 2 * (w + 1)) * 0.5 * math.erfc(u / math.sqrt(2)) for w in v])

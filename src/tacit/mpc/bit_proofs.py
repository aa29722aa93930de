"""A proof that the bits a party sent for comparisons are the prescribed ones, of sublinear size, with
randomness from a dealer who is honest if a party is not. Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai:
Zero-Knowledge Proofs on Secret-Shared Data via Fully Linear PCPs, CRYPTO 2019; Boyle, Gilboa, Ishai, Nof:
Practical Fully Secure Three-Party Computation via Sublinear Distributed Zero-Knowledge Proofs, CCS 2019.

Every message bit of a prover P is a sum of products p·r (`tagged_bits.TERMS`) of public bits p, which P and
the verifier V know, and dealt bits r, which P and the dealer D know. The comparisons since the last check are
arranged in 2^m blocks. U_k and R_k are the multilinear polynomials in m variables over F = GF(2^64) whose
values at b in {0, 1}^m are the factors of term k in block b. ⟨U, R⟩ is their weighted sum of products.

    D, in advance   to P, by its tape: a random word R'_k for each R_k, and random words `pad`
                    to V, by its tape: a random point ρ of F^m, and ρ' ≠ 0
                    to V: S = R(ρ) + ρ'·R' and κ = Σ_e w_e·pad_e
    all             commit to opened values and seeds, then open the seeds: random weights
    P → V           BitProof, 3^m words: g_e + pad_e at the points e of {0, 1, ∞}^m outside of {0, 1}^m,
                    g = ⟨U, R⟩ (at ∞: the leading coefficient); h_b + pad_b at {0, 1}^m, h = ⟨U, R'⟩
    V               knows g at {0, 1}^m from the bits that P sent it; accepts if g(ρ) + ρ'·h(ρ) = ⟨U(ρ), S⟩

g has degree 2 in each variable and follows from its values at {0, 1, ∞}^m, h has degree 1; w_e are the
weights of this interpolation at ρ, times ρ' for those of h.

Weights: message t of a comparison has ψ_t·θ_w·x^s, if the comparison is bit s of word w of its block. So a
sum over 64 comparisons is one product. g at {0, 1, ∞}^m comes from sums of *bits*: U and R at these points
are sums of their values at {0, 1}^m. A term without public factor (U = 1) is linear, and 0 at ∞.

*A wrong bit is caught.* All that P sent V is fixed when V opens its seed. If a word of a block differs from
the prescribed one, g differs at this block, unless a weighted sum is 0 by chance: 2^-64 each for θ and ψ. ρ
and ρ' are known to V and D only, and V sends nothing that depends on them before its verdict. So P chooses
the other g_e and h_b without them. The difference to the true g + ρ'·h is a polynomial in ρ, ρ' that is not
0, since it is not at ρ' = 0; its degree is at most 2m ≤ 14, so it is 0 by chance with probability
14/(2^64 − 1). Together below 2^-59.9, for one wrong bit or many, whatever the values of the bits: whether a
deviation is noticed depends on weights and ρ, and on no secret. So an abort tells the cheat nothing.

*Nothing else is told.* P receives nothing, and D receives nothing from anybody. V sees S, which is uniform
since R' is, and ρ' ≠ 0; and a proof that is uniform, since the pads are, but for the equation that V checks,
whose other terms V knows. This holds for any weights, also if V chose its seed after it saw S, ρ and P's
bits, and for any bits that V itself sent: U is what P believes to be public. Nobody can ask for a second ρ.
R', pads and ρ serve one check and one pair of prover and verifier, so that several verifiers together know no
more. A proof of another check fails, since it has other pads.

Each party proves its bits to every other one, and each verifies for itself what it was sent. Before that, all
compare the record of opened values, so parties with different public values do not get here. Whoever does
not accept stops, and sends no share of a result. If the dealer's S does not arrive, there is no check and so
no result.

Bytes: S takes 8·234 for 2^m comparisons, that is 15 for each with m = 7, and the proof 8·3^m; m is chosen
for the least. One level is enough: folding again would save some of the 15, for a product for each word.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..crypto.binary_field import add_up, double, multiply, multiply_by, subset_sums
from . import tagged_bits
from .dealer import Request
from .prime import has_numba
from .tagged_bits import ALWAYS, DEALT, MESSAGES, PUBLIC, TERMS, ComparedBits
from .tape import Parts, Tape

MOST_VARIABLES = 7  # more blocks: less bytes, half as much more computing for each
WORD = 64  # columns
WORTH = 16  # words of a row from which on compiled loops are used


def _loops(rows: np.ndarray) -> Any:
    """The compiled loops, where they are worth it: for few comparisons numpy takes milliseconds, and loading
    numba takes half a second.
    """
    if not has_numba() or rows.shape[1] * rows.shape[2] < WORTH:
        return None
    from . import bit_loops

    return bit_loops


@dataclass(frozen=True)
class BitCheck(Request):
    """The randomness of one check: for each pair of parties the prover's masks, and the verifier's key."""

    size: int  # bytes of a row of all its comparisons

    def uniform(self) -> Parts:  # parties read it from their tapes by `draw_masks` and `draw_point`
        return {}

    @property
    def variables(self) -> int:
        """m."""
        return min(range(MOST_VARIABLES + 1), key=lambda m: DEALT * 8 * math.ceil(self.size / 2**m) + 3**m)

    @property
    def blocks(self) -> int:
        return int(2**self.variables)

    @property
    def points(self) -> int:
        """e."""
        return int(3**self.variables)

    @property
    def columns(self) -> int:
        """Comparisons of a block."""
        return 8 * math.ceil(self.size / self.blocks)

    @property
    def words(self) -> int:
        return math.ceil(self.columns / WORD)


class Masks(NamedTuple):
    """What a prover hides its proof with."""

    vector: np.ndarray  # R', [DEALT, columns]
    pads: np.ndarray  # [points]


class Point(NamedTuple):
    """Where a verifier checks a proof."""

    rho: np.ndarray  # [variables]
    scale: int  # ρ'


class Key(NamedTuple):
    """What a verifier checks one prover with."""

    point: Point
    sums: np.ndarray  # S, [DEALT, columns]
    pad: int  # κ


class Weights(NamedTuple):
    psi: np.ndarray  # of the messages
    theta: np.ndarray  # of the words


def _draw(tape: Tape, *shape: int) -> np.ndarray:
    return tape.draw(shape).cpu().numpy().view(np.uint64)


def draw_masks(tape: Tape, request: BitCheck) -> Masks:
    return Masks(_draw(tape, DEALT, request.columns), _draw(tape, request.points))


def draw_point(tape: Tape, request: BitCheck) -> Point:
    *rho, scale = _draw(tape, request.variables + 1)
    return Point(np.array(rho, np.uint64), int(scale) or 1)


def draw_weights(tape: Tape, request: BitCheck) -> Weights:
    return Weights(_draw(tape, MESSAGES), _draw(tape, request.words))


# arranging bits ---------------------------------------------------------------------------------------------


def arrange(rows: Sequence[np.ndarray], request: BitCheck) -> np.ndarray:
    """The rows of all comparisons side by side, in blocks of words: [rows, blocks, words]."""
    each = request.columns // 8
    blocks = np.zeros((len(rows[0]), request.blocks, 8 * request.words), np.uint8)
    begin = 0  # comparisons are copied where they go, a block at a time
    for part in rows:
        done = 0
        while done < part.shape[1]:
            block, at = divmod(begin + done, each)
            count = min(each - at, part.shape[1] - done)
            blocks[:, block, at : at + count] = part[:, done : done + count]
            done += count
        begin += part.shape[1]
    return blocks.view(np.uint64)


@functools.cache
def is_boolean(variables: int) -> np.ndarray:
    """Which of the points e are in {0, 1}^m; these are in the order of the blocks."""
    return np.array([2 not in e for e in itertools.product(range(3), repeat=variables)])


def extend(values: np.ndarray, axis: int) -> np.ndarray:
    """The multilinear polynomials' values at {0, 1, ∞}^m, from those at {0, 1}^m along an axis."""
    before, count, behind = values.shape[:axis], values.shape[axis], values.shape[axis + 1 :]
    done = 1
    while count > 1:
        count //= 2
        parts = values.reshape(*before, done, 2, count, *behind)
        zero, one = np.moveaxis(parts, axis + 1, 0)
        values = np.stack([zero, one, zero ^ one], axis + 1)
        done *= 3
    return values.reshape(*before, done, *behind)


def interpolate(rho: np.ndarray, ends: int) -> np.ndarray:
    """The weights at ρ of values at {0, 1}^m (ends = 2, multilinear) or {0, 1, ∞}^m (3, of degree 2)."""
    found = np.ones(1, np.uint64)
    each = np.stack([rho ^ np.uint64(1), rho, rho ^ multiply(rho, rho)], 1)[:, :ends]
    for ends_of_one in each:
        found = multiply(found[:, None], ends_of_one[None]).reshape(-1)
    return found


def weigh(point: Point) -> np.ndarray:
    """w: the weights of a proof's words."""
    weights = interpolate(point.rho, 3)
    weights[is_boolean(len(point.rho))] = multiply(
        interpolate(point.rho, 2), np.array(point.scale, np.uint64)
    )
    return weights


# the terms by message, as arrays ----------------------------------------------------------------------------


class Flat(NamedTuple):
    """The terms with a public factor, sorted by message; and those without."""

    public: np.ndarray
    dealt: np.ndarray
    message: np.ndarray
    begins: np.ndarray  # of a message with such terms
    messages: np.ndarray  # which one that is
    always: np.ndarray  # of each row of dealt bits: the message that has it as it is


@functools.cache
def flatten() -> Flat:
    products = [(p, r, t) for t, terms in enumerate(TERMS) for p, r in terms if p != ALWAYS]
    public, dealt, message = (np.array(part, np.int64) for part in zip(*products))
    messages, begins = np.unique(message, return_index=True)
    always = np.full(DEALT, ALWAYS, np.int64)
    for t, terms in enumerate(TERMS):
        for p, r in terms:
            if p == ALWAYS:
                always[r] = t
    return Flat(public, dealt, message, begins, messages, always)


def _combine(by_message: np.ndarray, messages: np.ndarray, weights: Weights) -> np.ndarray:
    """Σ_t ψ_t · (…)."""
    return add_up(multiply(by_message, weights.psi[messages][:, None]), 0)


def multiply_bits(public: np.ndarray, dealt: np.ndarray, weights: Weights) -> np.ndarray:
    """g at {0, 1, ∞}^m, without the terms that have no public factor: those are 0 where it is used."""
    if (loops := _loops(public)) is not None:
        return np.asarray(loops.multiply_bits(public, dealt, *weights, flatten()))
    flat, total = flatten(), np.zeros((), np.uint64)
    for w, theta in enumerate(weights.theta):
        p, r = (extend(np.ascontiguousarray(x[:, :, w]), 1) for x in (public, dealt))
        products = np.bitwise_xor.reduceat(p[flat.public] & r[flat.dealt], flat.begins, axis=0)
        total = total ^ multiply_by(products, int(theta))
    return _combine(total, flat.messages, weights)


def weigh_messages(messages: np.ndarray, weights: Weights) -> np.ndarray:
    """g at {0, 1}^m, from the messages."""
    if (loops := _loops(messages)) is not None:
        return np.asarray(loops.weigh_messages(messages, *weights))
    total = np.zeros(messages.shape[:2], np.uint64)
    for w, theta in enumerate(weights.theta):
        total ^= multiply_by(messages[:, :, w], int(theta))
    return _combine(total, np.arange(MESSAGES), weights)


def _shift_columns(vector: np.ndarray) -> np.ndarray:
    """Multiply column s by x^s."""
    vector = vector.copy()
    for s in range(1, vector.shape[1]):
        vector[:, s:] = double(vector[:, s:])
    return vector


def multiply_vectors(public: np.ndarray, vectors: Sequence[np.ndarray], weights: Weights) -> np.ndarray:
    """⟨U, vector⟩ at {0, 1}^m, for each of the vectors: [vectors, blocks]."""
    if (loops := _loops(public)) is not None:
        return np.asarray(loops.multiply_vectors(public, np.stack(vectors), *weights, flatten()))
    return np.stack([_multiply_vector(public, vector, weights) for vector in vectors])


def _multiply_vector(public: np.ndarray, vector: np.ndarray, weights: Weights) -> np.ndarray:
    flat, blocks = flatten(), public.shape[1]
    nibbles = np.arange(WORD // 4)
    total = np.zeros((MESSAGES, blocks), np.uint64)
    for w, theta in enumerate(weights.theta):
        part = np.zeros((DEALT, WORD), np.uint64)
        columns = vector[:, WORD * w : WORD * (w + 1)]
        part[:, : columns.shape[1]] = columns
        part = _shift_columns(part)
        sums = subset_sums(part.reshape(DEALT, -1, 4))
        packed = np.ascontiguousarray(public[:, :, w]).view(np.uint8).reshape(PUBLIC, blocks, 8)
        chosen = np.stack([packed & 15, packed >> 4], -1).reshape(PUBLIC, blocks, -1)
        terms = add_up(sums[flat.dealt[:, None, None], nibbles, chosen[flat.public]], 2)
        found = np.zeros((MESSAGES, blocks), np.uint64)
        found[flat.messages] = np.bitwise_xor.reduceat(terms, flat.begins, axis=0)
        alone = flat.always != ALWAYS
        np.bitwise_xor.at(found, flat.always[alone], add_up(part[alone], 1)[:, None])
        total ^= multiply_by(found, int(theta))
    return _combine(total, np.arange(MESSAGES), weights)


def fold_blocks(dealt: np.ndarray, weights: np.ndarray, vector: np.ndarray, scale: int) -> np.ndarray:
    """Σ_b weight_b · (the bits of block b) + scale · vector: [rows, columns]."""
    if (loops := _loops(dealt)) is not None:
        return np.asarray(loops.fold_blocks(dealt, weights, vector, np.uint64(scale)))
    bits = np.unpackbits(dealt.view(np.uint8), axis=-1, count=vector.shape[1], bitorder="little")
    found = multiply_by(vector, scale)
    for block, weight in enumerate(weights):
        found ^= bits[:, block] * weight
    return found


# dealer, prover and verifier --------------------------------------------------------------------------------


def deal_key(dealt: np.ndarray, masks: Masks, point: Point, request: BitCheck) -> list[Tensor]:
    """The dealer's S and κ for a verifier, of a prover's arranged bits."""
    sums = fold_blocks(dealt, interpolate(point.rho, 2), masks.vector, point.scale)
    pad = add_up(multiply(weigh(point), masks.pads))
    return [
        torch.from_numpy(x.view(np.int64).reshape(shape)) for x, shape in ((sums, sums.shape), (pad, (1,)))
    ]


class Check:
    """One party's part of a check: its proof for each of the others, and its verdict on theirs."""

    def __init__(self, request: BitCheck, records: Sequence[ComparedBits], weights: Weights):
        self.request, self.weights, self.records = request, weights, records
        self.public = arrange([record.public.rows() for record in records], request)

    def prove(self, vectors: Sequence[np.ndarray], pads: Sequence[np.ndarray]) -> list[np.ndarray]:
        """My proofs, under each of the pads; `vectors` are h."""
        dealt = arrange([record.dealt for record in self.records], self.request)
        products, boolean = (
            multiply_bits(self.public, dealt, self.weights),
            is_boolean(self.request.variables),
        )
        proofs = []
        for h, pad in zip(vectors, pads):
            proof = products.copy()
            proof[boolean] = h
            proofs.append(proof ^ pad)
        return proofs

    def multiply(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """⟨U, vector⟩ at the blocks, for masks R' and sums S."""
        return multiply_vectors(self.public, vectors, self.weights)

    def verify(self, name: str, first: bool, proof: np.ndarray, key: Key, sums: np.ndarray) -> bool:
        """Whether a party sent what it had to; `sums` is ⟨U, S⟩ at the blocks."""
        rows = [record.received[name] for record in self.records]
        if first:
            rows = [row ^ tagged_bits.constants(record.public) for row, record in zip(rows, self.records)]
        claimed = weigh_messages(arrange(rows, self.request), self.weights)
        at_blocks = multiply(interpolate(key.point.rho, 2), sums)
        # the messages are g at {0, 1}^m, where the proof has h
        at_messages = multiply(interpolate(key.point.rho, 3)[is_boolean(self.request.variables)], claimed)
        left = add_up(multiply(weigh(key.point), proof)) ^ add_up(at_messages) ^ np.uint64(key.pad)
        return bool(left == add_up(at_blocks))

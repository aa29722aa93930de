"""The loops of `bit_proofs.py`, compiled by numba, which must be installed to import this; without it, numpy
computes the same.

Products in GF(2^64) are carry-less products of words: one instruction of an x86 processor that has it, and
otherwise 32 integer products (Pornin: BearSSL, ctmul64); neither takes longer for some words than others.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..compiling import compile_loop

U = np.uint64
NONE, ONE = U(0), U(1)
CHUNK = 8  # words of a row that are computed together: a line of the cache
HAS_INSTRUCTION = llvm.get_host_cpu_features().get("pclmul", False)


@intrinsic
def multiply_by_instruction(context, a, b):
    """The 128 bits of the carry-less product, lower half first."""

    def generate(target, builder, signature, arguments):
        words, place = ir.VectorType(ir.IntType(64), 2), ir.IntType(32)
        kind = ir.FunctionType(words, [words, words, ir.IntType(8)])
        name = "llvm.x86.pclmulqdq"
        call = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        x, y = (
            builder.insert_element(ir.Constant(words, None), argument, place(0)) for argument in arguments
        )
        product = builder.call(call, [x, y, ir.IntType(8)(0)])
        halves = [builder.extract_element(product, place(k)) for k in range(2)]
        return target.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate


@compile_loop
def lower_half(x, y):
    """The lower half of the carry-less product: with three zeros between bits, sums do not carry."""
    m0, m1, m2, m3 = (
        U(0x1111111111111111),
        U(0x2222222222222222),
        U(0x4444444444444444),
        U(0x8888888888888888),
    )
    x0, x1, x2, x3 = x & m0, x & m1, x & m2, x & m3
    y0, y1, y2, y3 = y & m0, y & m1, y & m2, y & m3
    z0 = (x0 * y0) ^ (x1 * y3) ^ (x2 * y2) ^ (x3 * y1)
    z1 = (x0 * y1) ^ (x1 * y0) ^ (x2 * y3) ^ (x3 * y2)
    z2 = (x0 * y2) ^ (x1 * y1) ^ (x2 * y0) ^ (x3 * y3)
    z3 = (x0 * y3) ^ (x1 * y2) ^ (x2 * y1) ^ (x3 * y0)
    return (z0 & m0) | (z1 & m1) | (z2 & m2) | (z3 & m3)


@compile_loop
def reverse(x):
    """The bits in the opposite order."""
    for shift, mask in (
        (1, U(0x5555555555555555)),
        (2, U(0x3333333333333333)),
        (4, U(0x0F0F0F0F0F0F0F0F)),
        (8, U(0x00FF00FF00FF00FF)),
        (16, U(0x0000FFFF0000FFFF)),
    ):
        x = ((x >> U(shift)) & mask) | ((x & mask) << U(shift))
    return (x >> U(32)) | (x << U(32))


@compile_loop
def multiply_by_integers(x, y):
    """What `multiply_by_instruction` returns."""
    return lower_half(x, y), reverse(lower_half(reverse(x), reverse(y))) >> ONE


if HAS_INSTRUCTION:

    @compile_loop
    def carry_less(x, y):
        return multiply_by_instruction(x, y)  # type: ignore[call-arg,unused-ignore]

else:
    carry_less = multiply_by_integers


@compile_loop
def reduce(low, high):
    """A polynomial of 128 bits modulo x^64 + x^4 + x^3 + x + 1."""
    high ^= (high >> U(63)) ^ (high >> U(61)) ^ (high >> U(60))
    return low ^ high ^ (high << ONE) ^ (high << U(3)) ^ (high << U(4))


@compile_loop
def multiply(x, y):
    low, high = carry_less(x, y)
    return reduce(low, high)


@compile_loop
def transpose(block):
    """Transpose 64 × 64 bits in place (Warren: Hacker's Delight, 2nd edition, section 7-3)."""
    mask, width = U(0x00000000FFFFFFFF), 32
    while width:
        for begin in range(0, 64, 2 * width):
            for k in range(begin, begin + width):
                moved = ((block[k] >> U(width)) ^ block[k + width]) & mask
                block[k] ^= moved << U(width)
                block[k + width] ^= moved
        width >>= 1
        mask ^= mask << U(width)


@compile_loop
def gather(rows, row, begin, w, block):
    """Word w of 64 blocks, transposed: word s has the bits of column s."""
    count = min(64, rows.shape[1] - begin)
    for b in range(count):
        block[b] = rows[row, begin + b, w]
    block[count:] = NONE
    transpose(block)


@compile_loop
def extend(rows, row, begin, places, steps, out):
    """The values at all points e, of a word or CHUNK words from `begin` on.

    step[e] is 0 for e in {0, 1}^m, which has the place of its block; otherwise it is the distance to the
    point with 1 and, doubled, 0 instead of an ∞.
    """
    if out.shape[1] == CHUNK:
        for e in range(steps.shape[0]):
            step = steps[e]
            if step:
                for v in range(CHUNK):
                    out[e, v] = out[e - step, v] ^ out[e - 2 * step, v]
            else:
                for v in range(CHUNK):
                    out[e, v] = rows[row, places[e], begin + v]
    else:
        for e in range(steps.shape[0]):
            step = steps[e]
            out[e, 0] = out[e - step, 0] ^ out[e - 2 * step, 0] if step else rows[row, places[e], begin]


@compile_loop
def _add_products(public, dealt, at_public, at_dealt, ends, places, steps, begin, factors, total):
    """Add the weighted products of a word, or of CHUNK words, from `begin` on, by message."""
    points, width = steps.shape[0], factors.shape[0]
    p, r = np.empty((points, width), np.uint64), np.empty((points, width), np.uint64)
    products, first = np.empty((points, width), np.uint64), 0
    for number in range(ends.shape[0]):
        products[:] = NONE
        for k in range(first, ends[number]):
            extend(public, at_public[k], begin, places, steps, p)
            extend(dealt, at_dealt[k], begin, places, steps, r)
            if width == CHUNK:
                for e in range(points):
                    for v in range(CHUNK):
                        products[e, v] ^= p[e, v] & r[e, v]
            else:
                for e in range(points):
                    products[e, 0] ^= p[e, 0] & r[e, 0]
        for e in range(points):
            if steps[e]:
                low, high = NONE, NONE
                for v in range(width):
                    x, y = carry_less(products[e, v], factors[v])
                    low ^= x
                    high ^= y
                total[number, e] ^= reduce(low, high)
        first = ends[number]


@compile_loop
def _multiply_bits(public, dealt, psi, theta, at_public, at_dealt, ends, messages, places, steps):
    points, words = steps.shape[0], public.shape[2]
    total = np.zeros((messages.shape[0], points), np.uint64)
    begin = 0
    while begin < words:
        width = CHUNK if words - begin >= CHUNK else 1
        factors = theta[begin : begin + width]
        _add_products(public, dealt, at_public, at_dealt, ends, places, steps, begin, factors, total)
        begin += width
    out = np.zeros(points, np.uint64)
    for number in range(messages.shape[0]):
        for e in range(points):
            out[e] ^= multiply(total[number, e], psi[messages[number]])
    return out


def multiply_bits(public, dealt, psi, theta, flat):
    points = 3 ** (public.shape[1].bit_length() - 1)
    places, steps = _points(points)
    ends = np.append(flat.begins[1:], len(flat.public))
    return _multiply_bits(
        public, dealt, psi, theta, flat.public, flat.dealt, ends, flat.messages, places, steps
    )


@compile_loop
def _points(count):
    """Of each point, its block, and the step to those it is the sum of."""
    places, steps, block = np.zeros(count, np.int64), np.zeros(count, np.int64), 0
    for e in range(count):
        step = 1
        while step < count:
            if e // step % 3 == 2:
                steps[e] = step
            step *= 3
        if not steps[e]:
            places[e] = block
            block += 1
    return places, steps


@compile_loop
def weigh_messages(messages, psi, theta):
    out = np.zeros(messages.shape[1], np.uint64)
    for t in range(messages.shape[0]):
        for b in range(messages.shape[1]):
            low, high = NONE, NONE
            for w in range(messages.shape[2]):
                x, y = carry_less(messages[t, b, w], theta[w])
                low ^= x
                high ^= y
            out[b] ^= multiply(reduce(low, high), psi[t])
    return out


@compile_loop
def _multiply_vectors(public, vectors, psi, theta, at_public, message, begins, always):
    """Terms are sorted by the row of dealt bits that they have; `begins` says where each row's are."""
    count, rows, columns = vectors.shape
    blocks, words = public.shape[1], public.shape[2]
    places = (blocks + 7) // 8
    most = 0
    for row in range(rows):
        most = max(most, begins[row + 1] - begins[row])
    # for each term and vector: the sum of the numbers in the columns whose bits in eight blocks are these
    buckets = np.empty((most, places, 256, count), np.uint64)
    values, block = np.empty((64, count), np.uint64), np.empty(64, np.uint64)
    powers = np.empty((words, 64), np.uint64)
    for w in range(words):
        power = theta[w]
        for s in range(64):
            powers[w, s] = power
            power = multiply(power, U(2))
    out, alone = np.zeros((count, blocks), np.uint64), np.zeros(count, np.uint64)
    for row in range(rows):
        terms = begins[row + 1] - begins[row]
        buckets[:terms] = NONE
        alone[:] = NONE
        for w in range(words):
            here = min(64, columns - 64 * w)
            for k in range(count):
                for s in range(here):
                    value = multiply(vectors[k, row, 64 * w + s], powers[w, s])
                    values[s, k] = value
                    alone[k] ^= value
            for term in range(terms):
                for begin in range(0, blocks, 64):
                    gather(public, at_public[begins[row] + term], begin, w, block)
                    for place in range(begin // 8, min(begin // 8 + 8, places)):
                        table = buckets[term, place]
                        if count == 2:  # two parties
                            for s in range(here):
                                at = block[s] & U(255)
                                block[s] >>= U(8)
                                table[at, 0] ^= values[s, 0]
                                table[at, 1] ^= values[s, 1]
                        else:
                            for s in range(here):
                                at = block[s] & U(255)
                                block[s] >>= U(8)
                                for k in range(count):
                                    table[at, k] ^= values[s, k]
        for k in range(count):
            for term in range(terms):
                weight = psi[message[begins[row] + term]]
                for place in range(places):
                    for bit in range(7, -1, -1):  # the sum where it is set; and the rest without it
                        size, high = 1 << bit, NONE
                        for at in range(size):
                            high ^= buckets[term, place, size + at, k]
                            buckets[term, place, at, k] ^= buckets[term, place, size + at, k]
                        if 8 * place + bit < blocks:
                            out[k, 8 * place + bit] ^= multiply(high, weight)
            if always[row] >= 0:
                product = multiply(alone[k], psi[always[row]])
                for b in range(blocks):
                    out[k, b] ^= product
    return out


def multiply_vectors(public, vectors, psi, theta, flat):
    order = np.argsort(flat.dealt, kind="stable")
    begins = np.searchsorted(flat.dealt[order], np.arange(vectors.shape[1] + 1))
    return _multiply_vectors(
        public, vectors, psi, theta, flat.public[order], flat.message[order], begins, flat.always
    )


@compile_loop
def fold_blocks(dealt, weights, vector, scale):
    rows, blocks, words = dealt.shape
    places, columns = (blocks + 7) // 8, vector.shape[1]
    sums = np.zeros((places, 256), np.uint64)
    for b in range(blocks):
        size = 1 << b % 8
        for at in range(size):
            sums[b // 8, size + at] = sums[b // 8, at] ^ weights[b]
    out, block = np.empty((rows, columns), np.uint64), np.empty(64, np.uint64)
    for row in range(rows):
        for w in range(words):
            here = min(64, columns - 64 * w)
            for s in range(here):
                out[row, 64 * w + s] = multiply(vector[row, 64 * w + s], scale)
            for begin in range(0, blocks, 64):
                gather(dealt, row, begin, w, block)
                for s in range(here):
                    bits, total = block[s], NONE
                    for place in range(begin // 8, min(begin // 8 + 8, places)):
                        total ^= sums[place, bits & U(255)]
                        bits >>= U(8)
                    out[row, 64 * w + s] ^= total
    return out

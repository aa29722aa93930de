"""The kernels of `gpu_kernels.py`, which says what they are for. Importing this module needs Triton."""

# Triton gives parameters their types: a pointer, or a number of 32 bits if the value fits. Sizes that are
# multiplied are declared as 64 bits: 16 digits of 134 million values are 2^31.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rotate(x, n: tl.constexpr):
    return (x << n) | (x >> (32 - n))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit(do_not_specialize=["first", "count"])
def chacha(key, out, first, count, SIZE: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    number = block + first
    zero = tl.zeros([SIZE], tl.uint32)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4 = zero + tl.load(key).to(tl.uint32, bitcast=True)
    s5 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    s6 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
    s7 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    s8 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
    s9 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    s10 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
    s11 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    s12 = (number & 0xFFFFFFFF).to(tl.uint32)
    s13 = (number >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    at, live = out + block * 16, block < count
    tl.store(at, (x0 + s0).to(tl.int32, bitcast=True), live)
    tl.store(at + 1, (x1 + s1).to(tl.int32, bitcast=True), live)
    tl.store(at + 2, (x2 + s2).to(tl.int32, bitcast=True), live)
    tl.store(at + 3, (x3 + s3).to(tl.int32, bitcast=True), live)
    tl.store(at + 4, (x4 + s4).to(tl.int32, bitcast=True), live)
    tl.store(at + 5, (x5 + s5).to(tl.int32, bitcast=True), live)
    tl.store(at + 6, (x6 + s6).to(tl.int32, bitcast=True), live)
    tl.store(at + 7, (x7 + s7).to(tl.int32, bitcast=True), live)
    tl.store(at + 8, (x8 + s8).to(tl.int32, bitcast=True), live)
    tl.store(at + 9, (x9 + s9).to(tl.int32, bitcast=True), live)
    tl.store(at + 10, (x10 + s10).to(tl.int32, bitcast=True), live)
    tl.store(at + 11, (x11 + s11).to(tl.int32, bitcast=True), live)
    tl.store(at + 12, (x12 + s12).to(tl.int32, bitcast=True), live)
    tl.store(at + 13, (x13 + s13).to(tl.int32, bitcast=True), live)
    tl.store(at + 14, x14.to(tl.int32, bitcast=True), live)
    tl.store(at + 15, x15.to(tl.int32, bitcast=True), live)


@triton.jit
def split(
    words,
    out,
    rows,
    columns,
    across,
    down,
    padded,
    size,
    LOWEST: tl.constexpr,
    STEP: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write digit i of words[row, column] to out[row, LOWEST + STEP·i, column]: `padded` rows of `size`."""
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)[None, :]
    word = tl.load(words + row * down + column * across, (row < rows) & (column < columns), other=0)
    word += -0x7F7F7F7F7F7F7F80  # Σ 128·2^(8i): the bytes are now digits from −128 to 127, plus 128
    there = (row < padded) & (column < size)
    for limb in tl.static_range(8):
        digit = ((word >> (8 * limb)) & 255) - 128
        tl.store(out + (row * 8 + LOWEST + STEP * limb) * size + column, digit.to(tl.int8), there)


@triton.jit
def join(sums, out, rows: tl.int64, columns, width, plane: tl.int64, SIZE: tl.constexpr):
    """Σ_p sums[p, row, column] · 2^(8p), of planes that are `width` columns wide."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < rows * columns
    source = sums + (at // columns) * width + at % columns
    total = tl.zeros([SIZE], tl.int64)
    for limb in tl.static_range(8):
        total += tl.load(source + limb * plane, live, other=0).to(tl.int64) << (8 * limb)
    tl.store(out + at, total, live)


@triton.jit
def digits(c, codes, out, count: tl.int64, size: tl.int64, FIRST: tl.constexpr, BYTES: tl.constexpr):
    """Of each digit: is it less, is it equal, and bit 7 of the code; at the end bit 48 of c."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    live, there = at < count, byte < size
    word = tl.load(c + at, live, other=0)
    weight = (128 >> tl.arange(0, 8))[None, :]
    for d in tl.static_range(16):
        digit = ((word >> (3 * d)) & 7).to(tl.int32)
        code = tl.load(codes + d * count + at, live, other=0).to(tl.int32)
        table = code & 127
        less = (table >> digit) & 1
        tl.store(out + d * size + byte, tl.sum(less * weight, 1).to(tl.uint8), there)
        if d > 0:
            equal = tl.where(live, ((((table << 1) | FIRST) >> digit) & 1) ^ less, 0)
            tl.store(out + (15 + d) * size + byte, tl.sum(equal * weight, 1).to(tl.uint8), there)
        tl.store(out + (31 + d) * size + byte, tl.sum((code >> 7) * weight, 1).to(tl.uint8), there)
    top = ((word >> 48) & 1).to(tl.int32)
    tl.store(out + 47 * size + byte, tl.sum(top * weight, 1).to(tl.uint8), there)


@triton.jit
def mask(lt, eq, a, b, g, out, pairs, size: tl.int64, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    each = pairs * size
    live, row = at < each, at // size
    source = at + row * size  # row 2·row of lt and eq
    tl.store(out + at, tl.load(eq + source, live) ^ tl.load(a + at, live), live)
    tl.store(out + each + at, tl.load(lt + source, live) ^ tl.load(b + at, live), live)
    lower = at < each - size
    tl.store(out + 2 * each + at, tl.load(eq + source + size, lower) ^ tl.load(g + at, lower), lower)


@triton.jit
def combine(
    lt,
    opened,
    a,
    b,
    ab,
    g,
    ag,
    below,
    equal,
    pairs,
    size: tl.int64,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    each = pairs * size
    live, row = at < each, at // size
    d, e = tl.load(opened + at, live), tl.load(opened + each + at, live)
    mine = tl.load(a + at, live)
    value = tl.load(lt + at + (row + 1) * size, live) ^ tl.load(ab + at, live)
    value = value ^ (d & tl.load(b + at, live)) ^ (e & mine)
    if FIRST:
        value = value ^ (d & e)
    tl.store(below + at, value, live)
    upper = live & (row > 0)
    h = tl.load(opened + 2 * each + at - size, upper)
    value = tl.load(ag + at - size, upper) ^ (d & tl.load(g + at - size, upper)) ^ (h & mine)
    if FIRST:
        value = value ^ (d & h)
    tl.store(equal + at - size, value, upper)


@triton.jit
def finish(x, c, beta, beta_r, opened, bit, positive, count, FIRST: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < count
    flip = (tl.load(opened + at // 8, live, other=0).to(tl.int64) >> (7 - at % 8)) & 1
    share = tl.load(beta + at, live)
    u = tl.load(c + at, live) * share - tl.load(beta_r + at, live)
    tl.store(bit + at, tl.where(flip == 1, FIRST - share, share), live)
    tl.store(positive + at, tl.where(flip == 1, tl.load(x + at, live) - u, u), live)


@triton.jit
def codes(r, spare, bits, codes, beta, beta_r, count: tl.int64, size: tl.int64, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live = at < count
    word, place = tl.load(r + at, live, other=0), (7 - at % 8).to(tl.int32)
    for d in tl.static_range(16):
        digit = ((word >> (3 * d)) & 7).to(tl.int32)
        top = (tl.load(spare + d * size + at // 8, live, other=0).to(tl.int32) >> place) & 1
        code = ((1 << digit) - 1) | (top << 7)
        tl.store(codes + d * count + at, code.to(tl.uint8), live)
    bit = ((tl.load(bits + at // 8, live, other=0).to(tl.int32) >> place) & 1).to(tl.int64)
    tl.store(beta + at, bit, live)
    tl.store(beta_r + at, bit * word, live)


@triton.jit
def tops(v, bits, packed, masked, count, size, FIRST: tl.constexpr, BYTES: tl.constexpr):
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    live, there = at < count, byte < size
    word = tl.load(v + at, live, other=0)
    bit = word + (1 << 62) >= 0 if FIRST else -word < 0
    ones = tl.where(live & bit, (128 >> tl.arange(0, 8))[None, :], 0)
    whole = tl.sum(ones, 1).to(tl.uint8)
    tl.store(packed + byte, whole, there)
    tl.store(masked + byte, whole ^ tl.load(bits + byte, there), there)


@triton.jit
def carry(
    v,
    uw,
    packed,
    bits,
    masked,
    flips,
    out,
    count,
    PLACES: tl.constexpr,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    live, byte, place = at < count, at // 8, (7 - at % 8).to(tl.int32)
    flip = tl.load(flips + byte, live, other=0).to(tl.int32)
    theirs = flip ^ tl.load(masked + byte, live, other=0).to(tl.int32)
    if FIRST:
        own = tl.load(packed + byte, live, other=0).to(tl.int32)
    else:
        own = tl.load(bits + byte, live, other=0).to(tl.int32)
    product = (((own & theirs) >> place) & 1).to(tl.int64)
    carry = tl.load(uw + at, live, other=0).to(tl.int64)
    carry = tl.where((flip >> place) & 1 == 1, -carry, carry)
    word = tl.load(v + at, live, other=0)
    if FIRST:
        shifted = ((word + (1 << 62)) >> PLACES) & ((1 << (64 - PLACES)) - 1)
        share = ((carry + product) << (64 - PLACES)) + shifted - (1 << (62 - PLACES))
    else:
        shifted = (-word >> PLACES) & ((1 << (64 - PLACES)) - 1)
        share = ((carry + tl.where(-word < 0, product, -product)) << (64 - PLACES)) - shifted
    tl.store(out + at, share, live)

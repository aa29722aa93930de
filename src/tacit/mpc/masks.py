"""The masks of truncation and comparison, made by two parties and no dealer: r with its bits shared, from
oblivious transfer.

    Each party draws its own random bits; bit i of r is their exclusive or. With x the chooser's bit and y
    the holder's, b = x ⊕ y = y + x(1 − 2y), so one transfer of 1 − 2y turns it into shares by addition
    (daBits by correlated transfer), exactly. Then

    truncation      [r] = Σ 2^i [b_i],  [R] = [r div 2^f] = Σ_{i≥f} 2^(i−f) [b_i],  [s] = [b_63]                        64 transfers a value
    comparison      [r] likewise from its 49 lowest bits, and 2^49 times a word of each one's own, since nobody asks for the bits above
                    ⟨T_d⟩: the holder's table of 2^(k ⊕ y_d) − 1 for the chooser's digit k = 0 … 7, each
                    entry under the pads of the three bits that spell k (Naor, Pinkas: Oblivious Transfer
                    and Polynomial Evaluation, STOC 1999): one of eight, with the transfers that are there
                    [β] and [β·r]: β = β_j + β_{1−j}(1 − 2β_j), so a transfer each way of (1 − 2β_j)·r_j, chosen by the other's β       2 transfers
                    AND triples: party j's a_j chooses; the b and g that belong to it are what the two pads differ in, so nothing is sent    30 transfers

    one                                                      the other
      |--- Extended(bits, β, a's) ----------------------------->|   one round; for truncation, the chooser's alone
      |<-- Extended(β, a's) ------------------------------------|
      |<-- Correlations(1 − 2y, tables, (1 − 2β)·(r, 1)) -------|
      |--- Correlations((1 − 2β)·r) --------------------------->|   comparison only: r is known when the words have come

Each learns nothing: what comes is under pads it cannot compute, or makes masks that are uniform given what
it has. A value in turn is chosen by one and held by the other in every second piece, so that both work
alike. Parts are those that `dealer.py` deals: nothing that uses them can tell.
"""

from __future__ import annotations

import asyncio

import numpy as np

from ..crypto.bits import pack
from .compare import DIGIT, DIGITS, LEVELS, SIGN
from .extension import BASE, Line
from .ring import WORD

PIECE = 1 << 13  # values at a time: half a million transfers, 8 MB a matrix
ANDS = sum(LEVELS)
_ONES = np.uint64(0x0101010101010101)
_TABLES = np.array([[(1 << (k ^ y)) - 1 for k in range(8)] for y in range(8)], np.uint8).view(np.uint64)[
    :, 0
]  # byte k: the thermometer of k ⊕ y
# for place p of a digit: the bytes k whose bit p is 0, and those where it is 1
_WHERE = [
    [np.array([255 * ((k >> p & 1) == v) for k in range(8)], np.uint8).view(np.uint64)[0] for v in (0, 1)]
    for p in range(DIGIT)
]
Parts = dict[str, np.ndarray]


def traffic(bits: int | None) -> int:
    """Bytes that the masks of one truncation by `bits` take, both ways together; of one comparison, if
    None.
    """
    if bits is not None:
        return WORD * BASE // 8 + sum(_truncated(bits))
    return (
        (SIGN + 1 + 2 * (1 + ANDS)) * BASE // 8
        + sum(_bytes(WORD - i) for i in range(SIGN + 1))
        + 8 * DIGITS
        + 16
        + 8
    )


def _truncated(bits: int) -> list[int]:
    """Bytes that matter of each bit's share: 2^i in r, 2^(i − bits) in R."""
    return [_bytes(WORD - i + (bits if i >= bits else 0)) for i in range(WORD)]


async def truncations(line: Line, count: int, bits: int) -> Parts:
    """r, R and s for `count` values (a multiple of 8), of which `bits` fractional bits are taken."""
    widths, pieces = _truncated(bits), []
    for number, start in enumerate(range(0, count, PIECE)):
        n = min(PIECE, count - start)
        if line.rank == number % 2:
            x = line.bits(WORD, n)
            mine = (await line.ask(pack(x.ravel()), 1)).reshape(WORD, n)
            words = await asyncio.to_thread(_words_chosen, mine, x, await line.told(n * sum(widths)), widths)
        else:
            y = line.bits(WORD, n)
            zero, one = (pad.reshape(WORD, n) for pad in await line.hear(WORD * n // 8, 1))
            said, words = await asyncio.to_thread(_words_held, zero, one, y, widths)
            await line.tell(said)
        pieces.append({"r": _sum(words), "R": _sum(words[bits:]), "s": words[WORD - 1].copy()})
    return _joined(pieces)


async def comparisons(line: Line, count: int) -> Parts:
    """r, T, top, β bits, β, βr and AND triples for `count` values (a multiple of 8)."""
    return _joined(
        [
            await _comparison(line, min(PIECE, count - start), line.rank == number % 2)
            for number, start in enumerate(range(0, count, PIECE))
        ]
    )


async def _comparison(line: Line, n: int, chooses: bool) -> Parts:
    places, size = SIGN + 1, n // 8
    widths = [_bytes(WORD - i) for i in range(places)]
    mine, beta, a = line.bits(places, n), line.bits(n), line.draw(ANDS, size)
    rest = np.concatenate([pack(beta), a.ravel()])
    asked = np.concatenate([pack(mine.ravel()), rest]) if chooses else rest
    theirs = len(rest) + (0 if chooses else places * size)
    got, zero, one = await line.swap(asked, theirs, 2)
    at = places * n if chooses else 0  # my β, then my a's, behind the bits
    held = 0 if chooses else places * n
    due, turned = n * (sum(widths) + 8 * DIGITS), (1 - 2 * beta.astype(np.int64)).astype(np.uint64)
    high = line.draw(n, 8).view(np.uint64)[:, 0] << np.uint64(places)
    if chooses:
        came = await line.told(due + 16 * n)
        pad = got[:at].reshape(places, n, 2)
        words = await asyncio.to_thread(_words_chosen, pad[..., 0], mine, came[: n * sum(widths)], widths)
        tables = np.frombuffer(came, np.uint64, DIGITS * n, n * sum(widths)).reshape(DIGITS, n)
        T = _looked_up(tables, pad[:SIGN, :, 1], mine)
        r = _sum(words) + high
        sent = np.frombuffer(came, np.uint64, 2 * n, due).reshape(n, 2)
        transferred = got[at : at + n] + sent * beta.astype(np.uint64)[:, None]
        kept, said = _turned(zero[held : held + n, :1], one[held : held + n, :1], turned, r)
        await line.tell(said)
    else:
        zeros, ones = (pads[:held].reshape(places, n, 2) for pads in (zero, one))
        said, words = await asyncio.to_thread(_words_held, zeros[..., 0], ones[..., 0], mine, widths)
        T, tables = _tables(zeros[:SIGN, :, 1], ones[:SIGN, :, 1], mine, line.draw(DIGITS, n))
        r = _sum(words) + high
        kept, more = _turned(zero[held : held + n], one[held : held + n], turned, r)
        await line.tell(b"".join([said, tables.tobytes(), more]))
        sent = np.frombuffer(await line.told(8 * n), np.uint64).reshape(n, 1)
        transferred = got[at : at + n, :1] + sent * beta.astype(np.uint64)[:, None]
    own = beta.astype(np.uint64)
    # of [β] the one who holds twice keeps the second word, the other's is what it was sent
    parts = {
        "r": r,
        "T": T,
        "top": _packed(mine[SIGN]),
        "β bits": _packed(beta),
        "βr": own * r + transferred[:, 0] + kept[:, 0],
        "β": transferred[:, 1] if chooses else own + kept[:, 1],
    }
    return parts | _ands(a, got[at + n :, 0], zero[held + n :, 0], one[held + n :, 0])


def _ands(a: np.ndarray, got: np.ndarray, zero: np.ndarray, one: np.ndarray) -> Parts:
    """a·(b, g): with a_j mine to choose, and b_j, g_j what my two pads differ in, a·b = a_j b_j ⊕ (the pad I
    got) ⊕ (my pad for 0).
    """
    parts: Parts = {}
    for place, name in enumerate("bg"):
        chosen, first, second = (
            _packed((pads >> np.uint64(place)).astype(np.uint8) & 1, "little").reshape(a.shape)
            for pads in (got, zero, one)
        )
        second ^= first
        for pairs, begin in zip(LEVELS, np.cumsum((0, *LEVELS))):
            rows = slice(begin, begin + pairs)
            parts |= {
                f"a{pairs}": a[rows],
                f"{name}{pairs}": second[rows],
                f"a{name}{pairs}": a[rows] & second[rows] ^ chosen[rows] ^ first[rows],
            }
    return parts


def _words_chosen(pad: np.ndarray, x: np.ndarray, came: bytes, widths: list[int]) -> np.ndarray:
    """m_x + x·(m0 − m1 + 1 − 2y), bit by bit."""
    n, at = x.shape[1], 0
    made, sent = np.empty(x.shape, np.uint64), np.zeros((n, 8), np.uint8)
    for i, width in enumerate(widths):
        sent[:, :width] = np.frombuffer(came, np.uint8, n * width, at).reshape(
            n, width
        )  # what is above `width` does not count
        at += n * width
        np.multiply(sent.view(np.uint64)[:, 0], x[i], out=made[i])
        made[i] += pad[i]
    return made


def _words_held(
    zero: np.ndarray, one: np.ndarray, y: np.ndarray, widths: list[int]
) -> tuple[bytes, np.ndarray]:
    """(m0 − m1 + 1 − 2y for the chooser, y − m0), bit by bit."""
    n, parts, made = y.shape[1], [], np.empty(y.shape, np.uint64)
    for i, width in enumerate(widths):
        own = y[i].astype(np.uint64)
        parts.append(
            (zero[i] - one[i] + np.uint64(1) - own - own).view(np.uint8).reshape(n, 8)[:, :width].tobytes()
        )
        np.subtract(own, zero[i], out=made[i])
    return b"".join(parts), made


def _digit(bits: np.ndarray) -> np.ndarray:
    """[48, n] bits → [16, n] digits, the lowest place first."""
    three = bits[:SIGN].reshape(DIGITS, DIGIT, -1)
    return three[:, 0] | three[:, 1] << 1 | three[:, 2] << 2


def _tables(
    zero: np.ndarray, one: np.ndarray, y: np.ndarray, masks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(my share of the thermometers, the tables under the pads)."""
    tables = _TABLES[_digit(y)] ^ masks.astype(np.uint64) * _ONES
    for p in range(DIGIT):
        tables ^= zero[p::DIGIT] & _WHERE[p][0] ^ one[p::DIGIT] & _WHERE[p][1]
    return masks, tables


def _looked_up(tables: np.ndarray, pad: np.ndarray, x: np.ndarray) -> np.ndarray:
    word = tables ^ pad[0::DIGIT] ^ pad[1::DIGIT] ^ pad[2::DIGIT]
    return (word >> (_digit(x).astype(np.uint64) << np.uint64(3))).astype(np.uint8)


def _turned(zero: np.ndarray, one: np.ndarray, turned: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, bytes]:
    """(my share, what goes to the other) of its β times (1 − 2β_j)·(r, 1), or of the first of the two
    alone.
    """
    words = np.stack([turned * r, turned], 1)[:, : zero.shape[1]]
    return np.uint64(0) - zero, (zero - one + words).tobytes()


def _sum(words: np.ndarray) -> np.ndarray:
    """Σ 2^i words_i."""
    total = words[0].copy()
    for i, word in enumerate(words[1:], 1):
        total += word << np.uint64(i)
    return total


def _packed(bits: np.ndarray, order: str = "big") -> np.ndarray:
    return np.packbits(bits, bitorder="little" if order == "little" else "big")


def _bytes(bits: int) -> int:
    return (min(bits, WORD) + 7) // 8


def _joined(pieces: list[Parts]) -> Parts:
    return {name: np.concatenate([piece[name] for piece in pieces], -1) for name in pieces[0]}

"""ChaCha20's keystream, against RFC 8439 and against the definition in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.crypto.chacha import BLOCK, ChaCha20
from tacit.errors import BadParameter

# RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce of zeros, counters 0 and 1
ZEROS = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def block(key: bytes, number: int) -> bytes:
    """Section 2.3 of RFC 8439, with a counter of 64 bits."""

    def rotate(x: int, n: int) -> int:
        return (x << n | x >> (32 - n)) & 0xFFFFFFFF

    words = np.frombuffer(b"expand 32-byte k" + key + number.to_bytes(8, "little") + bytes(8), "<u4")
    start = [int(word) for word in words]
    x = list(start)
    for _ in range(10):
        for a, b, c, d in (
            *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
            *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
        ):
            for p, q, r, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[p] = (x[p] + x[q]) & 0xFFFFFFFF
                x[r] = rotate(x[r] ^ x[p], n)
    return b"".join(((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(x, start))


def test_the_stream_is_that_of_the_rfc():
    assert bytes(ChaCha20(bytes(32)).blocks(0, 2).numpy()).hex() == ZEROS


@pytest.mark.parametrize("first", [0, 7, (1 << 32) - 2, (1 << 40) + 5])
def test_blocks_are_those_of_the_definition_also_where_the_lower_counter_wraps(first):
    key = bytes(range(32))
    expected = b"".join(block(key, first + i) for i in range(4))
    assert bytes(ChaCha20(key).blocks(first, 4).numpy()) == expected
    assert len(expected) == 4 * BLOCK


def test_a_short_key_is_refused():
    with pytest.raises(BadParameter, match="32 bytes"):
        ChaCha20(bytes(16))

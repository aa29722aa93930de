"""The keystream: AES-256-CTR by its published vector, any bit of the key counts, the same in blocks as at
once.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import prg
from tacit.crypto.ring import WIDTHS, word
from tacit.errors import BadParameter

KEYS = st.binary(min_size=32, max_size=32)


def test_the_keystream_is_aes_256_in_counter_mode() -> None:
    """FIPS 197, C.3: AES-256 of the block 00112233…ff. In counter mode the block is the counter, so start
    there by hand: the first block is AES(key, 0).
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    published = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    assert (
        published.update(bytes.fromhex("00112233445566778899aabbccddeeff")).hex()
        == "8ea2b7ca516745bfeafc49904b496089"
    )
    wanted = b"".join(published.update(i.to_bytes(16, "big")) for i in range(4))
    assert prg.stream(key, 64, 8).tobytes() == wanted


def ghash(key: bytes, nonce: bytes) -> bytes:
    """NIST SP 800-38D, 6.4 and 7.1: the counter block before the first, of a nonce of whole blocks."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    zero = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16))
    h, y = int.from_bytes(zero, "big"), 0
    blocks = [nonce[at : at + 16] for at in range(0, len(nonce), 16)]
    for block in (*blocks, (8 * len(nonce)).to_bytes(16, "big")):  # and its length in bits
        x, v, z = y ^ int.from_bytes(block, "big"), h, 0
        for bit in range(127, -1, -1):
            z ^= v if x >> bit & 1 else 0
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        y = z
    return y.to_bytes(16, "big")


@pytest.mark.parametrize("words", [1, 7, prg.BLOCK // 8, prg.BLOCK // 8 + 1, 3 * prg.BLOCK // 8 + 5])
def test_a_keystream_is_counter_mode_from_the_hash_of_its_nonce(words: int) -> None:
    """One block and several give the same stream, which is that of plain counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    for key, nonce in (
        (bytes(range(32)), bytes(range(32))),
        (b"k" * 32, b"\xff" * 32),
        (b"k" * 32, b"n" * 16),
    ):
        start = ghash(key, nonce)
        count = (int.from_bytes(start[12:], "big") + 1) % 2**32
        counter = modes.CTR(start[:12] + count.to_bytes(4, "big"))
        wanted = Cipher(algorithms.AES(key), counter).encryptor().update(bytes(8 * words))
        added = prg.mask_from(np.zeros(words, np.uint64), [(prg.Keystream(key), 1)], nonce, 64)
        assert added.tobytes() == wanted
        assert not prg.mask_from(added, [(prg.Keystream(key), -1)], nonce, 64).any()
    with pytest.raises(BadParameter, match="the length of a key is 16; it must be 32 bytes"):
        prg.Keystream(bytes(16))


@given(KEYS, st.integers(0, 255), st.sampled_from(WIDTHS))
def test_changing_any_single_bit_of_a_key_changes_the_mask(key: bytes, bit: int, width: int) -> None:
    """Two streams of 32 words agree in a word with probability 2^-8 or less; that all 32 do has 2^-256 for
    the narrowest ring.
    """
    other = bytearray(key)
    other[bit // 8] ^= 1 << bit % 8
    assert not np.array_equal(prg.stream(key, 32, width), prg.stream(bytes(other), 32, width))


def test_every_bit_of_a_key_counts() -> None:
    key = bytes(32)
    streams = {prg.stream((1 << bit).to_bytes(32, "little"), 8, 32).tobytes() for bit in range(256)} | {
        prg.stream(key, 8, 32).tobytes()
    }
    assert len(streams) == 257


@pytest.mark.parametrize("width", WIDTHS)
def test_masks_go_away_again_across_blocks(width: int) -> None:
    n = 3 * prg.BLOCK // word(width).itemsize + 17
    vector = np.arange(n, dtype=np.uint64).astype(word(width)) & word(width).type(2**width - 1)
    keys = [(bytes([i] * 32), 1 if i % 2 else -1) for i in range(5)]
    masked = prg.mask(vector.copy(), keys, width)
    assert not np.array_equal(masked, vector)
    assert np.array_equal(prg.mask(masked, [(k, -s) for k, s in keys], width), vector)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(BadParameter, match="the length of a key is 16; it must be 32 bytes"):
        prg.stream(bytes(16), 4, 32)


def test_a_vector_of_other_words_is_refused() -> None:
    with pytest.raises(BadParameter, match="vector is dtype\\('int64'\\); it must be words of uint32"):
        prg.mask(np.zeros(3, np.int64), [], 20)


SRC = Path(prg.__file__).parents[1]
ROOMS = [
    file
    for room in ("crypto", "protocols", "guard", "accounting")
    for file in sorted((SRC / room).glob("*.py"))
]
BANNED = (
    "np.random",
    "numpy.random",
    "torch.rand",
    "torch.manual_seed",
    "torch.Generator",
    "torch.normal",
    "torch.bernoulli",
    "torch.multinomial",
    "random.",
)
NO_SECRET = {
    # when a node wakes and whom it picks, which follows from the job's seed in every runtime
    "protocols/gossip.py",
    "protocols/splitnn_terms.py",  # the order of rows in an epoch, which all parties derive alike
    # sets torch's generator for the layers' dropout, so that a part does what the whole does
    "protocols/splitnn_worker.py",
    # the places everybody sends, which all derive alike from the job's seed and nobody hides
    "guard/sparsify.py",
    "guard/conformance.py",
}  # made-up updates for a check, which also sets torch's generator to show that nothing is drawn from it
TENSOR_DRAWS = (
    "random_",
    "normal_",
    "uniform_",
    "bernoulli_",
    "exponential_",
    "default_rng",
    "RandomState",
    "manual_seed",
)


def draws(source: str) -> list[str]:
    """Every expression that draws from numpy's, torch's or Python's own generators."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == "random" for a in node.names):
            found.append("import random")
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "random"
            and not node.level
        ):
            found.append("from random import")
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text.startswith(BANNED) or node.attr in TENSOR_DRAWS or node.attr == "rng":
                found.append(text)
    return found


def test_no_generator_that_can_be_guessed_is_used_where_secrets_are_made() -> None:
    """numpy's and torch's generators take 32 bits of a seed, or can be run backwards; `me.rng` is numpy's.
    Secrets come from the OS.
    """
    assert len(ROOMS) > 8
    found = {
        file.relative_to(SRC).as_posix(): drawn
        for file in ROOMS
        if (drawn := draws(file.read_text(encoding="utf-8")))
    }
    assert {name: drawn for name, drawn in found.items() if name not in NO_SECRET} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "np.random.default_rng(0)",
        "torch.randint(0, 2, (3,))",
        "x.normal_()",
        "me.rng.integers(3)",
        "torch.Generator()",
        "from random import randint",
        "np.random.RandomState(3)",
        "torch.rand(3)",
    ],
)
def test_the_scan_sees_each_way_to_draw(line: str) -> None:
    assert draws(line)

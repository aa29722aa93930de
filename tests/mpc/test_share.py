from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.mpc.share import reconstruct, split
from tacit.mpc.tape import Tape
from tacit.parties.secret import Secret


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), st.integers(1, 6))
def test_shares_add_up_to_the_secret(values, parties):
    x = torch.tensor(values)
    shares = split(x, parties, Secret())
    assert len(shares) == parties
    assert torch.equal(reconstruct(shares), x)


def test_three_parties_add_without_a_word():
    """The shares 7, 6 and −2 are 11; and three secrets 7, 6 and −2, added share by share, are 11 too."""
    assert reconstruct([torch.tensor(v) for v in (7, 6, -2)]) == 11
    shared = [split(torch.tensor([v]), 3, Secret()) for v in (7, 6, -2)]
    sums = [a + b + c for a, b, c in zip(*shared)]
    assert reconstruct(sums).tolist() == [11]


def test_sharing_twice_gives_other_shares():
    x = torch.zeros(4, dtype=torch.int64)
    assert not torch.equal(split(x, 2, Secret())[0], split(x, 2, Secret())[0])


def test_a_tape_continues_and_is_the_same_for_the_same_key():
    key = bytes(range(32))
    whole = Tape(key).draw((70_000,))
    pieces = Tape(key)
    assert torch.equal(torch.cat([pieces.draw((5,)), pieces.draw((69_995,))]), whole)
    assert not torch.equal(Tape(bytes(32)).draw((5,)), whole[:5])


def test_a_tape_is_aes_256_in_counter_mode():
    """The first block under the key 00 01 … 1f of the zero counter, computed block by block with ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    one = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    blocks = b"".join(one.update(i.to_bytes(16, "big")) for i in range(4))
    assert bytes(Tape(key).draw((64,), torch.uint8).numpy()) == blocks


def test_a_short_key_is_refused():
    """A PRG with a 32-bit seed can be tried through in seconds."""
    with pytest.raises(ValueError, match="the length of a key is 4; it must be 32 bytes"):
        Tape(bytes(4))

"""Token ids are in nobody's view; and what a client learns of an embedding by sharing other rows than one-hot ones.
Tests of uniform words raise a false alarm with probability below 1e-9.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import PartyFailed
from tacit.mpc import inference, lookup
from tacit.mpc.model import compile, to_text
from tacit.mpc.tagged_context import TaggedContext
from tacit.parties import decode
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess

from .test_mpc import looks_uniform

TABLE = nn.Sequential(nn.Embedding(5, 3))
IDS = torch.tensor([[2, 4]])


def crafted(monkeypatch, row):
    """A client that shares this row for each of its tokens."""
    encode = lookup.encode

    def other(layer, x, fixed):
        honest = encode(layer, x, fixed)
        return torch.tensor(row).repeat(1, honest.shape[1] // len(row))

    monkeypatch.setattr(lookup, "encode", other)


def test_neither_tokens_nor_table_are_in_anybodys_view():
    """The same token four times, twice: the owner sees uniform words, with other masks in the second batch."""
    model, ids = nn.Sequential(nn.Embedding(700, 3)), torch.full((2, 2), 5)
    nn.init.constant_(model[0].weight, 3.25)
    layers, weights = compile(model, {"x": ids})
    tap = Tap()
    programs = {
        "owner": functools.partial(inference.owner, layers=to_text(layers), weights=weights),
        "client": functools.partial(inference.client, batches=[ids.double()] * 2),
        "helper": inference.helper,
    }
    InProcess().run_sync(tap.on(programs))
    rows = [decode(f).values[0] for f in tap.view("owner") if decode(f).kind == "MaskedFactors"]
    assert [tuple(r.shape) for r in rows] == [(2, 2, 700)] * 2
    assert looks_uniform(rows)
    assert looks_uniform([rows[0] - rows[1]])
    (table,) = [decode(f).values[0] for f in tap.view("client") if decode(f).kind == "MaskedWeights"]
    assert looks_uniform([table])
    assert {decode(f).kind for f in tap.view("helper")} == {"Architecture", "Batches"}


def test_a_semi_honest_run_does_not_notice_and_gives_the_mixture(monkeypatch):
    """As documented: a client that deviates reads a mixture of rows, here rows 1 and 3 at once."""
    crafted(monkeypatch, [0, 1, 0, 1000, 0])
    table = TABLE[0].weight.detach()
    out = tacit.infer(TABLE, IDS)
    assert (out.value - (table[1] + 1000 * table[3])).abs().max() < 0.05


@pytest.mark.parametrize(
    "row",
    [
        [0, 1, 0, 1, 0],  # two tokens
        [0, 2, 0, 0, 0],  # one token twice
        [0, 0, 0, 0, 0],  # none
        [0, 1, 0, 1, (1 << 61) - 2],  # 1 + 1 − 1: the sum is right
        [1 << 60, 1 << 60, 0, 0, 0],  # two halves: 2^60 is ½ modulo p
        [1000, 0, 0, 0, 0],
    ],
)
def test_in_the_checked_mode_it_is_refused_before_any_layer(monkeypatch, row):
    crafted(monkeypatch, row)
    with pytest.raises(PartyFailed, match="'client' shared something else than token ids and masks"):
        tacit.infer(TABLE, IDS, adversary="active")


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, mask):
        return mask.bool().float() * self.scale


@pytest.mark.parametrize("bits", [[2, 1], [1, (1 << 61) - 2]])
def test_a_mask_that_is_not_bits_is_refused_in_the_checked_mode(monkeypatch, bits):
    assert tacit.infer(Masked(), torch.tensor([[1, 0]]), adversary="active").value.tolist() == [[2.0, 0.0]]
    crafted(monkeypatch, bits)
    with pytest.raises(PartyFailed, match="a mask is neither 0 nor 1"):
        tacit.infer(Masked(), torch.tensor([[1, 0]]), adversary="active")


def test_an_owner_that_falsifies_the_check_is_caught_before_its_outcome_is_opened(monkeypatch):
    """A wrong opening would turn the zeros into a multiple of ⟨r, x⟩, which tells the token: the tags are checked
    first.
    """
    opened, revealed = [], []
    open_, reveal = TaggedContext.open, TaggedContext.reveal

    async def tampered(self, *shares):
        if self.me is not None and self.rank == 0 and not opened:
            opened.append(True)
            shares = (shares[0] + self.public(1, shares[0]), *shares[1:])
            shares[0].data[1] = torch.zeros_like(shares[0].data[1])
        return await open_(self, *shares)

    async def recorded(self, x):
        if self.me is not None:
            revealed.append(self.rank)
        return await reveal(self, x)

    monkeypatch.setattr(TaggedContext, "open", tampered)
    monkeypatch.setattr(TaggedContext, "reveal", recorded)
    with pytest.raises(PartyFailed, match="check 1 failed"):
        tacit.infer(TABLE, IDS, adversary="active")
    assert opened
    assert not revealed

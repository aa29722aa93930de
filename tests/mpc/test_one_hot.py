"""One-hot vectors of shared numbers."""

from __future__ import annotations

import pytest
import torch

from tacit.mpc.one_hot import one_hot
from tacit.parties.codec import kind_of
from tacit.parties.conformance import Tap

from .at_table import MASKED, play, value


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_vector_has_a_one_at_the_number(bits: int) -> None:
    numbers = torch.arange(1 << bits).repeat(3)

    async def step(ctx, x):
        return await one_hot(ctx, x, bits)

    assert value(step, numbers).equal(torch.eye(1 << bits, dtype=torch.int64).repeat(3, 1))


def test_parties_see_masked_numbers_only() -> None:
    async def step(ctx, x):
        return await one_hot(ctx, x, 3)

    tap = Tap()
    play(step, torch.arange(8), tap=tap)
    kinds = {kind_of(frame) for name in ("party 0", "party 1") for frame in tap.view(name)}
    assert kinds <= {*MASKED, "MaskedNumbers"}


def test_the_opened_number_is_uniform_whatever_the_secret_is() -> None:
    """χ² with 7 degrees of freedom over 4,000 numbers; a false alarm has a probability below 1e-8."""

    async def step(ctx, x):
        before, opened = ctx.open, []

        async def listen(kind, *shares):
            found = await before(kind, *shares)
            opened.append(found[0].long() & 7)
            return found

        ctx.open = listen
        await one_hot(ctx, x, 3)
        return opened[0] if opened else x  # nothing is opened in the dry run

    counts = torch.bincount(play(step, torch.full((4000,), 5))[0], minlength=8).double()
    assert float(((counts - 500) ** 2 / 500).sum()) < 55

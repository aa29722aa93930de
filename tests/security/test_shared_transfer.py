"""The margin of transfer on shares: what counts as blur, and what the caller must state."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
import torch

from tacit.errors import BadData, PartyFailed
from tacit.mpc import transfer
from tacit.runtimes import InProcess


def test_faint_scores_do_not_count_as_blur() -> None:
    """14 shared rows, 7 sums, γ = 1, but scores of deviation .01: trying all 2^14 labels finds the right
    ones, so the margin is that of γ = 0.
    """
    g = torch.Generator().manual_seed(0)
    y, scores = torch.randint(2, (14,), generator=g), 0.01 * torch.randn(14, 1, generator=g)
    h = torch.tanh(torch.randn(14, 6, generator=g))
    every, full = torch.cartesian_prod(*[torch.tensor([0, 1])] * 14), transfer.add_intercept(h)
    sums = full.T @ transfer.compute_targets(y, scores, 1.0) / 14
    guesses = (every.double() - 0.5) / 2.25 @ full / 14
    assert every[(guesses - sums.T).square().sum(1).argmin()].tolist() == y.tolist()  # the attack

    def run(scores: torch.Tensor, gamma: float) -> Any:
        return InProcess().run_sync(
            {
                "a": functools.partial(
                    transfer.source, names=("a", "b"), helper="h", width=6, y=y, scores=scores, gamma=gamma
                ),
                "b": functools.partial(
                    transfer.target, names=("a", "b"), helper="h", h=h, decay=0.03, gamma=gamma
                ),
                "h": functools.partial(transfer.helper, names=("a", "b"), rows=14, width=6),
            }
        )

    two_values = torch.where(y == 1, 3.0, -3.0)[
        :, None
    ]  # a source that fits its labels exactly: large scores, and a label is all they say
    for few in (scores, two_values):  # at once: the source refuses before anything is sent
        with pytest.raises(
            PartyFailed, match=r"party 'a' failed: BadData: 14 rows are shared, .* Share at least 126 rows"
        ):
            run(few, 1.0)
    assert run(100 * scores, 1.0)["b"].shape == (7, 1)


def test_the_margin_of_shared_transfer_has_no_default_gamma() -> None:
    """Both programs check with their γ: one below FAINT is refused at the target too, whichever program calls it."""
    with pytest.raises(BadData, match="Share at least 126 rows"):
        asyncio.run(transfer.target(None, ("a", "b"), "h", torch.zeros(14, 6), 0.03, 0.1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gamma"):
        transfer.check_margin(14, 6)  # type: ignore[call-arg]

"""Tagged shares with the operators of plain ones: what happens to the share happens to its tag."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.mpc import functions, prime, tagged
from tacit.mpc.elements import TaggedShare
from tacit.mpc.prime import FixedPointPrime, P
from tacit.mpc.tagged_context import TaggedContext
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

NUMBER = st.integers(0, P - 1)
NAMES = ("a", "b")


def whole(shares: list[TaggedShare]) -> torch.Tensor:
    """The value and its tag, from all shares."""
    return prime.total(torch.stack([s.data for s in shares]), 0)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=2, max_size=6), st.integers(-(2**40), 2**40))
def test_what_is_linear_keeps_the_tag(pairs, public):
    alphas = tagged.draw_keys(2, Secret())
    x, y = (torch.tensor(v) for v in zip(*pairs))
    a, b = ([TaggedShare(s) for s in tagged.share_tagged(v, alphas, Secret())] for v in (x, y))
    alpha = sum(alphas) % P

    def held(made, wanted):
        value, tag = whole(made)
        assert value.flatten().tolist() == [w % P for w in wanted]
        assert tag.flatten().tolist() == [w * alpha % P for w in wanted]

    xs, ys = x.tolist(), y.tolist()
    held([p + q for p, q in zip(a, b)], [p + q for p, q in zip(xs, ys)])
    held([p - q for p, q in zip(a, b)], [p - q for p, q in zip(xs, ys)])
    held([-p for p in a], [-p for p in xs])
    held([public * p for p in a], [public * p for p in xs])
    held([p * torch.tensor([public, 2])[:1] for p in a], [public * p for p in xs])
    held([p.sum(0) for p in a], [sum(xs)])
    held([torch.stack([p, q]).sum(0) for p, q in zip(a, b)], [p + q for p, q in zip(xs, ys)])
    held([torch.cat([p, q])[1:] for p, q in zip(a, b)], (xs + ys)[1:])
    held([p.unsqueeze(0).expand(2, len(xs)).reshape(-1) for p in a], xs + xs)
    held(
        [p + TaggedContext(None, i, (), None, alpha=alphas[i]).public(public, p) for i, p in enumerate(a)],
        [p + public for p in xs],
    )


def test_shapes_are_those_of_the_value():
    x = TaggedShare(torch.zeros(2, 3, 4, 5, dtype=torch.int64))
    assert (x.shape, x.dim(), len(x)) == ((3, 4, 5), 3, 3)
    assert [
        tuple(t.shape)
        for t in (
            x.movedim(0, -1),
            x.transpose(0, 1),
            x.flatten(1),
            x.flatten(-2),
            x.sum(-1, keepdim=True),
            x[0],
            x[..., 1],
        )
    ] == [(4, 5, 3), (4, 3, 5), (3, 20), (3, 20), (3, 4, 1), (4, 5), (3, 4)]
    assert [tuple(row.shape) for row in x] == [(4, 5)] * 3
    with pytest.raises(TypeError, match="softmax"):
        torch.softmax(x, -1)


# name: function, plain, domain, error at most (as `functions.py` has it)
LINES = {
    "exp": (functions.exp, torch.exp, (-20, 9), lambda x: 2**-14 + 2**-15 * x.exp()),
    "reciprocal": (functions.reciprocal, torch.reciprocal, (2**-10, 2**15), lambda x: 2**-14 + 2**-14 / x),
    "sigmoid": (functions.sigmoid, torch.sigmoid, (-30, 30), lambda x: torch.full_like(x, 2**-13)),
    "log": (functions.log, torch.log, (2**-10, 2**15), lambda x: 2**-12 + 2**-16 / x),
}


@pytest.mark.parametrize("name", LINES)
def test_each_function_keeps_its_error_in_the_field(name):
    """Both ends of the domain, and between; the check at the end passes, so every tag was carried along."""
    function, plain, (low, high), most = LINES[name]
    x = torch.cat(
        [torch.tensor([low, high], dtype=torch.float64), torch.linspace(low, high, 9, dtype=torch.float64)]
    )
    fixed, alphas = FixedPointPrime(), tagged.draw_keys(2, Secret())
    coded = fixed.encode(x)
    shares, x = tagged.share_tagged(coded, alphas, Secret()), fixed.decode(coded)

    async def step(ctx, v):
        return (await function(ctx, TaggedShare(v))).data

    requests = tagged.plan(lambda ctx: step(ctx, torch.empty((2, len(x)), dtype=torch.int64, device="meta")))

    def program(rank):
        async def party(me):
            ctx = TaggedContext(
                me, rank, NAMES, await tagged.TaggedStock.connect(me, rank, 2, "dealer"), alpha=alphas[rank]
            )
            made = await step(ctx, shares[rank])
            await ctx.check()
            return made[0]

        return party

    async def deal(me):
        await tagged.deal(me, NAMES, requests, alphas=alphas)

    made = InProcess().run_sync({"a": program(0), "b": program(1), "dealer": deal})
    error = (fixed.decode(prime.add(made["a"], made["b"])) - plain(x)).abs()
    assert bool((error <= most(x)).all()), (name, error.max())

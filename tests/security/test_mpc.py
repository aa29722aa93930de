"""What a party's view says about the secrets: nothing. Each test that draws states its false-alarm
probability.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.errors import PartyFailed
from tacit.mpc import checked, functions, inference
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Stock, TapeKey, dealer, plan
from tacit.mpc.model import compile, to_text
from tacit.mpc.ring import FixedPoint
from tacit.mpc.share import split
from tacit.mpc.tape import Tape
from tacit.parties import decode
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

from ..mpc.by_bits import by_bits

ROOM = Path(tacit.mpc.__file__).parent
OPENINGS = (
    "MaskedFactors",
    "MaskedProducts",
    "MaskedValues",
    "MaskedBits",
    "MaskedSigns",
    "MaskedWeights",
    "Corrections",
)


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


LIMIT = 437  # χ² with 255 degrees of freedom exceeds it by chance with probability 1e-11


def looks_uniform(values: list[torch.Tensor]) -> bool:
    """All bytes of a view together, and for words each of the eight bytes alone."""
    data = [v.contiguous().flatten().view(torch.uint8).numpy() for v in values if v.numel()]
    if chi_square(np.bincount(np.concatenate(data), minlength=256)) > LIMIT:
        return False
    words = [
        v.contiguous().flatten().view(torch.uint8).reshape(-1, 8).numpy()
        for v in values
        if v.dtype is torch.int64 and v.numel()
    ]
    every = np.concatenate(words) if words else np.zeros((0, 8), np.uint8)
    return (
        all(chi_square(np.bincount(every[:, i], minlength=256)) < LIMIT for i in range(8))
        if len(every) > 2000
        else True
    )


def view(step, x: torch.Tensor, parties: int = 2) -> dict[str, list[torch.Tensor]]:
    """What each party is sent while the step runs on shares of x."""
    tap, names = Tap(), tuple(f"party {i}" for i in range(parties))
    shares = split(x, parties, Secret())
    requests = plan(lambda ctx: step(ctx, torch.empty(x.shape, dtype=torch.int64, device="meta")))

    def program(rank):
        async def party(me):
            return await step(
                RingContext(me, rank, names, await Stock.connect(me, rank, parties, "dealer")), shares[rank]
            )

        return party

    async def deal(me):
        await dealer(me, names, requests)

    InProcess().run_sync(tap.on({**{n: program(i) for i, n in enumerate(names)}, "dealer": deal}))
    seen: dict[str, list[torch.Tensor]] = {n: [] for n in (*names, "dealer")}
    for _, to, _, frame in tap.frames:
        message = decode(frame)
        if message.kind in OPENINGS:
            seen[to] += message.values
    return seen


SECRETS = {
    "zeros": torch.zeros(4000, dtype=torch.int64),
    "ones": torch.full((4000,), 1 << 16),
    "large": torch.full((4000,), -(1 << 45)),
    "ramp": torch.arange(4000) << 16,
}
STEPS = {
    "relu": functions.relu,
    "mul": lambda ctx, x: functions.mul(ctx, x, x),
    "bits": by_bits,
    "sigmoid": functions.sigmoid,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("secret", SECRETS)
def test_every_partys_view_is_uniform_whatever_the_secret(step, secret):
    """False alarm below 1e-8 over all cases: some 300 χ² tests at 1e-11."""
    seen = view(STEPS[step], SECRETS[secret])
    assert not seen["dealer"], "the dealer is told nothing"
    for name in ("party 0", "party 1"):
        assert seen[name]
        assert looks_uniform([v for v in seen[name] if v.dtype in (torch.int64, torch.uint8)])


def test_the_test_would_notice_a_mask_that_is_missing():
    """An opening of the secret itself, or under 32 bits of mask only, is seen."""
    assert not looks_uniform([torch.arange(4000) << 16])
    assert not looks_uniform([Tape(bytes(32)).draw((4000,)) & 0xFFFFFFFF])
    assert looks_uniform([Tape(bytes(32)).draw((4000,))])


def test_shares_are_uniform_and_any_two_of_three_say_nothing():
    for x in SECRETS.values():
        shares = split(x, 3, Secret())
        for pair in ((0, 1), (0, 2), (1, 2)):
            assert looks_uniform([shares[pair[0]]])
            assert looks_uniform([shares[pair[0]] + shares[pair[1]]])


def test_openings_are_fresh_in_every_run():
    first, second = (view(functions.relu, SECRETS["ones"])["party 0"] for _ in range(2))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def inferred(model, batches):
    tap = Tap()
    layers, weights = compile(model)

    async def owner(me):
        return await inference.owner(me, to_text(layers), weights)

    async def client(me):
        return await inference.client(me, batches)

    InProcess().run_sync(tap.on({"owner": owner, "client": client, "helper": inference.helper}))
    return tap


def test_neither_input_nor_weights_are_in_anybodys_view():
    """A model and an input of recognizable words: no frame holds one of them, in the clear, encoded, or as
    differences between batches.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200, bias=False), nn.ReLU(), nn.Linear(200, 5))
    nn.init.constant_(model[0].weight, 3.25)
    x = torch.full((4, 300), 7.5)
    tap = inferred(model, [x, x])
    fixed = FixedPoint()
    words = [int(fixed.encode(v)).to_bytes(8, "little", signed=True) for v in (3.25, 7.5)]
    for _, to, _, frame in tap.frames:
        kind = decode(frame).kind
        assert not any(word * 2 in bytes(frame) for word in words), (to, kind)
    for name in ("owner", "client"):
        openings = [v for f in tap.view(name) if (m := decode(f)).kind in OPENINGS for v in m.values]
        assert looks_uniform([v for v in openings if v.dtype is torch.int64])
    factors = [
        decode(f).values[0]
        for f in tap.view("owner")
        if decode(f).kind == "MaskedFactors" and decode(f).values[0].shape == (4, 300)
    ]
    assert len(factors) == 2, "one for each batch"
    assert looks_uniform([factors[0] - factors[1]]), (
        "the same input twice must not show: a mask was used twice"
    )
    assert {decode(f).kind for f in tap.view("helper")} == {"Architecture", "Batches"}


def test_no_key_is_used_twice(monkeypatch):
    """Every tape's key, over several runs: the dealer's copy and the party's, and no more."""
    keys: list[bytes] = []
    made = Tape.__init__

    def noting(self, key):
        keys.append(key)
        made(self, key)

    monkeypatch.setattr(Tape, "__init__", noting)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    for _ in range(3):
        inferred(model, [torch.ones(2, 4)])
        (tacit.mpc.share(torch.ones(2)) * tacit.mpc.share(torch.ones(2))).open()
    times = [keys.count(k) for k in set(keys)]
    assert len(set(keys)) == 3 * (
        2 + 2 + 2 + 2
    )  # inference 2 tapes; two sharings; the product's and the opening's dealer 2 each
    assert set(times) == {1, 2}, "a share's tape is read by one, a dealt one by dealer and party"


def test_dealt_keys_come_from_the_operating_system_and_differ():
    tap = inferred(nn.Sequential(nn.Linear(4, 3)), [torch.ones(1, 4)])
    keys = [
        decode(f).key
        for name in ("owner", "client")
        for f in tap.view(name)
        if decode(f).kind == TapeKey.kind
    ]
    assert len(set(keys)) == 2
    assert all(len(k) == 32 for k in keys)


BANNED = (
    "torch.rand",
    "torch.randn",
    "torch.randint",
    "torch.manual_seed",
    "np.random",
    "numpy.random",
    "random.",
)


def test_no_generator_of_numpys_or_torchs_is_near_a_secret():
    found = {}
    for file in sorted(ROOM.glob("*.py")):
        calls = [
            ast.unparse(n.func) for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)
        ]
        bad = [c for c in calls if c.startswith(BANNED) or c.endswith((".normal_", ".uniform_", ".random_"))]
        imports = [
            a.name
            for n in ast.walk(ast.parse(file.read_text()))
            if isinstance(n, ast.Import)
            for a in n.names
            if a.name == "random"
        ]
        if bad or imports:
            found[file.name] = bad + imports
    assert len(list(ROOM.glob("*.py"))) > 8
    assert not found


def test_replayable_secrets_are_stamped():
    out = tacit.infer(
        nn.Sequential(nn.Linear(2, 1)), torch.ones(1, 2), runtime=tacit.InProcess(insecure_seed=3)
    )
    assert any("NOT PRIVATE" in s for s in out.ledger.stamps)


# without a dealer -------------------------------------------------------------------------------------------


def test_without_a_helper_neither_input_nor_weights_are_in_the_others_view():
    """The same recognizable words, masks by oblivious transfer: all that is sent, offline and online, is
    uniform. χ² limits as above.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40, bias=False), nn.ReLU(), nn.Linear(40, 5))
    nn.init.constant_(model[0].weight, 3.25)
    x, tap = torch.full((4, 60), 7.5), Tap()
    layers, weights = compile(model)

    async def owner(me):
        return await inference.owner(me, to_text(layers), weights, helper=None)

    async def client(me):
        return await inference.client(me, [x, x], helper=None)

    InProcess().run_sync(tap.on({"owner": owner, "client": client}))
    words = [int(FixedPoint().encode(v)).to_bytes(8, "little", signed=True) for v in (3.25, 7.5)]
    seen: dict[str, list[torch.Tensor]] = {"owner": [], "client": []}
    for _, to, _, frame in tap.frames:
        assert not any(word * 2 in bytes(frame) for word in words), (to, decode(frame).kind)
        message = decode(frame)
        if message.kind in OPENINGS:
            seen[to] += message.values
        elif message.kind in ("Extended", "Correlations"):
            data = message.columns if message.kind == "Extended" else message.values
            assert chi_square(np.bincount(np.frombuffer(data, np.uint8), minlength=256)) < LIMIT, message.kind
    for name, openings in seen.items():
        assert looks_uniform([v for v in openings if v.dtype is torch.int64]), name
    factors = [
        decode(f).values[0]
        for f in tap.view("owner")
        if decode(f).kind == "MaskedFactors" and decode(f).values[0].shape == (4, 60)
    ]
    assert len(factors) == 2
    assert looks_uniform([factors[0] - factors[1]]), (
        "the same input twice must not show: a mask was used twice"
    )


@pytest.mark.parametrize("protocol", [inference, checked])
def test_an_owner_that_sends_no_public_weights_is_refused_by_name(protocol):
    """Weights that are missing are not weights that are unknown, as in a dry run."""
    layers, _ = compile(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))

    async def owner(me):
        await me.send(["client", "helper"], inference.Architecture(to_text(layers), False, "logits", 16))
        await me.send("client", inference.PublicWeights({}))

    async def client(me):
        return await protocol.client(me, batches=[torch.ones(2, 4)])

    with pytest.raises(PartyFailed, match="the weights do not match the architecture"):
        InProcess().run_sync({"owner": owner, "client": client, "helper": protocol.helper})


def test_without_a_helper_the_masks_are_fresh_in_every_run():
    """Two runs of the same inference: no message of the one is in the other.

    The shortest message is one masked bit for each of 44 x 3 signs, so two equal messages by chance have a
    probability below 2^-120.
    """
    public = ("Architecture", "Batches", "MatrixProducts")
    model, frames = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), []
    layers, weights = compile(model)
    for _ in range(2):
        tap = Tap()

        async def owner(me):
            return await inference.owner(me, to_text(layers), weights, helper=None)

        async def client(me):
            return await inference.client(me, [torch.ones(44, 4)], helper=None)

        InProcess().run_sync(tap.on({"owner": owner, "client": client}))
        frames.append({bytes(f) for _, _, _, f in tap.frames if decode(f).kind not in public})
    assert not frames[0] & frames[1]

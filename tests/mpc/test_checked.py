from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import BadData, BadParameter, BadRun, PartyFailed
from tacit.mpc import Residual, checked, tensor_checked
from tacit.mpc.model import compile, to_text
from tacit.parties.codec import kind_of
from tacit.runtimes import InProcess

from .test_model import images, made
from .test_spdz import Forging

MODELS = {
    "logistic": (
        made(nn.Linear(6, 1), nn.Sigmoid()),
        torch.randn(3, 6, generator=torch.Generator().manual_seed(2)),
    ),
    "mlp": (
        made(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3)),
        torch.randn(3, 6, generator=torch.Generator().manual_seed(2)),
    ),
    "cnn": (
        made(
            nn.Conv2d(2, 2, 3, padding=1),
            nn.BatchNorm2d(2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            Residual(nn.Conv2d(2, 2, 1)),
            nn.AvgPool2d(2),
            nn.BatchNorm2d(2),
            nn.Flatten(),
            nn.Linear(8, 3, bias=False),
        ),
        images(2),
    ),
    "pool": (made(nn.AdaptiveAvgPool2d(1), nn.Flatten()), images(2)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("private", [("input", "model"), ("input",)])
def test_the_result_is_the_plain_models(name, private):
    model, x = MODELS[name]
    with torch.no_grad():
        plain = model(x)
    out = tacit.infer(model, x, private=private, adversary="active", batch=2)
    assert out.value.shape == plain.shape
    assert (out.value - plain).abs().max() < 1e-3
    assert out.ledger.stamps[0].startswith(
        "CHECKED: an owner or client that deviates from its program is caught"
    )
    assert not any("SEMI-HONEST" in stamp for stamp in out.ledger.stamps)


def test_semi_honest_is_the_default_and_stated():
    model, x = MODELS["mlp"]
    assert tacit.infer(model, x).ledger.stamps[0].startswith("SEMI-HONEST")


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Softmax(-1), nn.Identity()])
def test_the_class_alone_can_be_revealed(last):
    model = made(nn.Linear(6, 4), last)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    assert (
        tacit.infer(model, x, reveal="argmax", adversary="active").value.tolist()
        == model(x).argmax(-1).tolist()
    )


def test_real_processes_say_the_same():
    model, x = MODELS["mlp"]
    out = tacit.infer(model, x, runtime=tacit.Processes(), adversary="active")
    assert (out.value - model(x)).abs().max() < 1e-3


def programs(model, x):
    layers, weights = compile(model)
    return {
        "owner": functools.partial(checked.owner, layers=to_text(layers), weights=weights),
        "client": functools.partial(checked.client, batches=[x]),
        "helper": checked.helper,
    }


class BetweenTheTwo(Forging):
    """What owner and client send each other, but for the program and the number of batches."""

    async def deliver(self, sender, to, scope, frame):
        plain = to == "helper" or kind_of(frame) in ("Architecture", "Batches")
        await (
            self.inner.deliver(sender, to, scope, frame)
            if plain
            else super().deliver(sender, to, scope, frame)
        )


@pytest.fixture
def planned_once(monkeypatch):
    """Every run of a test plans the same randomness: the dry run, which costs most, is made once."""
    plan, known = checked.plan_requests, {}

    def once(architecture, shapes, mode):
        key = repr((architecture, shapes))
        if key not in known:
            known[key] = list(plan(architecture, shapes, mode))
        return known[key]

    monkeypatch.setattr(checked, "plan_requests", once)


@pytest.mark.usefixtures("planned_once")
@pytest.mark.parametrize("cheat", ["owner", "client"])
def test_either_of_the_two_is_caught_whatever_message_it_changes(cheat):
    """Every message of the cheat to the other, one run each."""
    model, x = made(nn.Linear(2, 2), nn.ReLU()), torch.tensor([[1.0, -2.0]])

    def run(n):
        sent, parts = [], programs(model, x)

        async def cheating(me, program=parts[cheat]):
            return await program(dataclasses.replace(me, transport=BetweenTheTwo(me.transport, n, sent)))

        InProcess().run_sync({**parts, cheat: cheating})
        return sent

    sent = run(-1)
    expected = {"MaskedEntry", "MaskedOpening", "MaskedCheckedBits", "BitProof", "Commitment", "Opened"}
    assert expected == set(sent)
    for n in range(len(sent)):
        with pytest.raises(PartyFailed, match=r"check [12] failed"):
            run(n)


@pytest.mark.usefixtures("planned_once")
def test_a_client_that_cheats_is_not_sent_a_result():
    """It knows the mask of its result: what its change did to the result would tell it of the weights."""
    model, x = made(nn.Linear(2, 2), nn.ReLU()), torch.tensor([[1.0, -2.0]])

    def run(n):
        """The kinds of the client's and of the owner's messages, if the client changes its n-th one."""
        sent: dict[str, list[str]] = {"client": [], "owner": []}

        def seen(name, at):
            async def program(me):
                transport = BetweenTheTwo(me.transport, at, sent[name])
                return await programs(model, x)[name](dataclasses.replace(me, transport=transport))

            return program

        parts = {**programs(model, x), "client": seen("client", n), "owner": seen("owner", -1)}
        try:
            InProcess().run_sync(parts)
        except PartyFailed:
            assert n >= 0
        return sent

    honest = run(-1)
    first_check = honest["client"].index("Commitment")
    openings = honest["owner"].count("MaskedOpening")
    assert openings > honest["owner"][: honest["owner"].index("Commitment")].count("MaskedOpening")
    for n in range(first_check):
        assert run(n)["owner"].count("MaskedOpening") < openings


@pytest.mark.parametrize("cheat", ["owner", "client"])
def test_a_party_that_sends_the_helper_another_program_is_detected(cheat):
    """Triples of another product would pass every tag check, so the helper returns the program it received."""
    from tacit.mpc.inference import Architecture, Batches

    model, x = made(nn.Conv2d(1, 1, 1, stride=1)), torch.ones(1, 1, 2, 2)
    parts = programs(model, x)

    async def lying(me, program=parts[cheat]):
        send = me.send

        async def told(to, message):
            if isinstance(message, Architecture):
                await send("client", message)
                return await send(
                    "helper",
                    dataclasses.replace(
                        message, layers=message.layers.replace('"stride": [1, 1]', '"stride": [2, 2]')
                    ),
                )
            if isinstance(message, Batches):
                await send("owner", message)
                return await send("helper", Batches([[1, 1, 3, 3]]))
            return await send(to, message)

        object.__setattr__(me, "send", told)
        return await program(me)

    with pytest.raises(PartyFailed, match="'helper' received another architecture or other shapes"):
        InProcess().run_sync({**parts, cheat: lying})


@pytest.mark.parametrize(
    "layer",
    [nn.Tanh(), nn.GELU(), nn.LayerNorm(4), nn.Sequential(nn.Sigmoid(), nn.Linear(4, 2)), nn.Softmax(-1)],
    ids=["tanh", "gelu", "layer norm", "sigmoid inside", "softmax"],
)
def test_every_function_carries_tags(layer):
    torch.manual_seed(3)
    model, x = made(nn.Linear(4, 4), layer), torch.randn(2, 4)
    with torch.no_grad():
        plain = model(x)
    assert (tacit.infer(model, x, adversary="active").value - plain).abs().max() < 1e-3


@pytest.mark.usefixtures("planned_once")
def test_a_cheat_inside_a_function_is_caught():
    """Every opening of a sigmoid, changed by a unit, a run each for three of them."""
    x = torch.tensor([[1.0]])
    parts = programs(made(nn.Linear(1, 1), nn.Sigmoid()), x)

    def run(n):
        sent = []

        class Only(Forging):
            async def deliver(self, sender, to, scope, frame):
                plain = to == "helper" or kind_of(frame) != "MaskedOpening"
                await (
                    self.inner.deliver(sender, to, scope, frame)
                    if plain
                    else super().deliver(sender, to, scope, frame)
                )

        async def cheating(me):
            return await parts["owner"](
                dataclasses.replace(me, transport=BetweenTheTwo(me.transport, n, sent))
            )

        InProcess().run_sync({**parts, "owner": cheating})
        return sent

    sent = run(-1)
    assert len(sent) > 30
    for n in (0, len(sent) // 2, len(sent) - 1):
        with pytest.raises(PartyFailed, match=r"check [12] failed"):
            run(n)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adversary": "evil"}, "adversary is 'evil'; it must be 'semi-honest' or 'active'"),
        ({"adversary": "active", "debug": True}, "debug is True; it must be False with adversary='active'"),
    ],
)
def test_bad_parameters_are_refused(options, words):
    with pytest.raises(BadParameter, match=words):
        tacit.infer(*MODELS["mlp"], **options)


def test_the_smaller_range_is_held_before_anything_is_sent():
    with pytest.raises(BadData, match="the input: 1 of 6 numbers are not within"):
        tacit.infer(made(nn.Linear(6, 1)), torch.tensor([[1e8, 0, 0, 0, 0, 0]]), adversary="active")


# tensors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [2, 3])
def test_checked_tensors_compute(parties):
    x, y = (tacit.mpc.share(torch.tensor(v), parties, checked=True) for v in ([[1.5, -2.0]], [[4.0], [0.5]]))
    close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=0)
    close((x @ y).open(), torch.tensor([[5.0]]))
    close((2 * x - 1 + y).open(), torch.tensor([[6.0, -1.0], [2.5, -4.5]]))
    close((x * y).relu().open(), torch.tensor([[6.0, 0.0], [0.75, 0.0]]))
    close((x / 4).open(), torch.tensor([[0.375, -0.5]]))
    close(y.max(0).open(), torch.tensor([4.0]))
    assert x.argmax(-1).open().tolist() == [0]
    close((x.transpose() * 2).reshape(2).open(), torch.tensor([3.0, -4.0]))
    close((x @ torch.tensor([[4.0], [0.5]])).open(), torch.tensor([[5.0]]))
    assert "CHECKED" in x.ledger.stamps[0]


def test_checked_tensors_have_the_functions_of_plain_ones():
    v = torch.tensor([4.0, 0.5])
    y = tacit.mpc.share(v, checked=True)
    close = functools.partial(torch.testing.assert_close, atol=3e-4, rtol=1e-4)
    close((2 / y).open(), 2 / v)
    close((y.log() + y.sqrt()).sum(0).open(), (v.log() + v.sqrt()).sum(0))
    close(y.exp()[:1].open(), v.exp()[:1])


@pytest.mark.parametrize("part", [0, 1], ids=["share", "tag"])
def test_a_changed_share_is_noticed_at_opening_and_spoils_the_key(part):
    x, y = (tacit.mpc.share(torch.tensor([1.5, -2.0]), checked=True) for _ in range(2))
    x.shares[1][part][0] ^= 1
    with pytest.raises(PartyFailed, match=r"check [12] failed"):
        x.open()
    with pytest.raises(BadRun, match=r"their key may be known. Share the tensors again"):
        y.open()
    fresh = tacit.mpc.share(torch.tensor([1.5, -2.0]), checked=True)
    with pytest.raises(BadData, match="tagged under different keys"):
        fresh + y
    assert fresh.open().tolist() == [1.5, -2.0]


def test_what_does_not_go_together_is_refused():
    x = tacit.mpc.share(torch.tensor([1.5, -2.0]), checked=True)
    with pytest.raises(BadData, match="one carries tags and the other does not"):
        x + tacit.mpc.share(torch.tensor([1.0, 2.0]))
    with pytest.raises(BadData, match="cannot be combined"):
        x + tacit.mpc.share(torch.tensor([1.0, 2.0]), parties=3, checked=True)
    with pytest.raises(BadData, match="do not match for this operation"):
        x @ tacit.mpc.share(torch.ones(3), checked=True)
    with pytest.raises(BadData, match="is an index"):
        x.argmax(-1) + 1
    for options in ({"checked": 1}, {"checked": True, "debug": True}):
        with pytest.raises(BadParameter, match="checked"):
            tacit.mpc.share(torch.ones(1), **options)


def test_one_key_serves_the_tensors_of_a_process():
    x, y = (tacit.mpc.share(torch.ones(1), checked=True) for _ in range(2))
    assert x.keys is y.keys is tensor_checked._KEYS[2]
    assert not torch.equal(x.shares[0], y.shares[0])

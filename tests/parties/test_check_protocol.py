"""check_protocol passes a sound protocol and notices each way of being unsound."""

from __future__ import annotations

import pytest
import torch

from tacit.parties import Message, Party
from tacit.parties.conformance import Tap, alike, check_protocol
from tacit.runtimes import InProcess


class SumShare(Message, reveals="one additive share, uniform on its own"):
    share: int


RING = 1 << 32


def sharing(inputs):
    """Three parties add their numbers: each cuts its own into three random shares mod 2³²."""
    names = list(inputs)

    async def program(me):
        shares = [int.from_bytes(me.secret.bytes(4), "little") for _ in names[1:]]
        shares.append((inputs[me.name] - sum(shares)) % RING)
        for name, share in zip(names, shares):
            await me.send(name, SumShare(share))
        mine = sum(m.share for m in (await me.gather(names, SumShare)).values()) % RING
        await me.scope("open").send(names, SumShare(mine))
        return sum(m.share for m in (await me.scope("open").gather(names, SumShare)).values()) % RING

    return dict.fromkeys(names, program)


def total(inputs):
    return {name: sum(inputs.values()) % RING for name in inputs}


INPUTS = [{"a": 1, "b": 2, "c": 3}, {"a": RING - 1, "b": RING - 1, "c": 5}]


def test_a_sound_protocol_passes():
    check_protocol(sharing, total, INPUTS)
    check_protocol(sharing, total, INPUTS, runtime=InProcess(clock="real", seed=3))


def test_a_wrong_result_is_noticed():
    with pytest.raises(AssertionError, match="party 'a' got 6, the ideal gives 7"):
        check_protocol(sharing, lambda x: {"a": sum(x.values()) + 1}, INPUTS)
    with pytest.raises(AssertionError, match="the ideal gives something to 'z', but the parties are 'a'"):
        check_protocol(sharing, lambda x: {"z": 0}, INPUTS)


def test_a_result_that_changes_from_run_to_run_is_noticed():
    def programs(_):
        async def program(me):
            return me.secret.bytes(8)

        return {"a": program}

    with pytest.raises(AssertionError, match="two runs with the same seed differ at 'a'"):
        check_protocol(programs, lambda _: {}, [0])


def test_mail_that_is_not_on_record_is_noticed():
    def programs(_):
        async def talks(me: Party):
            await me.send("b", SumShare(1))

        async def hides(me: Party):
            await me.recv("a", SumShare)
            me.ledger._seen.clear()

        return {"a": talks, "b": hides}

    with pytest.raises(
        AssertionError,
        match="'a' sent 1 SumShare to 'b', but the ledger has 0: a message was not",
    ):
        check_protocol(programs, lambda _: {}, [0])


def test_an_unnoticed_crash_of_a_party_is_detected():
    def programs(_):
        async def talks(me):
            try:
                await me.send("b", SumShare(1))
            except Exception:
                return None

        async def listens(me):
            pass

        return {"a": talks, "b": listens}

    with pytest.raises(
        AssertionError, match="'a' crashed at its message 0, and the run ended without an error"
    ):
        check_protocol(programs, lambda _: {}, [0])


def test_a_check_without_inputs_is_refused():
    with pytest.raises(AssertionError, match="given no inputs"):
        check_protocol(sharing, total, [])


def test_a_tap_gives_each_partys_view():
    tap = Tap()
    InProcess().run_sync(tap.on(sharing(INPUTS[0])))
    assert tap.counts()["b", "a", "SumShare"] == 2
    assert [len(tap.view(name)) for name in "abc"] == [6, 6, 6]
    assert {scope for _, _, scope, _ in tap.frames} == {"", "open"}


def test_alike_compares_numbers_with_tolerance_and_everything_else_exactly():
    x = torch.tensor([1.0, float("nan")])
    assert alike({"w": x, "n": [1, 2.0]}, {"w": x * (1 + 1e-7), "n": (1, 2.0 + 1e-9)})
    assert not alike(x, x[:1])
    assert not alike(torch.tensor([1]), torch.tensor([2]))
    assert not alike([1], [1, 1])
    assert not alike({"a": 1}, {"b": 1})
    assert not alike(1.0, 1.01)
    assert not alike("a", "b")

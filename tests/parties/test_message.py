"""A message says what it reveals, has a name of its own, and holds only what can be sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit.errors import ProtocolError
from tacit.parties.message import KINDS, Message


class Greeting(Message, reveals="that someone is there"):
    word: str
    times: int = 1


def test_a_message_is_a_frozen_dataclass_known_by_its_name():
    hello = Greeting("hello")
    assert (hello.word, hello.times, Greeting.kind, Greeting.reveals) == (
        "hello",
        1,
        "Greeting",
        "that someone is there",
    )
    assert KINDS["Greeting"] is Greeting
    with pytest.raises(dataclasses.FrozenInstanceError):
        hello.word = "bye"  # type: ignore[misc]


def test_a_message_that_does_not_say_what_it_reveals_is_refused():
    with pytest.raises(
        ProtocolError,
        match=r"message Mute does not say what it reveals. Declare it as: class Mute\(Message, reveals=",
    ):

        class Mute(Message):
            word: str

    assert "Mute" not in KINDS


def test_a_second_message_of_the_same_name_is_refused_and_a_reload_of_the_first_is_not():
    with pytest.raises(ProtocolError, match=r"two messages have the name 'Greeting'.*rename one"):
        type(
            "Greeting", (Message,), {"__module__": "elsewhere", "__annotations__": {"word": str}}, reveals="x"
        )
    body = {"__module__": Greeting.__module__, "__qualname__": "Greeting", "__annotations__": {"word": str}}
    again = type("Greeting", (Message,), body, reveals="x")
    assert KINDS["Greeting"] is again
    KINDS["Greeting"] = Greeting


def test_a_message_does_not_inherit_from_another():
    with pytest.raises(ProtocolError, match="inherits from Greeting; derive it directly from Message"):

        class Loud(Greeting, reveals="x"):  # type: ignore[misc]
            pass


@pytest.mark.parametrize(
    "hint",
    [
        Any,
        object,
        dict,
        list,
        tuple,
        set[int],
        dict[int, str],
        complex,
        "torch.dtype",
        Tensor | str,
        bytes | int,
        list[Any],
    ],
)
def test_a_field_that_cannot_be_sent_is_refused_when_the_message_is_declared(hint):
    with pytest.raises(
        ProtocolError, match=r"Odd.thing is declared as .* which cannot be sent. A field is bool, int"
    ):
        type("Odd", (Message,), {"__module__": __name__, "__annotations__": {"thing": hint}}, reveals="x")
    assert "Odd" not in KINDS


def test_a_field_may_not_take_a_name_every_message_uses():
    with pytest.raises(ProtocolError, match="field 'reveals', a name every message already uses"):
        type("Odd", (Message,), {"__module__": __name__, "__annotations__": {"reveals": str}}, reveals="x")


def test_messages_are_equal_when_their_bits_are():
    class Bits(Message, reveals="x"):
        x: Tensor

    nan = torch.tensor([float("nan"), 0.0])
    assert Bits(nan) == Bits(nan.clone())
    assert Bits(nan) != Bits(torch.tensor([float("nan"), -0.0]))
    assert Bits(torch.zeros(2)) != Bits(torch.zeros(2, 1))
    assert Bits(torch.zeros(2)) != Bits(torch.zeros(2, dtype=torch.int32))
    assert Bits(torch.zeros(2)) != Greeting("hello")


def test_printing_a_message_shows_shapes_not_a_million_numbers():
    class Heavy(Message, reveals="x"):
        w: Tensor
        parts: dict[str, Tensor]

    assert (
        repr(Heavy(torch.zeros(10, 3), {"b": torch.ones(2).bool()}))
        == "Heavy(w=float32[10, 3], parts={b: bool[2]})"
    )

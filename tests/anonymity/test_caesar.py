"""Caesar's cipher, as the exercise gives it, and how little it hides."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.anonymity.caesar import break_caesar, decode_caesar_with_key, encode_caesar_with_key
from tacit.errors import BadData, BadParameter

SENTENCES = (
    "I am a genius!",
    "Meet me at the station after the train has left.",
    "The patient in room 12 has a new doctor.",
    "Attack at dawn",
    "Nobody reads this letter but you and me.",
    "Quick zebras vex jumpy dogs, said the man.",
    "Send 4,500 to the account in Zurich today!",
    "It is a truth universally acknowledged.",
    "Zoe has to go home",
    "My mother was born in 1965.",
)
LONG = (
    "Anonymity is not the absence of a name. A person who is the only one of that age in that street can be "
    "found without one, and whoever finds the row "
    "also reads the diagnosis that stands beside it. That is why a table is changed until every row looks "
    "like several others, and why somebody should "
    "look at what is left before it is given away. The cipher in this text has three shifts, and that is no "
    "help at all against a reader with patience."
)


def test_the_examples_of_the_exercise():
    assert decode_caesar_with_key("EQJ5586 ltpibrvp!", [3, 4, 5]) == "BME2133 homework!"
    assert break_caesar("N fr f ljsnzx!") == "I am a genius!"


def test_by_hand():
    """a+1=b; B+2=D; 9+3=12→2; the space and é use up no shift; z+1=a; é stays; 0+2=2."""
    assert encode_caesar_with_key("aB9 zé0", [1, 2, 3]) == "bD2 aé2"


@given(st.text(), st.lists(st.integers(-1000, 1000), min_size=1, max_size=7))
def test_decoding_undoes_encoding_and_keeps_the_kind_of_every_character(text, key):
    secret = encode_caesar_with_key(text, key)
    assert decode_caesar_with_key(secret, key) == text
    for a, b in zip(text, secret, strict=True):
        kinds = (string.ascii_uppercase, string.ascii_lowercase, string.digits)
        assert next((k for k in kinds if a in k), a) == next((k for k in kinds if b in k), b)


@given(st.text(alphabet=string.ascii_letters + " .", min_size=1), st.integers(0, 25))
def test_other_characters_use_up_no_shift(text, shift):
    key = [shift, shift + 1, shift + 2]
    dotted = "".join(c + "…" for c in text)
    assert encode_caesar_with_key(dotted, key) == "".join(c + "…" for c in encode_caesar_with_key(text, key))


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("shift", [0, 1, 3, 13, 25])
def test_a_sentence_is_read_without_the_key(sentence, shift):
    digits = sentence.translate(
        {ord(d): "7" for d in string.digits}
    )  # a digit of 26 shifts is found only within 10
    assert break_caesar(encode_caesar_with_key(sentence, [shift])) == sentence
    assert break_caesar(encode_caesar_with_key(digits, [shift])) == digits


def test_a_longer_key_does_not_help_in_a_long_text():
    assert break_caesar(encode_caesar_with_key(LONG, [3, 14, 22]), key_length=3) == LONG


@pytest.mark.parametrize("key", [[], "abc", [1.5], [True], 3, None])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(
        BadParameter,
        match=r"decode_caesar_with_key: key is .*; it must be a list of at least one whole number, like "
        r"\[3, 4, 5\]",
    ):
        decode_caesar_with_key("abc", key)


def test_what_cannot_be_broken_is_an_error_that_says_why():
    with pytest.raises(BadData, match="'1234 !' contains no letter, so shifts cannot be compared"):
        break_caesar("1234 !")
    with pytest.raises(BadParameter, match="key_length is 0; it must be a whole number of at least 1"):
        break_caesar("abc", key_length=0)

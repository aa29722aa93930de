"""Caesar's cipher with a key of several shifts, and an attack on it. For teaching: it protects nothing.

A shift rotates a letter within the 26 (its case is preserved) and a digit within the 10; other characters
are unchanged and use no shift of the key. There are 26 shifts to try, and the letters of a language are not
equally frequent: Al-Kindi described in the ninth century how this breaks such a cipher. For pseudonyms in a
published table use `pseudonyms`, with a secret key and HMAC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..errors import BadData
from ..parameters import bad

# Frequency of a, b, c, … per thousand letters of English text, rounded: only the order of magnitude matters.
FREQUENCIES = [82, 15, 28, 43, 127, 22, 20, 61, 70, 1.5, 7.7, 40, 24]  # a to m
FREQUENCIES += [67, 75, 19, 1, 60, 63, 91, 28, 9.8, 24, 1.5, 20, 0.7]  # n to z
_LOG = [math.log(f / sum(FREQUENCIES)) for f in FREQUENCIES]

# Common short words: a sentence of four or five words usually contains some of them.
_TEXT = """
a about after again all also always am an and another any are as ask at away back be because been before
being best better big both but by call came can child city come could country day did different do does
doctor done down each early end even every eye face fact family far father few find first for found friend
from gave get give go good got great had hand has have he head hello help her here high him his home
hospital house how i if in into is it its just keep kind knew know large last later least leave left less
letter life light like line little live long look made make man many may me mean might month more morning
most mother much must my name need never new next night no not nothing now of off old on once one only open
or other our out over own part patient people place play point public put quick read right room said same
saw say school secret see seem send she should show small so some son soon start state still such take talk
tell than that the their them then there these they thing think this those thought three through time to
today together too took town two under until up upon us use very walk want war was water way we week well
went were what when where which while who why will with woman word work world would write year yes yet you
young your
"""
WORDS = frozenset(_TEXT.split())


def decode_caesar_with_key(text: str, key: Sequence[int]) -> str:
    """Decrypt: `decode_caesar_with_key("EQJ5586 ltpibrvp!", [3, 4, 5])` is "BME2133 homework!"."""
    return _shift(text, [-k for k in _check("decode_caesar_with_key", text, key)])


def encode_caesar_with_key(text: str, key: Sequence[int]) -> str:
    return _shift(text, _check("encode_caesar_with_key", text, key))


def break_caesar(text: str, key_length: int = 1) -> str:
    """Decrypt without the key: `break_caesar("N fr f ljsnzx!")` is "I am a genius!".

    For one shift, all 26 are tried and the text that is most like English is returned, by letter frequencies
    and a short list of words. For a longer key, each shift is found from its own letters only, so the text
    must be long: about forty letters per shift.
    """
    if isinstance(key_length, bool) or not isinstance(key_length, int) or key_length < 1:
        raise bad("break_caesar", "key_length", key_length, "a whole number of at least 1")
    _check("break_caesar", text, [0])
    if not any(_is_letter(c) for c in text):
        raise BadData(
            f"break_caesar: {text[:40]!r} contains no letter, so shifts cannot be compared. Pass a text with "
            "words."
        )
    if key_length == 1:
        return max((_shift(text, [-s]) for s in range(26)), key=_english_score)
    used = [c for c in text if _is_letter(c) or _is_digit(c)]
    shifts = [
        max(range(26), key=lambda s, i=i: _log_likelihood(_shift("".join(used[i::key_length]), [-s])))  # type: ignore[misc]
        for i in range(key_length)
    ]
    return _shift(text, [-s for s in shifts])


def _english_score(text: str) -> float:
    """Similarity to English: the log-likelihood of the letters, and a bonus for each letter of a known word.

    A known word of n letters is more likely than its letters drawn independently: about ln(26) per letter,
    less the cost of choosing the word.
    """
    words = re.findall(r"[a-z]+", text.lower())
    return _log_likelihood(text) + sum(math.log(26) * len(w) for w in words if w in WORDS)


def _log_likelihood(text: str) -> float:
    return sum(_LOG[ord(c) - ord("a")] for c in text.lower() if _is_letter(c))


def _is_letter(c: str) -> bool:
    return c.isascii() and c.isalpha()


def _is_digit(c: str) -> bool:
    return c.isascii() and c.isdigit()


def _shift(text: str, key: Sequence[int]) -> str:
    out, used = [], 0
    for c in text:
        first, many = (
            (("A" if c.isupper() else "a"), 26) if _is_letter(c) else ("0", 10) if _is_digit(c) else ("", 0)
        )
        if many:
            c = chr(ord(first) + (ord(c) - ord(first) + key[used % len(key)]) % many)
            used += 1
        out.append(c)
    return "".join(out)


def _check(owner: str, text: str, key: Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        raise bad(owner, "text", text, "text")
    if (
        isinstance(key, str | bytes)
        or not isinstance(key, Sequence)
        or not key
        or any(isinstance(k, bool) or not isinstance(k, int) for k in key)
    ):
        raise bad(owner, "key", key, "a list of at least one whole number, like [3, 4, 5]")
    return list(key)

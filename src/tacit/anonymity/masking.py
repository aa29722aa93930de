"""Masking of text columns: names, ids, dates and contact data become words like [NAME].

Found by rules: patterns for e-mail addresses, web and network addresses, telephone numbers,
IBANs (ISO 13616, with checksum), payment cards (Luhn), dates and ids, and names from lists: those that the
owner gives, those of other columns of the table (whose text it is), and words after a title ("Dr. Smith").

Rules find what they describe. A name in no list, a nickname, a rare disease or "the mayor of our village"
stay in the text, so a masked text is still personal data: publish it only where a person has read it. Words
that are also names (May, Rose) are masked too.

A language model on the owner's disk finds more names, places and organizations, and also misses some
(`model=`, text_models.py: Presidio with a spaCy pipeline). What the rules find stays as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas

from ..errors import BadData
from ..parameters import bad, nearest
from .classes import check_columns
from .text_models import Found, load_model

MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|"
    "jul|aug|sept|sep|oct|nov|dec|januar|februar|märz|mai|juni|juli|oktober|dezember|janvier|février|mars|avril|"
    "juin|juillet|août|septembre|octobre|novembre|décembre"
)
TITLES = "mr|mrs|ms|miss|dr|prof|professor|sir|madam|herr|frau|madame|monsieur|mme|mlle|patient|patientin"
MARKS = "\u0300-\u036f"  # accents that follow their letter, in decomposed text
LETTERS = rf"(?:[^\W\d_][{MARKS}]*)+"
WORD = re.compile(rf"{LETTERS}(?:['’\-]{LETTERS})*")
UPPER = "".join(c for c in map(chr, range(0x590)) if c.isupper())  # Latin, Greek, Cyrillic, Armenian
NAME = rf"[{UPPER}][\w'’{MARKS}\-]+"
LONGEST = 100  # characters before the digits of an id: without a limit, long words take quadratic time


def _is_iban(text: str) -> bool:
    """ISO 13616: the first four characters moved to the end, letters as numbers, modulo 97."""
    code = re.sub(r"\s", "", text).upper()
    return int("".join(str(int(c, 36)) for c in code[4:] + code[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    """The checksum of H. P. Luhn, 1960."""
    digits = [int(c) for c in text if c.isdigit()][::-1]
    return sum(digits[::2]) + sum(sum(divmod(2 * d, 10)) for d in digits[1::2]) in range(10, 999, 10)


def _is_any(text: str) -> bool:
    return True


class _Rule(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    check: Callable[[str], bool] = _is_any
    group: int = 0


# the first rule that matches a place wins
RULES = (
    _Rule("email", re.compile(r"[\w.+\-]{1,64}@[\w\-]+(?:\.[\w\-]+)+")),
    _Rule("url", re.compile(r"(?i)\b(?:https?://|www\.)[^\s<>\"]+[^\s<>\".,;)]")),
    _Rule("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _is_iban),
    _Rule("card", re.compile(r"\b\d(?:[ \-]?\d){12,18}\b"), _is_card),
    _Rule("date", re.compile(r"\b\d{4}([./\-])\d{1,2}\1\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2})?)?")),
    _Rule("date", re.compile(r"\b\d{1,2}([./\-])\d{1,2}\1(?:\d{4}|\d{2})\b")),
    _Rule("date", re.compile(rf"(?i)\b\d{{1,2}}(?:st|nd|rd|th|\.)?\s+(?:{MONTHS})\b\.?(?:,?\s+\d{{4}})?")),
    _Rule(
        "date",
        re.compile(rf"(?i)\b(?:{MONTHS})\b\.?\s+(?:\d{{1,2}}(?:st|nd|rd|th)?\b,?\s*)?(?:\d{{4}})?(?<=\d)\b"),
    ),
    _Rule("ip", re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b")),
    _Rule("id", re.compile(r"\b\d{3}-\d{2}-\d{4}\b")),  # a US social security number
    _Rule(
        "phone", re.compile(r"(?<!\w)(?:\+|00|0|\(0?)\d[\d() /.\-]{5,16}\d\b|\b\d{3}[ .\-]\d{3}[ .\-]\d{4}\b")
    ),
    _Rule(  # MRN-0012
        "id",
        re.compile(
            rf"\b(?=[\w\-]{{0,{LONGEST}}}\d{{3}})(?=[\w\-]{{0,{LONGEST}}}[^\W\d_])[A-Za-z0-9][\w\-]{{3,}}\b"
        ),
    ),
    _Rule(  # letters and digits without pattern: keys, tokens, wallets
        "id",
        re.compile(rf"\b(?=\w{{0,{LONGEST}}}\d)(?=\w{{0,{LONGEST}}}[^\W\d_])[A-Za-z0-9]{{20,}}\b"),
    ),
    _Rule("id", re.compile(r"\b\d{6,}\b")),
    _Rule("id", re.compile(r"\b\d{3,4}(?: \d{3,4}){2,4}\b")),  # ids printed in groups, 2345 6789 0124
    _Rule("name", re.compile(rf"(?i:\b(?:{TITLES})\b\.?)((?:\s+{NAME}){{1,3}})"), group=1),
)
KINDS = tuple(dict.fromkeys(r.kind for r in RULES))
MODEL_KINDS = ("place", "organization")  # found by a model only


class Span(NamedTuple):
    """A place in a text."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class MaskedText:
    """The table with masked columns, and how often each kind was found in each column."""

    table: pandas.DataFrame = field(repr=False)
    found: pandas.DataFrame


def _fold(word: str) -> str:
    """A word without case and accents: José, JOSE and a decomposed José are the same name."""
    letters = unicodedata.normalize("NFD", word.casefold())
    return "".join(c for c in letters if not unicodedata.combining(c))


def split_names(names: Iterable[str]) -> frozenset[str]:
    """The words of names without case: 'Ann-Marie Smith' → ann-marie, ann, marie, smith; no initials."""
    words = {_fold(w) for name in names for w in WORD.findall(name)}
    parts = {p for w in words for p in re.split(r"['’\-]", w)}
    return frozenset(w for w in words | parts if len(w) > 1)


def find_spans(
    text: str,
    names: frozenset[str] = frozenset(),
    kinds: Sequence[str] = KINDS,
    find: Callable[[str], list[Found]] | None = None,
) -> list[Span]:
    """Return the parts to mask, in order and without overlap.

    `names` are words from `split_names`. `find` is a model (`load_model`); what it finds is masked where no
    rule does.
    """
    spans: list[Span] = []
    taken = bytearray(len(text))

    def take(start: int, end: int, kind: str) -> None:
        if end > start and not any(taken[start:end]):
            taken[start:end] = b"\1" * (end - start)
            spans.append(Span(start, end, kind))

    for rule in RULES:
        if rule.kind in kinds:
            for match in rule.pattern.finditer(text):
                start, end = match.span(rule.group)
                start += len(text[start:end]) - len(text[start:end].lstrip())
                if rule.check(text[start:end]):
                    take(start, end, rule.kind)
    if "name" in kinds and names:
        for match in WORD.finditer(text):
            whole = match.group()
            own = re.sub(r"['’][sS]$", "", whole)
            word, stem = _fold(whole), _fold(own)
            if (
                word in names
                or stem in names
                or any(p in names for p in re.split(r"['’\-]", word) if len(p) > 1)
            ):
                take(match.start(), match.start() + len(own), "name")
    for found in () if find is None else find(text):
        if found.kind in kinds:
            for free in re.finditer(rb"\0+", taken[found.start : found.end]):  # a rule may mask a part of it
                start, end = (found.start + place for place in free.span())
                core = re.search(r"\w(?:.*\w)?", text[start:end], re.DOTALL)  # no spaces or points around it
                if core is not None:
                    take(start + core.start(), start + core.end(), found.kind)
    return sorted(spans)


def mask_text(
    frame: pandas.DataFrame,
    columns: Sequence[str],
    *,
    names: Iterable[str] = (),
    names_from: Sequence[str] = (),
    kinds: Sequence[str] | None = None,
    model: str | Path | None = None,
    language: str = "en",
) -> MaskedText:
    """Replace names, ids, dates and contact data in text columns by [NAME], [ID], [DATE] and so on.

    `names` are names to look for. `names_from` are columns of the table with names: every name in them is
    looked for in every row. `model` is a spaCy pipeline of `language`, a folder or an installed package; its
    entities are masked beside what the rules find (extra `text`; nothing is downloaded). `kinds` are some of
    email, url, iban, card, date, ip, id, phone, name, and with a model place and organization (default: all).
    Nulls stay nulls. What neither describes stays in the text; have somebody read it.
    """
    columns = check_columns(frame, columns, "columns", "mask_text")
    names_from = check_columns(frame, names_from, "names_from", "mask_text", may_be_empty=True)
    if isinstance(names, str):
        raise bad("mask_text", "names", names, "a list of names")
    known = KINDS if model is None else KINDS + MODEL_KINDS
    kinds = known if kinds is None else kinds
    unknown = [k for k in kinds if k not in known]
    if unknown:
        allowed = "some of " + ", ".join(known)
        if unknown[0] in MODEL_KINDS:
            allowed += f". {unknown[0].capitalize()}s are found by a model: give model="
        raise bad("mask_text", "kinds", unknown[0], allowed, nearest(unknown[0], list(known)))
    find = None if model is None else load_model(model, language)
    listed = split_names([*names, *(str(v) for c in names_from for v in frame[c].dropna().unique())])
    out = frame.copy(deep=False)
    counts: dict[str, Counter[str]] = {}
    for column in columns:
        values = frame[column]
        wrong = next((v for v in values.dropna() if not isinstance(v, str)), None)
        if wrong is not None:
            raise BadData(
                f"mask_text: column {column!r} contains {type(wrong).__name__} values, not text. Convert it "
                "with astype(str), or leave it out."
            )
        counter: Counter[str] = Counter()
        masked = []
        for text in values:
            if not isinstance(text, str):
                masked.append(text)
                continue
            parts, at = [], 0
            for span in find_spans(text, listed, kinds, find):
                parts += [text[at : span.start], f"[{span.kind.upper()}]"]
                at = span.end
                counter[span.kind] += 1
            masked.append("".join([*parts, text[at:]]))
        # masked texts are not among the categories
        dtype = object if isinstance(values.dtype, pandas.CategoricalDtype) else values.dtype
        out[column] = pandas.Series(masked, index=frame.index, dtype=dtype)
        counts[column] = counter
    found = pandas.DataFrame(
        {c: [counts[c][k] for k in kinds] for c in columns}, index=pandas.Index(list(kinds), name="kind")
    )
    return MaskedText(out, found)

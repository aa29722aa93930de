"""One way to write names, dates and codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.linkage.normalize import normalize_date, normalize_text, to_sound


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("McDonald", "mc donald"),
        ("O'Brien", "obrien"),
        ("Müller-Lüdenscheidt", "MULLER LUDENSCHEIDT"),
        ("Straße", "strasse"),
        ("  José ", "jose"),
        ("Ａｄａ", "ada"),  # full-width letters
        ("Łukasz Żółć", "lukasz zolc"),
        ("Ærøskøbing", "AEROSKOBING"),
        ("Iğdır", "igdir"),
    ],
)
def test_case_accents_spaces_and_marks_do_not_matter(one: str, other: str) -> None:
    assert normalize_text(one) == normalize_text(other) != ""


@given(st.text())
def test_normalized_text_stays_as_it_is(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) in (once, "")  # what is left of it may be a null token: "n.a.n." is "nan"


@pytest.mark.parametrize("text", ["", "  ", "NA", "nan", "NULL", "?", "n/a"])
def test_null_tokens_are_missing(text: str) -> None:
    assert normalize_text(text) == ""
    assert normalize_date(text) == ""


@pytest.mark.parametrize(
    "text", ["1980-03-05", "19800305", "1980/3/5", "5.3.1980", "05/03/1980", "1980-03-05T00:00"]
)
def test_dates_have_one_form(text: str) -> None:
    assert normalize_date(text) == "19800305"


@pytest.mark.parametrize("text", ["5.3.80", "March 1980", "1980", "1980-03"])
def test_other_dates_are_missing_and_not_guessed(text: str) -> None:
    assert normalize_date(text) == ""


def test_a_swapped_date_is_kept() -> None:
    assert normalize_date("1980-31-05") == "19803105"


# the examples of the National Archives' page on Soundex
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("washington", "W252"),
        ("lee", "L000"),
        ("gutierrez", "G362"),
        ("pfister", "P236"),
        ("jackson", "J250"),
        ("tymczak", "T522"),
        ("ashcraft", "A261"),
        ("robert", "R163"),
        ("rupert", "R163"),
        ("", ""),
        ("42", ""),
    ],
)
def test_soundex_codes(name: str, code: str) -> None:
    assert to_sound(name) == code

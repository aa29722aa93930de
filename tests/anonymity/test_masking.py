"""Text columns: what rules find, what they leave, and that nothing else changes."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pandas
import pytest

from tacit.anonymity import mask_text
from tacit.anonymity.masking import KINDS, find_spans, split_names
from tacit.errors import BadData, BadParameter


def mask(text: str, **more: object) -> str:
    return mask_text(pandas.DataFrame({"note": [text]}), ["note"], **more).table["note"][0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to ann.b+c@mail.example.org, please.", "Write to [EMAIL], please."),
        ("See https://example.org/a?b=1. Then rest.", "See [URL]. Then rest."),
        ("Seen on 2024-03-05 and 5.3.2024 and 03/05/24.", "Seen on [DATE] and [DATE] and [DATE]."),
        ("Admitted 12 March 2024, left March 14th, 2024.", "Admitted [DATE], left [DATE]."),
        ("Aufnahme am 5. März 2024 im Spital.", "Aufnahme am [DATE] im Spital."),
        ("Call +41 44 123 45 67 or (0)30 1234567 or 212-555-0123.", "Call [PHONE] or [PHONE] or [PHONE]."),
        ("IBAN CH93 0076 2011 6238 5295 7 is hers.", "IBAN [IBAN] is hers."),
        ("Card 4111 1111 1111 1111 expired.", "Card [CARD] expired."),
        ("MRN-0012345, case 20240017, SSN 078-05-1120", "[ID], case [ID], SSN [ID]"),
        ("From 192.168.0.17 at night", "From [IP] at night"),
        ("Dr. Smith and Mrs Jane Doe agree.", "Dr. [NAME] and Mrs [NAME] agree."),
    ],
)
def test_each_kind_is_found(text, masked):
    assert mask(text) == masked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My SSN is 078-05-1120", "078-05-1120"),
        ("passport A1234567 of the UK", "A1234567"),
        ("NHS number 943 476 5919", "943 476 5919"),
        ("wallet 1BoatSLRHtKNngkdXEeobR76b53LETtpyT", "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"),
        ("medical license BB1388568", "BB1388568"),
        ("ITIN 912-78-1234", "912-78-1234"),
        ("driver license H12234567", "H12234567"),
        ("NPI 1234567893", "1234567893"),
        ("MAC 00:1B:44:11:3A:B7", "00:1B:44:11:3A:B7"),
        ("Aadhaar 2345 6789 0124", "2345 6789 0124"),
        ("TFN 876 543 210", "876 543 210"),
    ],
)
def test_ids_that_patterns_of_presidio_are_made_for_are_masked(text, found):
    """Entities of presidio-analyzer 2.2.366 with a blank spaCy pipeline, which found all but the last two."""
    assert found not in mask(text)
    assert mask(text).startswith(text.split()[0])


@pytest.mark.parametrize(
    "text",
    [
        "BP 120/80, pulse 72, temperature 37.5, weight 81.4 kg, 3 x 500 mg daily.",
        "He may walk; in March he was well.",
        "Diagnosed in 2019 with type 2 diabetes, HbA1c 7.2%, ICD E11.9.",
        "Room 12, 4th floor, score 3-4.",
        "",
    ],
)
def test_findings_and_plain_words_stay(text):
    assert mask(text) == text


def test_checksums_decide_between_kinds():
    """A wrong IBAN or card number is no IBAN or card, and still masked: it is a long number."""
    assert "[CARD]" not in mask("4111111111111112")
    assert mask("4111111111111112") == "[ID]"
    assert [s.kind for s in find_spans("GB82 WEST 1234 5698 7654 32")] == ["iban"]
    assert "iban" not in [s.kind for s in find_spans("GB82 WEST 1234 5698 7654 33")]


def test_names_of_the_table_and_of_a_list_are_found_in_every_row():
    frame = pandas.DataFrame(
        {
            "first": ["Ann-Marie", "José", None],
            "last": ["O’Neil", "Müller", "Li"],
            "note": [
                "ANN came with her son; Mr O’Neil waits.",
                "José Müller's brother knows Ann-Marie. Olive is a nurse.",
                None,
            ],
        },
        index=[7, 8, 9],
    )
    made = mask_text(frame, ["note"], names=["Olive Green"], names_from=["first", "last"])
    assert made.table["note"][7] == "[NAME] came with her son; Mr [NAME] waits."
    assert made.table["note"][8] == "[NAME] [NAME]'s brother knows [NAME]. [NAME] is a nurse."
    assert pandas.isna(made.table["note"][9])
    assert made.table[["first", "last"]].equals(frame[["first", "last"]])
    assert made.found.loc["name", "note"] == 6
    assert frame["note"][7].startswith("ANN")  # the input is not changed
    for text in made.table["note"].dropna():
        assert not split_names(["Ann Marie Neil José Müller Olive"]) & {w.casefold() for w in text.split()}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("José came", "[NAME] came"),
        (unicodedata.normalize("NFD", "José came"), "[NAME] came"),
        ("JOSE came", "[NAME] came"),
        ("Frau Weiß ist da", "Frau [NAME] ist da"),
        ("weiß's dog", "[NAME]'s dog"),
        ("İsmail left", "[NAME] left"),
        ("Dr. Čapek, Dr Иванов", "Dr. [NAME], Dr [NAME]"),
        (unicodedata.normalize("NFD", "Dr. Čapek"), "Dr. [NAME]"),
        ("on 1960/02/01", "on [DATE]"),
    ],
)
def test_names_are_found_however_their_letters_are_written(text, masked):
    assert mask(text, names=["José", "Weiß", "İsmail"]) == masked


def test_long_words_take_linear_time():
    """If a pattern looked ahead to the end of a word at each of its parts, this would not end."""
    for text in ("a-" * 100_000, "a." * 100_000):
        assert mask(text, kinds=["email", "id"]) == text


def test_a_name_that_no_list_has_stays():
    """The documented limit: rules find what they describe."""
    assert mask("Zebulon was here.") == "Zebulon was here."
    assert mask("Zebulon was here.", names=["Zebulon"]) == "[NAME] was here."


def test_only_the_kinds_that_are_asked_for():
    assert mask("Dr. Smith, 2024-03-05", kinds=["date"]) == "Dr. Smith, [DATE]"


def test_spans_are_in_order_and_do_not_overlap():
    text = "Dr. Smith (smith@a.org, +41 44 123 45 67) saw MRN00123 on 1 May 2024, see www.a.org/0123456789."
    spans = find_spans(text, split_names(["smith"]))
    assert all(a.end <= b.start for a, b in pairwise(spans))
    assert {s.kind for s in spans} == {"name", "email", "phone", "id", "date", "url"} <= set(KINDS)


def test_categories_become_text():
    notes = pandas.Series(["Dr. Who", None, "well"], dtype="category")
    made = mask_text(pandas.DataFrame({"note": notes}), ["note"]).table["note"]
    assert made.dropna().tolist() == ["Dr. [NAME]", "well"]
    assert pandas.isna(made[1])


def test_bad_input():
    frame = pandas.DataFrame({"note": ["a"], "n": [1]})
    with pytest.raises(BadData, match="column 'n' contains int values"):
        mask_text(frame, ["n"])
    with pytest.raises(BadData, match="there is no column 'text'"):
        mask_text(frame, ["text"])
    with pytest.raises(BadParameter, match="kinds is 'dates'; it must be some of"):
        mask_text(frame, ["note"], kinds=["dates"])
    with pytest.raises(BadParameter, match="names is 'Ann'; it must be a list"):
        mask_text(frame, ["note"], names="Ann")

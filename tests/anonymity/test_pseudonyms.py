"""Pseudonyms: the same for the same key, different otherwise; keys that are not secret are refused."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.anonymity.pseudonyms import new_key, pseudonym, pseudonymize, read_key
from tacit.errors import BadData, BadParameter, MissingFiles

KEY = bytes(range(7, 39))
FRAME = pd.DataFrame(
    {"patient": ["Ann", "Bob", "Ann", None], "doctor": ["Ann", "Zoe", "Zoe", "Bob"], "age": [31, 40, 31, 25]}
)


def test_it_is_hmac_sha256_under_a_key_of_the_column():
    own = hmac.new(KEY, b"tacit pseudonym 1\0patient", hashlib.sha256).digest()
    assert pseudonym("Ann", "patient", KEY) == hmac.new(own, b"Ann", hashlib.sha256).hexdigest()[:32]


def test_the_table_keeps_who_is_the_same_and_nothing_else():
    out = pseudonymize(FRAME, ["patient"], KEY)
    assert out["patient"][0] == out["patient"][2] != out["patient"][1]
    assert out["patient"].isna().tolist() == [False, False, False, True]
    assert out[["doctor", "age"]].equals(FRAME[["doctor", "age"]])
    assert FRAME["patient"][0] == "Ann"  # the table given is not changed
    assert pseudonymize(FRAME, ["patient"], KEY).equals(out)


def test_equal_values_in_two_columns_do_not_look_equal():
    out = pseudonymize(FRAME, ["patient", "doctor"], KEY)
    assert not set(out["patient"].dropna()) & set(out["doctor"])


def test_another_key_gives_other_pseudonyms():
    other = pseudonymize(FRAME, ["patient"], os.urandom(32))
    assert not set(other["patient"].dropna()) & set(pseudonymize(FRAME, ["patient"], KEY)["patient"].dropna())


@given(st.lists(st.text(min_size=1), min_size=2, max_size=20, unique=True))
def test_different_values_get_different_pseudonyms(values):
    import unicodedata

    values = list({unicodedata.normalize("NFC", v) for v in values})
    assert pseudonymize(pd.DataFrame({"x": values}), ["x"], KEY)["x"].nunique() == len(values)


def test_a_missing_number_does_not_change_the_others():
    """[7, 8] are integers, [7, 8, None] are floats in pandas, "7" is the text in a CSV file: one person, one pseudonym."""
    a, b, c = (
        pseudonymize(pd.DataFrame({"id": v}), ["id"], KEY)["id"][0]
        for v in ([7, 8], [7, 8, None], ["7", "8"])
    )
    assert a == b == c


def test_one_name_in_two_unicode_spellings_is_one_person():
    assert pseudonym("Ren\u00e9", "x", KEY) == pseudonym("Rene\u0301", "x", KEY)


def test_a_key_file_is_secret_random_and_never_overwritten(tmp_path):
    old = os.umask(0)
    try:
        file = new_key(tmp_path / "a.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_key(file)) == 32
    assert read_key(new_key(tmp_path / "b.key")) != read_key(file)
    content = file.read_bytes()
    with pytest.raises(BadParameter, match=r"already exists\. A key is never overwritten"):
        new_key(file)
    assert file.read_bytes() == content
    assert pseudonymize(FRAME, ["patient"], file).equals(pseudonymize(FRAME, ["patient"], read_key(file)))


def test_a_key_file_is_not_created_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link.key").symlink_to(tmp_path / "victim")
    with pytest.raises(BadParameter, match="already exists"):
        new_key(tmp_path / "link.key")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (KEY[:31].hex(), 0o600, "the key has 31 bytes; it must have at least 32"),
        ("ab" * 32, 0o600, "has only 1 different bytes, so it is not random"),
        ("hunter2-hunter2", 0o600, "does not contain 64 hexadecimal digits"),
        ("", 0o600, "the key has 0 bytes"),
        ("é" * 64, 0o600, "cannot be read as 64 hexadecimal digits"),
        (
            KEY.hex(),
            0o640,
            r"can be read by others \(mode 640\), so it is not secret. Restrict it to its owner: chmod 600",
        ),
    ],
)
def test_a_key_that_is_not_secret_is_refused(tmp_path, content, mode, words):
    file = tmp_path / "k"
    file.write_text(content, encoding="utf-8")
    file.chmod(mode)
    with pytest.raises(BadParameter, match=words) as caught:
        read_key(file)
    assert not content or content not in str(caught.value)  # the key is in no message


def test_wrong_requests_are_refused(tmp_path):
    with pytest.raises(MissingFiles, match=r"there is no key file .*nokey\. Create one with"):
        pseudonymize(FRAME, ["patient"], tmp_path / "nokey")
    with pytest.raises(BadParameter, match="cannot be created: No such file or directory"):
        new_key(tmp_path / "no" / "dir.key")
    with pytest.raises(BadData, match=r"there is no column 'pateint'\. Did you mean 'patient'"):
        pseudonymize(FRAME, ["pateint"], KEY)
    with pytest.raises(BadParameter, match="columns is 'patient'; it must be a list of column names"):
        pseudonymize(FRAME, "patient", KEY)
    with pytest.raises(BadParameter, match="length is 8; it must be a whole number of at least 16"):
        pseudonymize(FRAME, ["patient"], KEY, length=8)
    with pytest.raises(BadParameter, match="the key is int; it must be 32 random bytes"):
        pseudonym("Ann", "patient", 5)

"""Linkage of published tables by matching: figures worked by hand, agreement with class sizes, bad input."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import audit
from tacit.errors import BadData, BadParameter

GROUPS = {"age": [["21", "20-29", "*"], ["25", "20-29", "*"], ["33", "30-39", "*"], ["38", "30-39", "*"]]}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 70, 600).astype(str),
            "zip": rng.choice([f"130{i:02d}" for i in range(10)], 600),
            "ill": rng.choice(list("abcd"), 600),
        }
    )


@pytest.fixture(scope="module")
def anonymized(people):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tacit.anonymize(people, quasi=["age", "zip"], k=5, sensitive=["ill"])


def test_a_table_of_four_by_hand():
    """Two classes of two: every guess is one of two rows. The journalist and the marketer choose of two
    people.

    The class 20-29 has one illness, which is told without choosing a row: two of four people.
    """
    original = pd.DataFrame({"age": ["21", "25", "33", "38"], "ill": ["flu", "flu", "flu", "gout"]})
    published = pd.DataFrame({"age": ["20-29", "20-29", "30-39", "30-39"], "ill": original["ill"]})
    found = audit.linkage(original, published, ["age"], sensitive=["ill"], hierarchies=GROUPS)
    assert found.prosecutor.tried == found.marketer.tried == found.journalist.tried == 4
    assert found.prosecutor.expected == found.marketer.expected == 0.5
    assert found.analytic == {"prosecutor": 0.5, "journalist": 0.5, "marketer": 0.5}
    assert found.disclosed == {"ill": 0.5}


def test_a_background_of_one_person_finds_her_by_hand():
    """Only 33 is known: of two rows that fit, one is hers; a marketer names her for both, and is right
    once."""
    original = pd.DataFrame({"age": ["21", "25", "33", "38"]})
    published = pd.DataFrame({"age": ["20-29", "20-29", "30-39", "30-39"]})
    found = audit.linkage(original, published, ["age"], background=original.loc[[2]], hierarchies=GROUPS)
    assert found.prosecutor.tried == 1
    assert found.prosecutor.expected == 0.5
    assert (found.marketer.tried, found.marketer.right, found.marketer.unique) == (4, 1, 2)
    assert (found.journalist.tried, found.journalist.right) == (2, 1)


def test_matching_agrees_with_the_sizes_of_classes(people, anonymized):
    """Right matches are binomial with the analytic rate; |z| > 6 has probability 2e-9 (the seeds are
    fixed)."""
    found = audit.linkage(people, anonymized)
    for name in ("prosecutor", "marketer"):
        m, p = getattr(found, name), found.analytic[name]
        assert m.expected == pytest.approx(p)
        assert abs(m.right - m.tried * p) < 6 * np.sqrt(m.tried * p * (1 - p))
    assert found.prosecutor.unique == 0


def test_the_original_itself_is_found_and_the_anonymized_table_is_not(people, anonymized):
    found = audit.release(people, quasi=["age", "zip"], original=people)
    assert not found.passed
    assert "linkage as prosecutor" in found.headline()
    safe = audit.release(anonymized, original=people)
    assert safe.passed, str(safe)
    assert {f.attack for f in safe.findings} >= {"linkage as journalist", "disclosure of ill"}


def test_rows_that_cannot_be_checked_are_counted_by_what_fits(people, anonymized):
    """A file has no labels: the number expected, and it is said."""
    bare = anonymized.table.sample(frac=1, random_state=0).reset_index(drop=True)
    found = audit.linkage(people, bare, ["age", "zip"], hierarchies=anonymized.hierarchies)
    assert any("nobody can check a match" in note for note in found.notes)
    assert found.prosecutor.rate == pytest.approx(found.analytic["prosecutor"], abs=0.01)


def test_half_of_the_people_as_background_finds_the_rows_of_half(people, anonymized):
    """Without labels, the marketer of 300 of 600 people is expected to be right as with labels."""
    some = people.assign(id=np.arange(600)).sample(300, random_state=2)
    bare = anonymized.table.sample(frac=1, random_state=0).reset_index(drop=True)
    given = {"background": some, "key": "id", "hierarchies": anonymized.hierarchies}
    keyed = people.assign(id=np.arange(600))
    blind = audit.linkage(keyed, bare, ["age", "zip"], **given)
    seeing = audit.linkage(keyed, anonymized, **given)
    assert blind.marketer.expected == pytest.approx(seeing.marketer.expected, rel=0.05)
    assert blind.prosecutor.expected == pytest.approx(seeing.prosecutor.expected, rel=0.05)


def test_ranges_are_read_without_a_hierarchy(people, anonymized):
    """Those of tacit.anonymize say themselves what they cover: the same as with its hierarchies."""
    bare = anonymized.table.reset_index(drop=True)
    assert bare["age"].str.startswith("[").all()
    found = audit.linkage(people, bare, ["age", "zip"], hierarchies={"zip": anonymized.hierarchies["zip"]})
    assert found.prosecutor.expected == pytest.approx(found.analytic["prosecutor"])


def test_a_key_tells_who_is_who(people):
    keyed = people.assign(id=np.arange(600))
    background = keyed[["id", "age", "zip"]].sample(200, random_state=1).reset_index(drop=True)
    found = audit.linkage(keyed, keyed, ["age", "zip"], background=background, key="id")
    assert found.prosecutor.tried == 200
    assert found.prosecutor.expected == pytest.approx(
        (1 / keyed.groupby(["age", "zip"])["id"].transform("size"))[background["id"]].mean()
    )


def test_bad_tables_are_refused(people):
    with pytest.raises(BadParameter, match="does not tell who is who"):
        audit.linkage(people, people, ["age"], background=people[:50].reset_index(drop=True))
    published = people.assign(age="20-29")
    with pytest.raises(BadParameter, match="it is not known which values that covers"):
        audit.linkage(people, published, ["age"])
    with pytest.raises(BadData, match="no column 'zip'"):
        audit.linkage(people, people.drop(columns="zip"), ["age", "zip"])
    with pytest.raises(BadData, match="nobody of the background table"):
        audit.linkage(people, people, ["age"], background=people.set_index(people.index + 10_000))
    with pytest.raises(BadParameter, match="anonymized or synthetic"):
        audit.release(people, original=people)
    with pytest.raises(BadParameter, match="no option 'quasy'"):
        audit.release(people, original=people, quasy=["age"])

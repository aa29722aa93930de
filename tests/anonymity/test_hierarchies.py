from __future__ import annotations

import datetime

import numpy as np
import pandas
import pytest

import tacit
from tacit.anonymity import Codes, Dates, Flat, Hierarchy, Intervals, Prefixes, Tree, suggest
from tacit.anonymity.hierarchies import NULL, spell
from tacit.errors import BadData, BadParameter, MissingFiles

from .adult import ROOT


def test_arxs_files_are_read_as_they_are():
    age = Hierarchy.from_csv(ROOT / "adult_hierarchy_age.csv")
    assert age.height == 4
    assert [age.generalize(39, level) for level in range(5)] == ["39", "35-39", "30-39", "20-39", "*"]


def test_a_file_with_commas_a_byte_order_mark_and_an_empty_value(tmp_path):
    file = tmp_path / "h.csv"
    file.write_text('\ufeffa,vowel,*\n"",none,*\nb,consonant,*\n', encoding="utf-8")
    h = Hierarchy.from_csv(file)
    assert h.values == ("a", "", "b")
    assert h.generalize("", 1) == "none"


def test_a_hierarchy_goes_to_a_file_and_back(tmp_path):
    h = Prefixes().build(["37203", "37215"])
    assert Hierarchy.from_csv(h.to_csv(tmp_path / "zip.csv")) == h


def test_a_top_is_put_on_where_there_is_none():
    assert Hierarchy.from_rows([["a", "x"], ["b", "y"]]).levels == (("a", "b"), ("x", "y"), ("*", "*"))
    assert Hierarchy.from_rows([["a"], ["b"]]).levels[-1] == ("*", "*")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "a hierarchy has no values"),
        ([["a", "x", "*"], ["b", "*"]], r"row 2 \('b'\) has 2 levels, row 1 has 3"),
        ([["a", "*"], ["a", "*"]], "'a' is in more than one row"),
        (
            [["a", "x", "p"], ["b", "x", "q"]],
            "'x' is one value at level 1, but both 'p' and 'q' at level 2",
        ),
    ],
)
def test_a_hierarchy_that_is_none_is_refused(rows, words):
    with pytest.raises(BadData, match=words):
        Hierarchy.from_rows(rows)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(MissingFiles, match=r"There is no hierarchy file .*zip\.csv"):
        Hierarchy.from_csv(tmp_path / "zip.csv")
    (tmp_path / "latin.csv").write_bytes("Zürich;*\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"latin\.csv is not UTF-8 text"):
        Hierarchy.from_csv(tmp_path / "latin.csv")
    (tmp_path / "t.toml").write_text("a = 3\n")
    with pytest.raises(BadData, match="A tree has 3 under a"):
        Tree.from_toml(tmp_path / "t.toml")
    (tmp_path / "t.toml").write_text("a = [\n")
    with pytest.raises(BadData, match=r"t\.toml cannot be read as TOML"):
        Tree.from_toml(tmp_path / "t.toml")
    with pytest.raises(MissingFiles, match="There is no hierarchy file"):
        Tree.from_toml(tmp_path / "no.toml")


def test_dates_go_from_day_to_month_to_year_to_five_to_ten_years():
    h = Dates().build(["9/20/65", "2012-12-31"])
    assert [level[0] for level in h.levels] == ["9/20/65", "1965-09", "1965", "1965-1969", "1960-1969", "*"]
    assert [level[1] for level in h.levels] == [
        "2012-12-31",
        "2012-12",
        "2012",
        "2010-2014",
        "2010-2019",
        "*",
    ]
    assert Dates(format="%d/%m/%y", pivot=70).build(["01/02/65"]).generalize("01/02/65", 1) == "2065-02"
    with pytest.raises(BadData, match=r"'13/45/65' is not a date in the format .* Use Dates\(format=…\)"):
        Dates().build(["13/45/65"])


def test_prefixes_lose_a_character_a_level():
    assert [level[0] for level in Prefixes().build(["37203", "37215"]).levels] == [
        "37203",
        "3720*",
        "372**",
        "37***",
        "3****",
        "*",
    ]
    assert [level[0] for level in Prefixes(keep=3, step=2).build(["37203"]).levels] == ["37203", "372**", "*"]


def test_intervals_start_at_their_origin_not_at_the_data():
    h = Intervals(width=5.0, factors=(2,)).build(["39", "40", "-1", "2.5"])
    assert h.levels[1] == ("[35, 40)", "[40, 45)", "[-5, 0)", "[0, 5)")
    assert h.levels[2] == ("[30, 40)", "[40, 50)", "[-10, 0)", "[0, 10)")
    with pytest.raises(BadData, match="'n/a' is not a finite number, which intervals need"):
        Intervals().build(["n/a"])
    with pytest.raises(
        BadParameter, match=r"Intervals: width is 0; it must be a number above 0|Intervals: width is 0"
    ):
        Intervals(width=0).build(["1"])
    with pytest.raises(BadParameter, match="Intervals: factors is"):
        Intervals(factors=(1,)).build(["1"])


def test_trees_may_differ_in_depth(tmp_path):
    (tmp_path / "country.toml").write_text(
        'Asia = ["Japan"]\n[Europe]\nSouth = ["Italy", "Greece"]\nNorth = ["Norway"]\n'
    )
    h = Tree.from_toml(tmp_path / "country.toml").build(["Italy", "Japan"])
    assert [h.generalize("Italy", i) for i in range(4)] == ["Italy", "South", "Europe", "*"]
    assert [h.generalize("Japan", i) for i in range(4)] == ["Japan", "Asia", "Asia", "*"]


def test_a_suggestion_follows_the_values():
    assert isinstance(suggest(["1965-09-20", "1964-01-02"]), Dates)
    assert isinstance(suggest(["37203", "37215"]), Prefixes)
    assert suggest([str(a) for a in range(17, 91)]) == Intervals(width=5.0, factors=(2, 2, 2))
    assert suggest(["M", "F"]) == Flat()
    assert suggest([]) == Flat()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (39, "39"),
        (39.0, "39"),
        (np.float64(2.5), "2.5"),
        ("", ""),
        ("39", "39"),
        (None, NULL),
        (float("nan"), NULL),
        (pandas.NaT, NULL),
        (pandas.NA, NULL),
        (True, "True"),
        (pandas.Timestamp("1965-09-20"), "1965-09-20"),
        (datetime.date(1965, 9, 20), "1965-09-20"),
        (np.datetime64("1965-09-20"), "1965-09-20"),
        (float("inf"), "inf"),
    ],
)
def test_a_cell_is_compared_as_text(value, text):
    assert spell(value) == text


def test_a_value_missing_from_its_hierarchy_lists_the_values():
    frame = pandas.DataFrame({"sex": ["M", "F", "D", "M"]})
    with pytest.raises(
        BadData,
        match=r"The hierarchy of column 'sex' has no row for 'D'\. It has 'M', 'F'\. Add the values to it",
    ):
        tacit.anonymize(
            frame, quasi=["sex"], k=2, hierarchies={"sex": Hierarchy.from_rows([["M", "*"], ["F", "*"]])}
        )
    with pytest.raises(
        BadData, match=r"The hierarchy of column 'sex' has no row for 'D', 'F', 'M'\. It has 'x'"
    ):
        tacit.anonymize(frame.sort_values("sex"), quasi=["sex"], k=2, hierarchies={"sex": {"all": ["x"]}})


def test_integers_that_became_floats_are_still_found():
    """pandas makes floats of integers when one is missing: 39.0 is the hierarchy's 39."""
    frame = pandas.DataFrame({"age": [39, 39, None, None]})
    made = tacit.anonymize(
        frame, quasi=["age"], k=2, hierarchies={"age": Hierarchy.from_rows([[39, "30-39", "*"]])}
    )
    assert made.levels == {"age": 0}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (["E11.9", "E11", "E10.21", "I10"], ["E10.21", "E10.2", "E10", "E1", "E", "*"]),
        (["E119", "I251", "C50"], ["E119", "E11", "E1", "E", "*"]),
        (["M16", "M17", "C50"], ["M16", "M1", "M", "*"]),
        (["CH011", "CH021", "DE212", "FRK26"], ["CH011", "CH01", "CH0", "CH", "*"]),
        (["CH01", "AT13"], ["CH01", "CH0", "CH", "*"]),
        (["2211", "2212", "9112"], ["2211", "221*", "22**", "2***", "*"]),  # ISCO-08
        (["red", "blue"], ["red", "*"]),
        (["AB", "CD"], ["AB", "*"]),
    ],
)
def test_codes_are_recognized_by_their_structure(values, path):
    hierarchy = suggest(values).build(values)
    at = values.index(path[0])
    assert [level[at] for level in hierarchy.levels] == path


def test_codes_keep_fewer_and_fewer_characters():
    with pytest.raises(BadParameter, match="whole numbers of at least 1 that decrease"):
        Codes((2, 3)).build(["E11"])


def test_diagnoses_are_generalized_by_category_in_every_release():
    """Codes that are new in a second release extend the suggested hierarchy."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"id": range(300), "icd": rng.choice(["E11.9", "E11.2", "E10.1", "I10", "I25.1"], 300)}
    )
    made = tacit.anonymize(frame, quasi=["icd"], k=20, person="id")
    later = frame.assign(icd=frame["icd"].where(frame.index % 10 > 0, "E11.8"))
    again = tacit.anonymize_again(later, made.record_release())
    assert again.hierarchies["icd"].generalize("E11.8", 1) == "E11"
    assert again.hierarchies["icd"].generalize("E11.8", 3) == "E"

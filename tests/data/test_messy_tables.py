"""Tables as hospitals have them: dates, times, codes, sentinels, typos, tiny sites, people with several rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tacit import data
from tacit.config import job
from tacit.data.cells import to_moments, with_columns
from tacit.data.conformance import check_dataset, check_federation
from tacit.data.people import _hold_out_shared, hold_out_people
from tacit.data.recipe import Recipe
from tacit.data.subgroups import attach
from tacit.errors import BadData, BadJob, BadParameter


def visits(n: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2014-01-01") + pd.to_timedelta(rng.integers(0, 1000, n), unit="D")
    frame = pd.DataFrame(
        {
            "patient": [f"p{k:03}" for k in rng.integers(0, n // 3, n)],
            "site": rng.choice(
                ["north", "south", "west", "tiny", "small"], n, p=[0.5, 0.3, 0.16, 0.02, 0.02]
            ),
            "admitted": days.strftime("%Y-%m-%d"),
            "at": [f"{h:02}:{m:02}" for h, m in zip(rng.integers(0, 24, n), rng.integers(0, 60, n))],
            "lab": rng.normal(100, 15, n).round(1),
            "zip": [f"{z:05}" for z in rng.choice([1067, 80331, 50667], n)],
            "ill": rng.choice(["yes", "no"], n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "lab"] = -9999
    return frame


DATES = {"admitted": ["year", "month", "weekday", "days"], "at": ["hour"]}


def test_undeclared_dates_times_and_mixed_columns_are_named_in_one_error():
    frame = visits().assign(dose=[str(k) if k % 4 else "unknown" for k in range(300)])
    with pytest.raises(BadData) as caught:
        data.from_frame(frame, label="ill", drop=["patient"])
    words = str(caught.value)
    assert "'admitted' contains dates" in words
    assert "dates={'at': ['hour']}" in words
    assert (
        "'dose' contains numbers, but 75 of 300 values are not numeric, the first 'unknown' in row 1" in words
    )
    assert "missing_codes={'dose': ['unknown']}" in words
    fed = data.from_frame(
        frame, label="ill", drop=["patient"], dates=DATES, missing_codes={"dose": ["unknown"], "lab": [-9999]}
    ).by("site")
    assert "dose" in fed.columns
    assert "dose missing" in fed.columns
    assert "lab missing" in fed.columns


def test_dates_become_features_by_their_declared_parts():
    frame = pd.DataFrame({"d": ["2015-03-01", "2016-12-31", None], "t": ["06:00", "18:00:00", "0:00"]})
    recipe = Recipe(dates={"d": ("year", "month", "days since 2015-01-01"), "t": ("hour",)}, missing=("d",))
    assert recipe.columns == (
        *("d year", "d month sin", "d month cos", "d days since 2015-01-01"),
        *("t hour sin", "t hour cos", "d missing"),
    )
    raw = recipe.raw(frame)
    angle = 2 * np.pi * 2 / 12
    assert raw[0, :4] == pytest.approx([2015, np.sin(angle), np.cos(angle), 59])
    assert raw[1, 3] == 730
    assert np.isnan(raw[2, :4]).all()
    assert raw[:, 4:] == pytest.approx(np.array([[1, 0], [-1, 0], [0, 1]]), abs=1e-9)


@pytest.mark.parametrize(
    ("values", "format", "expected"),
    [
        (["1.3.2015", "31.12.2015"], None, [3, 12]),
        (["03/01/2015", "12/31/2015"], "%m/%d/%Y", [3, 12]),
        (["20150301", "20151231"], "%Y%m%d", [3, 12]),
    ],
)
def test_a_date_is_read_by_its_form(values, format, expected):
    formats = {} if format is None else {"d": format}
    recipe = Recipe(dates={"d": ("month",)}, date_formats=formats)
    month = np.array(expected) - 1
    assert recipe.raw(pd.DataFrame({"d": values}))[:, 0] == pytest.approx(np.sin(2 * np.pi * month / 12))


def test_a_date_that_can_be_read_in_two_ways_must_be_declared():
    recipe = Recipe(dates={"d": ("month",)})
    with pytest.raises(BadData, match=r"'03/01/2015', which can be read in two ways.*date_formats"):
        recipe.raw(pd.DataFrame({"d": ["03/01/2015"]}))
    with pytest.raises(BadData, match=r"has 'soon' in row 2 \(line 3 of a CSV file\), which is not a date"):
        recipe.raw(pd.DataFrame({"d": ["2015-03-01", "soon"]}))
    with pytest.raises(
        BadData, match=r"dates\['d'\] is \('century',\); it must be a list of different parts"
    ):
        Recipe(dates={"d": ("century",)}).check()


def test_dates_of_a_column_may_have_several_forms():
    mixed = pd.Series(["2020-03-14", "2.3.2020", None, "2020-01-05"])
    days = [None if pd.isna(d) else f"{d:%Y-%m-%d}" for d in to_moments("d", mixed)]
    assert [d for d in days if isinstance(d, str)] == ["2020-03-14", "2020-03-02", "2020-01-05"]
    declared = to_moments("d", pd.Series(["03/14/2020", "2020-02-01"]), "%m/%d/%Y | %Y-%m-%d")
    assert declared.dt.strftime("%Y-%m-%d").tolist() == ["2020-03-14", "2020-02-01"]
    with pytest.raises(BadData, match=r"'01/02/2020' in row 2 \(line 3 of a CSV file\), which fits two"):
        to_moments("d", pd.Series(["03/14/2020", "01/02/2020"]), "%m/%d/%Y | %d/%m/%Y")
    with pytest.raises(BadData, match=r"'1\.2\.2020' in row 1"):
        to_moments("d", pd.Series(["1.2.2020"]), "%m/%d/%Y | %Y-%m-%d")


@pytest.mark.parametrize(
    "values",
    [
        [f"{k / 7:.2f}" for k in range(90)] + ["low"] * 210,  # measurements beside words, however many
        [str(k % 9) for k in range(200)] + ["unknown"] * 100,  # a word for missing values
    ],
)
def test_numbers_beside_words_are_refused_and_not_encoded_as_words(values):
    """Before, each number was a category of its own, and nothing was said."""
    frame = pd.DataFrame({"lab": values, "age": range(300), "ill": ["yes", "no"] * 150})
    with pytest.raises(BadData, match=r"the column 'lab' contains numbers, but .* categories=\['lab'\]"):
        data.from_frame(frame, label="ill")
    assert (
        "lab=low" in data.from_frame(frame.replace("unknown", "low"), label="ill", categories=["lab"]).columns
    )


def test_codes_of_digits_and_letters_are_categories():
    frame = pd.DataFrame({"stage": ["1", "2", "3A", "3B", "4"] * 60, "ill": ["yes", "no"] * 150})
    assert "stage=3A" in data.from_frame(frame, label="ill").columns


def test_codes_with_leading_zeros_stay_text(tmp_path):
    visits().to_csv(tmp_path / "v.csv", index=False)
    made = data.from_csv(
        tmp_path / "v.csv", label="ill", drop=["patient"], dates=DATES, missing_codes={"lab": [-9999]}
    )
    assert {"zip=01067", "zip=80331", "zip=50667"} <= set(made.columns)


def test_a_sentinel_counts_as_missing_and_not_as_a_number():
    frame = visits()
    fed = data.from_frame(
        frame, label="ill", drop=["patient", "zip"], dates=DATES, missing_codes={"lab": [-9999]}
    ).by("site")
    recipe = fed.pipeline.recipe
    known = frame["lab"][frame["lab"] > 0]
    assert recipe.mean[0] == pytest.approx(known.mean(), rel=0.02)
    row = frame.iloc[[0]].assign(lab=-9999)
    encoded = fed.pipeline.encode(row)[0]
    assert encoded[0] == 0
    assert encoded[fed.columns.index("lab missing")] == 1


def test_integers_with_more_than_two_values_are_a_regression_unless_told_otherwise():
    frame = pd.DataFrame({"a": np.arange(90.0) % 7, "stage": np.arange(90) % 3, "sick": np.arange(90) % 2})
    made = data.from_frame(frame, label="stage", drop=["sick"])
    assert made.classes is None
    assert "regression=False" in made.split(3).notes[-1]
    assert data.from_frame(frame, label="stage", drop=["sick"], regression=False).labels == ("0", "1", "2")
    named = data.from_frame(frame, label="stage", drop=["sick"], labels=["2", "1", "0"])
    assert named.labels == ("2", "1", "0")
    assert named.rows.y.max() == 2
    assert data.from_frame(frame, label="sick", drop=["stage"]).classes == 2
    with pytest.raises(BadData, match=r"all that the column 'stage' has, '2' too"):
        data.from_frame(frame, label="stage", labels=["0", "1"])
    with pytest.raises(BadParameter, match="both labels and regression=True"):
        data.from_frame(frame, label="stage", labels=["0", "1", "2"], regression=True)


def test_a_label_may_be_named_by_a_number(tmp_path):
    frame = pd.DataFrame({"0": np.arange(40.0), "1": [0, 1] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for label in (1, "1"):
        assert data.from_csv(tmp_path / "t.csv", label=label).columns == ("0",)
    (tmp_path / "job.toml").write_text('[data]\npath = "t.csv"\nlabel = 1\nparties = 2\n')
    assert job.load(tmp_path / "job.toml").dataset().columns == ("0",)


def test_rows_without_an_outcome_are_refused_or_left_out():
    frame = visits().assign(ill=lambda f: f["ill"].mask(f.index % 10 == 3))
    with pytest.raises(
        BadData, match=r"30 rows have no 'ill', the first is row 4 \(line 5.*missing_label='drop'"
    ):
        data.from_frame(frame, label="ill", drop=["patient", "admitted", "at"])
    made = data.from_frame(
        frame, label="ill", drop=["patient", "admitted", "at"], missing_label="drop", test_fraction=0
    )
    assert len(made) == 270
    assert any("missing_label='drop'" in note for note in made.split(2).notes)
    coded = visits().assign(score=lambda f: np.where(f.index % 10 == 3, 999, f.index % 7))
    kept = data.from_frame(
        coded[["lab", "score"]],
        label="score",
        missing_codes={"score": [999]},
        missing_label="drop",
        test_fraction=0,
    )
    assert kept.rows.y.max() == 6


def test_no_party_is_named_by_nothing():
    frame = visits()[["lab", "site", "ill"]].assign(site=lambda f: f["site"].mask(f.index % 9 == 0))
    for groups in ((), ("site",)):
        made = data.from_frame(frame, label="ill", groups=groups)
        with pytest.raises(
            BadData, match=r"rows have no 'site', so they belong to no party.*missing_party='drop'"
        ):
            made.by("site")
        assert "" not in made.by("site", missing_party="drop").parties
        unknown = made.by("site", missing_party="unknown")
        assert "unknown" in unknown.parties
        assert any("are of party 'unknown'" in note for note in unknown.notes)
        check_federation(unknown, len(made))


def test_small_parties_are_merged_or_left_out_with_a_note():
    made = data.from_frame(visits()[["lab", "site", "ill"]], label="ill", test_fraction=0)
    merged = made.by("site", min_rows=20, small="merge")
    assert merged.parties == ("north", "small parties", "south", "west")
    assert "2 parties with fewer than 20 rows are one party, 'small parties': small, tiny." in merged.notes
    check_federation(merged, 300)
    dropped = made.by("site", small="drop")
    assert dropped.parties == ("north", "south", "west")
    assert any("are left out: small, tiny" in note for note in dropped.notes)
    assert dropped.sizes.sum() < 300
    with pytest.raises(
        BadData, match=r"2 of 5 parties have fewer than 20 rows: small, tiny. Pass small='merge'"
    ):
        made.by("site", min_rows=20)


def test_an_impossible_min_size_names_what_is_possible():
    made = data.from_frame(visits()[["lab", "site", "ill"]], label="ill", test_fraction=0)
    smallest = int(made.by("site").sizes.min())
    with pytest.raises(BadParameter, match=rf"from 1 to {smallest}, the rows of the smallest party"):
        made.by("site", min_size=smallest + 1)
    assert made.by("site", min_size=smallest).sizes.min() == smallest


@pytest.mark.parametrize("skew", [None, data.Dirichlet(0.5), data.Quantity(0.5)])
def test_rows_of_one_person_stay_together(skew):
    frame = visits()[["patient", "lab", "ill"]]
    made = check_dataset(data.from_frame(frame, label="ill", group="patient"))
    table = made.table
    trained, tested = set(table.frame["patient"]), set(table.test["patient"])
    assert not trained & tested
    assert 0.1 < len(table.test) / 300 < 0.3
    fed = made.split(3, skew, seed=2)
    who = table.frame["patient"].to_numpy()
    sides = {}
    for k in range(3):
        for part, holdings in (("train", fed.train), ("held", fed.held)):
            for row in holdings.of(k).tolist():
                sides.setdefault(who[row], set()).add((k, part))
    assert all(len(places) == 1 for places in sides.values())
    assert len(sides) == len(trained)
    assert (fed.held.sizes > 0).all()
    assert "patient" not in fed.columns


@pytest.mark.parametrize("seed", range(5))
def test_a_person_at_two_sites_is_on_one_side_at_all_of_them(seed):
    """Otherwise a model is tested at one site on people whose rows it was trained on at another."""
    made = data.from_frame(visits()[["patient", "site", "lab", "ill"]], label="ill", group="patient")
    fed = made.by("site", seed=seed, held_fraction=0.3)
    assert any("more than one party" in note for note in fed.notes)
    who = made.table.frame["patient"].to_numpy()
    trained, held = set(who[fed.train.index]), set(who[fed.held.index])
    assert not trained & held
    assert not (trained | held) & set(made.table.test["patient"])
    assert len(fed.train.index) + len(fed.held.index) == len(who)
    assert (fed.train.sizes > 0).all()
    assert 0.15 < len(fed.held.index) / len(who) < 0.4


def test_people_at_one_site_each_are_held_out_as_without_shared_people():
    rng, rows = np.random.default_rng(4), 500
    persons = rng.integers(0, 90, rows)
    owner, n_held = np.sort(persons % 3), np.array([30, 40, 0])
    persons = persons[np.argsort(persons % 3, kind="stable")]
    order, is_held = hold_out_people(persons, owner, n_held, np.random.default_rng(0))
    chance = np.random.default_rng(0).random(persons.max() + 1)
    who, first, sizes = np.unique(persons, return_index=True, return_counts=True)
    again = _hold_out_shared(who, owner[first], sizes, chance[who], n_held)
    assert set(persons[order][is_held]) == set(who[again])


def test_test_rows_of_merged_sites_belong_to_the_merged_party():
    frame = pd.DataFrame(
        {
            "site": ["a"] * 50 + ["b"] * 30 + ["c", "d", "e"] * 4 + [None] * 20,
            "lab": np.arange(112.0),
            "ill": ["no", "yes"] * 56,
        }
    )
    made = data.from_frame(frame, label="ill", fit="party", test_fraction=0.4, seed=1)
    skew = data.ByColumn("site", min_rows=15, small="merge", missing_party="b")
    names = skew.names(made, 0)
    assert names == ("a", "b", "small parties")
    owner = skew.test_owner(made, names)
    where = made.table.test["site"].fillna("").tolist()
    expected = {"a": 0, "b": 1, "": 1, "c": 2, "d": 2, "e": 2}
    assert owner.tolist() == [expected[site] for site in where]
    assert set(owner) == {0, 1, 2}
    dropped = data.ByColumn("site", min_rows=15, small="drop", missing_party="drop")
    assert set(dropped.test_owner(made, dropped.names(made, 0))) == {0, 1, -1}


def test_a_time_split_tests_on_later_rows():
    frame = visits()[["patient", "admitted", "lab", "ill"]]
    made = data.from_frame(frame, label="ill", drop=["patient"], time="admitted", test_after="2016-01-01")
    assert made.table.frame["admitted"].max() < "2016-01-01" <= made.table.test["admitted"].min()
    assert made.columns == ("lab",)  # a time is a feature only if it is declared
    both = data.from_frame(frame, label="ill", group="patient", time="admitted", test_after="2016-01-01")
    assert not set(both.table.frame["patient"]) & set(both.table.test["patient"])
    assert any("their earlier rows are left out" in note for note in both.split(2).notes)
    with pytest.raises(BadData, match="no row has a 'admitted' that is later than test_after='2030-01-01'"):
        data.from_frame(frame, label="ill", drop=["patient"], time="admitted", test_after="2030-01-01")
    with pytest.raises(BadParameter, match="test_after needs the column of the time"):
        data.from_frame(frame, label="ill", drop=["patient"], test_after="2016-01-01")
    years = frame.assign(year=frame["admitted"].str[:4].astype(int))
    split = data.from_frame(years, label="ill", drop=["patient", "admitted"], time="year", test_after="2016")
    assert split.table.test["year"].min() == 2016


def test_tables_of_several_parties_make_a_federation():
    frame = visits()[["site", "lab", "ill"]]
    frames = {site: part.drop(columns="site") for site, part in frame.groupby("site")}
    fed = data.from_frames(frames, label="ill", small="merge")
    assert fed.parties == ("north", "small parties", "south", "west")
    assert fed.pipeline is not None
    same = data.from_frame(frame.sort_values("site", kind="stable"), label="ill").by("site", small="merge")
    assert same.pipeline.recipe == fed.pipeline.recipe
    assert torch.equal(same.rows.x, fed.rows.x)
    broken = {
        **frames,
        "south": frames["south"].rename(columns={"lab": "labs"}),
        "north": frames["north"][:0],
    }
    with pytest.raises(BadData) as caught:
        data.from_frames(broken, label="ill")
    assert "north: the table has no rows." in str(caught.value)
    assert "south: the table has no column 'lab'" in str(caught.value)
    mixed = {
        **frames,
        "west": frames["west"].assign(lab=lambda f: f["lab"].astype(str).where(f.index % 2 > 0, "?")),
    }
    with pytest.raises(BadData, match=r"'lab' has text at west and numbers at .*missing_codes"):
        data.from_frames(mixed, label="ill")
    assert "lab missing" in data.from_frames(mixed, label="ill", missing_codes={"lab": ["?"]}).columns


def test_several_files_are_several_parties(tmp_path):
    for site, part in visits()[["site", "lab", "ill"]].groupby("site"):
        part.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    paths = [tmp_path / f"{s}.csv" for s in ("north", "south", "west")]
    fed = data.from_csv(paths, label="ill").by("party")
    assert fed.parties == ("north", "south", "west")
    (tmp_path / "job.toml").write_text(
        '[data]\npath = ["north.csv", "south.csv", "west.csv"]\nlabel = "ill"\nby = "party"\n'
        'scaling = { lab = "robust" }\nmissing_codes = { lab = [-9999] }\n'
    )
    (same,) = job.load(tmp_path / "job.toml").federations()
    assert same.parties == fed.parties
    assert "lab missing" in same.columns
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "north.csv"\nlabel = "ill"\nparties = 2\ndates = ["at"]\n'
    )
    with pytest.raises(BadJob, match=r"dates is .*; it must be a table of lists of texts"):
        job.load(tmp_path / "job.toml")


def test_rare_categories_of_a_table_are_other():
    values = ["a"] * 600 + ["b"] * 595 + ["typo"] * 3 + ["Typo"] * 2
    frame = pd.DataFrame({"kind": values, "y": [0, 1] * 600})
    fed = data.from_frame(frame, label="y").split(2)
    assert fed.columns == ("kind=a", "kind=b", "kind=other")
    assert fed.pipeline.encode(pd.DataFrame({"kind": ["new", "a"]})).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_recipe_and_its_parts_may_not_both_be_given():
    with pytest.raises(BadParameter, match=r"both fit=Recipe\(…\) and scaling are given"):
        data.from_frame(visits(), label="ill", fit=Recipe(("lab",)), scaling="robust")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'datess'. Did you mean 'dates'\?"):
        data.from_frame(visits(), label="ill", datess={})


def test_subgroups_are_those_of_the_rows_that_remain_where_rows_without_a_party_are_left_out():
    """The column's value of each row is found by a number that differs in every row."""
    frame = visits()
    frame.loc[::7, "site"] = None
    frame["lab"] = np.arange(len(frame)) + 0.5
    made = data.from_frame(
        frame, label="ill", drop=["patient", "at", "admitted"], test_fraction=0, fit="none"
    )
    fed = made.by("site", missing_party="drop", small="drop")
    group = attach(fed, ["zip"]).subgroups
    place = fed.columns.index("lab")
    at = (fed.rows.x[:, place].numpy() - 0.5).astype(int)
    assert len(at) < len(frame)
    assert [group.values[0][k] for k in group.codes[:, 0]] == frame["zip"][at].tolist()


def test_parties_that_are_all_small_are_neither_merged_into_one_nor_left_out():
    """Before, the proposal was to merge all into one party, and a draft did so in silence."""
    made = data.from_frame(pd.DataFrame({"site": list("abc") * 10, "x": range(30), "y": [0, 1] * 15}), "y")
    for options in ({}, {"small": "merge"}, {"small": "drop"}):
        with pytest.raises(
            BadData, match=r"all 3 parties have fewer than 20 rows, the largest has \d+\. Use a"
        ):
            made.by("site", min_rows=20, **options)


def test_errors_about_rows_to_predict_propose_nothing_that_only_training_can_declare():
    frame = pd.DataFrame({"day": ["1.3.2015", "2.4.2016"] * 20, "x": range(40), "y": [0, 1] * 20})
    fed = data.from_frame(frame, "y", dates={"day": ["year"]}).split(2)
    with pytest.raises(
        BadData, match=r"'x' as a number.*'old' in row 1 \(line 2.*or leave them empty"
    ) as wrong:
        fed.pipeline.encode(frame.assign(x=["old", *range(39)]))
    assert "missing_codes" not in str(wrong.value)
    with pytest.raises(BadData, match=r"'soon' in row 1 .*Write it as in training") as wrong:
        fed.pipeline.encode(frame.assign(day=["soon"] + ["1.3.2015"] * 39))
    assert "date_formats" not in str(wrong.value)


def test_columns_may_be_called_self_and_the_table_stays_as_it_was():
    frame = pd.DataFrame({"self": [1.0, 2.0], "b": [3, 4]}, index=[7, 8])
    out = with_columns(frame, {"self": [5, 6], "new": frame["b"] + 1})
    assert out.to_dict("list") == {"self": [5, 6], "b": [3, 4], "new": [4, 5]}
    assert list(out.index) == [7, 8]
    assert frame.to_dict("list") == {"self": [1.0, 2.0], "b": [3, 4]}

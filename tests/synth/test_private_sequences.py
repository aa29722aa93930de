"""Private sequences: ε is for an entity with all of its events."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData, BadParameter
from tacit.parties.secret import SeededSecret
from tacit.people import encode_person
from tacit.synth import (
    MST,
    Domains,
    PrivateSequences,
    Table,
    categorical,
    continuous,
    integer,
    load_private_sequences,
)
from tacit.synth.private_sequences import _entity_rows
from tests.cli.shell import refused, run
from tests.synth.visits import DECLARED, visits

MODEL = {"delta": 1e-6, "max_events": 12, "max_gap": "400D"}


def fit(frame: pd.DataFrame, **changes) -> PrivateSequences:
    return PrivateSequences(**{**MODEL, **changes}).fit(
        frame, "patient", "date", columns=DECLARED, attributes=["sex"]
    )


def with_heavy_patient(frame: pd.DataFrame, events: int = 2000) -> pd.DataFrame:
    """One more patient, with very many visits to one ward."""
    heavy = pd.DataFrame(
        {
            "patient": "Q",
            "sex": "F",
            "date": pd.Timestamp("2015-01-01") + pd.to_timedelta(np.arange(events) % 2000, unit="D"),
            "ward": "C",
            "pressure": 220.0,
        }
    )
    return pd.concat([frame, heavy], ignore_index=True)


def entity_rows(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The two tables of cells that all noisy counts are made of, with the same random choices."""
    model = PrivateSequences(**MODEL)
    table = Table.declare(DECLARED)
    own, clock = Table(table.columns[:1]), table.columns[1]
    events = Table(table.columns[2:])
    people = encode_person(frame, "patient", [], "test")
    grids = model._grids(own, events, clock)
    return _entity_rows(frame, people, own, events, clock, grids, model.max_events, SeededSecret(0))


@pytest.mark.parametrize("events", [1, 2, 12, 2000])
def test_one_entity_changes_every_marginal_by_at_most_one_however_many_events_it_has(events):
    """The premise of the proof: with all events as rows, the same counts change by up to 2,000."""
    frame = visits(200)
    before, after = entity_rows(frame), entity_rows(with_heavy_patient(frame, events))
    for a, b in zip(before, after):
        sizes = [int(max(a[:, j].max(), b[:, j].max())) + 1 for j in range(a.shape[1])]
        for width in (1, 2):
            for columns in itertools.combinations(range(len(sizes)), width):
                counts = [np.zeros([sizes[c] for c in columns]) for _ in range(2)]
                for rows, table in zip((a, b), counts):
                    np.add.at(table, tuple(rows[:, list(columns)].T), 1)
                assert np.abs(counts[1] - counts[0]).sum() <= 1
    assert len(after[0]) == len(before[0]) + 1
    assert len(after[1]) == len(before[1]) + (events >= 2)


def test_a_heavy_entity_does_not_show_while_it_does_with_a_guarantee_for_rows():
    """300 patients and one with more visits than all of them together, all to ward C."""
    frame = visits(300)
    shares = [
        (fit(f, epsilon=1, insecure_seed=1).sample(2000).ward == "C").mean()
        for f in (frame, with_heavy_patient(frame))
    ]
    rows = {"ward": DECLARED["ward"]}
    by_row = [
        (MST(epsilon=1, insecure_seed=1).fit(f[["ward"]], rows).sample(2000).ward == "C").mean()
        for f in (frame, with_heavy_patient(frame))
    ]
    assert by_row[1] - by_row[0] > 0.3  # the control: the patient decides the table
    assert abs(shares[1] - shares[0]) < 0.15


def test_the_accountant_of_google_finds_no_more_than_the_stated_epsilon(monkeypatch):
    import dp_accounting
    from dp_accounting import rdp

    from tacit.synth import private_sequences

    spent = []
    monkeypatch.setattr(
        private_sequences,
        "marginal_spend",
        lambda mechanism, epsilon, delta, curator, was=private_sequences.marginal_spend: (
            spent.append(float(curator.spent)) or was(mechanism, epsilon, delta, curator)
        ),
    )
    model = fit(visits(300), epsilon=0.7)
    account = rdp.RdpAccountant(list(1 + np.exp(np.linspace(0, 5, 1000))))
    account.compose(dp_accounting.ZCDpEvent(spent[0]))
    assert 0.97 * 0.7 <= account.get_epsilon(1e-6) <= 0.7 * (1 + 1e-4)
    (line,) = model.ledger.spent
    assert (line.epsilon, line.delta) == (0.7, 1e-6)
    assert line.unit == "entity (all events of one patient, added or removed)"
    assert model.ledger.stamps == []


def test_numbers_of_events_gaps_and_transitions_are_those_of_the_original():
    """Seeded, so that it cannot fail by chance."""
    real, made = visits(4000), fit(visits(4000), epsilon=2, insecure_seed=3).sample(4000)
    stats = []
    for frame in (real.sort_values(["patient", "date"]), made):
        groups = frame.groupby("patient")
        before = groups.ward.shift()
        number, sex = groups.size(), groups.sex.first()
        stats.append(
            {
                "events of women": number[sex == "F"].mean(),
                "events of men": number[sex == "M"].mean(),
                "stay": (frame.ward == before)[before.notna()].mean(),
                "gap": groups.date.diff().dropna().dt.days.median(),
                "pressure in C": frame.pressure[frame.ward == "C"].mean(),
            }
        )
    real_stats, made_stats = stats
    assert made_stats["events of women"] == pytest.approx(real_stats["events of women"], rel=0.1)
    assert made_stats["events of men"] == pytest.approx(real_stats["events of men"], rel=0.15)
    assert made_stats["stay"] == pytest.approx(real_stats["stay"], abs=0.06)
    assert made_stats["gap"] == pytest.approx(real_stats["gap"], rel=0.2)
    assert made_stats["pressure in C"] == pytest.approx(real_stats["pressure in C"], rel=0.05)


def test_samples_keep_to_the_declaration_and_to_the_order_of_time():
    model = fit(visits(300), insecure_seed=1)
    rows = model.sample(500, seed=4)
    assert list(rows.columns) == ["patient", "sex", "date", "ward", "pressure"]
    assert rows.patient.nunique() == 500
    assert rows.groupby("patient").size().max() <= 12
    assert (rows.groupby("patient").sex.nunique() == 1).all()
    assert rows.groupby("patient").date.is_monotonic_increasing.all()
    assert rows.date.between("2015-01-01", "2021-01-01").all()
    assert (rows.date == rows.date.dt.normalize()).all()
    assert rows.pressure.between(60, 220).all()
    assert rows.equals(model.sample(500, seed=4))
    assert not rows.equals(fit(visits(300), insecure_seed=2).sample(500, seed=4))
    assert any("NOT PRIVATE" in s for s in model.ledger.stamps)


def test_bad_events_are_left_out_silently_and_one_at_a_time():
    frame = visits(300).astype(object)
    bad = frame.copy()
    bad.loc[0, "ward"], bad.loc[1, "date"], bad.loc[2, "pressure"] = "Z", "never", "high"
    good, other = entity_rows(frame.drop(index=[0, 1, 2])), entity_rows(bad)
    assert [len(a) for a in good] == [len(a) for a in other]


def test_times_that_are_numbers_without_attributes_or_other_columns():
    frame = visits(300)
    frame = frame.assign(day=(frame.date - pd.Timestamp("2015-01-01")).dt.days)[["patient", "day"]]
    model = PrivateSequences(max_events=5, max_gap=100, delta=1e-6).fit(
        frame, "patient", "day", columns={"day": integer(0, 2000)}
    )
    rows = model.sample(200)
    assert list(rows.columns) == ["patient", "day"]
    assert rows.groupby("patient").day.diff().max() <= 101


def test_what_is_not_declared_is_refused():
    frame = visits(50)
    model = PrivateSequences(max_events=5)
    with pytest.raises(BadData, match="'ward' of the table: bounds or categories are not declared"):
        model.fit(frame, "patient", "date", columns={**DECLARED, "ward": categorical()})
    with pytest.raises(BadData, match="kind or domain was inferred"):
        model.fit(frame, "patient", "date", columns=Table.infer(frame.drop(columns="patient")))
    with pytest.raises(BadParameter, match="'age' is not declared"):
        model.fit(frame, "patient", "date", columns=DECLARED, attributes=["age"])
    with pytest.raises(BadParameter, match="'ward' is categorical; the time is a date or a number"):
        model.fit(frame, "patient", "ward", columns=DECLARED)
    with pytest.raises(BadParameter, match="'patient' tells whose an event is"):
        model.fit(frame, "patient", "date", columns={**DECLARED, "patient": continuous(0, 1)})
    with pytest.raises(BadParameter, match=r"max_gap.*a time like '365D'"):
        PrivateSequences(max_gap="soon").fit(frame, "patient", "date", columns=DECLARED)
    with pytest.raises(BadParameter, match="not fitted yet"):
        model.sample(3)


def test_domains_estimated_for_rows_are_refused_where_epsilon_is_for_entities():
    """One patient with 2000 visits to a ward nobody else has been to lists it alone, for any ε of rows."""
    frame = with_heavy_patient(visits(300)).assign(ward=lambda f: f.ward.mask(f.patient == "Q", "secret"))
    kinds = {**DECLARED, "ward": categorical()}
    estimated = Domains(epsilon=0.5).estimate(frame, kinds).table
    assert "secret" in {c.name: c for c in estimated.columns}["ward"].values
    with pytest.raises(BadData, match="for one row, and here ε is for a person or an entity"):
        PrivateSequences(**MODEL).fit(frame, "patient", "date", columns=estimated, attributes=["sex"])
    with pytest.raises(BadData, match="domain_epsilon, which reads one row of each person"):
        MST(epsilon=2.0).fit(frame, estimated, person="patient")
    model = MST(epsilon=2.0, domain_epsilon=0.5, steps=20).fit(frame, kinds, person="patient")
    assert "secret" not in {c.name: c for c in model.table.columns}["ward"].values
    assert all("one row of each was used" in s.unit for s in model.ledger.spent)


def test_the_command_line_writes_events_of_new_entities(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    visits(300).to_csv("visits.csv", index=False)
    Path("visits.toml").write_text(
        'sex = {kind = "categorical", values = ["F", "M"]}\n'
        'date = {kind = "datetime", low = "2015-01-01", high = "2021-01-01", days = true}\n'
        'ward = {kind = "categorical", values = ["A", "B", "C"]}\n'
    )
    common = ["synth", "visits.csv", "--model", "privatesequences", "--entity", "patient", "--time", "date"]
    words = [*common, "--columns", "visits.toml", "--attributes", "sex", "--out", "out.csv"]
    assert "needs --rows" in refused(capsys, *words)
    assert "--floor cannot be used" in refused(capsys, *words, "--rows", "5", "--floor", "3")
    Path("tables.toml").write_text("")
    several = ["synth", "tables.toml", *common[2:], "--columns", "visits.toml", "--out", "o.csv"]
    assert "A second level is not supported with ε" in refused(capsys, *several, "--rows", "5")
    assert "needs --columns" in refused(capsys, *common, "--rows", "5", "--out", "out.csv")
    assert "--attributes is for" in refused(
        capsys,
        "synth",
        "visits.csv",
        "--entity",
        "patient",
        "--time",
        "date",
        "--attributes",
        "sex",
        "--out",
        "o.csv",
    )
    code, out, _ = run(
        capsys,
        *words,
        "--rows",
        "200",
        "--set",
        "max_events=6",
        "--set",
        "max_gap=365D",
        "--set",
        "delta=1e-6",
        "--save",
        "visits.tacit",
    )
    assert code == 0
    assert "privacy    ε = 1, δ = 1e-06, entity (all events of one patient, added or removed)" in out
    rows = pd.read_csv("out.csv")
    assert rows.patient.nunique() == 200
    assert list(rows.columns) == ["patient", "sex", "date", "ward"]
    again = ["synth", "--load", "visits.tacit", "--out", "again.csv"]
    assert "needs --out FILE and --rows" in refused(capsys, *again)
    assert "--columns cannot be used" in refused(capsys, *again, "--rows", "200", "--columns", "visits.toml")
    code, out, _ = run(capsys, *again, "--rows", "200")
    assert code == 0
    assert "entity (all events of one patient, added or removed)" in out
    assert Path("again.csv").read_bytes() == Path("out.csv").read_bytes()


def test_a_saved_model_samples_the_same_events_and_its_file_has_no_event(tmp_path):
    frame = with_heavy_patient(visits(300)).assign(ward=lambda f: f.ward.mask(f.patient == "Q", "hidden"))
    model = fit(frame, insecure_seed=0)
    path = model.save(tmp_path / "visits.tacit")
    again = load_private_sequences(path)
    pd.testing.assert_frame_equal(model.sample(50, seed=3), again.sample(50, seed=3))
    assert again.ledger == model.ledger
    assert again == model  # the parameters
    assert b"hidden" not in path.read_bytes()
    with pytest.raises(BadParameter, match="exists"):
        model.save(path)
    with pytest.raises(BadParameter, match="not fitted yet"):
        PrivateSequences().save(tmp_path / "empty.tacit")


def _edit(path: Path, change) -> Path:
    """Rewrite the header of a saved model."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about = json.loads(header["__metadata__"]["tacit"])
    change(about)
    header["__metadata__"]["tacit"] = json.dumps(about)
    text = json.dumps(header).encode()
    out = path.with_suffix(".edited")
    out.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :])
    return out


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(format="tacit.synth/1"),
        lambda a: a.pop("steps"),
        lambda a: a["steps"][0].__setitem__(0, 999),
        lambda a: a["steps"].reverse(),
        lambda a: a["place"].pop(),
        lambda a: a["parameters"].update(max_events="many"),
        lambda a: a["parameters"].update(epsilon=-1),
        lambda a: a["start"].update(sizes=[1]),
        lambda a: a["names"].append("extra"),
        lambda a: a.update(time=None),
        lambda a: a["ledger"].update(spent=[{"epsilon": 1}]),
    ],
)
def test_a_damaged_file_is_refused_with_one_sentence(tmp_path, change):
    path = fit(visits(200), insecure_seed=0, steps=10).save(tmp_path / "visits.tacit")
    with pytest.raises(BadData, match="is not a model of sequences saved by tacit"):
        load_private_sequences(_edit(path, change))


def test_other_files_are_not_private_sequences(tmp_path):
    other = tmp_path / "other.tacit"
    other.write_bytes(b"nothing")
    with pytest.raises(BadData, match="is not a model of sequences saved by tacit"):
        load_private_sequences(other)
    with pytest.raises(BadData, match="cannot be read"):
        load_private_sequences(tmp_path / "missing.tacit")


@pytest.mark.parametrize("entity", [["patient", "ward"], ("patient",), None])
def test_a_second_level_is_refused_with_what_to_do(entity):
    with pytest.raises(
        BadParameter, match=r"A second level .* is not supported.*LinkedTables, which has no ε"
    ):
        PrivateSequences(**MODEL).fit(visits(50), entity, "date", columns=DECLARED)
    with pytest.raises(BadParameter, match="2 tables; it learns one table of events"):
        PrivateSequences(**MODEL).fit({"a": visits(9), "b": visits(9)}, "patient", "date", columns=DECLARED)


def test_events_without_an_entity_are_left_out_silently():
    """A refusal would tell that somebody's event has no id."""
    frame = visits(200)
    nobody = frame.iloc[:5].assign(patient=None)
    both = [fit(f, insecure_seed=0, steps=10) for f in (frame, pd.concat([frame, nobody], ignore_index=True))]
    pd.testing.assert_frame_equal(*(m.sample(20) for m in both))

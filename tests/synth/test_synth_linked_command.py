"""`tacit synth` with several tables and with events, as its users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from lifelines.datasets import load_recur

from tacit.synth import load_linked, split_linked
from tests.cli.shell import answer, refused, run

from .linked_tables import RECUR_KEYS, SHOP_KEYS, find_broken_keys, recurrences, shop

SCHEMA = """
[tables.patients]
file = "patients.csv"
key = "ID"
columns = {TREAT = "categorical"}

[tables.events]
file = "events.parquet"
order = "TIME0"
foreign_keys = [{columns = ["ID"], references = "patients"}]

[[constraints]]
name = "Ordered"
columns = ["events.TIME0", "events.TIME1"]

[[constraints]]
name = "Total"
columns = ["patients.NUMBER", "events"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tables = recurrences()
    number = tables["patients"].ID.map(tables["events"].ID.value_counts())
    tables["patients"].assign(NUMBER=number).to_csv("patients.csv", index=False)
    tables["events"].to_parquet("events.parquet")
    Path("schema.toml").write_text(SCHEMA)
    load_recur().to_csv("flat.csv", index=False)
    return tmp_path


def test_tables_in_tables_out_and_again_from_the_saved_file(folder, capsys):
    found = answer(
        capsys,
        *("synth", "schema.toml", "--out", "new", "--save", "model.tacit", "--rows", "90", "--seed", "4"),
    )
    assert found["rows"]["patients"] == 90
    patients, events = pd.read_csv("new/patients.csv"), pd.read_parquet("new/events.parquet")
    assert find_broken_keys({"patients": patients, "events": events}, RECUR_KEYS) == []
    assert (events.TIME0 <= events.TIME1).all()
    assert (patients.ID.map(events.ID.value_counts()).fillna(0) == patients.NUMBER).all()
    code, out, err = run(
        capsys, "synth", "--load", "model.tacit", "--rows", "90", "--seed", "4", "--out", "again"
    )
    assert code == 0, err
    assert "NOT DIFFERENTIALLY PRIVATE" in out
    assert pd.read_csv("again/patients.csv").equals(patients)
    assert pd.read_csv("again/events.csv").equals(events)


def test_a_report_holds_out_entities(folder, capsys):
    found = answer(capsys, "synth", "schema.toml", "--report", "report.html", "--set", "leaf=30")
    scores = {(s["about"], s["metric"]): s for s in found["scores"]}
    assert scores["events(ID) → patients", "cardinality"]["value"] > 0.9
    assert scores["patients", "exact copies of entities"]["real"] is not None
    assert "inter-event times" in Path("report.html").read_text()


def test_events_in_events_out(folder, capsys):
    words = ("synth", "flat.csv", "--entity", "ID", "--time", "TIME0")
    found = answer(capsys, *words, "--out", "new.csv", "--save", "s.tacit", "--report", "r.html")
    events = pd.read_csv("new.csv")
    assert list(events.columns) == list(load_recur().columns)
    assert found["rows"]["entities"] == events.ID.nunique() == 320  # a fifth is held out
    found = answer(capsys, "synth", "--load", "s.tacit", "--rows", "320", "--out", "again.csv")
    assert pd.read_csv("again.csv").equals(events)
    assert found["model"] == "Sequences"


def test_bad_files_and_options_are_refused_and_change_nothing(folder, capsys):
    def refuse(*words: str) -> str:
        return refused(capsys, "synth", *words)

    Path("bad.toml").write_text(
        '[tables.a]\nfile = "nothing.csv"\nkeys = "id"\n[tables.b]\nkey = "x"\n[[constraints]]\nname = "Sum"\n'
    )
    text = refuse("bad.toml", "--out", "new")
    for part in (
        "there is no file nothing.csv",
        "tables.a.keys is unknown",
        "tables.b.file is missing",
        "'Sum'",
    ):
        assert part in text, part
    assert (
        "no tables" in refuse("empty.toml", "--out", "new") if Path("empty.toml").write_text("") == 0 else 0
    )
    assert "there is no file none.toml" in refuse("none.toml", "--out", "new")
    assert "contains the real tables" in refuse("schema.toml", "--out", ".")
    Path("full").mkdir()
    Path("full/x").write_text("")
    assert "is not empty" in refuse("schema.toml", "--out", "full")
    assert "--person, --target cannot be used" in refuse(
        "schema.toml", "--out", "new", "--person", "ID", "--target", "TREAT"
    )
    assert "both --entity COLUMN and --time" in refuse("flat.csv", "--entity", "ID", "--out", "new.csv")
    assert "the real table itself" in refuse(
        "flat.csv", "--entity", "ID", "--time", "TIME0", "--out", "flat.csv", "--force"
    )
    assert "--model cannot be used" in refuse("schema.toml", "--model", "mst", "--out", "new")
    Path("patients.csv").write_text("ID,AGE,TREAT,NUMBER\n1,2,3,4\n5,6,7,8\n")
    assert "rows are orphans" in refuse("schema.toml", "--out", "new")


def test_a_table_name_of_a_foreign_file_cannot_leave_the_directory(folder, capsys):
    answer(capsys, "synth", "schema.toml", "--save", "model.tacit")
    data = Path("model.tacit").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["tacit"].replace('"events"', '"../evil"'))
    header["__metadata__"]["tacit"] = json.dumps(about)
    header = {k.replace("events/", "../evil/"): v for k, v in header.items()}
    text = json.dumps(header).encode()
    Path("evil.tacit").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert set(load_linked("evil.tacit").schema.tables) == {"patients", "../evil"}  # it loads
    assert "cannot be the name of a file" in refused(
        capsys, "synth", "--load", "evil.tacit", "--rows", "5", "--out", "new"
    )


def test_entities_are_held_out_with_all_their_rows():
    tables = shop(200)
    learned, unseen = split_linked(tables, SHOP_KEYS, 0.25)
    assert len(unseen["customers"]) == 50
    for part in (learned, unseen):
        assert find_broken_keys(part, SHOP_KEYS) == []
        assert len(part["products"]) == 60
    for t in ("customers", "orders", "lines"):
        assert len(learned[t]) + len(unseen[t]) == len(tables[t])

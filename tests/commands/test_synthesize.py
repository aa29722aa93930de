"""tacit synthesize as users type it: all holders here, in processes of their own, and as real parties through
a hub.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tests.cli.shell import Role, provision, said

COLUMNS = """
age = {kind = "integer", low = 0, high = 120}
sex = {kind = "categorical", values = ["F", "M"]}
dose = {kind = "continuous", low = 0, high = 20}
constraints = [{name = "Range", column = "dose", low = 0, high = 14}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("north", 300), ("south", 400)):
        age = rng.integers(18, 91, n)
        pd.DataFrame(
            {"age": age, "sex": rng.choice(["F", "M"], n), "dose": (age / 10 + rng.random(n)).round(2)}
        ).to_csv(f"{name}.csv", index=False)
    (tmp_path / "columns.toml").write_text(COLUMNS)
    return tmp_path


def test_one_table_of_two_files_with_progress_a_generator_and_the_requested_rows(place, capsys):
    code, text = said(
        capsys,
        "synthesize",
        "north.csv",
        "south.csv",
        "--columns",
        "columns.toml",
        "--out",
        "s.csv",
        "--save",
        "g.tacit",
    )
    assert code == 0, text
    assert "round 1/2  2 holders" in text
    assert "NOT DIFFERENTIALLY PRIVATE" in text
    rows = pd.read_csv("s.csv")
    assert len(rows) == 700
    assert rows["dose"].max() <= 14
    assert (
        rows["age"].corr(rows["dose"]) > 0.8
    )  # which neither sex nor chance explains: both holders' rows have .99
    assert synth.load("g.tacit").sample(700, seed=0)["age"].tolist() == rows["age"].tolist()
    code, text = said(
        capsys,
        "synthesize",
        "north.csv",
        "south.csv",
        "--columns",
        "columns.toml",
        "--out",
        "w.parquet",
        "--rows",
        "50",
        "--condition",
        "sex=F",
        "--condition",
        "age=30..60",
        "--json",
    )
    assert code == 0, text
    women = pd.read_parquet("w.parquet")
    assert (women["sex"] == "F").all()
    assert women["age"].between(30, 60).all()
    seen = json.loads(text[text.index("{") :])["ledger"]["seen"]
    assert {s["kind"] for s in seen if s["sender"] == "all holders together"} == {"Counts", "TwoWayCounts"}


def test_a_network_over_processes_is_the_one_of_one_process_and_of_sums_in_the_clear(place, capsys):
    common = [
        "synthesize",
        "north.csv",
        "south.csv",
        "--columns",
        "columns.toml",
        "--model",
        "ctgan",
        "--epochs",
        "2",
        "--set",
        "width=8",
        "--set",
        "noise=4",
        "--quiet",
    ]
    for name, more in (("one", []), ("many", ["--processes"]), ("clear", ["--in-the-clear"])):
        code, text = said(capsys, *common, "--out", f"{name}.csv", *more)
        assert code == 0, text
    assert Path("one.csv").read_bytes() == Path("many.csv").read_bytes() == Path("clear.csv").read_bytes()


@pytest.fixture
def kits(place: Path) -> Path:
    provision("north", "south")
    return place


def test_real_parties_through_a_hub_make_the_table_that_one_process_makes(kits, capsys):
    assert (
        said(
            capsys,
            "synthesize",
            "north.csv",
            "south.csv",
            "--columns",
            "columns.toml",
            "--rows",
            "200",
            "--out",
            "near.csv",
            "--quiet",
        )[0]
        == 0
    )
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    try:
        parties = [
            Role(
                kits, name, "synthesize", f"{name}.csv", "--kit", f"kits/{name}", "--columns", "columns.toml"
            )
            for name in ("north", "south")
        ]
        server = Role(
            kits,
            "server",
            "synthesize",
            "--kit",
            "kits/server",
            "--columns",
            "columns.toml",
            "--rows",
            "200",
            "--out",
            "far.csv",
        )
        roles = [*parties, server]
        assert [role.wait() for role in roles] == [0, 0, 0], [role.log.read_text() for role in roles]
        assert Path("far.csv").read_bytes() == Path("near.csv").read_bytes()
    finally:
        hub.process.terminate()
        hub.wait()


def test_a_holder_with_other_columns_refuses_the_coordinators_job(kits):
    (kits / "other.toml").write_text(COLUMNS.replace("high = 120", "high = 130"))
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    try:
        # the patience of 1 s is not for its start: it counts from when a party that was connected has left
        hub.wait_for("listens on")
        north = Role(
            kits,
            "north",
            "synthesize",
            "north.csv",
            "--kit",
            "kits/north",
            "--columns",
            "other.toml",
            "--patience",
            "1",
        )
        south = Role(
            kits,
            "south",
            "synthesize",
            "south.csv",
            "--kit",
            "kits/south",
            "--columns",
            "columns.toml",
            "--patience",
            "1",
        )
        server = Role(
            kits,
            "server",
            "synthesize",
            "--kit",
            "kits/server",
            "--columns",
            "columns.toml",
            "--save",
            "g.tacit",
            "--patience",
            "1",
        )
        assert north.wait() == 2
        assert (
            "the coordinator's job differs from this holder's: the declared columns" in north.log.read_text()
        )
        assert server.wait() == 2
        assert south.wait() == 2
        assert not (kits / "g.tacit").exists()
    finally:
        hub.process.terminate()
        hub.wait()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["north.csv", "--out", "s.csv"],
            "synthesize: give the files of at least two holders, or --kit to take part with your own.",
        ),
        (["north.csv", "south.csv"], "synthesize: there is no output. Give --out FILE"),
        (
            ["north.csv", "south.csv", "--out", "s.txt"],
            "synthesize: --out s.txt must end in .csv, .csv.gz or .parquet",
        ),
        (
            ["north.csv", "south.csv", "--out", "no/s.csv"],
            "synthesize: --out no/s.csv: the directory does not exist. Create it first.",
        ),
        (
            ["north.csv", "south.csv", "--out", "south.csv"],
            "synthesize: --out is a holder's table, which would be overwritten.",
        ),
        (
            ["north.csv", "south.csv", "--save", "columns.toml"],
            "columns.toml already exists. Choose another name, or pass --force to overwrite it.",
        ),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--rows", "0"],
            "synthesize: --rows is 0; it must be at least 1.",
        ),
        (
            ["north.csv", "./north.csv", "--out", "s.csv"],
            "synthesize: two files are named 'north', and a holder is named after its file.",
        ),
        (["north.csv", "west.csv", "--out", "s.csv"], "there is no file west.csv"),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--model", "cart"],
            "synthesize: 'cart' is not known here. Known: ARGN, CTGAN, GAN, GaussianCopula, WGAN",
        ),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--model", "gan", "--set", "checkpoints=2"],
            "checkpoints is 2; it must be 1",
        ),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--columns", "kinds.toml"],
            "kinds.toml declares 'age' as integer without a domain. Declare the domain",
        ),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--columns", "none.toml"],
            "there is no file none.toml",
        ),
        (
            ["north.csv", "south.csv", "--out", "s.csv", "--columns", "nameless.toml"],
            "nameless.toml: 'name' is missing",
        ),
        (["--kit", "kits/server", "--processes"], "synthesize: --processes simulates all parties here"),
        (
            ["--kit", "kits/server", "north.csv", "--out", "s.csv", "--rows", "9"],
            "'server' is the server, which has no rows. Remove north.csv.",
        ),
        (
            ["--kit", "kits/server", "--out", "s.csv"],
            "the server receives the generator. Give --out FILE with --rows N",
        ),
        (
            ["--kit", "kits/north"],
            "'north' is a holder: give one file, its own, without --out and --save",
        ),
        (["--kit", "kits/none", "north.csv"], "there is no kit at kits/none"),
    ],
)
def test_errors_are_reported_before_any_party_waits(kits, capsys, words, text):
    (kits / "kinds.toml").write_text('age = "integer"\n')
    (kits / "nameless.toml").write_text("constraints = [{low = 3}]\n")
    code, said_ = said(
        capsys, "synthesize", *words, *([] if "--columns" in words else ["--columns", "columns.toml"])
    )
    assert code == 2
    assert text in said_

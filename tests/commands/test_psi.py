"""tacit psi as users type it: between real parties through a hub, and with two files at hand."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.cli.shell import Role, provision, said

A = "patient_id,age\n007,31\nA-1,42\n b-2 ,53\nZ,64\n,75\nz,86\n"
B = "patient_id,cost\nB-2,50\nq,1\n007,60\n7,1\nNA,2\nZ,100\n"  # NA is nobody's id
B_SUM = B.replace("NA,2\n", "")
C = "patient_id,town\nZ,x\nb-2,y\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", A), ("b", B), ("b-sum", B_SUM), ("c", C)):
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


@pytest.fixture
def kits(place: Path) -> Path:
    provision("a", "b", "c")
    return place


def rows(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)


def test_real_parties_through_a_hub_get_the_same_people_in_the_same_order(kits: Path) -> None:
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    try:

        def start(name: str, other: str, *more: str) -> Role:
            file = "b-sum.csv" if more and name == "b" else f"{name}.csv"
            return Role(
                kits,
                name,
                "psi",
                "--kit",
                f"kits/{name}",
                "--file",
                file,
                "--id",
                "patient_id",
                "--with",
                other,
                "--json",
                "--out",
                f"{'sum' if more else 'shared'}-{name}.csv",
                *more,
            )

        both = [start("a", "b"), start("b", "a")]
        assert [role.wait() for role in both] == [0, 0], [role.log.read_text() for role in both]
        a, b = rows(kits / "shared-a.csv"), rows(kits / "shared-b.csv")
        assert a["patient_id"].str.strip().str.lower().tolist() == b["patient_id"].str.lower().tolist()
        assert sorted(a["age"]) == ["31", "53", "64"]
        assert sorted(b["cost"]) == ["100", "50", "60"]
        ledger = json.loads((kits / "shared-a.csv.ledger.json").read_text())
        assert {line["party"] for line in ledger["seen"]} == {"a"}
        said = [line["reveals"] for line in ledger["seen"] if line["kind"] == "Conclusion"]
        assert said == ["that 'b' holds 5 ids, and which of its own ids are shared (3 of 4)"]

        (kits / "kits" / "b" / "policy.toml").write_text("[psi]\nmin_ids = 3\nmin_overlap = 3\n")
        sums = [
            start("a", "b", "--reveal", "sum", "--limit", "1000"),
            start("b", "a", "--reveal", "sum", "--limit", "1000", "--values", "cost"),
        ]
        assert [role.wait() for role in sums] == [0, 0], [role.log.read_text() for role in sums]
        told = [json.loads(text[text.index("{\n") :]) for text in (role.log.read_text() for role in sums)]
        assert (told[0]["sum"], told[0]["shared"]) == (210, 3)
        assert (told[1]["sum"], told[1]["shared"]) == (None, 3)
        assert told[0]["notes"] == [
            "a.csv, column 'patient_id': 1 of 6 ids are missing (empty; row 5); these rows are left out.",
            "a.csv, column 'patient_id': 1 of 6 rows have the id of an earlier row (row 6); the "
            "first row of each id is used.",
        ]

        three = [
            Role(
                kits,
                n,
                "psi",
                "--kit",
                f"kits/{n}",
                "--file",
                f"{n}.csv",
                "--id",
                "patient_id",
                "--out",
                f"all-{n}.csv",
            )
            for n in "abc"
        ]
        assert [role.wait() for role in three] == [0, 0, 0], [role.log.read_text() for role in three]
        found = [[p.strip().lower() for p in rows(kits / f"all-{n}.csv")["patient_id"]] for n in "abc"]
        assert found[0] == found[1] == found[2]
        assert sorted(found[0]) == ["b-2", "z"]
        assert (
            "learned a: how many ids each holds ('b' 5, 'c' 2), and which of its own ids all share (2 of 4)"
            in three[0].log.read_text()
        )
    finally:
        hub.process.terminate()
        hub.wait()


def test_a_party_that_is_killed_and_started_again_matches(kits: Path) -> None:
    """`b` is killed when the matching has begun, with seconds of Diffie-Hellman ahead; `a` begins again with it."""
    count = 12_000
    (kits / "a.csv").write_text("id,x\n" + "".join(f"{k},{k % 7}\n" for k in range(count)))
    (kits / "b.csv").write_text("id,z\n" + "".join(f"{k},{k % 5}\n" for k in range(100, count + 100)))
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    roles: list[Role] = [hub]

    def start(name: str, other: str) -> Role:
        words = ("--kit", f"kits/{name}", "--file", f"{name}.csv", "--id", "id", "--with", other)
        how = ("--method", "dh", "--reveal", "receiver", "--receiver", "a", "--out", f"{name}-out.csv")
        roles.append(Role(kits, f"{name}{len(roles)}", "psi", *words, *how))
        return roles[-1]

    try:
        hub.wait_for("listens on")
        a, b = start("a", "b"), start("b", "a")
        a.wait_for("the matching begins")
        os.kill(b.process.pid, signal.SIGKILL)
        b.wait()
        again = start("b", "a")
        assert [a.wait(), again.wait()] == [0, 0], a.log.read_text() + again.log.read_text()
        assert "'b' was restarted; the matching begins again" in a.log.read_text()
        assert len(rows(kits / "a-out.csv")) == count - 100
        assert len((kits / "kits" / "b" / "psi-queries.jsonl").read_text().splitlines()) in (1, 2)
    finally:
        for role in roles:
            if role.process.poll() is None:
                role.process.kill()
            role.wait()


def test_a_party_that_matches_on_disk_gets_the_same_rows_and_leaves_no_file(kits: Path) -> None:
    """`a` in memory and `b` on disk, both ways of joining; then bad rows, with their lines."""
    (kits / "scratch").mkdir()
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    roles = [hub]

    def start(name: str, other: str, *more: str) -> Role:
        words = ("--kit", f"kits/{name}", "--file", f"{name}.csv", "--id", "patient_id", "--with", other)
        roles.append(Role(kits, f"{name}{len(roles)}", "psi", *words, "--method", "oprf", *more))
        return roles[-1]

    try:
        for join, (receiver, other) in (("inner", "ab"), ("left", "ba"), ("left", "ab")):
            how = ("--join", join, "--receiver", receiver, "--force")
            both = [
                start("a", "b", *how, "--out", "a-out.csv"),
                start("b", "a", *how, "--out", "b-out.csv", "--scratch", "scratch", "--json"),
            ]
            assert [role.wait() for role in both] == [0, 0], [role.log.read_text() for role in both]
            a, b = rows(kits / "a-out.csv"), rows(kits / "b-out.csv")
            ids = [[k.strip().lower() for k in t["patient_id"]] for t in (a, b)]
            assert ids[0][:3] == ids[1][:3]
            assert sorted(ids[0][:3]) == ["007", "b-2", "z"]
            rest = {"inner": [], "ab": ["a-1"], "ba": ["q", "7"]}[
                join if join == "inner" else receiver + other
            ]
            assert ids["ab".index(receiver)][3:] == rest
            assert ids["ab".index(other)][3:] == [""] * len(rest)
            printed = both[1].log.read_text()
            value = json.loads(printed[printed.index("{\n") :])
            assert (value["shared"], value["out"], value["sizes"]) == (3, "b-out.csv", {"a": 4, "b": 5})
            assert value["notes"] == [
                "b.csv, column 'patient_id': 1 of 6 ids are missing ('na'; row 5); these rows are left out."
            ]
            assert not list((kits / "scratch").iterdir())
        (kits / "b.csv").write_text("patient_id,cost\n1,2\n3\n")
        bad = start("b", "a", "--scratch", "scratch")
        assert bad.wait() == 2
        assert "b.csv: row 2 (line 3) has 1 cells" in bad.log.read_text()
        assert not list((kits / "scratch").iterdir())
    finally:
        for role in roles:
            if role.process.poll() is None:
                role.process.kill()
            role.wait()


def test_sums_and_three_parties_are_matched_on_disk_and_leave_no_file(kits: Path) -> None:
    """All parties on disk, and then some; a value that does not fit is refused before anything is sent. A second
    process of a party is refused before the hub takes it for the first one, restarted.
    """
    (kits / "scratch").mkdir()
    (kits / "kits" / "b" / "policy.toml").write_text("[psi]\nmin_ids = 3\nmin_overlap = 3\n")
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    roles = [hub]

    def start(name: str, file: str, *more: str) -> Role:
        words = ("--kit", f"kits/{name}", "--file", file, "--id", "patient_id", "--json")
        roles.append(Role(kits, f"{name}{len(roles)}", "psi", *words, *more))
        return roles[-1]

    def finish(*parties: Role) -> list[dict[str, Any]]:
        assert [role.wait() for role in parties] == [0] * len(parties), [r.log.read_text() for r in parties]
        printed = [role.log.read_text() for role in parties]
        return [json.loads(text[text.index("{\n") :]) for text in printed]

    disk = ("--scratch", "scratch")
    try:
        waiting = start("a", "a.csv", "--with", "b")
        hub.wait_for("'a' is here")
        second = start("a", "a.csv", "--with", "b")
        assert second.wait() == 2
        assert "another process of this party is in the same matching" in second.log.read_text()
        other = start("b", "b.csv", "--with", "a")  # the first one was not disturbed
        assert [told["shared"] for told in finish(waiting, other)] == [3, 3]
        for mine, theirs in ((disk, disk), ((), disk), (disk, ())):
            total = ("--reveal", "sum", "--limit", "1000")
            told = finish(
                start("a", "a.csv", "--with", "b", *total, *mine),
                start("b", "b-sum.csv", "--with", "a", *total, "--values", "cost", *theirs),
            )
            assert [(t["sum"], t["shared"]) for t in told] == [(210, 3), (None, 3)]
        parties = [start(n, f"{n}.csv", "--out", f"all-{n}.csv", *disk) for n in "abc"]
        assert [t["shared"] for t in finish(*parties)] == [2, 2, 2]
        found = [[p.strip().lower() for p in rows(kits / f"all-{n}.csv")["patient_id"]] for n in "abc"]
        assert found[0] == found[1] == found[2]
        assert sorted(found[0]) == ["b-2", "z"]
        bad = start("b", "b-sum.csv", "--with", "a", *total[:2], "--limit", "99", "--values", "cost", *disk)
        assert bad.wait() == 2
        assert (
            "has '100'; values must be from 0 to 99 (--limit, the same at all parties)" in bad.log.read_text()
        )
        assert not list((kits / "scratch").iterdir())
    finally:
        for role in roles:
            if role.process.poll() is None:
                role.process.kill()
            role.wait()


def test_a_prepared_set_answers_several_queries_between_real_parties(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("psi", "--file", "b.csv", "--id", "patient_id", "--prepare", "set")
    code, printed = said(capsys, *ask)
    assert (code, printed) == (
        0,
        "ids     5\ntable   set/table.psi (for who may ask)\nsecret  set/key.json (keep it here)\n",
    )
    code, printed = said(capsys, *ask)
    assert code == 2
    assert "set/key.json exists. A new key would make it useless" in printed
    hub = Role(kits, "hub", "hub", "--kit", "kits/hub")
    roles = [hub]
    try:
        for name, found in (("a", ["31", "53", "64"]), ("c", ["x", "y"])):
            kit, ids = (
                ("--kit", f"kits/{name}", "--with", "b"),
                ("--file", f"{name}.csv", "--id", "patient_id"),
            )
            roles.append(
                Role(kits, f"b-{name}", "psi", "--kit", "kits/b", "--with", name, "--prepared", "set")
            )
            roles.append(
                Role(kits, name, "psi", *kit, *ids, "--table", "set/table.psi", "--out", f"{name}-out.csv")
            )
            assert [role.wait() for role in roles[-2:]] == [0, 0], [r.log.read_text() for r in roles[-2:]]
            assert sorted(rows(kits / f"{name}-out.csv").iloc[:, 1]) == found
        text = roles[-1].log.read_text()
        assert "learned c: that 'b' holds 5 ids, and which of its own ids are shared (2 of 2)" in text
        text = roles[-2].log.read_text()
        assert "learned b: that 'c' holds 2 ids, and nothing about which are shared" in text
        queries = (kits / "kits" / "b" / "psi-queries.jsonl").read_text().splitlines()
        assert [json.loads(line)["receiver"] for line in queries] == ["a", "c"]
    finally:
        for role in roles:
            if role.process.poll() is None:
                role.process.kill()
            role.wait()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--prepare", "x", "--table", "y"], "psi: --prepare and --table are separate commands. Give one."),
        (["--prepare", "x", "--reveal", "both"], "psi: --reveal cannot be used with --prepare"),
        (["--prepare", "x", "--kit", "kits/a"], "psi: --prepare needs --file and --id only"),
        (["--table", "x"], "psi: --table needs --kit and --with, the one other party."),
        (["--prepared", "x", "--kit", "k", "--with", "b"], "psi: --prepared needs no --file, --id or --out"),
    ],
)
def test_options_of_prepared_sets_that_do_not_fit_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    code, printed = said(capsys, "psi", "--file", "a.csv", "--id", "patient_id", *words)
    assert code == 2
    assert text in printed
    code, printed = said(capsys, "psi", "--try", "b.csv")
    assert (code, printed) == (2, "tacit: psi: give --file and --id, your table and its id column.\n")


def test_two_local_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = said(
        capsys, "psi", "--file", "a.csv", "--try", "b.csv", "--id", "patient_id", "--out", "shared.csv"
    )
    assert code == 0
    assert "ids     4 here; sender 5" in printed
    assert "shared  3" in printed
    assert (
        "learned sender: that 'receiver' holds 4 ids, and which of its own ids are shared (3 of 5)" in printed
    )
    assert sorted(rows(place / "shared.csv")["age"]) == ["31", "53", "64"]
    ask = ("psi", "--file", "a.csv", "--try", "b-sum.csv", "--id", "patient_id")
    code, printed = said(capsys, *ask, "--reveal", "sum", "--values", "cost")
    assert (code, printed.split(".")[0]) == (2, "tacit: the policy of 'sender' refused the query (min_ids)")
    (place / "policy.toml").write_text("[psi]\nmin_ids = 3\nmin_overlap = 3\n")
    code, printed = said(
        capsys, *ask, "--reveal", "sum", "--values", "cost", "--policy", "policy.toml", "--json"
    )
    assert json.loads(printed)["sum"] == 210
    code, printed = said(
        capsys, *ask, "--reveal", "size", "--out", "none.csv", "--policy", "policy.toml", "--json"
    )
    assert json.loads(printed)["shared"] == 3
    assert not (place / "none.csv").exists()
    assert (place / "none.csv.ledger.json").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "give either --kit to match with other parties, or --try with the other's file"),
        (["--try", "none.csv"], "there is no file none.csv"),
        (["--try", "b.csv", "--scratch", "."], "psi: --scratch is used with --kit only"),
        (["--try", "b.csv", "--id", "patient"], "a.csv has no column 'patient'. Did you mean 'patient_id'?"),
        (["--try", "b.csv", "--reveal", "sum"], "values is 'None'; it must be given with reveal='sum'"),
        (
            ["--try", "b-sum.csv", "--reveal", "sum", "--values", "patient_id"],
            "row 1 (line 2 of a CSV file) has 'B-2'; the sum is exact, so it must be an integer",
        ),
        (
            ["--try", "b.csv", "--policy", "none.toml"],
            "none.toml cannot be read: No such file or directory. Give a policy file (TOML) with a [psi] "
            "table.",
        ),
        (["--try", "b.csv", "--method", "fast"], "method is 'fast'; it must be one of 'auto', 'dh', 'oprf'"),
        (
            ["--try", "b.csv", "--out", "a.csv", "--force"],
            "a.csv is the input table, which is never overwritten. Choose another name.",
        ),
        (
            ["--try", "b.csv", "--out", "semi.csv"],
            "semi.csv already exists. Choose another name, or pass --force to overwrite it.",
        ),
        (
            ["--try", "b.csv", "--out", "c"],
            "c.ledger.json already exists. Choose another name, or pass --force to overwrite it.",
        ),
        (
            ["--try", "b.csv", "--out", "c.xlsx"],
            "psi: --out c.xlsx must end in .csv, .csv.gz or .parquet",
        ),
        (
            ["--try", "b.csv", "--out", "no/c.csv"],
            "no/c.csv cannot be written: no is not a writable directory.",
        ),
        (["--try", "b.csv", "--out", "/proc/c.csv"], "/proc/c.csv cannot be written: "),
        (["--try", "b.csv", "--out", "n" * 300 + ".csv"], "… is too long for the name of a file."),
        (["--try", "bad.csv"], "bad.csv is not UTF-8 text"),
        (["--try", "old.csv"], "Save it as UTF-8 ("),
        (["--try", "more.csv"], "more.csv has more cells in its rows than names in its first line (2)"),
    ],
)
def test_unmatchable_files_are_refused_in_one_sentence(
    words: list[str], text: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "bad.csv").write_bytes(b"patient_id,x\n1,2\n\xff\xfe,3,4,5\n")
    (place / "old.csv").write_bytes(b"patient_id,gr\xf6\xdfe\n1,2\n")
    (place / "more.csv").write_text("patient_id,x\n1,2,3\n4,5,6\n")
    (place / "semi.csv").write_text("patient_id;x\n1;2\n")
    (place / "c.ledger.json").write_text("{}")
    before = {file: file.read_bytes() for file in place.iterdir()}
    code, printed = said(
        capsys, "psi", "--file", "a.csv", *([] if "--id" in words else ["--id", "patient_id"]), *words
    )
    assert code == 2
    assert text in printed
    assert {file: file.read_bytes() for file in place.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--kit", "kits/none"], "there is no kit at kits/none"),
        (["--kit", "kits/hub"], "this is the hub's kit; ids are matched by"),
        (["--kit", "kits/a", "--with", "bb"], "with is 'bb'; it must be another party of the federation"),
        (["--kit", "kits/a", "--with", "a"], "with is 'a'; it must be another party of the federation"),
        (
            ["--kit", "kits/a", "--with", "b", "--receiver", "c"],
            "receiver is 'c'; it must be one of the participants: 'a', 'b'",
        ),
        (
            ["--kit", "kits/a", "--reveal", "size"],
            "reveal is 'size'; it must be 'both' or 'receiver' with more than two parties",
        ),
        (
            ["--kit", "kits/b", "--with", "a", "--reveal", "sum"],
            "values is None; it must be a column of whole numbers at the sender",
        ),
        (
            ["--kit", "kits/b", "--with", "a", "--out", "b.csv"],
            "b.csv already exists. Choose another name, or pass --force to overwrite it.",
        ),
        (["--kit", "kits/b", "--with", "a", "--scratch", "none"], "psi: --scratch none is not a folder."),
        (["--kit", "kits/b", "--with", "a", "--patience", "0.3"], "nobody listens at"),
    ],
)
def test_unsupported_options_of_a_party_are_refused_in_one_sentence(
    words: list[str], text: str, kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = said(capsys, "psi", "--file", "a.csv", "--id", "patient_id", *words)
    assert code == 2
    assert text in printed

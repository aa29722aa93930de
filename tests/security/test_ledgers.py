"""What a party's own records must say: duplicates that change a model, what was seen in every command, and no
hash of ids for those who hold none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit.errors import BadData, PartyFailed, QueryRefused
from tacit.jobs.ledger_file import append_ledger, read_ledger_file
from tacit.jobs.vertical import predict_deployed, psi_deployed
from tacit.jobs.vertical import split_deployed as deployed
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.ledger import Ledger
from tacit.protocols.splitnn_terms import Agreed
from tacit.runtimes import kits
from tacit.runtimes.inprocess import InProcess
from tests import warm
from tests.cli.shell import TACIT, provision, said
from tests.commands.test_split import JOB as SPLIT

JOB = SPLIT.replace('"customer"', '"id"')


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 200
    whole = pd.DataFrame(
        {"id": [f"c{k:03d}" for k in range(n)], "age": rng.normal(50, 9, n), "basket": rng.normal(0, 1, n)}
    )
    whole["default"] = np.where((whole.age - 50) / 9 + 2 * whole.basket > 0, "yes", "no")
    whole[["id", "age", "default"]].to_csv("bank.csv", index=False)
    whole[["id", "basket"]].iloc[::-1].to_csv("shop.csv", index=False)
    Path("job.toml").write_text(JOB)
    return tmp_path


# duplicates -------------------------------------------------------------------------------------------------


def test_rows_with_the_same_id_and_other_values_are_refused_with_a_count(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: 50 such rows at the top of a file replaced the true ones, and nothing was said."""
    shop = pd.read_csv("shop.csv")
    wrong = shop.head(50).assign(basket=lambda t: -9 * t.basket)
    pd.concat([wrong, shop]).to_csv("shop.csv", index=False)
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 2
    assert (
        "the table of 'shop': 50 of 250 rows have the id of an earlier row and other values (rows 51, 52, "
        "53, 54, 55, …)" in out
    )
    assert 'Keep one row for each id, or set duplicates = "first"' in out
    Path("job.toml").write_text(JOB.replace('file = "shop.csv"', 'file = "shop.csv"\nduplicates = "first"'))
    code, out = said(capsys, "split", "job.toml", "--out", "parts", "--json")
    assert code == 0, out
    notes = json.loads(out)["notes"]
    assert notes == [
        "the table of 'shop': 50 of 250 rows have the id of an earlier row and other values (rows 51, 52, "
        "53, 54, 55, …); "
        'the first row of each id was kept, as duplicates = "first" says.'
    ]
    ask = ("predict", "parts", "--file", "bank=bank.csv", "--file", "shop=shop.csv", "--out", "answer.csv")
    code, out = said(capsys, *ask)
    assert code == 2
    assert "the table of 'shop': 50 of 250 rows have the id of an earlier row and other values" in out
    code, out = said(capsys, *ask, "--duplicates", "first")
    assert code == 0, out
    assert "note    the table of 'shop': 50 of 250 rows have the id of an earlier row and other values" in out
    assert "200 rows, predictions in answer.csv" in out


def test_rows_that_repeat_others_are_kept_once_and_rows_without_an_id_are_noted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = pd.read_csv("shop.csv")
    pd.concat([shop, shop.head(7), shop.head(3).assign(id=["NULL", "", "null"])]).to_csv(
        "shop.csv", index=False
    )
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 0, out
    assert (
        "note    the table of 'shop': 7 of 210 rows repeat an earlier row with the same id (rows 201, 202, "
        "203, 204, 205, …); they were left out." in out
    )
    assert "note    the ids of 'shop': 3 of 203 ids are missing (" in out
    assert "rows    200 shared" in out


def test_the_same_in_a_program(place: Path) -> None:
    import tacit
    from tacit import data

    frame = pd.read_csv("shop.csv")
    pd.concat([frame.head(5).assign(basket=0.0), frame]).to_csv("shop.csv", index=False)
    tables = {
        "bank": data.from_csv("bank.csv", "default", id="id"),
        "shop": data.from_csv("shop.csv", id="id"),
    }
    with pytest.raises(
        BadData, match="the table of 'shop': 5 of 205 rows have the id of an earlier row and other values"
    ):
        tacit.splitnn(tables, epochs=1)
    with pytest.raises(
        BadData, match="the table of 'target': 5 of 205 rows have the id of an earlier row and other values"
    ):
        tacit.ftl(tables["bank"], tables["shop"], epochs=1, first_epochs=1)


# who holds no ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", ["", "middle = [4]"])
def test_a_party_without_ids_cannot_find_out_who_is_asked_about(place: Path, top: str) -> None:
    """The holder of the labels has no columns and no table of the new rows, and a middle party never has one.
    Before: the holder was sent SHA-256 of the list of ids, so that it could try all 200 for a single new row.
    """
    job = JOB.replace(
        "bottom = [8]\n[parties.shop]",
        '[parties.mill]\nfile = "mill.csv"\nid = "id"\nbottom = [6]\n[parties.shop]',
    )
    (place / "job.toml").write_text(job + (f"[parties.server]\n{top}\n" if top else ""))
    pd.read_csv("shop.csv").rename(columns={"basket": "weight"}).to_csv("mill.csv", index=False)
    deployed.run_here("job.toml", "parts")
    for name in ("shop", "mill"):
        table = pd.read_csv(f"{name}.csv")
        table[table["id"] == "c042"].to_csv(f"{name}_new.csv", index=False)
    tap = Tap()
    parties = ["bank", "mill", "shop", *(["server"] if top else [])]
    files = {"shop": "shop_new.csv", "mill": "mill_new.csv"}
    InProcess().run_sync(
        tap.on(
            {
                n: functools.partial(
                    predict_deployed.run_prediction,
                    folder=f"parts/{n}",
                    file=files.get(n, ""),
                    out="answer.csv",
                )
                for n in parties
            }
        )
    )
    guesses = {f"c{k:03d}" for k in range(200)}
    for party in ("bank", *(["server"] if top else [])):
        told = [m.ids for m in map(decode, tap.view(party)) if isinstance(m, Agreed)]
        assert told
        found = {
            g for g in guesses for ids in told if ids == hashlib.sha256(json.dumps([g]).encode()).digest()
        }
        assert not found
    between = [m.ids for m in map(decode, tap.view("shop")) if isinstance(m, Agreed) and m.ids]
    assert between == [
        m.ids for m in map(decode, tap.view("mill")) if isinstance(m, Agreed) and m.ids
    ]  # those who hold the ids still compare them


# one ledger -------------------------------------------------------------------------------------------------


def test_the_leader_of_a_split_network_says_that_it_learned_who_is_shared(place: Path) -> None:
    deployed.run_here("job.toml", "parts")
    for name, learned in (
        ("bank", "how many ids each holds ('shop' 200), and which of its own ids all share (200 of 200)"),
        ("shop", "that 'bank' holds 200 ids, and which of its own ids all share (200 of 200)"),
    ):
        seen = json.loads((place / "parts" / name / "ledger.json").read_text())["seen"]
        assert learned in [
            line["reveals"] for line in seen if line["kind"] == "Conclusion" and line["party"] == name
        ]


def test_every_command_adds_one_line_and_a_crash_in_the_middle_of_one_loses_no_other(tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.jsonl", Ledger()
    ledger.record("a", "b", "Conclusion", "something")
    append_ledger(path, ledger, "psi", "a")
    with path.open("a") as file:
        file.write('{"time": "20')  # killed while it wrote
    append_ledger(path, ledger, "split", "a", "QueryRefused: no")
    entries = read_ledger_file(path)
    assert [(e.verb, e.failed[:14]) for e in entries] == [
        ("psi", ""),
        ("?", "line 2 of " + str(path)[:4]),
        ("split", "QueryRefused: "),
    ]
    assert entries[0].ledger == entries[2].ledger == ledger
    assert path.stat().st_mode & 0o777 == 0o600


def test_real_parties_refuse_by_their_policy_count_on_disk_and_keep_a_ledger(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shop asks for the sum over one customer, padded with made-up ids: refused. Then for a sum over 60,
    which the bank's policy answers; then it has asked twice today, and is refused before the bank says how
    many customers it has.
    """
    provision("bank", "shop")
    pd.DataFrame({"id": [f"c{k:03d}" for k in range(100)], "owes": range(1000, 1100)}).to_csv(
        place / "bank.csv", index=False
    )
    pd.DataFrame({"id": ["c007", *(f"made up {k}" for k in range(30))]}).to_csv(
        place / "one.csv", index=False
    )
    pd.DataFrame({"id": [f"c{k:03d}" for k in range(40, 110)]}).to_csv(place / "many.csv", index=False)
    (place / "kits" / "bank" / "policy.toml").write_text("[psi]\nqueries_per_day = 2\n")
    hub = warm.Popen(
        [*TACIT, "hub", "--kit", "kits/hub"], cwd=place, stdout=warm.DEVNULL, stderr=warm.DEVNULL
    )

    def take_part(name: str, file: str, **more: Any) -> dict[str, Any] | str:
        try:
            return psi_deployed.match_with(
                kits.load(f"kits/{name}"), file, "id", reveal="sum", receiver="shop", **more
            )
        except QueryRefused as refused:
            return str(refused)

    def ask(file: str) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(take_part, "shop", file),
                pool.submit(take_part, "bank", "bank.csv", values="owes"),
            ]
        return [one.result() for one in both]

    try:
        for end in ask("one.csv"):
            assert end.startswith("the policy of 'bank' refused the query (min_overlap).")
        shop, bank = ask("many.csv")
        assert (shop["sum"], shop["shared"], bank["sum"], bank["shared"]) == (
            sum(range(1040, 1100)),
            60,
            None,
            60,
        )
        for end in ask("many.csv"):
            assert end.startswith("the policy of 'bank' refused the query (queries_per_day).")
    finally:
        hub.send_signal(signal.SIGINT)
        hub.wait(timeout=300)
    assert len((place / "kits" / "bank" / "psi-queries.jsonl").read_text().splitlines()) == 2
    assert not (place / "kits" / "shop" / "psi-queries.jsonl").exists()
    for name in ("bank", "shop"):
        entries = read_ledger_file(place / "kits" / name / "ledger.jsonl")
        assert [(e.verb, e.party, e.failed.split(":")[0]) for e in entries] == [
            ("psi", name, "QueryRefused"),
            ("psi", name, ""),
            ("psi", name, "QueryRefused"),
        ]
    assert not any(
        line.kind == "Opening" for line in entries[2].ledger.seen
    )  # the shop was not told the bank's set size a third time
    code, out = said(capsys, "ledger", "--kit", "kits/shop")
    assert code == 0
    assert (
        "shop learned from bank: that 'bank' holds 100 ids, and how many ids are shared (60) and the sum of "
        "the other's values over them, not which" in out
    )
    assert "which failed: QueryRefused: the policy of 'bank' refused the query (queries_per_day)" in out


def test_a_file_with_mistakes_names_its_party_to_the_others_and_nothing_else(place: Path) -> None:
    shop = pd.read_csv("shop.csv")
    pd.concat([shop.head(1).assign(basket=5.0), shop]).to_csv("shop.csv", index=False)
    with pytest.raises(PartyFailed) as failed:
        deployed.run_here("job.toml", "parts")
    assert isinstance(failed.value.error, BadData)
    assert "1 of 201" not in failed.value.error.outside


def test_a_policy_that_does_not_allow_matching_holds_for_split_networks_too(place: Path) -> None:
    (place / "policy.toml").write_text('[psi]\nreveal = ["size", "sum"]\n')
    job = deployed.read("job.toml")
    with pytest.raises(PartyFailed, match=r"the policy of 'shop' refused the query \(reveal\)"):
        InProcess().run_sync(
            {
                "bank": functools.partial(deployed.run_party, job=job, file="bank.csv", out="x"),
                "shop": functools.partial(
                    deployed.run_party, job=job, file="shop.csv", out="y", kit=str(place)
                ),
            }
        )

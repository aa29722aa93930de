"""tacit stats woe over different columns of the same people, as users type it: real parties through a hub."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.boost.test_woe import loans
from tests.cli.shell import Role, provision

JOB = """
[stats]
event = "no"
labels = ["no", "yes"]
bins = 3
epsilon = 3.0
[parties.bank]
file = "bank.csv"
id = "id"
label = "paid"
bounds = { age = [18, 90] }
[parties.shop]
file = "shop.csv"
id = "id"
categories = { job = ["a", "b", "c", "d", "e", "f"] }
[parties.notary]
helper = true
"""
NAMES = ("bank", "shop", "notary")


def test_each_party_gets_its_bins_and_pays_for_them_from_its_own_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = loans(500).assign(id=[f"p{k}" for k in range(500)])
    table[["id", "age", "paid"]].to_csv("bank.csv", index=False)
    table[["id", "job"]].iloc[100:].to_csv("shop.csv", index=False)
    Path("job.toml").write_text(JOB)
    provision(*NAMES)
    Path("kits/shop/policy.toml").write_text("[stats]\nonly_private = true\nepsilon = 4.0\n")
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")

    def run(out: str) -> dict[str, tuple[int | None, str]]:
        roles = {
            n: Role(tmp_path, n, "stats", "woe", "job.toml", "--kit", f"kits/{n}", "--out", f"{n}-{out}")
            for n in NAMES
        }
        codes = {n: role.wait() for n, role in roles.items()}
        return {n: (codes[n], role.log.read_text()) for n, role in roles.items()}

    try:
        found = run("first")
        assert all(code == 0 for code, _ in found.values()), found
        part = json.loads(Path("shop-first/part.json").read_text())
        assert ([c["name"] for c in part["columns"]], part["epsilon"]) == (["job"], 3.0)
        assert list(pd.read_csv("bank-first/woe.csv")) == ["id", "paid", "age"]
        assert len(pd.read_csv("bank-first/woe.csv")) == 400
        assert "age" not in Path("shop-first/ledger.json").read_text()
        found = run("second")  # 3.0 and 3.0 compose to more than 4.0
        assert all(code != 0 for code, _ in found.values()), found
        assert "ε = 4.0 for all private statistics" in found["shop"][1]
        assert not Path("bank-second/part.json").exists()
    finally:
        hub.process.terminate()
        hub.wait()

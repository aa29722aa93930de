"""The federation's page, over real processes: a person approves a job in the browser."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

from tests.cli.shell import Role, answer, provision
from tests.commands.test_party_owner import JOB

from .conftest import served
from .test_ui_browser import CONTRAST


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "kits" / "a" / "policy.toml").write_text(
        "[jobs]\napproval = true\n[privacy]\nepsilon = 8.0\n"
    )
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        age, chol = rng.normal(50, 10, 110), rng.normal(200, 30, 110)
        pd.DataFrame({"age": age, "chol": chol, "sick": np.where(age > 50, "yes", "no")}).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_an_owner_approves_a_job_in_the_browser_and_the_coordinator_sees_who_is_there(
    seen: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    hub.wait_for("listens")
    roles = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in ("a", "b")]
    server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "runs/r")
    kits = place / "kits"
    try:
        with (
            served(place / "runs", kit=kits / "a", control=True) as owner,
            served(place / "runs", kit=kits / "server") as coordinator,
        ):
            page, watched = seen(owner + "federation"), seen(coordinator + "federation")
            assert watched.locator("form").count() == 0  # read-only
            page.wait_for_selector("#requests form")
            assert "3 rounds" in page.inner_text("#requests")
            cut = (
                "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.closest('section').id)"
            )
            assert page.eval_on_selector_all(".scroll", cut) == []  # both buttons can be seen
            assert "ε = 8" in page.inner_text("#account")
            assert "approval = true" in page.inner_text("#policy")
            watched.wait_for_selector("#connections tr:has-text('a') .connected")
            page.set_viewport_size({"width": 375, "height": 700})
            box = page.locator("#requests button:has-text('Deny')").bounding_box()
            assert 0 <= box["x"] < box["x"] + box["width"] <= 375  # on a phone, too
            page.fill("#requests input[name=by]", "Ada")
            page.fill("#requests input[name=note]", "board of 12 May")
            page.once("dialog", lambda dialog: dialog.accept())
            page.click("#requests button:has-text('Approve')")
            page.wait_for_selector("#log td:has-text('approved')")
            assert server.wait() == 0, server.log.read_text()
            assert [role.wait() for role in roles] == [0, 0]
            page.wait_for_selector("#requests .badge-state:has-text('ended')")
            watched.wait_for_selector("#connections .left >> nth=1")
            watched.wait_for_selector("#connections td:has-text('3 of 3')")
            (job,) = {r["job"] for r in answer(capsys, "party", "requests", "--kit", "kits/a")["requests"]}
            assert (
                watched.locator(f"#connections code:text-is('{job[:12]}')").count() == 2
            )  # both agreed to it
            assert "A round has no deadline" in watched.inner_text("#connections")
            for scheme in ("light", "dark"):
                for tab in (page, watched):
                    tab.emulate_media(color_scheme=scheme)
                    assert tab.evaluate(CONTRAST) == []
            for context in {page.context, watched.context}:
                context.close()
    finally:
        for role in (hub, server, *roles):
            role.process.kill()
            role.process.wait(300)
    log = answer(capsys, "party", "log", "--kit", "kits/a")["entries"]
    (approved,) = [e for e in log if e["kind"] == "approved"]
    assert (approved["by"], approved["note"]) == ("Ada", "board of 12 May")
    assert json.loads((place / "runs" / "r" / "events.jsonl").read_text().splitlines()[-1])["kind"] == "end"


@pytest.mark.slow  # two processes that import torch, on a page that the fast tests cover
def test_a_job_is_started_paused_and_resumed_from_the_page(
    seen: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "job.toml").write_text(
        '[data]\nname = "gaussian_blobs"\nrows = 200\nparties = 3\n[model]\nname = "logistic"\n'
        "[train]\nrounds = 20000\nevaluate_every = 100\n"
    )
    (tmp_path / "other.toml").write_text("[tool]\nx = 1\n")
    with served(tmp_path / "runs", control=True) as address:
        page = seen(address + "jobs")
        assert page.locator("#start tbody tr").count() == 1
        page.on("dialog", lambda dialog: dialog.accept())
        page.click("#start button:has-text('Start')")
        page.wait_for_selector("#started .running")
        other = page.context.new_page()
        other.goto(address)
        other.wait_for_selector("#rows tr .value:not(:empty)")  # it has rounds
        other.close()
        page.bring_to_front()
        page.click("#started button:has-text('Pause')")
        page.wait_for_selector("#started .stopped")
        assert "Resume with" in (tmp_path / "runs" / "ui-logs" / "job.log").read_text()
        page.click("#started button:has-text('Resume')")
        page.wait_for_selector("#started .running")
        page.click("#started button:has-text('Pause')")
        page.wait_for_selector("#started .stopped")
        page.context.close()


def test_a_federation_of_a_thousand_parties_fits_the_screen(seen: Any, place: Path) -> None:
    """The hub is not there: nobody's connection is known, and the page says why."""
    file = place / "kits" / "server" / "party.toml"
    table = tomllib.loads(file.read_text())
    table["parties"] = ["server", *(f"p{k:04d}" for k in range(1000))]
    file.write_text(tomli_w.dumps(table))
    with served(place / "runs", kit=place / "kits" / "server") as address:
        page = seen(address + "federation")
        page.wait_for_selector("text=does not answer")
        assert page.locator("#connections tbody tr").count() == 1001
        assert page.locator("#connections .tall").bounding_box()["height"] < 600
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.context.close()

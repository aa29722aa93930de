"""The pictures of the pages in docs/images, of real runs and of a real federation.

`python -m tests.docs.pictures` writes all of them. It needs Chromium, and takes about a minute.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

import tacit
from tacit import algorithms, cli, data, guard
from tests.browsing import BROWSERS, QUIET
from tests.cli.shell import Role
from tests.ports import free_port
from tests.ui.conftest import served

from .pages import ROOT

IMAGES = ROOT / "docs" / "images"
CLIENTS = ("north", "south", "west")
JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
fit = "party"
[model]
name = "logistic"
[train]
rounds = 5
batch_size = 32
intended_use = "Find patients who need a second blood test; not for people under 18."
[[guard]]
name = "Clip"
norm = 1.0
[[guard]]
name = "Noise"
epsilon = 4.0
delta = 1e-3
placement = "distributed"
[[guard]]
name = "Quantize"
bits = 16
[[guard]]
name = "SecAgg"
"""
POLICY = """[jobs]
coordinators = ["server"]
min_parties = 3
columns = ["age", "chol", "sick"]
guards = ["SecAgg"]
approval = true

[privacy]
epsilon = 8.0
"""


def save(page: Any, name: str, height: int) -> None:
    """Write a picture in 64 colors, which is a fifth of the size."""
    page.wait_for_timeout(500)  # for the fonts and the bars
    taken = page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": height}, full_page=True)
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(64).save(IMAGES / f"{name}.png", optimize=True)


def write_runs(wait: Any) -> None:
    """Finished runs, and one that trains until it is told to end."""
    digits = data.digits().split(6, skew=data.Dirichlet(0.3), seed=0)
    rules = {"fedavg": algorithms.FedAvg(lr=0.3), "scaffold": algorithms.Scaffold(lr=0.2)}
    for name, rule in {**rules, "fedprox": algorithms.FedProx(lr=0.3, mu=0.1)}.items():
        tacit.train(digits, model="mlp", algorithm=rule, rounds=12, out=f"runs/digits-{name}")
    stages = [guard.Clip(1.0), guard.Noise(epsilon=4.0, delta=1e-3), guard.Quantize(bits=16), guard.SecAgg()]
    many = data.digits().split(20, seed=0)
    tacit.train(many, model="logistic", rounds=8, guard=stages, out="runs/digits-private")
    Path("runs/digits-fedavg/tags.json").write_text('["baseline"]')
    tacit.train(digits, model="mlp", rounds=40, callbacks=[wait], out="runs/digits-live")


def show_runs(open_page: Any) -> None:
    reached, end = threading.Event(), threading.Event()

    def wait(record: Any, model: Any) -> None:
        if record["round"] == 17:
            reached.set()
            end.wait()

    thread = threading.Thread(target=write_runs, args=(wait,))
    thread.start()
    reached.wait()
    with served(Path("runs")) as address:
        page = open_page()
        page.goto(address)
        save(page, "ui-runs", 620)
        page.goto(address + "run/digits-live")
        save(page, "ui-run", 900)
        runs = "&".join(f"run=digits-{n}" for n in ("fedavg", "scaffold", "fedprox"))
        page.goto(f"{address}compare?{runs}")
        save(page, "ui-compare", 1000)
    end.set()
    thread.join()


def show_federation(open_page: Any, place: Path) -> None:
    hub_at = f"127.0.0.1:{free_port()}"
    Path("federation.toml").write_text(
        f'name = "clinics"\nhub = "{hub_at}"\nclients = {json.dumps(CLIENTS)}\n'
    )
    assert cli.main(["provision", "federation.toml", "-o", "kits"]) == 0
    Path("job.toml").write_text(JOB)
    Path("kits/north/policy.toml").write_text(POLICY)
    rng = np.random.default_rng(0)
    for name in CLIENTS:
        age, chol = rng.normal(50, 10, 300).round(), rng.normal(200, 30, 300).round(1)
        sick = np.where(age + chol / 10 + rng.normal(0, 8, 300) > 70, "yes", "no")
        pd.DataFrame({"age": age, "chol": chol, "sick": sick}).to_csv(f"{name}.csv", index=False)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    hub.wait_for("listens")
    roles = [Role(place, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv") for c in CLIENTS]
    server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "federated/heart")
    try:
        with served(Path("federated"), kit=Path("kits/north"), control=True) as address:
            page = open_page()
            page.goto(address + "federation")
            page.wait_for_selector("#requests form", timeout=90_000)
            page.wait_for_selector("#connections .connected >> nth=3", timeout=90_000)
            save(page, "ui-federation", 1000)
            page.fill("#requests input[name=by]", "Ada")
            page.fill("#requests input[name=note]", "board of 12 May")
            page.once("dialog", lambda dialog: dialog.accept())
            page.click("#requests button:has-text('Approve')")
            assert server.wait() == 0, server.log.read_text()
    finally:
        for role in (hub, server, *roles):
            role.process.kill()
            role.process.wait(300)
    assert cli.main(["dpo", "federated/heart", "--kit", "kits/north"]) == 0
    page = open_page()
    page.goto(Path("federated/heart/dpo.html").absolute().as_uri())
    save(page, "dpo", 1000)


def main() -> None:
    import shutil

    from playwright.sync_api import sync_playwright

    path = os.environ.get("TACIT_BROWSER") or next(p for name in BROWSERS if (p := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.chdir(folder)
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        show_runs(lambda: browser.new_page(viewport={"width": 1280, "height": 900}))
        show_federation(lambda: browser.new_page(viewport={"width": 1280, "height": 900}), Path(folder))
        browser.close()
        os.chdir(ROOT)


if __name__ == "__main__":
    main()

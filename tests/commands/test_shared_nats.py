"""Several federations over one NATS server, from the command line: two with the same names, and a hierarchy."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms, cli, data
from tacit.data.federation import Holdings
from tacit.jobs.train.party_rows import read_party_table
from tests import clinics
from tests.cli.shell import Role
from tests.ports import free_port
from tests.runtimes.test_nats import find_server

from .test_tree import EDGES, JOB, LAYOUT, PERIOD, ROUNDS, SIZES, simulated, vector


class Server:
    def __init__(self, place: Path):
        self.place, self.port = place, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        assert cli.main(["nats", "--host", "127.0.0.1"]) == 0

    def provision(self, folder: str, federation: str, clients: tuple[str, ...], above: str = "") -> None:
        Path(f"{folder}.toml").write_text(
            f'name = "{federation}"\nhub = "nats://127.0.0.1:{self.port}"\nclients = {json.dumps(clients)}\n'
            'shared = "nats/authority/authority.crt"\n' + (f'above = "{above}"\n' if above else "")
        )
        assert cli.main(["provision", f"{folder}.toml", "-o", folder]) == 0

    def start(self, *folders: str) -> None:
        files = [f"{folder}/members.json" for folder in folders]
        assert cli.main(["nats", *files, "--listen", f"127.0.0.1:{self.port}"]) == 0
        self.process = subprocess.Popen(
            [find_server(), "-c", "nats.conf"],
            cwd=self.place / "nats" / "server",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    clinics.write_files(tmp_path, SIZES)
    server = Server(tmp_path)
    yield server
    if server.process is not None:
        server.process.kill()
        server.process.wait()


def finish(roles: dict[str, Role]) -> None:
    try:
        for role in roles.values():
            assert role.wait() == 0, role.log.read_text()
    finally:
        for role in roles.values():
            role.process.kill()


def trained_together(place: Path, files: tuple[str, str]) -> torch.Tensor:
    """The model of a simulated federation whose parties "a" and "b" have these tables."""
    layout = tomllib.loads(LAYOUT)
    tables = [read_party_table(k, place / f"{f}.csv", layout, 0).encode() for k, f in zip("ab", files)]
    rows = [t.rows.take(t.train.index) for t in tables]
    x, y = torch.cat([r.x for r in rows]).numpy(), torch.cat([r.y for r in rows]).numpy()
    parties = np.repeat(["a", "b"], [len(r.y) for r in rows])
    fed = data.from_arrays(x, y, test=(x, y), groups={"clinic": parties}).by("clinic", held_fraction=0.0)
    blocks = torch.arange(len(y)).split([len(r.y) for r in rows])
    fed = replace(fed, train=Holdings.from_lists(list(blocks)))
    step = algorithms.FedAvg(lr=0.5)
    model = tacit.train(fed, model="logistic", algorithm=step, rounds=ROUNDS, l2=0.0).model
    return torch.cat([p.detach().ravel() for p in model.parameters()])


def test_two_federations_with_the_same_names_train_at_the_same_time_over_one_server(server: Server) -> None:
    files = {"one": ("a", "b"), "two": ("c", "d")}
    for folder in files:
        server.provision(folder, "clinics", ("a", "b"))
    server.start(*files)
    roles: dict[str, Role] = {}
    for folder, tables in files.items():
        words = ("party", "--kit", f"{folder}/server", "job.toml", "--quiet", "--out", f"run-{folder}")
        roles[f"{folder}-server"] = Role(server.place, f"{folder}-server", *words)
        for party, table in zip("ab", tables):
            words = ("party", "--kit", f"{folder}/{party}", "--data", f"{table}.csv", "job.toml", "--quiet")
            roles[f"{folder}-{party}"] = Role(server.place, f"{folder}-{party}", *words)
    finish(roles)
    for folder, tables in files.items():
        expected = trained_together(server.place, tables)
        torch.testing.assert_close(vector(f"run-{folder}"), expected, atol=1e-5, rtol=0)


def test_a_hierarchy_of_two_edges_over_one_server_has_the_model_of_the_simulated_one(server: Server) -> None:
    """The edges' federations have the same name, and servers of the same name."""
    server.provision("top", "above", tuple(EDGES))
    for edge, clients in EDGES.items():
        server.provision(edge, "clinics", clients, "above")
    server.start("top", *EDGES)
    of_tree = ("--period", str(PERIOD), "--quiet")
    root = ("party", "--kit", "top/server", "job.toml", "--edges", "--max-weight", "1000", *of_tree)
    roles = {"root": Role(server.place, "root", *root, "--out", "root")}
    for edge, clients in EDGES.items():
        words = ("party", "--kit", f"{edge}/server", "job.toml", "--under", f"top/{edge}", *of_tree)
        roles[edge] = Role(server.place, edge, *words, "--out", f"run-{edge}")
        for c in clients:
            words = ("party", "--kit", f"{edge}/{c}", "--data", f"{c}.csv", "job.toml", "--quiet")
            roles[c] = Role(server.place, c, *words)
    finish(roles)
    expected = torch.cat([p.detach().ravel() for p in simulated(server.place).parameters()])
    torch.testing.assert_close(vector("root"), expected, atol=1e-5, rtol=0)

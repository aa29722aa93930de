"""Studies and comparisons on Ray: a real local cluster, real workers, and what happens when one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit import algorithms, cli, data
from tacit.errors import BadParameter, BadRun, MissingExtra
from tacit.jobs import compare_on_cluster
from tacit.jobs.ray_cluster import ClusterWorker, RayCluster
from tacit.jobs.study import on_cluster, run
from tacit.jobs.study.file import load
from tacit.jobs.study.store import Store

from .ray_work import end_itself, fail, refuse, tell_gpus, wait_to_be_killed
from .studies import cells, small

FED = data.gaussian_blobs().split(3, skew=data.Dirichlet(0.5), seed=0, held_fraction=0.2)
OPTIONS: dict[str, Any] = {
    "algorithms": [algorithms.FedAvg(lr=0.3), algorithms.Scaffold(lr=0.1)],
    "model": "logistic",
    "rounds": 2,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine for all tests, with a GPU that it only believes to have."""
    import ray

    local = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    # workers import this package; which entries of sys.path Ray hands on depends on who started this process
    env = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}}
    with pytest.MonkeyPatch.context() as patch:
        # workers are not killed because other programs of this machine fill its memory
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        ray.init(address="local", num_cpus=2, num_gpus=1, runtime_env=env, **local)
        yield
        ray.shutdown()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kill the process of the first worker before it begins; return where it was."""
    found: list[str] = []
    check = RayCluster._check

    def kill_first(self: RayCluster, answer: tuple[str, int, str]) -> str:
        where = check(self, answer)
        if not found:
            found.append(where)
            os.kill(answer[1], signal.SIGKILL)
        return where

    monkeypatch.setattr(RayCluster, "_check", kill_first)
    return found


# pieces of work ---------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_while_it_works_is_replaced(cluster: None, tmp_path: Path) -> None:
    """Each of two pieces has the worker killed that first begins it, in the middle of its work."""
    seen: dict[int, list[int]] = {0: [], 1: []}

    def receive(piece: int, process: int) -> None:
        seen[piece].append(process)
        if len(seen[piece]) == 1:
            os.kill(process, signal.SIGKILL)

    said: list[str] = []
    with RayCluster("ray", gpus=0) as c:
        assert c.slots == 2
        c.run([0, 1], lambda piece: (wait_to_be_killed, str(tmp_path), piece), receive, said.append)
    assert [len(set(processes)) for processes in seen.values()] == [2, 2]
    assert len(said) == 2
    assert all(text.startswith("a worker (process ") for text in said), said


def test_work_that_kills_every_worker_ends_with_the_reason(cluster: None) -> None:
    said: list[str] = []
    with RayCluster("ray") as c, pytest.raises(BadRun, match=r"ended 3 times .*give each worker more cores"):
        c.run([0], lambda _: (end_itself,), lambda *_: None, said.append)
    assert len(said) == 2


@pytest.mark.parametrize(
    ("work", "text"), [(refuse, "this piece is refused."), (fail, "ZeroDivisionError: one by nothing")]
)
def test_what_a_worker_refuses_is_said_here(cluster: None, work: Any, text: str) -> None:
    with RayCluster("ray") as c, pytest.raises(BadRun, match=text):
        c.run([0], lambda _: (work,), lambda *_: None, lambda _: None)


def test_workers_share_a_gpu_by_fractions_and_others_see_none(cluster: None) -> None:
    found: list[str] = []
    with RayCluster("ray", cpus=0.5, gpus=0.25) as c:
        assert c.slots == 4
        c.run([0], lambda _: (tell_gpus,), lambda _, gpus: found.append(gpus), lambda _: None)
    with RayCluster("ray", cpus=0.5, gpus=0) as c:
        assert c.slots == 4
        c.run([0], lambda _: (tell_gpus,), lambda _, gpus: found.append(gpus), lambda _: None)
    with RayCluster("ray", gpus=None, workers=3) as c:
        assert (c.gpus, c.slots) == (1.0, 1)
    assert found == ["0", ""]


def test_what_no_machine_has_is_refused(cluster: None) -> None:
    with (
        pytest.raises(BadRun, match="no machine of the cluster ray has 64 CPUs and 2 GPUs"),
        RayCluster("ray", cpus=64, gpus=2),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on": "slurm"}, "'ray' .the cluster of this machine"),
        ({"on": "ray://"}, "ray://HOST:10001"),
        ({"on": "ray", "cpus": 0}, "more than 0 cores"),
        ({"on": "ray", "gpus": 1.5}, "a fraction of a GPU such as 0.25"),
        ({"on": "ray", "gpus": -1}, "a fraction of a GPU such as 0.25"),
        ({"on": "ray", "workers": 0}, "at least 1"),
    ],
)
def test_what_is_no_cluster_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameter, match=text):
        RayCluster(**options)


def test_without_ray_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"tacit\[ray\]"), RayCluster("ray"):
        pass


def test_a_machine_with_another_version_is_refused() -> None:
    assert ClusterWorker("0.1", uses_gpu=True).where()[2] == tacit.__version__
    with pytest.raises(BadRun, match=r"host-b has tacit 0\.1, and this machine"):
        RayCluster("ray")._check(("host-b", 7, "0.1"))


@pytest.mark.slow
def test_a_process_without_the_token_cannot_join_a_local_cluster(cluster: None, tmp_path: Path) -> None:
    """Another user of the network, with a wrong token and with none. Ray tries for 20 s."""
    import ray

    address = ray.get_runtime_context().gcs_address
    program = f"import ray; ray.init(address={address!r}); print('connected')"
    for mode in ("token", "disabled"):
        env = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 32}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        assert done.returncode != 0
        assert "connected" not in done.stdout
        assert "InvalidAuthToken" in done.stderr


def test_a_local_cluster_asks_for_a_token(cluster: None) -> None:
    """The fast twin of the test above."""
    with RayCluster("ray"):
        assert os.environ["RAY_AUTH_MODE"] == "token"


# a study ----------------------------------------------------------------------------------------------------


def test_a_study_on_ray_has_the_cells_of_one_process_and_none_twice(
    cluster: None, tmp_path: Path, killed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One of its workers is killed; what was done before it came to Ray is not computed again."""
    s, out = load(small(tmp_path)), str(tmp_path / "out")
    whole = cells(run.study(s, tmp_path / "whole"))
    first = cells(run.study(s, out, only="IID"))
    assert 0 < len(first) < len(whole)
    file = str(tmp_path / "small.toml")
    assert cli.main(["study", file, "--on", "ray", "--gpus", "0", "--out", out]) == 0
    said = capsys.readouterr().err
    assert f"a worker ({killed[0]}) ended; what it ran begins again where it was saved" in said
    lines = [x for x in Store(tmp_path / "out", s).lines() if x["kind"] == "cell"]
    assert len(lines) == len({x["id"] for x in lines}) == len(whole)
    for line in lines:
        assert line["test"] == pytest.approx(whole[line["id"]]["test"], abs=1e-6)
    assert not list((tmp_path / "out" / "state").iterdir())
    assert (tmp_path / "out" / "report.html").exists()


def test_what_a_worker_saved_is_resumed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own program, which ends after its second saved state."""
    s = load(small(tmp_path, rounds=6))
    whole = cells(run.study(s, tmp_path / "whole"))
    monkeypatch.setattr(run, "SAVE_EVERY", 0.0)
    store = Store(tmp_path / "out", s)
    store.begin()
    piece = tuple(c.id for c in s.cells if "FedAvg" in c.id)
    request = {
        "file": Path(s.loaded_with["name"]).read_bytes(),
        "arguments": s.loaded_with,
        "digest": s.digest,
    }
    request |= {"cells": list(piece), "lines": [], "states": {}}
    saved: list[str] = []

    class EndedError(Exception):
        pass

    def end(value: tuple[Any, ...]) -> None:
        on_cluster._receive(store, piece, value, lambda _: None)
        if value[0] == "state":
            saved.append(value[1])
            if len(saved) == 2:
                raise EndedError

    with pytest.raises(EndedError):
        on_cluster.compute(request, end)
    states = {p.name: p.read_bytes() for p, _ in store.saved()}
    assert list(states) == saved[:1] == saved[1:]
    said: list[str] = []
    on_cluster.compute(
        {**request, "states": states}, lambda value: on_cluster._receive(store, piece, value, said.append)
    )
    assert any(text.endswith("from round 2") for text in said), said
    assert {k: v["test"] for k, v in cells(store).items()} == {k: whole[k]["test"] for k in piece}


def test_results_that_were_not_asked_for_are_refused(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    store = Store(tmp_path / "out", s)
    store.begin()
    other = {"kind": "cell", "id": s.cells[1].id}
    with pytest.raises(BadRun, match="which it was not asked for"):
        on_cluster._receive(store, (s.cells[0].id,), ("line", other), lambda _: None)
    with pytest.raises(BadRun, match="not that of a state"):
        on_cluster._receive(store, (s.cells[0].id,), ("state", "../../x.safetensors", b""), lambda _: None)
    assert not store.lines()


def test_a_study_that_differs_on_the_cluster_is_refused(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    file = Path(s.loaded_with["name"]).read_bytes().replace(b"rounds = 4", b"rounds = 5")
    with pytest.raises(BadRun, match="is another study here"):
        on_cluster.compute({"file": file, "arguments": s.loaded_with, "digest": s.digest}, lambda _: None)


def test_cores_and_gpus_without_a_cluster_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="left out without on"):
        tacit.study(small(tmp_path), gpus=0.5)
    with pytest.raises(BadParameter, match="left out without on"):
        tacit.compare(FED, cpus=2, **OPTIONS)


# a comparison -----------------------------------------------------------------------------------------------


def test_a_comparison_on_ray_is_that_of_one_process(cluster: None, tmp_path: Path, killed: list[str]) -> None:
    """To the bit, although a worker is killed; resumed, on Ray and without, it computes nothing."""
    tacit.compare(FED, **OPTIONS, seeds=2, out=tmp_path / "here")
    here = json.loads((tmp_path / "here" / "compare.json").read_text())
    events: list[dict[str, Any]] = []
    found = tacit.compare(FED, **OPTIONS, seeds=2, out=tmp_path / "there", on="ray", watch=events.append)
    assert json.loads((tmp_path / "there" / "compare.json").read_text()) == here
    assert any(e["kind"] == "note" and killed[0] in e["text"] for e in events)
    assert sum(e["kind"] == "start" for e in events) == len(found.results) + 2 * len(FED)  # one for each run
    for options in ({"on": "ray"}, {}):
        again: list[dict[str, Any]] = []
        tacit.compare(
            FED, **OPTIONS, seeds=2, out=tmp_path / "there", resume=True, watch=again.append, **options
        )
        assert not [e for e in again if e["kind"] in ("start", "round")]
        assert json.loads((tmp_path / "there" / "compare.json").read_text()) == here


def test_a_comparison_in_memory_is_left_in_no_directory(cluster: None) -> None:
    found = tacit.compare(FED, **OPTIONS, on="ray")
    assert found.directory is None
    assert [r.directory for r in found.results] == [None] * len(found.results)
    here = tacit.compare(FED, **OPTIONS)
    for a, b in zip(found.results, here.results):
        assert a.metrics == b.metrics
        assert all((v == w).all() for v, w in zip(a.model.parameters(), b.model.parameters()))


def test_files_that_belong_to_no_run_of_the_cell_are_refused(tmp_path: Path) -> None:
    for name in ("../outside", "run/../../outside", "other/model.safetensors", "run"):
        with pytest.raises(BadRun, match="belongs to no run of its cell"):
            compare_on_cluster._keep(tmp_path / "c", 0, {"run"}, {name: b"x", "state": b""})
    assert not (tmp_path / "outside").exists()
    assert not compare_on_cluster.has_cells(tmp_path / "c")

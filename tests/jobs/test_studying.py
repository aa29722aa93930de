"""Studies, run: cells become stacks, a stack comes out as its runs alone, and a kill costs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import algorithms, data
from tacit.errors import BadJob, BadParameter, BadRun
from tacit.jobs.study import run, table, workers
from tacit.jobs.study.file import load
from tacit.jobs.study.run import study
from tacit.jobs.study.shards import Shard
from tests import warm

from .studies import cells, small

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data")


def test_a_stacked_cell_is_the_run_that_train_makes(tmp_path: Path) -> None:
    """Every cell of the stack against `tacit.train` alone: FedAvg, which runs as FedProx with μ = 0, FedProx,
    and SCAFFOLD.
    """
    store = study(load(small(tmp_path)), tmp_path / "out")
    got = cells(store)
    for column, skew in (("IID", data.IID()), ("Dir", data.Dirichlet(0.5))):
        for row, algorithm, choice in (
            ("FedAvg", algorithms.FedAvg(lr=0.3), ""),
            ("FedProx 1", algorithms.FedProx(lr=0.3, mu=1.0), ""),
            ("SCAFFOLD", algorithms.Scaffold(lr=0.01), " | lr 0.01"),
        ):
            for seed in (0, 1):
                fed = data.gaussian_blobs(seed=seed).split(4, skew=skew, seed=seed, held_fraction=0.2)
                alone = tacit.train(fed, model="logistic", algorithm=algorithm, rounds=4, seed=seed)
                mine = got[f"t | {row} | {column} | seed {seed}{choice}"]
                assert mine["test"] == pytest.approx([e["accuracy"] for e in alone.history], abs=1e-6), (
                    row,
                    column,
                    seed,
                )
                held = [np.average(e["parties"]["accuracy"], weights=fed.held.sizes) for e in alone.history]
                assert mine["held"] == pytest.approx(held, abs=1e-6)
                assert mine["samples"] == 4 * int(fed.train.sizes.sum())


def test_labels_that_drift_are_tested_as_they_are_in_the_round(tmp_path: Path) -> None:
    """Each seed drifts in its own way, on test rows that all share; they were tested by what they were called
    at the beginning.
    """
    file = Path(small(tmp_path))
    file.write_text(
        file.read_text().replace(
            '{ name = "Dirichlet", alpha = 0.5 }', '{ name = "ConceptDrift", every = 2, labels = 3 }'
        )
    )
    got = cells(study(load(str(file)), tmp_path / "out", only="FedAvg . Dir"))
    for seed in (0, 1):
        fed = data.gaussian_blobs(seed=seed).split(
            4, skew=data.ConceptDrift(every=2, labels=3), seed=seed, held_fraction=0.2
        )
        alone = tacit.train(fed, model="logistic", algorithm=algorithms.FedAvg(lr=0.3), rounds=4, seed=seed)
        assert got[f"t | FedAvg | Dir | seed {seed}"]["test"] == pytest.approx(
            [e["accuracy"] for e in alone.history], abs=1e-6
        )


def test_a_party_alone_selects_its_round_on_its_own_rows_and_samples_are_counted_by_hand(
    tmp_path: Path,
) -> None:
    """The others' held-out rows picked it, too. Three steps on at most 16 rows a party, or on all of them,
    three rounds long.
    """
    file = Path(small(tmp_path, rounds=3))
    text = (
        file.read_text()
        .replace('baseline = "central"', 'baseline = "alone 2"')
        .replace("lr = 0.3", "lr = 0.003")
    )  # too little to be right everywhere
    file.write_text(text.replace("seeds = 2", "seeds = 1\nlocal_steps = 3\nbatch_size = 16"))
    for batch, rows in (("16", lambda n: min(n, 16)), ('"none"', lambda n: n)):
        file.write_text(re.sub("batch_size = .*", f"batch_size = {batch}", file.read_text()))
        got = cells(study(load(str(file)), tmp_path / batch.strip('"'), only="FedAvg|central"))
        fed = data.gaussian_blobs(seed=0).split(4, skew=data.IID(), seed=0, held_fraction=0.2)
        alone = tacit.train(
            fed.party(2),
            model="logistic",
            algorithm=algorithms.FedAvg(lr=0.003),
            rounds=3,
            local_steps=3,
            batch_size=None if batch == '"none"' else 16,
        )
        mine = got["t | central | IID | seed 0"]
        want = [e["parties"]["accuracy"][0] for e in alone.history]
        assert max(want) < 1
        assert mine["held"] == pytest.approx(want, abs=1e-6)
        assert (mine["parties"], mine["sizes"]) == (1, [int(fed.sizes[2])] * 2)
        sizes = [int(n) for n in fed.train.sizes]
        assert mine["samples"] == 3 * 3 * rows(sizes[2])
        assert got["t | FedAvg | IID | seed 0"]["samples"] == 3 * 3 * sum(map(rows, sizes))


def test_fedavg_shares_the_stack_of_fedprox(tmp_path: Path) -> None:
    store = study(load(small(tmp_path)), tmp_path / "out")
    assert sorted(line["cells"] for line in store.lines() if line["kind"] == "stack") == [
        8,
        14,
    ]  # SCAFFOLD's; FedAvg, FedProx and the central model


def test_runs_that_reach_the_target_leave_and_the_rest_comes_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at every second round, runs leave the stack; the accuracies of those that stay are those of a
    stack nobody left.
    """
    whole = cells(study(load(small(tmp_path, rounds=12)), tmp_path / "whole"))
    first = [v["test"][1] for v in whole.values()]
    target = float(np.quantile(first, 0.6))
    monkeypatch.setattr(run, "LOOK_EVERY", 2)
    s = load(small(tmp_path, figure="rounds", rounds=12, top=f"target = {target}"))
    got = cells(study(s, tmp_path / "left"))
    assert got.keys() == whole.keys()
    early = [i for i in got if len(got[i]["rounds"]) < 12]
    assert early
    assert len(early) < len(got)
    for i, line in got.items():
        assert line["test"] == whole[i]["test"][: len(line["test"])], i
        reached = [r for r, t in zip(line["rounds"], line["test"]) if t >= target]
        assert reached or len(line["rounds"]) == 12


def test_another_target_or_figure_runs_again_what_had_left_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They counted as done, and were shown as never having reached a target that they had stopped short
    of.
    """
    monkeypatch.setattr(run, "LOOK_EVERY", 2)
    out = tmp_path / "out"
    study(load(small(tmp_path, figure="rounds", rounds=6, top="target = 0.01")), out)
    for figure, top in (("rounds", "target = 1.0"), ("best", "")):
        s = load(small(tmp_path, figure=figure, rounds=6, top=top))
        store = run.Store(out, s)
        short = {
            i
            for i, line in cells(store).items()
            if len(line["rounds"]) < 6 and (figure == "best" or max(line["test"]) < 1)
        }
        assert short
        assert short.isdisjoint(store.done())
        assert table.summary(s, store.lines())["done"] == len(s.cells) - len(short)
        study(s, out)
        assert all(
            len(line["rounds"]) == 6 or (figure == "rounds" and max(line["test"]) == 1)
            for line in cells(store).values()
        )


PROGRAM = """
import sys
from tacit.jobs.study import run as studying
from tacit.jobs.study.file import load
studying.SAVE_EVERY = 0.0  # after every round
play = studying._Stack.compute
def slowly(self, r, test):
    play(self, r, test)
    print(r, flush=True)
studying._Stack.compute = slowly
studying.study(load(sys.argv[1]), sys.argv[2])
"""


def test_a_killed_study_resumes_to_the_same_figures(tmp_path: Path) -> None:
    """SIGKILL inside the first stack, and again inside what is left; no run is computed from its beginning
    twice.
    """
    file = small(tmp_path, rounds=30)
    whole = cells(study(load(file), tmp_path / "whole"))
    for after in (5, 12):
        with warm.Popen(
            [sys.executable, "-c", PROGRAM, file, str(tmp_path / "cut")], stdout=warm.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            seen = [int(child.stdout.readline()) for _ in range(after)]
            os.kill(child.pid, signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
    assert seen[0] > 0  # the second process went on, and did not begin again
    assert list((tmp_path / "cut" / "state").glob("*.safetensors"))
    with (tmp_path / "cut" / "cells.jsonl").open("ab") as torn:
        torn.write(b'{"kind": "cell", "id": "t | Fed')  # the kill tore the line that was being written
    store = study(load(file), tmp_path / "cut")
    got = cells(store)
    assert {i: (v["test"], v["held"], v["samples"]) for i, v in got.items()} == {
        i: (v["test"], v["held"], v["samples"]) for i, v in whole.items()
    }
    assert not list((tmp_path / "cut" / "state").glob("*.safetensors"))
    before = (tmp_path / "cut" / "cells.jsonl").read_bytes()
    study(load(file), tmp_path / "cut")
    assert (tmp_path / "cut" / "cells.jsonl").read_bytes() == before  # all is done: nothing is computed again


def test_a_study_stopped_after_runs_have_left_a_stack_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that left the stack are finished, so the rest of the stack is another set of runs. It once restarted from the
    beginning, and so did a part of a stack.
    """
    monkeypatch.setattr(run, "LOOK_EVERY", 2)
    whole = cells(study(load(small(tmp_path, rounds=12)), tmp_path / "whole"))
    target = float(np.quantile([v["test"][1] for v in whole.values()], 0.6))
    s = load(small(tmp_path, figure="rounds", rounds=12, top=f"target = {target}"))
    want = cells(study(s, tmp_path / "want"))
    monkeypatch.setattr(run, "SAVE_EVERY", 0.0)  # after every round
    play, seen, stop = run._Stack.compute, [], [7]

    def stopped(self: Any, r: int, test: bool) -> None:
        if r == stop[0]:
            raise KeyboardInterrupt
        seen.append(r)
        play(self, r, test)

    monkeypatch.setattr(run._Stack, "compute", stopped)
    with pytest.raises(KeyboardInterrupt):
        study(s, tmp_path / "cut")
    store = run.Store(tmp_path / "cut", s)
    ((state, names),) = store.saved()
    gone = store.done()
    assert gone
    assert gone.isdisjoint(names)  # some had left, and are not in what was saved
    slow = next(n for n in names if len(want[n]["rounds"]) == 12)
    for only, after, played in (
        (re.escape(slow), 9, [7, 8]),
        ("", 99, [9, 10, 11, 7, 8]),
    ):  # one of them alone, then it and the rest
        seen.clear()
        stop[0] = after
        with contextlib.suppress(KeyboardInterrupt):
            study(s, tmp_path / "cut", only=only)
        assert seen[: len(played)] == played
        assert state.exists() is (after == 9)
    assert {i: (v["rounds"], v["test"]) for i, v in cells(store).items()} == {
        i: (v["rounds"], v["test"]) for i, v in want.items()
    }
    assert not store.saved()


def test_the_time_of_one_client_after_the_other_is_extrapolated_from_a_measured_piece(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    store = study(s, tmp_path / "out")
    lines = store.lines()
    assert not any(
        line["kind"] == "loop" for line in lines
    )  # on a CPU clients may go one by one anyway, so nothing is measured
    piece = run.time_loop(run._plan(s.cells[0], run._Data()), steps=5)
    assert piece["samples"] == 5 * 4 * 32  # steps × parties × batch
    found = table.summary(s, [*lines, {**piece, "samples": 640, "seconds": 2.0}])
    assert found["one_by_one"]["samples_per_second"] == 320
    assert found["one_by_one"]["extrapolated_seconds"] == pytest.approx(found["samples"] / 320)
    from tacit.report import study as page

    assert (
        "One client at a time, the same machine processes 320 samples per second (measured over 2.0 s)"
        in page.timing(found)
    )
    assert "Extrapolated, the whole study would take" in page.timing(found)


def test_a_part_of_a_study_is_run_and_the_rest_later(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    assert len(cells(study(s, tmp_path / "out", only="SCAFFOLD.*IID"))) == 4
    assert len(cells(study(s, tmp_path / "out"))) == len(s.cells)
    with pytest.raises(
        BadJob, match=r"no cell of small has 'MOON' in its name\. The first is 't \| FedAvg \| IID \| seed 0'"
    ):
        study(s, tmp_path / "out", only="MOON")
    with pytest.raises(BadJob, match=r"study: only is '\('; it must be a regular expression \("):
        study(s, tmp_path / "out", only="(")


def test_figures_of_a_regression_are_refused(tmp_path: Path) -> None:
    """A study shows accuracies; the share of targets that are met to the bit is none."""
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(40)))
    file = tmp_path / "t.toml"
    file.write_text(
        '[data]\npath = "t.csv"\nlabel = "y"\nregression = true\nparties = '
        '2\n[[tables]]\n[[tables.rows]]\nlabel = "FedAvg"\n'
    )
    with pytest.raises(
        BadJob,
        match=r"row 'FedAvg': a study shows accuracies, and t is a regression\. Use `tacit compare`",
    ):
        study(load(str(file)), tmp_path / "out")


@pytest.mark.parametrize("option", ['metric = "auc"', "threshold = 0.3", 'subgroups = ["party"]'])
def test_a_study_refuses_what_it_would_not_show(tmp_path: Path, option: str) -> None:
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{'ny'[i % 2]}\n" for i in range(40)))
    file = tmp_path / "t.toml"
    file.write_text(
        f'[data]\npath = "t.csv"\nlabel = "y"\nparties = 2\ntest_fraction = 0.0\n[train]\n{option}\n'
        '[[tables]]\n[[tables.rows]]\nlabel = "FedAvg"\n'
    )
    with pytest.raises(BadJob, match="Leave out metric, threshold and subgroups"):
        study(load(str(file)), tmp_path / "out")


def test_a_setting_that_does_not_fit_names_its_row(tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    file.write_text(
        file.read_text().replace('label = "SCAFFOLD"', 'label = "SCAFFOLD"\ntrain = { per_round = 9 }')
    )
    with pytest.raises(
        BadJob,
        match=r"small\.toml, row 'SCAFFOLD': train: per_round is 9; it must be a whole number of at least 1 "
        r"and at most 4",
    ):
        study(load(str(file)), tmp_path / "out")


def test_an_unknown_baseline_is_refused(tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    file.write_text(file.read_text().replace('baseline = "central"', 'baseline = "alone 9"'))
    with pytest.raises(
        BadJob, match="row 'central': baseline is 'alone 9'; it must be 'central', or 'alone 0' to 'alone 3'"
    ):
        study(load(str(file)), tmp_path / "out")


def test_a_directory_that_holds_another_study_is_refused(tmp_path: Path) -> None:
    study(load(small(tmp_path), quick=True), tmp_path / "out")
    with pytest.raises(
        BadRun,
        match=r"holds another study \(small, quick\), or the study's file was changed since\. Give another "
        r"directory",
    ):
        study(load(small(tmp_path)), tmp_path / "out")
    for text in ("", "[]"):
        (tmp_path / "out" / "study.json").write_text(text)
        with pytest.raises(
            BadRun, match=r"study\.json cannot be read: .* If the runs next to it are this study's, delete it"
        ):
            study(load(small(tmp_path), quick=True), tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRun, match="cannot hold a study"):
        study(load(small(tmp_path)), tmp_path / "file")


@pytest.mark.parametrize("name", ["events.jsonl", "report.html", "results.csv"])
def test_a_directory_that_holds_something_else_is_not_written_over(name: str, tmp_path: Path) -> None:
    """A run's report, or somebody's own results.csv where --out was `.`, was replaced."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        BadRun, match=f"holds no study, but {name} of something else. Give another directory with --out"
    ):
        study(load(small(tmp_path), quick=True), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "small.toml"])


def test_a_disk_that_fills_up_is_named_and_what_is_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = load(small(tmp_path))
    study(s, tmp_path / "out", only="SCAFFOLD")
    before = (tmp_path / "out" / "cells.jsonl").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    words = (
        r"out cannot be written: .*No space left on device\. Finished runs are kept\. Check free space "
        r"and permissions, then run the same command"
    )
    with monkeypatch.context() as m:
        m.setattr(run, "SAVE_EVERY", 0.0)
        m.setattr(run._Stack, "save", full)
        with pytest.raises(BadRun, match=words):
            study(s, tmp_path / "out")
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(BadRun, match=words):
            study(s, tmp_path / "out")
    assert (tmp_path / "out" / "cells.jsonl").read_bytes().startswith(before)
    assert len(cells(study(s, tmp_path / "out"))) == len(s.cells)


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    store = run.Store(tmp_path / "out", s)
    store.begin()
    group = [c for c in s.cells if c.row == "SCAFFOLD"]
    store.state(group).write_bytes(b"no tensors")
    with pytest.raises(
        BadRun, match=r"cannot be read: .* Delete it; its runs then restart from the beginning"
    ):
        study(s, tmp_path / "out", only="SCAFFOLD")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cifar10-noniid", marks=pytest.mark.slow),
        pytest.param("convergence", marks=pytest.mark.slow),
        "convergence-digits",
        pytest.param("heart-disease", marks=pytest.mark.slow),
        "mcmahan",
        pytest.param("niid-bench", marks=pytest.mark.slow),
    ],
)
def test_every_study_runs_quickly(name: str, tmp_path: Path) -> None:
    """Every algorithm, skew and baseline of the study, on a few rows; where a stack takes long on a core, on
    fewer cells of it.
    """
    only = {
        "mcmahan": "2NN|CNN.*(FedSGD|E 1, B 10).*IID",
        "niid-bench": "MNIST|100 parties.*#C = 2",
        "cifar10-noniid": "Dirichlet . seed|Noise",
    }.get(name, "")
    s = load(name, quick=True, data_dir=str(ROOT), device="cpu")
    began = time.process_time()
    store = study(s, tmp_path / "out", only=only)
    got = cells(store)
    assert got
    assert all(not v["diverged"] and v["samples"] > 0 for v in got.values())
    found = table.summary(s, store.lines())
    assert found["done"] == len(got)
    assert found["quick"]
    assert time.process_time() - began < 120
    assert json.dumps(found, allow_nan=False)


def test_shards_are_disjoint_and_together_the_whole_study(tmp_path: Path) -> None:
    """Three shards in one directory, in any order; a shard that ran does nothing a second time."""
    s = load(small(tmp_path))
    whole = cells(study(s, tmp_path / "whole"))
    seen: list[set[str]] = []
    for text in ("3/3", "1/3", "2/3"):
        before = set(cells(run.Store(tmp_path / "parts", s)))
        after = set(cells(study(s, tmp_path / "parts", shard=Shard.parse(text))))
        seen.append(after - before)
        assert set(cells(study(s, tmp_path / "parts", shard=Shard.parse(text)))) == after
    assert set.union(*seen) == set(whole)
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
    lines = [x["id"] for x in run.Store(tmp_path / "parts", s).lines() if x["kind"] == "cell"]
    assert len(lines) == len(set(lines)) == len(whole)  # nothing was computed twice
    for name, line in cells(run.Store(tmp_path / "parts", s)).items():
        assert line["test"] == pytest.approx(whole[name]["test"], abs=1e-6)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="I/N with 1 ≤ I ≤ N"):
        Shard.parse(text)


def test_a_killed_worker_is_replaced_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes; the first that says that it began a stack is killed."""
    monkeypatch.setattr(workers.subprocess, "Popen", warm.Popen)
    s = load(small(tmp_path, rounds=6))
    whole = cells(study(s, tmp_path / "whole"))
    started: list[workers._Worker] = []
    begin = workers._Worker.take

    def take(self: Any, piece: list[str]) -> None:
        started.append(self)
        begin(self, piece)
        if len(started) == 1:
            os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(workers._Worker, "take", take)
    said: list[str] = []
    store = workers.study(s, tmp_path / "out", workers=2, say=said.append)
    assert any("ended (signal 9); its stack is resumed" in text for text in said), said
    lines = [x for x in store.lines() if x["kind"] == "cell"]
    assert len(lines) == len(whole)
    for line in lines:
        assert line["test"] == pytest.approx(whole[line["id"]]["test"], abs=1e-6)
    assert all(w.process.poll() is not None for w in started)  # none is left


def test_a_stack_that_kills_every_worker_ends_the_study_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.subprocess, "Popen", warm.Popen)
    begin = workers._Worker.take

    def take(self: Any, piece: list[str]) -> None:
        begin(self, piece)
        if any("SCAFFOLD" in name for name in piece):
            os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(workers._Worker, "take", take)
    s = load(small(tmp_path))
    with pytest.raises(BadRun, match=r"a worker ended 3 times \(signal 9\).*use fewer workers"):
        workers.study(s, tmp_path / "out", workers=2)
    store = workers.study(s, tmp_path / "out", only="FedAvg")  # the directory is still one that resumes
    assert any("FedAvg" in name for name in cells(store))


def test_a_worker_refuses_a_study_that_changed_while_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.subprocess, "Popen", warm.Popen)
    file = small(tmp_path)
    s = load(file)
    Path(file).write_text(Path(file).read_text().replace("rounds = 4", "rounds = 5"))
    with pytest.raises(BadRun, match="was changed while its workers started"):
        workers.study(s, tmp_path / "out", workers=2)

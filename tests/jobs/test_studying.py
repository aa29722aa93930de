"""Studies: a file becomes cells, cells become stacks, a stack comes out as its runs alone, and a kill costs nothing."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import algorithms, data
from tacit.errors import BadJob, BadRun
from tacit.jobs import study_file, study_table, studying
from tacit.jobs.study_file import load
from tacit.jobs.studying import study

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data")
SMALL = """
title = "A small study"
figure = "{figure}"
{top}

[data]
name = "gaussian_blobs"
parties = 4
held_fraction = 0.2

[model]
name = "logistic"

[train]
rounds = {rounds}
seeds = 2

[quick.train]
rounds = 1
seeds = 1

[[tables]]
name = "t"
columns = [{{ label = "IID", data = {{ skew = {{ name = "IID" }} }} }}, {{ label = "Dir", data = {{ skew = {{ name = "Dirichlet", alpha = 0.5 }} }} }}]

[[tables.rows]]
label = "FedAvg"
algorithm = {{ name = "FedAvg", lr = 0.3 }}

[[tables.rows]]
label = "FedProx {{mu}}"
algorithm = {{ name = "FedProx", lr = 0.3 }}
grid = {{ "algorithm.mu" = [0.1, 1.0] }}

[[tables.rows]]
label = "SCAFFOLD"
algorithm = {{ name = "Scaffold" }}
tune = {{ "algorithm.lr" = [0.01, 0.3] }}

[[tables.rows]]
label = "central"
baseline = "central"
algorithm = {{ name = "FedAvg", lr = 0.3 }}
columns = ["IID"]

[tables.published.FedAvg]
"IID" = 0.5
{more}
"""


def small(path: Path, figure: str = "best", rounds: int = 4, top: str = "", more: str = "") -> str:
    file = path / "small.toml"
    file.write_text(SMALL.format(figure=figure, rounds=rounds, top=top, more=more))
    return str(file)


def cells(store: studying.Store) -> dict[str, Any]:
    return {line["id"]: line for line in store.lines() if line["kind"] == "cell"}


def test_a_file_becomes_a_cell_for_each_row_column_seed_and_tuned_value(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    assert len(s.cells) == (3 * 2 + 2 * 2 + 1) * 2  # three plain rows and two tuned values on two columns, one baseline on one, each from two seeds
    assert s.tables[0].rows == ("FedAvg", "FedProx 0.1", "FedProx 1", "SCAFFOLD", "central")
    assert len(load(small(tmp_path), quick=True).cells) == 4 * 2 + 1  # one seed, and the first tuned value alone
    assert load("convergence", data_dir="elsewhere", device="cpu").digest == load("convergence").digest  # where files lie does not decide figures
    assert load(small(tmp_path, rounds=5)).digest == load(small(tmp_path), rounds=5).digest != s.digest
    assert load(small(tmp_path), rows=60).digest != s.digest


def test_a_stacked_cell_is_the_run_that_train_makes(tmp_path: Path) -> None:
    """Every cell of the stack against `tacit.train` alone: FedAvg, which runs as FedProx with μ = 0, FedProx, and SCAFFOLD."""
    store = study(load(small(tmp_path)), tmp_path / "out")
    got = cells(store)
    for column, skew in (("IID", data.IID()), ("Dir", data.Dirichlet(0.5))):
        for row, algorithm, choice in (("FedAvg", algorithms.FedAvg(lr=0.3), ""), ("FedProx 1", algorithms.FedProx(lr=0.3, mu=1.0), ""),
                                       ("SCAFFOLD", algorithms.Scaffold(lr=0.01), " | lr 0.01")):
            for seed in (0, 1):
                fed = data.gaussian_blobs(seed=seed).split(4, skew=skew, seed=seed, held_fraction=0.2)
                alone = tacit.train(fed, model="logistic", algorithm=algorithm, rounds=4, seed=seed)
                mine = got[f"t | {row} | {column} | seed {seed}{choice}"]
                assert mine["test"] == pytest.approx([e["accuracy"] for e in alone.history], abs=1e-6), (row, column, seed)
                held = [np.average(e["parties"]["accuracy"], weights=fed.held.sizes) for e in alone.history]
                assert mine["held"] == pytest.approx(held, abs=1e-6)
                assert mine["samples"] == 4 * int(fed.train.sizes.sum())


def test_a_party_alone_picks_its_round_by_its_own_rows_and_samples_are_counted_by_hand(tmp_path: Path) -> None:
    """The others' held-out rows picked it, too. Three steps on at most 16 rows a party, or on all of them, three rounds long."""
    file = Path(small(tmp_path, rounds=3))
    text = file.read_text().replace('baseline = "central"', 'baseline = "alone 2"').replace("lr = 0.3", "lr = 0.003")  # too little to be right everywhere
    file.write_text(text.replace("seeds = 2", "seeds = 1\nlocal_steps = 3\nbatch_size = 16"))
    for batch, rows in (("16", lambda n: min(n, 16)), ('"none"', lambda n: n)):
        file.write_text(re.sub("batch_size = .*", f"batch_size = {batch}", file.read_text()))
        got = cells(study(load(str(file)), tmp_path / batch.strip('"'), only="FedAvg|central"))
        fed = data.gaussian_blobs(seed=0).split(4, skew=data.IID(), seed=0, held_fraction=0.2)
        alone = tacit.train(fed.party(2), model="logistic", algorithm=algorithms.FedAvg(lr=0.003), rounds=3, local_steps=3,
                            batch_size=None if batch == '"none"' else 16)
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
    assert sorted(line["cells"] for line in store.lines() if line["kind"] == "stack") == [8, 14]  # SCAFFOLD's; FedAvg, FedProx and the central model


def test_figures_are_best_last_picked_and_rounds_to_the_target() -> None:
    """By hand: the best test accuracy is .8 in round 3; the held-out rows like round 2 best; .7 is reached in round 2."""
    line = {"rounds": [1, 2, 3, 4], "test": [0.5, 0.7, 0.8, 0.6], "held": [0.1, 0.9, 0.8, 0.7]}
    got = study_table.figures(line, 0.7)
    assert got == {"mean": pytest.approx(0.65), "best": 0.8, "last": 0.6, "picked": 0.7, "rounds": 2, "best_round": 3}
    assert study_table.figures(line, 0.9)["rounds"] is None
    assert study_table.figures({**line, "held": [float("nan")] * 4}, None)["picked"] is None


def test_a_run_that_diverges_has_no_last_figure_and_is_marked(tmp_path: Path) -> None:
    """Not the accuracy of the class that the argmax of NaN happens to be."""
    file = Path(small(tmp_path, figure="last"))
    file.write_text(file.read_text().replace('{ name = "FedProx", lr = 0.3 }', '{ name = "FedProx", lr = 1e30 }'))
    s = load(str(file))
    store = study(s, tmp_path / "out", only="Fed(Avg|Prox 1) . IID")
    for line in cells(store).values():
        assert line["diverged"] is (line["row"] == "FedProx 1")
    found = study_table.summary(s, store.lines())
    table = {row[0]: row[1] for row in study_table.text_table(found["tables"][0])[1]}
    assert table["FedProx 1"] == "– diverged"
    assert table["FedAvg"].endswith("(.500)")
    from tacit.report import study as page

    assert "2 of 2 diverged" in page.render(found, store.lines())


def test_the_tuned_value_that_does_best_is_shown_with_its_name(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    store = study(s, tmp_path / "out")
    found = study_table.summary(s, store.lines())
    cell = next(c for c in found["tables"][0]["cells"] if (c["row"], c["column"]) == ("SCAFFOLD", "IID"))
    each = {choice: np.mean([max(v["test"]) for v in cells(store).values() if (v["row"], v["column"], v["choice"]) == ("SCAFFOLD", "IID", choice)])
            for choice in ("lr 0.01", "lr 0.3")}
    assert cell["choice"] == max(each, key=lambda k: each[k])
    assert cell["best"]["mean"] == pytest.approx(max(each.values()))
    assert cell["seeds"] == 2


def test_runs_that_reach_the_target_leave_and_the_rest_comes_out_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at every second round, runs leave the stack; the accuracies of those that stay are those of a stack nobody left."""
    whole = cells(study(load(small(tmp_path, rounds=12)), tmp_path / "whole"))
    first = [v["test"][1] for v in whole.values()]
    target = float(np.quantile(first, 0.6))
    monkeypatch.setattr(studying, "LOOK_EVERY", 2)
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


def test_another_target_or_figure_runs_again_what_had_left_for_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They counted as done, and were shown as never having reached a target that they had stopped short of."""
    monkeypatch.setattr(studying, "LOOK_EVERY", 2)
    out = tmp_path / "out"
    study(load(small(tmp_path, figure="rounds", rounds=6, top="target = 0.01")), out)
    for figure, top in (("rounds", "target = 1.0"), ("best", "")):
        s = load(small(tmp_path, figure=figure, rounds=6, top=top))
        store = studying.Store(out, s)
        short = {i for i, line in cells(store).items() if len(line["rounds"]) < 6 and (figure == "best" or max(line["test"]) < 1)}
        assert short
        assert short.isdisjoint(store.done())
        assert study_table.summary(s, store.lines())["done"] == len(s.cells) - len(short)
        study(s, out)
        assert all(len(line["rounds"]) == 6 or (figure == "rounds" and max(line["test"]) == 1) for line in cells(store).values())


def test_a_value_that_lost_a_race_is_done_and_one_that_two_processes_ran_counts_once(tmp_path: Path) -> None:
    file = Path(small(tmp_path, figure="rounds", rounds=9, top="target = 0.5"))
    file.write_text(file.read_text().replace("seeds = 2", "seeds = 1"))
    s = load(str(file))
    names = [c for c in s.cells if c.place == ("t", "SCAFFOLD", "IID")]
    won, lost = (written(c, [0.1, top]) for c, top in zip(names, (0.6, 0.4)))
    assert study_table.finished(s, [lost]) == []  # nobody had arrived when it stopped: it is to go on
    assert study_table.finished(s, [lost, won, {**won, "samples": 9}, {**won, "id": "nobody's"}]) == [{**won, "samples": 9}, lost]  # in the study's order
    study_table.write_files(tmp_path, s, [won, won])
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 2
    assert study_table.finished(load(str(file), seeds=2), [won, lost]) == [won]  # of several seeds all are needed


PROGRAM = """
import sys
from tacit.jobs import studying
from tacit.jobs.study_file import load
studying.SAVE_EVERY = 0.0  # after every round
play = studying._Stack.play
def slowly(self, r, test):
    play(self, r, test)
    print(r, flush=True)
studying._Stack.play = slowly
studying.study(load(sys.argv[1]), sys.argv[2])
"""


def test_a_study_killed_in_the_middle_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    """SIGKILL inside the first stack, and again inside what is left; no run is computed from its beginning twice."""
    file = small(tmp_path, rounds=30)
    whole = cells(study(load(file), tmp_path / "whole"))
    for after in (5, 12):
        with subprocess.Popen([sys.executable, "-c", PROGRAM, file, str(tmp_path / "cut")], stdout=subprocess.PIPE, text=True) as child:
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
    assert {i: (v["test"], v["held"], v["samples"]) for i, v in got.items()} == {i: (v["test"], v["held"], v["samples"]) for i, v in whole.items()}
    assert not list((tmp_path / "cut" / "state").glob("*.safetensors"))
    before = (tmp_path / "cut" / "cells.jsonl").read_bytes()
    study(load(file), tmp_path / "cut")
    assert (tmp_path / "cut" / "cells.jsonl").read_bytes() == before  # all is done: nothing is computed again


def test_a_study_stopped_after_runs_have_left_a_stack_goes_on_where_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that had left are done, so that what is left of the stack is another set of runs: it began anew, and so did a part of a stack."""
    monkeypatch.setattr(studying, "LOOK_EVERY", 2)
    whole = cells(study(load(small(tmp_path, rounds=12)), tmp_path / "whole"))
    target = float(np.quantile([v["test"][1] for v in whole.values()], 0.6))
    s = load(small(tmp_path, figure="rounds", rounds=12, top=f"target = {target}"))
    want = cells(study(s, tmp_path / "want"))
    monkeypatch.setattr(studying, "SAVE_EVERY", 0.0)  # after every round
    play, seen, stop = studying._Stack.play, [], [7]

    def stopped(self: Any, r: int, test: bool) -> None:
        if r == stop[0]:
            raise KeyboardInterrupt
        seen.append(r)
        play(self, r, test)

    monkeypatch.setattr(studying._Stack, "play", stopped)
    with pytest.raises(KeyboardInterrupt):
        study(s, tmp_path / "cut")
    store = studying.Store(tmp_path / "cut", s)
    (state, names), = store.saved()
    gone = store.done()
    assert gone
    assert gone.isdisjoint(names)  # some had left, and are not in what was saved
    slow = next(n for n in names if len(want[n]["rounds"]) == 12)
    for only, after, played in ((re.escape(slow), 9, [7, 8]), ("", 99, [9, 10, 11, 7, 8])):  # one of them alone, then it and the rest
        seen.clear()
        stop[0] = after
        with contextlib.suppress(KeyboardInterrupt):
            study(s, tmp_path / "cut", only=only)
        assert seen[:len(played)] == played
        assert state.exists() is (after == 9)
    assert {i: (v["rounds"], v["test"]) for i, v in cells(store).items()} == {i: (v["rounds"], v["test"]) for i, v in want.items()}
    assert not store.saved()


def test_the_time_of_one_client_after_the_other_is_extrapolated_from_a_measured_piece(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    store = study(s, tmp_path / "out")
    lines = store.lines()
    assert not any(line["kind"] == "loop" for line in lines)  # on a CPU clients may go one by one anyway, so nothing is measured
    piece = studying.loop(studying._plan(s.cells[0], studying._Data()), steps=5)
    assert piece["samples"] == 5 * 4 * 32  # steps × parties × batch
    found = study_table.summary(s, [*lines, {**piece, "samples": 640, "seconds": 2.0}])
    assert found["one_by_one"]["samples_per_second"] == 320
    assert found["one_by_one"]["extrapolated_seconds"] == pytest.approx(found["samples"] / 320)
    from tacit.report import study as page

    assert "One client at a time on the same machine makes 320 samples a second, measured over 2.0 s" in page.timing(found)
    assert "extrapolated from that" in page.timing(found)


def test_a_part_of_a_study_is_run_and_the_rest_later(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    assert len(cells(study(s, tmp_path / "out", only="SCAFFOLD.*IID"))) == 4
    assert len(cells(study(s, tmp_path / "out"))) == len(s.cells)
    with pytest.raises(BadJob, match=r"no cell of small has 'MOON' in its name\. The first is 't \| FedAvg \| IID \| seed 0'"):
        study(s, tmp_path / "out", only="MOON")
    with pytest.raises(BadJob, match=r"study: only is '\('; it must be a regular expression\. It is none: "):
        study(s, tmp_path / "out", only="(")


def test_results_are_tidy_and_stand_beside_the_published_figures(tmp_path: Path) -> None:
    import pandas

    s = load(small(tmp_path))
    store = study(s, tmp_path / "out")
    study_table.write_files(store.path, s, store.lines())
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(s.cells)
    assert [r["published"] for r in rows if (r["row"], r["column"]) == ("FedAvg", "IID")] == ["0.5", "0.5"]
    frame = pandas.read_parquet(tmp_path / "out" / "results.parquet")
    assert frame["best"].tolist() == [float(r["best"]) for r in rows]
    curves = pandas.read_csv(tmp_path / "out" / "curves.csv")
    assert len(curves) == 4 * len(s.cells)
    head, table = study_table.text_table(study_table.summary(s, store.lines())["tables"][0])
    assert head == ["t", "IID", "Dir"]
    assert table[0][1].endswith("(.500)")
    assert table[4][2] == ""  # the central model has no second column


@pytest.mark.parametrize(("expect", "values", "holds"), [("same", (0.50, 0.51, 0.50), True), ("same", (0.5, 0.6, 0.5), False), ("rises", (0.5, 0.4, 0.6), True),
                                                         ("rises", (0.6, 0.5), False), ("falls", (0.6, 0.5), True), ("falls", (0.5, 0.5), False)])
def test_a_claim_is_held_to_the_figures(expect: str, values: tuple[float, ...], holds: bool) -> None:
    rows = tuple(str(i) for i in range(len(values)))
    table = study_file.Table("t", "last", None, rows, ("c",), claim={"expect": expect, "within": 0.02, "says": "It is known."})
    found = [{"row": r, "column": "c", "last": {"mean": v, "spread": None}} for r, v in zip(rows, values)]
    claim = study_table._claim(table, found, True)
    assert claim["holds"] is holds
    assert claim["text"].startswith(f"It is known. Ours {'agrees' if holds else 'does NOT agree'}: from")


CLAIM = '[tables.claim]\nexpect = "same"\nwithin = 1.0\nsays = "It is known."'


def written(cell: study_file.Cell, test: list[Any]) -> dict[str, Any]:
    """What is written of a run whose accuracies were these."""
    return {"kind": "cell", "id": cell.id, "table": cell.table, "row": cell.row, "column": cell.column, "seed": cell.seed, "choice": cell.choice,
            "rounds": list(range(1, len(test) + 1)), "test": test, "held": test, "samples": 1, "parties": 4, "sizes": [1, 2], "diverged": "nan" in test}


def test_a_claim_waits_for_every_run_of_its_column(tmp_path: Path) -> None:
    """Two of five rows agreed with each other, and the output said that ours agrees."""
    s = load(small(tmp_path, figure="last", rounds=2, more=CLAIM))
    lines = [written(c, [0.5, 0.5]) for c in s.cells if c.column == "IID"]
    for some, holds, words in ((lines[:4], None, "It is known. Not known yet: not every run is done."), (lines[:-1], None, "Not known yet"),
                               (lines, True, "It is known. Ours agrees: from 0.500"),
                               ([written(s.cells[0], [0.5, "nan"]), *lines[1:]], None, "It is known. Ours cannot be held to it: a run diverged")):
        claim = study_table.summary(s, some)["tables"][0]["claim"]
        assert claim["holds"] is holds
        assert words in claim["text"]


def test_the_tuned_value_that_needs_the_fewest_rounds_is_shown_however_many_seeds_are_done(tmp_path: Path) -> None:
    """By hand, to .8: with lr 0.01 the two seeds need 2 and 3 rounds, with 0.3 the one that is done needs 4: it is 0.01, though 2 + 3 > 4. To .95 nobody gets,
    and 0.3 comes nearer. To .85 one of two seeds gets."""
    def shown(target: float) -> tuple[Any, str, str]:
        s = load(small(tmp_path, figure="rounds", rounds=4, top=f"target = {target}"))
        of = {(c.choice, c.seed): c for c in s.cells if c.place == ("t", "SCAFFOLD", "IID")}
        found = study_table.summary(s, [written(of["lr 0.01", 0], [0.1, 0.8, 0.8, 0.8]), written(of["lr 0.01", 1], [0.1, 0.1, 0.8, 0.86]),
                                        written(of["lr 0.3", 0], [0.1, 0.1, 0.1, 0.84 if target == 0.85 else 0.9])])["tables"][0]
        from tacit.report import study as page

        words = next(row[1] for row in study_table.text_table(found)[1] if row[0] == "SCAFFOLD")
        return next(c for c in found["cells"] if c["row"] == "SCAFFOLD"), words, str(page._table(found, 0, {}).body)

    cell, words, report = shown(0.8)
    assert (cell["choice"], words) == ("lr 0.01", "2 ± 1")  # 2.5 ± 0.7
    assert "2 ± 1" in report
    cell, words, report = shown(0.95)
    assert (cell["choice"], words) == ("lr 0.3", "not reached, best .900, 1 of 2 seeds")
    assert "not reached, best 90.0%" in report
    cell, words, report = shown(0.85)
    assert (cell["choice"], words) == ("lr 0.01", "reached from 1 of 2 seeds, best .830")
    assert "reached from 1 of 2 seeds, best 83.0%" in report


def test_what_others_got_is_shown_before_ours_is_there_and_what_is_missing_or_diverged_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = load(small(tmp_path, rounds=2, more='[tables.replicated."FedProx 1"]\n"Dir" = 0.6'))
    first = [c for c in s.cells if c.place == ("t", "FedAvg", "IID")]
    table = study_table.text_table(study_table.summary(s, [written(first[0], [0.5, "nan"]), written(first[1], [0.5, 0.5])])["tables"][0])[1]
    assert table[0][1] == ".500 ± .000, 1 of 2 diverged (.500)"
    assert table[2][2] == "– [.600]"
    found = study_table.summary(s, [written(c, [0.4, "nan"] if c.seed else [0.4, 0.5]) for c in s.cells if c.row != "FedAvg"] + [written(first[0], [0.5, 0.7])])
    assert study_table.text_table(found["tables"][0])[1][0][1] == ".700, 1 of 2 seeds (.500)"
    from tacit.report import study as page

    monkeypatch.setattr(page, "MOST_CURVES", 2)
    lines = study_table.finished(s, [written(c, [0.4, "nan"] if c.seed else [0.4, 0.5]) for c in s.cells])
    assert "1 of 2 seeds · published 50.0%" in page.render(found, lines)
    assert "mean of the seeds that have not diverged. 3 more rows are not drawn." in page.render(found, lines)


def test_two_studies_are_compared_cell_by_cell(tmp_path: Path) -> None:
    for name, rounds in (("a", 1), ("b", 12)):
        s = load(small(tmp_path, figure="last", rounds=rounds))
        study_table.write_files(tmp_path / name, s, study(s, tmp_path / name).lines())
    a, b = (study_table.read(tmp_path / n) for n in "ab")
    found = study_table.diff(a, b)
    assert len(found["cells"]) == 9
    for cell in found["cells"]:
        assert cell["difference"] == pytest.approx(cell["b"] - cell["a"])
    assert any(cell["difference"] > 0 for cell in found["cells"])
    assert all(cell["difference"] == 0 and cell["clear"] is False for cell in study_table.diff(a, a)["cells"])
    assert found["only"] == {"a": [], "b": []}
    part = study_table.summary(s, [line for line in studying.Store(tmp_path / "b", s).lines() if line.get("row") != "SCAFFOLD"])
    assert study_table.diff(part, a)["only"] == {"a": [], "b": [{"table": "t", "row": "SCAFFOLD", "column": c} for c in ("IID", "Dir")]}
    assert study_table.diff(a, part)["only"]["a"] == study_table.diff(part, a)["only"]["b"]
    best = {**b, "quick": True, "tables": [{**t, "figure": "best"} for t in b["tables"]]}
    assert study_table.diff(a, best)["notes"] == ["t: the figure of the first is last, of the second best; compared is last.",
                                                  "The second is a quick look, whose figures come from a few rows and rounds; the other is not."]
    other = {**b, "study": "other", "tables": [{**t, "name": "elsewhere"} for t in b["tables"]]}
    with pytest.raises(BadRun, match="the two studies \\(small and other\\) have no cell in common"):
        study_table.diff(a, other)
    (tmp_path / "a" / "summary.json").write_text("{}")
    (tmp_path / "b" / "summary.json").unlink()
    for place, words in ((tmp_path, r"holds no study: there is no summary\.json in it"), (tmp_path / "small.toml", "holds no study"),
                         (tmp_path / "a", r"summary\.json is no summary of a study\. Give a directory that `tacit study` wrote"),
                         (tmp_path / "b", r"b holds a study that was stopped before it wrote a summary\. Run the study again with --out")):
        with pytest.raises(BadRun, match=words):
            study_table.read(place)


@pytest.mark.parametrize(("change", "words"), [
    (("title =", "titel ="), r"'titel' is not known in a study\. Did you mean 'title'\?"),
    (('figure = "best"', 'figure = "mode"'), "figure is 'mode'; it must be one of 'best', 'last', 'picked', 'rounds'"),
    (('figure = "best"', 'figure = "rounds"'), "target is None; it must be an accuracy above 0 and at most 1, since figure is 'rounds'"),
    (("seeds = 2", "seeds = 0"), "seeds is 0; it must be a whole number of at least 1"),
    (('name = "gaussian_blobs"', 'name = "blobs"'), "'blobs' is not a data set"),
    (('name = "Scaffold"', 'name = "Scafold"'), "Did you mean 'Scaffold'"),
    (('columns = ["IID"]', 'columns = ["IDD"]'), r"row 'central': there is no column 'IDD'\. Did you mean 'IID'\?"),
    (("[tables.published.FedAvg]", "[tables.published.FedAgv]"), r"published: there is no row 'FedAgv'\. Did you mean 'FedAvg'\?"),
    (('label = "SCAFFOLD"', 'label = "FedAvg"'), "two rows have one label"),
    (("FedProx {mu}", "FedProx {nu}"), "its label names 'nu', which is not in its grid. Known: mu"),
    (("[0.1, 1.0]", "0.1"), "grid is {'algorithm.mu': 0.1}; it must be a table of lists"),
    (("rounds = 4", "rounds = "), "small.toml is not TOML"),
    (("[[tables]]", "[[tabels]]"), "'tabels' is not known in a study"),
    (('title = "A small study"', "title = 3"), "title is 3; it must be text"),
    (('figure = "best"', 'figure = "best"\ntarget = "x"'), "target is 'x'; it must be an accuracy above 0 and at most 1"),
    (('"IID" = 0.5', '"IID" = "0.5"'), r"published, FedAvg: IID is '0\.5'; it must be an accuracy from 0 to 1"),
    (('"IID" = 0.5', '"IID" = 64.3'), r"IID is 64\.3; it must be an accuracy from 0 to 1\. Percent are hundredths: 64\.3% is 0\.643"),
    (('"IID" = 0.5', '"IDI" = 0.5'), r"published, FedAvg: there is no column 'IDI'\. Did you mean 'IID'\?"),
    (("[quick.train]", "[quick]"), r"quick: 'rounds' is not known here\. Known: data, model, train\. Write \[quick\.train\] rounds = 2"),
    (("[quick.train]", "[quick.trian]"), r"quick: 'trian' is not known here\. Did you mean 'train'\?"),
    (('label = "IID",', 'label = "IID", quick = { rounds = 1 },'), "column 'IID', quick: 'rounds' is not known here"),
    (('label = "IID",', 'label = "IID", quick = "yes",'), "column 'IID': quick is 'yes'; it must be a table"),
    (('label = "SCAFFOLD"', 'label = ""'), "label is ''; it must be text, by which the table names it"),
    (('label = "SCAFFOLD"', 'label = "SCAFFOLD"\ntrain = "fast"'), "row 'SCAFFOLD': train is 'fast'; it must be a table"),
    (('columns = ["IID"]', 'columns = "IID"'), "row 'central': columns is 'IID'; it must be a list of labels of columns"),
    (("FedProx {mu}", "FedProx {mu.x}"), r"its label is no pattern: .* Write \{mu\} where the value is to stand"),
    (("FedProx {mu}", "FedProx {mu:.2f}"), r"its label is no pattern: .* Write \{mu\} where the value is to stand"),
    (("algorithm.lr", "aggregate.name"), "tune: 'aggregate.name' is nothing that a study can change. Begin it with 'algorithm.', 'data.'"),
    (("algorithm.lr", "data.seed"), r"tune: 'data\.seed' is not a row's own\. Say how many with train\.seeds"),
    (("[0.01, 0.3]", "[0.3, 0.3]"), r"tune 'algorithm\.lr' is \[0\.3, 0\.3\]; it must be values that differ"),
    (("parties = 4", "parties = 4\nrows = -5"), "rows is -5; it must be a whole number of at least 1"),
    (("parties = 4", 'parties = 4\ntest_rows = "100"'), "test_rows is '100'; it must be a whole number of at least 1"),
    (("parties = 4", "parties = 4\nseed = 7"), r"data: a study has no seed of its own: each cell runs from the seeds 0, 1 and so on\. Leave it out"),
    (("rounds = 4", 'rounds = 4\nruntime = "processes"'), "train: runtime and landscape are for `tacit run`; the runs of a study are simulated"),
])
def test_a_broken_study_file_says_what_is_wrong(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(BadJob, match=words):
        load(str(file))


@pytest.mark.parametrize(("table", "words"), [
    ("name = 3", "name is 3; it must be text"), ("columns = 3", "columns is 3; it must be a list of tables, like"),
    ("rows = 3", "rows is 3; it must be a list of tables"),
    ('published = { a = 0.5 }\nrows = [{ label = "a" }]', "published: a is 0.5; it must be a table"),
    ('rows = [{ label = "a" }]\nclaim = { expect = "same" }', "claim: it is about what changes down the rows of the first column, which has 1"),
    ('rows = [{ label = "a" }, { label = "b" }]\nclaim = { expect = "same", measure = "lst" }', "claim: measure is 'lst'; it must be one of 'best', 'last'"),
    ('rows = [{ label = "a" }, { label = "b" }]\nclaim = { expect = "same", within = "x" }', "claim: within is 'x'; it must be a number of at least 0"),
])
def test_a_broken_table_says_what_is_wrong(table: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'[data]\nname = "digits"\nparties = 2\n[[tables]]\n{table}\n')
    with pytest.raises(BadJob, match=words):
        load(str(file))


def test_quick_without_anything_quick_is_refused_and_what_is_left_out_is_as_in_a_job_file(tmp_path: Path) -> None:
    """It ran in full, and its output said that its figures came from a few rows and rounds."""
    file = tmp_path / "bare.toml"
    file.write_text('[data]\nname = "digits"\nparties = 2\n[[tables]]\n[[tables.rows]]\nlabel = "FedProx {mu}"\nalgorithm = "FedProx"\n'
                    'grid = { "algorithm.mu" = [0.1, 1.0] }\n')
    with pytest.raises(BadJob, match=r"bare\.toml: there is no \[quick\.data\] or \[quick\.train\], so --quick would change nothing"):
        load(str(file), quick=True)
    jobs = [c.job for c in load(str(file)).cells]
    assert [j.algorithms[0] for j in jobs] == [algorithms.FedProx(mu=0.1), algorithms.FedProx(mu=1.0)]  # a name alone may have values laid over it
    assert type(jobs[0].model).__name__ == "MLP"  # the usual one


def test_figures_of_a_regression_are_refused(tmp_path: Path) -> None:
    """A study shows accuracies; the share of targets that are met to the bit is none."""
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(40)))
    file = tmp_path / "t.toml"
    file.write_text('[data]\npath = "t.csv"\nlabel = "y"\nregression = true\nparties = 2\n[[tables]]\n[[tables.rows]]\nlabel = "FedAvg"\n')
    with pytest.raises(BadJob, match=r"row 'FedAvg': a study shows accuracies, and t has numbers to predict\. Use `tacit compare`"):
        study(load(str(file)), tmp_path / "out")


def test_a_setting_that_does_not_fit_names_its_row(tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    file.write_text(file.read_text().replace('label = "SCAFFOLD"', 'label = "SCAFFOLD"\ntrain = { per_round = 9 }'))
    with pytest.raises(BadJob, match=r"small\.toml, row 'SCAFFOLD': train: per_round is 9; it must be a whole number of at least 1 and at most 4"):
        study(load(str(file)), tmp_path / "out")


def test_a_baseline_nobody_knows_is_refused(tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    file.write_text(file.read_text().replace('baseline = "central"', 'baseline = "alone 9"'))
    with pytest.raises(BadJob, match="row 'central': baseline is 'alone 9'; it must be 'central', or 'alone 0' to 'alone 3'"):
        study(load(str(file)), tmp_path / "out")


def test_a_directory_that_holds_another_study_is_refused(tmp_path: Path) -> None:
    study(load(small(tmp_path), quick=True), tmp_path / "out")
    with pytest.raises(BadRun, match=r"holds another study \(small, quick\), or the study's file was changed since\. Give another directory"):
        study(load(small(tmp_path)), tmp_path / "out")
    for text in ("", "[]"):
        (tmp_path / "out" / "study.json").write_text(text)
        with pytest.raises(BadRun, match=r"study\.json cannot be read: .* If the runs beside it are this study's, delete it"):
            study(load(small(tmp_path), quick=True), tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadRun, match="cannot hold a study"):
        study(load(small(tmp_path)), tmp_path / "file")


@pytest.mark.parametrize("name", ["events.jsonl", "report.html", "results.csv"])
def test_a_directory_that_holds_something_else_is_not_written_over(name: str, tmp_path: Path) -> None:
    """A run's report, or somebody's own results.csv where --out was `.`, was replaced."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadRun, match=f"holds no study, but {name} of something else. Give another directory with --out"):
        study(load(small(tmp_path), quick=True), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "small.toml"])


def test_a_disk_that_fills_up_is_named_and_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = load(small(tmp_path))
    study(s, tmp_path / "out", only="SCAFFOLD")
    before = (tmp_path / "out" / "cells.jsonl").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    words = r"out cannot be written: .*No space left on device\. What is done is kept\. See that there is room and leave to write, then give the same command"
    with monkeypatch.context() as m:
        m.setattr(studying, "SAVE_EVERY", 0.0)
        m.setattr(studying._Stack, "save", full)
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
    store = studying.Store(tmp_path / "out", s)
    store.begin()
    group = [c for c in s.cells if c.row == "SCAFFOLD"]
    store.state(group).write_bytes(b"no tensors")
    with pytest.raises(BadRun, match=r"cannot be read: .* Delete it, and the stack it belongs to starts anew"):
        study(s, tmp_path / "out", only="SCAFFOLD")


@pytest.mark.parametrize("name", study_file.names())
def test_every_shipped_study_is_well_formed(name: str) -> None:
    s = load(name)
    assert len({c.id for c in s.cells}) == len(s.cells)
    assert s.notes, "differences are explained"
    assert s.source
    assert any(t.published or t.claim for t in s.tables)


@pytest.mark.parametrize("name", ["cifar10-noniid", "convergence", "convergence-digits", "heart-disease", "mcmahan", "niid-bench"])
def test_every_study_runs_quickly(name: str, tmp_path: Path) -> None:
    """Every algorithm, skew and baseline of the study, on a few rows; where a stack takes long on a core, on fewer cells of it."""
    only = {"mcmahan": "2NN|CNN.*(FedSGD|E 1, B 10).*IID", "niid-bench": "MNIST|100 parties.*#C = 2", "cifar10-noniid": "Dirichlet . seed|Noise"}.get(name, "")
    s = load(name, quick=True, data_dir=str(ROOT), device="cpu")
    began = time.process_time()
    store = study(s, tmp_path / "out", only=only)
    got = cells(store)
    assert got
    assert all(not v["diverged"] and v["samples"] > 0 for v in got.values())
    found = study_table.summary(s, store.lines())
    assert found["done"] == len(got)
    assert found["quick"]
    assert time.process_time() - began < 120
    assert json.dumps(found, allow_nan=False)

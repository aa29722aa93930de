"""What a study found, as tables: by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import BadRun
from tacit.jobs.study import file as study_file
from tacit.jobs.study import run
from tacit.jobs.study import table as study_table
from tacit.jobs.study.file import load
from tacit.jobs.study.run import study

from .studies import cells, small, written


def test_figures_are_best_last_picked_and_rounds_to_the_target() -> None:
    """By hand: the best test accuracy is .8 in round 3; the held-out rows like round 2 best; .7 is reached in
    round 2.
    """
    line = {"rounds": [1, 2, 3, 4], "test": [0.5, 0.7, 0.8, 0.6], "held": [0.1, 0.9, 0.8, 0.7]}
    got = study_table.figures(line, 0.7)
    assert got == {
        "mean": pytest.approx(0.65),
        "best": 0.8,
        "last": 0.6,
        "picked": 0.7,
        "rounds": 2,
        "best_round": 3,
    }
    assert study_table.figures(line, 0.9)["rounds"] is None
    assert (
        study_table.figures({**line, "test": [0.5, round(14 / 15, 6), 0.8, 0.6]}, 14 / 15)["rounds"] == 2
    )  # it left there, so it must not count as short
    assert study_table.figures({**line, "held": [float("nan")] * 4}, None)["picked"] is None


def test_a_run_that_diverges_has_no_last_figure_and_is_marked(tmp_path: Path) -> None:
    """Not the accuracy of the class that the argmax of NaN happens to be."""
    file = Path(small(tmp_path, figure="last"))
    file.write_text(
        file.read_text().replace('{ name = "FedProx", lr = 0.3 }', '{ name = "FedProx", lr = 1e30 }')
    )
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
    each = {
        choice: np.mean(
            [
                max(v["test"])
                for v in cells(store).values()
                if (v["row"], v["column"], v["choice"]) == ("SCAFFOLD", "IID", choice)
            ]
        )
        for choice in ("lr 0.01", "lr 0.3")
    }
    assert cell["choice"] == max(each, key=lambda k: each[k])
    assert cell["best"]["mean"] == pytest.approx(max(each.values()))
    assert cell["seeds"] == 2


def test_a_value_that_lost_a_race_is_done_and_one_that_two_processes_ran_counts_once(tmp_path: Path) -> None:
    file = Path(small(tmp_path, figure="rounds", rounds=9, top="target = 0.5"))
    file.write_text(file.read_text().replace("seeds = 2", "seeds = 1"))
    s = load(str(file))
    names = [c for c in s.cells if c.place == ("t", "SCAFFOLD", "IID")]
    won, lost = (written(c, [0.1, top]) for c, top in zip(names, (0.6, 0.4)))
    assert study_table.finished(s, [lost]) == []  # nobody had arrived when it stopped: it is to go on
    assert study_table.finished(s, [lost, won, {**won, "samples": 9}, {**won, "id": "nobody's"}]) == [
        {**won, "samples": 9},
        lost,
    ]  # in the study's order
    study_table.write_files(tmp_path, s, [won, won])
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 2
    assert study_table.finished(load(str(file), seeds=2), [won, lost]) == [
        won
    ]  # of several seeds all are needed


def test_results_are_tidy_and_include_the_published_figures(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("expect", "values", "holds"),
    [
        ("same", (0.50, 0.51, 0.50), True),
        ("same", (0.5, 0.6, 0.5), False),
        ("rises", (0.5, 0.4, 0.6), True),
        ("rises", (0.6, 0.5), False),
        ("falls", (0.6, 0.5), True),
        ("falls", (0.5, 0.5), False),
    ],
)
def test_a_claim_is_held_to_the_figures(expect: str, values: tuple[float, ...], holds: bool) -> None:
    rows = tuple(str(i) for i in range(len(values)))
    table = study_file.Table(
        "t", "last", None, rows, ("c",), claim={"expect": expect, "within": 0.02, "says": "It is known."}
    )
    found = [{"row": r, "column": "c", "last": {"mean": v, "spread": None}} for r, v in zip(rows, values)]
    claim = study_table._claim(table, found, "")
    assert claim["holds"] is holds
    assert claim["text"].startswith(f"It is known. Ours {'agrees' if holds else 'does NOT agree'}: from")


CLAIM = '[tables.claim]\nexpect = "same"\nwithin = 1.0\nsays = "It is known."'


def test_a_claim_waits_for_every_run_of_its_column(tmp_path: Path) -> None:
    """Two of five rows agreed with each other, and the output said that ours agrees."""
    s = load(small(tmp_path, figure="last", rounds=2, more=CLAIM))
    lines = [written(c, [0.5, 0.5]) for c in s.cells if c.column == "IID"]
    for some, holds, words in (
        (lines[:4], None, "It is known. Not known yet: not every run is done."),
        (lines[:-1], None, "Not known yet"),
        (lines, True, "It is known. Ours agrees: from 0.500"),
        (
            [written(s.cells[0], [0.5, "nan"]), *lines[1:]],
            None,
            "It is known. Ours cannot be held to it: a run diverged",
        ),
    ):
        claim = study_table.summary(s, some)["tables"][0]["claim"]
        assert claim["holds"] is holds
        assert words in claim["text"]
    quick = study_table.summary(
        load(small(tmp_path, figure="last", rounds=2, more=CLAIM), quick=True), lines
    )["tables"][0]["claim"]
    assert (quick["holds"], quick["text"]) == (None, "It is known. Not known from a quick look.")


def test_the_tuned_value_that_needs_the_fewest_rounds_is_shown_however_many_seeds_are_done(
    tmp_path: Path,
) -> None:
    """By hand, to .8: with lr 0.01 the two seeds need 2 and 3 rounds, with 0.3 the one that is done needs 4:
    it is 0.01, though 2 + 3 > 4. To .95 nobody gets, and 0.3 comes nearer. To .85 one of two seeds gets.
    """

    def format_metric(target: float) -> tuple[Any, str, str]:
        s = load(small(tmp_path, figure="rounds", rounds=4, top=f"target = {target}"))
        of = {(c.choice, c.seed): c for c in s.cells if c.place == ("t", "SCAFFOLD", "IID")}
        found = study_table.summary(
            s,
            [
                written(of["lr 0.01", 0], [0.1, 0.8, 0.8, 0.8]),
                written(of["lr 0.01", 1], [0.1, 0.1, 0.8, 0.86]),
                written(of["lr 0.3", 0], [0.1, 0.1, 0.1, 0.84 if target == 0.85 else 0.9]),
            ],
        )["tables"][0]
        from tacit.report import study as page

        words = next(row[1] for row in study_table.text_table(found)[1] if row[0] == "SCAFFOLD")
        return (
            next(c for c in found["cells"] if c["row"] == "SCAFFOLD"),
            words,
            str(page._table(found, 0, {}).body),
        )

    cell, words, report = format_metric(0.8)
    assert (cell["choice"], words) == ("lr 0.01", "2 ± 1")  # 2.5 ± 0.7
    assert "2 ± 1" in report
    cell, words, report = format_metric(0.95)
    assert (cell["choice"], words) == ("lr 0.3", "not reached, best .900, 1 of 2 seeds")
    assert "not reached, best 90.0%" in report
    cell, words, report = format_metric(0.85)
    assert (cell["choice"], words) == ("lr 0.01", "reached from 1 of 2 seeds, best .830")
    assert "reached from 1 of 2 seeds, best 83.0%" in report


def test_what_others_got_is_shown_before_ours_is_there_and_what_is_missing_or_diverged_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = load(small(tmp_path, rounds=2, more='[tables.replicated."FedProx 1"]\n"Dir" = 0.6'))
    first = [c for c in s.cells if c.place == ("t", "FedAvg", "IID")]
    table = study_table.text_table(
        study_table.summary(s, [written(first[0], [0.5, "nan"]), written(first[1], [0.5, 0.5])])["tables"][0]
    )[1]
    assert table[0][1] == ".500 ± .000, 1 of 2 diverged (.500)"
    assert table[2][2] == "– [.600]"
    found = study_table.summary(
        s,
        [written(c, [0.4, "nan"] if c.seed else [0.4, 0.5]) for c in s.cells if c.row != "FedAvg"]
        + [written(first[0], [0.5, 0.7])],
    )
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
    part = study_table.summary(
        s, [line for line in run.Store(tmp_path / "b", s).lines() if line.get("row") != "SCAFFOLD"]
    )
    assert study_table.diff(part, a)["only"] == {
        "a": [],
        "b": [{"table": "t", "row": "SCAFFOLD", "column": c} for c in ("IID", "Dir")],
    }
    assert study_table.diff(a, part)["only"]["a"] == study_table.diff(part, a)["only"]["b"]
    best = {**b, "quick": True, "tables": [{**t, "figure": "best"} for t in b["tables"]]}
    assert study_table.diff(a, best)["notes"] == [
        "t: the figure of the first is last, of the second best; compared is last.",
        "The second is a quick look, whose figures come from a few rows and rounds; the other is not.",
    ]
    other = {**b, "study": "other", "tables": [{**t, "name": "elsewhere"} for t in b["tables"]]}
    with pytest.raises(BadRun, match="the two studies \\(small and other\\) have no cell in common"):
        study_table.diff(a, other)
    (tmp_path / "a" / "summary.json").write_text("{}")
    for name in ("summary.json", "cells.jsonl"):  # not a run was done
        (tmp_path / "b" / name).unlink()
    for place, words in (
        (tmp_path, r"holds no study: there is no summary\.json in it"),
        (tmp_path / "small.toml", "holds no study"),
        (
            tmp_path / "a",
            r"summary\.json is not the summary of a study\. Give a directory that `tacit study` wrote",
        ),
        (
            tmp_path / "b",
            r"b holds a study that was stopped before it wrote a summary\. Run the study again with --out",
        ),
    ):
        with pytest.raises(BadRun, match=words):
            study_table.read(place)

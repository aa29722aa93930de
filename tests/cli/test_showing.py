"""What there is: data sets, algorithms, this machine, and the jobs we ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit import algorithms, data
from tacit.cli import doctor
from tacit.cli.progress import client_lines

from ..data.formats import write_shakespeare
from .shell import EXAMPLES, answer, process, run


def test_the_lists_name_every_member_of_the_rooms(capsys):
    value = answer(capsys, "data", "list")
    assert [s["name"] for s in value["datasets"]] == list(data.ALL)
    assert [s["name"] for s in value["skews"]] == list(data.SKEWS)
    assert [a["name"] for a in answer(capsys, "algorithms")["algorithms"]] == list(algorithms.ALL)
    _, out, _ = run(capsys, "data", "list")
    assert all(name in out for name in (*data.ALL, *data.SKEWS))
    _, out, _ = run(capsys, "algorithms")
    assert all(name in out for name in (*algorithms.ALL, *algorithms.PARTS))


@pytest.mark.parametrize("name", ["FedProx", "fedprox", "SGD", "Cosine"])
def test_one_algorithm_or_part_is_shown_with_its_paper_and_parameters(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no cell is broken over lines
    (shown,) = answer(capsys, "algorithms", name)["algorithms"]
    assert shown["name"].lower() == name.lower()
    _, out, _ = run(capsys, "algorithms", name)
    assert all(p["doc"] in out and p["allowed"] in out for p in shown["parameters"])
    assert shown["parameters"]


def test_data_show_counts_every_row_at_its_party(capsys):
    value = answer(
        capsys,
        "data",
        "show",
        "digits",
        "--parties",
        "5",
        "--skew",
        "dirichlet",
        "--alpha",
        "0.3",
        "--seed=2",
        "--images",
        "true",
    )
    fed = data.digits(images=True, seed=2).split(5, skew=data.Dirichlet(0.3), seed=2)
    assert value["counts"] == fed.summary()["counts"]
    assert value["features"] == [1, 8, 8]
    _, out, _ = run(
        capsys,
        "data",
        "show",
        "digits",
        "--parties",
        "5",
        "--skew",
        "Dirichlet",
        "--alpha",
        "0.3",
        "--seed",
        "2",
    )
    first = next(line for line in out.splitlines() if line.startswith("p0"))
    assert first.split() == [
        "p0",
        str(value["sizes"][0]),
        f"{value['shift'][0]:.2f}",
        *(str(n) if n else "·" for n in value["counts"][0]),
    ]


def test_data_show_takes_the_natural_parties_where_there_are_some(capsys):
    assert answer(capsys, "data", "show", "heart_disease")["parties"] == [
        "cleveland",
        "hungarian",
        "switzerland",
        "va",
    ]
    assert len(answer(capsys, "data", "show", "heart_disease", "--parties", "3")["parties"]) == 3
    assert len(answer(capsys, "data", "show", "iris")["parties"]) == 10


def test_data_show_reads_a_table_and_draws(folder, capsys):
    rows = "\n".join(f"{i % 7},{'ab'[i % 2]},{'I' * (i % 3 + 1)}" for i in range(90))
    (folder / "patients.csv").write_text(f"age,clinic,stage\n{rows}\n", encoding="utf-8")
    value = answer(
        capsys, "data", "show", "patients.csv", "--label", "stage", "--by", "clinic", "--plot", "who.svg"
    )
    assert (value["parties"], value["labels"]) == (["a", "b"], ["I", "II", "III"])
    assert "<svg" in Path("who.svg").read_text(encoding="utf-8")


EVIL = ["[/b]", "[bold red]x", "\\[", "[link=file:///etc/passwd]y[/link]", "a\x1b[2Jb"]


@pytest.fixture
def evil(folder) -> Path:
    """A table whose columns, labels and hospitals have names that a terminal could take for something
    else.
    """
    rows = "\n".join(f'{i % 7},"{EVIL[i % 5]}","{EVIL[(i // 5) % 5]}"' for i in range(150))
    (folder / "evil[red].csv").write_text(f'age,"[/b]",stage\n{rows}\n', encoding="utf-8")
    return folder


def test_names_in_brackets_are_shown_as_they_are(evil, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # wide enough that no cell is cut
    code, out, _ = run(capsys, "data", "show", "evil[red].csv", "--label", "stage", "--by", "[/b]")
    assert code == 0
    for name in EVIL[:4]:
        assert out.count(name) >= 2, name  # as a party and as a label
    assert "\x1b" not in out
    code, out, _ = run(capsys, "algorithms", "FedAvg")
    assert code == 0


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_and_a_comparison_of_parties_named_in_brackets_get_through(evil, capsys, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    (evil / "evil.toml").write_text(
        '[data]\npath = "evil[red].csv"\nlabel = "stage"\nby = "[/b]"\n[model]\nname = '
        '"logistic"\n[train]\nrounds = 2\n',
        encoding="utf-8",
    )
    code, out, err = run(capsys, "run", "evil.toml", "--out", "x[red]")
    assert (code, "Markup" in err) == (0, False)
    assert "x[red]" in out
    code, out, _ = run(capsys, "report", "x[red]")
    assert (code, out) == (0, "x[red]/report.html\n")
    code, out, err = run(capsys, "compare", "evil.toml", "--out", "both")
    assert (code, "Markup" in err) == (0, False)
    assert "by [/b]" in out
    assert terminal or "\x1b" not in out + err


def test_data_show_says_when_parties_are_left_out(capsys):
    _, out, _ = run(capsys, "data", "show", "digits", "--parties", "50")
    assert "… and 10 more parties" in out


def test_data_show_names_the_labels_there_are_most_of_where_there_are_many(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = "abcdefghijklmnopqrstuvwxyz   aa"
    write_shakespeare(
        tmp_path / "shakespeare", json.dumps({"play": "A", "role": "X", "speeches": [text] * 5}).encode()
    )
    told = ("data", "show", "shakespeare", "--data-dir", str(tmp_path), "--verify", "false", "--by", "role")
    _, out, _ = run(capsys, *told)
    head, line = next(
        (
            [a.split(), b.split()]
            for a, b in zip(out.splitlines(), out.splitlines()[1:])
            if a.startswith("party")
        )
    )
    assert head[3:7] == ["'", "'", "a", "'\\n'"]  # a space, which splits here
    assert (head[-1], line[-1]) == (
        "others",
        str(4 * (26 - 17)),
    )  # four lines to train on, in each the letters that have no column of their own
    assert sum(map(sum, answer(capsys, *told)["counts"])) == 4 * (len(text) + 1)


def test_data_sets_that_need_a_file_say_where_it_goes(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    files = {s["name"]: s["files"] for s in answer(capsys, "data", "list")["datasets"]}
    assert files["digits"]["text"] == "needs none"
    assert (
        files["shakespeare"]["text"]
        == f"not in {tmp_path / 'shakespeare'}; put its file there, or set TACIT_DATA"
    )
    assert "downloaded when first used" in files["mnist"]["text"]


def test_the_doctor_finds_this_machine_and_that_it_works(capsys):
    value = answer(capsys, "doctor")
    assert value["self_test"]["ok"]
    assert value["cores"] >= 1
    assert "data" in value["missing_extras"]
    # `make test` installs every extra but this one, which brings some 30 packages
    missing = {extra for extra, packages in value["missing_extras"].items() if packages}
    assert missing <= {"wandb"}
    assert set(value["data"]) == set(data.ALL)


def test_the_doctor_gives_the_line_that_installs_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda package: package != "pyarrow")
    monkeypatch.setattr(doctor, "self_test", lambda: {"ok": True, "text": ""})
    assert ("extra data", "missing pyarrow: pip install 'tacit[data]'") in doctor.examine()["lines"]


def test_a_machine_that_computes_wrongly_is_reported_with_exit_code_1(capsys, monkeypatch):
    honest = algorithms.FedSGD.merge
    monkeypatch.setattr(
        algorithms.FedSGD, "merge", lambda self, w, *rest: (honest(self, w, *rest)[0] + 0.01, rest[0])
    )
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "FAILED: FedAvg with one full step differs from FedSGD" in out


def test_a_closed_output_pipe_is_not_an_error(tmp_path):
    started = process("algorithms", cwd=tmp_path)
    started.stdout.close()
    assert started.wait(timeout=300) == 1
    assert started.stderr.read() == ""
    started.stderr.close()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_every_shipped_job_runs(file, folder, capsys):
    several = "[[" in file.read_text(encoding="utf-8")
    value = answer(
        capsys,
        "compare" if several else "run",
        str(file),
        "--rounds",
        "1",
        *(["--seeds", "1"] if several else []),
    )
    assert Path(value["report"]).is_file()


def test_there_is_a_job_of_each_kind_to_start_from():
    assert {"quickstart", "compare", "hospitals"} <= {file.stem for file in EXAMPLES}


def test_a_client_states_what_training_and_preparation_cost_together():
    value = dict.fromkeys(("metric", "model"), None) | dict.fromkeys(("sent", "received", "evaluations"), 0)
    value |= {"party": "a", "rounds_answered": 5, "rounds": 5, "small": False, "metrics": {}, "state": "s"}
    both = client_lines({**value, "epsilon": 4.0, "preparation_epsilon": 1.0})[0]
    assert both.endswith("its account is at ε = 5 (4 for training and 1 for the preparation of the table)")
    one = client_lines({**value, "epsilon": None, "preparation_epsilon": 1.0})[0]
    assert one.endswith("its account is at ε = 1 (1 for the preparation of the table)")
    assert "ε" not in client_lines({**value, "epsilon": None, "preparation_epsilon": None})[0]

"""With --json every verb prints exactly one JSON document on stdout, whatever else it has to say."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import cli
from tests import warm
from tests.ports import free_port

from .shell import SMALL, TACIT, run

ABOUT = """
[parties.a]
file = "a.csv"
id = "id"
label = "ill"
[parties.b]
file = "b.csv"
id = "id"
"""
HELPER = "[parties.notary]\nhelper = true\n"
JOBS = {
    "small.toml": SMALL,
    "compare.toml": SMALL + '[[algorithms]]\nname = "FedAvg"\n',
    "private.toml": '[data]\nname = "iris"\n[model]\nname = "logistic"\n[private]\nnoise_multiplier = 1.0\nepochs = 1\n'
    "batch_size = 16\n",
    "pate.toml": '[data]\nname = "iris"\n[model]\nname = "logistic"\n[aggregator]\nname = "GNMax"\nsigma = 3.0\n'
    "[lessons]\nepochs = 2\n[student]\nsteps = 2\n[pate]\nteachers = 4\nqueries = 5\npublic = 0.5\n",
    "split.toml": "[split]\nepochs = 1\ntop = [2]" + ABOUT + "bottom = [2]\n",
    "ftl.toml": "[ftl]\nwidth = 2\nepochs = 1" + ABOUT,
    "regress.toml": '[regress]\nfamily = "binomial"' + ABOUT + HELPER,
    "join.toml": '[[join.queries]]\nname = "x"\nwhat = "total"\nof = ["x"]\n'
    '[parties.a]\nfile = "a.csv"\nid = "id"\ncolumns = ["x"]\n'
    '[parties.b]\nfile = "b.csv"\nid = "id"\ncolumns = ["y"]\n' + HELPER,
    "link.toml": '[link]\nblocks = [["id"]]\n[link.fields]\nid = "code"\nill = "category"\n'
    '[parties.a]\nfile = "whole.csv"\n[parties.b]\nfile = "whole.csv"\n' + HELPER,
    "boost.toml": "[boost]\ntrees = 1\ndepth = 1\nbins = 4" + ABOUT + HELPER,
    "stats.toml": '[stats]\nnumbers = ["x"]\n[parties]\na = "a.csv"\nc = "c.csv"\nd = "d.csv"\n',
    "infer.toml": '[infer]\ncolumns = ["x", "y"]\n[parties.a]\nholds = "model"\nfile = "trees.json"\n[parties.b]\n'
    'holds = "rows"\nfile = "new.csv"\nid = "id"\n' + HELPER,
}
LIMITS = ("membership", "members", "rebuilt")
DATA = ("--columns", "columns.toml")
# every verb, in an order in which each finds the files that it needs
SUCCEED: dict[str, tuple[str, ...]] = {
    "run": ("small.toml", "--out", "runs/r"),
    "compare": ("compare.toml", "--out", "runs/c"),
    "data list": (),
    "data show": ("iris",),
    "job new": ("c.csv", "d.csv", "--label", "ill", "--out", "drafted.toml"),
    "report": ("runs/r",),
    "algorithms": (),
    "plan": ("small.toml",),
    "train-private": ("private.toml", "--out", "runs/p"),
    "pate": ("pate.toml", "--out", "runs/pate"),
    "anonymize": (
        *("whole.csv", "--quasi", "x", "--k", "2", "--out", "anonymous.csv", "--drop", "y", "--person", "id"),
        *("--history", "history.json"),
    ),
    "risk": ("whole.csv", "anonymous.csv", "--quasi", "x"),
    "anonymize-again": ("whole.csv", "--after", "history.json", "--drop", "y", "--out", "again.csv"),
    "tabulate": ("whole.csv", "--by", "ill", "--out", "counts.csv"),
    "hierarchies": ("whole.csv", "--columns", "x", "--out", "hierarchies.html"),
    "synth": ("whole.csv", "--model", "independent", "--out", "synthetic.csv"),
    "synthesize": ("c.csv", "d.csv", *DATA, "--out", "joint.csv"),
    "psi": ("--file", "a.csv", "--id", "id", "--try", "b.csv", "--out", "shared.csv"),
    "split": ("split.toml", "--out", "parts-split"),
    "ftl": ("ftl.toml", "--out", "parts-ftl"),
    "regress": ("regress.toml", "--out", "parts-regress"),
    "join": ("join.toml", "--out", "parts-join"),
    "link": ("link.toml", "--out", "parts-link"),
    "boost": ("boost.toml", "--out", "parts-boost"),
    "predict": ("parts-boost", "--file", "a=new.csv", "--file", "b=new.csv", "--out", "predicted.csv"),
    "stats": ("describe", "stats.toml"),
    "infer": ("infer.toml", "--out", "scores.csv"),
    "export": ("runs/r", "--to", "tensorboard"),
    "audit": ("runs/r", "--budget", "1s", *(w for n in LIMITS for w in ("--limit", f"{n}=none"))),
    "dpo": ("runs/r",),
    "provision": ("federation.toml", "-o", "kits"),
    "nats": ("--host", "127.0.0.1", "-o", "nats"),
    "code": ("tests.clinics:make",),
    "party requests": ("--kit", "kits/a"),
    "party log": ("--kit", "kits/a"),
    "simulate-parties": ("small.toml", "--out", "runs/s"),
    "study": ("list",),
    "runs": (),
    "runs list": (),
    "runs show": ("r",),
    "runs tag": ("r", "--add", "t"),
    "runs rm": ("r",),
    "completion": ("bash",),
    "doctor": (),
}
# what cannot succeed without others: an error is one document, too
REFUSE: dict[str, tuple[str, ...]] = {
    "party": ("small.toml", "--kit", "kits/a", "--data", "c.csv", "--check"),  # no hub listens
    "ledger": ("--kit", "kits/a"),  # of a party that took part in nothing
    "party approve": ("0" * 12, "--kit", "kits/a"),
    "party deny": ("0" * 12, "--kit", "kits/a"),
}
SERVE: dict[str, tuple[str, ...]] = {"hub": ("--kit", "kits/hub"), "ui": ("runs", "--port", "0")}


def verbs() -> list[str]:
    (found,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    inner = {}
    for name, parser in found.choices.items():
        nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        inner |= {f"{name} {word}": None for a in nested for word in a.choices} if nested else {name: None}
    return list(inner)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=120).round(2), rng.normal(size=120).round(2)
    ill = np.where(x + y + rng.normal(size=120) > 0, "yes", "no")
    whole = pd.DataFrame({"id": [f"P{k:03d}" for k in range(120)], "x": x, "y": y, "ill": ill})
    whole.to_csv(folder / "whole.csv", index=False)
    whole[["id", "x", "ill"]].to_csv(folder / "a.csv", index=False)
    whole[["id", "y"]].to_csv(folder / "b.csv", index=False)
    whole[["id", "x", "y"]].to_csv(folder / "new.csv", index=False)
    for k, name in enumerate("cd"):
        whole.drop(columns="id")[k::2].to_csv(folder / f"{name}.csv", index=False)
    rows = {name: pd.read_csv(folder / f"{name}.csv") for name in "cd"}
    tacit.boost.train(rows, label="ill", trees=1, depth=1, bins=4).save(folder / "trees.json")
    for name, text in JOBS.items():
        (folder / name).write_text(text)
    (folder / "columns.toml").write_text(
        'x = {kind = "continuous", low = -5, high = 5}\ny = {kind = "continuous", low = -5, high = 5}\n'
        'ill = {kind = "categorical", values = ["no", "yes"]}\n'
    )
    (folder / "federation.toml").write_text(
        f'name = "f"\nhub = "127.0.0.1:{free_port()}"\nclients = ["a", "b"]\n'
    )
    return folder


def document(verb: str, out: str) -> Any:
    value = json.loads(out)  # more than one document, or a line beside it, is an error here
    assert isinstance(value, dict), f"tacit {verb} --json printed {type(value).__name__}"
    return value


def test_every_verb_is_in_one_of_the_tables() -> None:
    assert sorted(verbs()) == sorted([*SUCCEED, *REFUSE, *SERVE])


def test_every_verb_that_succeeds_prints_one_document(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("subprocess.Popen", warm.start)
    for verb, words in SUCCEED.items():
        code, out, err = run(capsys, *verb.split(), *words, "--json")
        assert code == 0, f"{verb}: {out}{err}"
        assert "error" not in document(verb, out)
    for verb, words in REFUSE.items():
        code, out, err = run(capsys, "--json", *verb.split(), *words)
        assert code == 2, f"{verb}: {err}"
        value = document(verb, out)
        assert verb == "party" or value["error"]["message"] in err  # a check has a document of its own


@pytest.mark.parametrize("verb", [*SUCCEED, *REFUSE, *SERVE])
def test_every_verb_that_fails_prints_one_document(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words in an empty directory; verbs that need no file succeed there."""
    monkeypatch.chdir(tmp_path)
    words = {**SUCCEED, **REFUSE, **SERVE}[verb]
    if verb in ("ui", "simulate-parties"):
        words = ("missing", *words[1:])
    code, out, err = run(capsys, *verb.split(), *words, "--json")
    value = document(verb, out)
    assert ("error" in value) == (code != 0)
    if code:
        assert code == 2, err
        assert value["error"]["message"]
        assert "Traceback" not in err


@pytest.mark.parametrize("verb", SERVE)
def test_a_server_prints_one_document_until_it_is_stopped(place: Path, verb: str) -> None:
    words = [*TACIT, verb, *SERVE[verb], "--json"]
    if not (place / "kits").is_dir():
        assert cli.main(["provision", str(place / "federation.toml"), "-o", str(place / "kits")]) == 0
    (place / "runs").mkdir(exist_ok=True)
    process = warm.Popen(words, cwd=place, text=True, stdout=warm.PIPE, stderr=warm.PIPE)
    assert process.stderr is not None
    ready = {"hub": "listens", "ui": "open it in a browser"}[verb]
    for line in process.stderr:
        if ready in line:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    value = document(verb, out)
    if verb == "ui":
        assert value["address"].startswith("http://127.0.0.1:")
    else:
        assert value["error"]["kind"] == "Stopped"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run", "--bogus"), "unrecognized arguments: --bogus"),
        (("dpo",), "the following arguments are required: run"),
        (("completion", "tcsh"), "'tcsh' is not known"),
    ],
)
def test_words_that_are_no_command_are_one_document_too(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*words, "--json"])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert text in json.loads(out)["error"]["message"]
    assert "usage: tacit" in err
    with pytest.raises(SystemExit):
        cli.main(list(words))
    assert capsys.readouterr().out == ""

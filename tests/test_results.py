"""Every verb returns an object with the same methods."""

from __future__ import annotations

import html
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data, models
from tacit.errors import BadParameter, BadRun
from tacit.report import read_run
from tacit.results import JobResult, encode_plain
from tacit.synth import categorical, integer
from tests.jobs.studies import small

FED = data.gaussian_blobs(rows=80, seed=0).split(3, seed=0)
X, Y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 2
HOSTILE = "<script>alert('&')</script>"  # a name that another party chose
TABLE = pd.DataFrame({"age": [30, 31, 52, 53] * 3, "sex": ["F", HOSTILE] * 6, "ill": ["yes", "no"] * 6})
PEOPLE = pd.DataFrame({"name": ["Ada Byron", HOSTILE], "born": ["1815-12-10", "1912-06-23"]})
OPTIONS: dict[str, Any] = {"model": "logistic", "rounds": 1}


async def greet(me: Any) -> dict[str, Any]:
    return {"name": me.name, "numbers": np.arange(3)}


def transfer_tables() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(40, 3))
    frame = pd.DataFrame(x, columns=list("abc")).assign(
        id=[f"p{k}" for k in range(40)], ill=np.where(x[:, 0] > 0, "yes", "no")
    )
    source = data.from_frame(frame[["id", "a", "ill"]], label="ill", id="id", test_fraction=0)
    return source, data.from_frame(frame.iloc[10:][["id", "b", "c"]], id="id")


def again() -> JobResult:
    people = TABLE[["age", "sex"]].assign(id=range(len(TABLE)))
    return tacit.anonymize_again(
        people, tacit.anonymize(people, quasi=["age", "sex"], k=2, person="id").record_release()
    )


# the smallest call of each verb; `out` is an unused directory
CALLS: dict[str, Callable[[Path], Any]] = {
    "align": lambda out: tacit.align({HOSTILE: ["x", "y"], "b": ["y"], "c": ["y"]}),
    "anonymize": lambda out: tacit.anonymize(TABLE[["age", "sex"]], quasi=["age", "sex"], k=2),
    "anonymize_again": lambda out: again(),
    "compare": lambda out: tacit.compare(FED, **OPTIONS),
    "contribution": lambda out: tacit.contribution(tacit.train(FED, **OPTIONS)),
    "fedmd": lambda out: tacit.fedmd(
        FED, models=["logistic"] * 3, public=FED.test.x, rounds=1, first_epochs=1
    ),
    "ftl": lambda out: tacit.ftl(
        *transfer_tables(), epochs=1, first_epochs=1, width=2, names=(HOSTILE, "target")
    ),
    "gossip": lambda out: tacit.gossip(FED, graph=tacit.graphs.ring(3), **OPTIONS),
    "infer": lambda out: tacit.infer(torch.nn.Linear(2, 1), X, owner=HOSTILE),
    "join": lambda out: tacit.join(
        {who: TABLE[["age"]].assign(id=range(len(TABLE))) for who in (HOSTILE, "b")}, on="id", minimum=3
    ),
    "link": lambda out: tacit.link(
        PEOPLE, PEOPLE, fields={"name": "name", "born": "date"}, names=(HOSTILE, "b")
    ),
    "pate": lambda out: tacit.pate(
        data.gaussian_blobs(rows=80, seed=0),
        teachers=3,
        queries=4,
        aggregator=tacit.private.GNMax(1.0),
        model="logistic",
        student=tacit.private.Student(steps=2),
    ),
    "plan": lambda out: tacit.plan(FED, **OPTIONS),
    "psi": lambda out: tacit.psi([HOSTILE, "y"], ["y", HOSTILE], names=(HOSTILE, "b")),
    "regress": lambda out: tacit.regress(
        {HOSTILE: X[:, :1], "b": X[:, 1:]}, {"b": Y}, test_fraction=0, epochs=2
    ),
    "risk": lambda out: tacit.risk(TABLE, TABLE, ["age", "sex"], sensitive="ill"),
    "run_programs": lambda out: tacit.run_programs({HOSTILE: greet, "b": greet}),
    "splitnn": lambda out: tacit.splitnn({HOSTILE: X}, {"b": Y}, configuration="vanilla", epochs=1),
    "study": lambda out: tacit.study(small(out.parent), quick=True, out=out),
    "synthesize": lambda out: tacit.synthesize(
        {HOSTILE: TABLE[["age", "sex"]], "b": TABLE[["age", "sex"]]},
        {"age": integer(0, 120), "sex": categorical(["F", HOSTILE])},
    ),
    "tabulate": lambda out: tacit.tabulate(TABLE, ["sex"], k=2),
    "train": lambda out: tacit.train(FED, **{**OPTIONS, "rounds": 2}),
    "train_private": lambda out: tacit.train_private(data.digits(), model="logistic", epsilon=1.0, epochs=1),
}
CONTEXTS = {"client"}  # used with `with` in a party's script; the run's result is at the server
VERBS = [
    name
    for name in tacit.__all__
    if inspect.isfunction(getattr(tacit, name))
    and getattr(tacit, name).__module__.startswith("tacit.jobs.")
    and name not in CONTEXTS
]


@pytest.fixture(scope="module")
def result_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], JobResult]:
    @cache
    def call(verb: str) -> JobResult:
        return CALLS[verb](tmp_path_factory.mktemp(verb) / "out")  # type: ignore[no-any-return]

    return call


def test_every_public_verb_is_called_here() -> None:
    assert sorted(CALLS) == sorted(VERBS)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_a_result_has_a_value_a_ledger_a_report_a_save_and_plain_values(
    verb: str, result_of: Callable[[str], JobResult], tmp_path: Path
) -> None:
    result = result_of(verb)
    assert isinstance(result, JobResult)
    declared = inspect.signature(getattr(tacit, verb)).return_annotation
    assert declared in [base.__name__ for base in type(result).__mro__]
    assert isinstance(result.ledger, tacit.Ledger)
    assert result.value is not None
    assert result.report(tmp_path / "page.html") == tmp_path / "page.html"
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["ledger"] == result.ledger.to_dict()
    # nothing ran in a plan: it shows who would see what
    shown = str(result.ledger) if verb != "plan" else f"the server sees: {result.value[0]['what']}"
    assert shown in str(result)
    assert html.escape(shown) in result._repr_html_()


def contents(path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in (path, *path.rglob("*")) if p.is_file()}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_save_writes_to_a_new_path_only(
    verb: str, result_of: Callable[[str], JobResult], tmp_path: Path
) -> None:
    result, path = result_of(verb), tmp_path / "saved.csv"
    assert result.save(path) == path
    before = contents(path)
    assert before
    with pytest.raises((BadParameter, BadRun), match=r"save: .*saved\.csv") as error:
        result.save(path)
    assert "Choose another" in str(error.value)
    assert "esume" not in str(error.value)
    assert contents(path) == before


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_the_report_and_the_notebook_escape_names_that_others_chose(
    verb: str, result_of: Callable[[str], JobResult], tmp_path: Path
) -> None:
    result = result_of(verb)
    page = result.report(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    for shown in (page, result._repr_html_()):
        assert "<" in shown
        assert "<script>alert" not in shown


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_report_without_a_path_is_written_to_the_current_directory(
    result_of: Callable[[str], JobResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in ("psi", "anonymize", "splitnn", "train"):
        assert result_of(verb).report().resolve() == tmp_path / "report.html"


def test_a_saved_run_is_a_run_directory(result_of: Callable[[str], JobResult], tmp_path: Path) -> None:
    result = result_of("train")
    assert isinstance(result, tacit.Result)
    result.save(tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert [e["round"] for e in record.rounds if e["round"]] == [1, 2]
    from safetensors.torch import load_file

    model = models.build("logistic", tuple(FED.rows.x.shape[1:]), FED.classes or 1, 0)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    x = FED.rows.x[:4]
    assert torch.equal(model(x), result.model(x))
    with pytest.raises(BadRun):
        result.save(tmp_path / "run")  # a run is never overwritten


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_save_writes_a_table_as_csv_without_row_labels_and_other_values_as_json(
    result_of: Callable[[str], JobResult], tmp_path: Path
) -> None:
    anonymous = result_of("anonymize")
    table = pd.read_csv(anonymous.save(tmp_path / "table.csv"), dtype=str)
    assert list(table.columns) == ["age", "sex"]
    assert table.to_numpy().tolist() == anonymous.value.astype(str).to_numpy().tolist()
    measures = pd.read_csv(result_of("risk").save(tmp_path / "risk.csv"))
    assert list(measures.columns) == ["measure", "before", "after"]
    shared = result_of("psi")
    assert json.loads(shared.save(tmp_path / "ids.json").read_text()) == shared.to_dict()
    with pytest.raises(BadParameter, match="already exists"):
        shared.save(tmp_path / "ids.json")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("verb", ["anonymize", "risk"])
@pytest.mark.parametrize("name", ["table.xlsx", "table", "table.gz", "csv"])
def test_a_table_is_saved_under_a_name_that_determines_its_format(
    verb: str, name: str, result_of: Callable[[str], JobResult], tmp_path: Path
) -> None:
    with pytest.raises(BadParameter, match=r"must end in \.csv, \.csv\.gz or \.parquet"):
        result_of(verb).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_report_of_a_plan_shows_the_sentences_of_its_text(tmp_path: Path) -> None:
    plan = tacit.plan(FED, **OPTIONS, guard=[tacit.guard.Clip(1.0)])
    page = plan.report(tmp_path / "plan.html").read_text()
    for line in str(plan).splitlines():
        assert line in html.unescape(page)
    assert "Clip" in page
    for words in ("tolerated</td>", "spends", "No messages were sent"):
        assert words not in page


def test_an_unfitted_generator_is_shown_by_its_parameters() -> None:
    generator = tacit.synth.GaussianCopula(seed=3)
    assert str(generator) == repr(generator)
    assert html.escape(repr(generator)) in generator._repr_html_()


def test_what_json_lacks_is_written_as_text() -> None:
    values = {
        "a": float("nan"),
        "b": np.arange(2),
        "c": torch.ones(1),
        "d": {3, 1},
        "e": greet,
        "f": np.float32(2),
        "g": [{("x", 1): 2}],
    }
    plain = encode_plain(values)
    known = {"a": "nan", "b": [0, 1], "c": [1.0], "d": [1, 3], "e": repr(greet), "f": 2.0}
    assert plain == {**known, "g": [{"('x', 1)": 2}]}


def test_a_notebook_shows_no_row_labels_of_an_anonymized_table() -> None:
    people = pd.DataFrame(
        {"age": range(20, 60), "ill": [0, 1] * 20}, index=[f"person {i}" for i in range(40)]
    )
    result = tacit.anonymize(people, quasi=["age"], k=5)
    assert "person" not in result._repr_html_() + str(result) + json.dumps(result.to_dict())


def test_a_pate_result_reveals_no_votes(result_of: Callable[[str], JobResult], tmp_path: Path) -> None:
    result = result_of("pate")
    assert not {"confidential", "teachers", "counts", "consensus"} & set(result.to_dict())
    assert "consensus" not in result._repr_html_()

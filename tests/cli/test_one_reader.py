"""Every verb that takes a CSV file reads a German one as the same table in the default format.

The list of verbs is that of the argument parser: a verb that takes a table and has not the three options, or
is in none of the lists here, fails.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit import cli
from tacit.cli.verbs import DETECTED, READING
from tacit.data.table_files import read_table
from tacit.jobs import infer_deployed
from tacit.jobs.vertical import split_deployed

from .shell import Role, provision, refused, run
from .test_json import verbs

GERMAN = ("--separator", ";", "--decimal", ",", "--encoding", "cp1252")
IN_JOB = 'separator = ";"\ndecimal = ","\nencoding = "cp1252"\n'
HELPER = "[parties.notar]\nhelper = true\n"
ABOUT = """
[parties.bank]
file = "bank.csv"
id = "nummer"
label = "fällig"
[parties.laden]
file = "händler.csv"
id = "kürzel"
"""
DATA = '[data]\npath = "alle.csv"\nlabel = "fällig"\ndrop = ["nummer"]\n'
HERE = '[parties]\nnord = "nord.csv"\nsüd = "süd.csv"\n'.replace("süd =", '"süd" =')
MODEL = '[model]\nname = "logistic"\n'
JOBS = {
    "run.toml": DATA + "parties = 2\n" + MODEL + "[train]\nrounds = 2\n",
    "compare.toml": DATA + "parties = 2\n" + MODEL + '[train]\nrounds = 2\n[[algorithms]]\nname = "FedAvg"\n',
    "private.toml": DATA + MODEL + "[private]\nnoise_multiplier = 1.0\nepochs = 1\nbatch_size = 16\n",
    "pate.toml": DATA
    + MODEL
    + '[aggregator]\nname = "GNMax"\nsigma = 0.01\n[lessons]\nepochs = 2\n[student]\n'
    "steps = 2\n[pate]\nteachers = 5\nqueries = 5\npublic = 0.5\n",
    "split.toml": "[split]\nepochs = 0\ntest_fraction = 0.0\ntop = [2]" + ABOUT + "bottom = [2]\n",
    "ftl.toml": "[ftl]\nwidth = 2\nepochs = 0\nfirst_epochs = 0" + ABOUT,
    "regress.toml": '[regress]\nfamily = "binomial"' + ABOUT + 'drop = ["ort"]\n' + HELPER,
    "join.toml": '[[join.queries]]\nname = "größe"\nwhat = "total"\nof = ["größe"]\nby = "laden.ort"\n'
    '[parties.bank]\nfile = "bank.csv"\nid = "nummer"\ncolumns = ["größe"]\n'
    '[parties.laden]\nfile = "händler.csv"\nid = "kürzel"\ncolumns = ["gewicht", "ort"]\n' + HELPER,
    "link.toml": '[link]\nblocks = [["nummer"]]\n[link.fields]\nnummer = "code"\n"größe" = "code"\n'
    '[parties.bank]\nfile = "bank.csv"\n[parties.laden]\nfile = "alle.csv"\n' + HELPER,
    "boost.toml": "[boost]\ntrees = 1\ndepth = 1\nbins = 4" + ABOUT + HELPER,
    "boost-rows.toml": '[boost]\nlabel = "fällig"\nlabels = ["nö", "ja"]\nfeatures = ["größe", "ort"]\n'
    'categories = { ort = ["Köln", "Mölln", "Düren"] }\ntrees = 1\ndepth = 1\nbins = 4\n' + HERE,
    "woe.toml": '[stats]\nevent = "ja"\nbins = 3' + ABOUT + HELPER,
    "stats.toml": '[stats]\nnumbers = ["größe", "gewicht"]\ncategories = { ort = ["Köln", "Mölln", "Düren"] }\n'
    + HERE,
    "infer.toml": '[infer]\ncolumns = ["größe", "ort"]\n[parties.bank]\nholds = "model"\nfile = "trees.json"\n'
    '[parties.laden]\nholds = "rows"\nfile = "neu.csv"\nid = "nummer"\n' + HELPER,
    "tables.toml": '[tables.kunde]\nfile = "kunde.csv"\nkey = "nummer"\n[tables.kauf]\nfile = "kauf.csv"\n'
    'foreign_keys = [{columns = ["nummer"], references = "kunde"}]\n',
    "events.toml": 'jahr = {kind = "integer", low = 2000, high = 2010}\n'
    '"größe" = {kind = "continuous", low = 100, high = 250}\n',
    "columns.toml": '"größe" = {kind = "continuous", low = 100, high = 250}\n'
    'gewicht = {kind = "continuous", low = 20, high = 120}\n'
    'ort = {kind = "categorical", values = ["Köln", "Mölln", "Düren"]}\n'
    '"fällig" = {kind = "categorical", values = ["nö", "ja"]}\n',
}
PARTIES = ("split", "ftl", "regress", "join", "link", "boost", "woe", "infer")  # files with [parties.NAME]

# the words of each verb that reads a table; with {job} the options may be in the job file instead
READ: dict[str, tuple[str, ...]] = {
    "data show": ("nord.csv", "--by", "ort", "--label", "fällig"),
    "job new": ("alle.csv", "--label", "fällig", "--out", "drafted.toml"),
    "anonymize": (
        *("alle.csv", "--quasi", "größe,plz", "--sensitive", "ort", "--k", "3"),
        *("--out", "anonymous.csv", "--history", "history.json", "--person", "nummer"),
    ),
    "risk": ("alle.csv", "anonymous.csv", "--quasi", "größe,plz", "--sensitive", "ort"),
    "anonymize-again": ("alle.csv", "--after", "history.json", "--out", "again.csv"),
    "tabulate": ("alle.csv", "--by", "ort,fällig", "--out", "counts.csv"),
    "hierarchies": ("alle.csv", "--columns", "größe,plz,ort", "--out", "hierarchies.html"),
    "synth": ("alle.csv", "--model", "cart", "--drop", "nummer", "--out", "cart.csv"),
    "synth --entity": ("kauf.csv", "--entity", "nummer", "--time", "jahr", "--out", "events.csv"),
    "synth tables": ("{job}tables.toml", "--out", "tables"),
    "synth --impute": (
        *("alle.csv", "--model", "argn", "--epochs", "1", "--drop", "nummer", "--impute", "lücken.csv"),
        *("--out", "filled.csv"),
    ),
    "synth --model privatesequences": (
        *("kauf.csv", "--model", "privatesequences", "--entity", "nummer", "--time", "jahr"),
        *("--columns", "events.toml", "--set", "epsilon=1", "--insecure-seed", "1", "--rows", "20"),
        *("--out", "private.csv"),
    ),
    "synthesize": (
        "nord.csv",
        "süd.csv",
        "--columns",
        "columns.toml",
        "--rows",
        "50",
        "--out",
        "joint-synth.csv",
    ),
    "psi": ("--file", "bank.csv", "--id", "nummer", "--try", "alle.csv", "--out", "shared.csv"),
    "psi --reveal": (
        *("--file", "bank.csv", "--id", "nummer", "--try", "alle.csv"),
        *("--reveal", "sum", "--values", "alter"),
    ),
    "psi --prepare": ("--file", "bank.csv", "--id", "nummer", "--prepare", "prepared"),
    "split": ("{job}split.toml", "--out", "parts-split"),
    "ftl": ("{job}ftl.toml", "--out", "parts-ftl"),
    "regress": ("{job}regress.toml", "--out", "parts-regress"),
    "join": ("{job}join.toml", "--out", "parts-join"),
    "link": ("{job}link.toml", "--out", "parts-link"),
    "boost": ("{job}boost.toml", "--out", "parts-boost"),
    "boost rows": ("{job}boost-rows.toml", "--out", "trees.json"),
    "stats": ("describe", "{job}stats.toml", "--out", "plain.csv"),
    "stats woe": ("woe", "{job}woe.toml", "--out", "parts-woe"),
    "infer": ("{job}infer.toml", "--out", "scores.csv"),
    "predict": ("trees.json", "neu.csv", "--keep", "nummer,plz", "--out", "predicted.csv"),
    "predict parts": (
        *("parts-boost", "--file", "bank=bank.csv", "--file", "laden=händler.csv", "--out", "joint.csv"),
    ),
    "audit": (
        *("anonymous.csv", "--original", "alle.csv", "--quasi", "größe,plz", "--sensitive", "ort"),
        *("--budget", "1s", "--limit", "linked=none", "-o", "audit.html"),
    ),
}
# verbs whose job file has [data], which says how its table is read: no option of the verb
SAY_IN_JOB: dict[str, tuple[str, ...]] = {
    "run": ("run.toml", "--out", "runs/r"),
    "compare": ("compare.toml", "--out", "runs/c"),
    "train-private": ("private.toml", "--set", "private.insecure_seed=1", "--out", "runs/p"),
    "pate": ("pate.toml", "--out", "runs/pate"),
    "plan": ("boost.toml",),
    "simulate-parties": ("run.toml", "--out", "runs/s"),
}
APART = ("party",)  # with a hub, below
# verbs that read no table
OTHERS = (
    *(
        "data list",
        "report",
        "algorithms",
        "export",
        "dpo",
        "ledger",
        "code",
        "provision",
        "nats",
        "hub",
        "study",
    ),
    *("party requests", "party approve", "party deny", "party log", "ui", "completion", "doctor"),
    *("runs", "runs list", "runs show", "runs tag", "runs rm"),
)
UNRELATED = {("study", "only"), ("train-private", "job")}  # rows of printed tables, and a table of TOML
TABLE = re.compile(r"\.csv|\.parquet|\bCSV\b|\btable\b")
NEEDS = {
    **dict.fromkeys(("risk", "anonymize-again", "audit"), "anonymize"),
    **dict.fromkeys(("predict", "infer"), "boost rows"),
    "predict parts": "boost",
}
# of what verbs print: times, messages with random numbers, and settings that differ on purpose
UNSETTLED = (
    "seconds",
    "fit_seconds",
    "ledger",
    "reading",
    "separator",
    "decimal",
    "encoding",
    "history",
    "losses",
    "job",
)


def parser_of(verb: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = cli._parser()
    for word in [verb] if verb.startswith(("party ", "runs ")) else verb.split():
        (sub,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = sub.choices[word]
    return parser


def named(cases: Iterable[str]) -> set[str]:
    """The verbs of cases: `synth --impute` is a case of `synth`."""
    known = sorted(verbs(), key=len)
    return {next(v for v in reversed(known) if case == v or case.startswith(f"{v} ")) for case in cases}


def test_every_verb_of_the_parser_is_in_one_of_the_lists() -> None:
    lists = (named(READ), set(SAY_IN_JOB), set(APART), set(OTHERS))
    assert sorted(verbs()) == sorted(v for some in lists for v in some)


@pytest.mark.parametrize("verb", sorted({*verbs()} - {*OTHERS} - {*SAY_IN_JOB}))
def test_every_verb_that_takes_a_table_has_the_three_options_and_their_text(verb: str) -> None:
    actions = {name: a for a in parser_of(verb)._actions for name in a.option_strings}
    for option in DETECTED if verb == "job new" else READING:
        action = actions[option.names[0]]
        assert (action.help, action.metavar, action.default) == (
            option.options["help"],
            option.options["metavar"],
            None,
        )


@pytest.mark.parametrize("verb", sorted({*OTHERS, *SAY_IN_JOB}))
def test_no_other_verb_has_an_argument_that_names_a_table(verb: str) -> None:
    found = [
        (a.dest, a.help)
        for a in parser_of(verb)._actions
        if a.dest not in ("out", "output")
        and (verb, a.dest) not in UNRELATED
        and TABLE.search(f"{a.metavar} {a.help}")
    ]
    assert not found


def write_tables(folder: Path, write: Callable[[pd.DataFrame, Path], None]) -> None:
    rng = np.random.default_rng(0)
    n = 180
    whole = pd.DataFrame(
        {
            "nummer": [f"{k:04d}" for k in range(n)],
            "größe": rng.normal(170, 15, n).round(1),
            "gewicht": rng.normal(70, 9, n).round(2),
            "alter": rng.integers(20, 80, n),
            "plz": rng.choice(["01067", "04109", "50667"], n),
            "ort": rng.choice(["Köln", "Mölln", "Düren"], n),
        }
    )
    whole["fällig"] = np.where(whole["größe"] + rng.normal(0, 9, n) > 170, "ja", "nö")
    tables = {
        "alle": whole,
        "neu": whole[["nummer", "größe", "gewicht", "plz", "ort"]].rename(columns={}).iloc[::3],
        "nord": whole[["größe", "gewicht", "ort", "fällig"]][::2],
        "süd": whole[["größe", "gewicht", "ort", "fällig"]][1::2],
        "bank": whole[["nummer", "größe", "fällig"]].iloc[:160],
        "händler": whole[["nummer", "gewicht", "ort"]].rename(columns={"nummer": "kürzel"}).iloc[10:],
        "lücken": whole.drop(columns="nummer").assign(**{"größe": whole["größe"].where(whole.index % 7 > 0)}),
        "kunde": whole[["nummer", "größe", "ort"]],
        "kauf": pd.DataFrame(
            {
                "nummer": whole["nummer"].repeat(3),
                "jahr": np.tile([2001, 2002, 2003], n),
                "größe": whole["größe"].repeat(3) + np.tile([0.0, 0.5, 1.5], n),
            }
        ),
    }
    for name, table in tables.items():
        write(table, folder / f"{name}.csv")


def write_plain(table: pd.DataFrame, file: Path) -> None:
    table.to_csv(file, index=False, na_rep="NA")


def write_german(table: pd.DataFrame, file: Path) -> None:
    table.to_csv(file, index=False, na_rep="NA", sep=";", decimal=",", encoding="cp1252")


def write_parquet(table: pd.DataFrame, file: Path) -> None:
    table.to_parquet(file, index=False)  # the content decides what a file is, not its name


class Place:
    """A directory with tables in one format; `options` are given with every command, or are in its job."""

    def __init__(self, folder: Path, write: Any, options: tuple[str, ...], in_job: bool):
        self.folder, self.options, self.in_job = folder, options, in_job
        folder.mkdir()
        write_tables(folder, write)
        for name, text in JOBS.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / f"own-{name}").write_text(self.with_options(name, text), encoding="utf-8")
        self.found: dict[str, tuple[Any, dict[str, Any]]] = {}

    def with_options(self, name: str, text: str) -> str:
        """The job file of parties that write into it how their files are read."""
        if not self.in_job:
            return text
        if name.removesuffix(".toml") in PARTIES or name == "tables.toml":
            return re.sub(r'(file = ".*csv"\n)', lambda m: m[1] + IN_JOB, text)
        return (
            text.replace("[data]\n", "[data]\n" + IN_JOB) if "[data]" in text else "[data]\n" + IN_JOB + text
        )

    def run(self, case: str, capsys: Any, monkeypatch: Any) -> tuple[Any, dict[str, Any]]:
        """What a command printed, and the tables and pages that it wrote."""
        if case in self.found:
            return self.found[case]
        if case in NEEDS:
            self.run(NEEDS[case], capsys, monkeypatch)
        monkeypatch.chdir(self.folder)
        before = set(self.folder.rglob("*"))
        (verb,) = named([case])
        own = any("{job}" in w for w in READ.get(case, ())) and self.in_job
        words = [w.format(job="own-" if own else "") for w in {**READ, **SAY_IN_JOB}[case]]
        if case in SAY_IN_JOB:
            words[0] = f"own-{words[0]}"
        options = () if own or case in SAY_IN_JOB else self.options
        code, out, err = run(capsys, *verb.split(), *words, *options, "--json")
        assert code == 0, f"{case}: {out}{err}"
        new = sorted(f for f in set(self.folder.rglob("*")) - before if f.is_file())
        files = {
            str(f.relative_to(self.folder)): read_table(f, text=True).astype(object)
            if f.suffix == ".csv"
            else f.read_text(encoding="utf-8")
            for f in new
            if f.suffix == ".csv" or f.name == "hierarchies.html"
        }
        self.found[case] = settle(json.loads(out)), files
        return self.found[case]


def settle(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: settle(v) for k, v in value.items() if k not in UNSETTLED}
    if isinstance(value, list):
        return [settle(v) for v in value]
    return value.replace("own-", "") if isinstance(value, str) else value


def check_same(case: str, a: Any, b: Any) -> None:
    """Equal but for rounding on secret shares."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), case
        for key in a:
            check_same(f"{case}, {key}", a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b), case
        for x, y in zip(a, b):
            check_same(case, x, y)
    elif isinstance(a, pd.DataFrame):
        assert list(a) == list(b), case
        check_same(case, a.to_numpy().ravel().tolist(), b.to_numpy().ravel().tolist())
    elif isinstance(a, float) or (isinstance(a, str) and re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", a)):
        assert float(a) == pytest.approx(float(b), rel=1e-3, abs=1e-4), case
    else:
        assert a == b, case


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    folder = tmp_path_factory.mktemp("reader")
    return {
        "bare": Place(folder / "bare", write_german, (), in_job=False),
        "plain": Place(folder / "plain", write_plain, (), in_job=False),
        "options": Place(folder / "options", write_german, GERMAN, in_job=False),
        "parquet": Place(folder / "parquet", write_parquet, GERMAN, in_job=False),
        "job": Place(folder / "job", write_german, GERMAN, in_job=True),
    }


# of a CSV file they read every cell as text, and what they say of numbers is not what they say of words
AS_TEXT = ("anonymize", "anonymize-again", "hierarchies")
IN_A_JOB = [case for case, words in READ.items() if any("{job}" in w for w in words)]


@pytest.mark.parametrize(
    ("case", "how"),
    [
        *((case, how) for how in ("options", "parquet") for case in READ),
        *((case, "job") for case in (*IN_A_JOB, *SAY_IN_JOB)),
    ],
)
def test_a_german_file_is_the_same_table_to_every_verb(
    case: str, how: str, places: dict[str, Place], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Parquet file has its own types, and the options are not about it."""
    expected, written = places["plain"].run(case, capsys, monkeypatch)
    found, files = places[how].run(case, capsys, monkeypatch)
    if how == "parquet" and case in AS_TEXT:
        assert found.keys() == expected.keys()
        assert files.keys() == written.keys()
        return
    check_same(case, expected, found)
    check_same(case, written, files)


BAD_OPTIONS = {
    "another encoding": ((), "is not UTF-8 text"),
    "an unknown encoding": (("--encoding", "latin-99"), "encoding is 'latin-99'; it must be the name of an"),
    "another separator": (
        ("--separator", ":", "--encoding", "cp1252"),
        "if the separator is ':'. The file seems to use ';'",
    ),
    "two characters": (("--separator", ";;"), "separator is ';;'; it must be one character"),
    "a tab as a shell passes it on": (("--separator", "\\t"), "Leave it out: a tab is detected."),
    "another decimal sign": (("--decimal", "x"), "decimal is 'x'; it must be '.' or ','"),
    "one sign for both": (
        ("--separator", ",", "--decimal", ","),
        "decimal is ','; it must be different from the separator",
    ),
}
BAD_FILES = {
    "no bytes": (b"", "is empty. The first line must name the columns."),
    "a name twice": (b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
    "a spreadsheet": (b"PK\x03\x04rest", "is a spreadsheet or a zip archive"),
}
# what needs the file of another command first is one more verb of the same code
ALONE = [case for case in READ if case not in NEEDS]


def words_of(case: str) -> list[str]:
    (verb,) = named([case])
    return [*verb.split(), *(w.format(job="") for w in READ[case])]


@pytest.mark.parametrize("case", ALONE)
def test_every_verb_refuses_wrong_options_with_the_same_words(
    case: str, places: dict[str, Place], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places["bare"].folder)
    for name, (options, message) in BAD_OPTIONS.items():
        if case == "job new" and name == "another encoding":
            continue  # it finds the encoding, and writes it into the job
        assert message in refused(capsys, *words_of(case), *options), name


@pytest.mark.parametrize("case", ALONE)
def test_every_verb_refuses_what_is_no_table_with_the_same_words(
    case: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "broken", write_plain, (), in_job=False)
    monkeypatch.chdir(place.folder)
    for name, (content, message) in BAD_FILES.items():
        for file in place.folder.glob("*.csv"):
            file.write_bytes(content)
        assert message in refused(capsys, *words_of(case)), name


DEPLOYED = {"ftl": "transfer", "infer": ""}


@pytest.mark.parametrize("name", PARTIES)
def test_parties_need_not_agree_on_how_each_reads_its_own_file(name: str, places: dict[str, Place]) -> None:
    """Their job files have one digest; with another party they have another."""
    module: Any = (
        infer_deployed
        if name == "infer"
        else import_module(f"tacit.jobs.vertical.{DEPLOYED.get(name, name)}_deployed")
    )
    digest = infer_deployed.digest_job if name == "infer" else split_deployed.job_digest
    job = places["job"].folder
    (job / "other.toml").write_text(
        (job / f"{name}.toml").read_text(encoding="utf-8").replace("laden", "markt"), encoding="utf-8"
    )
    plain, own, other = (
        digest(module.read(job / f)) for f in (f"{name}.toml", f"own-{name}.toml", "other.toml")
    )
    assert own == plain
    assert other != plain


# the others compare cells as text, or find the decimal sign
TYPED = [
    *("data show", "synth", "synth --entity", "synth tables", "synth --impute", "synthesize", "split", "ftl"),
    *("synth --model privatesequences", "regress", "join", "boost", "boost rows", "stats", "stats woe"),
]


@pytest.mark.parametrize("case", TYPED)
def test_numbers_with_a_comma_are_never_read_as_text(
    case: str, places: dict[str, Place], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places["bare"].folder)
    message = refused(capsys, *words_of(case), "--encoding", "cp1252")
    assert "the numbers have a decimal comma, like '" in message
    assert "on the command line --decimal ," in message


LAYOUT = """
[data]
label = "fällig"
labels = ["nö", "ja"]
numbers = ["größe", "gewicht"]
[model]
name = "logistic"
[train]
rounds = 1
"""


def test_one_party_of_several_reads_its_own_file_by_its_own_options(
    tmp_path: Path, places: dict[str, Place], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of all says nothing about files; `tacit stats` and `tacit party` take the options beside --data."""
    _, written = places["plain"].run("stats", capsys, monkeypatch)
    place = Place(tmp_path / "parties", write_plain, (), in_job=False)
    monkeypatch.chdir(place.folder)
    (place.folder / "party.toml").write_text(LAYOUT, encoding="utf-8")
    german = str(places["bare"].folder / "nord.csv")
    provision("nord", "sued")
    for name in ("nord", "sued"):
        (place.folder / "kits" / name / "policy.toml").write_text("[stats]\nmin_parties = 2\n")
    hub = Role(place.folder, "hub", "hub", "--kit", "kits/hub")
    try:
        common = ("stats", "describe", "stats.toml", "--kit")
        asked = Role(place.folder, "server", *common, "kits/server", "--out", "found.csv")
        clients = [
            Role(place.folder, "nord", *common, "kits/nord", "--data", german, *GERMAN),
            Role(place.folder, "sued", *common, "kits/sued", "--data", "süd.csv"),
        ]
        for role in (*clients, asked):
            assert role.wait() == 0, role.log.read_text()
        check_same("the table", written["plain.csv"], read_table("found.csv", text=True).astype(object))
        check = ("party", "--kit", "kits/nord", "--data", german, "--check", "party.toml")
        for options, code, message in (
            (GERMAN, 0, f"job party.toml with {german}"),
            ((), 2, "is not UTF-8 text"),
            (GERMAN[:2] + GERMAN[4:], 2, "the numbers have a decimal comma"),
        ):
            got, out, err = run(capsys, *check, *options)
            assert (got, message in out) == (code, True), out + err
        party = ("party", "--kit")
        roles = [
            Role(place.folder, "server", *party, "kits/server", "party.toml", "--out", "run"),
            Role(place.folder, "nord", *party, "kits/nord", "--data", german, *GERMAN),
            Role(place.folder, "sued", *party, "kits/sued", "--data", "süd.csv"),
        ]
        for role in roles:
            assert role.wait() == 0, role.log.read_text()
        # its model reads new files of the party as it read the one it was trained on; nobody else knows how
        for model, options in (("kits/nord/state/model", ()), ("kits/sued/state/model", GERMAN)):
            out = f"{model.split('/')[1]}-scores.csv"
            code, _, err = run(capsys, "predict", model, german, "--out", out, *options)
            assert code == 0, err
        known = {
            where: json.loads((place.folder / where / "pipeline.json").read_text())["metadata"].get("reading")
            for where in ("kits/nord/state/model", "kits/sued/state/model", "run")
        }
        own = dict(zip(("separator", "decimal", "encoding"), GERMAN[1::2]))
        assert list(known.values()) == [own, None, None]
    finally:
        hub.process.terminate()
        hub.wait()

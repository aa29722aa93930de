"""tacit boost as users type it: real parties through a hub, killed and restarted, and all files at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import tacit
from tacit.boost import agreement
from tacit.boost.program import BoostProgram
from tacit.errors import BadData
from tacit.stats import level_sketch
from tests.boost.tables import COLUMNS, divide, make_table
from tests.cli.shell import Role, answer, provision, refused, run

CLIENTS = ("p0", "p1", "p2")
JOB = """
[boost]
label = "yes"
features = ["a", "b", "c", "d"]
categories = ["c"]
trees = 3
depth = 2
bins = 16
min_rows = 5
"""
PARTIES = "[parties]\n" + "".join(f'{n} = "{n}.csv"\n' for n in CLIENTS)


def frames() -> dict[str, pd.DataFrame]:
    return divide(make_table(600)[[*COLUMNS, "yes"]], 3)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, frame in frames().items():
        frame.to_csv(f"{name}.csv", index=False)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "here.toml").write_text(JOB + PARTIES)
    return tmp_path


def start(place: Path, name: str, job: str, *more: str, dies_at: str | None = None) -> Role:
    data = () if name == "server" else ("--data", f"{name}.csv")
    return Role(place, name, "boost", job, "--kit", f"kits/{name}", *data, *more, dies_at=dies_at)


def expected(file: Path) -> dict:
    model = tacit.boost.train(
        frames(), label="yes", features=list(COLUMNS), categories=["c"], trees=3, depth=2, bins=16, min_rows=5
    )
    return json.loads(model.save(file).read_text())


def test_killed_parties_go_on_and_all_get_the_model_of_the_pooled_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provision(*CLIENTS)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        deaths = {"p1": "step 3 of", "server": "step 6 of"}
        roles = {
            n: start(place, n, "job.toml", "--out", f"{n}.json", dies_at=deaths.get(n))
            for n in ("server", *CLIENTS)
        }
        for name in deaths:
            roles[name].wait_for_death()
            roles[name] = start(place, name, "job.toml", "--out", f"{name}.json")
        assert [r.wait() for r in roles.values()] == [0] * 4, [r.log.read_text() for r in roles.values()]
        model = expected(place / "twin.json")
        for name in roles:
            assert json.loads((place / f"{name}.json").read_text()) == model
        assert "opened sums over all parties" in roles["server"].log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    # a server that was killed after it wrote its model, without a hub: it has what it needs
    again = ("boost", "job.toml", "--kit", "kits/server", "--out", "server.json")
    before = (place / "server.json").stat()
    capsys.readouterr()
    value = answer(capsys, *again)
    assert (value["trees"], value["model"]) == (3, "server.json")
    assert "had ended" in value["notes"][-1]
    assert (place / "server.json").stat() == before
    # a model of another job, a file of something else, and one where the sums are not all there
    assert "already exists" in refused(capsys, *again, "--set", "boost.trees=2")
    (place / "other.json").write_text("{}")
    assert "already exists" in refused(capsys, *again[:-1], "other.json")
    sums = sorted((place / "kits" / "server" / "state").glob("opened-*/*.json"), key=lambda f: int(f.stem))
    sums[-1].unlink()
    assert "already exists" in refused(capsys, *again)


def test_a_party_answers_only_the_job_and_the_policy_of_its_owner(place: Path) -> None:
    provision(*CLIENTS)
    (place / "kits" / "p2" / "policy.toml").write_text("[boost]\nmin_party_rows = 5\n")
    role = start(place, "p2", "job.toml")
    assert role.wait() == 2
    assert "min_party_rows is 1, and this party requires 5" in role.log.read_text()
    (place / "kits" / "p2" / "policy.toml").unlink()
    (place / "other.toml").write_text(JOB.replace("min_rows = 5", "min_rows = 1"))
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        roles = [start(place, "server", "other.toml")] + [start(place, n, "job.toml") for n in CLIENTS]
        assert [role.wait() for role in roles] == [2] * 4
        logs = [role.log.read_text() for role in roles[1:]]  # the first to refuse ends it for all
        assert any("not the agreed one" in log and "min_rows" in log for log in logs)
        assert not any("step 1 of" in log for log in logs)
    finally:
        hub.process.terminate()
        hub.wait()


def test_a_private_model_is_charged_to_the_lifetime_budget_of_the_party(place: Path) -> None:
    """Training, statistics and trees share [privacy] epsilon: p2 answers nothing beyond it."""
    provision(*CLIENTS)
    (place / "kits" / "p2" / "policy.toml").write_text("[stats]\nepsilon = 10.0\n[privacy]\nepsilon = 0.5\n")
    (place / "private.toml").write_text(
        '[boost]\nlabel = "yes"\nlabels = ["no", "yes"]\nfeatures = ["a", "c"]\ntrees = 2\ndepth = 2\n'
        'epsilon = 1.0\ncategories = { c = ["u", "v", "x"] }\nbounds = { a = [-4, 4] }\n'
    )
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        roles = [start(place, n, "private.toml") for n in ("server", *CLIENTS)]
        assert 0 not in [role.wait() for role in roles]
        assert (
            "ε = 0.5 for all training and statistics together. Nothing was sent" in roles[-1].log.read_text()
        )
    finally:
        hub.process.terminate()
        hub.wait()


def test_all_files_here(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = answer(capsys, "boost", "here.toml", "--out", "m.json", "--report", "report.html")
    assert value["trees"] == 3
    assert json.loads((place / "m.json").read_text()) == expected(place / "twin.json")
    assert "Boosted trees across parties" in (place / "report.html").read_text()
    assert "already exists" in refused(capsys, "boost", "here.toml", "--out", "m.json")
    assert "report.html already exists" in refused(capsys, "boost", "here.toml", "--report", "report.html")
    (place / "m.json").write_text("mine")
    answer(capsys, "boost", "here.toml", "--out", "m.json", "--force")
    assert json.loads((place / "m.json").read_text()) == expected(place / "again.json")
    err = refused(capsys, "boost", "here.toml", "--out", "p0.csv", "--force")
    assert "p0.csv is the input table" in err
    assert "not a writable directory" in refused(capsys, "boost", "here.toml", "--out", "none/m.json")
    code, out, _ = run(capsys, "boost", "here.toml", "--set", "boost.trees=1")
    assert code == 0
    assert "objective        binary" in out


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("", "there is no [boost] table"),
        ('[boost]\nlabel = "yes"\n', "features must be given"),
        ('[boost]\nlabel = "yes"\nfeatures = ["a"]\ntree = 3\n', "has no key 'tree'"),
        ('[boost]\nlabel = "yes"\nfeatures = ["a"]\ntrees = 0\ndepth = 77\n', "depth is 77"),
        ('[boost]\nlabel = "yes"\nfeatures = ["a"]\nepsilon = 1.0\n', "the range of 'a' too"),
        ('[boost]\nlabel = "yes"\nfeatures = ["z"]\n', "no column 'z'"),
        ('[boost]\nlabel = "yes"\nfeatures = "a"\n', "Write ['a']."),
        (
            '[boost]\nlabel = 3\nfeatures = ["a"]\ncuts = { a = ["x"] }\n',
            "cuts is {'a': ['x']}; it must be a table of lists of numbers",
        ),
    ],
)
def test_bad_job_files_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], job: str, message: str
) -> None:
    (place / "bad.toml").write_text(job + PARTIES)
    assert message in refused(capsys, "boost", "bad.toml")


def test_problems_of_all_tables_are_named_with_their_party(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "text.csv").write_text("a,yes\n1,no\nold,yes\n2,\n")
    (place / "short.csv").write_text("b,yes\n1,no\n")
    (place / "three.toml").write_text(
        '[boost]\nlabel = "yes"\nfeatures = ["a"]\n[parties]\nx = "text.csv"\ny = "short.csv"\n'
    )
    message = refused(capsys, "boost", "three.toml")
    assert "party 'x' (text.csv): column 'a' is not numeric (row 2 has 'old')" in message
    assert 'or declare it as a category: categories = ["a"].' in message
    assert "party 'x' (text.csv): 1 rows have no label ('yes')" in message
    assert "party 'y' (short.csv): the table of 'y' has no column 'a'" in message


@pytest.mark.parametrize(
    ("features", "label", "says"),
    [
        (
            '["b"]\ncategories = []',
            "a",
            "the label 'a' has more than 128 different values, and objective='binary' takes them for classes. "
            'If it is a number, set objective = "regression"',
        ),
        (
            '["a", "c"]\ncategories = ["a", "c"]',
            "yes",
            "and 'a' has most of them. Declare those of a column with many: "
            'categories = { a = ["a", "b"] }; or leave it out of features.',
        ),
        (
            '["a"]',
            "size",
            "(row 1 has 'size 0'). Replace such cells by missing values, or if it has classes, set",
        ),
    ],
)
def test_the_column_that_has_too_many_values_is_named_with_what_to_write(
    place: Path, capsys: pytest.CaptureFixture[str], features: str, label: str, says: str
) -> None:
    """Before: "the categorical columns have more than about 128 levels", with a key that boost has not."""
    for name, frame in frames().items():
        many = frame.assign(size=[f"size {k}" for k in range(len(frame))])
        if label == "yes":  # values of one row are not counted as levels
            many = pd.concat([many, many])
        many.to_csv(f"{name}.csv", index=False)
    kind = 'objective = "regression"\n' if label == "size" else ""
    (place / "many.toml").write_text(f'[boost]\nlabel = "{label}"\n{kind}features = {features}\n{PARTIES}')
    assert says in refused(capsys, "boost", "many.toml")


def test_the_coordinator_names_the_columns_when_only_all_parties_together_have_too_many() -> None:
    """A party's values are its own: the sum that cannot be read has none of them in the error."""
    terms = agreement.Terms(("c",), "yes", "binary", ("c",))
    total = sum(
        level_sketch.encode([(0, f"{who}{i}") for i in range(100)] + [(1, "no"), (1, "yes")])
        for who in "abcd"
    )
    steps = agreement.coordinate(BoostProgram(terms.to_dict()))
    next(steps)
    with pytest.raises(BadData, match=r"different values together, in 'c'\. Declare those") as error:
        steps.send(total)
    assert "a1" not in str(error.value)
    assert "If the label 'yes' is a number, set objective='regression'" in str(error.value)

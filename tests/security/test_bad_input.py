"""Bad input over real connections: refused with a clear sentence at the party it comes from, noted at the
server, and the others finish their run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import __version__, algorithms, data, pace
from tacit.errors import BadData, BadJob, MissingFiles, ProtocolError
from tacit.jobs.train import networked, party_rows
from tacit.jobs.train.client_work import ClientWork
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.member import member, run_alongside
from tacit.jobs.train.party_rows import read_layout, read_rows
from tacit.protocols import buffered, joining, rounds
from tacit.runtimes.inprocess import InProcess
from tests.runtimes.net import Net

ROUNDS = 4
LAYOUT = {
    "label": "sick",
    "labels": ["no", "yes"],
    "numbers": ["age", "chol"],
    "categories": {"sex": ["f", "m"]},
    "unseen": "refuse",
    "held_fraction": 0.2,
}


def federation() -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    return data.from_arrays(x, (x @ rng.normal(size=(4, 3))).argmax(1), classes=3).split(3, seed=0)


def run_with(evil: Callable[..., Any], tmp_path: Path, **more: Any) -> tuple[tacit.Result, BaseException]:
    """p0 and p1 are honest, p2 runs `evil(me, folder)`: what the run gave, and how p2 ended."""
    fed = federation()
    for k in range(3):
        party_rows.save_rows(fed, k, tmp_path / str(k))

    async def play() -> tuple[tacit.Result, Any]:
        async with Net.of("server", *fed.parties) as net, asyncio.timeout(300):
            through = networked.Deployed(net.kits["server"], {}, deadline=60.0, at_least=2)
            told = {
                "model": "logistic",
                "algorithm": algorithms.FedAvg(lr=0.1),
                "rounds": ROUNDS,
                "runtime": through,
                **more,
            }
            job = asyncio.create_task(asyncio.to_thread(tacit.train, fed, **told))
            honest = [
                asyncio.create_task(
                    net.party(
                        f"p{k}", lambda me, k=k: member(me, {"folder": str(tmp_path / str(k))}, str(tmp_path))
                    )
                )
                for k in (0, 1)
            ]
            bad = asyncio.create_task(net.party("p2", lambda me: evil(me, str(tmp_path / "2"))))
            result = await job
            await asyncio.gather(*honest)  # they were not disturbed
            (ended,) = await asyncio.gather(bad, return_exceptions=True)
            return result, ended

    result, ended = asyncio.run(play())
    assert [row["round"] for row in result.history] == list(range(1, ROUNDS + 1))
    assert all(row["sampled"] >= 2 for row in result.history)
    return result, ended


def sends(
    change: Callable[[float, dict[str, torch.Tensor]], tuple[float, dict[str, torch.Tensor]]],
) -> Callable[..., Any]:
    """A client that is honest but for what it does to its second update."""

    async def evil(me: Any, folder: str) -> None:
        work = ClientWork(me.name, {"folder": folder}, Path(folder), "")

        def local(r: int, down: Any) -> Any:
            weight, vectors = work.local(r, down)
            return change(weight, vectors) if r == 1 else (weight, vectors)

        async def free() -> None:
            await me.scope(joining.SCOPE).send("server", joining.Free())

        await run_alongside(
            rounds.client(me, local, work.test, done=free),
            joining.attend(me, "server", __version__, work.prepare),
        )

    return evil


def spoiled(v: torch.Tensor, value: float) -> torch.Tensor:
    v = v.clone()
    v[0] = value
    return v


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda w, v: (w, {k: x[:-1] for k, x in v.items()}),
            "its vector 'delta' has the shape (14,) and torch.float32; it must be (15,) and torch.float32",
        ),
        (
            lambda w, v: (w, {k: x.double() for k, x in v.items()}),
            "its vector 'delta' has the shape (15,) and torch.float64",
        ),
        (
            lambda w, v: (w, {k: spoiled(x, float("nan")) for k, x in v.items()}),
            "its vector 'delta' contains NaN or infinity",
        ),
        (
            lambda w, v: (w, {k: spoiled(x, float("inf")) for k, x in v.items()}),
            "its vector 'delta' contains NaN or infinity",
        ),
        (lambda w, v: (w, {**v, "extra": torch.zeros(1)}), "its answer has an unexpected vector 'extra'"),
        (lambda w, v: (w, {}), "its answer has no vector 'delta'"),
        (lambda w, v: (float("nan"), v), "its update has the weight nan; it must be a number above 0"),
        (lambda w, v: (-5.0, v), "its update has the weight -5.0"),
    ],
    ids=["shape", "dtype", "nan", "infinity", "extra", "missing", "weight", "negative"],
)
def test_a_bad_update_is_refused_and_the_run_goes_on_without_its_sender(
    change: Any, words: str, tmp_path: Path
) -> None:
    result, ended = run_with(sends(change), tmp_path)
    assert isinstance(ended, ProtocolError)
    assert f"the server 'server' refuses party 'p2': {words}" in str(ended)
    assert words in result.history[1]["dropped"]["p2"]
    assert result.history[1]["sampled"] == 2
    assert any("'p2' was refused" in e["text"] for e in result.events if e["kind"] == "note")


def answers(
    change: Callable[[float, dict[str, torch.Tensor]], tuple[float, dict[str, torch.Tensor]]],
) -> Callable[..., Any]:
    """The same where training does not go by rounds: honest but for its second answer."""

    async def evil(me: Any, folder: str) -> None:
        work = ClientWork(me.name, {"folder": folder}, Path(folder), "")

        async def local(number: int, version: int, down: Any) -> Any:
            weight, vectors = await work.local_in_thread(number, version, down)
            return change(weight, vectors) if number == 1 else (weight, vectors)

        async def play() -> None:
            await work.prepared.wait()
            await buffered.client(me, local, work.test)

        await run_alongside(play(), joining.attend(me, "server", __version__, work.prepare))

    return evil


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda w, v: (w, {k: x[:-1] for k, x in v.items()}),
            "its vector 'delta' has the shape (14,) and torch.float32; it must be (15,) and torch.float32",
        ),
        (
            lambda w, v: (w, {k: spoiled(x, float("nan")) for k, x in v.items()}),
            "its vector 'delta' contains NaN or infinity",
        ),
        (lambda w, v: (0.0, v), "its update has the weight 0.0; it must be a number above 0"),
    ],
    ids=["shape", "nan", "weight"],
)
def test_a_bad_answer_is_refused_and_asynchronous_training_goes_on_without_its_sender(
    change: Any, words: str, tmp_path: Path
) -> None:
    result, ended = run_with(answers(change), tmp_path, pace=pace.SAFA(fraction=1.0))
    assert isinstance(ended, ProtocolError)
    assert f"the server 'server' refuses party 'p2': {words}" in str(ended)
    assert words in result.history[1]["dropped"]["p2"]
    assert [row["sampled"] for row in result.history] == [3, 2, 2, 2]


def test_another_version_of_tacit_is_refused_on_joining(tmp_path: Path) -> None:
    async def old(me: Any, folder: str) -> None:
        await joining.attend(me, "server", "0.0.1", lambda job: pytest.fail("it was given the job"))

    result, ended = run_with(old, tmp_path)
    assert f"it runs tacit 0.0.1, this server {__version__}. Install the same version at all parties" in str(
        ended
    )
    assert all("p2" in row["dropped"] for row in result.history)


def test_another_model_is_refused_on_joining(tmp_path: Path) -> None:
    async def other(me: Any, folder: str) -> None:
        await joining.attend(me, "server", __version__, lambda job: joining.Ready(10, 1, [4], 3, 99, ""))

    _, ended = run_with(other, tmp_path)
    assert "its model 99 parameters; the job has [4], 3 and 15" in str(ended)


def test_data_that_do_not_fit_are_reported_at_both_ends(tmp_path: Path) -> None:
    rows = federation()
    narrow = data.from_arrays(rows.rows.x[:, :2].numpy(), rows.rows.y.numpy(), classes=3).split(1, seed=0)
    party_rows.save_rows(narrow, 0, tmp_path / "narrow")
    result, ended = run_with(
        lambda me, folder: member(me, {"folder": str(tmp_path / "narrow")}, str(tmp_path)), tmp_path
    )
    assert isinstance(ended, BadData)
    assert "the rows of 'p2' have the shape [2] and 3 classes; the job is for [4] and 3" in str(ended)
    assert any(
        "'p2' cannot take part: the rows of 'p2' have the shape [2]" in e["text"]
        for e in result.events
        if e["kind"] == "note"
    )


def test_bytes_that_are_no_message_do_not_stop_the_server(tmp_path: Path) -> None:
    async def noise(me: Any, folder: str) -> None:
        for scope in ("door", "round 0", "test -1", ""):
            await me.transport.deliver(me.name, "server", scope, b"TCT\x01\xff\xff\xff\xff nonsense")
        await member(me, {"folder": folder}, folder)

    result, _ = run_with(noise, tmp_path)
    assert len(result.history) == ROUNDS


# --- a party's own file -------------------------------------------------------------------------------------


def table(tmp_path: Path, **columns: Any) -> Path:
    frame = pd.DataFrame(
        {
            "age": [40, 50, 60, 70],
            "chol": [200, 210, 220, 230],
            "sex": list("fmfm"),
            "sick": ["no", "yes", "no", "yes"],
        }
        | columns
    )
    file = tmp_path / "own.csv"
    frame[[c for c in frame.columns if columns.get(c, 0) is not None]].to_csv(file, index=False)
    return file


def test_a_good_file_is_encoded_by_the_agreed_layout_and_its_own_statistics(tmp_path: Path) -> None:
    fed = read_rows("a", table(tmp_path), LAYOUT, 0)
    assert fed.columns == ("age", "chol", "sex=f", "sex=m")
    assert (len(fed.train.index), len(fed.held.index)) == (3, 1)
    assert torch.allclose(fed.rows.x[fed.train.index, :2].mean(0), torch.zeros(2), atol=1e-6)
    assert fed.rows.y.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"chol": None}, "its file has no column 'chol'"),
        ({"sick": None}, "its file has no column 'sick'"),
        (
            {"sick": ["no", "yes", "no", "Mrs Smith"]},
            "its label 'sick' has a value that this job does not know",
        ),
        ({"sex": ["f", "m", "f", "Mrs Smith"]}, "its data do not fit the job"),
        ({"age": ["Mrs Smith"] * 4}, "its data do not fit the job"),
        (None, "its data are not where it said"),
    ],
    ids=["column", "label column", "label value", "category", "text", "no file"],
)
def test_the_server_is_not_told_what_stands_in_a_partys_file(
    columns: dict[str, Any] | None, told: str, tmp_path: Path
) -> None:
    """The party's own user reads the value and the file's place; on the wire, and in the server's journal,
    there is neither.
    """
    file = tmp_path / "nowhere.csv" if columns is None else table(tmp_path, **columns)
    heard: list[joining.Unfit] = []

    async def server(me: Any) -> None:
        door = me.scope(joining.SCOPE)
        await door.recv("a", joining.Join)
        await door.send("a", joining.Work("{}", "run"))
        heard.append(await door.recv("a", joining.Unfit))

    async def client(me: Any) -> None:
        with pytest.raises((BadData, MissingFiles)) as error:
            # return-value]
            await joining.attend(me, "server", __version__, lambda job: read_rows("a", file, LAYOUT, 0))  # type: ignore[arg-type,
        assert str(file) in str(error.value)
        assert ("Mrs Smith" in str(error.value)) == ("Mrs Smith" in str(columns))

    InProcess().run_sync({"server": server, "a": client})
    assert told in heard[0].reason
    assert "Smith" not in heard[0].reason
    assert str(tmp_path) not in heard[0].reason


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"chol": None}, r"own\.csv: the recipe needs a column 'chol' and the table has none"),
        ({"sick": None}, r"there is no column 'sick', the label of this job"),
        (
            {"sick": ["no", "yes", "no", "maybe"]},
            "the label 'sick' has the value 'maybe', which this job does not know. Known: no, yes",
        ),
        ({"sick": ["no", None, "no", "yes"]}, "1 rows have no 'sick', the first is row 2"),
        ({"sex": list("fmfx")}, "the column 'sex' has the value 'x', which is not in the recipe"),
        (
            {"age": ["old", "young", "old", "old"]},
            "the recipe declares 'age' as a number; the table contains text",
        ),
        ({"age": [1, 2, None, 3]}, "the column 'age' has missing values; the recipe must allow them"),
    ],
    ids=["column", "label column", "label value", "absent label", "category", "text", "missing"],
)
def test_a_file_without_what_was_agreed_on_is_refused_before_anything_is_sent(
    columns: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=words):
        read_rows("a", table(tmp_path, **columns), LAYOUT, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": None}, "label is None"),
        ({"labels": ["one"]}, "it must name at least two"),
        ({"numbers": [], "categories": {}}, "there is nothing to learn from"),
        ({"numbers": ["age", "age"]}, "a list of different texts"),
        ({"held_fraction": 2}, "at least 0 and below 1"),
        ({"categories": {"sex": []}}, "the list of its values"),
        ({"path": "x.csv"}, "has no key 'path'"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadJob, match=words):
        read_layout(LAYOUT | change)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1}', "null", '{"run": "x", "model": "import os"}'])
def test_a_servers_contract_is_trusted_no_more_than_a_file(text: str) -> None:
    with pytest.raises(BadJob, match="the server's contract"):
        Contract.read(text)

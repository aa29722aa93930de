"""A malicious server against the federated preparation of parties' tables.

The adversary has the server's kit. It wants a sum over fewer parties than all, a second sum of a step, another
recipe, or parties that encode their rows by different statistics.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from tacit.crypto.agree import public_of
from tacit.data.pipeline import Pipeline
from tacit.data.preparation import CELLS, _value
from tacit.errors import ProtocolError
from tacit.jobs.train import preparing
from tacit.jobs.train.client_work import ClientWork
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.party_rows import read_layout
from tacit.jobs.train.record import STATISTICS, Record
from tacit.protocols import joining, rounds, secagg, sum_of_all, sum_program
from tests.security.lying_server import CLIENTS, JOB, SECAGG, Attacker, play, refusals

PREPARED = JOB.replace('fit = "party"\n', "")
HIDDEN = PREPARED + SECAGG
BALANCED = PREPARED.replace("[train]", '[train]\nclass_weight = "balanced"')


def program(server: Attacker) -> Any:
    found = preparing.program_of(server.plan, server.contract.tables["data"])
    assert found is not None
    return found


def statistics(server: Attacker, mean: float = 50.0) -> str:
    """A result of the agreed recipe that no sum gave."""
    agreed: Pipeline = program(server).pipeline
    fitted = replace(agreed.recipe, mean=(mean, 200.0), std=(10.0, 30.0), fill=(mean, 200.0))
    return preparing.to_text(replace(agreed, recipe=fitted))


async def ask_step(
    server: Attacker,
    names: tuple[str, ...],
    step: int = 0,
    vectors: Any = None,
    parties: int | None = None,
    within: float | None = 5.0,
) -> torch.Tensor:
    """One sum of a step among `names`; the parties believe what they agreed to."""
    vectors = vectors or {}
    rules = preparing.rules_of(server.contract.digest, CLIENTS)
    terms = rules.terms(
        program(server).length(step, vectors),
        program(server).bound,
        sum_program.digest_of_step(step, vectors),
    )
    if parties is not None:
        terms = replace(terms, parties=parties)
    me = server.me.scope(preparing.SCOPE)
    session = os.urandom(8)
    message = sum_program.SumStep(step, session, session, vectors)
    with me.scope(sum_program._tag(message)) as scope:
        await me.send(list(names), message)
        return (await sum_of_all.server(scope, list(names), terms, True, within)).total


def test_an_honest_sum_is_opened(tmp_path: Path) -> None:
    """The control of the attacks below."""

    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await ask_step(server, CLIENTS)

    total, _ = play(attack, tmp_path, PREPARED)
    assert int(total[0]) == 24 + 15 + 7 + 18  # the training rows of all


def test_a_party_without_an_agreed_job_sums_nothing(tmp_path: Path) -> None:
    """A server that chooses the columns could name a category of one person, and count it."""

    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await ask_step(server, CLIENTS)

    gained, ended = play(attack, tmp_path, PREPARED, agreed=None)
    assert gained is None
    assert any("sums statistics of the parties' columns before training" in t for t in refusals(ended))


class Impostor:
    """The server plays c: it has c's name, and not c's signing key."""

    def __init__(self, me: Any):
        self.me, self.own = me, public_of(bytes(range(32)))

    async def gather(self, names: Any, kind: Any, *more: Any, **options: Any) -> Any:
        got = await self.me.gather([n for n in names if n != "c"], kind, *more, **options)
        got["c"] = secagg.AdvertisedKeys(self.own, b"", bytes(64))
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self.me, name)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("c is not named", "received the keys of 3 parties, itself included; 4 to 4 were agreed on"),
        ("the server plays c", "received keys of 'c' that 'c' did not sign"),
    ],
    ids=lambda text: text if "c" in text[:12] else "",
)
def test_a_step_with_fewer_participants_is_not_answered(lie: str, why: str, tmp_path: Path) -> None:
    """First with everyone, then without c: the difference would be c's own sums."""
    opened: list[torch.Tensor] = []

    async def attack(server: Attacker) -> Any:
        await server.offer()
        opened.append(await ask_step(server, CLIENTS))
        if lie == "c is not named":
            opened.append(await ask_step(server, ("a", "b", "d"), parties=3))
        rules = preparing.rules_of(server.contract.digest, CLIENTS)
        terms = rules.terms(
            program(server).length(0, {}), program(server).bound, sum_program.digest_of_step(0, {})
        )
        me = server.me.scope(preparing.SCOPE)
        session = os.urandom(8)
        message = sum_program.SumStep(0, session, session, {})
        await me.send([n for n in CLIENTS if n != "c"], message)
        with me.scope(sum_program._tag(message)) as scope:  # the server plays c
            await sum_of_all.server(Impostor(scope), list(CLIENTS), terms, True)  # type: ignore[arg-type]

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert len(opened) == 1
    assert any(why in text for text in refusals(ended)), refusals(ended)


def test_a_step_is_answered_once_with_one_request(tmp_path: Path) -> None:
    """The second time with another mean: Σ(x − m)² for two m gives the sum, and more the values."""
    opened: list[int] = []

    async def attack(server: Attacker) -> Any:
        await server.offer()
        await ask_step(server, CLIENTS)
        for mean in (50.0, 51.0):
            cells = torch.zeros(len(program(server).inner.probes), dtype=torch.int64)
            down = {"mean": torch.tensor([mean, 200.0], dtype=torch.float64), "cells": cells}
            await ask_step(server, CLIENTS, 1, down)
            opened.append(1)

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert opened == [1]
    assert any("again with other vectors than before. A step is answered once" in t for t in refusals(ended))


async def open_honestly(server: Attacker, upto: int) -> dict[str, torch.Tensor]:
    """Open the sums of the steps before `upto`; return what this step is sent."""
    steps = program(server).coordinate()
    down = next(steps)
    for step in range(upto):
        down = steps.send((await ask_step(server, CLIENTS, step, dict(down))).numpy())
    return dict(down)


OTHER_CELL = torch.tensor([1 << 8, *[0] * 3])


def move_limits(down: dict[str, torch.Tensor], by: int) -> dict[str, torch.Tensor]:
    """Limits of age in the cells that were searched: `by` steps of the 24-bit keys from their start."""
    low, high = down["low"].clone(), down["high"].clone()
    low[0], high[0] = (_value((int(down["cells"][k]) << 8) + by) for k in (0, 1))
    return down | {"low": low, "high": high}


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        (2, lambda d: {"cells": (d["cells"] + OTHER_CELL).sort().values}, "does not follow from step 2"),
        (2, lambda d: {"mean": d["mean"] + 1}, "does not follow from step 2"),
        (2, lambda d: {"std": d["std"] * 1e-9}, "is too small for this party's values"),
        (3, lambda d: {"mean": d["mean"] + 1}, "does not follow from step 3"),
        (3, lambda d: {"cells": d["cells"] - 1}, "does not follow from step 3"),
        (3, lambda d: {"low": d["mean"], "high": d["mean"] + 1}, "the limits of 'age' do not follow"),
        (4, lambda d: move_limits(d, 3), "does not follow from step 4"),
    ],
    ids=["cells", "mean", "std", "mean, step 4", "cells, step 4", "limits", "other limits than before"],
)
def test_a_step_that_does_not_follow_from_the_earlier_ones_is_not_answered(
    step: int, change: Any, why: str, tmp_path: Path
) -> None:
    """A deviation near 0 counts the people with exactly the value `mean`, narrow limits those above a value,
    and other cells than those of the step before show the values of two groups of people.
    """
    opened: list[int] = []

    async def attack(server: Attacker) -> Any:
        await server.offer()
        down = await open_honestly(server, step)
        opened.append(step)
        return await ask_step(server, CLIENTS, step, down | change(down))

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert opened == [step]
    assert any(why in text for text in refusals(ended)), refusals(ended)


def test_a_restarted_party_remembers_what_the_step_before_was_sent(tmp_path: Path) -> None:
    kept: list[dict[str, torch.Tensor]] = []

    async def first(server: Attacker) -> Any:
        await server.offer()
        kept.append(await open_honestly(server, 2))
        return True

    async def second(server: Attacker) -> Any:
        await server.offer()
        return await ask_step(server, CLIENTS, 2, kept[0] | {"mean": kept[0]["mean"] + 1})

    assert play(first, tmp_path, PREPARED)[0] is True
    gained, ended = play(second, tmp_path, PREPARED)
    assert gained is None
    assert any("does not follow from step 2" in text for text in refusals(ended))


def test_which_cells_are_searched_is_the_servers_word(tmp_path: Path) -> None:
    """What is not promised: a server that searches the last cell instead of the 99% quantile finds the
    largest value of all parties. It does not learn whose it is, nor at which party.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        prep = program(server).inner
        total = (await ask_step(server, CLIENTS)).numpy()
        counts = total[-CELLS * len(prep._searched) :].reshape(-1, CELLS)[0]  # of age
        mean = torch.tensor([50.0, 200.0], dtype=torch.float64)
        cells = torch.zeros(len(prep.probes), dtype=torch.int64)
        cells[1], down = counts.nonzero()[0].max(), {"mean": mean}
        for step in (1, 2):
            found = (await ask_step(server, CLIENTS, step, down | {"cells": cells})).numpy()
            histogram = found[-CELLS * len(prep.probes) :].reshape(-1, CELLS)[1]
            down = {"mean": mean, "std": mean}
            top = int(cells[1]) * CELLS + int(histogram.nonzero()[0].max())
            cells = cells * CELLS
            cells[1] = top
        return _value(top)

    largest, _ = play(attack, tmp_path, PREPARED)
    ages = pd.concat([pd.read_csv(tmp_path / f"{name}.csv")["age"] for name in CLIENTS])
    assert largest == pytest.approx(ages.max(), rel=2.0**-15)  # the oldest is among the training rows


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mean": [float("1e300"), 0.0], "std": [0.0, 1.0]}, "is not above 0"),
        ({"mean": [50.0]}, "cannot be used"),
        (
            {"numbers": ["age"], "mean": [50.0], "std": [1.0], "fill": [50.0]},
            "another recipe than the agreed",
        ),
        ({"limits": {"age": [5.0, 1.0]}}, "limits has another type or form"),
        ({"limits": [1.0, 5.0]}, "limits has another type or form"),
        ({"mean": [10**400, 0.0]}, "cannot be used"),
        ({"limits": {"sick": [1.0, 5.0]}}, "the limits of 'sick'"),
        ({"knots": {"age": [1.0, 2.0]}}, "knots has another type or form"),
        ({"fill": None}, "fill is not a list of 2 finite numbers"),
        ({"winsorize": "none"}, "another recipe than the agreed"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_statistics_that_are_not_of_the_agreed_recipe_are_refused(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        values = json.loads(statistics(server))
        values["recipe"] |= change
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", text))
        await asyncio.Event().wait()  # until the party refuses

    gained, ended = play(attack, tmp_path, PREPARED)
    assert gained is None
    assert why in str(ended["a"])


@pytest.mark.parametrize(
    ("job", "counts", "why"),
    [
        (PREPARED, [500, 500], "label counts exactly if the agreed class_weight is 'balanced'"),
        (BALANCED, [], "label counts exactly if the agreed class_weight is 'balanced'"),
        (BALANCED, [1000, 0], "fewer rows of a label than this party alone"),
        (BALANCED, [500, -1], "label_counts are none, or one for each label"),
        (BALANCED, [500, 0.5], "label_counts are none, or one for each label"),
        (BALANCED, [500], "label_counts are none, or one for each label"),
    ],
)
def test_label_counts_that_no_sum_gave_are_refused(
    job: str, counts: list[Any], why: str, tmp_path: Path
) -> None:
    """By weights of its choice a server would single out the rows of one class."""

    async def attack(server: Attacker) -> Any:
        values = json.loads(statistics(server)) | {"label_counts": counts}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", text))
        await asyncio.Event().wait()  # until the party refuses

    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    assert why in str(ended["a"])


def agreed_pipeline() -> Pipeline:
    return read_layout(tomllib.loads(PREPARED)["data"]).pipeline


def fitted_text(**values: Any) -> str:
    recipe = replace(agreed_pipeline().recipe, mean=(50.0, 200.0), std=(10.0, 30.0), fill=(50.0, 200.0))
    text = json.loads(preparing.to_text(replace(agreed_pipeline(), recipe=recipe)))
    text["recipe"] |= values
    return json.dumps(text, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("key", ["mean", "std", "fill"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "50", None, True, [1.0]])
def test_statistics_that_are_not_finite_numbers_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match="the server's statistics of the tables cannot be used"):
        preparing.check_result(fitted_text(**{key: [value, 1.0]}), agreed_pipeline())


@pytest.mark.parametrize("value", [0.0, -0.0, -10.0])
def test_a_deviation_that_is_not_above_0_is_refused(value: float) -> None:
    with pytest.raises(ProtocolError, match="not above 0"):
        preparing.check_result(fitted_text(std=[10.0, value]), agreed_pipeline())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "1e999",
        fitted_text() + " ",
        fitted_text().replace("50.0", "1e999"),
        fitted_text().replace("50.0", "5e1"),  # the same number in another form has another digest
        fitted_text().replace('"labels":["no","yes"]', '"labels":["yes","no"]'),
        fitted_text().replace('"target":[0.0,1.0]', '"target":[0.0,2.0]'),
        fitted_text().replace('"target":[0.0,1.0]', '"target":[0.0,-1.0]'),
        fitted_text(limits=5),
        fitted_text(limits={"age": 5}),
        fitted_text(rare={"age": ["x"]}),
        fitted_text(rare=[1]),
        fitted_text(knots="abc"),
        fitted_text(code="x"),
        "[" * 2000,
        '{"recipe":' * 2000,
        "x" * ((1 << 24) + 1),
    ],
    ids=lambda text: text[:20],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="the server's statistics of the tables cannot be used"):
        preparing.check_result(text, agreed_pipeline())


def test_statistics_of_the_agreed_recipe_are_accepted() -> None:
    """The control of the refusals above."""
    assert preparing.check_result(fitted_text(), agreed_pipeline()).recipe.mean == (50.0, 200.0)
    clipped = preparing.check_result(fitted_text(limits={"age": [20.0, 80.0]}), agreed_pipeline())
    assert clipped.recipe.limits == {"age": (20.0, 80.0)}


def test_statistics_that_make_rows_infinite_are_refused_and_not_kept(tmp_path: Path) -> None:
    """Each number is finite; (x − 1e300) / 1e-300 is not. Good statistics are accepted afterwards."""

    def send(text: str, answer: Any) -> Any:
        async def attack(server: Attacker) -> Any:
            await server.offer(run=text[-9:])
            await server.door.send("a", joining.Work(server.contract.text, "run", text))
            # an earlier offer may be answered twice, so the answer to this one is awaited
            while not isinstance(await server.door.recv("a", joining.Ready, joining.Unfit), answer):
                pass
            return answer is joining.Ready or await asyncio.Event().wait()  # until the party has raised

        return attack

    bad = fitted_text(mean=[1e300, 0.0], std=[1e-300, 1.0])
    _, ended = play(send(bad, joining.Unfit), tmp_path, PREPARED)
    assert "encoded with them, are not finite" in str(ended["a"])
    accepted, _ = play(send(fitted_text(), joining.Ready), tmp_path, PREPARED)
    assert accepted is True


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "restarted"])
@pytest.mark.parametrize("message", ["Work", "SumsOver"])
def test_a_party_accepts_one_result_for_ever(message: str, restarted: bool, tmp_path: Path) -> None:
    """What it sends is about one encoding of its rows: two encodings would show more of them."""

    async def send(server: Attacker, mean: float, through: str = "Work") -> None:
        if through == "Work":
            work = joining.Work(server.contract.text, "run", statistics(server, mean))
            await server.door.send("a", work)
        else:
            vectors = preparing.to_vectors(Pipeline.from_dict(json.loads(statistics(server, mean))))
            await server.me.scope(preparing.SCOPE).send("a", sum_program.SumsOver(vectors, ""))

    async def first(server: Attacker) -> Any:
        await server.offer()
        await send(server, 50.0)
        await server.door.recv("a", joining.Ready)
        return True

    async def second(server: Attacker) -> Any:
        await (server.offer() if restarted else first(server))
        await send(server, 51.0, message)
        await asyncio.Event().wait()  # until the party refuses

    if restarted:
        assert play(first, tmp_path, PREPARED)[0] is True
    gained, ended = play(second, tmp_path, PREPARED)
    assert gained is None
    assert "the server sends a different statistics than before under the same contract" in str(ended["a"])
    file = next((tmp_path / "state-a").glob("statistics-*.json"))
    assert json.loads(file.read_text())["recipe"]["mean"] == [50.0, 200.0]


def test_allowing_a_contract_again_keeps_the_statistics(tmp_path: Path) -> None:
    record = Record(tmp_path, "a", "contract")
    record.bind("model 0", b"1")
    record.bind(STATISTICS, b"2")
    record.allow_again()
    again = Record(tmp_path, "a", "contract")
    again.bind("model 0", b"3")
    with pytest.raises(ProtocolError, match="a different statistics than before"):
        again.bind(STATISTICS, b"4")


@pytest.mark.parametrize("mean", [50.0, 51.0], ids=["same", "different"])
def test_parties_with_different_statistics_share_no_masks(mean: float, tmp_path: Path) -> None:
    """Each accepts its own; with those of c different, no sum of their updates is opened."""

    async def attack(server: Attacker) -> Any:
        await server.offer()
        for name in CLIENTS:
            text = statistics(server, mean if name == "c" else 50.0)
            await server.door.send(name, joining.Work(server.contract.text, "run", text))
            assert isinstance(await server.door.recv(name, joining.Ready, joining.Unfit), joining.Ready)
        assert server.hidden is not None
        server.hidden.federation = preparing.bind_statistics(server.contract.digest, statistics(server))
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0))

    gained, ended = play(attack, tmp_path, HIDDEN)
    if mean == 50.0:
        assert isinstance(gained, torch.Tensor)
        assert not refusals(ended)
    else:
        assert gained is None
        assert refusals(ended)
        assert all("did not sign" in text for text in refusals(ended))


def test_a_round_is_answered_only_after_the_statistics(tmp_path: Path) -> None:
    """The request comes first; its answer is about rows that are encoded with the statistics."""
    contracts = []

    async def attack(server: Attacker) -> Any:
        contracts.append(server.contract.text)
        await server.offer()
        down = server.down(0)
        await server.me.send("a", rounds.Down(0, down))
        await ask_step(server, CLIENTS)  # the party answers sums, and reads no round
        vectors = preparing.to_vectors(Pipeline.from_dict(json.loads(statistics(server))))
        await server.me.scope(preparing.SCOPE).send("a", sum_program.SumsOver(vectors, ""))
        upload = await server.me.scope("round 0").recv("a", rounds.Upload)
        return down, upload, statistics(server)

    (down, upload, text), _ = play(attack, tmp_path, PREPARED)
    work = ClientWork("a", {"table": str(tmp_path / "a.csv")}, tmp_path / "oracle", "")
    work.prepare(joining.Work(contracts[0], "oracle"))
    assert Contract.read(contracts[0]).tables["preparation"] == {"fit": "federated", "steps": 5}
    for ask in (work.local, work.look, work.test):
        with pytest.raises(ProtocolError, match="before the statistics of the tables are computed"):
            ask(0, down)
    work.take_statistics(text)
    expected = work.local(0, down)[1]
    assert upload.vectors.keys() == expected.keys()
    assert all(torch.equal(upload.vectors[k], expected[k]) for k in expected)


def test_a_server_that_lost_its_sums_gets_the_same_again(tmp_path: Path) -> None:
    """Also after the statistics are accepted, and after the parties were restarted."""

    async def ask(server: Attacker) -> Any:
        await server.offer()
        total = await ask_step(server, CLIENTS)
        for name in CLIENTS:
            await server.door.send(name, joining.Work(server.contract.text, "run", statistics(server)))
            await server.door.recv(name, joining.Ready)
        return total, await ask_step(server, CLIENTS)

    first, _ = play(ask, tmp_path, PREPARED)
    again, _ = play(ask, tmp_path, PREPARED)
    assert all(torch.equal(first[0], total) for total in (first[1], *again))


def test_statistics_in_a_job_without_a_preparation_are_refused(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        await server.door.send("a", joining.Work(server.contract.text, "run", "{}"))
        await asyncio.Event().wait()  # until the party refuses

    gained, ended = play(attack, tmp_path, JOB)
    assert gained is None
    assert "statistics, and the agreed job has no preparation" in str(ended["a"])


@pytest.mark.parametrize("lie", ["another run", "another shape", "unknown vector"])
def test_a_final_model_that_is_not_of_this_run_is_not_written(lie: str, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        w = server.task.initial()["w"]
        final = {
            "another run": joining.Final("other", {"w": w}, {}),
            "another shape": joining.Final("run", {"w": w[:-1]}, {}),
            "unknown vector": joining.Final("run", {"w": w, "code": w}, {}),
        }[lie]
        await server.me.scope(joining.FINAL).send("a", final)
        await server.me.send("a", rounds.Stop())
        await asyncio.Event().wait()  # until the party refuses

    _, ended = play(attack, tmp_path, JOB)
    assert isinstance(ended["a"], Exception)
    assert not (tmp_path / "state-a" / "model").exists()

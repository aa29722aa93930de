"""`run_programs(…, kit=)`: each organization runs its own program with its own kit, over a real hub."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.errors import BadParameter, TacitError
from tacit.jobs.ledger_file import read_ledger_file
from tacit.mpc.beaver import MATMUL
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Stock, dealer, plan
from tacit.mpc.functions import mul

from ..cli.shell import Role, provision

NAMES = ("bank", "clinic")
NUMBERS = {"bank": [1.5, -2.0, 4.0], "clinic": [2.0, 0.5, 0.25]}


async def multiply(ctx: Any, numbers: torch.Tensor | None) -> torch.Tensor | None:
    mine = None if numbers is None else ctx.fixed.encode(numbers)
    x, y = [await ctx.share_private(mine if ctx.rank == i else None, (3,), i) for i in (0, 1)]
    return await ctx.open_to(await mul(ctx, x, y, MATMUL), 1)


async def holder(me: Any) -> float | None:
    rank = NAMES.index(me.name)
    ctx = RingContext(me, rank, NAMES, await Stock.connect(me, rank, 2, "notary"))
    words = await multiply(ctx, torch.tensor(NUMBERS[me.name]))
    return None if words is None else float(ctx.fixed.decode(words))


async def notary(me: Any) -> None:
    await dealer(me, NAMES, plan(lambda ctx: multiply(ctx, None)))


PROGRAMS = {"bank": holder, "clinic": holder, "notary": notary}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Role]:
    monkeypatch.chdir(tmp_path)
    provision(*PROGRAMS)
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    yield hub
    hub.process.terminate()
    hub.wait()


def run_all(programs: dict[str, Any], hub: Role | None = None) -> dict[str, Any]:
    """Each party in its own thread and event loop, connected to the hub's process; errors as values.

    With a hub, each party starts when the one before it has connected.
    """

    def run(name: str) -> Any:
        try:
            return tacit.run_programs({name: programs[name]}, kit=f"kits/{name}", peers=PROGRAMS)
        except TacitError as error:
            return error

    running = {}
    with ThreadPoolExecutor(len(programs)) as pool:
        for name in programs:
            running[name] = pool.submit(run, name)
            if hub is not None and name != list(programs)[-1]:
                hub.wait_for(f"{name!r} is here")
    return {name: job.result() for name, job in running.items()}


def test_three_organizations_multiply_on_shares_with_their_kits(hub: Role) -> None:
    results = run_all(PROGRAMS)
    assert {name: r[name] for name, r in results.items()} == {"bank": None, "clinic": 3.0, "notary": None}
    kinds = {line.kind for line in results["clinic"].ledger.seen}
    assert kinds == {"TapeKey", "Corrections", "MaskedFactors", "MaskedProducts", "ResultShare"}
    assert not results["notary"].ledger.seen, "the dealer is told nothing"
    assert read_ledger_file("kits/clinic/ledger.jsonl")[-1].verb == "run_programs"


def test_a_program_that_fails_ends_those_of_its_peers(hub: Role) -> None:
    async def fail(me: Any) -> None:
        raise BadParameter("a secret reason")

    results = run_all({**PROGRAMS, "notary": fail}, hub)
    assert "a secret reason" in str(results["notary"])
    for name in NAMES:
        assert "'notary' stopped" in str(results[name])
        assert "secret" not in str(results[name])


def test_the_owner_of_a_kit_may_forbid_own_programs(hub: Role) -> None:
    Path("kits/clinic/policy.toml").write_text('[jobs]\nverbs = ["psi"]\n')
    results = run_all({name: PROGRAMS[name] for name in ("bank", "notary", "clinic")}, hub)
    assert "`tacit run_programs` is not allowed" in str(results["clinic"])
    assert "'clinic' stopped" in str(results["bank"])


def test_a_kit_is_for_the_program_of_its_party_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    provision(*PROGRAMS)
    kit = "kits/clinic"
    with pytest.raises(BadParameter, match=r"programs is \['bank'\]; it must be \['clinic'\], the party of"):
        tacit.run_programs({"bank": holder}, kit=kit)
    with pytest.raises(BadParameter, match=r"programs is \['bank', 'clinic'\]; it must be \['clinic'\]"):
        tacit.run_programs({"bank": holder, "clinic": holder}, kit=kit)
    with pytest.raises(BadParameter, match=r"peers is \['bnk'\]; it must be parties of the kit"):
        tacit.run_programs({"clinic": holder}, kit=kit, peers=["bnk"])
    with pytest.raises(BadParameter, match=r"runtime is 'inprocess'; it must be None\. With a kit"):
        tacit.run_programs({"clinic": holder}, kit=kit, runtime="inprocess")

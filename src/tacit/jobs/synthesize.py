"""`tacit.synthesize`: several holders of rows, one synthetic table. It runs on the rounds that train
models, with sums nobody can look into.

    coordinator                                 holder k
      |---- Down(0, hash of the job) ------------->|  has the same job, and counts its rows in cells of the declared domains
      |<=== secure sum: counts of each column =====|
      |---- Down(1, totals) ---------------------->|  cells or modes follow from the totals, alike for everybody
      |<=== secure sum: two-way counts ============|   copula: done
      |---- Down(r, totals, weights) ------------->|  GAN: passes over its own rows
      |<=== secure sum: weights × share of rows ===|   …, `epochs` / `local_epochs` times
      |---- Stop() ------------------------------->|

The coordinator learns the sums, and so does everybody who is sent them back: with two holders each can
take its own part away and sees the other's. With `hide=False` the coordinator sees every holder's numbers.
No row leaves its holder. None of it is differentially private: the sums are exact.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, BadJob, BadKit, SumAborted
from ..parameters import bad, check, from_table, to_table
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..protocols import rounds, secagg
from ..protocols.consent import Commitment, OncePerRound
from ..runtimes.inprocess import InProcess
from ..synth import GAN, Fitted, GaussianCopula, Learned, Table
from ..synth.columns import Column
from ..synth.constraints import Combinations
from ..synth.encode import Layout
from ..synth.federated import LARGEST, UNIT, Histograms, PooledGAN, pooled, seed_of
from ..synth.generator import NOT_PRIVATE, Watch
from .programs import to_the_end

if TYPE_CHECKING:
    import pandas

    from ..runtimes.kits import Kit

COORDINATOR = "coordinator"
MOST_ROWS = 2**40  # counts that a secure sum makes room for


def synthesize(
    holders: Mapping[str, pandas.DataFrame],
    table: Table | Mapping[str, Column],
    generator: Any = None,
    *,
    local_epochs: int = 1,
    hide: bool = True,
    runtime: Any = None,
    watch: Watch | None = None,
) -> Fitted:
    """A generator that has learnt from the rows of all holders, none of which left its holder: `.sample(n)`,
    `.save(path)`, `.ledger`.

    `table` declares every column's domain, since nobody may read it off everybody's rows. `generator`:
    GaussianCopula(…), GAN(…), WGAN(…) or CTGAN(…); a GAN passes `epochs` times over each holder's rows and
    the networks meet every `local_epochs`. `hide` adds up under masks (secure aggregation), so that the
    coordinator sees sums alone. `runtime`: InProcess() (default), or Processes() for one process a party and
    real sockets. `watch` hears of each round.
    """
    generator, table = _checked(generator, table, local_epochs)
    if not isinstance(holders, Mapping) or not all(
        isinstance(n, str) and n and n != COORDINATOR for n in holders
    ):
        raise bad(
            "synthesize",
            "holders",
            type(holders).__name__,
            f"a dictionary: each holder's name (not {COORDINATOR!r}) and data frame",
        )
    if len(holders) < (2 if hide else 1):
        raise bad(
            "synthesize",
            "holders",
            list(holders),
            "at least two holders where sums are hidden",
            "Of one holder the sum is its own number.",
        )
    numbers = {name: _numbers(table, name, frame) for name, frame in holders.items()}
    if table.constraints:
        table = table.settled(
            next(iter(numbers.values()))
        )  # words of allowed combinations as numbers; nothing is read off the rows
    job = _job(table, generator, local_epochs, hide, list(holders))
    ledger = Ledger()
    ledger.stamp(NOT_PRIVATE)
    runtime = to_the_end("synthesize", runtime or InProcess())
    watching: dict[str, Any] = {} if watch is None else {"watch": watch}
    here: dict[str, Any] = (
        {} if watch is None or isinstance(runtime, InProcess) else {"here": (COORDINATOR,)}
    )  # who watches is in this process
    made = runtime.run_sync(
        {
            COORDINATOR: functools.partial(coordinator, **job, **watching),
            **{
                name: functools.partial(holder, x=x, place=k, **job)
                for k, (name, x) in enumerate(numbers.items())
            },
        },
        ledger=ledger,
        **here,
    )
    return _fitted(generator, table, made[COORDINATOR], ledger, COORDINATOR, list(holders), hide)


def synthesize_with(
    kit: Kit,
    frame: pandas.DataFrame | None,
    table: Table | Mapping[str, Column],
    generator: Any = None,
    *,
    local_epochs: int = 1,
    hide: bool = True,
    patience: float = 300.0,
    watch: Watch | None = None,
) -> Fitted | None:
    """This party's part among real parties: the server coordinates, without rows, and is given the generator;
    the clients hold the rows, and are given None. Everybody says the same table, generator, `local_epochs`
    and `hide`; a holder whose job is another one than the coordinator's refuses it.
    """
    from ..runtimes.link import Link

    generator, table = _checked(generator, table, local_epochs)
    names = [p for p in kit.parties if p != kit.server]
    if kit.role == "hub" or (kit.name == kit.server) != (frame is None):
        raise BadKit(
            f"this is the kit of {kit.name!r}. Rows are held by the clients, {', '.join(map(repr, names))}; "
            f"the server, {kit.server!r}, has none."
        )
    if len(names) < 2 and hide:
        raise bad(
            "synthesize",
            "holders",
            names,
            "at least two holders where sums are hidden",
            "Of one holder the sum is its own number.",
        )
    x = None if frame is None else _numbers(table, kit.name, frame)
    if table.constraints:
        table = table.settled(np.zeros((0, len(table.modelled))))
    job = _job(table, generator, local_epochs, hide, names)
    watching: dict[str, Any] = {} if watch is None else {"watch": watch}
    program: Any = functools.partial(coordinator, **job, **watching)
    if x is not None:
        program = functools.partial(holder, x=x, place=names.index(kit.name), boss=kit.server, **job)

    async def connected() -> tuple[Any, Ledger]:
        async with Link(kit, patience=patience, away=patience) as link:
            return await link.run(lambda me: program(me)), link.mailbox.ledger

    answer, ledger = asyncio.run(connected())
    if x is not None:
        return None
    ledger.stamp(NOT_PRIVATE)
    return _fitted(generator, table, answer, ledger, kit.name, names, hide)


def _checked(generator: Any, table: Any, local_epochs: int) -> tuple[Any, Table]:
    generator = check(GaussianCopula() if generator is None else generator)
    if type(generator).__name__ not in models():
        raise bad(
            "synthesize",
            "generator",
            type(generator).__name__,
            "one of " + ", ".join(models()),
            "The others need all rows in one place.",
        )
    if isinstance(generator, GAN) and generator.checkpoints != 1:
        raise bad("synthesize", "checkpoints", generator.checkpoints, "1: the last common maker is kept")
    if isinstance(local_epochs, bool) or not isinstance(local_epochs, int) or local_epochs < 1:
        raise bad("synthesize", "local_epochs", local_epochs, "a whole number of at least 1")
    return generator, _declared(table)


def _numbers(table: Table, name: str, frame: pandas.DataFrame) -> np.ndarray:
    try:
        x = table.numbers(frame)
        table.settled(x)
    except BadData as error:
        raise BadData(f"the rows of {name!r}: {error}") from None
    return x


def _job(table: Table, generator: Any, local_epochs: int, hide: bool, names: list[str]) -> dict[str, Any]:
    return {
        "table": json.dumps(table.to_dict()),
        "generator": to_table(generator),
        "local_epochs": local_epochs,
        "hide": hide,
        "names": names,
    }


def _fitted(
    generator: Any,
    table: Table,
    answer: dict[str, Any],
    ledger: Ledger,
    who: str,
    names: Sequence[str],
    hide: bool,
) -> Fitted:
    for what in _learnt(generator):
        ledger.record(who, "all holders together" if hide else "each holder", *what)
    others = "and so of the other one" if len(names) == 2 else "and so of the others together"
    for name in (
        names if len(names) > 1 else ()
    ):  # the message that brings them says "model", as it does in training
        for kind, told in (
            _learnt(generator)[:1] if isinstance(generator, GaussianCopula) else _learnt(generator)
        ):
            ledger.record(name, who, kind, f"{told}; of all holders, {others}, its own being known to it")
    return Fitted(generator, table, Learned(answer["tensors"], history=answer["history"], ledger=ledger))


async def coordinator(
    me: Party,
    *,
    table: str,
    generator: dict[str, Any],
    local_epochs: int,
    hide: bool,
    names: Sequence[str],
    watch: Watch = lambda event: None,
) -> dict[str, Any]:
    work = _Work(table, generator, local_epochs, hide, names)
    history: list[dict[str, Any]] = []

    async def merge(r: int, came: Any) -> None:
        if came is None:
            raise SumAborted(
                f"round {r + 1} was lost: a holder left after sums had been masked. Start again.", spent=True
            )
        total = came.total if isinstance(came, rounds.SumResult) else sum(v["sum"] for _, v in came.values())
        work.merge(r, np.asarray(total).astype(np.int64))
        history.append(
            {"round": r, "holders": len(came.included if isinstance(came, rounds.SumResult) else came)}
        )
        watch({"kind": "round", "rounds": work.rounds, **history[-1]})

    async def no_model(r: int) -> None:
        """Nothing is tested on held-out rows."""

    async def untested(r: int, counts: Any) -> None:
        raise AssertionError("nobody is asked to test")

    await rounds.server(
        me,
        names,
        range(work.rounds),
        lambda r: names,
        work.down,
        merge,
        no_model,
        untested,
        hidden=_Masked(work) if hide else None,
    )
    return {"tensors": work.tensors(), "history": history}


async def holder(
    me: Party,
    *,
    x: Tensor | np.ndarray,
    place: int,
    table: str,
    generator: dict[str, Any],
    local_epochs: int,
    hide: bool,
    names: Sequence[str],
    boss: str = COORDINATOR,
) -> None:
    work = _Work(table, generator, local_epochs, hide, names)
    v = work.layout.forward(np.asarray(x, dtype=np.float64))

    def local(r: int, vectors: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        work.hear(r, vectors)
        return 1.0, {"sum": torch.from_numpy(work.local(r, v, place))}

    def untested(r: int, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        raise AssertionError("nobody is asked to test")

    await rounds.client(
        me,
        local,
        untested,
        boss,
        hidden=lambda: _Masked(work) if hide else None,
        consent=OncePerRound(work.rounds),
    )


class _Work:
    """What both sides know of the job: the table, the generator, and since round 1 the totals."""

    def __init__(
        self, table: str, generator: dict[str, Any], local_epochs: int, hide: bool, names: Sequence[str]
    ):
        told = json.dumps([table, generator, local_epochs, hide, list(names)], sort_keys=True)
        self.digest = hashlib.sha256(told.encode()).hexdigest()
        self.job = torch.tensor(list(bytes.fromhex(self.digest)), dtype=torch.uint8)
        self.layout = Layout(Table.from_dict(json.loads(table)))
        self.generator: Any = from_table(generator, models(), "synthesize")
        self.epochs, self.names = local_epochs, names
        self.histograms = Histograms(self.layout)
        self.totals: np.ndarray | None = None
        self.pooled: Any = None
        self.state: Tensor | None = None
        self.learned: dict[str, Tensor] = {}

    @property
    def rounds(self) -> int:
        return (
            2 if isinstance(self.generator, GaussianCopula) else 1 + -(-self.generator.epochs // self.epochs)
        )

    def length(self, r: int) -> int:
        return self.histograms.length if r == 0 else self.pooled.length

    def down(self, r: int) -> dict[str, Tensor]:
        if r == 0:
            return {"job": self.job}
        return {
            "totals": torch.from_numpy(self.totals),
            **({} if self.state is None else {"state": self.state}),
        }

    def hear(self, r: int, vectors: dict[str, Tensor]) -> None:
        if r == 0 and not torch.equal(vectors["job"], self.job):
            raise BadJob(
                "the coordinator's job is another one than this holder's: the columns declared, the "
                "generator, its parameters, local_epochs, hide or "
                "who takes part. Sums of different cells would mean nothing. Let everybody use the same "
                "file of columns and the same options."
            )
        if r and self.pooled is None:
            self._know(vectors["totals"].numpy().astype(np.int64))
        self.state = vectors.get("state")

    def _know(self, totals: np.ndarray) -> None:
        self.totals, self.pooled = totals, pooled(self.generator, self.histograms, totals)

    def local(self, r: int, v: np.ndarray, place: int) -> np.ndarray:
        if r == 0:
            return self.histograms.count(v)
        if not isinstance(self.pooled, PooledGAN):
            return self.pooled.count(v)
        assert self.state is not None
        left = self.generator.epochs - (r - 1) * self.epochs
        return self.pooled.local(
            v, self.state, min(self.epochs, left), seed_of(self.generator.seed, r, place)
        )[0]

    def merge(self, r: int, total: np.ndarray) -> None:
        if r == 0:
            self._know(total)
            self.state = self.pooled.vector() if isinstance(self.pooled, PooledGAN) else None
        elif isinstance(self.pooled, PooledGAN):
            self.state = self.pooled.mean(total)
            self.pooled.take(self.state)
        else:
            self.learned = self.pooled.learned(total)

    def tensors(self) -> dict[str, Tensor]:
        return self.pooled.learned() if isinstance(self.pooled, PooledGAN) else self.learned


class _Masked:
    """The rounds' hidden sum, by secure aggregation."""

    tries = 1

    def __init__(self, work: _Work):
        self.work, self.enough = (
            work,
            len(work.names),
        )  # all of them: a sum without one holder's rows would be another table

    def _terms(self, r: int, sent: bytes) -> secagg.SecAggTerms:
        bound = (
            MOST_ROWS if r == 0 or not isinstance(self.work.pooled, PooledGAN) else int(2 * LARGEST * UNIT)
        )
        return check(
            secagg.SecAggTerms(
                f"synthesize {self.work.digest}",
                len(self.work.names),
                self.work.length(r),
                bound,
                1.0,
                sent=sent,
            )
        )

    async def server(self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes) -> Any:
        return await secagg.server(me, names, self._terms(r, sent), first=within)

    async def client(
        self, me: Party, r: int, vectors: dict[str, Tensor], boss: str, sent: bytes, commitment: Commitment
    ) -> None:
        await secagg.client(me, vectors["sum"], self._terms(r, sent), None, boss, commitment)


def models() -> dict[str, Any]:
    """Generators that several holders can teach."""
    from ..synth import CTGAN, WGAN

    return {"GaussianCopula": GaussianCopula, "GAN": GAN, "WGAN": WGAN, "CTGAN": CTGAN}


def _declared(table: Any) -> Table:
    if isinstance(table, Mapping) and all(isinstance(c, Column) for c in table.values()):
        table = Table.declare(table)
    if not isinstance(table, Table):
        raise bad(
            "synthesize",
            "table",
            type(table).__name__,
            "a Table, or a dictionary of declared columns",
            "Write {'age': tacit.synth.integer(0, 120), 'sex': tacit.synth.categorical(['F', 'M'])}.",
        )
    if table.undeclared:
        raise BadData(
            f"the domain of {', '.join(map(repr, table.undeclared))} is not declared, and no holder sees "
            "everybody's rows. Declare it, like "
            "age=tacit.synth.integer(0, 120) or job=tacit.synth.categorical(['cook', 'nurse'])."
        )
    if not table.modelled:
        raise BadData(
            "no column is declared but identifiers, so there is nothing to learn. Declare at least one."
        )
    open_ = [c for c in table.constraints if isinstance(c, Combinations) and c.allowed is None]
    if open_:
        raise BadData(f"{open_[0]!r} would be filled in from the rows. Give `allowed`.")
    return table


def _learnt(generator: Any) -> list[tuple[str, str]]:
    made = [("Counts", "how many rows there are in each fine cell of each column, and how many rows in all")]
    if isinstance(generator, GaussianCopula):
        return [
            *made,
            ("TwoWayCounts", "how many rows there are in each pair of cells of each pair of columns"),
        ]
    return [*made, ("Weights", "the mean of the networks' weights after each round, weighted by rows")]

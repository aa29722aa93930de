"""`tacit.synthesize`: several holders of rows fit one generator with secure sums.

    coordinator                                 holder k
      |---- Down(0, hash of the job) ------------->|  compares the job, counts its rows in declared cells
      |<=== secure sum: counts of each column =====|
      |---- Down(1, totals) ---------------------->|  derives cells or modes from the totals
      |<=== secure sum: two-way counts ============|   copula: done
      |---- Down(r, totals, weights) ------------->|  GAN, ARGN: trains on its own rows
      |<=== secure sum: weights × share of rows ===|   …, `epochs` / `local_epochs` times
      |---- Stop() ------------------------------->|

The coordinator learns the sums, and so does every holder who receives them: with two holders, each can
subtract its own part and obtain the other's. With `hide=False` the coordinator sees every holder's numbers.
No row leaves its holder. Nothing here is differentially private: the sums are exact.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
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
from ..runtimes.choose import SyncRuntime, choose_runtime
from ..runtimes.inprocess import InProcess
from ..synth import ALL, ARGN, GAN, GaussianCopula, Generator, GeneratorState, Table
from ..synth.columns import Column
from ..synth.constraints import Combinations
from ..synth.encode import Layout
from ..synth.federated import MOST_ROWS, Histograms, Pooled, PooledCopula, PooledGAN, holder_seed
from ..synth.generator import NOT_PRIVATE, PROTECTION, Watch
from ..synth.pooled_argn import PooledARGN, split_holder_rows
from ..synth.protect import FLOOR
from .kit_run import answering, request_of_verb, telling
from .owner import Owner

if TYPE_CHECKING:
    import pandas

    from ..runtimes.kits import Kit

COORDINATOR = "coordinator"
FederatedGenerator = GaussianCopula | GAN | ARGN


def synthesize(
    holders: Mapping[str, pandas.DataFrame],
    table: Table | Mapping[str, Column],
    generator: Generator | None = None,
    *,
    local_epochs: int = 1,
    hide: bool = True,
    runtime: SyncRuntime | str | None = None,
    watch: Watch | None = None,
) -> Generator:
    """Fit one generator on the rows of all holders, which stay where they are.

    `table` declares every column's domain, because no party may read it off all rows. `generator` is
    GaussianCopula(…), ARGN(…), GAN(…), WGAN(…) or CTGAN(…); a network trains for `epochs` on each holder's
    rows (ARGN: at most), and the weights are averaged every `local_epochs`. `hide` sums under masks (secure
    aggregation), so that the coordinator only sees sums. `runtime` is as in `tacit.psi`; "processes" uses one
    process per party and real sockets. `watch` is called once per round.

    Values that fewer than 10 rows of all holders together share are neither learned nor sampled. `ARGN`
    counts only the rows that it trains on, not the tenth (`holdout`) that every holder leaves out.

    Returns a fitted copy of `generator`, with `.sample(n)`, `.save(path)` and `.ledger`.
    """
    generator, table = _check(generator, table, local_epochs)
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
            "at least two holders if sums are hidden",
            "The sum of one holder is its own number.",
        )
    numbers = {name: _to_numbers(table, name, frame) for name, frame in holders.items()}
    if table.constraints:
        # encodes the allowed combinations as numbers; nothing is read off the rows
        table = table.resolve_constraints(next(iter(numbers.values())))
    job = _job(table, generator, local_epochs, hide, list(holders))
    ledger = Ledger()
    ledger.stamp(NOT_PRIVATE)
    runtime = choose_runtime("synthesize", runtime, all_stay=True)
    watching: dict[str, Any] = {} if watch is None else {"watch": watch}
    # the coordinator that calls `watch` must run in this process
    here: dict[str, Any] = {} if watch is None or isinstance(runtime, InProcess) else {"here": (COORDINATOR,)}
    results = runtime.run_sync(
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
    return _restore(generator, table, results[COORDINATOR], ledger, COORDINATOR, list(holders), hide)


def synthesize_with(
    kit: Kit,
    frame: pandas.DataFrame | None,
    table: Table | Mapping[str, Column],
    generator: Generator | None = None,
    *,
    local_epochs: int = 1,
    hide: bool = True,
    patience: float = 300.0,
    watch: Watch | None = None,
) -> Generator | None:
    """Run this party's part among real parties.

    The server coordinates without rows and receives the fitted generator; the clients hold the rows and
    receive None. All parties pass the same table, generator, `local_epochs` and `hide`; a holder whose job
    differs from the coordinator's refuses it.
    """
    from ..runtimes.link import Link

    with telling(kit):
        generator, table = _check(generator, table, local_epochs)
        names = [p for p in kit.parties if p != kit.server]
        if kit.role == "hub" or (kit.name == kit.server) != (frame is None):
            raise BadKit(
                f"this is the kit of {kit.name!r}. Rows are held by the clients, "
                f"{', '.join(map(repr, names))}; the server, {kit.server!r}, has none."
            )
        if len(names) < 2 and hide:
            raise bad(
                "synthesize",
                "holders",
                names,
                "at least two holders if sums are hidden",
                "The sum of one holder is its own number.",
            )
        x = None if frame is None else _to_numbers(table, kit.name, frame)
        if table.constraints:
            table = table.resolve_constraints(np.zeros((0, len(table.modeled))))
        job = _job(table, generator, local_epochs, hide, names)
        watching: dict[str, Any] = {} if watch is None else {"watch": watch}
        program: Any = functools.partial(coordinator, **job, **watching)
        if x is not None:
            program = functools.partial(holder, x=x, place=names.index(kit.name), boss=kit.server, **job)

    async def connect() -> tuple[Any, Ledger]:
        async with Link(kit, patience=patience, away=patience) as link:
            return await link.run(lambda me: program(me), kit.parties), link.mailbox.ledger

    owner = None if x is None else Owner.of(kit)
    request = request_of_verb("synthesize", kit, kit.parties, generator=type(generator).__name__)
    with answering(owner, kit, request):
        result, ledger = asyncio.run(connect())
    if x is not None:
        return None
    ledger.stamp(NOT_PRIVATE)
    return _restore(generator, table, result, ledger, kit.name, names, hide)


def _check(generator: Generator | None, table: Any, local_epochs: int) -> tuple[FederatedGenerator, Table]:
    generator = check(GaussianCopula() if generator is None else generator)
    if not isinstance(generator, FederatedGenerator) or type(generator) not in models().values():
        raise bad(
            "synthesize",
            "generator",
            type(generator).__name__,
            "one of " + ", ".join(models()),
            "Other generators need all rows in one place.",
        )
    if isinstance(generator, GAN) and generator.checkpoints != 1:
        raise bad(
            "synthesize", "checkpoints", generator.checkpoints, "1: only the last common weights are kept"
        )
    if isinstance(local_epochs, bool) or not isinstance(local_epochs, int) or local_epochs < 1:
        raise bad("synthesize", "local_epochs", local_epochs, "a whole number of at least 1")
    return generator, _check_table(table)


def _to_numbers(table: Table, name: str, frame: pandas.DataFrame) -> np.ndarray:
    try:
        x = table.to_numbers(frame)
        table.resolve_constraints(x)
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


def _restore(
    generator: FederatedGenerator,
    table: Table,
    result: dict[str, Any],
    ledger: Ledger,
    who: str,
    names: Sequence[str],
    hide: bool,
) -> Generator:
    """Return a fitted copy of the generator, and record who saw which sums."""
    sums = _describe_sums(generator)
    for kind, reveals in sums:
        ledger.record(who, "all holders together" if hide else "each holder", kind, reveals)
    others = "and so of the other one" if len(names) == 2 else "and so of the others together"
    returned = sums[:1] if isinstance(generator, GaussianCopula) else sums  # what holders receive back
    for name in names if len(names) > 1 else ():  # the message that carries them is of kind "model"
        for kind, reveals in returned:
            ledger.record(name, who, kind, f"{reveals}; of all holders, {others}, its own being known to it")
    metadata = {PROTECTION: result["protection"]}
    state = GeneratorState(result["tensors"], metadata, result["history"], ledger)
    return copy.copy(generator).restore(table, state)


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
    """Coordinate the rounds; return the tensors of the generator and the history."""
    work = _Computation(table, generator, local_epochs, hide, names)
    history: list[dict[str, Any]] = []

    async def merge(r: int, result: Any) -> None:
        if result is None:
            raise SumAborted(
                f"round {r + 1} failed: a holder left after sums had been masked. Restart the job.",
                spent=True,
            )
        is_sum = isinstance(result, rounds.SumResult)
        total = result.total if is_sum else sum(v["sum"] for _, v in result.values())
        work.merge(r, np.asarray(total).astype(np.int64))
        history.append({"round": r, "holders": len(result.included if is_sum else result)})
        watch({"kind": "round", "rounds": work.rounds, **history[-1]})

    async def no_model(r: int) -> None:
        """Nothing is tested on held-out rows."""

    async def no_test_results(r: int, counts: Any) -> None:
        raise AssertionError("no evaluation is requested")

    await rounds.server(
        me,
        names,
        work.remaining_rounds(),
        lambda r: names,
        work.down,
        merge,
        no_model,
        no_test_results,
        hidden=_SecureSum(work) if hide else None,
    )
    protection = work.cells.protection(FLOOR).to_dict()
    return {"tensors": work.tensors(), "history": history, "protection": protection}


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
    """Contribute this holder's rows to every sum."""
    work = _Computation(table, generator, local_epochs, hide, names)
    v = work.layout.encode(np.asarray(x, dtype=np.float64))

    def local(r: int, vectors: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        work.receive(r, vectors)
        return 1.0, {"sum": torch.from_numpy(work.local(r, v, place))}

    def no_test(r: int, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        raise AssertionError("no evaluation is requested")

    await rounds.client(
        me,
        local,
        no_test,
        boss,
        hidden=lambda: _SecureSum(work) if hide else None,
        consent=OncePerRound(work.rounds),
    )


class _Computation:
    """What both sides know: the table, the generator, and from round 1 on the totals."""

    def __init__(
        self, table: str, generator: dict[str, Any], local_epochs: int, hide: bool, names: Sequence[str]
    ):
        contract = json.dumps([table, generator, local_epochs, hide, list(names)], sort_keys=True)
        self.digest = hashlib.sha256(contract.encode()).hexdigest()
        self.job = torch.tensor(list(bytes.fromhex(self.digest)), dtype=torch.uint8)
        self.layout = Layout(Table.from_dict(json.loads(table)))
        self.generator: FederatedGenerator = from_table(generator, models(), "synthesize")
        self.local_epochs, self.names = local_epochs, names
        self.histograms = Histograms(self.layout)
        self.totals: np.ndarray | None = None
        self._pooled: Pooled | None = None
        self.weights: Tensor | None = None

    @property
    def pooled(self) -> Pooled:
        assert self._pooled is not None  # from round 1 on
        return self._pooled

    @property
    def rounds(self) -> int:
        if isinstance(self.generator, GaussianCopula):
            return 2
        judging = isinstance(self.generator, ARGN)  # one more round, on the last weights
        return 1 + -(-self.generator.epochs // self.local_epochs) + judging

    def remaining_rounds(self) -> Iterator[int]:
        """Yield the rounds; fewer than `rounds` if training ends by itself."""
        for r in range(self.rounds):
            if r and self.pooled.is_done:
                return
            yield r

    def length(self, r: int) -> int:
        return self.histograms.length if r == 0 else self.pooled.length

    def bound(self, r: int) -> int:
        return MOST_ROWS if r == 0 else self.pooled.bound

    def down(self, r: int) -> dict[str, Tensor]:
        """Return what the coordinator sends in round `r`."""
        if r == 0:
            return {"job": self.job}
        weights = {} if self.weights is None else {"state": self.weights}
        return {"totals": torch.from_numpy(self.totals), **weights}

    def receive(self, r: int, vectors: dict[str, Tensor]) -> None:
        """Check and use what a holder receives in round `r`."""
        if r == 0 and not torch.equal(vectors["job"], self.job):
            raise BadJob(
                "the coordinator's job differs from this holder's: the declared columns, the generator, its "
                "parameters, local_epochs, hide or the participants. Sums of different cells would be "
                "meaningless. Use the same file of columns and the same options everywhere."
            )
        if r and self._pooled is None:
            self._set_totals(vectors["totals"].numpy().astype(np.int64))
        self.weights = vectors.get("state")

    def _set_totals(self, totals: np.ndarray) -> None:
        self.totals, self.cells = totals, self.histograms.protect(totals, FLOOR)
        self._pooled = _pool_generator(self.generator, self.histograms, self.cells.totals)

    def local(self, r: int, v: np.ndarray, place: int) -> np.ndarray:
        """Return a holder's integers for the sum of round `r`."""
        if r == 0:
            if isinstance(self.generator, ARGN):  # held-out rows are in no count
                v = v[split_holder_rows(self.generator, len(v))[0]]
            return self.histograms.count(v)
        epochs = self.local_epochs
        if isinstance(self.generator, GAN | ARGN):  # the last round may be shorter
            epochs = max(0, min(epochs, self.generator.epochs - (r - 1) * epochs))
        seed = holder_seed(self.generator.seed, r, place)
        return self.pooled.contribute(self.cells.apply(v), self.weights, epochs, seed)[0]

    def merge(self, r: int, total: np.ndarray) -> None:
        """Use the sum of round `r`, at the coordinator."""
        if r == 0:
            self._set_totals(total)
        else:
            self.pooled.merge(total)
        self.weights = self.pooled.weights()

    def tensors(self) -> dict[str, Tensor]:
        return self.pooled.tensors()


class _SecureSum:
    """The hidden sum of a round, by secure aggregation."""

    tries = 1

    def __init__(self, work: _Computation):
        self.work = work
        self.enough = len(work.names)  # all of them: a sum without one holder's rows describes another table

    def _terms(self, r: int, sent: bytes) -> secagg.SecAggTerms:
        work = self.work
        context = f"synthesize {work.digest}"
        return check(
            secagg.SecAggTerms(context, len(work.names), work.length(r), work.bound(r), 1.0, sent=sent)
        )

    async def server(self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes) -> Any:
        return await secagg.server(me, names, self._terms(r, sent), first=within)

    async def client(
        self, me: Party, r: int, vectors: dict[str, Tensor], boss: str, sent: bytes, commitment: Commitment
    ) -> None:
        await secagg.client(me, vectors["sum"], self._terms(r, sent), None, boss, commitment)


def _pool_generator(generator: FederatedGenerator, histograms: Histograms, totals: np.ndarray) -> Pooled:
    """Return the further computation of a generator, from the totals of the first sum."""
    if isinstance(generator, GaussianCopula):
        return PooledCopula(generator, histograms, totals)
    if isinstance(generator, ARGN):
        return PooledARGN(generator, histograms, totals)
    return PooledGAN(generator, histograms, totals)


def models() -> dict[str, type[Generator]]:
    """Return the generators that several holders can fit together."""
    return {name: cls for name, cls in ALL.items() if cls.federated}


def _check_table(table: Any) -> Table:
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
            f"the domain of {', '.join(map(repr, table.undeclared))} is not declared, and no holder sees all "
            "rows. Declare it, like age=tacit.synth.integer(0, 120) or "
            "job=tacit.synth.categorical(['cook', 'nurse'])."
        )
    if not table.modeled:
        raise BadData(
            "only identifiers are declared, so there is nothing to learn. Declare at least one other column."
        )
    for constraint in table.constraints:
        if isinstance(constraint, Combinations) and constraint.allowed is None:
            raise BadData(f"{constraint!r} would be inferred from the rows. Give `allowed`.")
    return table


def _describe_sums(generator: FederatedGenerator) -> list[tuple[str, str]]:
    """Return (kind, what it reveals) of the sums, for the ledger."""
    if isinstance(generator, GaussianCopula):
        second = ("TwoWayCounts", "how many rows there are in each pair of cells of each pair of columns")
    elif isinstance(generator, ARGN):
        second = (
            "Weights",
            "the mean of the network's weights after each round, weighted by rows, and how likely held-out "
            "rows are",
        )
    else:
        second = ("Weights", "the mean of the networks' weights after each round, weighted by rows")
    rows = "training rows" if isinstance(generator, ARGN) else "rows"
    first = f"how many {rows} there are in each fine cell of each column, and how many in all"
    return [("Counts", first), second]

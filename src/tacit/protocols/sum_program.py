"""Jobs that are a sequence of sums: federated preparation of tables, and statistics.

    coordinator                                  every party
      |---- SumStep(0, session, keys, vectors) -->|
      |                                           |  local(0, its table, vectors): integers, kept on disk
      |<=== sum_of_all, or secagg ================|   and nothing else; or SumRefused(step, reason)
      …  the next step follows from this sum …
      |---- SumsOver(vectors, failed) ----------->|   at the end; with the result, if it is shared

A `SumProgram` says what both sides compute. The coordinator's part is a generator: it yields what is sent
down and receives the sum. What a party contributes depends on its rows, on the step and on what was sent
down; a party's owner agrees to the program and its number of steps beforehand. Vectors are integers; numbers
are encoded by `crypto.exact`, so the result does not depend on who computes the sums.

The coordinator learns the sum over all parties in each step, and nothing of one party (sum_of_all.py; with a
`threshold` below 1, secagg.py). Parties
learn what is sent down, which follows from earlier sums. Every sum is bound to the contract, the step and
everything sent down. A party answers steps in order, each with one vector: what it sent is kept (`Answers`)
and sent again if the step is repeated, and a step that is asked with other vectors is refused. The steps of a
`Chained` program repeat what the earlier ones were sent, and one that repeats something else is refused.
Within a session a step is sent only what was added to the vectors of the step before (step_vectors.py).
What a program asks once (`AsksOnce`) is refused in a second step. Of the sums that the rules call `checked`,
a party is sent each opened one and answers only the step that follows from it (checked_sums.py).

Claim: with `threshold` 1 no coordinator opens two different sums of one step. A party masks its vector with
all parties of the contract, and these masks cancel only in the sum over all of them (sum_of_all.py), so
every opened sum of a step contains the one vector of each honest party. A repeated sum is the same sum, so
a party that was killed may restart and the step may be tried again.

With a lower threshold the program goes on, or begins again (departures.py), without parties that left. Then
two sums over different parties could be subtracted, so a party is in at most one opened sum of a step
(consent.py), and a step in which too few remain after shares were revealed is lost. Sums of different steps
may still be over different parties: parties agree to this mode in the contract. Who was not in the sum of a
step is in no later one: parties reveal no shares for that, so there are as many sets of parties as may leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, ProtocolError, QueryRefused, SumAborted, TacitError
from ..parameters import check, choice, real, whole
from ..parties.message import Message
from . import secagg, sum_of_all
from .checked_sums import OPENED, TAGS, Checker, Checks
from .consent import Commitment, OneSum
from .departures import BEGAN, Beginnings, mark, read_first
from .joining import shown
from .rounds import run_sum
from .step_vectors import LastStep, ReadStep, StepVectors, shorten
from .sum_replay import run_steps, with_parties
from .sum_steps import AsksOnce, Chained, Packed, R, T, count_words, implements
from .sum_steps import Down as Down
from .sum_steps import SumProgram as SumProgram
from .sum_steps import ideal as ideal
from .summing import RoundOver, SumOutcome

if TYPE_CHECKING:
    from ..parties.party import Identity, Party
    from .joining import Admission

SESSION_BYTES = 8
KEPT_BYTES = 1 << 16  # of answers besides the last two: memory that is used again stays in the cache


# the messages -----------------------------------------------------------------------------------------------


class SumStep(
    Message,
    reveals="what the next sum depends on: numbers that follow from earlier sums over all parties",
    is_read_only=True,
):
    step: int
    session: bytes  # of this attempt; it is in the scope of its messages
    keys: bytes  # the session in which the keys of the masks were exchanged; this one: they are now
    vectors: dict[str, Tensor]
    kept: dict[str, int] = field(default_factory=dict)  # what they continue (step_vectors.py)


class SumRefused(Message, reveals="that a party does not answer a step, in a fixed sentence"):
    step: int
    reason: str


class SumsOver(
    Message,
    reveals="that the program has ended or why it failed, and its result where parties agreed to share it",
):
    vectors: dict[str, Tensor]
    failed: str


ASKS = (SumStep, SumsOver)


@dataclass(frozen=True)
class SumRules:
    """What all parties of a program agree on besides the program."""

    contract: str  # the digest of everything the parties agreed to, the program included
    parties: tuple[str, ...]
    threshold: float = real(
        1.0, above=0.5, most=1.0, doc="1: every sum is over all parties; less: it goes on without some"
    )
    adversary: str = choice("curious", ("curious", "active"), doc="what the server may do")
    within: float | None = real(
        60.0, above=0, none=True, doc="seconds for each step of a sum; None waits for everyone"
    )
    tries: int = whole(3, least=1, doc="how often a sum is tried before the program fails")
    checked: int = whole(
        0, least=0, doc="how many first sums parties check: they answer only steps that follow from them"
    )

    @cached_property
    def may_leave(self) -> int:
        """How many parties a sum may be without."""
        return len(self.parties) - self.terms(1, 1, b"").enough

    def tags(self, step: int) -> int:
        """Return how many tags the sum of a step ends with."""
        return TAGS if step < self.checked else 0

    def terms(self, length: int, bound: int, sent: bytes, modular: bool = False) -> secagg.SecAggTerms:
        """Return the terms of one sum of vectors with their tags.

        `modular`: of words, not of numbers (sum_steps.Packed).
        """
        key, known = (length, bound, modular), self._known
        if key not in known:
            if len(known) >= 1024:  # a program has few lengths
                known.clear()
            known[key] = _make_terms(self, length, bound, modular)
        return known[key].bound_to(sent)

    @cached_property
    def last_step(self) -> LastStep:
        """What the parties that have this very object computed last (those of one process)."""
        return LastStep()

    @cached_property
    def _known(self) -> dict[tuple[int, int, bool], secagg.SecAggTerms]:
        """Terms by length, bound and kind of numbers: hashing these rules takes as long as the rest."""
        return {}


def _make_terms(rules: SumRules, length: int, bound: int, modular: bool) -> secagg.SecAggTerms:
    terms = secagg.SecAggTerms(
        rules.contract,
        len(rules.parties),
        length,
        bound,
        rules.threshold,
        adversary=rules.adversary,
        modular=modular,
    )
    assert check(terms).width  # computed here, once, as is what their contexts have in common
    assert terms.constant_context
    return terms


def digest_of_step(step: int, vectors: Down) -> bytes:
    return StepVectors().digest(step, vectors)


# a party ----------------------------------------------------------------------------------------------------


class Answers(Beginnings, Protocol):
    """What a party has answered under one contract."""

    def find(self, step: int) -> tuple[bytes, np.ndarray] | None:
        """Return the digest of what was sent down in a step and the vector that answered it, if it was."""

    def keep(self, step: int, sent: bytes, vector: np.ndarray, once: str | None = None) -> None:
        """Keep an answer. It is durable when this returns; nothing was sent before."""

    def has_asked(self, once: str) -> bool:
        """Return whether a question that is answered once (`AsksOnce`) was answered in some step."""

    def commit(self, step: int) -> Commitment:
        """Return the commitment to at most one opened sum of this step (threshold below 1)."""


class KeptAnswers:
    """Answers in memory, for a program that lives as long as its run.

    A coordinator repeats its last step, if any, so only the last vectors are kept, up to `KEPT_BYTES`.
    """

    def __init__(self) -> None:
        self.answers: dict[int, tuple[bytes, np.ndarray | None]] = {}
        self._bytes, self._oldest = 0, 0  # of the vectors that are kept
        self.sums: dict[int, OneSum] = {}
        self.asked: set[str] = set()
        self.begun: list[int] = []
        self.opened: dict[int, np.ndarray] = {}
        self.key: bytes | None = None

    def begin(self, first: int) -> None:
        self.begun.append(first)

    def find(self, step: int) -> tuple[bytes, np.ndarray] | None:
        entry = self.answers.get(step)
        if entry is None:
            return None
        sent, vector = entry
        if vector is None:
            raise ProtocolError(
                f"the coordinator asks for step {step + 1} again after later steps, and the answer is no "
                "longer kept. Nothing was sent."
            )
        return sent, vector

    def keep(self, step: int, sent: bytes, vector: np.ndarray, once: str | None = None) -> None:
        self.answers[step] = sent, vector
        self._bytes += vector.nbytes
        while self._bytes > KEPT_BYTES and self._oldest < step - 1:
            sent_then, old = self.answers.get(self._oldest, (b"", None))
            if old is not None:
                self.answers[self._oldest] = sent_then, None
                self._bytes -= old.nbytes
            self._oldest += 1
        if once is not None:
            self.asked.add(once)

    def has_asked(self, once: str) -> bool:
        return once in self.asked

    def commit(self, step: int) -> Commitment:
        before = self.sums.get(step - 1)
        return self.sums.setdefault(step, OneSum(None if before is None else before.alive))

    def find_key(self) -> bytes | None:
        return self.key

    def keep_key(self, key: bytes) -> None:
        self.key = key

    def find_opened(self, step: int) -> np.ndarray | None:
        return self.opened.get(step)

    def keep_opened(self, step: int, total: np.ndarray) -> None:
        self.opened[step] = total


async def client(
    me: Party,
    program: SumProgram[T, Any],
    table: T,
    rules: SumRules,
    *,
    server: str = "server",
    answers: Answers | None = None,
    identity: Identity | None = None,
    allow: Callable[[int], None] = lambda step: None,
    answered: Callable[[int], None] = lambda step: None,
) -> dict[str, Tensor]:
    """Answer the coordinator's steps until the end; return the vectors it shared.

    `allow` is called before each answer and may raise; `answered` is called after it. A step that the
    program, or what was answered before, does not allow is refused: the coordinator gets a fixed sentence and
    the error is raised here.
    """
    answers = answers if answers is not None else KeptAnswers()
    session = sum_of_all.Session()
    last = StepVectors(rules.last_step if me.last_read is not None else None)
    checker = None
    if rules.checked:
        assert isinstance(answers, Checks)
        checker = Checker(me.name, program, rules.parties, answers, rules.checked)
    message: Any = None
    with me.listen(server, *ASKS) as inbox:
        while True:
            message = message if message is not None else await inbox.next()
            if isinstance(message, SumsOver) and message.failed:
                raise ProtocolError(f"the coordinator {server!r} gave up: {shown(message.failed)[:300]}")
            if isinstance(message, SumsOver):
                return dict(message.vectors)
            step = message.step
            begins = message.keys if message.keys == message.session else None
            if rules.threshold == 1 and begins is None and message.keys != session.name:
                with me.scope(_tag(message)) as scope:
                    await scope.send(server, sum_of_all.SessionUnknown())
                message = None
                continue
            try:
                allow(step)
                read = last.read(step, message.vectors, message.kept)
                first, down = read_first(program, rules.may_leave, step, read.down, answers)
                sent, vector = _answer(me.name, program, table, answers, message, checker, read, first)
                tags = rules.tags(step)
                packed = not tags and read.count_words(program, step - first, down) is not None
                terms = rules.terms(len(vector) + tags, program.bound, sent, packed)
                if rules.threshold == 1 and begins is None:
                    # one message and no answer to wait for: nothing that a restarted server could interrupt
                    tagged = checker.tag(step, vector) if checker is not None and tags else vector
                    await sum_of_all.continue_session(
                        me, _tag(message), tagged, terms, rules.parties, session, server
                    )
                    message = None
                else:
                    with me.scope(_tag(message)) as scope:
                        work: Coroutine[Any, Any, Any]
                        if begins is not None and rules.threshold == 1:
                            work = _begin(
                                scope, step, vector, terms, rules, session, begins, identity, server, checker
                            )
                        else:
                            values = torch.from_numpy(vector)
                            work = secagg.client(scope, values, terms, identity, server, answers.commit(step))
                        message = await run_sum(me, server, work, ASKS)
            except TacitError as error:
                await me.send(server, SumRefused(step, error.outside))
                raise
            answered(step)


async def _begin(
    scope: Party,
    step: int,
    vector: np.ndarray,
    terms: secagg.SecAggTerms,
    rules: SumRules,
    session: sum_of_all.Session,
    begins: bytes,
    identity: Identity | None,
    server: str,
    checker: Checker | None,
) -> None:
    """Take part in the first sum of a session, with tags where parties check sums."""
    if checker is not None:
        await checker.exchange_key(scope)
        if rules.tags(step):
            vector = checker.tag(step, vector)
    values = torch.from_numpy(vector)
    await sum_of_all.client(scope, values, terms, rules.parties, session, begins, identity, server)


def _answer(
    name: str,
    program: SumProgram[T, Any],
    table: T,
    answers: Answers,
    message: SumStep,
    checker: Checker | None = None,
    read: ReadStep | None = None,
    first: int = 0,
) -> tuple[bytes, np.ndarray]:
    """Return the digest of the request and the vector that answers it: the kept one, if there is one.

    `first` is the step at which the program began.
    """
    read = read or StepVectors().read(message.step, message.vectors, message.kept)
    step, sent_down, own = message.step, read.down, message.step - first
    down: Down = sent_down  # most often the same object, which a program then reads once
    if OPENED in read.vectors or BEGAN in read.vectors:
        down = {k: v for k, v in sent_down.items() if k not in (OPENED, BEGAN)}
    if not 0 <= own < program.max_steps:
        raise ProtocolError(
            f"the coordinator asks {name!r} for step {step + 1}; the agreed program has {program.max_steps} "
            "steps. Nothing was sent."
        )
    if not len(message.session) == len(message.keys) == SESSION_BYTES:
        raise ProtocolError(f"the session of a sum has {len(message.session)} bytes, not {SESSION_BYTES}.")
    sent, kept = read.digest, answers.find(step)
    if kept is not None:
        if kept[0] != sent:
            raise ProtocolError(
                f"the coordinator asks {name!r} for step {step + 1} again with other vectors than before. "
                "A step is answered once. Nothing was sent."
            )
        return kept
    before = answers.find(step - 1) if step else None
    if step and before is None:
        raise ProtocolError(
            f"the coordinator asks {name!r} for step {step + 1} before step {step}. Nothing was sent."
        )
    try:
        computed = down if checker is None else checker.check(step, sent_down)
        follows = (
            before is None
            or not own
            or not implements(type(program), Chained)
            or before[0] == digest_of_step(step - 1, mark(cast(Chained, program).preceding(own, down), first))
        )
        once = cast(AsksOnce, program).once(computed) if implements(type(program), AsksOnce) else None
        if once is not None and answers.has_asked(once):
            raise ProtocolError(
                f"the coordinator asks {name!r} in step {step + 1} for what it has answered ({once}), and "
                "the agreed program asks that once. Nothing was sent."
            )
        tagged = checker is not None and step < checker.sums
        length = None if tagged else read.count_words(program, own, down)
        packed = length is not None
        if length is not None:
            vector = cast(Packed, program).local_words(own, table, down)
        else:
            length, vector = program.length(own, computed), program.local(own, table, computed)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, TacitError):
            raise
        raise ProtocolError(
            f"what the coordinator sent {name!r} in step {step + 1} cannot be used by the agreed program: "
            f"{type(error).__name__}: {error}. Nothing was sent."
        ) from error
    if not follows:
        raise ProtocolError(
            f"what the coordinator sent {name!r} in step {step + 1} does not follow from step {step}. "
            "Nothing was sent."
        )
    vector = np.ascontiguousarray(vector, dtype=np.int64)
    if vector.shape != (length,):
        raise BadData(
            f"{name!r} would answer step {step + 1} with {vector.shape} numbers; the program declares "
            f"{length}."
        )
    if not packed and len(vector) and max(int(vector.max()), -int(vector.min())) > program.bound:
        raise BadData(
            f"{name!r} would answer step {step + 1} with a number outside ±{program.bound}, the agreed range."
        )
    answers.keep(step, sent, vector, once)
    return sent, vector


def _tag(message: SumStep) -> str:
    return f"sum {message.step} {message.session.hex()}"


# the coordinator --------------------------------------------------------------------------------------------


async def server(
    me: Party,
    program: SumProgram[Any, R],
    rules: SumRules,
    *,
    admission: Admission | None = None,
    sums: Sequence[np.ndarray] = (),
    included: Sequence[Sequence[str]] = (),
    opened: Callable[[int, np.ndarray, Sequence[str]], None] = lambda step, total, included: None,
    aborted: Callable[[int, str], None] = lambda step, why: None,
    share: Callable[[R], Down] | None = None,
) -> R:
    """Run the program over all parties of `rules`, and return its result.

    admission   over a network: who is connected. A sum in which a party restarts is begun again
    sums        the sums of earlier steps with their tags, after a restart of the coordinator
    included    the parties in each of them; without it, all
    opened      is called with each new sum before the next step, with the parties in it
    share       makes vectors of the result that all parties receive
    """
    keys, interruptions = _Keys(), _Interruptions(me, admission)

    async def ask(step: int, sent: Down, asked: tuple[int, Down], names: list[str]) -> SumOutcome:
        outcome = await _sum(
            me, program, rules, step, dict(sent), asked, names, keys, admission, interruptions, aborted
        )
        opened(step, outcome.total.numpy(), [p for p in names if p in outcome.included])
        return outcome

    try:
        result = await run_steps(program, rules, with_parties(rules, sums, included), ask)
    except TacitError as error:
        await me.send(list(rules.parties), SumsOver({}, str(error)[:300]))
        raise
    finally:
        await interruptions.close()
    await me.send(list(rules.parties), SumsOver({} if share is None else dict(share(result)), ""))
    return result


@dataclass
class _Keys:
    """The session whose keys all parties have; None: the next sum begins one. `last`: what they were sent."""

    session: bytes | None = None
    last: StepVectors = field(default_factory=StepVectors)


async def _sum(
    me: Party,
    program: SumProgram[Any, Any],
    rules: SumRules,
    step: int,
    vectors: dict[str, Tensor],
    asked: tuple[int, Down],
    names: list[str],
    keys: _Keys,
    admission: Admission | None,
    interruptions: _Interruptions,
    aborted: Callable[[int, str], None],
) -> SumOutcome:
    """Return the sum of one step. A party that restarts begins it again; an aborted sum is tried again."""
    tags = rules.tags(step)
    words = None if tags else count_words(program, *asked)
    length = program.length(*asked) + tags if words is None else words
    terms = rules.terms(length, program.bound, keys.last.digest(step, vectors), words is not None)
    tries = 0
    while True:
        present = names
        if admission is not None:
            need = max(terms.enough, 2)
            # a sum over all parties waits for each of them
            within = None if rules.threshold == 1 else rules.within
            present = await admission.wait_for_free(names, min(need, len(names)), within)
        session, known = me.secret.bytes(SESSION_BYTES), keys.session
        keys.session = None  # until this sum has succeeded
        message = SumStep(step, session, session if known is None else known, vectors)
        if known is not None:
            shorter, kept = shorten(keys.last.vectors, vectors)
            message = SumStep(step, session, known, shorter, kept)
        with me.scope(_tag(message)) as scope:
            await me.send(present, message)
            if admission is not None:
                admission.note_processes(present)
            work = asyncio.ensure_future(
                sum_of_all.server(scope, present, terms, known is None, rules.within)
                if rules.threshold == 1
                else secagg.server(scope, present, terms, rules.within, rules.within)
            )
            try:
                watched = [work, *interruptions.watch(present)]
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    outcome = work.result()
                    if rules.threshold == 1:
                        keys.session, keys.last.vectors = message.keys, vectors
                    return outcome
                why, is_refusal = interruptions.read()
                await scope.send(present, RoundOver(True, why))
                if is_refusal:
                    raise QueryRefused(why)
                aborted(step, why)
            except sum_of_all.SessionLost as lost:
                aborted(step, str(lost))
            except SumAborted as error:
                # a party that is disconnected is awaited for the admission's patience, not for so many tries
                tries += admission is None or not admission.list_absent(present)
                aborted(step, str(error))
                if error.spent or tries == rules.tries:
                    raise
            finally:
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)


class _Interruptions:
    """What ends a sum early: a party that refuses its step, and one that restarts or stays away.

    One task waits for each of them for as long as the program runs.
    """

    def __init__(self, me: Party, admission: Admission | None) -> None:
        self.me, self.admission = me, admission
        self.names: Sequence[str] = ()  # the parties of this sum
        self._refusal: asyncio.Future[tuple[str, str]] | None = None
        self._restart: asyncio.Future[str] | None = None

    def watch(self, names: Sequence[str]) -> list[asyncio.Future[Any]]:
        """Return what is done when a sum over these parties has to end."""
        self.names = names
        if self._refusal is None or self._is_of_another_sum(self._refusal):
            self._refusal = asyncio.ensure_future(self._wait_for_refusal())
        tasks: list[asyncio.Future[Any]] = [self._refusal]
        if self.admission is not None:
            restart = self._restart
            if restart is None or restart.done() or self._find_restart(self.admission) is not None:
                if restart is not None and not restart.cancel():
                    restart.exception()  # found between two sums; a new task looks at once
                self._restart = restart = asyncio.ensure_future(self._wait_for_restart(self.admission))
            tasks.append(restart)
        return tasks

    def read(self) -> tuple[str, bool]:
        """Return why the sum has to end, and whether because a party refuses; raise if the program has to."""
        if self._refusal is not None and self._refusal.done():
            return self._refusal.result()[1], True
        assert self._restart is not None
        return self._restart.result(), False

    async def close(self) -> None:
        tasks = [task for task in (self._refusal, self._restart) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_of_another_sum(self, refusal: asyncio.Future[tuple[str, str]]) -> bool:
        """Return whether a party refused that has left since: its refusal came after the sum without it."""
        return refusal.done() and refusal.exception() is None and refusal.result()[0] not in self.names

    async def _wait_for_refusal(self) -> tuple[str, str]:
        while True:
            name, message = await self.me.first(SumRefused)
            if name in self.names:
                why = shown(message.reason)[:300]
                return name, f"party {name!r} does not answer step {message.step + 1}: {why}"

    async def _wait_for_restart(self, admission: Admission) -> str:
        while True:
            admission.changed.clear()
            found = self._find_restart(admission)
            if found is not None:
                return found
            admission.list_absent(self.names)
            await admission.wait_for_change()

    def _find_restart(self, admission: Admission) -> str | None:
        """Return which of the parties has restarted, if one has; raise if one cannot take part any more."""
        for name in self.names:
            if admission.has_restarted(name):
                return f"party {name!r} restarted; the sum begins again"
            if name in admission.refused:
                raise ProtocolError(f"the program cannot go on: {name!r}: {admission.refused[name]}")
        return None

"""Synchronous federated rounds.

    server                                    client k (chosen in this round)
      |---- Look(round, turn, vectors) --------->|   to candidates, where losses decide who is chosen
      |<--- Loss(loss) --------------------------|
      |---- Down(round, vectors) --------------->|
      |                                          |  local(…) on its own rows
      |<--- Upload(weight, vectors) -------------|   in the scope of this round
      |  merge                                   |
      …                                          …
      |---- Test(round, vectors) --------------->|   now and then, to everyone
      |<--- Tested(counts) ----------------------|
      |---- Stop() ----------------------------->|   at the end

If only the best client of a round sends its model (`scores`; FedPSO), Score and Pick (picking.py) come
between Down and Upload. If sums are hidden, the counts of a Test are summed in secret like updates, and there
is no Tested.

A client answers only what its owner's `consent` (consent.py) admits. Every hidden sum is bound to the kind of
request, the round and the digest of everything sent with it: parties that received different things share no
masks.

With a deadline, a round continues without late clients once enough have answered. A late answer belongs to a
closed scope and is dropped. A client that is asked twice in one round answers twice; the second answer is
dropped as well. Over a network an `Admission` (joining.py) runs concurrently with the rounds: it knows who is
connected, and repeats a request to a client that reconnects within a round.

The server learns each chosen client's weight and update in the clear, every client's counts on its held-out
rows and, where losses decide who is chosen, the candidates' losses. Clients learn the model. No rows are
sent. Updates themselves can leak information to a curious server; guards limit that, and a `hidden` sum
(secagg.py, lightsecagg.py, encrypted.py) replaces Upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..crypto.digest import Digests
from ..errors import ProtocolError, SumAborted
from ..parties.message import Message
from .consent import UNCOMMITTED, Commitment, Consent, RoundSpent
from .picking import SCORE, BestUpload, Pick, Score, rank, unlike
from .picking import ideal as best_of

if TYPE_CHECKING:
    # imported for annotations only: a simulation needs no msgpack
    from ..parties.party import Gathered, Party
    from .joining import Admission

Vectors = dict[str, Tensor]


class Down(Message, reveals="the server's current model, and the part of its state that the algorithm sends"):
    round: int
    vectors: dict[str, Tensor]


class Upload(Message, reveals="one party's model update and its weight (its number of rows), in the clear"):
    weight: float
    vectors: dict[str, Tensor]


class Look(Message, reveals="the server's current model, to compute losses before participants are chosen"):
    round: int
    turn: int
    vectors: dict[str, Tensor]


class Loss(Message, reveals="how large the model's mean loss on one party's training rows is"):
    loss: float


class Test(Message, reveals="the server's current model, to be tested on held-out rows"):
    round: int
    vectors: dict[str, Tensor]


class Tested(
    Message,
    reveals="one party's counts on its held-out rows: confusion matrix, summed loss, score histograms",
):
    counts: dict[str, Tensor]


class Stop(Message, reveals="that the run is over"):
    pass


M = TypeVar("M", bound=Message)
T = TypeVar("T")


class ModelAssignment(NamedTuple):
    """Several models instead of one, and the index of the model each party receives."""

    models: Sequence[Vectors]
    of: Mapping[str, int]


class Candidates(NamedTuple):
    """Parties asked for the model's loss before participants are chosen; `settle` chooses by these losses."""

    names: Sequence[str]
    vectors: Vectors
    settle: Callable[[Mapping[str, float]], Sequence[str] | Candidates]


class SumResult(NamedTuple):
    """A hidden sum in place of the single uploads."""

    total: Tensor
    included: Sequence[str]


class SecretSum(Protocol):
    """A hidden sum of the clients' vectors: a program for the server and one for a client."""

    tries: int  # attempts per round if too few clients stay
    enough: int  # the least number of clients

    async def server(
        self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes
    ) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        """Return (sum, clients included, {client: step at which it left}).

        `sent` is the digest of what the server sent down.
        """

    async def client(
        self, me: Party, r: int, vectors: Vectors, server: str, sent: bytes, commitment: Commitment
    ) -> None:
        """Contribute the vectors that `local` returned."""


ASKS = (Down, Test, Look, Pick, Stop)  # the server's messages outside any scope
# in Down and Test, where sums are hidden: a round repeated after a crash has its own scope and keys
SESSION = "session"
SESSION_BYTES = 8
KIND = {"Down": "update", "Test": "test", "Look": "loss"}  # the name of a request in a client's consent


def _tag(message: Down | Test) -> str:
    session = message.vectors[SESSION]
    if session.dtype != torch.uint8 or session.shape != (SESSION_BYTES,):
        raise ProtocolError(
            f"the session of a hidden sum is {session.dtype} of shape {tuple(session.shape)}; it must be "
            f"{SESSION_BYTES} bytes."
        )
    return (
        f"{'round' if isinstance(message, Down) else 'test'} {message.round} {bytes(session.tolist()).hex()}"
    )


def digest_of_request(message: Down | Test, digests: Digests | None = None) -> bytes:
    """Return what a hidden sum is bound to: kind of request, round, and everything sent with it."""
    return (digests or Digests(message.vectors)).of(None, message.kind, str(message.round))


Dropped = Callable[[int, Mapping[str, str]], None]  # (round, {party: reason})


async def server(
    me: Party,
    clients: Sequence[str],
    rounds: Iterable[int],
    choose: Callable[[int], Sequence[str] | Candidates],
    down: Callable[[int], Vectors | ModelAssignment],
    merge: Callable[[int, Any], Awaitable[None]],
    test: Callable[[int], Awaitable[Vectors | ModelAssignment | None]],
    tested: Callable[[int, Any], Awaitable[None]],
    *,
    hidden: SecretSum | None = None,
    counted: SecretSum | None = None,
    scores: bool = False,
    within: float | None = None,
    at_least: int | None = None,
    admission: Admission | None = None,
    wrong: Callable[[str, Message], str | None] = lambda name, message: None,
    dropped: Dropped = lambda r, who: None,
    aborted: Callable[[int, str], None] = lambda r, why: None,
    meet: bool = False,
    stop: bool = True,
    pending: int | None = None,
    final: int | None = None,
    testers: Callable[[], Sequence[str]] | None = None,
    farewell: Callable[[], Awaitable[None]] | None = None,
    wanted: Callable[[int], int | None] = lambda r: None,
) -> None:
    """Run rounds: `choose` participants, send `down`, `merge` their answers, and have all clients `test`.

    `merge`, `test` and `tested` are awaited, so the caller may pause the server there. Rounds count from 0;
    the model before training is tested as round −1.

    within, at_least   after `within` seconds a round continues with `at_least` answers (default: all)
    wrong              returns the reason why an answer is invalid, or None
    hidden             sums updates in secret: `merge` receives a `SumResult` instead of {party: (weight,
                       vectors)}. A sum that too few clients finish is `aborted` and repeated with new
                       secrets. Parties that may already be in a sum refuse another (consent.py); then the
                       round is lost and `merge` receives None
    counted            sums test counts in secret: `tested` receives a `SumResult`, or None
    scores             only the best client sends its update: `merge` receives a `BestUpload`
    meet               wait for all clients before the first round, because the choice depends on them
    pending            a round whose model must still be tested, after a restart of the server
    final              the number of one more test after the last round, if `test` has a model for it
    testers            the clients that hold back rows (default: all)
    farewell           is awaited after the last round, before Stop
    wanted             with how many updates round r continues at once, if more are asked (default: all)
    """
    testers = testers or (lambda: clients)

    def least(names: Sequence[str]) -> int:
        return len(names) if at_least is None else min(at_least, len(names))

    async def free(names: Sequence[str], need: int) -> tuple[list[str], dict[str, str]]:
        """Return (the parties that can be asked now, {party: why it cannot})."""
        there = list(names) if admission is None else await admission.wait_for_free(names, need, within)
        return there, {
            name: "it is not there, or still at work on an earlier round"
            for name in names
            if name not in there
        }

    async def ask(
        r: int,
        names: Sequence[str],
        scope: str,
        make_message: Callable[[int, Vectors], Message],
        vectors_for: Vectors | ModelAssignment,
        kind: type[M],
        first: int | None = None,
    ) -> dict[str, M]:
        need = len(names) if within is None else least(names)
        if first is not None:
            need = min(need, first)
        answers, left_out = await reach(
            r, names, scope, make_message, vectors_for, kind, need, wrong, first=first
        )
        if left_out:
            dropped(r, left_out)
        if not answers:
            raise no_answers(r, kind, left_out)
        return answers

    def no_answers(r: int, kind: type[M], left_out: Mapping[str, str]) -> ProtocolError:
        return ProtocolError(
            f"party {me.name!r} has no valid {kind.kind} in round {r + 1}: "
            + "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        )

    async def reach(
        r: int,
        names: Sequence[str],
        scope: str,
        make_message: Callable[[int, Vectors], Message],
        vectors_for: Vectors | ModelAssignment,
        kind: type[M],
        need: int,
        wrong: Callable[[str, M], str | None],
        after: Callable[[int, Vectors], Message] | None = None,
        first: int | None = None,
    ) -> tuple[dict[str, M], dict[str, str]]:
        """Return (answers, {party: why it has none}), with at least `need` answers; at most the `first` ones.

        `after` is a request they answered before; a party that restarted since receives it again first.
        """
        participants, left_out = await free(names, need)
        answers: dict[str, M] = {}
        with me.scope(scope) as scope_party:
            if admission is not None:
                admission.replace_requests((), Stop())  # no request is pending any more
            for group, vectors in _groups(participants, vectors_for):
                message = make_message(r, vectors)
                if admission is not None:
                    if after is not None:
                        restarted = [name for name in group if admission.has_restarted(name)]
                        admission.add_request(group, after(r, vectors), busy=False)
                        await me.send(restarted, after(r, vectors))
                    admission.add_request(group, message, busy=True)
                await me.send(group, message)
            waiting = participants
            until = None if within is None else me.clock.now() + within
            while waiting and first is not None and len(answers) < first:
                replies = await scope_party.soonest(waiting, kind, until=until)
                valid, invalid = check_replies(replies, wrong)
                answers |= dict(list(valid.items())[: first - len(answers)])
                left_out |= invalid
                if admission is not None:
                    for name, reason in invalid.items():
                        await admission.refuse(name, reason)
                waiting = [name for name in waiting if name not in answers and name not in left_out]
                if not replies and not replies.refused and within is not None:  # the deadline
                    if len(answers) >= need:
                        break
                    until = me.clock.now() + within
            if first is not None and len(answers) == first:
                left_out |= {name: f"{first} others had answered" for name in waiting}
                if admission is not None:
                    admission.miss(waiting)
                waiting = []
            while waiting and first is None:
                # an unreadable or late answer ends the run only if there is no deadline and no admission
                replies = await scope_party.gather(
                    waiting, kind, at_least=None if within is None and admission is None else 0, within=within
                )
                valid, invalid = check_replies(replies, wrong)
                answers |= valid
                left_out |= invalid
                if admission is not None:
                    for name, reason in invalid.items():
                        await admission.refuse(name, reason)
                waiting = [name for name in participants if name not in answers and name not in left_out]
                if len(answers) >= need:
                    break
            left_out |= {name: f"no answer within {within:g} s" for name in waiting}
            if admission is not None:
                admission.miss(waiting)
                admission.replace_requests((), Stop())
        return {name: answers[name] for name in names if name in answers}, left_out

    async def pick(r: int, names: Sequence[str]) -> BestUpload:
        vectors_for, failed = down(r), dict[str, str]()
        replies = await ask(r, names, f"round {r}", Down, vectors_for, Score)
        reported = {name: answer.score for name, answer in replies.items()}
        for turn, best in enumerate(rank(reported, clients)):
            # without a deadline the server waits for the best; with one, it may ask the next best
            answers, left_out = await reach(
                r,
                [best],
                f"best {r} {turn}",
                lambda r, vectors, turn=turn: Pick(r, turn, True),  # type: ignore[misc]
                vectors_for,
                Upload,
                int(within is None),
                lambda name, up: wrong(name, up) or unlike(reported[name], up.vectors),
                after=Down,
            )
            if answers:
                await me.send(
                    [name for name in reported if name != best and name not in failed],
                    Pick(r, turn, False),
                )
                return BestUpload(best, (answers[best].weight, answers[best].vectors), reported)
            failed |= left_out
            dropped(
                r,
                {
                    best: f"it did best, and its model did not come: {left_out[best]}; the next best was "
                    "asked for its own"
                },
            )
        raise no_answers(r, Upload, failed)

    async def sum_secretly(
        r: int,
        names: Sequence[str],
        add: SecretSum,
        message: Callable[[Vectors], Down | Test],
        vectors_for: Callable[[], Vectors | ModelAssignment],
    ) -> SumResult | None:
        """Return the hidden sum that `message` requests.

        None: the sum is lost, because parties took part in an earlier attempt and refuse another.
        """
        for turn in range(add.tries):
            try:
                return await attempt(r, names, add, message, vectors_for)
            except SumAborted as error:
                aborted(
                    r,
                    str(error)
                    if not error.spent
                    else f"{error} The sum is lost: two sums of one round could be subtracted.",
                )
                if error.spent and turn == 0 and add is hidden and r - 1 in spent_rounds:
                    raise SumAborted(
                        f"the parties refuse rounds {r} and {r + 1}: they took part in sums of these rounds "
                        "before, in another run of this contract or in a sum of the same updates (whole "
                        "batches on an unchanged model). A second sum could be subtracted from the first. To "
                        "start over, change the seed in the job file and have the parties agree to it again.",
                        spent=True,
                    ) from error
                if error.spent:
                    spent_rounds.update({r} if turn == 0 and add is hidden else ())
                    return None
                if turn + 1 == add.tries:
                    raise SumAborted(f"{error} Round {r + 1} was tried {add.tries} times.") from error
        raise AssertionError("add.tries is at least 1")

    notes: set[str] = set()
    spent_rounds: set[int] = (
        set()
        # rounds spent before this process started: one after a crash, all if a job is started again
    )

    async def attempt(
        r: int,
        names: Sequence[str],
        add: SecretSum,
        message: Callable[[Vectors], Down | Test],
        make: Callable[[], Vectors | ModelAssignment],
    ) -> SumResult:
        participants, left_out = await free(names, least(names))
        if len(participants) < add.enough:
            raise SumAborted(
                f"a secure sum was not begun: {len(participants)} parties are there and {add.enough} are "
                "needed "
                f"({', '.join(map(repr, list(left_out)[:8]))} are not). Wait for more parties, or lower the "
                "threshold."
            )
        vectors_for = make()
        assert not isinstance(vectors_for, ModelAssignment)  # clustering needs the single updates
        ask = message(
            vectors_for
            | {SESSION: torch.frombuffer(bytearray(me.secret.bytes(SESSION_BYTES)), dtype=torch.uint8)}
        )
        with me.scope(_tag(ask)) as scope_party:
            if admission is not None:
                admission.replace_requests(participants, ask)
                admission.replace_requests(
                    (), ask
                )  # a client that restarts within the round waits for the next: its keys are lost
            await me.send(participants, ask)
            total, included, left = await add.server(
                scope_party, r, participants, within, digest_of_request(ask)
            )
        if left and within is not None and admission is not None:
            admission.miss(left)
        if left_out or left:
            dropped(
                r,
                left_out | {name: f"left the secure sum at its step {step!r}" for name, step in left.items()},
            )
        return SumResult(total, included)

    async def run_test(r: int) -> None:
        model = await test(r)
        if model is not None and counted is not None:
            names = testers()
            if len(names) < counted.enough:
                why = (
                    f"{len(names)} parties hold back rows to evaluate models on, and a hidden sum needs "
                    f"{counted.enough}: there are no metrics"
                )
                if why not in notes:
                    notes.add(why)
                    aborted(r, why)
                await tested(r, None)
                return
            try:
                total = await sum_secretly(r, names, counted, lambda vectors: Test(r, vectors), lambda: model)
            except SumAborted as error:  # training continues without metrics
                aborted(r, f"the model was not evaluated: {error}")
                total = None
            await tested(r, total)
        elif model is not None:
            answers = await ask(r, clients, f"test {r}", Test, model, Tested)
            await tested(r, {name: answer.counts for name, answer in answers.items()})

    async def choose_participants(r: int) -> Sequence[str]:
        chosen, turn = choose(r), 0  # Poisson sampling may choose nobody
        while isinstance(chosen, Candidates):
            answers = await ask(
                r,
                chosen.names,
                f"look {r} {turn}",
                lambda r, vectors, turn=turn: Look(r, turn, vectors),  # type: ignore[misc]
                chosen.vectors,
                Loss,
            )
            chosen, turn = chosen.settle({name: answer.loss for name, answer in answers.items()}), turn + 1
        return chosen

    if meet and admission is not None:
        await admission.wait_for_free(clients, least(clients), within)
    if pending is not None:
        await run_test(pending)
    for r in rounds:
        if r == 0:
            await run_test(-1)
        chosen = await choose_participants(r)
        if hidden is not None and chosen:
            summed = await sum_secretly(
                r,
                chosen,
                hidden,
                lambda vectors, r=r: Down(r, vectors),  # type: ignore[misc]
                lambda r=r: down(r),  # type: ignore[misc]
            )
            await merge(r, summed)
            if summed is None:
                continue  # the model is the one that was tested before
        elif scores and chosen:
            await merge(r, await pick(r, chosen))
        else:
            ups = await ask(r, chosen, f"round {r}", Down, down(r), Upload, wanted(r)) if chosen else {}
            await merge(r, {name: (up.weight, up.vectors) for name, up in ups.items()})
        await run_test(r)
    if final is not None:
        await run_test(final)
    if farewell is not None:
        await farewell()
    if stop:
        await me.send(clients, Stop())


async def _settle(answer: T | Awaitable[T]) -> T:
    """Return an answer; wait for it if it is computed elsewhere, as by a training loop in another thread."""
    return await answer if isinstance(answer, Awaitable) else answer


async def client(
    me: Party,
    local: Callable[[int, Vectors], tuple[float, Vectors] | Awaitable[tuple[float, Vectors]]],
    test: Callable[[int, Vectors], Vectors],
    server: str = "server",
    *,
    look: Callable[[int, Vectors], float] | None = None,
    done: Callable[[], Any] | None = None,
    hidden: Callable[[], SecretSum | None] = lambda: None,
    counted: Callable[[], SecretSum | None] = lambda: None,
    scores: Callable[[], bool] = lambda: False,
    takes: Callable[[int], Awaitable[None]] | None = None,
    consent: Consent = UNCOMMITTED,
) -> None:
    """Answer the server's requests until Stop.

    `local` keeps the state between rounds. `done` is awaited after each answer. `hidden`, `counted` and
    `scores` are called in every round, because over a network a client receives its job only then. `takes` is
    awaited before `local`: the simulated computing time. `look` returns the model's loss on this client's
    rows, for a server that chooses by losses. `consent` is consulted before every answer.
    """
    next_message: Any = None
    kept_update: tuple[int, Upload] | None = None  # until the server has picked the best

    async def contribute(
        message: Down | Test, add: SecretSum, make: Callable[[int, Vectors], Vectors | Awaitable[Vectors]]
    ) -> Any:
        """Take part in the requested hidden sum; return a message the server sent outside of it, if any."""
        if SESSION not in message.vectors:
            raise ProtocolError(
                f"party {me.name!r} hides its updates, and the server requests them in the clear. Do both "
                "run the same job?"
            )
        r, vectors, digests = (
            message.round,
            {k: v for k, v in message.vectors.items() if k != SESSION},
            Digests(message.vectors),
        )
        with me.scope(_tag(message)) as scope_party:
            if not consent.admit(KIND[message.kind], r, digests):
                await scope_party.send(server, RoundSpent())
                return None
            mine = await _settle(make(r, vectors))
            return await run_sum(
                me,
                server,
                add.client(
                    scope_party,
                    r,
                    mine,
                    server,
                    digest_of_request(message, digests),
                    consent.commit(KIND[message.kind], r),
                ),
            )

    async def update(r: int, vectors: Vectors) -> Vectors:
        return (await _settle(local(r, vectors)))[1]

    while True:
        message: Any = next_message if next_message is not None else await me.recv(server, *ASKS)
        next_message = None
        if isinstance(message, Stop):
            return
        r = message.round
        if isinstance(message, Down):
            if takes is not None:
                await takes(r)
            add = hidden()
            if add is None:
                vectors = dict(message.vectors)
                consent.admit("update", r, Digests(vectors))
                up = Upload(*await _settle(local(r, vectors)))
                kept_update = (r, up) if scores() else None
                await me.scope(f"round {r}").send(
                    server, up if kept_update is None else Score(float(up.vectors[SCORE]))
                )
            else:
                next_message = await contribute(message, add, update)
        elif isinstance(message, Pick):
            if not scores():
                raise ProtocolError(
                    f"party {me.name!r} received a Pick, and in this job all parties send their models. Do "
                    "both run the same job?"
                )
            if kept_update is None or kept_update[0] != r:
                # meant for an earlier process of this party; the server starts over with this one
                continue
            up, kept_update = kept_update[1], None
            if not message.wanted:
                continue
            await me.scope(f"best {r} {message.turn}").send(server, up)
        elif isinstance(message, Look):
            if look is None:
                raise ProtocolError(
                    f"party {me.name!r} is asked for a loss, and in this job no party reports one. Do both "
                    "run the same job?"
                )
            consent.admit("loss", r, Digests(message.vectors))
            await me.scope(f"look {r} {message.turn}").send(server, Loss(look(r, message.vectors)))
        elif (count := counted()) is not None:
            next_message = await contribute(message, count, test)
        else:
            consent.admit("test", r, Digests(message.vectors))
            await me.scope(f"test {r}").send(server, Tested(test(r, message.vectors)))
        if done is not None:
            await done()


def check_replies(
    replies: Gathered[M], wrong: Callable[[str, M], str | None]
) -> tuple[dict[str, M], dict[str, str]]:
    """Return (valid answers, {party: why its answer is unreadable or invalid})."""
    invalid = {name: str(error) for name, error in replies.refused.items()}
    invalid |= {name: why for name, answer in replies.items() if (why := wrong(name, answer)) is not None}
    return {name: answer for name, answer in replies.items() if name not in invalid}, invalid


def _groups(names: Sequence[str], vectors_for: Vectors | ModelAssignment) -> list[tuple[list[str], Vectors]]:
    """Return the parties that receive each model."""
    if not isinstance(vectors_for, ModelAssignment):
        return [(list(names), vectors_for)]
    return [
        (group, vectors)
        for i, vectors in enumerate(vectors_for.models)
        if (group := [name for name in names if vectors_for.of[name] == i])
    ]


async def run_sum(
    me: Party, server: str, work: Coroutine[Any, Any, Any], kinds: tuple[type[Message], ...] = ASKS
) -> Message | None:
    """Run a sum until it ends or is aborted.

    A message from the server outside the sum, of one of `kinds`, means that the server restarted and the sum
    will never end; that message is returned.
    """
    sum_task, next_message = asyncio.ensure_future(work), asyncio.ensure_future(me.recv(server, *kinds))
    try:
        await asyncio.wait([sum_task, next_message], return_when=asyncio.FIRST_COMPLETED)
        if sum_task.done():
            with suppress(SumAborted):
                sum_task.result()
    finally:
        for task in (sum_task, next_message):
            task.cancel()  # an unread message stays in the mailbox
        await asyncio.gather(sum_task, next_message, return_exceptions=True)
    return None if next_message.cancelled() else next_message.result()


def ideal(
    rounds: Iterable[int],
    choose: Callable[[int], Sequence[str]],
    down: Callable[[int], Vectors],
    local: dict[str, Callable[[int, Vectors], tuple[float, Vectors]]],
    merge: Callable[[int, Any], None],
    scores: bool = False,
) -> None:
    """Compute the same in one place: `local` of every chosen client, then `merge`, round by round."""
    for r in rounds:
        vectors = down(r)
        ups = {name: local[name](r, vectors) for name in choose(r)}
        merge(r, best_of(ups, list(local)) if scores and ups else ups)

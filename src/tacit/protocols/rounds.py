"""Synchronous federated rounds.

    server                                    client k (chosen in this round)
      |---- Look(round, turn, vectors) --------->|   to candidates, where losses decide who is chosen
      |<--- Loss(loss) --------------------------|
      |---- Down(round, vectors) --------------->|
      |                                          |  local(…) on its own rows
      |<--- Upload(weight, vectors) -----------------|   in the scope of this round
      |  merge                                   |
      …                                          …
      |---- Test(round, vectors) --------------->|   now and then, to everyone
      |<--- Tested(counts) ----------------------|
      |---- Stop() ----------------------------->|   at the end

Where only the best of a round is to send its model (`scores`; FedPSO), Score and Pick (picking.py) stand
between Down and Upload. Where sums are hidden, the counts of a Test are added up in secret as updates are,
and there is no Tested.

A client answers what its owner's `consent` (consent.py) admits. Every hidden sum is bound to the kind of the
request, the round and the digest of all that was sent down with it, so parties that were sent different
things share no masks.

With a deadline, a round goes on without those who are late, once enough have answered. What comes later is
for a scope that is closed, and is dropped; a client asked twice for the same round answers twice, and the
second answer goes the same way. Over a network a `admission` (joining.py) stands beside the rounds: it knows who
is there, and asks again whoever comes back within a round.

The server learns each chosen client's weight and update in the clear, everyone's counts on its own held-out
rows, and where it chooses by losses, those of the candidates; the clients learn the model. Nobody's rows are
sent. Against a curious server this hides nothing an update gives away: guards do, and a `hidden` sum
(secagg.py, lightsecagg.py, encrypted.py), which takes the place of Upload.
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
    from ..parties.party import Party
    from .joining import Admission

Vectors = dict[str, Tensor]


class Down(Message, reveals="the server's current model, and the part of its state that the algorithm sends"):
    round: int
    vectors: dict[str, Tensor]


class Upload(Message, reveals="one party's model update and its weight (its number of rows), in the clear"):
    weight: float
    vectors: dict[str, Tensor]


class Look(
    Message, reveals="the server's current model, to be looked at before it is settled who takes part"
):
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


class ModelAssignment(NamedTuple):
    """Several models in the place of one, and which of them each party is sent."""

    models: Sequence[Vectors]
    of: Mapping[str, int]


class Candidates(NamedTuple):
    """Who is asked for the model's loss before it is settled who takes part; `settle` is given the losses of
    those who answered.
    """

    names: Sequence[str]
    vectors: Vectors
    settle: Callable[[Mapping[str, float]], Sequence[str] | Candidates]


class SumResult(NamedTuple):
    """What takes the place of the uploads where none of them may be seen."""

    total: Tensor
    included: Sequence[str]


class SecretSum(Protocol):
    """Adds up in secret what the clients would else upload: a program for the server, one for a client, in
    the round's scope.
    """

    tries: int  # how often a round is tried when too few stay for a sum
    enough: int  # with fewer there is none

    async def server(
        self, me: Party, r: int, names: Sequence[str], within: float | None, sent: bytes
    ) -> tuple[Tensor, Sequence[str], Mapping[str, str]]:
        """(the sum, who is in it, {party: at which step it left}). `sent`: the digest of what the server sent
        down.
        """

    async def client(
        self, me: Party, r: int, vectors: Vectors, boss: str, sent: bytes, commitment: Commitment
    ) -> None:
        """Take part with what `local` gave."""


ASKS = (Down, Test, Look, Pick, Stop)  # what a server says outside any scope
# in Down and Test, where sums are hidden: a round that is repeated, after a crash, has a scope and keys of
# its own
SESSION = "session"
SESSION_BYTES = 8
KIND = {"Down": "update", "Test": "test", "Look": "loss"}  # what a request is called in a client's consent


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


def _sent(message: Down | Test, digests: Digests | None = None) -> bytes:
    """What a hidden sum is bound to: the kind of the request, the round, and everything that was sent down
    with it.
    """
    return (digests or Digests(message.vectors)).of(None, message.kind, str(message.round))


Dropped = Callable[[int, Mapping[str, str]], None]  # (round, {party: why it was left out})


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
    testers: Callable[[], Sequence[str]] | None = None,
) -> None:
    """`choose` who takes part, send `down`, `merge` what comes up; where `test` gives a model, have everyone
    test it. `merge`, `test` and `tested` are awaited: the caller may pause the server there.

    Rounds count from 0; the model before training is tested as that of round −1. After `within` seconds a
    round goes on with `at_least` answers (everyone's, if not given); it waits for as long as there are fewer.
    `wrong` says what is wrong with an answer, if anything is. `merge` gets {party: (weight, vectors)}; with
    `hidden`, which adds them up in secret, a `SumResult`; with `scores`, by which the best alone is asked for
    its own, a `BestUpload`. A sum for which too few stay is `aborted`, with nothing opened, and tried again with
    new secrets. Parties that may be in a sum already, which late shares could open, refuse another one
    (consent.py): then the round is lost, and `merge` gets None. `counted` adds up counts in secret; `tested`
    then gets a `SumResult`, or None. `meet`: whoever is chosen depends on what parties say as they come, so they
    are waited for before the first round. `pending`: a round whose model is still to be tested, by a server
    that was killed before it had the answers. `testers` are the clients that hold back rows; not given: all.
    """
    testers = testers or (lambda: clients)

    async def ask(
        r: int,
        names: Sequence[str],
        scope: str,
        said: Callable[[int, Vectors], Message],
        given: Vectors | ModelAssignment,
        kind: type[M],
    ) -> dict[str, M]:
        need = len(names) if within is None or at_least is None else min(at_least, len(names))
        came, left_out = await reach(r, names, scope, said, given, kind, need, wrong)
        if left_out:
            dropped(r, left_out)
        if not came:
            raise useless(r, kind, left_out)
        return came

    def useless(r: int, kind: type[M], left_out: Mapping[str, str]) -> ProtocolError:
        return ProtocolError(
            f"party {me.name!r} has no {kind.kind} it can use in round {r + 1}: "
            + "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        )

    async def reach(
        r: int,
        names: Sequence[str],
        scope: str,
        said: Callable[[int, Vectors], Message],
        given: Vectors | ModelAssignment,
        kind: type[M],
        need: int,
        wrong: Callable[[str, M], str | None],
        after: Callable[[int, Vectors], Message] | None = None,
    ) -> tuple[dict[str, M], dict[str, str]]:
        """(what came, {party: why nothing of it did}), with `need` answers at least. `after`: what they have
        answered before, and must hear again first if they have been started anew since.
        """
        asked = list(names) if admission is None else await admission.wait_for_free(names, need, within)
        left_out = {
            name: "it is not there, or still at work on an earlier round"
            for name in names
            if name not in asked
        }
        came: dict[str, M] = {}
        with me.scope(scope) as here:
            if admission is not None:
                admission.replace_requests((), Stop())  # nobody is at work on anything any more
            for group, vectors in _groups(asked, given):
                message = said(r, vectors)
                if admission is not None:
                    if after is not None:
                        new = [name for name in group if admission.has_restarted(name)]
                        admission.add_request(group, after(r, vectors), busy=False)
                        await me.send(new, after(r, vectors))
                    admission.add_request(group, message, busy=True)
                await me.send(group, message)
            there = asked
            while there:
                # a party that cannot be read, or is late, ends the run only where nobody said how to go on
                # without it
                heard = await here.gather(
                    there, kind, at_least=None if within is None and admission is None else 0, within=within
                )
                reasons = {name: str(error) for name, error in heard.refused.items()}
                for name, answer in heard.items():
                    reason = wrong(name, answer)
                    if reason is None:
                        came[name] = answer
                    else:
                        reasons[name] = reason
                for name, reason in reasons.items():
                    left_out[name] = reason
                    if admission is not None:
                        await admission.refuse(name, reason)
                there = [name for name in asked if name not in came and name not in left_out]
                if len(came) >= need:
                    break
            left_out |= {name: f"no answer within {within:g} s" for name in there}
            if admission is not None:
                admission.replace_requests((), Stop())
        return {name: came[name] for name in names if name in came}, left_out

    async def pick(r: int, names: Sequence[str]) -> BestUpload:
        given, failed = down(r), dict[str, str]()
        said = {
            name: answer.score
            for name, answer in (await ask(r, names, f"round {r}", Down, given, Score)).items()
        }

        def amiss(name: str, up: Upload) -> str | None:
            return wrong(name, up) or unlike(said[name], up.vectors)

        for turn, best in enumerate(rank(said, clients)):
            wanted: Callable[[int, Vectors], Message] = lambda r, vectors, turn=turn: Pick(r, turn, True)  # type: ignore[misc]  # noqa: E731
            # without a deadline the best is waited for; with one, the next best may stand in for it
            came, left_out = await reach(
                r, [best], f"best {r} {turn}", wanted, given, Upload, int(within is None), amiss, after=Down
            )
            if came:
                await me.send(
                    [name for name in said if name != best and name not in failed], Pick(r, turn, False)
                )
                return BestUpload(best, (came[best].weight, came[best].vectors), said)
            failed |= left_out
            dropped(
                r,
                {
                    best: f"it did best, and its model did not come: {left_out[best]}; the next best was "
                    "asked for its own"
                },
            )
        raise useless(r, Upload, failed)

    async def conceal(
        r: int,
        names: Sequence[str],
        add: SecretSum,
        message: Callable[[Vectors], Down | Test],
        given: Callable[[], Vectors | ModelAssignment],
    ) -> SumResult | None:
        """The hidden sum of what `message` asks for; None: it is lost, because its parties took part in an
        earlier try and refuse another.
        """
        for turn in range(add.tries):
            try:
                return await attempt(r, names, add, message, given)
            except SumAborted as error:
                aborted(
                    r,
                    str(error)
                    if not error.spent
                    else f"{error} The sum is lost: two sums of one round could be subtracted.",
                )
                if error.spent and turn == 0 and add is hidden and r - 1 in spent_before:
                    raise SumAborted(
                        f"the parties refuse rounds {r} and {r + 1}: they took part in sums of them before, "
                        "in another run of this contract, or "
                        "in a sum of the same updates (whole batches on an unchanged model). A second sum "
                        "could be subtracted from the first. To "
                        "start over, change the seed in the job file, and have the parties agree to it "
                        "again.",
                        spent=True,
                    ) from error
                if error.spent:
                    spent_before.update({r} if turn == 0 and add is hidden else ())
                    return None
                if turn + 1 == add.tries:
                    raise SumAborted(f"{error} Round {r + 1} was tried {add.tries} times.") from error
        raise AssertionError("add.tries is at least 1")

    noted: set[str] = set()
    spent_before: set[int] = (
        set()
        # rounds spent before this process asked: a server that was killed finds one, one that starts a job
        # again
        # finds all
    )

    async def attempt(
        r: int,
        names: Sequence[str],
        add: SecretSum,
        message: Callable[[Vectors], Down | Test],
        make: Callable[[], Vectors | ModelAssignment],
    ) -> SumResult:
        asked = (
            list(names)
            if admission is None
            else await admission.wait_for_free(
                names, len(names) if at_least is None else min(at_least, len(names)), within
            )
        )
        left_out = {
            name: "it is not there, or still at work on an earlier round"
            for name in names
            if name not in asked
        }
        if len(asked) < add.enough:
            raise SumAborted(
                f"a secure sum was not begun: {len(asked)} parties are there and {add.enough} are needed "
                f"({', '.join(map(repr, list(left_out)[:8]))} are not). Wait for more parties, or lower the "
                "threshold."
            )
        given = make()
        assert not isinstance(given, ModelAssignment)  # whoever sorts parties by their updates must see them
        ask = message(
            given | {SESSION: torch.frombuffer(bytearray(me.secret.bytes(SESSION_BYTES)), dtype=torch.uint8)}
        )
        with me.scope(_tag(ask)) as here:
            if admission is not None:
                admission.replace_requests(asked, ask)
                admission.replace_requests(
                    (), ask
                )  # whoever comes back within the round waits for the next: its keys are gone
            await me.send(asked, ask)
            total, included, gone = await add.server(here, r, asked, within, _sent(ask))
        if left_out or gone:
            dropped(
                r,
                left_out | {name: f"left the secure sum at its step {step!r}" for name, step in gone.items()},
            )
        return SumResult(total, included)

    async def examine(r: int) -> None:
        model = await test(r)
        if model is not None and counted is not None:
            names = testers()
            if len(names) < counted.enough:
                why = (
                    f"{len(names)} parties hold back rows to evaluate models on, and a hidden sum takes "
                    f"{counted.enough}: there are no figures"
                )
                if why not in noted:
                    noted.add(why)
                    aborted(r, why)
                await tested(r, None)
                return
            try:
                total = await conceal(r, names, counted, lambda vectors: Test(r, vectors), lambda: model)
            except SumAborted as error:  # a model without figures is still a model
                aborted(r, f"the model was not evaluated: {error}")
                total = None
            await tested(r, total)
        elif model is not None:
            answers = await ask(r, clients, f"test {r}", Test, model, Tested)
            await tested(r, {name: answer.counts for name, answer in answers.items()})

    async def settled(r: int) -> Sequence[str]:
        chosen, turn = choose(r), 0  # by Poisson sampling, at times nobody
        while isinstance(chosen, Candidates):
            said: Callable[[int, Vectors], Message] = lambda r, vectors, turn=turn: Look(r, turn, vectors)  # type: ignore[misc]  # noqa: E731
            answers = await ask(r, chosen.names, f"look {r} {turn}", said, chosen.vectors, Loss)
            chosen, turn = chosen.settle({name: answer.loss for name, answer in answers.items()}), turn + 1
        return chosen

    if meet and admission is not None:
        await admission.wait_for_free(
            clients, len(clients) if at_least is None else min(at_least, len(clients)), within
        )
    if pending is not None:
        await examine(pending)
    for r in rounds:
        if r == 0:
            await examine(-1)
        chosen = await settled(r)
        if hidden is not None and chosen:
            summed = await conceal(
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
            ups = await ask(r, chosen, f"round {r}", Down, down(r), Upload) if chosen else {}
            await merge(r, {name: (up.weight, up.vectors) for name, up in ups.items()})
        await examine(r)
    if stop:
        await me.send(clients, Stop())


async def client(
    me: Party,
    local: Callable[[int, Vectors], tuple[float, Vectors]],
    test: Callable[[int, Vectors], Vectors],
    boss: str = "server",
    *,
    look: Callable[[int, Vectors], float] | None = None,
    done: Callable[[], Any] | None = None,
    hidden: Callable[[], SecretSum | None] = lambda: None,
    counted: Callable[[], SecretSum | None] = lambda: None,
    scores: Callable[[], bool] = lambda: False,
    takes: Callable[[int], Awaitable[None]] | None = None,
    consent: Consent = UNCOMMITTED,
) -> None:
    """Answer the server until it says stop. What the client keeps between rounds stays inside `local`. `done`
    is awaited after each answer. `hidden`, `counted` and `scores` are asked in every round, because over a
    network a client has its job only then. `takes` is awaited before `local`: in a simulation, the time it
    takes. `look` is the model's loss on its rows, for a server that chooses by it. `consent` is asked before
    every answer.
    """
    called: Any = None
    held: tuple[int, Upload] | None = None  # of a round in which it is not settled yet whose model is wanted

    async def contribute(
        message: Down | Test, add: SecretSum, make: Callable[[int, Vectors], Vectors]
    ) -> Any:
        """Take part in the hidden sum that a request asks for; gives what the server said outside of it, if
        anything.
        """
        if SESSION not in message.vectors:
            raise ProtocolError(
                f"party {me.name!r} hides what it sends, and the server asks for it in the clear. Do both "
                "run the same job?"
            )
        r, given, digests = (
            message.round,
            {k: v for k, v in message.vectors.items() if k != SESSION},
            Digests(message.vectors),
        )
        with me.scope(_tag(message)) as here:
            if not consent.admit(KIND[message.kind], r, digests):
                await here.send(boss, RoundSpent())
                return None
            return await _through(
                me,
                boss,
                add.client(
                    here,
                    r,
                    make(r, given),
                    boss,
                    _sent(message, digests),
                    consent.commit(KIND[message.kind], r),
                ),
            )

    while True:
        message: Any = called if called is not None else await me.recv(boss, *ASKS)
        called = None
        if isinstance(message, Stop):
            return
        r = message.round
        if isinstance(message, Down):
            if takes is not None:
                await takes(r)
            add = hidden()
            if add is None:
                given = dict(message.vectors)
                consent.admit("update", r, Digests(given))
                up = Upload(*local(r, given))
                held = (r, up) if scores() else None
                await me.scope(f"round {r}").send(
                    boss, up if held is None else Score(float(up.vectors[SCORE]))
                )
            else:
                called = await contribute(message, add, lambda r, given: local(r, given)[1])
        elif isinstance(message, Pick):
            if not scores():
                raise ProtocolError(
                    f"party {me.name!r} is told whether its model is wanted, and in this job everybody's "
                    "is. Do both run the same job?"
                )
            if held is None or held[0] != r:
                # said to a process of this party that is no more; the server begins anew with this one
                continue
            up, held = held[1], None
            if not message.wanted:
                continue
            await me.scope(f"best {r} {message.turn}").send(boss, up)
        elif isinstance(message, Look):
            if look is None:
                raise ProtocolError(
                    f"party {me.name!r} is asked for a loss, and in this job nobody says one. Do both run "
                    "the same job?"
                )
            consent.admit("loss", r, Digests(message.vectors))
            await me.scope(f"look {r} {message.turn}").send(boss, Loss(look(r, message.vectors)))
        elif (count := counted()) is not None:
            called = await contribute(message, count, test)
        else:
            consent.admit("test", r, Digests(message.vectors))
            await me.scope(f"test {r}").send(boss, Tested(test(r, message.vectors)))
        if done is not None:
            await done()


def _groups(names: Sequence[str], given: Vectors | ModelAssignment) -> list[tuple[list[str], Vectors]]:
    """Who is sent which model."""
    if not isinstance(given, ModelAssignment):
        return [(list(names), given)]
    groups = [
        ([name for name in names if given.of[name] == i], vectors) for i, vectors in enumerate(given.models)
    ]
    return [(group, vectors) for group, vectors in groups if group]


async def _through(me: Party, boss: str, work: Coroutine[Any, Any, None]) -> Message | None:
    """A sum to its end, or to its abortion: then the server asks again, or ends the run. If the server speaks
    outside the sum meanwhile, it was started anew and that sum will never end: what it said is what comes
    next.
    """
    adding, called = asyncio.ensure_future(work), asyncio.ensure_future(me.recv(boss, *ASKS))
    try:
        await asyncio.wait([adding, called], return_when=asyncio.FIRST_COMPLETED)
        if adding.done():
            with suppress(SumAborted):
                adding.result()
    finally:
        for task in (adding, called):
            task.cancel()  # a letter that was not read yet stays in the mailbox
        await asyncio.gather(adding, called, return_exceptions=True)
    return None if called.cancelled() else called.result()


def ideal(
    rounds: Iterable[int],
    choose: Callable[[int], Sequence[str]],
    down: Callable[[int], Vectors],
    local: dict[str, Callable[[int, Vectors], tuple[float, Vectors]]],
    merge: Callable[[int, Any], None],
    scores: bool = False,
) -> None:
    """What the programs compute: every chosen client's `local`, then `merge`, round by round; with `scores`,
    of the best one's alone.
    """
    for r in rounds:
        vectors = down(r)
        ups = {name: local[name](r, vectors) for name in choose(r)}
        merge(r, best_of(ups, list(local)) if scores and ups else ups)

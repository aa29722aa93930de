"""Programs of sums: the ideal function, its protocol, and coordinators that do not follow it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.crypto import exact, ring
from tacit.crypto.agree import public_of
from tacit.errors import PartyFailed, ProtocolError, QueryRefused, SumAborted
from tacit.parties.message import Message
from tacit.protocols import sum_of_all, sum_program
from tacit.protocols.joining import Admission, Ready, Work
from tacit.protocols.step_vectors import LastStep, StepVectors, shorten
from tacit.protocols.sum_program import KeptAnswers, SumRules, SumsOver, SumStep, ideal
from tacit.protocols.sum_steps import read_vector
from tacit.protocols.summing import AdvertisedKeys, MaskedVector, RoundKeys
from tacit.runtimes.inprocess import InProcess
from tests.stats.programs import Variance

TABLES = {
    "a": pd.DataFrame({"x": [1.0, 2.5]}),
    "b": pd.DataFrame({"x": [6.0]}),
    "c": pd.DataFrame({"x": [0.1, 1e9, -3.0]}),
}
PROGRAM, RULES = Variance("x"), SumRules("contract", tuple(TABLES))


class Continue(Message, reveals="nothing: a test goes on"):
    pass


class Mean:
    """The mean in two steps: the number of rows, then the sum of the values divided by it."""

    max_steps, bound = 2, exact.BOUND

    def length(self, step, down):
        return 1 if step == 0 else exact.LIMBS

    def local(self, step, table, down):
        return (
            np.array([len(table)]) if step == 0 else exact.encode(np.array([sum(table) / float(down["n"])]))
        )

    def coordinate(self):
        n = yield {}
        total = yield {"n": torch.tensor(float(n[0]))}
        return float(exact.decode(total)[0])


def test_the_ideal_function_sends_down_what_follows_from_the_sum_before():
    assert ideal(Mean(), {"a": [1.0, 2.0], "b": [6.0]}) == 3.0


def test_a_program_with_more_steps_than_it_declares_is_an_error():
    program = Mean()
    program.max_steps = 1
    with pytest.raises(AssertionError, match="more than its 1 steps"):
        ideal(program, {"a": [1.0]})


def parties(program=PROGRAM, rules=RULES, answers=None, tables=TABLES):
    def one(name):
        async def run(me):
            kept = None if answers is None else answers[name]
            return await sum_program.client(me, program, tables[name], rules, answers=kept)

        return run

    return {name: one(name) for name in tables}


def play(server, **options):
    return InProcess().run_sync({**parties(**options), "server": server})


def test_the_protocol_gives_the_bits_of_the_ideal_function_and_shares_the_result():
    async def server(me):
        return await sum_program.server(
            me, PROGRAM, RULES, share=lambda r: {"mean": torch.tensor(r[0], dtype=torch.float64)}
        )

    results = play(server)
    assert results["server"] == ideal(PROGRAM, TABLES)
    assert all(float(results[name]["mean"]) == results["server"][0] for name in TABLES)


def test_a_coordinator_that_was_restarted_continues_with_the_sums_it_opened():
    opened = []

    async def server(me):
        return await sum_program.server(
            me, PROGRAM, RULES, opened=lambda s, t, who: opened.append((s, t, who))
        )

    answers = {name: KeptAnswers() for name in TABLES}
    result = play(server, answers=answers)["server"]
    assert [(s, who) for s, _, who in opened] == [(s, list(TABLES)) for s in range(3)]

    again = []

    async def restarted(me):
        return await sum_program.server(
            me, PROGRAM, RULES, sums=[t for _, t, _ in opened[:2]], opened=lambda s, t, who: again.append(s)
        )

    assert play(restarted, answers=answers)["server"] == result
    assert again == [2]


def test_a_repeated_step_is_answered_with_the_kept_vector_even_if_the_rows_changed():
    """So a repeated sum is the same sum, and the difference of two sums shows nobody."""
    totals = []

    async def server(me):
        return await sum_program.server(me, PROGRAM, RULES, opened=lambda s, t, who: totals.append(t))

    answers = {name: KeptAnswers() for name in TABLES}
    play(server, answers=answers)
    changed = {**TABLES, "b": pd.DataFrame({"x": [6.0, 7.0]})}
    play(server, answers=answers, tables=changed)
    assert all((a == b).all() for a, b in zip(totals[:3], totals[3:]))


async def ask(me, step, vectors, names=tuple(TABLES), rules=RULES):
    """One sum, as a coordinator may ask for it at will."""
    session = me.secret.bytes(8)
    message = SumStep(step, session, session, vectors)
    terms = rules.terms(
        PROGRAM.length(step, vectors), PROGRAM.bound, sum_program.digest_of_step(step, vectors)
    )
    with me.scope(f"sum {step} {message.session.hex()}") as scope:
        await me.send(list(names), message)
        return await sum_of_all.server(scope, list(names), terms, True)


def refuse(attack, match, **options):
    with pytest.raises(PartyFailed, match=match) as failure:
        play(attack, **options)
    return failure.value


def mean_of(value):
    return {"mean": torch.tensor(value, dtype=torch.float64)}


def test_a_step_is_not_answered_twice_with_different_vectors():
    """The second moments about two means would give a second sum of the step."""

    async def attack(me):
        await ask(me, 0, {})
        await ask(me, 1, {})
        await ask(me, 2, mean_of(0.0))
        await ask(me, 2, mean_of(1.0))

    refuse(attack, "again with other vectors")


def test_steps_are_answered_in_order_and_only_as_many_as_agreed():
    async def early(me):
        await ask(me, 2, mean_of(0.0))

    async def beyond(me):
        await me.send("a", SumStep(3, bytes(8), bytes(8), {}))
        await me.recv("a", sum_program.SumRefused)
        await me.scope("never").recv("a", SumsOver)

    refuse(early, "before step 2")
    refuse(beyond, "has 3 steps")


@pytest.mark.parametrize("vectors", [{}, {"mean": torch.zeros(2)}, {"mean": torch.tensor(float("nan"))}])
def test_vectors_that_the_program_cannot_use_are_refused(vectors):
    async def attack(me):
        await ask(me, 0, {})
        await ask(me, 1, {})
        await ask(me, 2, vectors)

    refuse(attack, "cannot be used|NaN or infinite")


def test_a_sum_over_fewer_parties_is_not_answered():
    """The sum of all minus the sum without b would be b's own."""

    async def attack(me):
        await ask(me, 0, {})
        small = SumRules("contract", ("a", "c"))
        await ask(me, 0, {}, names=("a", "c"), rules=small)

    refuse(attack, "received the keys of 2 parties, itself included; 3 to 3 were agreed on")


async def masked_of(me, step, session, keys, begins, vectors=None):
    """The masked vectors of one sum, as a coordinator sees them."""
    with me.scope(f"sum {step} {session.hex()}") as scope:
        await me.send(list(TABLES), SumStep(step, session, keys, vectors or {}))
        if begins:
            found = await scope.gather(list(TABLES), AdvertisedKeys)
            keys = RoundKeys({v: (k.channel, k.mask, k.signature) for v, k in found.items()})
            await scope.send(list(TABLES), keys)
        got = await scope.gather(list(TABLES), MaskedVector, sum_of_all.SessionUnknown)
    return {
        name: m if isinstance(m, sum_of_all.SessionUnknown) else bytes(m.packed) for name, m in got.items()
    }


def test_every_sum_of_a_session_has_its_own_masks_and_a_partial_sum_is_noise():
    """One exchange of keys, then sums of the same vectors: no two messages of a party repeat a mask."""
    seen = {}

    async def attack(me):
        first = bytes(8)
        seen["0"] = await masked_of(me, 0, first, first, True)
        seen["again"] = await masked_of(me, 0, b"another ", first, False)
        seen["next"] = await masked_of(me, 1, b"the next", first, False)
        await me.send(list(TABLES), SumsOver({}, ""))

    play(attack)
    width = RULES.terms(1, PROGRAM.bound, b"").width
    rows = {name: len(table) for name, table in TABLES.items()}

    def add(vectors, names):
        words = [ring.unpack(np.frombuffer(vectors[n], np.uint8), 1, width) for n in names]
        return int(ring.decode(ring.truncate(np.sum(words, axis=0, dtype=np.uint64), width), width)[0])

    for attempt in ("0", "again"):
        assert add(seen[attempt], TABLES) == sum(rows.values())
        for names in ("a", "b", "c", "ab", "bc", "ac"):  # by chance with probability below 2e-11 each
            assert abs(add(seen[attempt], names)) > 10
    masks = [add(seen[k], n) - rows[n] for k in ("0", "again") for n in TABLES]
    assert len(set(masks)) == len(masks)
    mixed = {**seen["0"], "b": seen["again"]["b"]}  # attempts cannot be combined
    assert abs(add(mixed, TABLES)) > 10
    assert len(seen["next"]["a"]) == ring.packed_bytes(exact.LIMBS, width)


def test_a_party_without_the_keys_of_a_session_says_so_and_the_sum_begins_again():
    """As after a restart between two sums."""
    aborted = []

    async def forgets(me):
        answers = KeptAnswers()
        steps = iter(range(2))

        def stop(step):
            if next(steps, None) == 0:
                raise asyncio.CancelledError

        with contextlib.suppress(asyncio.CancelledError):
            await sum_program.client(me, PROGRAM, TABLES["b"], RULES, answers=answers, answered=stop)
        return await sum_program.client(me, PROGRAM, TABLES["b"], RULES, answers=answers)

    async def server(me):
        return await sum_program.server(me, PROGRAM, RULES, aborted=lambda s, why: aborted.append((s, why)))

    found = InProcess().run_sync({**parties(), "b": forgets, "server": server})["server"]
    assert found == ideal(PROGRAM, TABLES)
    assert aborted == [(1, "party 'b' has no keys of this session; the sum begins again")]


def test_a_coordinator_cannot_name_a_session_that_was_replaced():
    """A party deletes the keys of a session when the next begins."""
    seen = {}

    async def attack(me):
        await masked_of(me, 0, b"session1", b"session1", True)
        await masked_of(me, 0, b"session2", b"session2", True)
        seen.update(await masked_of(me, 1, b"a sum   ", b"session1", False))
        await me.send(list(TABLES), SumsOver({}, ""))

    play(attack)
    assert all(isinstance(m, sum_of_all.SessionUnknown) for m in seen.values())


@pytest.mark.parametrize("change", ["another party", "a key twice", "a changed key"])
def test_keys_that_are_not_those_of_the_contract_are_refused(change):
    async def attack(me):
        with me.scope(f"sum 0 {bytes(8).hex()}") as scope:
            await me.send(list(TABLES), SumStep(0, bytes(8), bytes(8), {}))
            found = await scope.gather(list(TABLES), AdvertisedKeys)
            keys = {v: (k.channel, k.mask, k.signature) for v, k in found.items()}
            if change == "another party":
                keys["mallory"] = keys.pop("c")
            elif change == "a key twice":
                keys["c"] = keys["b"]
            else:
                keys["a"] = (public_of(bytes(range(32))), b"", b"")
            await scope.send("a", RoundKeys(keys))
            await me.recv("a", sum_program.SumRefused)
            await scope.recv("a", MaskedVector)

    refuse(attack, "which the contract does not name|received a public key twice|does not find its own keys")


def test_a_refusal_reaches_the_coordinator_and_the_others_as_a_fixed_sentence():
    """The error of a party may quote its rows; what leaves the party does not."""
    seen = {}

    def one(name):
        async def run(me):
            table = pd.DataFrame({"y": ["secret"]}) if name == "b" else TABLES[name]
            try:
                await sum_program.client(me, PROGRAM, table, RULES)
            except ProtocolError as error:
                seen[name] = str(error)

        return run

    async def server(me):
        try:
            await sum_program.server(me, PROGRAM, RULES)
        except QueryRefused as error:
            seen["server"] = str(error)

    InProcess().run_sync({**{name: one(name) for name in TABLES}, "server": server})
    assert "'x'" in seen["b"]
    assert seen["server"] == "party 'b' does not answer step 1: it declined; its own log says why"
    assert all("gave up" in seen[name] and "declined" in seen[name] for name in ("a", "c"))


def test_a_declared_threshold_goes_on_without_a_party_that_left():
    rules = SumRules("contract", tuple(TABLES), threshold=0.6, within=1.0)

    async def leaves(me):
        await me.recv("server", SumStep)

    included = []

    async def server(me):
        return await sum_program.server(me, PROGRAM, rules, opened=lambda s, t, who: included.append(who))

    programs = {**parties(rules=rules), "b": leaves, "server": server}
    result = InProcess().run_sync(programs)["server"]
    assert result == ideal(PROGRAM, {name: TABLES[name] for name in ("a", "c")})
    assert included == [["a", "c"]] * 3


def test_a_party_that_left_and_refuses_between_two_sums_does_not_end_the_program():
    rules = SumRules("contract", tuple(TABLES), threshold=0.6, within=1.0)
    refused = []

    async def leaves(me):
        message = await me.recv("server", SumStep)
        await me.recv("server", Continue)  # the sum was opened without it, and no other has begun
        await me.send("server", sum_program.SumRefused(message.step, "too late"))
        refused.append(message.step)

    async def server(me):
        admission = Admission(
            me,
            list(TABLES),
            "1",
            lambda name: Work("contract", "run"),
            lambda name, ready: None,
            lambda text: None,
        )
        admission.ready = dict.fromkeys(TABLES, Ready(1, 0, [], 0, 0, ""))
        wait, steps = admission.wait_for_free, []

        async def wait_for_free(names, need, within):
            steps.append(names)
            if len(steps) == 2:
                await me.send("b", Continue())
                while not refused:
                    await me.clock.sleep(0.1)
            return await wait(names, need, within)

        admission.wait_for_free = wait_for_free
        return await sum_program.server(me, PROGRAM, rules, admission=admission)

    programs = {**parties(rules=rules), "b": leaves, "server": server}
    result = InProcess().run_sync(programs)["server"]
    assert result == ideal(PROGRAM, {name: TABLES[name] for name in ("a", "c")})
    assert refused == [0]


def test_without_a_declared_threshold_a_party_that_left_ends_the_program():
    rules = SumRules("contract", tuple(TABLES), within=1.0, tries=1)

    async def leaves(me):
        await me.recv("server", SumStep)

    async def server(me):
        await sum_program.server(me, PROGRAM, rules)

    with pytest.raises(PartyFailed, match="2 of 3 parties answered and 3 are needed") as failure:
        InProcess().run_sync({**parties(rules=rules), "b": leaves, "server": server})
    assert isinstance(failure.value.__cause__, SumAborted | ProtocolError)


@pytest.mark.parametrize("connected", [False, True])
def test_a_try_without_a_disconnected_party_is_not_counted(connected):
    """It is awaited for the admission's patience; a connected party that does not answer is not."""
    rules, absent, aborted = SumRules("contract", tuple(TABLES), within=1.0, tries=1), {}, []

    async def returns(me):
        await me.recv("server", SumStep)  # it does not answer
        absent.update({} if connected else {"b": 0.5})
        return await sum_program.client(me, PROGRAM, TABLES["b"], rules)

    def comes_back(step, why):
        aborted.append(step)
        absent.clear()

    async def server(me):
        admission = Admission(
            me,
            list(TABLES),
            "1",
            lambda name: Work("contract", "run"),
            lambda name, ready: None,
            lambda text: None,
            everyone=True,
            absence=lambda name: absent.get(name, 0.0),
            patience=10.0,
        )
        admission.ready = dict.fromkeys(TABLES, Ready(1, 0, [], 0, 0, ""))
        return await sum_program.server(me, PROGRAM, rules, admission=admission, aborted=comes_back)

    programs = {**parties(rules=rules), "b": returns, "server": server}
    if connected:
        with pytest.raises(PartyFailed, match="2 of 3 parties answered and 3 are needed"):
            InProcess().run_sync(programs)
    else:
        assert InProcess().run_sync(programs)["server"] == ideal(PROGRAM, TABLES)
    assert aborted == [0]


def test_what_a_step_continues_is_restored_and_digested_as_a_whole():
    """A step that sends what was added means the same as one that sends everything."""
    first = {"trees": torch.arange(300, dtype=torch.uint8), "ask": torch.tensor([1, 2], dtype=torch.int32)}
    second = {
        "trees": torch.cat([first["trees"], torch.arange(9, dtype=torch.uint8)]),
        "ask": torch.tensor([3], dtype=torch.int32),
    }
    coordinator, party = StepVectors(), StepVectors()
    for step, whole in enumerate((first, second, second)):
        sent, kept = shorten(coordinator.vectors, whole)
        coordinator.vectors = whole
        read = party.read(step, sent, kept)
        assert {k: v.tolist() for k, v in read.down.items()} == {k: v.tolist() for k, v in whole.items()}
        assert read.digest == coordinator.digest(step, whole) == sum_program.digest_of_step(step, whole)
        if step:
            assert kept == {"trees": 300 + 9 * (step - 1)}
            assert sent["ask"].tolist() == [3]
    assert "trees" not in sent  # the last step repeats it


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.int64, torch.float32, torch.float64, torch.bfloat16]
)
def test_long_vectors_are_continued_in_one_thread(dtype, monkeypatch):
    """torch joins and compares more than 32,768 numbers in threads, which took half of a run on a busy machine.

    They would start without a sign here, so that torch joins or compares them at all is an error.
    """
    whole = torch.arange(80_000).remainder(2).to(dtype)
    joined = whole[:70_000], whole[70_000:]
    for name in ("cat", "equal"):
        monkeypatch.setattr(torch, name, lambda *_: pytest.fail("torch would start threads"))
    coordinator, party = StepVectors(), StepVectors()
    coordinator.vectors, party.vectors = {"x": joined[0]}, {"x": joined[0]}
    sent, kept = shorten(coordinator.vectors, {"x": whole})
    assert kept == {"x": 70_000}
    assert len(sent["x"]) == len(joined[1])
    restored = party.read(1, sent, kept).vectors["x"]
    assert restored.dtype == dtype
    assert restored.tolist() == whole.tolist()
    other = whole.clone()
    other[69_999] = 1 - other[69_999].int()
    assert shorten(coordinator.vectors, {"x": other})[1] == {}


@pytest.mark.parametrize(
    ("kept", "sent"),
    [
        ({"other": 0}, {}),
        ({"trees": 5}, {}),
        ({"trees": -1}, {}),
        ({"trees": 4}, {"trees": torch.zeros(2, dtype=torch.int32)}),
        ({"trees": 4}, {"trees": torch.zeros(2, 2, dtype=torch.uint8)}),
        ({"square": 2}, {}),
    ],
)
def test_a_step_that_continues_what_was_not_sent_is_refused(kept, sent):
    last = StepVectors()
    last.read(0, {"trees": torch.zeros(4, dtype=torch.uint8), "square": torch.zeros(2, 2)}, {})
    with pytest.raises(ProtocolError, match="a step continues"):
        last.read(1, sent, kept)


def test_different_additions_have_different_digests():
    """A coordinator that continues the vectors of two parties differently gets noise: masks differ."""
    found = set()
    for added in ([1], [2], [1, 0]):
        last = StepVectors()
        last.read(0, {"trees": torch.zeros(300, dtype=torch.uint8)}, {})
        added_tensor = torch.tensor(added, dtype=torch.uint8)
        found.add(last.read(1, {"trees": added_tensor}, {"trees": 300}).digest)
    last = StepVectors()
    last.read(0, {"trees": torch.ones(300, dtype=torch.uint8)}, {})
    found.add(last.read(1, {"trees": torch.tensor([1], dtype=torch.uint8)}, {"trees": 300}).digest)
    assert len(found) == 4


def test_parties_of_one_process_never_take_over_what_another_was_sent():
    """A coordinator that lies to one of them: it reads, restores and digests what it was sent itself."""
    first, nothing = {"trees": torch.zeros(300, dtype=torch.uint8)}, {}
    shared = LastStep()
    parties = [StepVectors(shared) for _ in range(3)]
    reads = [party.read(0, first, nothing) for party in parties]
    assert reads[0] is reads[1] is reads[2]  # the very same message
    assert reads[0].digest == sum_program.digest_of_step(0, first)
    assert parties[0].read(1, first, nothing).digest == sum_program.digest_of_step(1, first)
    kept = {"trees": 300}
    asked = [
        {"trees": torch.tensor([k], dtype=torch.uint8)} for k in (1, 1, 2)
    ]  # equal ones are not the same
    for party, sent in zip(parties, asked):
        read = party.read(1, sent, kept)
        whole = {"trees": torch.cat([first["trees"], sent["trees"]])}
        assert read.down["trees"].tolist() == whole["trees"].tolist()
        assert read.digest == sum_program.digest_of_step(1, whole)
    # what another party was sent, continuing other vectors
    again = parties[1].read(2, {"trees": torch.tensor([5], dtype=torch.uint8)}, kept), asked[0]
    read = parties[0].read(1, asked[2], kept)
    assert again[0] is not read
    assert read.down["trees"].tolist() == [0] * 300 + [2]
    with pytest.raises(ProtocolError, match="a step continues"):
        StepVectors(shared).read(1, asked[2], kept)  # one that was sent nothing before


def test_what_parties_of_one_process_share_cannot_be_written_to():
    """A program that changes what it was sent changes its own copy; what is read without one is read-only."""
    shared, nothing = LastStep(), {}
    sent = {
        "trees": torch.zeros(300, dtype=torch.uint8),
        "scale": torch.tensor(2.0, dtype=torch.float64),
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
        "none": torch.zeros(0, dtype=torch.int64),
    }
    first, second = (StepVectors(shared).read(0, sent, nothing).down for _ in range(2))
    assert first is second
    for name, tensor in sent.items():
        assert first[name].dtype == tensor.dtype
        assert torch.equal(first[name], tensor)
    first["trees"].add_(1)
    first["trees"].numpy()[:] = 1
    first["scale"].fill_(3.0)
    dict(first)["half"].zero_()
    assert second["trees"].sum() == 0
    assert second["scale"] == 2
    assert second["half"].sum() == 6
    with pytest.raises(ValueError, match="read-only"):
        read_vector(first, "trees")[1][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        read_vector({"x": torch.zeros(2)}, "x")[1][0] = 1
    with pytest.raises(TypeError):
        first["trees"] = torch.ones(1)
    assert sent["trees"].sum() == 0


def test_a_program_that_changes_what_it_was_sent_does_not_change_the_next_step():
    """A party by itself, as over a network: the next step continues what was sent."""
    party, sent = StepVectors(), {"trees": torch.zeros(300, dtype=torch.uint8)}
    party.read(0, sent, {}).down["trees"].fill_(7)
    read = party.read(1, {"trees": torch.ones(1, dtype=torch.uint8)}, {"trees": 300})
    whole = {"trees": torch.tensor([0] * 300 + [1], dtype=torch.uint8)}
    assert torch.equal(read.down["trees"], whole["trees"])
    assert read.digest == sum_program.digest_of_step(1, whole)


@pytest.mark.parametrize("shared", [None, LastStep()])
def test_a_party_keeps_no_vector_that_later_steps_are_not_sent(shared):
    """A coordinator could otherwise fill its memory with vectors of other names."""
    party, kept = StepVectors(shared), []
    for step in range(4):
        sent = {f"vector {step}": torch.zeros(300, dtype=torch.uint8)}
        kept.append(weakref.ref(sent[f"vector {step}"]))
        read_vector(party.read(step, sent, {}).down, f"vector {step}")
    del sent
    assert [ref() is None for ref in kept[:2]] == [True, True]  # the step before may be continued


def test_a_vector_that_steps_repeat_is_read_as_one_array():
    """By this, a program knows without comparing bytes that all trees so far are those of the step before."""
    last = StepVectors(LastStep())
    trees = torch.zeros(300, dtype=torch.uint8)
    messages = [
        ({"trees": trees, "ask": torch.tensor([1])}, {}),
        ({"ask": torch.tensor([2])}, {"trees": 300}),
        ({"trees": torch.ones(1, dtype=torch.uint8), "ask": torch.tensor([3])}, {"trees": 300}),
    ]
    found = []
    for step, (sent, kept) in enumerate(messages):
        down = last.read(step, sent, kept).down
        assert read_vector(down, "ask")[1].tolist() == [step + 1]
        found.append(read_vector(down, "trees"))
    assert found[0][0] is found[1][0] is not found[2][0]
    assert found[2][1].tolist() == [0] * 300 + [1]


def test_terms_of_other_steps_and_scopes_have_other_contexts():
    """What one sum's context was is remembered, and is no other sum's."""
    rules = SumRules("contract", tuple(TABLES))
    found = {
        rules.terms(length, 5, sent, modular).context_in(scope)
        for _ in range(2)
        for length in (3, 4)
        for modular in (False, True)
        for sent in (b"", b"a", b"b")
        for scope in ("sum 0", "sum 1", "sum 0")
    }
    assert len(found) == 2 * 2 * 3 * 2
    terms = rules.terms(3, 5, b"a")
    assert terms is rules.terms(3, 5, b"a")
    assert rules.terms(3, 5, b"b").context_in("sum 0") != terms.context_in("sum 0")
    assert len({sum_of_all.mask_context(b"x", names) for names in (("a", "b"), ("a", "c"))}) == 2


def test_answers_in_memory_are_dropped_and_never_computed_again(monkeypatch):
    """An answer that was dropped is refused: a second one could differ."""
    monkeypatch.setattr(sum_program, "KEPT_BYTES", 100)
    answers, vector = KeptAnswers(), np.arange(5)  # 40 bytes
    for step in range(4):
        answers.keep(step, bytes([step]), vector + step)
    assert [answers.find(step)[1].tolist() for step in (2, 3)] == [
        (vector + 2).tolist(),
        (vector + 3).tolist(),
    ]
    for step in (0, 1):
        with pytest.raises(ProtocolError, match="no longer kept"):
            answers.find(step)
    assert answers.find(4) is None

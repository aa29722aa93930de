"""Attacks on linkage: on Bloom filters that leave their party, on what our parties see, and by false messages.

The frequency and pattern attack follows Christen, Schnell, Vatsalan, Ranbaduge: Efficient Cryptanalysis of Bloom
Filters for Privacy-Preserving Record Linkage, PAKDD 2017. It needs no key: a third party gets the filters of
one column under a key that both data owners share, and knows how frequent surnames are in public. It aligns
the most frequent filters with the most frequent names, learns from these which bits each bigram may set, and
reads further filters with that. The partner, who has the key, encodes a dictionary of names.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.errors import PartyFailed, QueryRefused
from tacit.jobs.vertical.link import make_plan
from tacit.jobs.vertical.link_program import BlockSizes, FieldRates, link_rows, serve
from tacit.linkage import fields
from tacit.linkage.fields import bigrams, to_texts
from tacit.linkage.weights import PART
from tacit.mpc.beaver import MaskedFactors
from tacit.mpc.linked import LinkSettings, MaskedFilters, MatchShare
from tacit.parties.codec import decode, encode, kind_of
from tacit.parties.conformance import Tap
from tacit.parties.message import Message
from tacit.parties.party import Program
from tacit.runtimes.inprocess import InProcess

from ..linkage.people import FIELDS, SURNAMES, make_people, make_tables

ALARM = 1e-9  # false-alarm probability of a test that draws from the operating system
BITS, HASHES = 128, 2  # of the naive filters
SURE, NEAR = 8, 5  # names that are aligned by frequency alone; ranks by which others may be off
PLACE = list(FIELDS).index("surname")


def naive_filter(name: str, key: bytes) -> bytes:
    """A keyed Bloom filter of the bigrams of a name, as it is sent in many linkages."""
    bits = np.zeros(BITS, np.uint8)
    for token in bigrams(name):
        digest = hmac.digest(key, token.encode(), "sha256")
        bits[[int.from_bytes(digest[4 * k : 4 * k + 4], "big") % BITS for k in range(HASHES)]] = 1
    return bits.tobytes()


def guess_by_frequency(filters: list[bytes], public: list[str]) -> dict[bytes, str]:
    """The attack: which name each filter is of; `public` has the names, the most frequent first."""
    ranked = [f for f, _ in Counter(filters).most_common()]
    guessed = dict(zip(ranked[:SURE], public))
    may: dict[str, np.ndarray] = {}  # bits that each bigram may set: those set in all filters that have it

    def learn(code: bytes, name: str) -> None:
        for token in bigrams(name):
            may[token] = may.get(token, np.ones(BITS, np.uint8)) & np.frombuffer(code, np.uint8)

    def fits(code: bytes, name: str) -> bool:
        bits, tokens = np.frombuffer(code, np.uint8), bigrams(name)
        known = [may[t] for t in tokens if t in may]
        is_as_long = 0.75 * HASHES * len(tokens) <= bits.sum() <= HASHES * len(tokens)
        return is_as_long and all((m & bits).sum() >= min(HASHES, m.sum()) for m in known)

    for code, name in guessed.items():
        learn(code, name)
    free = public[SURE:]
    for rank, code in enumerate(ranked[SURE:], SURE):
        near = sorted((abs(public.index(n) - rank), n) for n in free if fits(code, n))
        if near and near[0][0] <= NEAR:
            guessed[code] = near[0][1]
            free.remove(near[0][1])
            learn(code, near[0][1])
    return guessed


def share_of_right_guesses(filters: list[bytes], names: list[str], guess: Mapping[bytes, str]) -> float:
    return float(np.mean([guess.get(f) == n for f, n in zip(filters, names)]))


@pytest.fixture(scope="module")
def surnames() -> list[str]:
    return list(make_people(4000, seed=7)["surname"])


def test_a_third_party_reads_most_surnames_from_filters_whose_key_it_does_not_have(
    surnames: list[str],
) -> None:
    filters = [naive_filter(name, b"a key that both data owners share") for name in surnames]
    guess = guess_by_frequency(filters, SURNAMES)
    assert share_of_right_guesses(filters, surnames, guess) > 0.75


def test_a_partner_with_the_key_reads_all_of_them(surnames: list[str]) -> None:
    key = b"a key that both data owners share"
    filters = [naive_filter(name, key) for name in surnames]
    dictionary = {naive_filter(name, key): name for name in SURNAMES}
    assert share_of_right_guesses(filters, surnames, dictionary) == 1.0


# --- what our parties see ---------------------------------------------------------------------------------------


def programs_of(left: Any, right: Any, **options: Any) -> dict[str, Program]:
    plan = make_plan(FIELDS, 0.9, [["surname"], ["born"]], 0.5, 256)
    names = ["left", "right"]
    programs: dict[str, Program] = {"helper": functools.partial(serve, names=names)}
    for name, frame in zip(names, (left, right)):
        texts = to_texts(frame, plan.fields, name)
        programs[name] = functools.partial(
            link_rows, texts=texts, plan=plan.to_dict(), names=names, helper="helper", **options
        )
    return programs


def views(left: Any, right: Any) -> tuple[Tap, dict[str, Any]]:
    tap = Tap()
    return tap, InProcess().run_sync(tap.on(programs_of(left, right)))


def filters_seen(tap: Tap, party: str) -> np.ndarray:
    """The surname's part of all masked filters that a party received: rows × bits, a byte a bit."""
    plan = make_plan(FIELDS, 0.9, None, 0.5, 32)
    widths = [f.how.bits for f in plan.fields]
    start = sum(widths[:PLACE])
    messages = [decode(frame) for frame in tap.view(party) if kind_of(frame) == "MaskedFilters"]
    parts = [v.reshape(-1, sum(widths)) for m in messages for v in m.values]  # type: ignore[attr-defined]
    return np.concatenate([p.numpy() for p in parts])[:, start : start + widths[PLACE]]


@pytest.fixture(scope="module")
def seen() -> Tap:
    left, right = make_people(300, seed=1), make_people(300, seed=2)
    return views(left, right)[0]


@pytest.mark.parametrize("party", ["left", "right"])
def test_the_attacks_find_nothing_in_what_the_partner_receives(seen: Tap, party: str) -> None:
    """No two masked filters are equal, so there are no frequencies; and none is of a name in the dictionary."""
    rows = filters_seen(seen, party)
    assert len(rows) > 300
    codes = [row.tobytes() for row in rows]
    assert Counter(codes).most_common(1)[0][1] == 1
    known = {f.tobytes() for f in fields.encode(SURNAMES, fields.Field("surname", "name")).filters}
    assert not known & set(codes)
    assert not known & {(row & 1).tobytes() for row in rows}


@pytest.mark.parametrize("party", ["left", "right"])
def test_what_the_partner_receives_is_uniform(seen: Tap, party: str) -> None:
    counts = np.bincount(filters_seen(seen, party).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > ALARM
    bare = np.frombuffer(b"".join(naive_filter(n, b"key") for n in SURNAMES), np.uint8)
    assert stats.chisquare(np.bincount(bare, minlength=256)).pvalue < ALARM  # the test would notice it


def test_the_helper_receives_settings_alone(seen: Tap) -> None:
    kinds = {kind_of(frame) for _, to, _, frame in seen.frames if to == "helper"}
    assert kinds == {"LinkSettings"}


def test_messages_do_not_depend_on_people_without_a_match_beyond_their_blocks() -> None:
    """Other streets and postcodes of people in the same blocks: the same messages, of the same sizes."""
    left, right = make_people(40, seed=1), make_people(40, seed=2)
    other = right.assign(
        street="1 elm street", postcode=right["postcode"].sample(frac=1, random_state=0).to_numpy()
    )
    logs = []
    for table in (right, other):
        tap, results = views(left, table)
        assert len(results["left"]["rows"]) == 0
        rounds = [(s, to, kind_of(f)) for s, to, _, f in tap.frames]
        sizes = [len(f) for _, _, _, f in tap.frames if kind_of(f) not in ("FieldRates", "LinkSettings")]
        logs.append((Counter(rounds), sorted(sizes)))
    assert logs[0] == logs[1]


# --- false messages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changed:
    """A transport that changes the messages of one kind."""

    inner: Any
    kind: str
    change: Callable[[Any], Message]

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if kind_of(frame) == self.kind:
            frame = encode(self.change(decode(frame)))
        await self.inner.deliver(sender, to, scope, frame)


def run_with(
    kind: type[Message], change: Callable[[Any], Message], who: str = "right", **options: Any
) -> None:
    """Run with a party whose messages of this kind are changed."""
    left, right, _ = make_tables(12, 6)
    programs = programs_of(left, right, **options)
    honest = programs[who]

    async def deviate(me: Any) -> Any:
        return await honest(replace(me, transport=Changed(me.transport, kind.kind, change)))

    InProcess().run_sync({**programs, who: deviate})


def fewer(m: Any) -> Message:
    return MaskedFilters([v[..., :-1].contiguous() for v in m.values])


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (
            FieldRates,
            lambda m: FieldRates(m.rows, m.rates[1:]),
            "sent rates of fields that do not fit the job",
        ),
        (
            FieldRates,
            lambda m: FieldRates(m.rows, [[0, 1]] * 5),
            "sent rates of fields that do not fit the job",
        ),
        (FieldRates, lambda m: FieldRates(m.rows, [[1, PART + 1]] * 5), "do not fit the job"),
        (FieldRates, lambda m: FieldRates(0, m.rates), "do not fit the job"),
        (FieldRates, lambda m: FieldRates(m.rows + 1, m.rates), "have different settings"),
        (BlockSizes, lambda m: BlockSizes(m.sizes[1:]), "sent sizes of"),
        (BlockSizes, lambda m: BlockSizes(bytes([250]) * len(m.sizes)), "powers of two of at most"),
        (BlockSizes, lambda m: BlockSizes(bytes([9]) * len(m.sizes)), "have different settings"),
        (
            LinkSettings,
            lambda m: LinkSettings(m.settings.replace("threshold", "thresh")),
            "different settings",
        ),
        (LinkSettings, lambda m: LinkSettings("{}"), "different settings|cannot be read"),
        (MaskedFilters, fewer, "sent shapes"),
        (MaskedFactors, lambda m: MaskedFactors(m.values[:1]), "sent shapes"),
        (MatchShare, lambda m: MatchShare([v + 7 for v in m.values]), "the opened match bits are not 0 or 1"),
    ],
)
def test_false_messages_stop_the_run(kind: type[Message], change: Any, text: str) -> None:
    with pytest.raises(PartyFailed, match=text):
        run_with(kind, change)


@dataclass(frozen=True)
class Rushing:
    """A transport that waits for the left party's last share, and sends what opens every pair as a match."""

    inner: Any
    left: list[torch.Tensor]
    is_left: bool

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if kind_of(frame) == MatchShare.kind:
            message: Any = decode(frame)
            if self.is_left:
                self.left.append(message.values[0])
            else:
                while not self.left:
                    await asyncio.sleep(0.001)
                frame = encode(MatchShare([1 - self.left[0]]))
        await self.inner.deliver(sender, to, scope, frame)


def test_a_partner_that_opens_every_pair_as_a_match_is_noticed() -> None:
    """A record is in several pairs, and would match twice: the result is discarded."""
    left, right, _ = make_tables(12, 6)
    programs = programs_of(left, right)

    share: list[torch.Tensor] = []

    async def rush(program: Program, is_left: bool, me: Any) -> Any:
        return await program(replace(me, transport=Rushing(me.transport, share, is_left)))

    both = {n: functools.partial(rush, programs[n], n == "left") for n in ("left", "right")}
    with pytest.raises(PartyFailed, match="have an empty slot, or a record twice"):
        InProcess().run_sync({**programs, **both})


@pytest.mark.parametrize(
    ("who", "text"),
    [("right", r"declares \d+ ids; at most 4 are allowed"), ("left", r"refused the query \(max_ids")],
)
def test_a_partner_cannot_guess_more_blocking_values_than_its_rows_can_have(who: str, text: str) -> None:
    """It declares two rows, and a dictionary of values: without a limit, it would learn all of the other's."""
    with pytest.raises((PartyFailed, QueryRefused), match=text):
        run_with(FieldRates, lambda m: FieldRates(2, m.rates), who)


def test_a_partner_with_more_rows_than_the_owner_allows_is_refused() -> None:
    """A dictionary of made-up people in place of a table."""
    with pytest.raises(
        (PartyFailed, QueryRefused), match=r"has 18 rows, and the policy of this party allows 10"
    ):
        run_with(FieldRates, lambda m: m, policy={"max_rows": 10})

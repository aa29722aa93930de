"""A party that sends another bit of a comparison than it had to is caught, and its proof tells nothing else. Each
undetected change would have a probability of 2^-60.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tacit.crypto import binary_field
from tacit.errors import PartyFailed, ProtocolError
from tacit.mpc import bit_proofs, functions, spdz, tagged_bits
from tacit.mpc.bit_proofs import BitCheck, Check, Key, Masks, Point, Weights, arrange, deal_key
from tacit.mpc.prime import P
from tacit.mpc.tagged_bits import DEALT, MESSAGES, PUBLIC, TERMS, ComparedBits, PublicBits
from tacit.parties.codec import decode, encode, kind_of
from tacit.parties.conformance import Tap

from .test_spdz import play, positive

SIZES = [1, 3, 9, 70]  # bytes of a row: one to 64 blocks, one word or several


def words(rng, *shape):
    return rng.integers(0, 1 << 64, shape, dtype=np.uint64)


def rows(rng, count, size):
    return rng.integers(0, 256, (count, size), dtype=np.uint8)


def send(public, dealt, first):
    """The messages of a party that follows its program."""
    lt, eq = tagged_bits.look_up(public.planes, dealt, first)
    sent = []
    for number, (start, pairs) in enumerate(zip(tagged_bits.FIRSTS, tagged_bits.LEVELS)):
        sent.append(tagged_bits.mask_pairs(lt, eq, dealt, number))
        opened = public.opened[start : start + 3 * pairs - 1]
        lt, eq = tagged_bits.combine_pairs(lt, eq, opened, dealt, number, first)
    return np.concatenate([*sent, tagged_bits.mask_outcome(lt, public.near, dealt, first)])


@dataclasses.dataclass
class Scene:
    """A prover's dealt bits and messages, with public bits, masks, point and weights, all random."""

    rng: np.random.Generator
    request: BitCheck
    public: PublicBits
    dealt: np.ndarray
    first: bool
    masks: Masks
    point: Point
    weights: Weights

    @classmethod
    def draw(cls, seed, size, first=False):
        rng, request = np.random.default_rng(seed), BitCheck(size)
        public = PublicBits(*(rows(rng, n, size) for n in (61, 2, MESSAGES)))
        masks = Masks(words(rng, DEALT, request.columns), words(rng, request.points))
        point = Point(words(rng, request.variables), int(words(rng, 1)[0]) or 1)
        weights = Weights(words(rng, MESSAGES), words(rng, request.words))
        return cls(rng, request, public, rows(rng, DEALT, size), first, masks, point, weights)

    def check(self, messages):
        record = ComparedBits(self.public, self.dealt, {"prover": messages})
        return Check(self.request, [record], self.weights)

    def key(self):
        sums, pad = (
            t.numpy().view(np.uint64)
            for t in deal_key(arrange([self.dealt], self.request), self.masks, self.point, self.request)
        )
        return Key(self.point, sums, int(pad[0]))

    def prove(self):
        check = self.check(send(self.public, self.dealt, self.first))
        return check.prove(check.multiply([self.masks.vector]), [self.masks.pads])[0]

    def accepts(self, messages, proof, key=None):
        key, check = key or self.key(), self.check(messages)
        return check.verify("prover", self.first, proof, key, check.multiply([key.sums])[0])


@pytest.mark.parametrize("first", [False, True])
def test_messages_are_the_sums_of_their_terms(first):
    scene = Scene.draw(1, 5, first)
    sent = send(scene.public, scene.dealt, first)
    if first:
        sent = sent ^ tagged_bits.constants(scene.public)
    public = scene.public.rows()
    assert (len(public), len(TERMS)) == (PUBLIC, MESSAGES)
    for message, terms in zip(sent, TERMS):
        total = np.zeros(5, np.uint8)
        for p, r in terms:
            total ^= scene.dealt[r] & (public[p] if p >= 0 else 255)
        assert (total == message).all()
    # every message has a mask that no other has, so all together are uniform
    masks = [r for terms in TERMS for p, r in terms if p == tagged_bits.ALWAYS and r < MESSAGES]
    assert sorted(masks) == list(range(MESSAGES))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_honest_proof_is_accepted_and_changed_bits_and_words_are_not(size, first):
    scene = Scene.draw(size, size, first)
    sent, proof, key = send(scene.public, scene.dealt, first), scene.prove(), scene.key()
    assert scene.accepts(sent, proof, key)
    for message in scene.rng.permutation(MESSAGES)[:8]:
        other = sent.copy()
        other[message, scene.rng.integers(size)] ^= 1 << scene.rng.integers(8)
        assert not scene.accepts(other, proof, key)
    for place in scene.rng.integers(0, len(proof), 3):
        other = proof.copy()
        other[place] ^= np.uint64(1 << int(scene.rng.integers(64)))
        assert not scene.accepts(sent, other, key)
    assert not scene.accepts(sent, np.zeros_like(proof), key)
    again = dataclasses.replace(scene, point=Point(scene.point.rho, scene.point.scale ^ 2))
    assert not scene.accepts(sent, proof, again.key()._replace(point=scene.point))


def test_each_message_of_a_comparison_is_proved():
    scene = Scene.draw(3, 1)
    sent, proof, key = send(scene.public, scene.dealt, False), scene.prove(), scene.key()
    for message in range(MESSAGES):
        other = sent.copy()
        other[message, 0] ^= 1 << scene.rng.integers(8)
        assert not scene.accepts(other, proof, key)


def test_a_prover_that_corrects_its_proof_for_wrong_bits_is_caught():
    """It knows the change of g in {0, 1}^m, and continues it to the other points; or hides it in h, whose weight
    it does not know.
    """
    scene = Scene.draw(4, 9)
    sent, proof = send(scene.public, scene.dealt, False), scene.prove()
    other = sent.copy()
    other[0, 0] ^= 1
    boolean = bit_proofs.is_boolean(scene.request.variables)
    changes = arrange([sent ^ other], scene.request)
    change = bit_proofs.weigh_messages(changes, scene.weights)
    assert np.count_nonzero(change) == 1
    assert not scene.accepts(other, proof ^ bit_proofs.extend(change, 0) * ~boolean)
    hidden = proof.copy()
    hidden[boolean] ^= change
    assert not scene.accepts(other, hidden)
    # with a known ρ' = 1 the latter would pass: this is what ρ' is for
    known = dataclasses.replace(scene, point=Point(scene.point.rho, 1))
    hidden = known.prove()
    hidden[boolean] ^= change
    assert known.accepts(other, hidden)


def invert(x):
    """x^(2^64 − 2)."""
    power, found = np.array(x, np.uint64), np.array(1, np.uint64)
    for _ in range(63):
        power = binary_field.multiply(power, power)
        found = binary_field.multiply(found, power)
    return int(found)


def test_the_verifiers_view_fits_any_dealt_bits_that_give_the_messages():
    """Perfect zero knowledge: other bits with the same messages, and masks for them, give the same view."""
    scene = Scene.draw(5, 3)
    table = slice(tagged_bits.TABLE, tagged_bits.TABLE + tagged_bits.FULL * tagged_bits.STEPS)
    public = scene.public.rows()
    used = (
        public[tagged_bits.EQUAL : tagged_bits.EQUAL + tagged_bits.FULL * tagged_bits.STEPS]
        | public[tagged_bits.EITHER : tagged_bits.NEAR_P]
    )
    dealt = scene.dealt.copy()
    dealt[table] ^= ~used  # bits that the public sum does not name: three of four
    assert (dealt != scene.dealt).any()
    other = dataclasses.replace(scene, dealt=dealt)
    sent = send(scene.public, scene.dealt, False)
    assert (send(scene.public, dealt, False) == sent).all()
    nothing = np.zeros_like(scene.masks.vector)
    difference = [
        bit_proofs.fold_blocks(
            arrange([x], scene.request), bit_proofs.interpolate(scene.point.rho, 2), nothing, 1
        )
        for x in (scene.dealt, dealt)
    ]
    vector = binary_field.multiply_by(difference[0] ^ difference[1], invert(scene.point.scale))
    other.masks = Masks(scene.masks.vector ^ vector, scene.masks.pads)
    other.masks = Masks(other.masks.vector, other.masks.pads ^ other.prove() ^ scene.prove())
    assert (other.prove() == scene.prove()).all()
    assert (other.key().sums == scene.key().sums).all()
    assert other.key().pad == scene.key().pad


def test_masks_hide_and_are_drawn_once():
    """S and the proof change in every word with the masks; a point never has ρ' = 0, which would show R(ρ)."""
    scene = Scene.draw(6, 1)
    fresh = dataclasses.replace(scene, masks=Scene.draw(7, 1).masks)
    assert (scene.key().sums != fresh.key().sums).all()
    assert (scene.prove() != fresh.prove()).all()

    class Zeros:
        def draw(self, shape):
            return torch.zeros(shape, dtype=torch.int64)

    assert bit_proofs.draw_point(Zeros(), scene.request).scale == 1


@pytest.mark.parametrize("size", [1, 600])
def test_compiled_loops_compute_what_numpy_does(monkeypatch, size):
    from tacit.mpc import bit_loops

    scene = Scene.draw(8, size)
    request, weights = scene.request, scene.weights
    public, dealt, sent = (arrange([rows(scene.rng, n, size)], request) for n in (PUBLIC, DEALT, MESSAGES))
    vectors = [scene.masks.vector, words(scene.rng, DEALT, request.columns)]
    fold = words(scene.rng, request.blocks)
    unused = bit_proofs.is_boolean(request.variables)
    found = []
    for worth in (0, 1 << 40):
        monkeypatch.setattr(bit_proofs, "WORTH", worth)
        found.append(
            (
                np.where(unused, 0, bit_proofs.multiply_bits(public, dealt, weights)),
                bit_proofs.multiply_vectors(public, vectors, weights),
                bit_proofs.weigh_messages(sent, weights),
                bit_proofs.fold_blocks(dealt, fold, vectors[0], 12345),
            )
        )
    assert all(np.array_equal(a, b) for a, b in zip(*found))
    x, y = words(scene.rng, 2, 50)
    portable = [tuple(map(np.uint64, bit_loops.multiply_by_integers(a, b))) for a, b in zip(x, y)]
    assert portable == [bit_loops.carry_less(a, b) for a, b in zip(x, y)]
    assert [bit_loops.reduce(*p) for p in portable] == binary_field.multiply(x, y).tolist()


def test_products_are_those_of_the_field():
    def times(a, b):
        total = 0
        for k in range(64):
            total ^= a << k if b >> k & 1 else 0
        for k in range(126, 63, -1):
            total ^= (1 << 64 | 0b11011) << k - 64 if total >> k & 1 else 0
        return total

    some, factor = np.array([0, 1, 2**63, 2**64 - 1, 123456789], np.uint64), 0xDEADBEEFCAFEBABE
    expected = [times(int(w), factor) for w in some]
    assert binary_field.multiply_by(some, factor).tolist() == expected
    assert binary_field.multiply(some, np.array(factor, np.uint64)).tolist() == expected


def test_small_checks_are_small():
    for size, most in ((1, 15_000), (125, 60_000), (125_000, 15 * 10**6)):
        request = BitCheck(size)
        assert 8 * (DEALT * request.columns + request.points) <= most, size


# between parties --------------------------------------------------------------------------------------------

X = torch.tensor([5, -5, 0, 1 << 40]) % P


def edit(change):
    """A transport's message, changed by `change(kind, to, number, message)`; numbers are of this kind."""

    class Editing:
        def __init__(self, inner):
            self.inner, self.counts = inner, {}

        async def deliver(self, sender, to, scope, frame):
            kind = kind_of(frame)
            number = self.counts[kind, to] = self.counts.get((kind, to), -1) + 1
            await self.inner.deliver(sender, to, scope, encode(change(kind, to, number, decode(frame))))

    return Editing


def deviate(monkeypatch, change, step=positive, rank=1, parties=2, tap=None):
    from tacit.mpc.tagged import TaggedStock

    connect = TaggedStock.connect.__func__

    async def connected(cls, me, its, *rest):
        if its == rank:
            object.__setattr__(me, "transport", edit(change)(me.transport))
        return await connect(cls, me, its, *rest)

    monkeypatch.setattr(TaggedStock, "connect", classmethod(connected))
    return play(step, X, parties=parties, tap=tap)


def send_wrong(opening, message, comparison, who=1):
    """A party that opens another bit, and computes with it as all others do."""

    def cheat(rank, ctx, mine):
        if rank != who:
            return
        open_bits, count = ctx.open_bits, [0]

        async def opened(bits, record, rows):
            if count[0] == opening:
                bits[message % len(bits), 0] ^= 1 << comparison
            count[0] += 1
            return await open_bits(bits, record, rows)

        ctx.open_bits = opened

    return cheat


@pytest.mark.parametrize("opening", range(6))
@pytest.mark.parametrize("who", [0, 1])
def test_a_wrong_bit_in_any_opening_is_caught(opening, who):
    """Also of places behind the last comparison, which fill the byte."""
    rng = np.random.default_rng(opening)
    cheat = send_wrong(opening, int(rng.integers(29)), int(rng.integers(8)), who)
    with pytest.raises(PartyFailed, match=f"check 1 failed: 'party {who}' sent other bits of a comparison"):
        play(positive, X, cheat=cheat)


def test_detection_does_not_depend_on_secrets():
    """The same wrong bit is caught for numbers of either sign and at the ends of the range."""
    for number in (0, 1, -1, 2**47, -(2**47)):
        with pytest.raises(PartyFailed, match="check 1 failed: 'party 1' sent other bits"):
            play(positive, torch.tensor([number]) % P, cheat=send_wrong(4, 1, 0))


def test_nothing_is_opened_after_a_wrong_bit_and_the_dealer_learns_nothing():
    """The result is opened under the receiver's mask after a check, and nothing after one that fails."""

    async def told(ctx, x):
        made = await functions.relu(ctx, x)
        await ctx.open_to(made, 0)
        return made

    tap = Tap()
    with pytest.raises(PartyFailed, match=r"check 1 failed: 'party 1' sent other bits of a comparison"):
        play(told, X, cheat=send_wrong(5, 0, 2), tap=tap)
    kinds = [kind_of(frame) for frame in tap.view("party 1")]
    assert kinds.count("MaskedOpening") == 1  # c, and no result under its mask
    assert kinds.count("Commitment") == kinds.count("Opened") == 1  # not the sum
    assert not tap.view("dealer")


def test_two_of_three_parties_that_cheat_together_are_caught():
    """Their wrong bits cancel, so all opened values are right, but each has to prove its own."""

    def cheat(rank, ctx, mine):
        for who in (1, 2):
            send_wrong(0, 3, 1, who)(rank, ctx, mine)

    with pytest.raises(PartyFailed, match=r"check 1 failed: 'party [12]' sent other bits of a comparison"):
        play(positive, X, parties=3, cheat=cheat)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_proof_of_another_check_is_refused(monkeypatch, rank):
    """The second proof is replaced by the first one."""

    async def twice(ctx, x):
        await positive(ctx, x)
        await ctx.check()
        return await positive(ctx, x)

    before = []

    def change(kind, to, number, message):
        if kind == "BitProof":
            before.append(message)
            return before[0]
        return message

    with pytest.raises(PartyFailed, match=f"check 2 failed: 'party {rank}' sent other bits"):
        deviate(monkeypatch, change, twice, rank=rank)


def test_different_bits_for_two_others_are_noticed(monkeypatch):
    """Of three parties, party 1 sends party 2 another bit than it sends party 0."""

    def change(kind, to, number, message):
        if (kind, to, number) == ("MaskedCheckedBits", "party 2", 0):
            message.values[0][0, 0] ^= 1
        return message

    with pytest.raises(PartyFailed, match=r"check 1 failed: .* saw other values opened"):
        deviate(monkeypatch, change, parties=3)


def test_each_party_verifies_the_proof_for_itself(monkeypatch):
    """Party 1 sends party 2 a wrong proof, and party 0 a right one."""

    def change(kind, to, number, message):
        if (kind, to) == ("BitProof", "party 2"):
            message.values[0][0] ^= 1
        return message

    with pytest.raises(PartyFailed, match=r"party 'party 2' failed: .*'party 1' sent other bits"):
        deviate(monkeypatch, change, parties=3)


@pytest.mark.parametrize("wrong", [torch.zeros(3, dtype=torch.int64), torch.zeros(1)])
def test_a_proof_of_another_form_is_refused(monkeypatch, wrong):
    def change(kind, to, number, message):
        return dataclasses.replace(message, values=[wrong]) if kind == "BitProof" else message

    with pytest.raises(PartyFailed, match="sent shapes"):
        deviate(monkeypatch, change)


def test_a_dealer_that_leaves_out_the_keys_stops_the_run(monkeypatch):
    """Without them there is no check, and so no result; a truncated plan is one way."""
    from tests.mpc import test_spdz

    requested = test_spdz.requested
    monkeypatch.setattr(
        test_spdz,
        "requested",
        lambda *about: [r for r in requested(*about) if not isinstance(r, BitCheck)],
    )
    with pytest.raises(ProtocolError, match="'party 0' waits for ProofKeys from 'dealer'"):
        play(positive, X)


def test_masks_are_for_one_pair_of_parties():
    """Of three parties no two verifiers of a prover have the same point or S."""
    keys = {}

    def watch(rank, ctx, mine):
        take = ctx.stock.take_proofs

        async def taken(request):
            made = await take(request)
            keys.update({(other, rank): key for other, key in made.keys.items()})
            return made

        ctx.stock.take_proofs = taken

    play(positive, X, parties=3, cheat=watch)
    assert len(keys) == 6
    assert len({key.point.scale for key in keys.values()}) == 6
    for prover in range(3):
        one, two = (key.sums for pair, key in keys.items() if pair[0] == prover)
        assert (one != two).all()


def test_a_program_without_comparisons_sends_no_proof():
    tap = Tap()
    play(spdz.product, X, X, tap=tap)
    assert not {"BitProof", "ProofKeys"} & {kind_of(frame) for *_, frame in tap.frames}

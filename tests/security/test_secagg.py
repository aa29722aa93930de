"""What a server learns from its view of secure aggregation, and what honest clients refuse to reveal.

Statistical tests use fixed seeds for the inputs and the operating system's randomness for the masks, so each can
raise a false alarm, with probability ALARM.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.crypto import field, prg, ring
from tacit.crypto.agree import Identity
from tacit.errors import PartyFailed, ProtocolError
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.protocols import lightsecagg, secagg
from tacit.protocols.secagg import (
    MaskedVector,
    RevealedShares,
    RoundKeys,
    SecAggTerms,
    Survivors,
    SurvivorSignatures,
)
from tacit.runtimes.inprocess import InProcess
from tests.protocols.masked import aggregate, inputs, names_of, programs

ALARM = 1e-9  # of each statistical test: once in 10⁹ runs of a correct protocol


def uploads(
    terms: SecAggTerms, values: dict[str, torch.Tensor], tag: str = "round 1", **more: Any
) -> dict[str, np.ndarray]:
    """The masked vectors as the server received them."""
    tap = Tap()
    aggregate(terms, values, tap=tap, tag=tag, **more)
    came = [(sender, decode(frame)) for sender, to, _, frame in tap.frames if to == "server"]
    return {
        name: ring.unpack(m.packed.numpy(), terms.length, terms.width)
        for name, m in came
        if isinstance(m, MaskedVector)
    }


# what the server sees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bound", "width"), [(20, 8), (10_000, 16), (150_000, 20), (2**29, 32)])
def test_a_masked_vector_looks_uniform(bound: int, width: int) -> None:
    """χ² on the lowest and on the highest 8 bits of 30,000 numbers that are all the same; 255 degrees of
    freedom; two tests, alarm ALARM together.
    """
    terms = SecAggTerms("fed", 3, 30_000, bound)
    assert terms.width == width
    for vector in uploads(terms, {name: torch.full((30_000,), bound) for name in names_of(3)}).values():
        for part in (vector & vector.dtype.type(255), vector >> vector.dtype.type(width - 8)):
            assert (
                stats.chisquare(np.bincount(part.astype(np.int64), minlength=256)).pvalue > ALARM / 6
            )  # three clients × two parts


def field_uploads(value: int) -> dict[str, np.ndarray]:
    """The masked vectors of LightSecAgg, elements of its field, of clients whose numbers are all `value`."""
    terms, tap = lightsecagg.LightSecAggTerms("fed", 4, 30_000, 10_000), Tap()
    aggregate(
        terms, {name: torch.full((30_000,), value) for name in names_of(4)}, protocol=lightsecagg, tap=tap
    )  # type: ignore[arg-type]
    came = [(sender, decode(frame)) for sender, to, _, frame in tap.frames if to == "server"]
    return {
        name: m.packed.numpy().view(np.uint32).astype(np.int64)
        for name, m in came
        if isinstance(m, MaskedVector)
    }


def test_a_masked_vector_of_lightsecagg_looks_uniform_in_its_field_and_tells_no_two_inputs_apart() -> None:
    """χ² on 256 cells of equal width and on the lowest 8 bits, four clients; then homogeneity of two inputs.
    Nine tests, alarm ALARM together.
    """
    low, high = field_uploads(-10_000), field_uploads(10_000)
    for vector in low.values():
        assert vector.max() < field.Q
        for part in (vector * 256 // field.Q, vector & 255):
            assert stats.chisquare(np.bincount(part, minlength=256)).pvalue > ALARM / 9
    tables = [np.bincount(seen["c1"] * 256 // field.Q, minlength=256) for seen in (low, high)]
    assert stats.chi2_contingency(np.array(tables)).pvalue > ALARM / 9


def test_two_inputs_give_the_same_distribution() -> None:
    """All at one end of the range, and all at the other: a test of homogeneity on 2 × 256 cells finds no
    difference (255 degrees of freedom).
    """
    terms = SecAggTerms("fed", 3, 40_000, 10_000)
    low, high = ({name: torch.full((40_000,), v) for name in names_of(3)} for v in (-10_000, 10_000))
    tables = [np.bincount(uploads(terms, values)["c1"] >> 8, minlength=256) for values in (low, high)]
    assert stats.chi2_contingency(np.array(tables)).pvalue > ALARM


def test_the_masked_vectors_of_two_clients_are_not_correlated() -> None:
    """Pairwise masks are the same stream with opposite signs, but each client has a mask of its own as well: |r|·√n is normal."""
    terms = SecAggTerms("fed", 3, 40_000, 10_000)
    seen = uploads(terms, inputs(terms))
    a, b = (seen[name].astype(np.float64) for name in ("c0", "c1"))
    assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(len(a)) < stats.norm.isf(ALARM / 2)
    assert abs(np.corrcoef((a + b) % 2**16, inputs(terms)["c1"].numpy())[0, 1]) * np.sqrt(
        len(a)
    ) < stats.norm.isf(ALARM / 2)


def test_no_byte_of_a_secret_or_of_a_vector_is_in_the_servers_view() -> None:
    """16 bytes in a row of anyone's vector, as it would be packed, or of a private key. By chance: below
    2^-80.
    """
    terms = SecAggTerms("fed", 4, 64, 2**29 - 1)
    values, tap, drawn = inputs(terms), Tap(), []
    run = programs(terms, values)

    def spied(program: Any) -> Any:
        async def listening(me: Any) -> Any:
            real = me.secret.bytes
            object.__setattr__(
                me,
                "secret",
                type(
                    "Spy", (), {"replayable": False, "bytes": lambda _, n: drawn.append(real(n)) or drawn[-1]}
                )(),
            )
            return await program(me)

        return listening

    InProcess().run_sync(
        tap.on({name: program if name == "server" else spied(program) for name, program in run.items()})
    )
    view = b"".join(tap.view("server"))
    keys = [secret for secret in drawn if len(secret) == 32]
    assert len(keys) == 3 * 4  # two private keys and b_u for each
    for secret in keys:
        assert secret[:16] not in view
    for v in values.values():
        packed = ring.pack(ring.encode(v.numpy(), terms.width, terms.bound), terms.width).tobytes()
        assert all(packed[i : i + 16] not in view for i in range(0, len(packed) - 16, 4))


def test_every_round_has_masks_of_its_own_also_when_a_round_is_repeated() -> None:
    """The same inputs, the same round: after a resume every mask is new. That two of 64 words are equal by
    chance: below 2^-20.
    """
    terms = SecAggTerms("fed", 3, 64, 2**29)
    values = inputs(terms)
    first, again = uploads(terms, values), uploads(terms, values)
    for name in values:
        assert not np.any(first[name] == again[name])
        difference = (first[name] - again[name]).astype(np.int64)
        assert len(np.unique(difference)) > 60  # not one shift of the other


def test_the_mask_of_a_pair_is_bound_to_round_federation_and_names() -> None:
    """Two key pairs, fixed; everything else about the round changes the key."""
    me = type("Me", (), {"tag": "round 1"})()
    other = type("Me", (), {"tag": "round 2"})()
    terms = SecAggTerms("fed", 3, 4, 10)
    a, b = bytes(32), bytes([1] * 32)
    seen = {
        secagg.pair(c, u, a, v, b)
        for c in (
            terms.context(me),
            terms.context(other),
            SecAggTerms("other", 3, 4, 10).context(me),  # type: ignore[arg-type]
            SecAggTerms("fed", 3, 4, 11).context(me),
        )
        for u, v in (("x", "y"), ("x", "z"), ("y", "x"))
    }  # type: ignore[arg-type]
    assert len(seen) == 12
    assert secagg.pair(b"", "x", a, "y", b) == secagg.pair(b"", "y", b, "x", a)


def test_a_seeded_secret_is_stamped_not_private() -> None:
    from tacit.parties.ledger import Ledger

    ledger = Ledger()
    aggregate(
        SecAggTerms("fed", 3, 2, 5), inputs(SecAggTerms("fed", 3, 2, 5)), ledger=ledger, insecure_seed=1
    )
    assert any("NOT PRIVATE" in stamp for stamp in ledger.stamps)


# what honest clients refuse ---------------------------------------------------------------------------------


def lying(change: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
    """A server whose every message to a client passes through `change(client, message)`."""

    def on(program: Any) -> Any:
        async def crooked(me: Any) -> Any:
            from dataclasses import replace

            from tacit.parties.codec import encode

            class Wire:
                async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
                    message = change(to, decode(frame))
                    if message is not None:
                        await me.transport.deliver(sender, to, scope, encode(message))

            return await program(replace(me, transport=Wire()))

        return crooked

    return on


def attack(
    terms: SecAggTerms, change: Callable[[str, Any], Any], leave: dict[str, int] | None = None
) -> tuple[PartyFailed, Tap]:
    from tests.protocols.leaving import leaving

    tap, run = Tap(), programs(terms, inputs(terms))
    run["server"] = lying(change)(run["server"])
    with pytest.raises(PartyFailed) as failed:
        InProcess().run_sync(tap.on(leaving(run, leave or {})))
    return failed.value, tap


def handed_out(tap: Tap) -> list[RevealedShares]:
    return [m for frame in tap.view("server") if isinstance(m := decode(frame), RevealedShares)]


TERMS = SecAggTerms("fed", 5, 4, 100)
ACTIVE = SecAggTerms("fed", 5, 4, 100, 0.7, None, "active")


def survivors(make: Callable[[Survivors], Survivors]) -> Callable[[str, Any], Any]:
    return lambda to, m: make(m) if isinstance(m, Survivors) else m


@pytest.mark.parametrize("terms", [TERMS, ACTIVE], ids=["curious", "active"])
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda m: Survivors(m.alive, ["c1"]), r"the server lists \['c1'\] both as surviving and as dropped"),
        (lambda m: Survivors([*m.alive, "c1"], m.dropped), "both as surviving and as dropped, or twice"),
        (lambda m: Survivors(m.alive[1:], m.dropped), r"secrets with in \['c0'\]"),
        (lambda m: Survivors([*m.alive, "stranger"], m.dropped), r"secrets with in \['stranger'\]"),
        (
            lambda m: Survivors(m.alive[3:], m.alive[:3]),
            "it is listed as dropped although it sent its vector",
        ),
        (lambda m: Survivors([], m.alive), "it is listed as dropped"),
    ],
)
def test_an_attempt_to_unmask_a_surviving_client_is_refused(
    terms: SecAggTerms, lie: Callable[[Survivors], Survivors], words: str
) -> None:
    failed, tap = attack(terms, survivors(lie))
    assert isinstance(failed.error, ProtocolError)
    assert f"party {failed.party!r} reveals no share: " in str(failed.error)
    import re

    assert re.search(words, str(failed.error))
    assert not handed_out(tap)


def test_fewer_survivors_than_the_threshold_get_no_share() -> None:
    """c4 receives the claim that only it and c3 survived: the sum of two would reveal c3's vector to anyone who colludes
    with c4.
    """
    failed, tap = attack(
        TERMS,
        lambda to, m: (
            (Survivors(["c3", "c4"], ["c0", "c1", "c2"]) if to == "c4" else None)
            if isinstance(m, Survivors)
            else m
        ),
    )
    assert "party 'c4' reveals no share: 2 of the clients it masks with survived; 3 are needed." in str(
        failed.error
    )
    assert not handed_out(tap)


def test_different_lists_for_different_clients_are_found_out_by_their_signatures() -> None:
    """The attack the consistency check is for: c4 is alive to some and dropped to others, to collect both
    kinds of its shares.
    """

    def split(to: str, m: Any) -> Any:
        if isinstance(m, Survivors) and to in ("c0", "c1"):
            return Survivors(["c0", "c1", "c2", "c3"], ["c4"])
        return m

    failed, tap = attack(ACTIVE, split)
    assert (
        "valid signatures of the list of survivors and needs 4. The server may have sent others a different "
        "list" in str(failed.error)
    )
    assert not handed_out(tap)


def test_signatures_of_too_few_or_of_strangers_open_nothing() -> None:
    def strangers(to: str, m: Any) -> Any:
        return (
            SurvivorSignatures({f"s{i}": s for i, s in enumerate(m.signatures.values())})
            if isinstance(m, SurvivorSignatures)
            else m
        )

    failed, tap = attack(ACTIVE, strangers)
    assert "has 0 valid signatures of the list of survivors and needs 4" in str(failed.error)
    assert not handed_out(tap)


def test_signatures_of_an_earlier_try_of_the_same_round_count_for_nothing() -> None:
    """The server begins a round twice under one name, which it chooses, and shows c0 in the second what all
    signed in the first.
    """
    names, values = names_of(5), inputs(ACTIVE)
    ids = Identity.provision(names, os.urandom)

    def tried(change: Callable[[str, Any], Any], tap: Tap) -> None:
        run: dict[str, Any] = {
            n: (lambda me, n=n: secagg.client(me.scope("r"), values[n], ACTIVE, ids[n])) for n in names
        }
        run["server"] = lying(change)(lambda me: secagg.server(me.scope("r"), names, ACTIVE, within=5.0))
        InProcess().run_sync(tap.on(run))

    first = Tap()
    tried(lambda to, m: m, first)
    earlier = next(
        m for _, to, _, f in first.frames if to == "c0" and isinstance(m := decode(f), SurvivorSignatures)
    )
    assert len(earlier.signatures) == 5
    again = Tap()
    with pytest.raises(
        PartyFailed, match=r"party 'c0' has 0 valid signatures of the list of survivors and needs 4"
    ):
        tried(lambda to, m: earlier if isinstance(m, SurvivorSignatures) and to == "c0" else m, again)
    assert not [f for s, _, _, f in again.frames if s == "c0" and isinstance(decode(f), RevealedShares)]


def test_a_server_that_puts_its_own_key_in_anothers_place_is_found_out() -> None:
    from tacit.crypto.agree import public_of

    mine = public_of(os.urandom(32)), public_of(os.urandom(32))
    failed, tap = attack(
        ACTIVE,
        lambda to, m: (
            RoundKeys(m.keys | {"c4": (*mine, m.keys["c4"][2])})
            if isinstance(m, RoundKeys) and to == "c0"
            else m
        ),
    )
    assert "party 'c0' received keys of 'c4' that 'c4' did not sign" in str(failed.error)
    assert not handed_out(tap)
    assert not [f for s, _, _, f in tap.frames if s == "c0" and isinstance(decode(f), MaskedVector)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda keys: {k: v for k, v in keys.items() if k != "c0"},
            "does not find its own keys among those it received",
        ),
        (lambda keys: keys | {"c0": keys["c1"]}, "does not find its own keys"),
        (lambda keys: keys | {"c4": keys["c3"]}, "received a public key twice"),
        (lambda keys: keys | {"c4": (b"short", b"key", b"")}, "or an invalid one"),
        (
            lambda keys: {k: keys[k] for k in ("c0", "c1")},
            "received the keys of 2 parties, itself included; 3 to 5 were agreed on",
        ),
        (
            lambda keys: keys | {"sybil": (os.urandom(32), os.urandom(32), b"")},
            "received the keys of 6 parties",
        ),
    ],
)
def test_keys_that_were_tampered_with_end_the_round_for_the_client(
    change: Callable[[Any], Any], words: str
) -> None:
    failed, tap = attack(
        TERMS, lambda to, m: RoundKeys(change(m.keys)) if isinstance(m, RoundKeys) and to == "c0" else m
    )
    assert failed.party == "c0"
    assert words in str(failed.error)
    assert not [f for s, _, _, f in tap.frames if s == "c0" and isinstance(decode(f), MaskedVector)]


def test_shares_that_were_swapped_or_changed_on_the_way_do_not_open() -> None:
    def swap(to, m):
        return (
            secagg.ForwardedShares(dict(zip(m.sealed, reversed(m.sealed.values()))))
            if isinstance(m, secagg.ForwardedShares)
            else m
        )

    failed, _ = attack(TERMS, swap)
    assert "cannot decrypt the shares of" in str(failed.error)
    assert "sealed for another party, round or federation" in str(failed.error)


def test_a_client_with_other_terms_shares_nothing_with_the_rest() -> None:
    values = inputs(TERMS)
    run = programs(TERMS, values)
    stray = SecAggTerms("another federation", 5, 4, 100)
    run["c2"] = lambda me: secagg.client(me.scope("round 1"), values["c2"], stray)
    with pytest.raises(PartyFailed, match="cannot decrypt the shares of"):
        InProcess().run_sync(run)


def test_a_client_answers_once_a_round() -> None:
    """A second request, with another list, stays unread: the client's part is over."""
    terms, tap = TERMS, Tap()
    run = programs(terms, inputs(terms))
    names = names_of(5)

    async def greedy(me: Any) -> Any:
        out = await secagg.server(me.scope("round 1"), names, terms, within=5.0)
        await me.scope("round 1").send(names, Survivors(names[1:], names[:1]))
        await me.clock.sleep(10.0)
        return out

    run["server"] = greedy
    InProcess().run_sync(tap.on(run))
    assert len(handed_out(tap)) == 5


def test_below_the_threshold_what_the_server_has_opens_nothing() -> None:
    """It aborts with two of three shares of everybody's secrets, and two of three joined as if they were
    enough give a wrong mask.
    """
    from tacit.crypto import shamir
    from tests.protocols.leaving import leaving

    terms, tap = TERMS, Tap()
    values = inputs(terms)
    with pytest.raises(PartyFailed, match="unmasking: 2 of 5 parties answered and 3 are needed"):
        InProcess().run_sync(tap.on(leaving(programs(terms, values), {"c0": 3, "c1": 3, "c2": 3})))
    shares = handed_out(tap)
    assert len(shares) == 2
    with pytest.raises(ProtocolError, match="2 shares are too few: 3 are needed"):
        shamir.join({3: shares[0].own["c0"], 4: shares[1].own["c0"]}, terms.shares)
    try:
        guess = shamir.join({3: shares[0].own["c0"], 4: shares[1].own["c0"]}, 2)
    except ProtocolError:
        return  # not even a number of the right size
    came = {s: m for s, to, _, f in tap.frames if to == "server" and isinstance(m := decode(f), MaskedVector)}
    total = sum(ring.unpack(m.packed.numpy(), 4, terms.width).astype(np.int64) for m in came.values()).astype(
        ring.word(terms.width)
    )
    prg.mask(total, [(guess, -1)], terms.width)
    assert not np.array_equal(ring.decode(total, terms.width), secagg.ideal(values).numpy())


def test_identities_are_provisioned_not_taken_from_messages() -> None:
    """A client that signs with a key of its own making is not the party it says it is."""
    names, values = names_of(5), inputs(ACTIVE)
    real, fake = Identity.provision(names, os.urandom), Identity.provision(names, os.urandom)
    run: dict[str, Any] = {
        n: (lambda me, n=n: secagg.client(me.scope("r"), values[n], ACTIVE, (fake if n == "c4" else real)[n]))
        for n in names
    }
    run["server"] = lambda me: secagg.server(me.scope("r"), names, ACTIVE, within=5.0)
    with pytest.raises(PartyFailed, match="did not sign"):
        InProcess().run_sync(run)

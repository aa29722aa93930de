"""Whatever bytes or texts come from outside: envelopes, a server's job and its layout are read, or refused
with an error of ours, and nothing else happens.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import data
from tacit.errors import BadFrame, BadJob, TacitError
from tacit.guard import Clip, Quantize, SecAgg
from tacit.jobs.train.contract import KEYS as KEYS_OF_A_CONTRACT
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.party_rows import read_layout
from tacit.jobs.train.plan import make_plan
from tacit.runtimes.envelope import MAIL, MAX_ENVELOPE, WELCOME, pack, unpack

NAMES = st.text(max_size=60).filter(
    lambda s: len(s.encode("utf-8", "surrogatepass")) <= 255 and "\ud800" not in s and s.isprintable()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=600))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        kind, sender, to, payload = unpack(data)
    except BadFrame:
        return
    assert MAIL <= kind <= WELCOME
    assert pack(kind, sender, to, bytes(payload)) == data  # and then there is one way only to write it


@settings(max_examples=100, deadline=None)
@given(kind=st.integers(MAIL, WELCOME), sender=NAMES, to=NAMES, payload=st.binary(max_size=300))
def test_an_envelope_round_trips(kind: int, sender: str, to: str, payload: bytes) -> None:
    got = unpack(pack(kind, sender, to, payload))
    assert (got.kind, got.sender, got.to, bytes(got.payload)) == (kind, sender, to, payload)


@settings(max_examples=100, deadline=None)
@given(
    sender=NAMES,
    payload=st.binary(min_size=1, max_size=300),
    cut=st.integers(0, 400),
    at=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_an_envelope_cut_short_or_with_a_bit_changed_is_still_only_read_or_refused(
    sender: str, payload: bytes, cut: int, at: int, bit: int
) -> None:
    data = bytearray(pack(MAIL, sender, "b", payload))
    data[at % len(data)] ^= 1 << bit
    for damaged in (bytes(data), bytes(data[: cut % len(data)])):
        try:
            unpack(damaged)
        except BadFrame:
            continue


def test_an_envelope_takes_no_more_memory_than_it_has() -> None:
    data = pack(MAIL, "a", "b", bytes(MAX_ENVELOPE - 100))
    tracemalloc.start()
    unpack(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096  # the payload is a view
    with pytest.raises(BadFrame, match="more than the"):
        unpack(bytes(MAX_ENVELOPE + 1))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=200) | JSON.map(json.dumps))
def test_any_text_is_a_contract_or_refused(text: str) -> None:
    with pytest.raises(BadJob, match="the server's contract"):  # none of these is one
        Contract.read(text)


FED = data.gaussian_blobs(rows=60, seed=0).split(6, seed=0)
GOOD = Contract.of(
    make_plan(FED, model="logistic", rounds=5, guard=[Clip(1.0), Quantize(bits=24), SecAgg(max_rows=64)]),
    None,
    "server",
    list(FED.rows.x.shape[1:]),
)


def test_the_contract_these_tests_begin_with_is_a_good_one() -> None:
    assert Contract.read(GOOD.text).plan().rounds == 5
    assert set(GOOD.tables) == set(KEYS_OF_A_CONTRACT)


PLACES = st.sampled_from(
    [(key,) for key in sorted(KEYS_OF_A_CONTRACT)]
    + [("train", key) for key in sorted(GOOD.tables["train"])]
    + [("algorithm", "lr")]
)


@settings(max_examples=200, deadline=None)
@given(place=PLACES, value=JSON, drop=st.booleans())
def test_a_contract_with_one_entry_changed_is_another_contract_or_refused(
    place: tuple[str, ...], value: Any, drop: bool
) -> None:
    """What is accepted comes back as it was: no entry is left unread, and none is filled in."""
    tables = json.loads(GOOD.text)
    here = tables if len(place) == 1 else tables[place[0]]
    if drop:
        del here[place[-1]]
    else:
        here[place[-1]] = value
    try:
        changed = Contract.read(json.dumps(tables, sort_keys=True, separators=(",", ":")))
        p = changed.plan()
    except BadJob:
        return
    assert not drop
    assert (
        Contract.of(p, changed.tables["data"], changed.tables["server"], changed.tables["features"]).text
        == changed.text
    )
    assert (changed.digest == GOOD.digest) == (changed.text == GOOD.text)


KEYS = ("label", "labels", "numbers", "categories", "missing", "held_fraction", "path")


@settings(max_examples=100, deadline=None)
@given(table=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), JSON, max_size=7))
def test_any_layout_is_one_or_refused(table: dict[str, Any]) -> None:
    try:
        recipe, label, labels, fraction, *_ = read_layout(table)
    except TacitError:
        return
    assert recipe.columns
    assert isinstance(label, str)
    assert labels is None or len(labels) >= 2
    assert 0 <= fraction < 1

"""Hyper-parameters as data: checked, said in one sentence, and the same after the way through a TOML
table.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import aggregate, algorithms, data, models
from tacit.errors import BadJob, BadParameter
from tacit.parameters import (
    allowed,
    bad,
    check,
    choice,
    describe,
    flag,
    from_table,
    nearest,
    part,
    real,
    to_table,
    whole,
)

ROOMS: dict[str, dict[str, type]] = {
    "algorithms": {**algorithms.ALL, **algorithms.PARTS},
    "aggregate": aggregate.ALL,
    "skews": dict(data.SKEWS),
    "models": {kind.__name__: kind for kind in models.ALL.values()},
}
MEMBERS = [(room, name) for room, members in ROOMS.items() for name in members]
SOLVERS = st.sampled_from(
    [
        algorithms.SGD(),
        algorithms.SGD(momentum=0.5, schedule=algorithms.Inverse()),
        algorithms.Adam(schedule=algorithms.Cosine(7)),
    ]
)
PARTS = {
    "solver": SOLVERS,
    "schedule": st.sampled_from(
        [None, algorithms.Cosine(3), algorithms.Exponential(0.5), algorithms.Inverse()]
    ),
    "rule": st.sampled_from([aggregate.Mean(), aggregate.Median(), aggregate.TrimmedMean()]),
}
UNDECLARED = {  # fields that are no single number or word: what they may be is said in their own check
    ("LabelsPerParty", "labels"): st.integers(1, 5)
    | st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    ("ByColumn", "column"): st.text(min_size=1, max_size=8),
    ("ByColumn", "missing_party"): st.text(min_size=1, max_size=8),
    ("MLP", "hidden"): st.lists(st.integers(1, 9), max_size=3).map(tuple),
    ("TableNetwork", "hidden"): st.lists(st.integers(1, 9), max_size=3).map(tuple),
    ("TableNetwork", "starts"): st.just(()),
    ("TableNetwork", "sizes"): st.just(()),
    ("CNN", "channels"): st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
    ("CNN", "hidden"): st.none() | st.just((5, 3)),
    ("Distill", "rows"): st.sampled_from([None, "test"]),
    ("Layerwise", "layers"): st.lists(st.integers(1, 9), max_size=3).map(tuple),
    ("Legato", "layers"): st.lists(st.integers(1, 9), max_size=3).map(tuple),
}


def values(owner: str, field: Any) -> st.SearchStrategy[Any]:
    """What a field declares, as a strategy."""
    meta = field.metadata
    if not meta:
        return UNDECLARED[owner, field.name]
    if meta["kind"] == "choice":
        made: st.SearchStrategy[Any] = st.sampled_from(meta["options"])
    elif meta["kind"] == "flag":
        made = st.booleans()
    elif meta["kind"] == "part":
        return PARTS[field.name]
    elif meta["kind"] == "a whole number":
        least = 0 if meta["least"] is None else meta["least"]
        made = st.integers(least, least + 50 if meta["most"] is None else meta["most"])
    else:
        low = meta["least"] if meta["above"] is None else meta["above"]
        high = meta["most"] if meta["below"] is None else meta["below"]
        made = st.floats(
            0 if low is None else low,
            (low or 0) + 100 if high is None else high,
            exclude_min=meta["above"] is not None,
            exclude_max=meta["below"] is not None,
        )
    return (st.none() | made) if meta["none"] else made


def build(kind: type) -> st.SearchStrategy[Any]:
    """Things whose fields are each allowed; those that also fit together, where a `check` of their own says
    what must.
    """
    return st.builds(kind, **{f.name: values(kind.__name__, f) for f in dataclasses.fields(kind)}).filter(
        fits
    )


def fits(thing: Any) -> bool:
    try:
        getattr(thing, "check", lambda: None)()
    except BadParameter:
        return False
    return True


@pytest.mark.parametrize(("room", "name"), MEMBERS)
def test_every_member_is_restored_from_its_table(room, name):
    """Whatever values its fields allow, and through real TOML text."""
    members = ROOMS[room]

    @settings(max_examples=25, deadline=None)
    @given(build(members[name]))
    def holds(thing):
        assert check(thing) is thing
        table = tomllib.loads(tomli_w.dumps(to_table(thing)))
        assert table["name"] == members[name].__name__
        back = from_table(table, members, room)
        assert back == thing
        assert type(back) is type(thing)
        assert (
            from_table({**table, "name": table["name"].upper()}, members, room) == thing
        )  # names are not held to their case

    holds()


@pytest.mark.parametrize(("room", "name"), MEMBERS)
def test_every_declared_field_refuses_values_out_of_range(room, name):
    kind = ROOMS[room][name]
    good = {f.name: f.default for f in dataclasses.fields(kind)}
    for f in dataclasses.fields(kind):
        meta = f.metadata
        if not meta:
            assert (kind.__name__, f.name) in UNDECLARED, (
                f"{kind.__name__}.{f.name} says nowhere what it may be"
            )
            continue
        wrong: list[Any] = [
            "three",
            1.5 if meta["kind"] == "a whole number" else object(),
            *([] if meta["none"] else [None]),
        ]
        wrong += [True, math.nan] if meta["kind"] in ("a number", "a whole number") else [2]
        for end, step in (("above", 0), ("least", -1), ("below", 0), ("most", 1)):
            if meta.get(end) is not None:
                wrong.append(meta[end] + step)
        for value in wrong:
            with pytest.raises(BadParameter) as refused:
                check(kind(**{**good, f.name: value}))
            assert (
                str(refused.value) == f"{kind.__name__}: {f.name} is {value!r}; it must be {allowed(meta)}."
            )
        assert meta["doc"], f"{kind.__name__}.{f.name} has no words for the command line"


def test_describe_names_every_declared_field():
    for members in ROOMS.values():
        for kind in members.values():
            assert len(describe(kind)) == sum(bool(f.metadata) for f in dataclasses.fields(kind))


@dataclass(frozen=True)
class Inner:
    size: int = whole(1, least=1, most=9, doc="how large")


@dataclass(frozen=True)
class Outer:
    rate: float = real(above=0, below=1, doc="needs a value")
    kind: str = choice("a", ("a", "b"), doc="which")
    on: bool = flag(True, doc="whether")
    inner: Any = part(Inner(), doc="what is in it", none=True)


KNOWN = {"Inner": Inner, "Outer": Outer}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "job: there is no `name`. Known: Inner, Outer."),
        ("Otter", "job: 'Otter' is not known here. Did you mean 'Outer'?"),
        ({"name": "Outer", "raet": 1}, "job: Outer has no parameter 'raet'. Did you mean 'rate'?"),
        ({"name": "Outer"}, "job: Outer cannot be built from []: "),
        (
            {"name": "Outer", "rate": 0.5, "inner": {"name": "Inner", "sise": 1}},
            "job.inner: Inner has no parameter 'sise'. Did you mean 'size'?",
        ),
    ],
)
def test_a_table_that_cannot_be_understood_is_refused_with_the_nearest_right_word(table, words):
    with pytest.raises(BadJob) as refused:
        from_table(table, KNOWN, "job")
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "Outer", "rate": 1.0}, "Outer: rate is 1.0; it must be a number above 0 and below 1."),
        ({"name": "Outer", "rate": 0.5, "kind": "c"}, "Outer: kind is 'c'; it must be one of 'a', 'b'."),
        ({"name": "Outer", "rate": 0.5, "on": 1}, "Outer: on is 1; it must be True or False."),
        (
            {"name": "Outer", "rate": 0.5, "inner": {"name": "Inner", "size": 10}},
            "Inner: size is 10; it must be a whole number of at least 1 and at most 9.",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_in_one_sentence(table, words):
    with pytest.raises(BadJob) as refused:
        from_table(table, KNOWN, "job")
    assert str(refused.value).startswith("job")
    assert str(refused.value).endswith(": " + words)


def test_a_nested_part_is_checked_too():
    with pytest.raises(BadParameter, match="Inner: size is 0"):
        check(Outer(0.5, inner=Inner(0)))
    assert check(Outer(0.5, inner=None)).inner is None
    with pytest.raises(BadParameter, match="inner is 3; it must be one of tacit's own objects, or None"):
        check(Outer(0.5, inner=3))


def test_the_sentence_has_room_for_advice():
    assert (
        str(bad("train", "rounds", 0, "at least 1", "Ask for more."))
        == "train: rounds is 0; it must be at least 1. Ask for more."
    )


@given(st.sampled_from(sorted(algorithms.ALL)), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_word_with_one_letter_missing_finds_its_way(word, at):
    typed = word[: at % len(word)] + word[at % len(word) + 1 :]
    assert nearest(typed, list(algorithms.ALL)).startswith("Did you mean")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float32("inf"), np.True_, 10**400])
def test_a_number_is_finite(value):
    with pytest.raises(BadParameter, match=r"FedProx: mu is .*; it must be a number of at least 0\."):
        check(algorithms.FedProx(mu=value))


@pytest.mark.parametrize(
    ("given_", "plain"),
    [(np.float32(0.5), 0.5), (np.float64(0.1), 0.1), (np.int64(2), 2), (np.float16(0.25), 0.25)],
)
def test_numbers_of_numpy_are_numbers_and_become_plain_ones(given_, plain):
    thing = check(algorithms.FedProx(mu=given_))
    assert (type(thing.mu), thing.mu) == (type(plain), plain)
    assert thing == algorithms.FedProx(mu=plain)
    assert tomllib.loads(tomli_w.dumps(to_table(thing)))["mu"] == plain
    assert type(check(algorithms.Cosine(rounds=np.int32(7))).rounds) is int
    with pytest.raises(BadParameter, match=r"rounds is .*; it must be a whole number of at least 1"):
        check(algorithms.Cosine(rounds=np.float32(7)))


SOLVERS_SAID = r"; it must be a local solver: SGD\(…\) or Adam\(…\) or AdamW\(…\)"
SCHEDULES_SAID = r"; it must be a schedule: Exponential\(…\) or Inverse\(…\) or Cosine\(…\), or None\."


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (
            algorithms.FedAvg(solver=algorithms.Cosine()),
            r"FedAvg: solver is Cosine\(rounds=100\)" + SOLVERS_SAID,
        ),
        (algorithms.FedAvg(solver=algorithms.FedAvg()), r"FedAvg: solver is FedAvg\(.*" + SOLVERS_SAID),
        (algorithms.FedProx(solver="Adam"), "FedProx: solver is 'Adam'" + SOLVERS_SAID),
        (algorithms.Scaffold(solver=algorithms.SGD), "Scaffold: solver is <class .*SGD'>" + SOLVERS_SAID),
        (
            algorithms.FedNova(solver=algorithms.Cosine()),
            r"FedNova: solver is Cosine\(rounds=100\)" + SOLVERS_SAID,
        ),
        (algorithms.SGD(schedule=algorithms.Adam()), r"SGD: schedule is Adam\(.*" + SCHEDULES_SAID),
        (
            algorithms.FedAvg(solver=algorithms.SGD(schedule="Cosine")),
            "SGD: schedule is 'Cosine'" + SCHEDULES_SAID,
        ),
    ],
)
def test_a_part_of_another_kind_is_refused_with_the_choices(thing, words):
    with pytest.raises(BadParameter, match=words):
        check(thing)


def test_a_custom_solver_is_accepted_like_a_built_in_one():
    @dataclass(frozen=True)
    class Mine(algorithms.SGD):
        pass

    assert check(algorithms.FedAvg(solver=Mine())).solver == Mine()

"""A party that is refused on its own machine tells the others, in every command between real parties, and
parties with different options say what differs: real processes over a hub.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.errors import ProtocolError
from tacit.jobs.ledger_file import read_ledger_file
from tacit.jobs.vertical.psi_restart import MatchTerms, differences
from tests.cli.shell import Role, provision

SPLIT = """
[split]
epochs = 1
[parties.a]
id = "id"
label = "y"
bottom = [4]
[parties.b]
id = "id"
bottom = [4]
"""
FTL = """
[ftl]
epochs = 1
first_epochs = 1
[parties.a]
id = "id"
label = "y"
[parties.b]
id = "id"
"""


@pytest.fixture(params=["ab"])
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Role]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": range(40), "u": rng.normal(size=40), "v": rng.normal(size=40)})
    frame["y"] = np.where(frame.u > 0, "yes", "no")
    frame[["id", "u", "y"]].to_csv("a.csv", index=False)
    frame[["id", "v"]].to_csv("b.csv", index=False)
    Path("split.toml").write_text(SPLIT)
    Path("ftl.toml").write_text(FTL)
    provision(*request.param)
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    yield hub
    hub.process.terminate()
    hub.wait()


def start(hub: Role, name: str, verb: str, *words: str) -> Role:
    return Role(hub.log.parent, name, verb, *words, "--kit", f"kits/{name}")


def psi(name: str, *more: str) -> tuple[str, ...]:
    return ("psi", "--file", f"{name}.csv", "--id", "id", "--with", "b" if name == "a" else "a", *more)


REFUSED = [
    (psi("a"), ("psi", "--file", "secret-name.csv", "--id", "id"), "a file that it needs is missing"),
    (psi("a"), ("psi", "--file", "b.csv", "--id", "none"), "its data do not fit the job"),
    (psi("a"), psi("b", "--out", "b.csv"), "its job file or its options were refused there"),
    (
        ("split", "split.toml", "--file", "a.csv", "--out", "part"),
        ("split", "split.toml", "--file", "secret-name.csv", "--out", "part-b"),
        "a file that it needs is missing",
    ),
    (
        ("split", "split.toml", "--file", "a.csv", "--out", "part"),
        ("split", "none.toml", "--file", "b.csv", "--out", "part-b"),
        "its job file or its options were refused there",
    ),
    (
        ("ftl", "ftl.toml", "--file", "a.csv", "--out", "part"),
        ("ftl", "ftl.toml", "--file", "secret-name.csv", "--out", "part-b"),
        "a file that it needs is missing",
    ),
]


@pytest.mark.parametrize(
    ("waits", "refused", "why"), REFUSED, ids=[f"{r[0][0]}{i}" for i, r in enumerate(REFUSED)]
)
def test_who_waits_is_told_that_the_other_was_refused(
    hub: Role, waits: tuple[str, ...], refused: tuple[str, ...], why: str
) -> None:
    a = start(hub, "a", *waits)
    hub.wait_for("'a' is here")
    b = start(hub, "b", *refused)
    assert b.wait() == 2
    assert "Traceback" not in b.log.read_text()
    assert a.wait() == 2
    text = a.log.read_text()
    assert f"party 'b' stopped, because {why}" in text
    assert "secret" not in text
    assert "'b' stopped" in read_ledger_file("kits/a/ledger.jsonl")[-1].failed


def test_a_joint_prediction_ends_at_both_parties(hub: Role) -> None:
    both = [start(hub, n, "split", "split.toml", "--file", f"{n}.csv", "--out", f"part-{n}") for n in "ab"]
    assert [role.wait() for role in both] == [0, 0], [role.log.read_text() for role in both]
    hub.log.write_text("")  # "'a' is here" is about the next start
    a = start(hub, "a", "predict", "part-a", "--file", "a.csv", "--out", "p.csv")
    hub.wait_for("'a' is here")
    b = start(hub, "b", "predict", "part-b", "--file", "none.csv")
    assert (b.wait(), a.wait()) == (2, 2)
    assert "party 'b' stopped, because a file that it needs is missing" in a.log.read_text()
    assert not Path("p.csv").exists()


@pytest.mark.parametrize(
    ("at_a", "at_b", "differs"),
    [
        (("--receiver", "a"), ("--receiver", "b"), "receiver is {!r} here and {!r} there"),
        (("--receiver", "b"), ("--receiver", "a"), "receiver is {!r} here and {!r} there"),
        (("--reveal", "size"), ("--reveal", "both"), "reveal is {!r} here and {!r} there"),
        (("--join", "left"), ("--join", "inner"), "join is {!r} here and {!r} there"),
    ],
)
def test_different_options_are_named_at_both_parties(
    hub: Role, at_a: tuple[str, str], at_b: tuple[str, str], differs: str
) -> None:
    a, b = start(hub, "a", *psi("a", *at_a)), start(hub, "b", *psi("b", *at_b))
    assert (a.wait(), b.wait()) == (2, 2)
    assert differs.format(at_a[1], at_b[1]) in a.log.read_text()
    assert differs.format(at_b[1], at_a[1]) in b.log.read_text()
    assert all("Nothing was compared." in role.log.read_text() for role in (a, b))


@pytest.mark.parametrize(
    "words",
    [psi("a"), ("split", "split.toml", "--file", "a.csv"), ("ftl", "ftl.toml", "--file", "a.csv")],
    ids=["psi", "split", "ftl"],
)
def test_wait_limits_how_long_a_party_waits_for_the_others(hub: Role, words: tuple[str, ...]) -> None:
    alone = start(hub, "a", *words, "--wait", "0.1")
    assert alone.wait() == 2
    assert "'b' did not start within 0.1 s, so 'a' stopped." in alone.log.read_text()


def match(hub: Role, name: str, other: str) -> Role:
    return start(hub, name, "psi", "--file", "b.csv", "--id", "id", "--with", other)


@pytest.mark.parametrize("hub", ["abc"], indirect=True)
def test_who_wants_to_match_with_a_party_that_matches_with_others_is_told(hub: Role) -> None:
    """b waits for c, and answers a at once; the matching of b and c is not disturbed."""
    b, a = match(hub, "b", "c"), match(hub, "a", "b")
    assert a.wait() == 2
    assert "participants is ['a', 'b'] here and \"others than 'a'\" there" in a.log.read_text()
    c = match(hub, "c", "b")
    assert (b.wait(), c.wait()) == (0, 0), b.log.read_text()
    assert "party 'a' wants to match with 'b'" in b.log.read_text()


def test_options_that_cannot_be_read_are_refused() -> None:
    for text in ("[" * 100_000, '{"a":' * 50_000, "1", "{", "[]"):
        with pytest.raises(ProtocolError, match="party 'x' sent options that cannot be read"):
            differences("x", MatchTerms(text), {"participants": ["a"]})
    nested = json.dumps({"participants": ["a"], "reveal": json.loads("[" * 900 + "]" * 900)})
    with contextlib.suppress(ProtocolError):  # whether it can be shown depends on the depth of the stack
        assert "reveal is 'both' here" in differences(
            "x", MatchTerms(nested), {"participants": ["a"], "reveal": "both"}
        )


def test_who_starts_after_another_was_refused_is_told_at_once(hub: Role) -> None:
    hub.wait_for("listens on")
    b = start(hub, "b", "psi", "--file", "secret-name.csv", "--id", "id")
    assert b.wait() == 2
    a = start(hub, "a", *psi("a"))
    a.wait_for("party 'b' stopped with an error")
    text = a.log.read_text()
    assert a.process.poll() is None  # b may start again
    a.process.send_signal(signal.SIGINT)
    assert a.wait() == 130
    assert "because a file that it needs is missing or cannot be read (by the hub's word" in text
    assert "secret" not in text

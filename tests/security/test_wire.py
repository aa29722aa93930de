"""No bytes from outside can become code, and nobody is believed about who they are."""

from __future__ import annotations

import ast
import functools
from dataclasses import replace
from pathlib import Path

import pytest

import tacit.errors
from tacit.errors import PartyFailed
from tacit.parties import Ledger, Message
from tacit.runtimes import InProcess

SOURCE = Path(tacit.errors.__file__).parent
BANNED = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
CLAIMS = {
    "sender",
    "author",
    "identity",
    "from_",
    "from_party",
    "sent_by",
}  # fields with which a message would say who sent it


def dangers(tree: ast.AST) -> list[str]:
    """Every way in this code to turn bytes into code: 'line: what'."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            text = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if called in ("__import__", "import_module", "importlib.import_module"):
                names = text
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called in (
                "eval",
                "exec",
                "builtins.eval",
                "builtins.exec",
                "torch.load",
                "torch.jit.load",
                "np.fromstring",
                "yaml.load",
            ):
                found.append(f"{node.lineno}: {called}(…)")
            if options.get("allow_pickle", "False") != "False":
                found.append(f"{node.lineno}: {called}(allow_pickle=…)")
        found += [f"{node.lineno}: import {name}" for name in names if name.split(".")[0] in BANNED]
    return found


def claims(tree: ast.AST) -> list[str]:
    """Fields of messages that say who sent them."""
    return [
        f"{node.lineno}: {node.name}.{field.target.id}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(k.arg == "reveals" for k in node.keywords)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and field.target.id in CLAIMS
    ]


@functools.cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def test_no_module_can_turn_bytes_into_code():
    assert len(sources()) > 10
    assert {str(p.relative_to(SOURCE)): d for p, tree in sources().items() if (d := dangers(tree))} == {}


def test_no_message_says_who_sent_it():
    assert {str(p.relative_to(SOURCE)): c for p, tree in sources().items() if (c := claims(tree))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch, dill.source",
        "__import__('marshal')",
        "importlib.import_module('shelve')",
        "eval(text)",
        "exec(x)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
    ],
)
def test_the_scan_finds_what_it_looks_for(code):
    assert dangers(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "np.load(f)",
        "np.load(f, allow_pickle=False)",
        "from .pickle_free import x",
        "import json",
    ],
)
def test_the_scan_leaves_harmless_code_alone(code):
    assert not dangers(ast.parse(code))


def test_the_scan_finds_a_message_that_names_its_sender():
    assert claims(ast.parse("class Vote(Message, reveals='x'):\n    sender: str")) == ["1: Vote.sender"]


class WireVote(Message, reveals="a vote"):
    name: str


def test_a_message_is_its_connections_whatever_it_says():
    async def mallory(me):
        await me.send("server", WireVote("alice"))

    async def alice(me):
        pass

    async def server(me):
        return (await me.first(WireVote))[0]

    ledger = Ledger()
    assert (
        InProcess().run_sync({"server": server, "mallory": mallory, "alice": alice}, ledger=ledger)["server"]
        == "mallory"
    )
    assert [line.sender for line in ledger.seen] == ["mallory"]


def test_a_party_that_claims_anothers_name_is_refused():
    async def mallory(me):
        await replace(me, name="alice").send("server", WireVote("x"))

    async def other(me):
        pass

    ledger = Ledger()
    with pytest.raises(
        PartyFailed,
        match=r"party 'mallory' tried to send to 'server' as 'alice'\. A party can send only in its own name",
    ):
        InProcess().run_sync({"server": other, "mallory": mallory, "alice": other}, ledger=ledger)
    assert ledger.seen == []


def test_garbage_from_one_party_reaches_only_who_reads_it_and_is_on_record():
    async def mallory(me):
        await me.transport.deliver(me.name, "server", "", b"\x80\x04\x95garbage")

    async def honest(me):
        await me.send("server", WireVote("yes"))

    async def server(me):
        return (await me.recv("honest", WireVote)).name

    ledger = Ledger()
    assert (
        InProcess().run_sync({"mallory": mallory, "honest": honest, "server": server}, ledger=ledger)[
            "server"
        ]
        == "yes"
    )
    assert [(line.sender, line.kind, line.bytes) for line in ledger.seen if line.sender == "mallory"] == [
        ("mallory", "(unreadable)", 10)
    ]

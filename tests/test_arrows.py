"""Imports point down only: this reads every import and compares it with the design. A new package or module is
refused until it has a line here.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src" / "tacit"
ANYTHING = ("tacit",)
GROUND = ("tacit.errors", "tacit.parameters")  # everyone may stand on these
NUMERIC = ("torch", "numpy")

# What a room's or module's top-level imports may name: (of tacit, besides its own room and the ground; of
# other packages). The longest name wins.
MAY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tacit": ((), ()),  # the face: fetches names when they are used
    "tacit.errors": ((), ()),
    "tacit.parameters": ((), ()),
    "tacit.files": ((), ()),
    "tacit.own_code": ((), ()),
    "tacit.script": ((), ()),
    "tacit.parameter_shapes": ((), NUMERIC),
    "tacit.callbacks": (("tacit.files", "tacit.numbers"), ()),
    "tacit.numbers": ((), ()),
    "tacit.people": ((), ("numpy",)),
    "tacit.progress": ((), ()),
    "tacit.algorithms": ((), NUMERIC),
    "tacit.aggregate": ((), NUMERIC),
    "tacit.data": (
        (
            *("tacit.files", "tacit.progress", "tacit.crypto.exact", "tacit.protocols.sum_steps"),
            "tacit.accounting.discrete",
        ),
        NUMERIC,
    ),  # preparation is a program of exact sums, or of one sum with noise
    "tacit.data.notebook": (("tacit.stats.disclosure",), ("numpy",)),  # the rule of small counts
    "tacit.models": (("tacit.engine.layers", "tacit.engine.members"), NUMERIC),
    "tacit.engine": (("tacit.algorithms", "tacit.data", "tacit.numbers"), NUMERIC),
    "tacit.parties": (("tacit.numbers",), NUMERIC),
    "tacit.parties.codec": ((), (*NUMERIC, "msgpack")),  # the wire format; nothing else of the room needs it
    "tacit.graphs": ((), ("numpy",)),
    "tacit.transfer": ((), ("torch",)),
    "tacit.selection": ((), ("numpy",)),
    "tacit.topologies": (("tacit.graphs",), ("numpy",)),
    "tacit.audit": (
        (
            "tacit.data.federation",
            "tacit.engine.members",  # each has a loss of its own
            "tacit.report",
            "tacit.files",
            "tacit.numbers",
        ),
        NUMERIC,
    ),
    "tacit.crypto": ((), NUMERIC),  # numbers only; `cryptography` where it is used, with the extra `secagg`
    "tacit.crypto.seal": ((), ("cryptography",)),
    "tacit.crypto.triton_kernels": ((), ("triton",)),  # imported on a machine with a GPU only
    "tacit.protocols": (("tacit.parties", "tacit.crypto", "tacit.files"), NUMERIC),
    "tacit.mpc": (("tacit.parties", "tacit.crypto", "tacit.files"), NUMERIC),
    # loops for the checked mode, where numba is installed; llvmlite is a part of it
    "tacit.mpc.bit_loops": (("tacit.compiling",), ("numpy", "numba", "llvmlite")),
    "tacit.mpc.prime_loops": (("tacit.compiling",), ("numpy",)),
    "tacit.mpc.scoring": (
        ("tacit.parties", "tacit.crypto", "tacit.engine.metrics"),
        NUMERIC,
    ),  # metrics from opened sums
    # how records are compared, and how strongly a comparison speaks; tables in, numbers out
    "tacit.linkage": (("tacit.data.identifiers", "tacit.data.cells"), ("numpy",)),
    "tacit.runtimes": (("tacit.parties",), NUMERIC),
    "tacit.runtimes.certificates": ((), ("cryptography",)),  # these, and the seal, need the extra `net`
    "tacit.runtimes.kits": (("tacit.files",), ("cryptography",)),
    "tacit.runtimes.provision": (("tacit.files",), ("cryptography",)),
    "tacit.runtimes.channel": (("tacit.crypto.seal",), ("cryptography",)),
    "tacit.runtimes.local_streams": ((), ("cryptography",)),
    "tacit.runtimes.hub": ((), ("cryptography", "grpc")),
    "tacit.runtimes.hub_relay": ((), ("grpc",)),
    "tacit.runtimes.nats_relay": ((), ("cryptography",)),
    "tacit.runtimes.nats_sharing": (("tacit.files",), ("cryptography",)),
    "tacit.runtimes.nkeys": ((), ("cryptography",)),
    "tacit.runtimes.values": (("tacit.parties",), (*NUMERIC, "msgpack")),
    "tacit.runtimes.nursery": (("tacit.files", "tacit.parties"), ()),
    "tacit.runtimes.fold": (("tacit.algorithms.types",), NUMERIC),
    "tacit.runtimes.cohort": (
        (
            "tacit.algorithms",
            "tacit.aggregate",
            "tacit.data.federation",
            "tacit.data.inputs",
            "tacit.guard",
            "tacit.engine",
        ),
        NUMERIC,
    ),  # `local` for all
    "tacit.runtimes.client_states": (("tacit.algorithms.types",), NUMERIC),
    "tacit.runtimes.shared_rounds": (("tacit.algorithms.types",), NUMERIC),
    "tacit.runtimes.shared_rows": (("tacit.data.federation", "tacit.data.inputs"), NUMERIC),
    # tables in, tables out; its report is laid out like the others
    "tacit.anonymity": (
        (
            "tacit.report",
            "tacit.files",
            "tacit.accounting.discrete",
            "tacit.parties.ledger",
            "tacit.people",
            "tacit.results",
        ),
        ("numpy", "pandas"),
    ),
    "tacit.report": (("tacit.files", "tacit.numbers"), ()),  # reads run directories and nothing else
    # pages over what was written; starlette and uvicorn need the extra `ui`
    "tacit.ui": (ANYTHING, ("starlette",)),
    "tacit.runs": (("tacit.files",), ()),
    "tacit.results": (
        (
            "tacit.parties.ledger",
            "tacit.runs",
            "tacit.files",
            "tacit.numbers",
            "tacit.release.release",
            "tacit.data.pipeline",
        ),
        (),
    ),  # the last two as types, and in methods
    # a model in use: its files, scoring, export; `onnx` where it is used, with the extra `onnx`
    "tacit.release": (
        (
            "tacit.data",
            "tacit.engine.calling",  # how a model is called with its rows
            "tacit.engine.members",
            "tacit.models",
            "tacit.files",
            "tacit.runs",
            "tacit.results",
            "tacit.parties.ledger",
        ),
        NUMERIC,
    ),
    "tacit.accounting": (("tacit.numbers",), NUMERIC),
    "tacit.pace": (("tacit.algorithms.plan",), NUMERIC),  # whom a server waits for: numbers only, no parties
    "tacit.speeds": (("tacit.algorithms.plan",), NUMERIC),
    "tacit.guard": (("tacit.accounting",), NUMERIC),
    "tacit.private": (
        ("tacit.accounting", "tacit.crypto", "tacit.parties.ledger", "tacit.parties.secret"),
        NUMERIC,
    ),
    "tacit.private.pate_report": (
        ("tacit.accounting", "tacit.report"),
        ("numpy",),
    ),  # draws with the report room's pen
    "tacit.synth.report": (("tacit.report", "tacit.files"), ("numpy",)),  # draws with the report room's pen
    # tables in, tables out
    "tacit.synth": (
        (
            "tacit.parties.ledger",
            "tacit.parties.secret",
            "tacit.accounting",
            "tacit.data.cells",  # how a cell of a file is read
            "tacit.data.sentinels",  # which numbers probably mean a missing value
            "tacit.files",
            "tacit.people",
            "tacit.private",
            "tacit.results",
        ),
        (*NUMERIC, "pandas"),
    ),
    # statistics from sums over parties
    "tacit.stats": (
        (
            "tacit.accounting",
            "tacit.crypto.exact",
            "tacit.data.cells",
            "tacit.data.federation",
            "tacit.data.skews",
            "tacit.data.table_files",  # what a file writes for a missing value
            "tacit.files",
            "tacit.numbers",
            "tacit.parties.ledger",
            "tacit.parties.secret",
            "tacit.protocols.departures",  # what a program says of parties that leave
            "tacit.protocols.sum_steps",
            "tacit.report",
            "tacit.results",
        ),
        (*NUMERIC, "pandas"),
    ),
    # boosted trees: tables and sums in, trees out
    "tacit.boost": (
        (
            "tacit.accounting",
            "tacit.crypto.exact",
            "tacit.data.cells",
            "tacit.data.preparation",
            "tacit.files",
            "tacit.parties.ledger",
            "tacit.protocols.sum_steps",
            "tacit.results",
            "tacit.stats",
        ),
        (*NUMERIC, "pandas"),
    ),
    "tacit.compiling": ((), ("numba",)),  # imported where it is used, with the extra `boost` or `psi`
    "tacit.boost.compiled": (("tacit.compiling",), ("numpy",)),
    "tacit.boost.compiled_trees": (("tacit.compiling",), ("numpy",)),
    "tacit.boost.lattice_loop": (("tacit.compiling",), ()),
    "tacit.crypto.loops": (("tacit.compiling",), ("numpy",)),
    "tacit.boost.encrypted_rows": (("tacit.crypto.bfv",), ("numpy",)),
    # those that compose
    "tacit.jobs": (ANYTHING, NUMERIC),
    "tacit.jobs.stats": (ANYTHING, (*NUMERIC, "pandas")),
    "tacit.jobs.boost": (ANYTHING, (*NUMERIC, "pandas")),
    "tacit.testing": (ANYTHING, NUMERIC),
    "tacit.cli": (ANYTHING, ()),
    "tacit.__main__": (ANYTHING, ()),
    "tacit.config": (ANYTHING, NUMERIC),
    "tacit.config.toml": (("tacit.runs",), ()),
}

# Imports inside functions that go where a top-level import may not, each with its reason.
EXCEPTIONS = {
    (
        "tacit.data.federation",
        "tacit.report.figures",
    ): "Federation.plot() draws itself; whoever does not plot loads no drawing",
    (
        "tacit.parties.conformance",
        "tacit.runtimes.inprocess",
    ): "check_protocol's default runtime; it takes any other",
    (
        "tacit.mpc.operators",
        "tacit.runtimes.inprocess",
    ): "each operator of a shared tensor runs its parties' programs in one process",
    (
        "tacit.results",
        "tacit.report.page",
    ): "Result.report() writes the page; a result without a report loads none",
    ("tacit.results", "tacit.report.records"): "as above",
    ("tacit.results", "tacit.report.result"): "as above",
    ("tacit.results", "tacit.report.card"): "as above",
    ("tacit.results", "tacit.release.score"): "Result.predict(); a result that is not in use loads none",
    ("tacit.results", "tacit.release.export"): "as above",
    ("tacit.results", "tacit.release.audited"): "as above",
    ("tacit.results", "tacit.data.table_files"): "JobResult.save() writes a table; others load no reader",
}
COMPOSE = ("tacit.jobs", "tacit.testing", "tacit.cli", "tacit.ui", "tacit.__main__", "tacit.config")
# Whose names are fetched with import_module, which this test cannot read; the nursery fetches a user's
# program.
LAZY_FACES = (
    "tacit",
    "tacit.parties",
    "tacit.runtimes",
    "tacit.stats",
    "tacit.audit",
    "tacit.boost",
    "tacit.cli.verbs",
    "tacit.runtimes.nursery",
    "tacit.jobs.stats.queries",  # the module of a verb
    "tacit.jobs.stats.contract",  # builds the program that a party's own contract names
)


class Arrow(NamedTuple):
    source: str
    target: str
    place: str  # "top", "function" or "typing"


def modules() -> dict[str, Path]:
    made = {}
    for file in sorted(SRC.rglob("*.py")):
        parts = ("tacit", *file.relative_to(SRC).with_suffix("").parts)
        made[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return made


MODULES = modules()


def arrows_of(name: str, source: str, is_package: bool) -> Iterator[Arrow]:
    home = name if is_package else name.rpartition(".")[0]

    def walk(node: ast.AST, place: str) -> Iterator[Arrow]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # holds no statement, so no import
                continue
            here = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                here = "function"
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                here = "typing"
            elif isinstance(child, ast.Import):
                yield from (Arrow(name, alias.name, here) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    up = home.split(".")[: len(home.split(".")) - child.level + 1]
                    base = ".".join([*up, *([child.module] if child.module else [])])
                for alias in child.names:
                    yield Arrow(
                        name, f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base, here
                    )
            yield from walk(child, here)

    yield from walk(ast.parse(source), "top")


@functools.cache  # when a test asks: every worker imports this file, and one worker needs them
def all_arrows() -> list[Arrow]:
    return [
        a
        for name, file in MODULES.items()
        for a in arrows_of(name, file.read_text(encoding="utf-8"), file.name == "__init__.py")
        if (a.source, a.place) != ("tacit", "typing")
    ]  # the face tells type checkers what it will fetch


def within(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def rule_of(name: str) -> str:
    return max((room for room in MAY if within(name, (room,))), key=len)


def room_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def wrong(arrow: Arrow) -> str | None:
    """Why this import may not be, or None."""
    source, target, place = arrow
    inside, outside = MAY[rule_of(source)]
    top = target.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top == "tacit":
        fine = (
            within(target, GROUND)
            or (room_of(target) == room_of(source) and room_of(source) != "tacit")
            or within(target, inside)
            or (place == "function" and (source, target) in EXCEPTIONS)
        )
        return (
            None
            if fine
            else f"{source} imports {target} ({place}): its room may import "
            f"{', '.join(inside) or 'no other room'}."
        )
    if place == "top":
        return (
            None
            if top in outside
            else f"{source} imports {top} at the top: only {', '.join(outside) or 'the standard library'} "
            "may stand there."
        )
    return None


def test_every_import_points_down():
    broken = [words for arrow in all_arrows() if (words := wrong(arrow))]
    assert not broken, "\n" + "\n".join(broken)


def test_every_module_has_a_rule():
    """A new package gets a line in MAY before its first import; the rule of the public face is its own."""
    homeless = [name for name in MODULES if name != "tacit" and rule_of(name) == "tacit"]
    assert not homeless, (
        f"{homeless}: add a line to MAY in {Path(__file__).name} that says what they may import"
    )
    assert not [room for room in MAY if room not in MODULES], "a rule for what is not there"


def test_every_exception_is_still_needed():
    used = {(a.source, a.target) for a in all_arrows() if a.place == "function"}
    assert set(EXCEPTIONS) <= used, f"no longer imported: {set(EXCEPTIONS) - used}"


def test_only_the_composers_may_import_everything():
    assert {room for room, (inside, _) in MAY.items() if inside == ANYTHING} == {
        *COMPOSE,
        "tacit.jobs.stats",
        "tacit.jobs.boost",
    }


def test_nobody_below_imports_a_composer():
    up = [a for a in all_arrows() if within(a.target, COMPOSE) and not within(a.source, COMPOSE)]
    assert not up, up


def test_other_packages_are_declared():
    """What is imported inside functions is a dependency or an extra of pyproject.toml, so that an install
    line exists for it.
    """
    project = tomllib.loads((SRC.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name != "dev" for line in lines),
    ]
    names = {"".join(c for c in d.split(">")[0].split("[")[0] if c not in " ") for d in declared}
    imports = {
        "scikit-learn": "sklearn",
        "pillow": "PIL",
        "tomli-w": "tomli_w",
        "grpcio": "grpc",
        "dp-accounting": "dp_accounting",
        "mlflow-skinny": "mlflow",
        "presidio-analyzer": "presidio_analyzer",
    }
    with_others = {"triton", "llvmlite"}  # a dependency of its builds for CUDA, and of numba
    known = {imports.get(name, name) for name in names} | {"tacit", *with_others, *sys.stdlib_module_names}
    strangers = {(a.source, a.target) for a in all_arrows() if a.target.split(".")[0] not in known}
    assert not strangers


def test_names_are_fetched_behind_the_readers_back_only_in_the_faces():
    for name, file in MODULES.items():
        hidden = any(word in file.read_text(encoding="utf-8") for word in ("import_module(", "__import__("))
        # approved code of a user is imported by its name: it is not a part of tacit
        assert not hidden or name in LAZY_FACES or name in ("tacit.cli.doctor", "tacit.own_code"), (
            f"{name} imports by a string, which no test can read"
        )


@pytest.mark.parametrize("level", ["module", "room"])
def test_there_is_no_cycle(level):
    """Top-level imports only: what a function imports is loaded when all modules are."""
    graph: dict[str, set[str]] = {}
    for a in all_arrows():
        if a.place == "top" and a.target.startswith("tacit."):
            source, target = (
                (a.source, a.target) if level == "module" else (room_of(a.source), room_of(a.target))
            )
            if source != target:
                graph.setdefault(source, set()).add(target)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    assert len(done) > 10


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        (
            "tacit.algorithms.fedavg",
            "from ..data import skews",
            "tacit.algorithms.fedavg imports tacit.data.skews",
        ),
        ("tacit.algorithms.fedavg", "import pandas", "tacit.algorithms.fedavg imports pandas at the top"),
        (
            "tacit.aggregate.mean",
            "def f():\n    from ..algorithms import plan",
            "tacit.aggregate.mean imports tacit.algorithms.plan",
        ),
        (
            "tacit.protocols.rounds",
            "from ..runtimes import inprocess",
            "tacit.protocols.rounds imports tacit.runtimes.inprocess",
        ),
        (
            "tacit.runtimes.inprocess",
            "from ..algorithms.types import State",
            "tacit.runtimes.inprocess imports tacit.algorithms.types",
        ),
        ("tacit.runtimes.cohort", "from ..jobs import train", "tacit.runtimes.cohort imports tacit.jobs"),
        (
            "tacit.data.federation",
            "from ..report import figures",
            "tacit.data.federation imports tacit.report.figures (top)",
        ),
        ("tacit.parties.party", "import msgpack", "tacit.parties.party imports msgpack at the top"),
        ("tacit.report.page", "from .. import runs", "tacit.report.page imports tacit.runs"),
    ],
)
def test_an_arrow_that_points_up_is_seen(module, line, words):
    found = [w for a in arrows_of(module, line, False) if (w := wrong(a))]
    assert len(found) == 1
    assert found[0].startswith(words)


BARE = """
import sys

BLOCKED = {"msgpack", "pandas", "rich", "safetensors", "sklearn", "scipy", "pyarrow", "PIL", "tomli_w", "cryptography", "blake3"}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import tacit
fed = tacit.data.gaussian_blobs(rows=200, seed=0).split(4, skew=tacit.data.Dirichlet(0.5), seed=0)
for engine in ("stack", "each"):
    for kind in (tacit.algorithms.FedAvg, tacit.algorithms.Scaffold):
        run = tacit.train(fed, model="logistic", algorithm=kind(lr=0.5), rounds=3, per_round=3, engine=engine)
        assert run.metrics["accuracy"] > 0.5, run.metrics
        assert run.history[-1]["bytes_up"] > 0
        assert "server" in str(run.ledger)
both = tacit.compare(fed, model="logistic", algorithms=[tacit.algorithms.FedAvg(lr=0.5)], rounds=2)
assert len(both.results) >= 1
assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
print("trained")
"""


def test_a_machine_with_torch_and_numpy_alone_can_train():
    """The numeric path on a bare GPU machine: everything else is refused by the importer, and `tacit.train`
    without `out=` still works.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", BARE],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.strip() == "trained"

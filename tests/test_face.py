"""What `import tacit` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import tacit

HEAVY = ("torch", "numpy", "pandas", "rich", "msgpack", "safetensors", "sklearn", "tomli_w")


def loaded(code: str) -> set[str]:
    """The packages a fresh interpreter has loaded after this code."""
    script = f"import sys\n{code}\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
        ).stdout.split()
    )


def test_the_public_names():
    """The names others call; a removal shows here, and an addition is made on purpose."""
    assert sorted(tacit.__all__) == [
        "Comparison",
        "Hierarchy",
        "InProcess",
        "Ledger",
        "Processes",
        "PsiPolicy",
        "Regression",
        "Result",
        "Script",
        "TacitError",
        "__version__",
        "accounting",
        "aggregate",
        "algorithms",
        "align",
        "anonymity",
        "anonymize",
        "anonymize_again",
        "audit",
        "boost",
        "callbacks",
        "client",
        "compare",
        "contribution",
        "cut",
        "data",
        "fedmd",
        "ftl",
        "gossip",
        "graphs",
        "guard",
        "infer",
        "join",
        "link",
        "load",
        "models",
        "mpc",
        "pace",
        "pate",
        "plan",
        "private",
        "psi",
        "regress",
        "risk",
        "run_programs",
        "selection",
        "speeds",
        "splitnn",
        "stats",
        "study",
        "synth",
        "synthesize",
        "tabulate",
        "testing",
        "train",
        "train_private",
        "transfer",
    ]
    assert dir(tacit) == sorted(tacit.__all__)


@pytest.mark.parametrize("name", tacit.__all__)
def test_every_public_name_resolves(name):
    assert getattr(tacit, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tacit' has no attribute 'trian'"):
        tacit.trian  # noqa: B018


def test_names_are_what_they_say():
    assert callable(tacit.train)
    assert callable(tacit.compare)
    assert issubclass(tacit.TacitError, Exception)
    for room in ("aggregate", "algorithms", "data", "models", "testing"):
        assert isinstance(getattr(tacit, room), types.ModuleType)


@pytest.mark.parametrize("room", ["aggregate", "algorithms", "data", "testing"])
def test_every_name_in_a_rooms_all_resolves(room):
    module = getattr(tacit, room)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    assert sorted(set(module.__all__)) == sorted(module.__all__), "a name stands twice"


def test_importing_tacit_loads_nothing_heavy():
    assert not loaded("import tacit; tacit.TacitError; tacit.Ledger; tacit.__version__") & set(HEAVY)


def test_a_room_is_loaded_when_it_is_used():
    assert "torch" in loaded("import tacit; tacit.algorithms")


def test_the_command_lines_help_loads_nothing_heavy():
    code = (
        "import contextlib, io, tacit.cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as told:\n"
        "    tacit.cli.main(['--help'])\n"
        "assert 'usage' in told.getvalue()"
    )
    assert not loaded(code) & set(HEAVY)


def test_the_package_is_typed_and_has_one_version():
    import tomllib

    package = Path(tacit.__file__).parent
    assert (package / "py.typed").exists()
    project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]  # stated once, in tacit/__init__.py

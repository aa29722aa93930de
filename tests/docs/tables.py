"""The tables of the reference pages, generated from the code. A test compares the pages with them.

`python -m tests.docs.tables` writes them into the pages. In a page a table is between `<!-- table: NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tacit
from tacit import aggregate, algorithms, data, errors, guard, models, pace, speeds
from tacit.audit import poisoning
from tacit.config.boost import BoostConfig
from tacit.config.compare import CompareConfig
from tacit.config.infer import InferParty, InferSettings
from tacit.config.join_boost import JoinBoostConfig
from tacit.config.pate import PateSettings
from tacit.config.private import PrivateConfig
from tacit.config.train import OPTIONS
from tacit.config.vertical import (
    JoinParty,
    JoinSettings,
    LinkParty,
    LinkSettings,
    RegressParty,
    RegressSettings,
    SplitParty,
    SplitSettings,
    TransferParty,
    TransferSettings,
)
from tacit.config.vertical_boost import BoostParty, VerticalBoostConfig
from tacit.config.vertical_woe import VerticalWoeConfig, WoeParty
from tacit.config.woe import WoeConfig
from tacit.parameters import allowed, describe

from .pages import PAGES

MARK = re.compile(r"(<!-- table: ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return (
        "\n".join(
            "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in row) + " |" for row in cells
        )
        + "\n"
    )


def parameters(cls: type) -> str:
    """A constructor's fields: those declared with their limits, and the few that check themselves."""
    declared = {name.split("=")[0]: (name, allowed, doc) for name, allowed, doc in describe(cls)}
    rows = []
    for f in dataclasses.fields(cls):
        name, allowed, doc = declared.get(
            f.name,
            (f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}", f"`{f.type}`", ""),
        )
        rows.append([f"`{short(name)}`", allowed, doc])
    return grid(("parameter", "may be", "is"), rows) if rows else "No parameters.\n"


def short(text: str) -> str:
    """solver=SGD(), without all that is in it."""
    return re.sub(r"\((.*)\)$", "()", text) if text.startswith("solver=") else text


def several(members: dict[str, type]) -> str:
    return "\n".join(
        f"### {name}\n\n{as_markdown(inspect.getdoc(cls) or '')}\n\n{parameters(cls)}"
        for name, cls in members.items()
    )


def as_markdown(text: str) -> str:
    """Paragraphs that are laid out by spaces keep their layout."""
    return "\n\n".join(f"```\n{p}\n```" if "  " in p else p for p in text.split("\n\n"))


def arguments(function: Callable[..., Any]) -> str:
    """A function's arguments with their types and defaults, as the code has them."""
    rows = []
    for p in inspect.signature(function).parameters.values():
        if p.name != "self":
            default = "" if p.default is inspect.Parameter.empty else f"`{p.default!r}`"
            rows.append([f"`{p.name}`", f"`{p.annotation}`", default])
    return grid(("argument", "type", "default"), rows)


RUN = {
    "fed": "the federation: `dataset.split(10)` or `dataset.by(column)`",
    "feds": "a federation, or a list of them: a column of the table each",
    "out": "the run directory; None keeps the run in memory",
    "resume": "continue the run in `out`",
    "data_job": "the `[data]` table to keep in `job.toml`; the command line sets it",
    "watch": "called with every event as it is written",
    "on": '"ray" or "ray://HOST:10001": train the cells on the workers of a Ray cluster',
    "cpus": "cores of each worker of the cluster (default: 1)",
    "gpus": "GPUs of each worker of the cluster; 0.25 runs four on one (default: one where runs use a GPU)",
    "release": '"audited": attack the run when it has ended, and export its model only if it passed',
}


def options(function: Callable[..., Any], declared: dict[str, Any]) -> str:
    """The arguments of a verb: type and default from its signature, meaning from the declaration."""
    rows = []
    for p in inspect.signature(function).parameters.values():
        default = "" if p.default is inspect.Parameter.empty else f"`{p.default!r}`"
        f = declared.get(p.name)
        meaning = RUN[p.name] if f is None else f.metadata["doc"]
        if f is not None and f.metadata["kind"] != "component":
            meaning += f" ({allowed(f.metadata)})"
        rows.append([f"`{p.name}`", f"`{p.annotation}`", default, meaning])
    return grid(("argument", "type", "default", "meaning"), rows)


def data_sets() -> str:
    rows = []
    for name, make in data.ALL.items():
        first = (inspect.getdoc(make) or "").split("\n")[0]
        options = ", ".join(
            f"`{p.name}={p.default!r}`" if p.default is not p.empty else f"`{p.name}`"
            for p in inspect.signature(make).parameters.values()
        )
        rows.append([f"`{name}`", first, options or "none"])
    return grid(("name", "what it is", "options"), rows)


def error_tree() -> str:
    tree = re.search(r"^TacitError\n(?:[├│└].*\n)+", errors.__doc__ or "", re.MULTILINE)
    assert tree is not None, "errors.py no longer draws its tree"
    return "```\n" + tree[0] + "```\n"


def keys(*classes: type) -> str:
    """The keys of tables of a job file, as their dataclasses declare them."""
    rows = []
    for f in (f for cls in classes for f in dataclasses.fields(cls)):
        plain = not f.metadata or f.metadata["kind"] == "component"
        meaning = f.metadata.get("doc", "") + ("" if plain else f" ({allowed(f.metadata)})")
        default = "" if f.default is dataclasses.MISSING else f"`{f.default!r}`"
        rows.append([f"`{f.name}`", default, meaning])
    return grid(("key", "default", "meaning"), rows)


def members(result: type) -> str:
    """The public fields, properties and methods of a result."""
    rows = [[f"`{f.name}`", f"`{f.type}`"] for f in dataclasses.fields(result)]
    own = {n: v for cls in reversed(result.__mro__[:-1]) for n, v in vars(cls).items()}
    rows += [[f"`{n}`", "property"] for n, v in own.items() if isinstance(v, property)]
    methods = [(n, v) for n, v in own.items() if inspect.isfunction(v) and not n.startswith("_")]
    rows += [
        [f"`{n}{inspect.signature(v)}`".replace("self, ", "").replace("'", ""), "method"] for n, v in methods
    ]
    return grid(("name", "type"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "train": lambda: options(tacit.train, OPTIONS),
    "compare": lambda: options(tacit.compare, CompareConfig.options() | OPTIONS),
    "private": lambda: keys(PrivateConfig),
    "boost": lambda: keys(BoostConfig),
    "vertical-boost-job": lambda: keys(VerticalBoostConfig),
    "vertical-boost-party": lambda: keys(BoostParty),
    "woe": lambda: keys(WoeConfig),
    "vertical-woe-job": lambda: keys(VerticalWoeConfig),
    "vertical-woe-party": lambda: keys(WoeParty),
    "pate": lambda: keys(PateSettings),
    "split-job": lambda: keys(SplitSettings),
    "split-party": lambda: keys(SplitParty),
    "ftl-job": lambda: keys(TransferSettings),
    "infer-job": lambda: keys(InferSettings),
    "infer-party": lambda: keys(InferParty),
    "regress-job": lambda: keys(RegressSettings),
    "regress-party": lambda: keys(RegressParty),
    "join-job": lambda: keys(JoinSettings),
    "join-party": lambda: keys(JoinParty),
    "join-boost": lambda: keys(JoinBoostConfig),
    "link-job": lambda: keys(LinkSettings),
    "link-party": lambda: keys(LinkParty),
    "ftl-party": lambda: keys(TransferParty),
    "result": lambda: members(tacit.Result),
    "comparison": lambda: members(tacit.Comparison),
    "algorithms": lambda: several(algorithms.ALL),
    "parts": lambda: several(algorithms.PARTS),
    "paces": lambda: several(pace.ALL),
    "staleness": lambda: several(pace.staleness.ALL),
    "speeds": lambda: several(speeds.ALL),
    "aggregates": lambda: several(aggregate.ALL),
    "attacks": lambda: several({k.__name__: k for k in poisoning.ALL.values()}),
    "skews": lambda: several(data.SKEWS),
    "models": lambda: several(models.ALL),
    "datasets": data_sets,
    "split": lambda: arguments(data.Dataset.split),
    "by": lambda: arguments(data.Dataset.by),
    "from_arrays": lambda: arguments(data.from_arrays),
    "from_torch": lambda: arguments(data.from_torch),
    "from_huggingface": lambda: arguments(data.from_huggingface),
    "from_parquet_files": lambda: arguments(data.from_parquet_files),
    "from_csv": lambda: arguments(data.from_csv),
    "recipe": lambda: parameters(data.Recipe),
    "errors": error_tree,
    "guards": lambda: several(
        {**guard.ALL, "Laplace": guard.Laplace, "RandomizedResponse": guard.RandomizedResponse}
    ),
}


def filled(text: str) -> str:
    return MARK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main(pages: Iterable[Path] = PAGES) -> None:
    for page in pages:
        old = page.read_text()
        if (new := filled(old)) != old:
            page.write_text(new)


if __name__ == "__main__":
    main()

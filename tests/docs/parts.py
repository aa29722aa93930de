"""The parts of a page that need nothing of each other: they are tested side by side.

Two blocks belong to one part if the later one reads a name that the earlier one binds, or both name the same
file or folder. Imports bind nothing here: every part runs those of the blocks before it.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator

from .pages import Block

FILE = re.compile(r"(?!examples/)[\w./-]*(?:/[\w./-]*|\.[a-z]\w*)")


def parts(page: list[Block]) -> list[list[Block]]:
    """The blocks that run, in groups; a `text` block follows its snippet."""
    groups: list[list[Block]] = []
    names: list[set[str]] = []  # that the blocks of a group bind, and the files they name
    everywhere = set().union(*(_files(block) for block in page))
    last: list[Block] | None = None
    for block in page:
        if block.kind == "text":
            if last is not None:
                last.append(block)
        elif block.words in (("python",), ("console",)) or (block.is_file):
            files = {f"file {word}" for word in _words(block) & everywhere}
            joined = [k for k, bound in enumerate(names) if bound & (_reads(block) | files)]
            last = [*sorted((b for k in joined for b in groups[k]), key=lambda b: b.line), block]
            bound = set().union(*(names[k] for k in joined), files, _binds(block))
            groups = [g for k, g in enumerate(groups) if k not in joined] + [last]
            names = [n for k, n in enumerate(names) if k not in joined] + [bound]
    return groups


def imports(block: Block) -> str:
    """The import statements of a snippet."""
    return "\n".join(
        ast.unparse(line)
        for line in ast.parse(block.code).body
        if isinstance(line, ast.Import | ast.ImportFrom)
    )


def _nodes(block: Block) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(block.code)) if block.words == ("python",) else iter(())


def _reads(block: Block) -> set[str]:
    return {n.id for n in _nodes(block) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _binds(block: Block) -> set[str]:
    stored = {n.id for n in _nodes(block) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.name for n in _nodes(block) if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _commands(block: Block) -> list[list[str]]:
    lines = block.code.splitlines() if block.kind == "console" else []
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ tacit")]


def _words(block: Block) -> set[str]:
    """Whatever may name a file: strings of a snippet or a TOML file, words of a command. The first folder."""
    words = {n.value for n in _nodes(block) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    words |= {word for command in _commands(block) for word in command}
    if block.is_file:
        words |= {*block.words[1:], *re.findall(r'"([^"\n]*)"', block.code)}
    return {word.rpartition("=")[2].partition("/")[0] for word in words}


def _files(block: Block) -> set[str]:
    """The names in a block that look like files, and what stands behind an option or `out=`."""
    words = {word for command in _commands(block) for word in command}
    options = {
        word
        for command in _commands(block)
        for option, word in itertools.pairwise(command)
        if option[0] == "-"
    }
    options |= {
        n.value.value
        for n in _nodes(block)
        if isinstance(n, ast.keyword) and n.arg == "out" and isinstance(n.value, ast.Constant)
    }
    words |= {n.value for n in _nodes(block) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    words |= {*block.words[1:]}
    found = options | {word for word in words if FILE.fullmatch(word)}
    return {str(word).partition("/")[0] for word in found} - {""}

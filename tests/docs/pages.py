"""The documentation as data: its pages, their code blocks, links and headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


class Block(NamedTuple):
    """A fenced block. `words` are the words after the three backticks: `python`, `toml job.toml`,
    `python script.py`, `console`, `text`.
    """

    words: tuple[str, ...]
    code: str
    line: int  # of the file, where the code begins

    @property
    def kind(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def is_file(self) -> bool:
        """Whether the reader writes it into a file."""
        return self.kind in ("toml", "python") and len(self.words) > 1


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    words: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```") and inside is None:
            inside, words, first = [], tuple(line[3:].split()), number + 1
        elif line.startswith("```") and inside is not None:
            found.append(Block(words, "\n".join(inside) + "\n", first))
            inside = None
        elif inside is not None:
            inside.append(line)
    if inside is not None:
        raise ValueError(f"the block that begins in line {first - 1} has no end")
    return found


def prose(text: str) -> str:
    """The page without its code blocks and its inline code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """The names a link may end in, made from headings as GitHub makes them."""
    kept = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-")
        for h in re.findall(r"^#+ (.+)$", kept, flags=re.MULTILINE)
    }


def alike(shown: str, printed: str) -> bool:
    """The same words in the same order, and numbers that are nearly the same: another processor rounds
    otherwise. A line of `…` skips the rest.
    """
    a, b = _tokens(shown), _tokens(printed)
    if "…" in shown.splitlines():
        a = a[: len(_tokens(f"\n{shown}".split("\n…")[0]))]
        b = b[: len(a)]
    return len(a) == len(b) and all(x == y or _near(x, y) for x, y in zip(a, b))


def _tokens(text: str) -> list[str]:
    return re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?|[^\W\d]+|[^\w\s]", text)


def _near(x: str, y: str) -> bool:
    try:
        p, q = float(x.replace(",", "")), float(y.replace(",", ""))
    except ValueError:
        return False
    return abs(p - q) <= max(0.03, 0.1 * abs(p))

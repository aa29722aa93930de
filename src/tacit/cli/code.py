"""tacit code: the digest of code that a job between real parties names, to approve it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .verbs import Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "code",
        _code,
        "Print the digest of your own code's source, as jobs between real parties and policy.toml name it. "
        "Nothing is run.",
        arg("name", metavar="PACKAGE.MODULE:NAME", help="such as fedexp:FedExP"),
        arg("--kit", metavar="DIR", help="your start kit, if the code lies in its folder code/"),
    )


def _code(args: Any) -> Answer:
    from ..own_code import find_digest

    folder = None if args.kit is None else Path(args.kit) / "code"
    digest = find_digest(args.name, () if folder is None or not folder.is_dir() else (folder,))
    lines = [
        "in the job file:",
        f'  name = "{args.name}"',
        f'  digest = "{digest}"',
        "in KIT/policy.toml, if you have read the code and approve it:",
        "  [code]",
        f'  "{args.name}" = "{digest}"',
    ]
    return answer({"name": args.name, "digest": digest}, lines)

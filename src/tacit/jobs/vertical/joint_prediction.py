"""One party of a joint prediction with its kit: the same for split networks, regressions and trees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...data.table_files import check_table_name
from ...files import check_new
from ..kit_run import request_of_verb, run_with_kit, telling
from .split_parts import check_writable

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

NO_READING: Mapping[str, Any] = MappingProxyType({})  # separator, decimal and encoding: none is given


def check_output(out: str | Path, force: bool) -> None:
    """Raise if predictions cannot be written to `out`."""
    check_writable(check_table_name(check_new(out, force), "predict: --out ").parent)


def predict_with_kit(
    kit: Kit,
    program: Callable[..., Any],
    writer: str,
    peers: Iterable[str],
    folder: str | Path,
    file: str | Path | None,
    out: str | Path,
    *,
    patience: float,
    force: bool,
    **options: Any,
) -> dict[str, Any]:
    """Run one party over the federation's hub; `writer` is the party that gets the predictions."""
    if writer == kit.name:
        with telling(kit):
            check_output(out, force)
    run = functools.partial(
        program,
        folder=str(folder),
        file=str(file or ""),
        out=str(out),
        kit=str(kit.directory or ""),
        **options,
    )
    peers = list(peers)
    request = request_of_verb("predict", kit, peers, receiver=writer)
    result, ledger = run_with_kit("predict", kit, run, patience, peers, request=request)
    return {"party": kit.name, **result, "ledger": ledger.to_dict()}

"""Verbs over different columns of the same people (regress, join): as one party, or with all of them here."""

from __future__ import annotations

from typing import Any

from ..errors import BadParameter
from .split import kit_of, runtime
from .verbs import reading_of


def run_vertical_job(args: Any, verb: str, deployed: Any, parts: str) -> dict[str, Any]:
    """Run a job by the functions of `deployed` (take_part, run_here). `parts`: what --out is for."""
    from ..parties.ledger import Ledger

    if args.kit is not None:
        if args.processes:
            raise BadParameter(
                f"{verb}: --processes runs all parties here, --kit runs one. Give only one of the two."
            )
        kit = kit_of(args.kit, f"tacit {verb} --kit")
        found: dict[str, Any] = deployed.take_part(
            kit, args.job, args.file, args.out, args.patience, args.wait, reading=reading_of(args)
        )
        return found
    if args.out is None or args.file is not None:
        raise BadParameter(
            f"{verb}: without a kit all parties run here, with the files of the job. Give --out for their "
            f"{parts} and no --file, or give --kit."
        )
    ledger = Ledger()
    value: dict[str, Any] = deployed.run_here(
        args.job, args.out, runtime(args.processes, f"tacit {verb} --processes"), ledger, reading_of(args)
    )
    return value | {"ledger": ledger.to_dict()}

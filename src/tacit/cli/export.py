"""tacit export: write the model of a run for other programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .verbs import FORCE, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "export",
        _export,
        "Write the model of a run for other programs: ONNX with the table's preparation, or torch.export.",
        arg("run", help="the directory of a run, or of a party's model"),
        arg("--out", required=True, metavar="FILE", help="model.onnx or model.pt2; the ending is the format"),
        arg(
            "--encoded",
            action="store_true",
            help="without the preparation: the input is an encoded row (a .pt2 file is always like this)",
        ),
        FORCE,
    )


def _export(args: Any) -> Answer:
    from ..release.audited import check_released
    from ..release.export import export
    from ..release.release import read_model

    check_released(args.run)
    release, module = read_model(args.run)
    path = export(release, module, args.out, encoded=args.encoded, force=args.force)
    return answer({"run": args.run, "out": str(path)}, [str(path)])

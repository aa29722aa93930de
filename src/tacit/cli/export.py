"""tacit export: write the model of a run for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter
from .verbs import FORCE, Answer, answer, arg

TRACKERS = ("mlflow", "tensorboard", "wandb")


def add(verb: Callable[..., Any]) -> None:
    verb(
        "export",
        _export,
        "Write the model of a run for other programs (ONNX with the table's preparation, torch.export), or "
        "its records to a tracker (--to).",
        arg("run", help="the directory of a run, or of a party's model"),
        arg(
            "--out",
            metavar="FILE",
            help="model.onnx or model.pt2; the ending is the format. With --to: a folder for tensorboard "
            "(default: tensorboard in the run) or for offline files of wandb",
        ),
        arg(
            "--to", choices=TRACKERS, help="send settings and records of every round to this tracker instead"
        ),
        arg("--project", default="tacit", help="with --to wandb: its project (default: tacit)"),
        arg(
            "--encoded",
            action="store_true",
            help="without the preparation: the input is an encoded row (a .pt2 file is always like this)",
        ),
        FORCE,
    )


def _export(args: Any) -> Answer:
    if args.to is not None:
        return _track(args)
    if args.out is None:
        raise BadParameter("export: give --out model.onnx or model.pt2, or --to with a tracker.")
    from ..release.audited import check_released
    from ..release.export import export
    from ..release.release import read_model

    check_released(args.run)
    release, module = read_model(args.run)
    path = export(release, module, args.out, encoded=args.encoded, force=args.force)
    return answer({"run": args.run, "out": str(path)}, [str(path)])


def _track(args: Any) -> Answer:
    if args.encoded or args.force:
        raise BadParameter("export: --encoded and --force are for a model. Leave them out with --to.")
    from ..jobs.track import open_tracker, replay
    from ..report import read_run

    run = Path(args.run)
    read_run(run)  # before a tracker is asked for a new run
    rounds = replay(run, open_tracker(args.to, run, args.out, args.project))
    return answer({"run": args.run, "to": args.to, "rounds": rounds}, [f"{rounds} rounds sent to {args.to}"])

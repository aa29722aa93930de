"""Write the records of a finished or running run to a tracker, as the callbacks do during a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..callbacks import Callback, MLflow, TensorBoard, WandB
from ..errors import BadParameter
from ..report.records import read_run
from ..runs import decode_nonfinite

if TYPE_CHECKING:
    from torch import nn

TRACKERS = ("mlflow", "tensorboard", "wandb")


def open_tracker(name: str, run: Path, folder: str | Path | None = None, project: str = "tacit") -> Callback:
    """Return the callback of a tracker. `folder` is where TensorBoard's or W&B's offline files go."""
    if name == "tensorboard":
        return TensorBoard(folder or run / "tensorboard")
    if name == "mlflow":
        if folder is not None:
            raise BadParameter(
                "export: --out is for tensorboard and wandb. MLflow's place is MLFLOW_TRACKING_URI."
            )
        return MLflow(run_name=run.resolve().name)
    if name == "wandb":
        more: dict[str, Any] = {} if folder is None else {"dir": str(folder), "mode": "offline"}
        return WandB(project=project, name=run.resolve().name, **more)
    raise BadParameter(f"export: --to is {name!r}; it must be one of {', '.join(TRACKERS)}.")


def replay(run: str | Path, tracker: Callback) -> int:
    """Send the job and every round of a run to a tracker; return how many rounds."""
    record = read_run(run)
    rounds = [decode_nonfinite({**e, "kind": "round"}) for e in record.rounds]
    tracker.on_start(record.job)
    try:
        for event in rounds:
            tracker.on_round_end(
                {k: v for k, v in event.items() if k != "kind"},
                cast("nn.Module", None),  # trackers read the record only
            )
    finally:
        tracker.on_end(None)
    return len(rounds)

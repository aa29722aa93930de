"""The options of `tacit.train_private`, declared once, and the job files of `tacit train-private`.

    [data]     name = "digits", or path = "patients.csv" and label = "ill"
    [model]    name = "mlp", hidden = [64]
    [private]  epsilon = 3.0, delta = 1e-5, epochs = 20, …      the options below

TOML has no None: where None is allowed, write "none".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import models
from ..errors import BadJob
from ..parameters import check, choice, component, from_fields, real, whole
from ..private.dpsgd import DPFTRL, DPSGD
from . import toml
from .job import Job, from_tables, source
from .train import keep

_DPSGD = {f.name: f for f in dataclasses.fields(DPSGD)}


def _as_dpsgd(name: str) -> Any:
    """Declare an option as `private.DPSGD` does."""
    return dataclasses.field(default=_DPSGD[name].default, metadata=_DPSGD[name].metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateConfig:
    """The options of training on one holder's rows with differential privacy."""

    epsilon: float | None = _as_dpsgd("epsilon")
    delta: float = _as_dpsgd("delta")
    epochs: int = whole(10, least=1, doc="passes over the rows")
    clip: float | None = _as_dpsgd("clip")
    batch_size: int | None = whole(
        None, least=1, none="256, or a quarter of the rows", doc="expected rows in a step"
    )
    lr: float | None = real(None, above=0, none="0.5 for sgd, 0.005 for adam", doc="learning rate")
    momentum: float = real(0.0, least=0, doc="momentum of sgd")
    optimizer: str = choice("sgd", ("sgd", "adam"), doc="adam is DP-Adam")
    clipping: str = _as_dpsgd("clipping")
    sampling: str = choice(
        "poisson",
        ("poisson", "shuffle", "fixed", "order"),
        doc="how rows are drawn, which determines the accounting; 'order' is DP-FTRL, without sampling",
    )
    noise_multiplier: float | None = _as_dpsgd("noise_multiplier")
    accountant: str = _as_dpsgd("accountant")
    micro_batch: int | None = _as_dpsgd("micro_batch")
    public_size: int | None = _as_dpsgd("public_size")
    method: str = _as_dpsgd("method")
    seed: int = whole(0, least=0, doc="seed of the initial weights; sampling and noise are never replayable")
    device: str = component("cpu", keep, takes="str", doc="'cpu', 'cuda', 'cuda:0' or 'auto'")
    precision: str = choice(
        "float32",
        ("float32", "bf16"),
        doc="arithmetic of the model's passes; gradients are clipped and summed in float32",
    )
    evaluate_every: int = whole(1, least=0, doc="epochs between evaluations; 0: after the last one only")
    insecure_seed: int | None = whole(
        None,
        least=0,
        none="the operating system's randomness",
        doc="makes sampling and noise replayable, for tests only; the result is stamped NOT PRIVATE",
    )

    def dpsgd(self) -> DPSGD:
        """Return the settings of DP-SGD, or of DP-FTRL, checked."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in _DPSGD}
        return check(DPFTRL(**values) if self.sampling == "order" else DPSGD(**values))


PRIVATE_OPTIONS = {f.name: f for f in dataclasses.fields(PrivateConfig)}


def load(path: str | Path, changes: Sequence[str] = ()) -> tuple[Job, dict[str, Any]]:
    """Read and check a job file; return [data] and [model] as a job of one holder, and what [private] gives.

    `changes` like "private.epochs=5" are applied first.
    """
    tables = toml.load(path, changes, ("data", "model", "private"))
    for name in ("data", "private"):
        if name not in tables:
            raise BadJob(
                f'{path}: there is no [{name}] table. A job for train-private has [data] name = "digits" '
                "and [private] epsilon = 3.0."
            )
    job = of_one_holder(tables, Path(path))
    table = toml.table(str(path), "private", tables["private"])
    config = from_fields(table, PrivateConfig, f"{path}, private", "it has no key")
    return job, {name: getattr(config, name) for name in table}


def of_one_holder(tables: Mapping[str, Any], file: Path) -> Job:
    """Return the job of [data] and [model] whose rows are in one place; its `data` is what the file gives."""
    table = toml.table(str(file), "data", tables.get("data", {}))
    toml.only_known(f"{file}, data", table, ["name", *source(table, str(file))[1]])
    job = without_weights({"data": {"parties": 1, **table}, "model": tables.get("model", "mlp")}, file)
    return dataclasses.replace(job, data={k: v for k, v in job.data.items() if k in table})


def without_weights(tables: Mapping[str, Any], file: Path) -> Job:
    """Return a job whose model starts from scratch."""
    job = from_tables(tables, file)
    if isinstance(job.model, models.Pretrained):
        raise BadJob(
            f"{file}, model: pretrained weights are for `tacit run` and `tacit compare`; here models start "
            "from scratch. Remove them."
        )
    return job

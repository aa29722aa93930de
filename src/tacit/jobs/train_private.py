"""`tacit.train_private`: train one model on one holder's rows with DP-SGD."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import nn

from .. import __version__, models
from ..accounting import Release
from ..accounting.account import FILE
from ..config.private import PRIVATE_OPTIONS, PrivateConfig
from ..config.signature import with_options
from ..data.federation import Dataset, Federation, check_one_label
from ..engine.members import members_of
from ..engine.metrics import count, measure, measure_regression
from ..errors import BadData, BadParameter
from ..guard.stage import source
from ..parameters import bad, check
from ..private.dpsgd import DPSGD
from ..private.session import Session
from ..private.size import HELD_OUT, PUBLIC, count_release, describe_count, describe_declared, noisy_count
from ..release.release import Release as ModelRelease
from ..release.release import write_release
from ..results import Result
from ..runs import Event, Journal, check_unused, versions
from .devices import device_for
from .train.plan import fits

if TYPE_CHECKING:
    from ..config.types import PrivateOptions

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "sgd": (torch.optim.SGD, 0.5),  # and its learning rate, if none is given
    "adam": (torch.optim.Adam, 5e-3),
}
ENCODED = (
    "The table's columns were inferred, and its numbers standardized, from the private rows, which ε does "
    "not cover; declare them (fit=data.Recipe(…, mean=…, std=…)) if that matters."
)
LOT = 256  # expected batch size, if there are at least four times as many rows


@with_options(PRIVATE_OPTIONS)
def train_private(
    dataset: Dataset,
    *,
    model: Any = "mlp",
    out: str | Path | None = None,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    **options: Unpack[PrivateOptions],
) -> Result:
    """Train one model on one data set with DP-SGD.

    With `epsilon`, the noise is calibrated to this many epochs; with `noise_multiplier` instead, ε is the
    result. Row sampling and noise use the operating system's randomness, so two runs with one seed differ.

    Under "poisson", ε protects the presence of a row, so nothing that is released depends on the exact number
    of rows. `public_size` declares a public number; without it the rows are counted once with noise, which is
    part of ε. Sampling rate and steps are computed from that number.
    """
    if not isinstance(dataset, Dataset):
        is_federation = isinstance(dataset, Federation)
        hint = "To train several parties, use tacit.train(…, private=…)." if is_federation else ""
        raise bad(
            "train_private",
            "dataset",
            type(dataset).__name__,
            "a Dataset: tacit.data.digits(), data.from_arrays(x, y), data.from_csv(…)",
            hint,
        )
    config = check(PrivateConfig(**options), "train_private")
    optimizer, lr = OPTIMIZERS[config.optimizer]
    device = device_for("train_private", config.device)
    config = replace(config, lr=lr if config.lr is None else config.lr, device=device)
    settings = config.dpsgd()
    check_one_label("train_private", dataset)
    if dataset.persons is not None:
        column = "" if dataset.table is None else dataset.table.group
        raise BadParameter(
            f"train_private: rows of {dataset.name} belong to people (group={column!r}), and ε here is for "
            "one row: a person with several rows would be protected less than it says. For an ε of a person, "
            "train with one party: tacit.train(table.split(1), private=tacit.private.DPSGD(epsilon=…)). Or "
            "keep one row of each person and leave group out."
        )
    rows = len(dataset.rows.y)
    if not rows:
        raise BadData(f"{dataset.name}: there are no rows to train on.")
    is_encoded = dataset.table is not None and dataset.table.reads_rows
    uncovered = " ".join([ENCODED] * is_encoded + [HELD_OUT] * bool(len(dataset.test.y)))
    dataset = dataset.centralize()
    x, y = (t.to(device) for t in dataset.rows)
    outputs = dataset.classes or 1
    module = models.build(model, tuple(x.shape[1:]), outputs, config.seed).to(device).train()
    if len(members := members_of(module)) > 1:
        raise BadParameter(
            f"train_private: the {len(members)} members of this model would share the norm to which DP-SGD "
            "clips the gradient of a row. Use models.MLP(members=1)."
        )
    fits("train_private", module, models.name_of(model), x[:2], dataset.classes, dataset.name)
    momentum = config.momentum
    more = {"momentum": momentum} if config.optimizer == "sgd" else {"betas": (momentum or 0.9, 0.999)}
    descent = optimizer(module.parameters(), lr=config.lr, **more)
    batch_size = config.batch_size
    if batch_size is not None and config.public_size is None and batch_size > rows:
        raise bad(
            "train_private",
            "batch_size",
            batch_size,
            f"a whole number between 1 and the number of rows, {rows:,}",
        )
    known = _known_size(settings, rows, batch_size or 1, config.insecure_seed)
    size = min(LOT, max(1, known.rows // 4)) if batch_size is None else batch_size
    config = replace(config, batch_size=size)
    job = {
        "data": data_job or {"made_in": "python", "name": dataset.name},
        "model": models.table_of(model),
        "private": {k: v for k, v in asdict(config).items() if v is not None},
    }
    threads = torch.get_num_threads()
    session = known.settings.attach(
        module,
        descent,
        (x, y),
        epochs=config.epochs,
        batch_size=size,
        insecure_seed=config.insecure_seed,
        earlier=() if known.release is None else (known.release,),
    )
    if out is not None:
        check_unused(out).mkdir(parents=True, exist_ok=True)
    if session.account is not None:
        session.account.file = None if out is None else Path(out) / FILE
        if known.release is not None:
            session.account.spend(0, known.release)  # before anything that depends on the count is written
    journal = Journal.create(out, job, watch)
    usage = ModelRelease.of(model, dataset, dataset.pipeline, versions=versions(__version__))
    if journal.directory is not None:
        write_release(journal.directory, usage)
    notes = " ".join(note for note in (known.note, uncovered) if note)
    try:
        if device == "cpu":
            torch.set_num_threads(1)
        return _train(session, dataset, module, config, journal, job, usage, notes)
    finally:
        torch.set_num_threads(threads)
        session.close()
        journal.close()


class _KnownSize(NamedTuple):
    """What is used in place of the exact number of rows."""

    rows: int
    settings: DPSGD
    release: Release | None  # the noisy count, if there was one
    note: str


def _known_size(settings: DPSGD, rows: int, least: int, insecure_seed: int | None) -> _KnownSize:
    if not settings.private or settings.sampling != "poisson":
        # neighboring data sets have equally many rows, or there is no guarantee
        return _KnownSize(rows, settings, None, PUBLIC if settings.private else "")
    if settings.public_size is not None:
        return _KnownSize(settings.public_size, settings, None, describe_declared(settings.public_size))
    release = count_release(settings)
    # at least the batch size: a sampling rate is at most 1
    noisy = max(least, noisy_count(rows, release, source(insecure_seed, "number of rows")))
    return _KnownSize(noisy, replace(settings, public_size=noisy), release, describe_count(release))


def _train(
    session: Session,
    dataset: Dataset,
    module: nn.Module,
    config: PrivateConfig,
    journal: Journal,
    job: dict[str, Any],
    usage: ModelRelease,
    notes: str,
) -> Result:
    epochs, every, device = config.epochs, config.evaluate_every, config.device
    journal.event(
        "start",
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        tacit=__version__,
        label=type(session.settings).__name__,
        skew="one holder",
        seed=config.seed,
        runtime="one process",
        device=device,
        rounds=epochs,
        fingerprints={},
        versions=versions(__version__),
        model={"name": usage.name, "parameters": sum(p.numel() for p in module.parameters())},
        federation=dataset.split(1, held_fraction=0.0, min_size=1).outline(),
    )  # without row and label counts, which ε protects
    if notes:
        journal.event("note", text=notes)
    for layer, why in session.ghost.looped.items():
        journal.event("note", text=f"layer {layer} is processed example by example, which is slow: {why}")
    clock = time.perf_counter()

    def after(number: int) -> None:
        nonlocal clock
        tested = _test(module, dataset, device) if number == epochs or (every and number % every == 0) else {}
        seconds, clock = time.perf_counter() - clock, time.perf_counter()
        spent = {} if session.account is None or not number else {"epsilon": session.epsilon}
        journal.event(
            "round",
            round=number,
            **tested,
            **spent,
            sampled=0,
            tested=0,
            bytes_up=0,
            bytes_down=0,
            seconds=seconds,
        )
        if number:
            journal.save(
                number,
                lambda: {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()},
                force=number == epochs,
            )

    lower: AbstractContextManager[Any] = (
        torch.autocast(torch.device(device).type, torch.bfloat16)
        if config.precision == "bf16"
        else nullcontext()
    )
    after(0)
    for number in range(1, epochs + 1):
        for a, b in session:
            session.optimizer.zero_grad()
            with lower:
                out = module(a)
            out = out.float()
            session.backward(
                F.cross_entropy(out, b, reduction="none")
                if dataset.classes is not None
                else (out.reshape(b.shape) - b) ** 2
            )
            session.optimizer.step()
        after(number)
    tested = [e for e in journal.events if e["kind"] == "round" and e["round"] > 0 and "loss" in e]
    metrics = (
        {k: v for k, v in tested[-1].items() if isinstance(v, float) and k != "seconds"} if tested else {}
    )
    if session.account is not None:
        metrics["epsilon"] = session.epsilon
    ledger = session.ledger
    ledger.spent = [replace(line, note=notes) for line in ledger.spent]
    journal.event(
        "end", metrics=metrics, seconds=sum(e["seconds"] for e in journal.events if e["kind"] == "round")
    )
    session.close()
    module = module.cpu().eval()
    if journal.directory is not None:
        write_release(journal.directory, usage, module)
    journal.close(ledger.to_dict())
    return Result(module, metrics, ledger, job, journal.events, journal.directory, release=usage)


@torch.no_grad()
def _test(module: nn.Module, dataset: Dataset, device: str) -> dict[str, float]:
    """Return the metrics on the data set's test rows, which ε does not cover."""
    if not len(dataset.test.y):
        return {}
    module.eval()
    try:
        outputs = torch.cat([module(part.to(device)).float().cpu() for part in dataset.test.x.split(1024)])
    finally:
        module.train()
    return {
        **measure(count(outputs, dataset.test.y, dataset.classes)),
        **(measure_regression(outputs, dataset.test.y) if dataset.classes is None else {}),
    }

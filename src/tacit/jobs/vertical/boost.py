"""`tacit.boost.train` over columns held by different parties, on secret shares or encrypted."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ...boost.vertical_bins import OwnBins
from ...config.vertical_boost import VERTICAL_BOOST_OPTIONS, VerticalBoostConfig
from ...errors import BadData
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...runtimes.choose import choose_runtime
from ..durable_run import DurableJob, run_durable
from . import boost_programs
from .boost_deployed import CHANGED, check_folder
from .boost_parts import BoostPart, make_part
from .boost_result import VerticalBoostResult
from .boost_rows import HELPER, OWNER, BoostRows, arrange, to_tensor
from .split import folder_of

ROLES: dict[str, Callable[..., Awaitable[Any]]] = {
    "label": boost_programs.hold_label,
    "columns": boost_programs.hold_columns,
    "helper": boost_programs.help_all,
}


def train_vertical(
    parties: Any,
    options: Mapping[str, Any],
    on: str | None,
    runtime: Any,
    guard: Any,
    directory: str | Path | None = None,
) -> VerticalBoostResult:
    """Align the tables, grow trees on shares or encrypted, and return each party's part."""
    options = dict(options)
    label = str(options.pop("label", "") or "")
    categories = options.pop("categories", None) or []
    if guard is not None:
        raise bad(OWNER, "guard", guard, "None for vertical parties: secret shares need none")
    unknown = [name for name in options if name not in VERTICAL_BOOST_OPTIONS]
    if unknown:
        allowed = ", ".join(["label", "categories", *VERTICAL_BOOST_OPTIONS])
        raise bad(
            OWNER, unknown[0], options[unknown[0]], f"left out for vertical parties, which have {allowed}"
        )
    config = check(VerticalBoostConfig(**options), OWNER)
    runtime = None if runtime == "cohort" else runtime
    ledger = Ledger()
    rows = arrange(parties, config.objective, on, label, runtime, ledger)
    return fit(rows, config, categories, runtime, ledger, directory)


def plain_settings(config: VerticalBoostConfig) -> dict[str, Any]:
    """The options as plain values that all parties compare."""
    settings: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return settings


async def resume(
    me: Party,
    role: str,
    folder: str,
    digest: str,
    parties: list[str],
    inputs: Mapping[str, Any],
    part: Mapping[str, Any],
) -> dict[str, Any]:
    """A program of `boost_programs` that keeps its messages in `folder`/state, and its part in `folder`."""
    mark = digest_inputs(inputs)

    async def begin(me: Party) -> dict[str, Any]:
        return {"inputs": mark}

    async def program(me: Party, begun: Mapping[str, Any]) -> dict[str, Any]:
        if begun["inputs"] != mark:
            raise BadData(CHANGED.format(file=f"the table of {me.name!r}"))
        return dict(await ROLES[role](me, **inputs))

    def finish(result: dict[str, Any]) -> dict[str, Any]:
        if role != "helper":
            own = OwnBins.from_dict(inputs["bins"])
            make_part(result, me.name, bins=own, **{**part, "parties": tuple(part["parties"])}).write(
                Path(folder)
            )
        return result

    answers, fresh = boost_programs.ANSWERS, boost_programs.ENCRYPTED
    state = Path(folder) / "state"
    return await run_durable(
        me, DurableJob(digest, tuple(parties), state, begin, program, finish, answers, fresh)
    )


def digest_inputs(inputs: Mapping[str, Any]) -> str:
    """A digest of what a party brings: tensors by their bytes, the rest as JSON."""
    plain = {k: v for k, v in inputs.items() if not isinstance(v, torch.Tensor)}
    h = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for key in sorted(set(inputs) - set(plain)):
        h.update(f"|{key}|{tuple(inputs[key].shape)}|".encode() + inputs[key].numpy().tobytes())
    return h.hexdigest()


def fit(
    rows: BoostRows,
    config: VerticalBoostConfig,
    categories: Any,
    runtime: Any,
    ledger: Ledger,
    directory: str | Path | None = None,
) -> VerticalBoostResult:
    names = [rows.label_at, *(n for n in rows.frames if n != rows.label_at)]
    if len(names) < 2 or HELPER in names:
        raise bad(
            OWNER, "parties", names, f"at least two, and none called {HELPER!r}, which deals the randomness"
        )
    known = [c for f in rows.frames.values() for c in f.columns]
    for name in categories:
        if name not in known:
            raise bad(OWNER, "categories", name, "a column of one of the parties")
    settings = plain_settings(config)
    helper = "" if config.backend == "he" else HELPER
    bins, inputs = {}, dict[str, tuple[str, dict[str, Any]]]()
    for who in names:
        frame = rows.frames[who]
        own = [*rows.categories[who], *(c for c in categories if c in frame.columns)]
        bins[who] = OwnBins.fit(frame, own, config.bins, config.min_rows, who, rows.missing_codes.get(who))
        codes = to_tensor(bins[who].encode(frame))
        shared: dict[str, Any] = {"names": names, "helper": helper, "settings": settings}
        shared |= {"codes": codes, "bins": bins[who].to_dict()}
        if who == rows.label_at:
            inputs[who] = "label", {**shared, "y": to_tensor(rows.y), "labels": list(rows.labels)}
        else:
            inputs[who] = "columns", {**shared, "label_at": rows.label_at}
    outputs = len(rows.labels) if config.objective == "multiclass" else 1
    if helper:
        known_to_helper = {"names": names, "label_at": rows.label_at, "helper": helper}
        inputs[helper] = "helper", {**known_to_helper, "settings": settings, "rows": len(rows.y)}

    def describe(who: str) -> dict[str, Any]:
        """What `make_part` takes besides a result, this party's name and its bins."""
        return {
            "parties": tuple(names),
            "label_at": rows.label_at,
            "helper": helper,
            "objective": config.objective,
            "outputs": outputs,
            "label": rows.label if who == rows.label_at else "",
            "id": rows.id,
        }

    programs: dict[str, Any] = {}
    digest = hashlib.sha256(json.dumps([names, helper, settings], sort_keys=True).encode()).hexdigest()
    for k, (who, (role, own_inputs)) in enumerate(inputs.items()):
        if directory is None:
            programs[who] = functools.partial(ROLES[role], **own_inputs)
        else:
            folder = Path(directory) / folder_of(who, k)
            check_folder(folder, folder / "state")
            programs[who] = functools.partial(
                resume,
                role=role,
                folder=str(folder),
                digest=digest,
                parties=list(inputs),
                inputs=own_inputs,
                part=describe(who),
            )
    results = choose_runtime(OWNER, runtime, all_stay=True).run_sync(programs, ledger=ledger)
    parts: dict[str, BoostPart] = {
        who: make_part(results[who], who, bins=bins[who], **describe(who)) for who in names
    }
    found = results[rows.label_at]
    return VerticalBoostResult(parts, ledger, found["best"], tuple(rows.notes), found["backend"])

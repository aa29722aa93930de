"""A party's part of a split network as plain data: to a folder, to another process, and back.

part.json          what it is: layers, route, settings, columns and how they are encoded
part.safetensors   its weights
rows.safetensors   its own rows, for a process of a run that is just starting; never in what is saved for later
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...audit import leakage
from ...data.tables import Recipe
from ...engine.metrics import count, measure, measure_regression
from ...errors import BadData, BadParameter, BadRun, MissingFiles
from ...files import write_atomic
from ...parameters import bad, from_table, to_table
from ...parties.party import Party
from ...protocols import splitnn
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_parts import MERGES, build, describe, merger
from ...protocols.splitnn_terms import Route, Segment, SplitInputs, SplitTerms

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass
class StopPart:
    """A stop's part: how it merges what comes, and what it does with it."""

    body: nn.Module
    merge: str = "concat"
    holders: int = 1
    width: int = 0

    def stretch(self) -> Segment:
        return Segment(merger(self.merge, self.holders, self.width), self.body)


@dataclass
class SplitShare:
    """One party's share of a split network: its parts, its guards, and what it needs to read its own file
    again.
    """

    party: str
    terms: SplitTerms
    bottom: nn.Module | None = None
    stops: dict[int, StopPart] = field(default_factory=dict)
    state: dict[str, Tensor] = field(
        default_factory=dict
    )  # weights, by "bottom.…" and "stop0.…"; empty: those of the modules
    optimizer: str = "sgd"
    settings: dict[str, float] = field(default_factory=lambda: {"lr": 0.1})
    guards: tuple[Any, ...] = ()
    protect: Any = None
    nopeek: float = 0.0
    classes: int | None = None
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    recipe: Recipe | None = None
    fingerprint: bytes = b""
    id: str = ""  # the column of its file that says whose a row is
    makers: dict[str, Callable[[], nn.Module]] = field(
        default_factory=dict
    )  # functions that make a part no table can describe, by "bottom" or "stop0"

    def mine(self) -> SplitInputs:
        """As the party's program takes it, with modules that hold its weights."""
        made = SplitInputs(
            functools.partial(OPTIMIZERS[self.optimizer], **self.settings),
            self.bottom,
            {d: s.stretch() for d, s in self.stops.items()},
            guards=self.guards,
            protect=self.protect,
            fingerprint=self.fingerprint,
            measure=functools.partial(measured, self.terms.loss, self.classes),
            peek=functools.partial(nopeek, self.nopeek) if self.nopeek else None,
        )
        if self.state:
            try:
                made.parts.load_state_dict(self.state)
            except RuntimeError as error:
                raise BadData(f"the weights of {self.party!r} do not fit its part: {error}") from None
        return made

    def tables(self) -> dict[str, Any]:
        """Everything but weights and rows, as JSON takes it."""
        return {
            "format": 1,
            "party": self.party,
            "terms": asdict(self.terms),
            "bottom": None if self.bottom is None else self._layers("bottom", self.bottom),
            "stops": {
                str(d): {
                    "merge": s.merge,
                    "holders": s.holders,
                    "width": s.width,
                    "layers": self._layers(f"stop{d}", s.body),
                }
                for d, s in self.stops.items()
            },
            "optimizer": self.optimizer,
            "settings": self.settings,
            "guards": [to_table(g) for g in self.guards],
            "protect": None if self.protect is None else to_table(self.protect),
            "nopeek": self.nopeek,
            "classes": self.classes,
            "labels": list(self.labels),
            "columns": list(self.columns),
            "recipe": None if self.recipe is None else asdict(self.recipe),
            "fingerprint": self.fingerprint.hex(),
            "id": self.id,
        }

    def _layers(self, name: str, body: nn.Module) -> list[dict[str, Any]] | str:
        return name if name in self.makers else describe(body)

    def write(self, folder: Path) -> Path:
        from safetensors.torch import save

        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            k: v.detach().contiguous().clone()
            for k, v in (self.state or self.mine().parts.state_dict()).items()
        }
        write_atomic(folder / "part.safetensors", save(weights))
        write_atomic(folder / "part.json", json.dumps(self.tables(), indent=1))
        return folder


def may_write(out: str | Path) -> None:
    """What comes out in the end must have a place: said before anybody reads or learns."""
    place = next(p for p in (Path(out).absolute(), *Path(out).absolute().parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise BadParameter(
            f"{out} cannot be written: {place} "
            f"{'may not be written to' if place.is_dir() else 'is no folder'}. Choose another place."
        )


def check_unused(out: str | Path | None) -> None:
    """Where a job of one program puts everybody's parts: beside others' they would be read as one network."""
    if out is None:
        return
    may_write(out)
    held = next(Path(out).glob("*/part.*"), None)
    if held is not None:
        raise BadRun(
            f"{held.parent} already holds a party's part, which is never written over. Give another out."
        )


def read(folder: str | Path, makers: Mapping[str, Callable[[], nn.Module]] | None = None) -> SplitShare:
    """A share from its folder. The files are data: only known layers come of them; a part that is code must
    be given by its maker.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(folder)
    if not (place / "part.json").is_file():
        raise MissingFiles(
            f"there is no part of a split network in {place}: part.json is missing. Give the folder of one "
            "party."
        )
    try:
        told = json.loads((place / "part.json").read_text(encoding="utf-8"))
        if told["format"] != 1:
            raise BadData(
                f"{place} was written by another version of tacit (format {told['format']}). Bring both to "
                "the same version."
            )
        weights = load_file(place / "part.safetensors")

        def made(name: str, layers: Any) -> nn.Module:
            if isinstance(layers, str):
                if name not in (makers or {}):
                    raise BadData(
                        f"{place}: the part {name!r} is code, which no file holds. Give the function that "
                        f"makes it: makers={{{name!r}: …}}."
                    )
                return makers[name]()  # type: ignore[index]
            return build(layers)

        t = told["terms"]
        terms = SplitTerms(
            **{
                **t,
                "routes": tuple(Route(tuple(r["sources"]), tuple(r["stops"])) for r in t["routes"]),
                "rows": tuple(t["rows"]),
                "tests": tuple(t["tests"]),
            }
        )
        stops = {
            int(d): StopPart(made(f"stop{d}", s["layers"]), s["merge"], int(s["holders"]), int(s["width"]))
            for d, s in told["stops"].items()
        }
        if any(s.merge not in MERGES for s in stops.values()) or told["optimizer"] not in OPTIMIZERS:
            raise BadData(f"{place}/part.json names a merge or an optimiser that is not known here.")
        r = told["recipe"]
        recipe = (
            None
            if r is None
            else Recipe(
                tuple(r["numbers"]),
                {k: tuple(v) for k, v in r["categories"].items()},
                tuple(r["missing"]),
                r["fit"],
                None if r["mean"] is None else tuple(r["mean"]),
                None if r["std"] is None else tuple(r["std"]),
            )
        )
        return SplitShare(
            told["party"],
            terms,
            None if told["bottom"] is None else made("bottom", told["bottom"]),
            stops,
            weights,
            told["optimizer"],
            dict(told["settings"]),
            tuple(from_table(g, ACTIVATIONS, "guards") for g in told["guards"]),
            None if told["protect"] is None else from_table(told["protect"], GRADIENTS, "protect"),
            float(told["nopeek"]),
            told["classes"],
            tuple(told["labels"]),
            tuple(told["columns"]),
            recipe,
            bytes.fromhex(told["fingerprint"]),
            str(told["id"]),
            dict(makers or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError, OSError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(
            f"{place} holds no part of a split network that can be read: {type(error).__name__}: {error}."
        ) from None


def nopeek(alpha: float, x: Tensor, z: Tensor) -> Tensor:
    return alpha * leakage.distance_correlation(x.reshape(len(x), -1), z.reshape(len(z), -1))


def measured(loss: str, classes: int | None, out: Tensor, y: Tensor) -> dict[str, float]:
    """Loss, and accuracy and AUC of classes, or absolute error and R² of numbers. Whoever holds the labels
    has all outputs, so the AUC is exact.
    """
    if loss == "mse":
        return {"loss": float(((out.reshape(y.shape) - y) ** 2).mean()), **measure_regression(out, y)}
    scores = torch.cat([torch.zeros_like(out[:, :1]), out.reshape(len(out), -1)], 1) if loss == "bce" else out
    found = measure(count(scores, y.long(), scores.shape[1], curves=False))
    areas = [
        leakage.auc(
            (scores[:, 1] - scores[:, 0]) if scores.shape[1] == 2 else torch.log_softmax(scores, 1)[:, c],
            y == c,
        )
        for c in ((1,) if scores.shape[1] == 2 else range(scores.shape[1]))
        if 0 < int((y == c).sum()) < len(y)
    ]
    return found | ({"auc": sum(areas) / len(areas)} if areas else {})


# --- another process ----------------------------------------------------------------------------------------

KEYS = ("x", "y", "test_x", "test_y")


def deal(share: SplitShare, rows: Mapping[str, Mapping[int, Tensor]], folder: Path) -> dict[str, str]:
    """Write a party's share and rows for a process of its own; gives how that process finds functions that
    make parts.
    """
    from safetensors.torch import save

    from ...runtimes.processes import specification

    share.write(folder)
    flat = {f"{key}.{turn}": value.contiguous() for key in KEYS for turn, value in rows.get(key, {}).items()}
    write_atomic(folder / "rows.safetensors", save(flat))
    return {name: json.dumps(specification(maker, share.party)) for name, maker in share.makers.items()}


def dealt(folder: str, made: Mapping[str, str]) -> tuple[SplitShare, SplitInputs]:
    from safetensors.torch import load_file

    from ...runtimes.nursery import found

    share = read(folder, {name: found(json.loads(spec)) for name, spec in made.items()})
    mine = share.mine()
    for name, value in load_file(Path(folder) / "rows.safetensors").items():
        key, turn = name.split(".")
        getattr(mine, key)[int(turn)] = value
    return share, mine


async def seat(me: Party, folder: str, made: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The program of a party that finds its share and its rows in a folder."""
    share, mine = dealt(folder, made or {})
    return await splitnn.party(me, share.terms, mine)


async def foretell(me: Party, folder: str, made: Mapping[str, str] | None = None) -> Tensor | None:
    """The same for a joint prediction."""
    share, mine = dealt(folder, made or {})
    return await splitnn.predict(me, share.terms, mine)


def optimizer_of(
    name: str, lr: float, momentum: float, weight_decay: float, owner: str = "splitnn"
) -> dict[str, float]:
    if name not in list(OPTIMIZERS):  # a list: what cannot be hashed is told, too
        raise bad(owner, "optimizer", name, f"one of {', '.join(map(repr, OPTIMIZERS))}")
    for what, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (value > 0 if what == "lr" else value >= 0)
        ):
            raise bad(owner, what, value, "a number above 0" if what == "lr" else "a number of at least 0")
    if name == "adam" and momentum:
        raise bad(owner, "momentum", momentum, "0 with adam, which has its own")
    return {"lr": lr, "weight_decay": weight_decay} | ({"momentum": momentum} if name == "sgd" else {})


def check_nopeek(nopeek: Any, slices: int, owner: str = "splitnn") -> None:
    if isinstance(nopeek, bool) or not isinstance(nopeek, int | float) or not nopeek >= 0:
        raise bad(owner, "nopeek", nopeek, "a number of at least 0")
    if nopeek and slices != 1:
        raise bad(owner, "slices", slices, "1 with nopeek, which looks at a whole batch at once")

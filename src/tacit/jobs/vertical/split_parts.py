"""Save and load a party's part of a split network, for a folder or another process.

part.json          layers, route, settings, columns and their encoding
part.safetensors   weights
rows.safetensors   the party's rows, for a process of a run; never part of a saved network
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...audit import leakage
from ...data.recipe import Recipe
from ...engine.metrics import count, measure, measure_regression
from ...errors import BadData, BadParameter, BadRun, MissingFiles
from ...files import write_atomic
from ...parameters import from_table, to_table
from ...parties.party import Party
from ...protocols import splitnn
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_parts import MERGES, build, describe, make_merge
from ...protocols.splitnn_terms import Route, Segment, SplitInputs, SplitTerms

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass
class StopPart:
    """A stop's part: how it merges its inputs, and its module."""

    body: nn.Module
    merge: str = "concat"
    holders: int = 1
    width: int = 0

    def stretch(self) -> Segment:
        return Segment(make_merge(self.merge, self.holders, self.width), self.body)


@dataclass
class SplitShare:
    """One party's share of a split network: parts, guards, and the encoding of its file."""

    party: str
    terms: SplitTerms
    bottom: nn.Module | None = None
    stops: dict[int, StopPart] = field(default_factory=dict)
    state: dict[str, Tensor] = field(
        default_factory=dict
    )  # weights by "bottom.…" and "stop0.…"; empty: those of the modules
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
    id: str = ""  # the id column of its file
    makers: dict[str, Callable[[], nn.Module]] = field(
        default_factory=dict
    )  # functions that build parts which cannot be serialized, by "bottom" or "stop0"
    target: tuple[float, float] = (0.0, 1.0)  # mean and deviation of a regression's training targets

    def fit_target(self, y: Tensor) -> None:
        """Learn the mean and deviation by which the targets of a regression are standardized."""
        if self.terms.loss == "mse" and len(y):
            std = float(y.double().std(correction=0))
            self.target = (float(y.double().mean()), std if std > 0 else 1.0)

    def to_target(self, y: Tensor) -> Tensor:
        """Return labels as the network learns them: standardized, if they are numbers."""
        mean, std = self.target
        return ((y.double() - mean) / std).to(y.dtype) if self.terms.loss == "mse" else y

    def to_predictions(self, out: Tensor) -> Tensor:
        """Convert outputs to probabilities, or to numbers in the units of the labels."""
        if self.terms.loss == "mse":
            mean, std = self.target
            return (out.reshape(len(out)).double() * std + mean).to(out.dtype)
        return torch.sigmoid(out.reshape(len(out))) if self.terms.loss == "bce" else torch.softmax(out, 1)

    def inputs(self) -> SplitInputs:
        """Return the inputs of the party's program, with modules that have its weights."""
        inputs = SplitInputs(
            functools.partial(OPTIMIZERS[self.optimizer], **self.settings),
            self.bottom,
            {d: s.stretch() for d, s in self.stops.items()},
            guards=self.guards,
            protect=self.protect,
            fingerprint=self.fingerprint,
            measure=functools.partial(measure_outputs, self.terms.loss, self.classes, unit=self.target[1]),
            unit=self.target[1] ** 2,
            peek=functools.partial(nopeek, self.nopeek) if self.nopeek else None,
        )
        if self.state:
            try:
                inputs.parts.load_state_dict(self.state)
            except RuntimeError as error:
                raise BadData(f"the weights of {self.party!r} do not fit its part: {error}") from None
        return inputs

    def modules(self) -> list[nn.Module]:
        """Return the party's modules."""
        return [*([] if self.bottom is None else [self.bottom]), *(stop.body for stop in self.stops.values())]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but weights and rows, for JSON."""
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
            "recipe": None if self.recipe is None else self.recipe.to_dict(),
            "fingerprint": self.fingerprint.hex(),
            "id": self.id,
            "target": list(self.target),
        }

    def _layers(self, name: str, body: nn.Module) -> list[dict[str, Any]] | str:
        return name if name in self.makers else describe(body)

    def write(self, folder: Path) -> Path:
        from safetensors.torch import save

        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            k: v.detach().contiguous().clone()
            for k, v in (self.state or self.inputs().parts.state_dict()).items()
        }
        write_atomic(folder / "part.safetensors", save(weights))
        write_atomic(folder / "part.json", json.dumps(self.to_dict(), indent=1))
        return folder


def check_writable(out: str | Path) -> None:
    """Check before training that the output folder is writable."""
    place = next(p for p in (Path(out).absolute(), *Path(out).absolute().parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise BadParameter(
            f"{out} cannot be written: {place} "
            f"{'is not writable' if place.is_dir() else 'is not a folder'}. Choose another folder."
        )


def check_unused(out: str | Path | None) -> None:
    """Refuse a folder that already contains parts: they would be read as one network."""
    if out is None:
        return
    check_writable(out)
    existing = next(Path(out).glob("*/part.*"), None)
    if existing is not None:
        raise BadRun(
            f"{existing.parent} already contains a party's part, which is never overwritten. Use another out."
        )


def read(folder: str | Path, makers: Mapping[str, Callable[[], nn.Module]] | None = None) -> SplitShare:
    """Read a share from its folder.

    The files are untrusted data: only known layers are built. A part that is code needs its function in
    `makers`.
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
        content = json.loads((place / "part.json").read_text(encoding="utf-8"))
        if content["format"] != 1:
            raise BadData(
                f"{place} was written by another version of tacit (format {content['format']}). Use the same "
                "version."
            )
        weights = load_file(place / "part.safetensors")

        def build_part(name: str, layers: Any) -> nn.Module:
            if isinstance(layers, str):
                if name not in (makers or {}):
                    raise BadData(
                        f"{place}: the part {name!r} is code, which is not saved. Give the function that "
                        f"builds it: makers={{{name!r}: …}}."
                    )
                return makers[name]()  # type: ignore[index]
            return build(layers)

        t = content["terms"]
        terms = SplitTerms(
            **{
                **t,
                "routes": tuple(Route(tuple(r["sources"]), tuple(r["stops"])) for r in t["routes"]),
                "rows": tuple(t["rows"]),
                "tests": tuple(t["tests"]),
            }
        )
        stops = {
            int(d): StopPart(
                build_part(f"stop{d}", s["layers"]), s["merge"], int(s["holders"]), int(s["width"])
            )
            for d, s in content["stops"].items()
        }
        if any(s.merge not in MERGES for s in stops.values()) or content["optimizer"] not in OPTIMIZERS:
            raise BadData(f"{place}/part.json names an unknown merge or optimizer.")
        recipe = None if content["recipe"] is None else Recipe.from_dict(content["recipe"])
        return SplitShare(
            content["party"],
            terms,
            None if content["bottom"] is None else build_part("bottom", content["bottom"]),
            stops,
            weights,
            content["optimizer"],
            dict(content["settings"]),
            tuple(from_table(g, ACTIVATIONS, "guards") for g in content["guards"]),
            None if content["protect"] is None else from_table(content["protect"], GRADIENTS, "protect"),
            float(content["nopeek"]),
            content["classes"],
            tuple(content["labels"]),
            tuple(content["columns"]),
            recipe,
            bytes.fromhex(content["fingerprint"]),
            str(content["id"]),
            dict(makers or {}),
            _read_target(content.get("target", [0.0, 1.0])),  # absent in parts of earlier versions
        )
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError, OSError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(
            f"{place} contains no readable part of a split network: {type(error).__name__}: {error}."
        ) from None


def _read_target(value: Any) -> tuple[float, float]:
    mean, std = map(float, value)
    if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
        raise ValueError("target is not a mean and a deviation above 0")
    return mean, std


def nopeek(alpha: float, x: Tensor, z: Tensor) -> Tensor:
    return alpha * leakage.distance_correlation(x.reshape(len(x), -1), z.reshape(len(z), -1))


def measure_outputs(
    loss: str, classes: int | None, out: Tensor, y: Tensor, unit: float = 1.0
) -> dict[str, float]:
    """Return loss, and accuracy and AUC of classes, or absolute error and R² of a regression.

    The label holder has all outputs, so the AUC is exact. `unit`: what 1 means in the units of the labels.
    """
    if loss == "mse":
        return {
            "loss": float(((out.reshape(y.shape) - y) ** 2).mean()) * unit**2,
            **measure_regression(out * unit, y * unit),
        }
    scores = torch.cat([torch.zeros_like(out[:, :1]), out.reshape(len(out), -1)], 1) if loss == "bce" else out
    metrics = measure(count(scores, y.long(), scores.shape[1], curves=False))
    areas = [
        leakage.auc(
            (scores[:, 1] - scores[:, 0]) if scores.shape[1] == 2 else torch.log_softmax(scores, 1)[:, c],
            y == c,
        )
        for c in ((1,) if scores.shape[1] == 2 else range(scores.shape[1]))
        if 0 < int((y == c).sum()) < len(y)
    ]
    return metrics | ({"auc": sum(areas) / len(areas)} if areas else {})


# --- another process ----------------------------------------------------------------------------------------

KEYS = ("x", "y", "test_x", "test_y", "absent")


def write_inputs(share: SplitShare, rows: Mapping[str, Mapping[int, Tensor]], folder: Path) -> dict[str, str]:
    """Write a party's share and rows for its process; return how it imports functions that build parts."""
    from safetensors.torch import save

    from ...runtimes.processes import specify_program

    share.write(folder)
    flat = {f"{key}.{turn}": value.contiguous() for key in KEYS for turn, value in rows.get(key, {}).items()}
    write_atomic(folder / "rows.safetensors", save(flat))
    return {name: json.dumps(specify_program(maker, share.party)) for name, maker in share.makers.items()}


def read_inputs(folder: str, makers: Mapping[str, str]) -> tuple[SplitShare, SplitInputs]:
    from safetensors.torch import load_file

    from ...runtimes.nursery import find_program

    share = read(folder, {name: find_program(json.loads(spec)) for name, spec in makers.items()})
    inputs = share.inputs()
    for name, value in load_file(Path(folder) / "rows.safetensors").items():
        key, turn = name.split(".")
        getattr(inputs, key)[int(turn)] = value
    return share, inputs


async def train_from_folder(
    me: Party, folder: str, makers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Train as a party whose share and rows are in a folder."""
    share, inputs = read_inputs(folder, makers or {})
    return await splitnn.party(me, share.terms, inputs)


async def predict_from_folder(
    me: Party, folder: str, makers: Mapping[str, str] | None = None
) -> Tensor | None:
    """Predict as a party whose share and rows are in a folder."""
    share, inputs = read_inputs(folder, makers or {})
    return await splitnn.predict(me, share.terms, inputs)

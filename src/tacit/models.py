"""Models by name, as used in the federated literature. Any `nn.Module`, or a function that returns one,
works too.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .engine.layers import Characters, CropFlip
from .engine.members import Members, members_of
from .errors import BadData, BadJob, BadParameter, MissingFiles
from .parameters import bad, check, flag, nearest, to_table, whole


@runtime_checkable
class ModelSpec(Protocol):
    """A model before the data are known: a frozen dataclass that builds a module."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module for rows of this shape, with so many outputs."""


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


@dataclass(frozen=True)
class Linear:
    """Linear regression: one number for each row."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


@dataclass(frozen=True)
class MLP:
    """A multilayer perceptron with ReLU.

    Two hidden layers of 200 units are the 2NN of McMahan et al. 2017 (199,210 parameters on MNIST). Several
    `members` are an ensemble: independent networks that are trained side by side as one model. With early
    stopping by the loss, each keeps the weights of its own best round.
    """

    hidden: tuple[int, ...] = (200, 200)
    members: int | None = whole(
        None,
        least=1,
        most=64,
        none="4 with the defaults of tables and a stop by the loss, else 1",
        doc="networks with different initial weights, whose mean output is the model's",
    )

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if not isinstance(self.hidden, tuple | list) or not all(
            isinstance(h, int) and not isinstance(h, bool) and h >= 1 for h in self.hidden
        ):
            raise bad("MLP", "hidden", self.hidden, "whole numbers of at least 1, one for each hidden layer")
        members = [self._member(math.prod(shape), outputs) for _ in range(self.members or 1)]
        return members[0] if len(members) == 1 else Members(members)

    def _member(self, width: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for h in self.hidden:
            layers += [nn.Linear(width, h), nn.ReLU()]
            width = h
        return nn.Sequential(*layers, nn.Linear(width, outputs))


def count_members(model: Any) -> int:
    """How many networks a model is made of that are trained side by side; 1 for any other model."""
    spec = model.spec if isinstance(model, Pretrained) else model
    if isinstance(spec, nn.Module):
        return len(members_of(spec)) or 1
    return spec.members or 1 if isinstance(spec, MLP) else 1


class _Embedded(nn.Module):
    """A row whose one-hot blocks are replaced by embeddings; the other features stay as they are."""

    def __init__(self, width: int, blocks: Sequence[tuple[int, int]], sizes: Sequence[int]):
        super().__init__()
        self.blocks = tuple(blocks)
        inside = {i for start, stop in blocks for i in range(start, stop)}
        self.rest = tuple(i for i in range(width) if i not in inside)
        # a table of embeddings times a one-hot row: the same as a lookup, and all zeros for a missing value
        tables = [nn.Linear(stop - start, size, bias=False) for (start, stop), size in zip(blocks, sizes)]
        self.tables = nn.ModuleList(tables)
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)  # small: a category that nobody has adds next to nothing
        self.width = len(self.rest) + sum(sizes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        parts = [table(rows[:, a:b]) for table, (a, b) in zip(self.tables, self.blocks)]
        return torch.cat([rows[:, list(self.rest)], *parts], 1) if self.rest else torch.cat(parts, 1)


@dataclass(frozen=True)
class TableNetwork:
    """A perceptron for tables, with embeddings of columns that have many categories, such as ICD codes.

    C. Guo, F. Berkhahn: "Entity Embeddings of Categorical Variables", 2016. `starts` and `sizes` are the
    first feature and the number of categories of the columns that are embedded; for a federation from a table
    they are filled in: every column with more than `above` categories.
    """

    hidden: tuple[int, ...] = (64, 32)
    above: int = whole(16, least=1, doc="columns with more categories than this are embedded")
    dimension: int = whole(8, least=1, doc="the size of an embedding; at most half of the categories")
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def with_blocks(self, blocks: Sequence[tuple[int, int]]) -> TableNetwork:
        """The same for these one-hot blocks, as (first feature, categories) each."""
        wide = [(start, size) for start, size in blocks if size > self.above]
        return dataclasses.replace(
            self, starts=tuple(start for start, _ in wide), sizes=tuple(size for _, size in wide)
        )

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        width = math.prod(shape)
        blocks = [(start, start + size) for start, size in zip(self.starts, self.sizes)]
        ends = [0, *(end for block in blocks for end in block), width]
        if len(self.starts) != len(self.sizes) or ends != sorted(ends) or any(a == b for a, b in blocks):
            raise bad(
                "TableNetwork",
                "starts and sizes",
                (self.starts, self.sizes),
                f"the first feature and the number of categories of each embedded column, within {width} "
                "features",
                "Leave both out for a federation from a table.",
            )
        layers = MLP(self.hidden)
        if not blocks:
            return layers.build(shape, outputs)
        front = _Embedded(width, blocks, [min(self.dimension, max(1, b - a) // 2 or 1) for a, b in blocks])
        return nn.Sequential(front, *list(layers.build((front.width,), outputs).children())[1:])


@dataclass(frozen=True)
class CNN:
    """Two convolutions, each with a max pool, and a perceptron.

    By default it is, on 1×28×28, the CNN of McMahan et al. 2017 (1,663,370 parameters); on color images,
    the LeNet of NIID-Bench (Li et al. 2021: 6 and 16 channels, 120 and 84 units, 62,006 parameters on
    CIFAR-10); otherwise 16 and 32 channels of 3×3. `channels` and `hidden` set other sizes. `crop` and
    `flip` augment training images.
    """

    channels: tuple[int, ...] | None = None
    hidden: tuple[int, ...] | None = None
    kernel: int = whole(5, least=1, doc="the filter size, if channels and hidden are set")
    padding: int = whole(0, least=0, doc="zeros around an image, if channels and hidden are set")
    crop: int = whole(0, least=0, doc="the largest random shift of training images, in pixels")
    flip: bool = flag(False, doc="flip training images horizontally at random")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise BadParameter(
                "model 'cnn' needs images of shape (channels, height, width) of at least 4×4, and these "
                f"rows have shape {shape}. "
                "Use 'mlp' or 'logistic', or load the data as images (digits(images=True))."
            )
        (a, b), hidden, kernel, pad = self._sizes(shape)
        if self.crop >= min(shape[1:]):
            raise bad("CNN", "crop", self.crop, f"fewer pixels than the {min(shape[1:])} of an image's side")
        augmentation = [CropFlip(self.crop, self.flip)] if self.crop or self.flip else []
        front = nn.Sequential(
            *augmentation,
            nn.Conv2d(shape[0], a, kernel, padding=pad),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(a, b, kernel, padding=pad),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

        def side(n: int) -> int:
            shrink = 2 * pad - kernel + 1
            return ((n + shrink) // 2 + shrink) // 2

        return nn.Sequential(
            *front, *MLP(hidden).build((b * side(shape[1]) * side(shape[2]),), outputs).children()
        )

    def _sizes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
        if self.channels is not None or self.hidden is not None:
            if self.channels is None or self.hidden is None or len(self.channels) != 2:
                raise bad(
                    "CNN",
                    "channels and hidden",
                    (self.channels, self.hidden),
                    "two channels, and any hidden widths",
                    "For instance channels=(32, 64), hidden=(64,); or leave both out.",
                )
            return tuple(self.channels), tuple(self.hidden), self.kernel, self.padding
        if shape == (1, 28, 28):
            return (32, 64), (512,), 5, 2
        if shape[0] == 3 and min(shape[1:]) >= 16:
            return (6, 16), (120, 84), 5, 0
        return (16, 32), (64,), 3, 1


class _Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.a = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm_a = nn.GroupNorm(8, out)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_b = nn.GroupNorm(8, out)
        self.skip = (
            nn.Conv2d(channels, out, 1, stride, bias=False)
            if stride != 1 or channels != out
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm_a(self.a(x)))
        return torch.relu(self.norm_b(self.b(h)) + self.skip(x))


@dataclass(frozen=True)
class ResNet8:
    """Three residual blocks with group norm, which, unlike batch norm, does not mix rows or parties."""

    width: int = whole(16, least=8, doc="channels of the first block; a multiple of 8")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(shape) != 3:
            raise BadParameter(
                "model 'resnet8' needs images of shape (channels, height, width), and these rows have "
                f"shape {shape}. Use 'mlp'."
            )
        w = self.width
        if w % 8:
            raise bad("ResNet8", "width", w, "a multiple of 8, for the eight groups of the group norm")
        return nn.Sequential(
            nn.Conv2d(shape[0], w, 3, 1, 1, bias=False),
            nn.GroupNorm(8, w),
            nn.ReLU(),
            _Block(w, w, 1),
            _Block(w, 2 * w, 2),
            _Block(2 * w, 4 * w, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * w, outputs),
        )


@dataclass(frozen=True)
class LSTM:
    """An LSTM that predicts the next character, as in McMahan et al. 2017 and LEAF (Caldas et al. 2018)."""

    embedding: int = whole(8, least=1, doc="the size of the embedding")
    hidden: int = whole(256, least=1, doc="the units of a layer")
    layers: int = whole(2, least=1, doc="the number of layers")
    every: bool = flag(False, doc="predict the next character after every character, not only after the last")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise BadParameter(
                "model 'lstm' needs rows that are sequences of tokens, and these rows have shape "
                f"{shape}. Use 'cnn' or 'mlp'."
            )
        return Characters(outputs, self.embedding, self.hidden, self.layers, self.every)


class Ensemble(nn.Module):
    """A weighted ensemble of pretrained classifiers, of which only the weights α are trained.

    J. Hamer, M. Mohri, A. T. Suresh: "FedBoost: A Communication-Efficient Algorithm for Federated
    Learning", ICML 2020. With `algorithms.FedSGD(lr=…)` a step is the paper's mirror step on the simplex, α
    ∝ α·exp(−η·∂F/∂α), and parties and server exchange one number for each member.

    The members are not trained, not sent and not in `state_dict`: every party must have them before the
    run, and their distribution is not in its ledger. The output is log Σ α_m·p_m(x).
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        members = list(members)
        if not members or not all(isinstance(m, nn.Module) for m in members):
            raise bad(
                "Ensemble",
                "members",
                members,
                "a list of at least one nn.Module, such as the models of earlier runs",
            )
        # in a tuple, torch does not register them as submodules
        self.held = tuple(copy.deepcopy(m).eval().requires_grad_(False) for m in members)
        self.theta = nn.Parameter(torch.zeros(len(members)))  # log α, up to a constant

    @property
    def weights(self) -> Tensor:
        """α, the weight of each member."""
        return self.theta.detach().softmax(0)

    def forward(self, x: Tensor) -> Tensor:
        # α with the gradient of θ, which makes a gradient step of θ a mirror step of α
        alpha = self.theta.softmax(0).detach() + self.theta - self.theta.detach()
        probabilities = torch.stack([m(x).float().softmax(-1) for m in self.held], -1)
        return (probabilities @ alpha).clamp(min=1e-12).log()

    def _apply(self, fn: Any, recurse: bool = True) -> Ensemble:
        for member in self.held:
            member._apply(fn, recurse)
        return super()._apply(fn, recurse)


@dataclass(frozen=True)
class Pretrained:
    """A model that starts from saved weights: `weights` is a safetensors file of a module's `state_dict`.

    Pickles are not read, because they can contain code. `sha256` is the digest of the file; by default it is
    computed and stored with the run, and resuming needs the same file.
    """

    spec: Any
    weights: str
    sha256: str = ""

    def check(self) -> None:
        if type(self.spec) not in ALL.values():
            raise bad(
                "Pretrained",
                "spec",
                self.spec,
                "one of tacit's models, such as models.MLP(hidden=(64,))",
                "Your own nn.Module keeps its values.",
            )
        check(self.spec)

    def pinned(self) -> Pretrained:
        """The same with the digest of the file."""
        digest, _ = self._read()
        return self if self.sha256 else dataclasses.replace(self, sha256=digest)

    def _read(self) -> tuple[str, dict[str, Tensor]]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            content = Path(self.weights).read_bytes()
        except OSError as error:
            why = (
                f"there is no file {self.weights}"
                if isinstance(error, FileNotFoundError)
                else f"{self.weights} cannot be read: {error.strerror}"
            )
            raise MissingFiles(f"weights: {why}. Use a safetensors file.") from None
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 not in ("", digest):
            raise BadData(
                f"weights: the sha256 of {self.weights} is {digest[:12]}…, not {self.sha256[:12]}…. Restore "
                "the original file, or start a new run."
            )
        try:
            return digest, load(content)
        except (SafetensorError, ValueError) as error:
            raise BadData(
                f"weights: {self.weights} is not a complete safetensors file: {error}. Save it with "
                "safetensors.torch.save_file(model.state_dict(), …); pickles (.pt) are not read."
            ) from None

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        module, tensors = self.spec.build(shape, outputs), self._read()[1]
        saved, expected = (
            {k: tuple(v.shape) for k, v in state.items()} for state in (tensors, module.state_dict())
        )
        for name in sorted({*saved, *expected}):
            if saved.get(name) != expected.get(name):
                has = [
                    f"has {name} of shape {s[name]}" if name in s else f"has no {name}"
                    for s in (saved, expected)
                ]
                raise BadData(
                    f"weights: {self.weights} {has[0]}, and this model, for these rows, {has[1]}. Use the "
                    "model that was saved, and data of its shape."
                )
        module.load_state_dict(tensors)
        return module


@dataclass(frozen=True)
class OwnModel:
    """A model that is code which every party has and approves: `package.module:factory`, and its digest.

    The factory takes no arguments and returns an nn.Module.
    """

    name: str
    digest: str
    factory: Callable[[], nn.Module] = dataclasses.field(compare=False, repr=False)

    def as_table(self) -> dict[str, Any]:
        return {"name": self.name, "digest": self.digest}

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        try:
            module = self.factory()
        except Exception as error:
            raise BadJob(
                f"model: {self.name} failed with {type(error).__name__}: {error}. It must be a function "
                "without arguments that returns an nn.Module."
            ) from error
        if not isinstance(module, nn.Module):
            raise BadJob(f"model: {self.name} returned {type(module).__name__}; it must return an nn.Module.")
        return module


ALL: dict[str, type] = {
    "logistic": Logistic,
    "linear": Linear,
    "mlp": MLP,
    "table_network": TableNetwork,
    "cnn": CNN,
    "resnet8": ResNet8,
    "lstm": LSTM,
}
Model = (
    str
    | nn.Module
    | Callable[[], nn.Module]
    | Logistic
    | Linear
    | MLP
    | TableNetwork
    | CNN
    | ResNet8
    | LSTM
    | Pretrained
)


def table_of(model: Any) -> dict[str, Any]:
    """A model as the [model] table of a job file; only the name if it is code."""
    if isinstance(model, Pretrained):
        return {**table_of(model.spec), "weights": model.weights, "sha256": model.sha256}
    if isinstance(model, OwnModel):
        return model.as_table()
    listed = next((k for k, v in ALL.items() if v is type(model)), None)
    return {"name": name_of(model)} if listed is None else {**to_table(model), "name": listed}


def name_of(model: Any) -> str:
    if isinstance(model, OwnModel):
        return model.name
    return (
        model
        if isinstance(model, str)
        else (
            model.__name__ if isinstance(model, type | FunctionType | MethodType) else type(model).__name__
        ).lower()
    )


def _call_factory(factory: Any) -> Any:
    if not callable(factory):
        raise bad(
            "train",
            "model",
            factory,
            "one of " + ", ".join(map(repr, ALL)) + ", an nn.Module, or a function that returns one",
        )
    try:
        return factory()
    except TypeError as error:
        raise bad(
            "train",
            "model",
            name_of(factory),
            "a function without arguments that returns an nn.Module",
            f"Calling it failed: {error}.",
        ) from error


def build(model: Any, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """A new module, whose initial values follow from the seed; the caller's random state does not change.

    A given nn.Module is copied with its values; a name, a spec or a factory is initialized.
    """
    if isinstance(model, str):
        if model not in ALL:
            raise bad(
                "train",
                "model",
                model,
                "one of " + ", ".join(map(repr, ALL)) + ", an nn.Module, or a function that returns one",
                nearest(model, list(ALL)),
            )
        model = ALL[model]()
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reset a GPU's generator
        spec = (
            dataclasses.is_dataclass(model) and isinstance(model, ModelSpec) and not isinstance(model, type)
        )
        module = check(model).build(shape, outputs) if spec else _call_factory(model)  # type: ignore[attr-defined]
    if not isinstance(module, nn.Module):
        raise bad(
            "train",
            "model",
            model,
            "a function that returns an nn.Module",
            f"It returned {type(module).__name__}.",
        )
    return module

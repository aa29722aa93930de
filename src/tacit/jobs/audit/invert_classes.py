"""`tacit.audit.invert_classes`: draw what a model takes for a typical row of each class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...audit import chance, class_inversion
from ...audit.class_inversion import Bounds
from ...audit.reconstruction import Reconstruction
from ...data.federation import check_one_label
from ...errors import BadData, BadParameter
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.markup import Safe
from ...results import JobResult, Result
from ..train.plan import Plan
from .runs import open_run, plan_of
from .shadows import outputs

ACCESS = ("weights", "probabilities", "labels")


@dataclass
class ClassInversion(JobResult):
    """A row for each class, and which class's mean row it resembles most."""

    title: ClassVar[str] = "Model inversion"
    facts: ClassVar[tuple[str, ...]] = (
        *("access", "attacked", "recognized", "likeness", "p_value", "notes"),
    )

    rebuilt: Tensor = field(repr=False)  # [K, …]
    classes: tuple[int, ...]
    means: Tensor = field(repr=False)  # [C, features]: the mean training row of each class of the run
    known: tuple[int, ...]  # the classes of `means`
    access: str
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> Tensor:
        return self.rebuilt

    @property
    def attacked(self) -> int:
        return len(self.classes)

    @property
    def correlations(self) -> Tensor:
        """[K, C]: of each rebuilt row with the mean row of each class."""
        return class_inversion.likeness(self.rebuilt, self.means)

    @property
    def recognized(self) -> int:
        """How many rebuilt rows resemble their own class's mean row most."""
        nearest = [self.known[int(i)] for i in self.correlations.argmax(1)]
        return sum(a == b for a, b in zip(nearest, self.classes))

    @property
    def likeness(self) -> float:
        """The mean correlation with the own class's mean row."""
        at = [self.known.index(c) for c in self.classes]
        return float(self.correlations[torch.arange(len(at)), at].mean())

    @property
    def p_value(self) -> float:
        """P(at least as many are recognized | the model knows nothing of its classes): at most 1/k!."""
        return chance.matches(self.recognized)

    def pictures(self, most: int = 10) -> Safe | None:
        """The classes' mean rows above the rebuilt rows, for a page; None if rows are not gray images."""
        from ...audit.pictures import show_pairs

        shown = Reconstruction(self._own_means(), self.rebuilt, "model inversion", 0.0, 0.0)
        return show_pairs(shown, most, ("mean of the class", "rebuilt"))

    def save_picture(self, path: str | Path, most: int = 10, zoom: int = 6) -> Path:
        """Write a PNG: the classes' mean rows above the rebuilt rows."""
        from ...audit.pictures import save_strips

        original = self._own_means()[:most]
        return save_strips(
            path, (original, self.rebuilt[:most]), float(original.max() - original.min()), zoom
        )

    def _own_means(self) -> Tensor:
        at = [self.known.index(c) for c in self.classes]
        return self.means[at].float().reshape(self.rebuilt.shape)

    def _page(self) -> str:
        from ...report.layout import Section
        from ...report.result import render

        shown = self.pictures()
        more = [] if shown is None else [Section("rows", "Classes", shown)]
        return render(self.title, self.to_dict(), more)


def invert_classes(
    run: Result | str | Path,
    *,
    classes: Sequence[int] | None = None,
    access: str | Callable[[Tensor], Tensor] = "weights",
    bounds: Bounds = None,
    steps: int = 200,
    lr: float = 0.05,
    tv: float = 0.0,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> ClassInversion:
    """Search a row of each class in whose class the run's model is most confident.

    Where a class is one person, or one party's only class, its typical row is private. The attacker has the
    model's "weights", or a service that answers with "probabilities", "labels", or what a function of
    probabilities [n, C] returns. `bounds` are the lowest and the highest values, numbers or rows (default:
    those of each column over the run's rows that were not trained on, or 0 and 1 for images). `steps` of rate
    `lr`, relative to that range; `tv` weighs total variation, for smoother images. `watch(done, all)` may
    return True to stop.

    The result has `.rebuilt`, `.recognized` (rows that resemble the mean training row of their own class
    most), `.p_value`, and pictures. A typical row is not a row of the data: see `tacit.audit.membership`.
    """
    refuse(
        (
            not callable(access) and access not in ACCESS,
            bad("invert_classes", "access", access, f"one of {', '.join(map(repr, ACCESS))}, or a function"),
        ),
        (
            not isinstance(steps, int) or isinstance(steps, bool) or steps < 1,
            bad("invert_classes", "steps", steps, "a whole number of at least 1"),
        ),
        (not lr > 0, bad("invert_classes", "lr", lr, "a number above 0")),
    )
    opened = open_run(run, "invert_classes")
    p = plan_of(opened)
    check_one_label("invert_classes", p.fed)
    known, means = _means(p)
    chosen = _chosen(classes, known)
    low, high = _range(p) if bounds is None else (torch.as_tensor(b).float() for b in bounds)
    shape = tuple(p.fed.rows.x.shape[1:])
    start = ((low + high) / 2).expand(shape).repeat(len(chosen), *[1] * len(shape))
    width = (high - low).clamp(min=1e-6)
    y = torch.tensor(chosen)
    # searched in units of the range of each column, so that one rate fits all
    own = _Scaled(copy.deepcopy(opened.model).eval().cpu(), low, width)
    inside = (0.0, 1.0)
    unit = (start - low) / width
    options: dict[str, Any] = {"steps": steps, "lr": lr, "tv": tv, "bounds": inside, "watch": watch}
    if access == "weights":
        found = class_inversion.climb(own, unit, y, **options)
    else:
        service = _service(access, p.outputs)
        with torch.no_grad():
            found = class_inversion.estimate(
                lambda x: service(outputs(opened.model, low + x * width).softmax(-1)),
                unit,
                y,
                seed=seed,
                **options,
            )
    name = access if isinstance(access, str) else getattr(access, "__name__", "a function")
    return ClassInversion(low + found * width, tuple(chosen), means, known, name, opened.ledger)


class _Scaled(torch.nn.Module):
    """The model as a function of rows in units of their columns' ranges."""

    def __init__(self, inner: torch.nn.Module, low: Tensor, width: Tensor):
        super().__init__()
        self.inner, self.low, self.width = inner, low, width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.low + x * self.width)
        return out


def _service(access: str | Callable[[Tensor], Tensor], classes: int) -> Callable[[Tensor], Tensor]:
    if callable(access):
        return access
    if access == "labels":
        return lambda shown: torch.nn.functional.one_hot(shown.argmax(-1), classes).float()
    return lambda shown: shown


def _means(p: Plan) -> tuple[tuple[int, ...], Tensor]:
    rows = p.fed.rows.take(p.fed.train.index)
    if p.fed.classes is None:
        raise BadParameter("invert_classes: the run is a regression, which has no classes.")
    x = rows.matrix("invert_classes")
    if not x.is_floating_point():
        raise BadParameter(
            "invert_classes: rows are tokens, which have no gradient. Use tacit.audit.memorization."
        )
    known = tuple(int(c) for c in rows.y.unique() if c >= 0)
    if len(known) < 2:
        raise BadData("invert_classes: the run's training rows have one class; at least two are needed.")
    return known, class_inversion.class_means(x, rows.y, torch.tensor(known))


def _chosen(classes: Sequence[int] | None, known: tuple[int, ...]) -> list[int]:
    if classes is None:
        return list(known)
    chosen = list(dict.fromkeys(classes))
    if not chosen or not set(chosen) <= set(known):
        raise bad("invert_classes", "classes", classes, f"classes of the training rows: {known}")
    return chosen


def _range(p: Plan) -> tuple[Tensor, Tensor]:
    """The range of each column over rows that were not trained on; images have one range."""
    held = p.fed.rows.take(p.fed.held.index)
    rows = p.fed.test if len(p.fed.test.y) else held if len(held.y) else p.fed.rows
    x = rows.matrix("invert_classes")
    if x.min() >= 0 and x.max() <= 1:
        return torch.tensor(0.0), torch.tensor(1.0)
    return x.amin(0), x.amax(0)

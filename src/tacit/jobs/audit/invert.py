"""`tacit.audit.invert`: rebuild a client's rows from the update that a server sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...audit import inversion, similarity
from ...audit.inversion import ClientSteps
from ...audit.layers import invert_layers
from ...audit.reconstruction import picture_shape
from ...data.federation import Rows, check_one_label
from ...errors import BadData, BadParameter
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.markup import Safe
from ...results import JobResult, Result
from ..train.plan import Plan
from .runs import open_run, plan_of, rows_of
from .uploads import View, module_at_start, observe, split_update

METHODS = ("auto", "analytic", "layers", "dlg", "cosine")
SOLVED = 1e-4  # distance of the updates of rows that agree; a search that fails ends above 1e-3
LAYER_STEPS = 5  # times `steps`, for each convolution
TOLERANCE = 0.05  # of a column's spread


@dataclass
class Inversion(JobResult):
    """Rows that were rebuilt from an update, and how close they are to the originals, if these are known."""

    title: ClassVar[str] = "Gradient inversion"
    facts: ClassVar[tuple[str, ...]] = (
        *("method", "rows", "found", "psnr", "ssim", "values_within", "rows_within", "seen", "notes"),
    )

    rebuilt: Tensor = field(repr=False)  # [K, …]: in the order of the originals, if these are known
    labels: Tensor
    method: str
    rows: int  # in the update
    seen: str
    original: Tensor | None = field(default=None, repr=False)
    partner: Tensor | None = field(default=None, repr=False)  # of each original; −1: not rebuilt
    distance: float = 0.0  # of the update from that of the rebuilt rows
    bounds: tuple[float, float] | None = None
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> Tensor:
        return self.rebuilt

    @property
    def found(self) -> int:
        """How many rows were rebuilt."""
        return len(self.rebuilt)

    @property
    def span(self) -> float:
        """The range of values, which PSNR refers to."""
        if self.bounds is not None:
            return self.bounds[1] - self.bounds[0]
        return 1.0 if self.original is None else float(self.original.max() - self.original.min()) or 1.0

    @cached_property
    def each_psnr(self) -> Tensor:
        """[N]: the PSNR of each original row, in dB; 0 where none was rebuilt."""
        made, ok = self._pairs()
        out = torch.zeros(len(ok), dtype=torch.float64)
        if ok.any():
            assert self.original is not None
            out[ok] = similarity.psnr(self.original[ok], made[ok], self.span)
        return out

    @property
    def psnr(self) -> float:
        """The mean peak signal-to-noise ratio over the original rows, in dB; above 30, images look alike."""
        return float(self.each_psnr.mean())

    @property
    def ssim(self) -> float | None:
        """The mean structural similarity over the original rows; None if they are not images."""
        made, ok = self._pairs()
        assert self.original is not None
        shape = picture_shape(self.original[0]) if self.original[0].dim() < 3 else None
        if shape is None and self.original.dim() != 4:
            return None
        form = (1, *shape) if shape else tuple(self.original.shape[1:])
        each = similarity.ssim(self.original.reshape(-1, *form), made.reshape(-1, *form), self.span)
        return float((each * ok).mean())

    def within(self, tolerance: float = TOLERANCE) -> tuple[float, float]:
        """(share of values, share of whole rows) rebuilt within `tolerance` of the range of values."""
        made, ok = self._pairs()
        assert self.original is not None
        near = torch.where(ok.view(-1, *[1] * (made.dim() - 1)), made, torch.nan)
        return similarity.share_within(self.original, near, torch.tensor(self.span), tolerance)

    @property
    def values_within(self) -> float:
        return self.within()[0]

    @property
    def rows_within(self) -> float:
        return self.within()[1]

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """The rebuilt row of each original, and whether there is one."""
        if self.original is None or self.partner is None:
            raise BadParameter(
                "invert: the originals are not known, so that the attack cannot be judged. Give rows instead "
                "of an update, or truth=(x, y)."
            )
        ok = self.partner >= 0
        made = torch.zeros_like(self.original)
        made[ok] = self.rebuilt[self.partner[ok]].reshape(made[ok].shape)
        return made, ok

    def pictures(self, most: int = 8) -> Safe | None:
        """Originals above their reconstructions, for a page; None if rows are not gray images."""
        from ...audit.pictures import show_pairs
        from ...audit.reconstruction import Reconstruction

        if self.original is None:
            return None
        return show_pairs(Reconstruction(self.original, self._pairs()[0], self.method, 0.0, 0.0), most)

    def save_picture(self, path: str | Path, most: int = 8, zoom: int = 6) -> Path:
        """Write a PNG: originals above their reconstructions, enlarged `zoom` times."""
        from ...audit.pictures import save_strips

        made, _ = self._pairs()
        assert self.original is not None
        return save_strips(path, (self.original[:most], made[:most]), self.span, zoom)

    def to_dict(self) -> dict[str, Any]:
        known = self.original is not None
        judged = ("psnr", "ssim", "values_within", "rows_within")
        names = [name for name in self.facts if known or name not in judged]
        from ...results import encode_plain

        return encode_plain({**{name: getattr(self, name) for name in names}, "ledger": self.ledger})

    def _page(self) -> str:
        from ...report.layout import Section
        from ...report.result import render

        shown = self.pictures()
        more = [] if shown is None else [Section("rows", "Originals and reconstructions", shown)]
        return render(self.title, self.to_dict(), more)


def invert(
    run_or_model: Result | str | Path | nn.Module,
    update_or_rows: Any,
    *,
    method: str = "auto",
    rows: int | None = None,
    labels: Any = None,
    lr: float = 1.0,
    batch_size: int | None = None,
    local_epochs: int = 1,
    truth: Any = None,
    at: str = "start",
    bounds: tuple[float, float] | None = (0.0, 1.0),
    malicious: str | None = None,
    public: Any = None,
    target: int | None = None,
    steps: int = 200,
    tv: float = 1e-4,
    tries: int = 1,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> Inversion:
    """Rebuild rows from an update, as a curious server could.

    With a run: `update_or_rows` are rows (x, y), or a number of the run's own rows. A party with these rows
    takes part in a round of the run with its algorithm and guard, from the model of its `at`="start" or
    "end", and what the server sees is attacked. With a model (an nn.Module): rows, or an update, the flat
    difference after − before; `rows`, `lr`, `batch_size` and `local_epochs` say how it was made, and lr=1
    with one step makes −update the gradient. `truth` are the rows to compare with.

    "analytic" reads exact rows from a first linear layer; "layers" solves a network of convolutions for one
    row and one local step, layer by layer; "dlg" (smooth activations) and "cosine" search rows with the same
    update, `steps` long, from `tries` random starts; "auto" is "analytic" or "layers" where they apply,
    followed by "cosine" if rows are missing or their update differs. Labels are inferred unless given.
    `bounds` are the range of values, as known for images. `watch(done, all)` may return True to stop.

    malicious="trap" or "imprint": the server sends a model whose first linear layer it prepared, so that
    large batches can be read exactly. `public` are rows that it knows, for the range of their means.
    malicious="fish": its last layer shows the rows of one class alone, `target` (default: the rarest of the
    batch, which a server finds by trying one each round); only these rows are rebuilt and judged.
    """
    _check(method, at, steps, tries, bounds, malicious)
    ledger, notes = Ledger(), []
    if isinstance(run_or_model, nn.Module):
        target = _target(malicious, target, update_or_rows)
        module = _prepare(run_or_model, malicious, update_or_rows, public, bounds, target)
        view, original = _of_model(module, update_or_rows, rows, lr, batch_size, local_epochs, truth)
    else:
        run = open_run(run_or_model, "invert")
        p, ledger = plan_of(run), run.ledger
        check_one_label("invert", p.fed)
        if p.fed.classes is None and labels is None:
            raise BadParameter("invert: a regression has no classes to infer. Give labels=, the targets.")
        original = _rows_of_run(p, update_or_rows)
        module = run.model if at == "end" else module_at_start(p)
        known = public if public is not None or not len(p.fed.test.y) else p.fed.test.x
        target = _target(malicious, target, original)
        module = _prepare(module, malicious, original, known, bounds, target)
        view = observe(p, module, original)
    shape = tuple(original.x.shape[1:]) if original is not None else _shape_of(module)
    module = module.eval()
    batch = view.client.rows
    if target is not None:
        alone, update, client = inversion.fish_out(module, view.update, view.client, target)
        notes.append(f"class fishing: {client.rows} of {batch} rows have class {target}")
        module, view = alone, view._replace(update=update, client=client)
        labels = torch.full((client.rows,), target)
        original = None if original is None else original.take(original.y == target)
    found = _attack(module, view, shape, method, labels, bounds, steps, tv, tries, seed, watch)
    made, y, used, distance = found
    partner = None
    if original is not None and len(made):
        partner = similarity.pair_up(original.matrix("invert"), made)
    elif original is not None:
        partner = torch.full((len(original.y),), -1)
    if view.parties > 1:
        notes.append(f"{batch} rows of {view.parties} parties are in what the server sees")
    return Inversion(
        made,
        y,
        used,
        batch,
        view.words,
        None if original is None else original.matrix("invert"),
        partner,
        distance,
        bounds,
        ledger,
        tuple(notes),
    )


def _target(malicious: str | None, given: int | None, rows: Any) -> int | None:
    """The class that is fished for; None if none is."""
    if malicious != "fish":
        if given is not None:
            raise bad("invert", "target", given, "None, unless malicious='fish'")
        return None
    if isinstance(rows, Tensor):
        raise BadParameter("invert: malicious= is for rows (x, y): an update was made with another model.")
    y = torch.as_tensor(rows[1])
    if y.is_floating_point():
        raise BadParameter("invert: malicious='fish' is for classes, and these rows have numbers to predict.")
    values, counts = y.unique(return_counts=True)
    if given is not None and given not in values.tolist():
        raise bad("invert", "target", given, f"a class of the rows: {values.tolist()}")
    return int(values[counts.argmin()]) if given is None else given


def _prepare(
    module: nn.Module,
    malicious: str | None,
    rows: Any,
    public: Any,
    bounds: tuple[float, float] | None,
    target: int | None,
) -> nn.Module:
    """The model that the server sends: as it is, or with weights that read rows."""
    if target is not None:
        return inversion.fish_weights(module, target)
    if malicious is None:
        return module
    if isinstance(rows, Tensor):
        raise BadParameter("invert: malicious= is for rows (x, y): an update was made with another model.")
    shape = tuple(torch.as_tensor(rows[0]).shape[1:])
    if malicious == "trap":
        return inversion.trap_weights(module, shape)
    means = bounds or (0.0, 1.0)
    if public is not None:
        each = torch.as_tensor(public).float().flatten(1).mean(1)
        means = (float(each.min()), float(each.max()))
    return inversion.imprint_weights(module, shape, means)


def _check(method: str, at: str, steps: int, tries: int, bounds: Any, malicious: str | None) -> None:
    refuse(
        (
            malicious not in (None, "trap", "imprint", "fish"),
            bad("invert", "malicious", malicious, "'trap', 'imprint', 'fish', or None"),
        ),
        (method not in METHODS, bad("invert", "method", method, f"one of {', '.join(map(repr, METHODS))}")),
        (at not in ("start", "end"), bad("invert", "at", at, "'start' or 'end'")),
        (
            not isinstance(steps, int) or steps < 1,
            bad("invert", "steps", steps, "a whole number of at least 1"),
        ),
        (
            not isinstance(tries, int) or tries < 1,
            bad("invert", "tries", tries, "a whole number of at least 1"),
        ),
        (
            bounds is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]),
            bad("invert", "bounds", bounds, "(lowest, highest value), or None"),
        ),
    )


def _rows_of_run(p: Plan, given: Any) -> Rows:
    if isinstance(given, int) and not isinstance(given, bool):
        index = p.fed.train.index
        if not 1 <= given <= len(index):
            raise bad("invert", "rows", given, f"a number from 1 to {len(index)}, the run's training rows")
        return p.fed.rows.take(index[:given])
    return rows_of(given, p, "rows", "invert")


def _of_model(
    module: nn.Module,
    given: Any,
    rows: int | None,
    lr: float,
    batch_size: int | None,
    local_epochs: int,
    truth: Any,
) -> tuple[View, Rows | None]:
    original = None if truth is None else rows_of(truth, None, "truth", "invert")
    if isinstance(given, Tensor):
        if rows is None and original is None:
            raise BadParameter("invert: an update does not say how many rows made it. Give rows=.")
        n = rows if rows is not None else len(original.y)  # type: ignore[union-attr]
        client = ClientSteps(n, lr, batch_size, local_epochs)
        return View(split_update(module, given, lr), client, 1, "one update"), original
    original = rows_of(given, None, "rows", "invert")
    client = ClientSteps(len(original.y), lr, batch_size, local_epochs)
    update = inversion.update_of(module, original.matrix("invert"), original.y, client, F.cross_entropy)
    return View([u.detach() for u in update], client, 1, "one update"), original


def _shape_of(module: nn.Module) -> tuple[int, ...]:
    first = next((m for m in module.modules() if any(True for _ in m.parameters(recurse=False))), None)
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    raise BadParameter(
        "invert: the shape of a row does not follow from this model. Give truth=(x, y), or rows (x, y)."
    )


def _attack(
    module: nn.Module,
    view: View,
    shape: tuple[int, ...],
    method: str,
    labels: Any,
    bounds: tuple[float, float] | None,
    steps: int,
    tv: float,
    tries: int,
    seed: int,
    watch: Callable[[int, int], bool | None] | None,
) -> tuple[Tensor, Tensor, str, float]:
    client, update = view.client, view.update
    if client.rows < 1:
        return torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), "analytic", 0.0
    if not all(torch.isfinite(u).all() for u in update):
        raise BadData("invert: the update contains NaN or infinite values.")
    y = (
        inversion.infer_labels(module, update, client, shape)
        if labels is None
        else torch.as_tensor(labels).reshape(-1)
    )
    if len(y) != client.rows:
        raise bad("invert", "labels", len(y), f"{client.rows} labels, one for each row of the update")
    loss = F.cross_entropy if not y.is_floating_point() else lambda out, t: F.mse_loss(out.reshape(-1), t)
    layer = inversion.first_linear(module, shape)
    exact = torch.zeros(0, *shape)
    if method in ("auto", "analytic"):
        if layer is None and method == "analytic":
            raise BadParameter(
                "invert: 'analytic' needs a model whose first layer is linear with a bias. Use "
                "method='cosine'."
            )
        if layer is not None:
            parts = [inversion.gradient_of(module, update, q) for q in (layer.weight, layer.bias)]
            is_imprinted = bool((layer.weight == layer.weight[:1]).all())
            exact = (
                inversion.sorted_rows(*parts)
                if is_imprinted
                else inversion.exact_rows(parts[0], parts[1], bounds)
            )
            exact = exact.reshape(-1, *shape)[: client.rows]
            if bounds is not None:
                exact = exact.clamp(*bounds)
        if method == "analytic" or len(exact) == client.rows:
            return exact, y, "analytic", 0.0
    low, high = bounds or (-1.0, 1.0)
    best: tuple[Tensor, float, str] | None = None
    if method == "layers" or (method == "auto" and not len(exact)):
        best = _by_layers(module, view, shape, y, loss, bounds, steps, tries, seed, watch)
        if best is None and method == "layers":
            raise BadParameter(
                "invert: 'layers' needs one row, one local step, and a network of convolutions followed by a "
                "linear layer with a bias. Use method='cosine'."
            )
    for k in range(tries if best is None or (method == "auto" and best[1] > SOLVED) else 0):
        rng = torch.Generator().manual_seed(seed + k)
        start = low + (high - low) * torch.rand((client.rows, *shape), generator=rng)
        start[: len(exact)] = exact
        found = (
            inversion.match_l2(module, update, client, start, y, loss, steps=steps, watch=watch)
            if method == "dlg"
            else inversion.match_cosine(
                module,
                update,
                client,
                start,
                y,
                loss,
                steps=steps,
                tv=tv,
                lr=0.1 * (high - low),
                bounds=bounds,
                watch=watch,
            )
        )
        if best is None or found[1] < best[1]:
            best = (*found, "dlg" if method == "dlg" else "cosine")
    assert best is not None
    made = best[0] if bounds is None else best[0].clamp(*bounds)
    if len(exact):  # what was read exactly stays exact
        made[: len(exact)] = exact
    return made, y, best[2], best[1]


def _by_layers(
    module: nn.Module,
    view: View,
    shape: tuple[int, ...],
    y: Tensor,
    loss: inversion.Loss,
    bounds: tuple[float, float] | None,
    steps: int,
    tries: int,
    seed: int,
    watch: Callable[[int, int], bool | None] | None,
) -> tuple[Tensor, float, str] | None:
    """The closest row of `tries` searches layer by layer; None where the attack does not apply."""
    best: tuple[Tensor, float, str] | None = None
    if view.client.rows != 1 or len(view.client.batches()) != 1:
        return None
    for k in range(tries):
        made = invert_layers(
            module,
            view.update,
            shape,
            steps=LAYER_STEPS * steps,
            bounds=bounds,
            seed=seed + k if k else None,
            watch=watch,
        )
        if made is None:
            return None
        distance = inversion.compare_update(module, made, y, view.client, view.update, loss)
        if best is None or distance < best[1]:
            best = made, distance, "layers"
        if distance <= SOLVED:
            break
    return best

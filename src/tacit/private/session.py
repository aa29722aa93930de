"""A model under DP-SGD: sampling, clipping, noise and the privacy account.

Misuse that would void the guarantee raises an error. Rows come from `Session` alone, by the sampling that the
accountant assumes. Sums are divided by the expected batch size, never by the actual one. A second backward
pass on a batch in the same step is refused. A step that the budget does not cover is refused before its rows
are drawn, and a step that was begun counts as spent. A loss in which rows depend on each other is refused on
the first batches (`checks.py`).
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..accounting import Account, Release, discrete
from ..accounting.training import Training, training
from ..errors import BadParameter, BudgetSpent
from ..parameters import bad
from ..parties.ledger import Ledger, Spend
from ..parties.secret import NOT_PRIVATE, Secret, SeededSecret
from . import noise
from .checks import (
    RECIPE,
    GradientPass,
    check_alone,
    check_complete,
    check_signs,
    evaluation_mode,
    pick_row,
    probe_model,
)
from .dpsgd import DPSGD
from .drawing import read_rows
from .ghost import GhostClipping
from .layers import LayerUses
from .size import PUBLIC, describe_declared
from .tree import Tree

CHECKED_BATCHES = 2  # batches whose gradients are compared with torch's own, and with single examples
MISSED = (
    "DPSGD: the batch's gradients did not reach the attached layers, so the step would be noise alone. Call "
    "backward for every batch, on a loss of the attached model, not of a copy or a model compiled before "
    "attach."
)
MODEL_OBSERVERS = "whoever sees the model, at every step of its training"


class Session:
    """The result of `DPSGD.attach`.

    Iterate over it instead of your loader, one epoch at a time; or `draw` row indices, as a GAN does.
    `insecure_seed` makes rows and noise replayable, and the ledger is stamped NOT PRIVATE.
    """

    def __init__(
        self,
        settings: DPSGD,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        insecure_seed: int | None = None,
        file: str | Path | None = None,
        earlier: Sequence[Release] = (),
    ):
        self.settings, self.model, self.optimizer = settings, model, optimizer
        self._row_count, self._fetch, of_loader = read_rows(data, settings)
        # rate, steps and ledger are computed from this number
        self.rows = self._row_count if settings.public_size is None else settings.public_size
        size = of_loader if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= self.rows:
            raise bad(
                "DPSGD", "batch_size", size, f"a whole number between 1 and the number of rows, {self.rows:,}"
            )
        self.batch_size = int(size)
        self.per_epoch = -(-self.rows // self.batch_size)
        self.planned_steps = _planned_steps(settings, epochs, steps, self.per_epoch)
        if settings.private and settings.delta >= 1 / self.rows:
            warnings.warn(
                f"DPSGD: delta is {settings.delta:g}, and there are {self.rows:,} rows: δ ≥ 1/rows permits "
                f"publishing a random row. Use δ well below {1 / self.rows:.2g}.",
                stacklevel=4,
            )
        self.release = self._release(earlier)
        self.secret = Secret() if insecure_seed is None else SeededSecret(insecure_seed)
        self._source = noise.keystream(self.secret)
        self.account = (
            None if self.release is None else self._account(Path(file) if file is not None else None)
        )
        self.steps = 0
        if self._fetch is not None:
            probe_model(model, self._fetch, settings)
        self.ghost = GhostClipping(
            model,
            settings.factors(),
            "per-layer" if settings.clipping == "per-layer" else "flat",
            settings.method,
        )
        self.ghost.is_mean = settings.reduction == "mean"
        self.ghost.on_pass, self.ghost.inspect = self._check_pass, self._inspect
        optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not all(id(p) in optimized for p in self.ghost.parameters) or not optimized <= {
            id(p) for p in model.parameters()
        }:
            self.ghost.close()
            raise BadParameter(
                "DPSGD: the optimizer must have exactly the parameters of this model. Create it with "
                "torch.optim.SGD(model.parameters(), …) before attach."
            )
        size = sum(p.numel() for p in self.ghost.parameters)
        self.sigma = (
            0.0
            if self.release is None
            else noise.deviation(self.release.multiplier, float(settings.clip or 0), size)
        )
        self.tree = Tree(lambda: noise.draw(size, self._source)) if settings.tree else None
        self._order: np.ndarray = np.empty(0, np.int64)
        self._remaining = 0  # rows of the step's batch that have not been yielded yet
        self._expected: int | None = None  # rows of the yielded chunk, whose backward pass is pending
        self._drawn_rows: int | None = None  # rows that `draw` returned
        self._is_step_open = False
        self._passes = 0
        # whether the yielded batch is only compared, not trained on: a loop may skip its schedule then
        self.is_checking = False
        self._unchecked, self._uncompared = CHECKED_BATCHES, CHECKED_BATCHES
        self._is_by_row = False  # within `backward`
        self._uses_own_loss = False  # whether the loop calls backward on a reduced loss
        self._gradients: GradientPass | None = None
        self._signed_pass: tuple[LayerUses, Tensor] | None = None
        self._optimizer_step = optimizer.step
        optimizer.step = types.MethodType(lambda _, closure=None: self._take_step(closure), optimizer)  # type: ignore[method-assign]

    # privacy account ----------------------------------------------------------------------------------------

    def _release(self, earlier: Sequence[Release]) -> Training | None:
        s = self.settings
        if not s.private:
            return None
        sampling = "tree" if s.tree else s.sampling
        rate = self.batch_size / self.rows if sampling in ("poisson", "fixed") else 1.0
        return training(
            multiplier=s.noise_multiplier,
            epsilon=s.epsilon,
            delta=s.delta,
            sampling=sampling,
            rate=rate,
            per_epoch=self.per_epoch,
            steps=self.planned_steps or 1,
            accountant=s.accountant,
            earlier=earlier,
        )

    def _account(self, file: Path | None) -> Account:
        s = self.settings
        assert self.release is not None
        account = Account(self.release, s.delta, s.epsilon, self.planned_steps or 10**9, file)
        if not account.spent and s.epsilon is not None and s.noise_multiplier is None:
            account._allowed = self.planned_steps  # the noise was calibrated for them
        if s.epsilon is not None and not account.may_spend():
            raise BudgetSpent(
                f"DPSGD: the budget of ε = {s.epsilon:g} at δ = {s.delta:g} is already spent: "
                f"{account.spent} steps cost ε = "
                f"{account.epsilon():.4g}"
                + (f", according to {file}" if file else "")
                + ". Spent privacy cannot be recovered; use a larger budget, or more noise."
            )
        return account

    @property
    def epsilon(self) -> float:
        """ε of the steps begun so far, at the settings' δ; infinite without a guarantee."""
        return math.inf if self.account is None else self.account.epsilon()

    @property
    def ledger(self) -> Ledger:
        """What was spent so far, and under which assumptions."""
        ledger, s = Ledger(), self.settings
        if self.account is None:
            ledger.stamp(
                f"NOT PRIVATE: {'gradients were not clipped' if s.clip is None else 'no noise was added'}; "
                "nothing is guaranteed."
            )
        elif self.account.spent:
            known = (
                ""
                if s.sampling != "poisson"
                else PUBLIC
                if s.public_size is None
                else describe_declared(s.public_size)
            )
            ledger.spend(spend(s, self.account, self.batch_size, self.rows, note=known))
        if self.secret.replayable:
            ledger.stamp(NOT_PRIVATE)
        return ledger

    # rows ---------------------------------------------------------------------------------------------------

    def draw(self) -> Tensor:
        """Draw the row indices of the next step in secret; possibly none.

        Call `backward` once on these rows, and then the optimizer's step.
        """
        self._begin_step()
        index = torch.from_numpy(self._draw_rows())
        self._remaining, self._expected, self._drawn_rows = 0, None, len(index)
        return index

    def __len__(self) -> int:
        return self.per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Yield one epoch of batches.

        A batch larger than `micro_batch` is yielded in chunks, and the step is taken after the last one. A
        batch without rows still costs a step of noise, which is taken here. The first batches are yielded two
        more times, whole and one row of it alone, for comparison (`is_checking`).
        """
        if self._fetch is None:
            raise BadParameter(
                "DPSGD: attach received the number of rows, not the rows. Draw row indices with .draw(), or "
                "attach a loader."
            )
        for _ in range(self.per_epoch):
            self._begin_step()
            index = self._draw_rows()
            chunk = self.settings.micro_batch or max(1, len(index))
            self._remaining, self._drawn_rows, self._expected = len(index), None, None
            # later batches at steps that are powers of two
            if self._uncompared or (self._uses_own_loss and self.steps & (self.steps - 1) == 0):
                yield from self._compare(index[:chunk])
            for i in range(0, len(index), chunk):
                part = index[i : i + chunk]
                self._remaining -= len(part)
                self._expected, self._passes = len(part), 0
                yield self._fetch(part)
                self.ghost.flush()
            if not len(index):
                self._take_step(None)

    def _compare(self, index: np.ndarray) -> Iterator[Any]:
        """Yield these rows, and then one of them alone: its gradient must be the same.

        The model is in evaluation mode, so that there is no dropout.
        """
        if len(index) < 2:
            return

        def observe(part: np.ndarray) -> Iterator[Any]:
            self.is_checking, self._gradients, self._expected, self._passes = True, None, len(part), 0
            try:
                yield self._fetch(part)  # type: ignore[misc]
                self.ghost.flush()
            finally:
                self.is_checking, self._passes = False, 0
                self.ghost.take_uses()
                self.ghost.watch(self.ghost.is_watching)  # clears torch's gradients of this pass

        with evaluation_mode(self.model):
            yield from observe(index)
            together = self._gradients
            if together is None:
                raise BadParameter(MISSED)
            row = pick_row(together)
            yield from observe(index[row : row + 1])
            alone = self._gradients
        if alone is None:
            raise BadParameter(MISSED)
        coarse = self.ghost.half_precision or next(self.model.parameters()).is_cuda  # bfloat16, or TF32
        check_alone(together, alone, row, len(index), 0.05 if coarse else 2e-3)
        self._uncompared = max(0, self._uncompared - 1)

    def _inspect(self, uses: LayerUses) -> bool:
        """Check the gradients of a pass; return whether they are used."""
        rows = len(next(iter(uses.values()))[0].g)
        if self.is_checking:
            if self.ghost.is_public:
                return False
            self._check_pass(rows)
            self._uses_own_loss = self._uses_own_loss or not self._is_by_row
            self._gradients = GradientPass(
                uses, 1.0 if self._is_by_row or not self.ghost.is_mean else float(rows)
            )
            return False
        if self.ghost.is_watching:
            if self._signed_pass is not None:
                check_signs(self._signed_pass[0], uses, self._signed_pass[1])
            check_complete(self.ghost, uses)
            if rows > 1 and not self.ghost.is_public:
                self._unchecked = max(0, self._unchecked - 1)
        return True

    def _begin_step(self) -> None:
        if self._is_step_open and self._passes:
            self._is_step_open, self._passes = False, 0
            self.ghost.drop()
            raise BadParameter(
                "DPSGD: backward was called for the last batch without optimizer.step(), so its gradient "
                "would be lost but charged. Call step() once for each batch; to accumulate over several, "
                "use a larger batch_size with micro_batch."
            )
        if self.account is not None:
            if self.settings.epsilon is not None and not self.account.may_spend():
                raise BudgetSpent(
                    f"DPSGD: the budget of ε = {self.settings.epsilon:g} at δ = {self.settings.delta:g} is "
                    f"already spent after {self.account.spent} steps: the next one would exceed it. Stop "
                    "here, or start a new run with more noise."
                )
            self.account.spend(self.steps + 1)
        self.ghost.drop()
        self.ghost.watch(self._unchecked > 0)
        self.steps += 1
        self._is_step_open, self._passes = True, 0

    def _draw_rows(self) -> np.ndarray:
        n, b = self._row_count, self.batch_size
        kind = self.settings.sampling
        if kind == "poisson":
            return np.flatnonzero(discrete.uniform(self.rows, n, self._source) < b)
        if kind == "fixed":
            return np.argsort(discrete.uniform(2**62, n, self._source), kind="stable")[:b]
        at = (self.steps - 1) % self.per_epoch
        if at == 0:
            self._order = (
                np.arange(n)
                if kind == "order"
                else np.argsort(discrete.uniform(2**62, n, self._source), kind="stable")
            )
            if self.tree is not None:
                self.tree.restart()
        return self._order[at * b : (at + 1) * b]

    # a step -------------------------------------------------------------------------------------------------

    def backward(self, losses: Tensor, public: bool = False) -> None:
        """Run the backward pass of one loss per example, [B].

        `public` is for examples that are not private (generated ones): they are not clipped, and may be used
        any number of times.
        """
        if losses.dim() != 1:
            raise BadParameter(
                f"DPSGD: backward received losses of shape {tuple(losses.shape)}; expected one loss per row, "
                "[rows]. Compute them with reduction='none', and take the mean over a row's own positions."
            )
        self.ghost.flush()
        self.ghost.is_public, self._is_by_row = public, True
        before, self.ghost.is_mean = self.ghost.is_mean, False
        expected = self._expected
        if public:
            self._expected = None
        try:
            if self.ghost.is_watching and not public and not self.is_checking and len(losses) > 1:
                # a generator of its own, so that the loop's random numbers do not change
                rng = torch.Generator().manual_seed(self.steps)
                signs = torch.randint(0, 2, losses.shape, generator=rng).mul_(2).sub_(1).to(losses.device)
                torch.autograd.backward((losses * signs).sum(), retain_graph=True)
                self._signed_pass = self.ghost.take_uses(), signs
                self.ghost.watch(True)  # clears torch's gradients of that pass
            torch.autograd.backward(losses.sum())
            self.ghost.flush()
        finally:
            self.ghost.is_mean, self.ghost.is_public, self._expected = before, False, expected
            self._is_by_row, self._signed_pass = False, None

    def paused(self) -> AbstractContextManager[None]:
        """Ignore passes in this block, such as those of a generator through its critic."""
        return self.ghost.paused()

    def _check_pass(self, rows: int) -> None:
        """Check a backward pass at its end, before its gradients are used."""
        if self.ghost.is_public and self._is_step_open:
            return
        if not self._is_step_open:
            raise BadParameter(
                "DPSGD: backward was called on rows that were not drawn for this step, which ε does not "
                "cover. Take the batches from the session (`for x, y in private`), or call draw() before "
                "each step."
            )
        if self._drawn_rows is not None and not self._is_by_row:
            raise BadParameter(
                "DPSGD: backward was called on a reduced loss, which cannot be checked for rows from draw(). "
                f"{RECIPE}."
            )
        self._passes += 1
        if self._passes > 1:
            raise BadParameter(
                "DPSGD: a second backward pass in one step; an example that is used twice may change the "
                "sum by twice the clipping norm. Add the losses and call backward once; for public examples "
                "use backward(…, public=True)."
            )
        if self._drawn_rows is not None and rows > self._drawn_rows:
            raise BadParameter(
                f"DPSGD: {self._drawn_rows} rows were drawn and {rows} passed through the model. Use the "
                "drawn rows, each once."
            )
        if self._expected is not None and rows != self._expected:
            raise BadParameter(
                f"DPSGD: {self._expected} rows were drawn and {rows} passed through the model. Use the batch "
                "as it was drawn, one row per example."
            )

    def _take_step(self, closure: Any) -> Any:
        if closure is not None:
            raise BadParameter(
                "DPSGD: step() received a closure, which would use the batch several times. Call step() "
                "without one."
            )
        if not self._is_step_open:
            raise BadParameter(
                "DPSGD: step() was called without drawn rows, which ε does not cover. Take the batches from "
                "the session (`for x, y in private`), or call draw() before each step."
            )
        self.ghost.flush()
        if self.is_checking or self._remaining:
            return None  # a batch to compare, or a chunk; the step follows the last chunk
        if self._expected and not self._passes:
            raise BadParameter(MISSED)
        self._is_step_open = False
        sums = self.ghost.take()
        if self.release is not None:
            sums = (
                noise.add_noise(sums, self.sigma, self._source)
                if self.tree is None
                else noise.add_integers(sums, self.sigma, self.tree.next())
            )
        for p, total in zip(self.ghost.parameters, sums):
            p.grad = total.div_(self.batch_size)  # the expected size; the actual one is secret
        return self._optimizer_step()

    def close(self) -> None:
        """Restore model and optimizer."""
        self.ghost.close()
        self.optimizer.step = self._optimizer_step  # type: ignore[method-assign]


def spend(
    settings: DPSGD,
    account: Account,
    batch_size: int,
    rows: int,
    who: str = "row",
    adversary: str = MODEL_OBSERVERS,
    note: str = "",
    units: str = "rows",
) -> Spend:
    """Return the ledger line of a run; `units` are what is sampled."""
    r = account.release
    unit = {"poisson": f"{who}, present or not", "tree": f"{who}, left out of its place or not"}.get(
        r.sampling, f"{who}, exchanged for another"
    )
    about = "" if note in ("", PUBLIC) else "about "
    sampling = {
        "poisson": f"Poisson ({batch_size} of {about}{rows:,} {units} expected, drawn in secret)",
        "fixed": f"fixed-size ({batch_size} of {rows:,} rows, drawn in secret)",
        "shuffle": "shuffled, which is accounted as no",
        "tree": "no",
    }[r.sampling]
    kind = "binary-tree discrete Gaussian noise" if settings.tree else "discrete Gaussian noise"
    steps = account.count_steps()
    others = account.spent - steps
    more = "" if not others else f", with {others} other release{'s' if others > 1 else ''} of these rows"
    return Spend(
        f"{kind} of {r.multiplier:.4g} times the clipping norm {settings.clip:g} ({settings.clipping}), "
        f"{steps} steps composed by "
        f"{r.accountant}{more}",
        account.epsilon(),
        account.delta,
        unit,
        adversary,
        sampling,
        note,
    )


def _planned_steps(s: DPSGD, epochs: float | None, steps: int | None, per_epoch: int) -> int | None:
    if epochs is not None and steps is not None:
        raise BadParameter("DPSGD: both epochs and steps are given. Give only one of them.")
    if epochs is not None and (
        isinstance(epochs, bool) or not isinstance(epochs, int | float) or not 0 < epochs < math.inf
    ):
        raise bad("DPSGD", "epochs", epochs, "a number above 0")
    if steps is not None and (
        isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1
    ):
        raise bad("DPSGD", "steps", steps, "a whole number of at least 1")
    planned = math.ceil(epochs * per_epoch - 1e-9) if epochs is not None else steps
    if planned is None and s.epsilon is not None and s.noise_multiplier is None:
        raise BadParameter(
            f"DPSGD: epsilon is {s.epsilon:g}, but neither epochs nor steps is given, so the noise cannot be "
            "calibrated. Call attach with epochs=10 or steps=1000."
        )
    return planned

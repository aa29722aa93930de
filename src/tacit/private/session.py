"""A model under DP-SGD: it draws the rows, clips what they say, adds the noise, and keeps the account.
`DPSGD.attach` makes one.

Where a user could break the guarantee without noticing, the way is closed: rows come from `Session` alone, by
the sampling that the accountant assumes; sums are divided by the expected batch size, never by the rows that
happen to be there; a second look at a batch in the same step is refused; a step that the budget does not
cover is refused before its rows are drawn, and what was begun counts as spent. A loss in which rows depend on
each other is refused on the first batches (`checks.py`).
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
from .checks import RECIPE, Look, at_rest, check_alone, check_complete, check_signs, pick, probe
from .dpsgd import DPSGD
from .drawing import find_rows
from .ghost import Ghost
from .layers import Pieces
from .size import PUBLIC, describe_declared
from .tree import Tree

CHECKED = 2  # batches that are compared with torch's own gradients, and with one example at a time
MISSED = (
    "DPSGD: the batch's gradients did not reach the layers that were attached, so that the step would be "
    "noise alone. Call backward for every batch, "
    "on a loss of the attached model, not of a copy and not of one compiled before attach."
)
ANYONE = "whoever sees the model, at every step of its training"


class Session:
    """What `DPSGD.attach` gives: iterate it in place of your loader, one epoch each time; or `draw` rows
    yourself, as a GAN does.
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
        self._held, self._fetch, of_loader = find_rows(data, settings)
        self.rows = (
            self._held if settings.public_size is None else settings.public_size
        )  # what rate, steps and ledger go by
        size = of_loader if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= self.rows:
            raise bad(
                "DPSGD", "batch_size", size, f"a whole number between 1 and the number of rows, {self.rows:,}"
            )
        self.batch_size = int(size)
        self.per_epoch = -(-self.rows // self.batch_size)
        self.planned = _planned(settings, epochs, steps, self.per_epoch)
        if settings.private and settings.delta >= 1 / self.rows:
            warnings.warn(
                f"DPSGD: delta is {settings.delta:g}, and there are {self.rows:,} rows: δ ≥ 1/rows allows a "
                "method that publishes a random "
                f"row in the clear. "
                f"Use δ well below {1 / self.rows:.2g}.",
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
            probe(model, self._fetch, settings)
        self.ghost = Ghost(
            model,
            settings.factors(),
            "per-layer" if settings.clipping == "per-layer" else "flat",
            settings.method,
        )
        self.ghost.mean = settings.reduction == "mean"
        self.ghost.after, self.ghost.inspect = self._pass, self._inspect
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not all(id(p) in held for p in self.ghost.parameters) or not held <= {
            id(p) for p in model.parameters()
        }:
            self.ghost.close()
            raise BadParameter(
                "DPSGD: the optimiser does not hold the parameters of this model, all of them and no "
                "others. Make it with "
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
        self._left = 0  # rows of the step's batch that have not been handed out yet
        self._expected: int | None = None  # rows of the chunk handed out, whose backward pass is awaited
        self._drawn: int | None = None  # rows that `draw` gave out
        self._open = False
        self._looks = 0
        # whether the batch handed out is compared and not trained on: a loop may leave its schedule alone
        # then
        self.checking = False
        self._unchecked, self._uncompared = CHECKED, CHECKED
        self._by_row = False  # within `backward`
        self._plain = False  # whether the loop calls backward on a loss of its own reduction
        self._look: Look | None = None
        self._signed: tuple[Pieces, Tensor] | None = None
        self._step = optimizer.step
        optimizer.step = types.MethodType(lambda _, closure=None: self._stepped(closure), optimizer)  # type: ignore[method-assign]

    # what it costs ------------------------------------------------------------------------------------------

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
            steps=self.planned or 1,
            accountant=s.accountant,
            earlier=earlier,
        )

    def _account(self, file: Path | None) -> Account:
        s = self.settings
        assert self.release is not None
        account = Account(self.release, s.delta, s.epsilon, self.planned or 10**9, file)
        if not account.spent and s.epsilon is not None and s.noise_multiplier is None:
            account._allowed = self.planned  # for which the noise was found
        if s.epsilon is not None and not account.may_spend():
            raise BudgetSpent(
                f"DPSGD: the budget of ε = {s.epsilon:g} at δ = {s.delta:g} is already spent: "
                f"{account.spent} steps cost ε = "
                f"{account.epsilon():.4g}"
                + (f", says {file}" if file else "")
                + ". Privacy once given away stays given away; give a larger budget, or more noise."
            )
        return account

    @property
    def epsilon(self) -> float:
        """ε of the steps begun so far, at the settings' δ; infinite where nothing is guaranteed."""
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
        """The rows of the next step, drawn in secret; possibly none. Call `backward` on them once, and then
        the optimiser's step.
        """
        self._begin()
        index = torch.from_numpy(self._draw())
        self._left, self._expected, self._drawn = 0, None, len(index)
        return index

    def __len__(self) -> int:
        return self.per_epoch

    def __iter__(self) -> Iterator[Any]:
        """One epoch of batches; a batch larger than `micro_batch` in chunks, of which the last one's step
        counts. One without rows still costs a step of noise, and is taken here. The first batches are handed
        out twice more, whole and one row of it alone, to compare them (`checking`).
        """
        if self._fetch is None:
            raise BadParameter(
                "DPSGD: attach was told how many rows there are, not which; draw their numbers with "
                ".draw(), or attach a loader."
            )
        for _ in range(self.per_epoch):
            self._begin()
            index = self._draw()
            chunk = self.settings.micro_batch or max(1, len(index))
            self._left, self._drawn, self._expected = len(index), None, None
            if self._uncompared or (
                self._plain and self.steps & (self.steps - 1) == 0
            ):  # and then ever more rarely
                yield from self._compare(index[:chunk])
            for i in range(0, len(index), chunk):
                part = index[i : i + chunk]
                self._left -= len(part)
                self._expected, self._looks = len(part), 0
                yield self._fetch(part)
                self.ghost.flush()
            if not len(index):
                self._stepped(None)

    def _compare(self, index: np.ndarray) -> Iterator[Any]:
        """Hand out these rows, and then one of them alone: its gradient must be the same. The model is in
        evaluation mode, so that nothing is dropped out.
        """
        if len(index) < 2:
            return

        def seen(part: np.ndarray) -> Iterator[Any]:
            self.checking, self._look, self._expected, self._looks = True, None, len(part), 0
            try:
                yield self._fetch(part)  # type: ignore[misc]
                self.ghost.flush()
            finally:
                self.checking, self._looks = False, 0
                self.ghost.take_pieces()
                self.ghost.watch(self.ghost.watched)  # forgets this pass's gradients of the parameters

        with at_rest(self.model):
            yield from seen(index)
            together = self._look
            if together is None:
                raise BadParameter(MISSED)
            row = pick(together)
            yield from seen(index[row : row + 1])
            alone = self._look
        if alone is None:
            raise BadParameter(MISSED)
        coarse = self.ghost.short or next(self.model.parameters()).is_cuda  # bfloat16, or TF32
        check_alone(together, alone, row, len(index), 0.05 if coarse else 2e-3)
        self._uncompared = max(0, self._uncompared - 1)

    def _inspect(self, pieces: Pieces) -> bool:
        """Check what a pass left, before it is used; whether it is used."""
        rows = len(next(iter(pieces.values()))[0].g)
        if self.checking:
            if self.ghost.public:
                return False
            self._pass(rows)
            self._plain = self._plain or not self._by_row
            self._look = Look(pieces, 1.0 if self._by_row or not self.ghost.mean else float(rows))
            return False
        if self.ghost.watched:
            if self._signed is not None:
                check_signs(self._signed[0], pieces, self._signed[1])
            check_complete(self.ghost, pieces)
            if rows > 1 and not self.ghost.public:
                self._unchecked = max(0, self._unchecked - 1)
        return True

    def _begin(self) -> None:
        if self._open and self._looks:
            self._open, self._looks = False, 0
            self.ghost.drop()
            raise BadParameter(
                "DPSGD: the last batch went backward and no optimizer.step() followed, so its gradient "
                "would be lost and charged. Call step() "
                "once for each batch; to sum over several, use a larger batch_size with micro_batch."
            )
        if self.account is not None:
            if self.settings.epsilon is not None and not self.account.may_spend():
                raise BudgetSpent(
                    f"DPSGD: the budget of ε = {self.settings.epsilon:g} at δ = {self.settings.delta:g} is "
                    "already spent after "
                    f"{self.account.spent} steps: "
                    "the next one would exceed it. Stop here, or begin a new run with more noise."
                )
            self.account.spend(self.steps + 1)
        self.ghost.drop()
        self.ghost.watch(self._unchecked > 0)
        self.steps += 1
        self._open, self._looks = True, 0

    def _draw(self) -> np.ndarray:
        n, b = self._held, self.batch_size
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
        """The backward pass of one loss for each example, [B]. `public` is for examples that are nobody's (a
        generator's): they are not clipped, and may be looked at any number of times.
        """
        if losses.dim() != 1:
            raise BadParameter(
                f"DPSGD: backward was given losses of shape {tuple(losses.shape)}; it must be one loss for "
                "each row, [rows]. Compute them with "
                "reduction='none', and take the mean over a row's own positions."
            )
        self.ghost.flush()
        self.ghost.public, self._by_row = public, True
        before, self.ghost.mean = self.ghost.mean, False
        expected = self._expected
        if public:
            self._expected = None
        try:
            if self.ghost.watched and not public and not self.checking and len(losses) > 1:
                own = torch.Generator().manual_seed(
                    self.steps
                )  # the loop's own random numbers stay as they were
                signs = torch.randint(0, 2, losses.shape, generator=own).mul_(2).sub_(1).to(losses.device)
                (losses * signs).sum().backward(retain_graph=True)
                self._signed = self.ghost.take_pieces(), signs
                self.ghost.watch(True)  # forgets that pass's gradients of the parameters
            losses.sum().backward()  # type: ignore[no-untyped-call]
            self.ghost.flush()
        finally:
            self.ghost.mean, self.ghost.public, self._expected = before, False, expected
            self._by_row, self._signed = False, None

    def paused(self) -> AbstractContextManager[None]:
        """Passes in here leave no trace in the model's gradients: those of a generator through its critic."""
        return self.ghost.paused()

    def _pass(self, rows: int) -> None:
        """Told at the end of every backward pass, before its gradients are used."""
        if self.ghost.public and self._open:
            return
        if not self._open:
            raise BadParameter(
                "DPSGD: a backward pass on rows that were not drawn for this step; ε would be of another "
                "run. Take the batches from the session "
                "(`for x, y in private`), or call draw() before each step."
            )
        if self._drawn is not None and not self._by_row:
            raise BadParameter(
                "DPSGD: backward was called on a loss that had been reduced, and on rows from draw() what "
                "that did "
                f"to them cannot be compared. {RECIPE}."
            )
        self._looks += 1
        if self._looks > 1:
            raise BadParameter(
                "DPSGD: a second backward pass in one step; an example that is looked at twice may move the "
                "sum by twice the clipping "
                "norm. Add the "
                "losses and call backward once; for examples that are nobody's use backward(…, public=True)."
            )
        if self._drawn is not None and rows > self._drawn:
            raise BadParameter(
                f"DPSGD: {self._drawn} rows were drawn and {rows} came through the model. Give it the rows "
                "drawn, each once."
            )
        if self._expected is not None and rows != self._expected:
            raise BadParameter(
                f"DPSGD: {self._expected} rows were drawn and {rows} came through the model. Give it the "
                "batch as it was drawn, one row "
                f"an example."
            )

    def _stepped(self, closure: Any) -> Any:
        if closure is not None:
            raise BadParameter(
                "DPSGD: the optimiser's step was given a closure, which looks at the batch several times. "
                "Call step() without one."
            )
        if not self._open:
            raise BadParameter(
                "DPSGD: a step for which no rows were drawn; ε would be of another run. Take the batches "
                "from the session (`for x, y in "
                "private`), or "
                "call draw() before each step."
            )
        self.ghost.flush()
        if self.checking or self._left:
            return None  # a batch to compare, or a chunk; the step is taken after the last
        if self._expected and not self._looks:
            raise BadParameter(MISSED)
        self._open = False
        sums = self.ghost.take()
        if self.release is not None:
            sums = (
                noise.noisy(sums, self.sigma, self._source)
                if self.tree is None
                else noise.released(sums, self.sigma, self.tree.next())
            )
        for p, total in zip(self.ghost.parameters, sums):
            p.grad = total.div_(
                self.batch_size
            )  # the expected size: the actual one is as secret as who is in it
        return self._step()

    def close(self) -> None:
        """Give model and optimiser back as they were."""
        self.ghost.close()
        self.optimizer.step = self._step  # type: ignore[method-assign]


def spend(
    settings: DPSGD,
    account: Account,
    batch_size: int,
    rows: int,
    who: str = "row",
    adversary: str = ANYONE,
    note: str = "",
) -> Spend:
    """The line of the ledger."""
    r = account.release
    unit = {"poisson": f"{who}, present or not", "tree": f"{who}, left out of its place or not"}.get(
        r.sampling, f"{who}, exchanged for another"
    )
    about = "" if note in ("", PUBLIC) else "about "
    sampling = {
        "poisson": f"Poisson ({batch_size} of {about}{rows:,} rows expected, drawn in secret)",
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


def _planned(s: DPSGD, epochs: float | None, steps: int | None, per_epoch: int) -> int | None:
    if epochs is not None and steps is not None:
        raise BadParameter("DPSGD: both epochs and steps are given. Give one: how long the run is.")
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
            f"DPSGD: epsilon is {s.epsilon:g}, and how long the run is was not said, so the noise cannot be "
            "found. Give attach epochs=10 "
            f"or steps=1000."
        )
    return planned

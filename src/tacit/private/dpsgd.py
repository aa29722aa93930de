"""DP-SGD: settings and `attach`.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: *Deep Learning with
Differential Privacy*, CCS 2016, Algorithm 1; DP-FTRL: P. Kairouz et al., ICML 2021.

    private = tacit.private.DPSGD(epsilon=3.0, delta=1e-5, clip=1.0).attach(
        model, optimizer, loader, epochs=10
    )
    for epoch in range(10):
        for x, y in private:            # instead of: in loader
            optimizer.zero_grad()
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
    print(private.ledger)

`DPSGD` has the settings; `attach` checks the model and calibrates the noise, and returns a session
(`session.py`) that draws the rows, clips, adds noise and keeps the account. Any torch optimizer takes the
step: with torch.optim.Adam this is DP-Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from ..parameters import bad, check, choice, real, whole
from . import ghost

if TYPE_CHECKING:
    from ..accounting import Release
    from .session import Session


@dataclass(frozen=True)
class DPSGD:
    """Clip per-example gradients, add Gaussian noise to the sum, divide by the expected batch."""

    epsilon: float | None = real(
        None,
        above=0,
        none=True,
        doc="ε of the whole run: the noise is calibrated to it, and no step exceeds it",
    )
    delta: float = real(1e-5, above=0, below=1, doc="δ; well below one over the number of rows")
    noise_multiplier: float | None = real(
        None, least=0, none=True, doc="σ/C, instead of epsilon; 0 adds no noise, which is not private"
    )
    clip: float | None = real(
        1.0,
        above=0,
        none=True,
        doc="C, the clipping norm of an example's gradient; None disables clipping, which is not private",
    )
    clipping: str = choice(
        "flat",
        ("flat", "per-layer", "automatic"),
        doc="one factor per example; one per example and layer; normalize every gradient to C",
    )
    gamma: float = real(0.01, above=0, doc="γ of automatic clipping: much smaller gradients stay small")
    sampling: str = choice(
        "poisson", ("poisson", "shuffle", "fixed"), doc="how rows are drawn; determines the accounting"
    )
    accountant: str = choice(
        "auto",
        ("auto", "pld", "rdp", "gaussian"),
        doc="how steps are composed; must support the sampling",
    )
    micro_batch: int | None = whole(
        None,
        least=1,
        none=True,
        doc="rows in memory at a time; a step is taken after the whole batch",
    )
    public_size: int | None = whole(
        None,
        least=1,
        none=True,
        doc="public number of rows, from which the sampling rate is computed; in a federation, of each party",
    )
    reduction: str = choice(
        "mean", ("mean", "sum"), doc="reduction over the batch of a loss on which you call backward yourself"
    )
    method: str = choice(
        "auto",
        ("auto", "functional"),
        doc="per-example gradients: the fastest method for each layer, or torch.func for the whole model",
    )
    tree: ClassVar[bool] = False

    def check(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise BadParameter(
                f"{type(self).__name__}: neither epsilon nor noise_multiplier is given. Give epsilon=3.0 and "
                "delta=1e-5 for the whole run, or noise_multiplier=1.0."
            )
        if self.clip is None and self.noise_multiplier != 0:
            raise BadParameter(
                f"{type(self).__name__}: clip is None, so gradients are unbounded and no noise suffices. "
                "Give clip=1.0, or noise_multiplier=0 for training without privacy."
            )
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise BadParameter(
                f"{type(self).__name__}: noise_multiplier is 0 and epsilon is {self.epsilon:g}; without "
                "noise there is no ε. Remove one of them."
            )
        if self.public_size is not None and self.sampling != "poisson":
            raise bad(
                type(self).__name__,
                "public_size",
                self.public_size,
                "None unless sampling is 'poisson'",
                f"Under {self.sampling!r} neighboring data sets have equally many rows, so their number is "
                "not protected.",
            )

    @property
    def private(self) -> bool:
        return self.clip is not None and self.noise_multiplier != 0

    def factors(self) -> Callable[[Tensor], Tensor]:
        """Return the function from gradient norms to clipping factors."""
        if self.clip is None:
            return ghost.unit_factors
        return (
            ghost.automatic_factors(self.clip, self.gamma)
            if self.clipping == "automatic"
            else ghost.flat_factors(self.clip)
        )

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        insecure_seed: int | None = None,
        file: str | Path | None = None,
        earlier: Sequence[Release] = (),
    ) -> Session:
        """Train this model with this optimizer on these rows.

        `data` is a DataLoader, a torch Dataset, tensors `(x, y)`, or a number of rows for a loop that calls
        `Session.draw`. `epochs` or `steps` is the length of the run; with `epsilon`, the noise is calibrated
        to it. `file` keeps the account across restarts. `insecure_seed` makes the secret randomness
        replayable, for tests only; the ledger is stamped NOT PRIVATE. `earlier` are releases of the same rows
        under the same ε: the noise leaves room for them, and the caller charges them to the session's
        account.
        """
        from .session import Session

        return Session(
            check(self), model, optimizer, data, epochs, steps, batch_size, insecure_seed, file, earlier
        )


@dataclass(frozen=True)
class DPFTRL(DPSGD):
    """DP-FTRL, for rows that cannot be sampled.

    Rows come in a fixed order, each once per epoch, and the noise of the steps is correlated.
    """

    sampling: str = choice("order", ("order",), doc="rows in their given order, each once per epoch")
    accountant: str = choice("auto", ("auto", "gaussian"), doc="how steps are composed")
    tree: ClassVar[bool] = True


ALL: dict[str, type[DPSGD]] = {"DPSGD": DPSGD, "DPFTRL": DPFTRL}

"""DP-SGD. M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: "Deep Learning
with Differential Privacy", CCS 2016, Algorithm 1; DP-FTRL: P. Kairouz et al., ICML 2021.

    private = tacit.private.DPSGD(epsilon=3.0, delta=1e-5, clip=1.0).attach(model, optimizer, loader,
    epochs=10) for epoch in range(10):
        for x, y in private:            # was: in loader
            optimizer.zero_grad()
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
    print(private.ledger)

`DPSGD` is the settings, `attach` checks the model and finds the noise, and what it gives back (`session.py`)
draws the rows, clips, adds noise and keeps the account. Whatever torch optimiser it was given does the step:
with torch.optim.Adam this is DP-Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from ..errors import BadParameter
from ..parameters import bad, check, choice, real, whole
from . import ghost

if TYPE_CHECKING:
    from ..accounting import Release
    from .session import Session


@dataclass(frozen=True)
class DPSGD:
    """Clip every example's gradient, add Gaussian noise to their sum, divide by the expected batch size."""

    epsilon: float | None = real(
        None,
        above=0,
        none=True,
        doc="ε for the whole run: the noise is found from it, and no step is taken beyond it",
    )
    delta: float = real(1e-5, above=0, below=1, doc="δ; well below one over the number of rows")
    noise_multiplier: float | None = real(
        None, least=0, none=True, doc="σ/C, in place of ε; 0 adds none, which is not private"
    )
    clip: float | None = real(
        1.0,
        above=0,
        none=True,
        doc="C, the longest an example's gradient may be; None clips nothing, which is not private",
    )
    clipping: str = choice(
        "flat",
        ("flat", "per-layer", "automatic"),
        doc="one factor an example; one an example and layer; every gradient to length C",
    )
    gamma: float = real(
        0.01, above=0, doc="γ of automatic clipping: gradients much shorter than this stay short"
    )
    sampling: str = choice(
        "poisson", ("poisson", "shuffle", "fixed"), doc="how rows are drawn; the accountant follows it"
    )
    accountant: str = choice(
        "auto",
        ("auto", "pld", "rdp", "gaussian"),
        doc="how steps are composed; one that does not describe the sampling is refused",
    )
    micro_batch: int | None = whole(
        None,
        least=1,
        none=True,
        doc="rows in memory at a time; a step is taken when the whole batch has been seen",
    )
    public_size: int | None = whole(
        None,
        least=1,
        none=True,
        doc="how many rows there are, where that is public: what the sampling rate is computed from; "
        "in a federation, of each party",
    )
    reduction: str = choice(
        "mean", ("mean", "sum"), doc="what a loss that you call backward on does with the examples of a batch"
    )
    method: str = choice(
        "auto",
        ("auto", "functional"),
        doc="per-example gradients: the fastest for each layer, or torch.func for the whole model",
    )
    tree: ClassVar[bool] = False

    def check(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise BadParameter(
                f"{type(self).__name__}: neither epsilon nor noise_multiplier is given. Give epsilon=3.0 "
                "and delta=1e-5 for the whole run, or "
                "noise_multiplier=1.0."
            )
        if self.clip is None and self.noise_multiplier != 0:
            raise BadParameter(
                f"{type(self).__name__}: clip is None, so an example's gradient has no bound that noise "
                "could hide. Give clip=1.0, or "
                "noise_multiplier=0 for training without privacy."
            )
        if self.noise_multiplier == 0 and self.epsilon is not None:
            raise BadParameter(
                f"{type(self).__name__}: noise_multiplier is 0 and epsilon is {self.epsilon:g}; without "
                "noise there is no ε. Leave one "
                f"of them out."
            )
        if self.public_size is not None and self.sampling != "poisson":
            raise bad(
                type(self).__name__,
                "public_size",
                self.public_size,
                "None unless sampling is 'poisson'",
                f"Under {self.sampling!r} two neighbors have equally many rows, so their number is not "
                "protected.",
            )

    @property
    def private(self) -> bool:
        return self.clip is not None and self.noise_multiplier != 0

    def factors(self) -> Any:
        """The rule from norms to factors."""
        if self.clip is None:
            return ghost.unclipped
        return (
            ghost.automatic(self.clip, self.gamma) if self.clipping == "automatic" else ghost.flat(self.clip)
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
        """Train this model under this optimiser on these rows.

        `data` is your DataLoader, a torch Dataset, tensors `(x, y)`, or the number of rows for a loop that
        draws with `Session.draw`. `epochs` or `steps` says how long the run is: with ε given, the noise is
        for so many steps. `file` keeps the account over restarts. `insecure_seed` makes secrets replayable, for
        tests only; the ledger is stamped NOT PRIVATE. `earlier` are releases of these rows for which the same
        ε pays: the noise leaves room for them, and whoever makes them spends them from the session's account.
        """
        from .session import Session

        return Session(
            check(self), model, optimizer, data, epochs, steps, batch_size, insecure_seed, file, earlier
        )


@dataclass(frozen=True)
class DPFTRL(DPSGD):
    """For settings in which rows cannot be sampled: they come in any order, each once in an epoch, and the
    noise of the steps is correlated.
    """

    sampling: str = choice("order", ("order",), doc="rows in the order they have, each once an epoch")
    accountant: str = choice("auto", ("auto", "gaussian"), doc="how steps are composed")
    tree: ClassVar[bool] = True


ALL: dict[str, type[DPSGD]] = {"DPSGD": DPSGD, "DPFTRL": DPFTRL}

"""TVAE: a variational autoencoder for tables.

L. Xu, M. Skoularidou, A. Cuesta-Infante, K. Veeramachaneni, *Modeling Tabular Data using Conditional GAN*,
NeurIPS 2019, Section 4.5, after D. P. Kingma, M. Welling, *Auto-Encoding Variational Bayes*, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..parameters import choice, real, whole
from .adversarial import choose_device, torch_seed
from .encode import Conditions, Layout
from .generator import Generator, GeneratorState, Watch, run_epochs
from .modes import Encoding


@dataclass(frozen=True)
class TVAE(Generator):
    """An encoder to a Gaussian latent space, and a decoder to a distribution per column."""

    epochs: int = whole(300, least=1, doc="epochs of training")
    batch: int | None = whole(
        None, least=1, none=True, doc="batch size; None: a fortieth of the rows, from 50 to 500"
    )
    lr: float = real(1e-3, above=0, doc="learning rate (Adam)")
    decay: float = real(1e-5, least=0, doc="weight decay")
    latent: int = whole(128, least=1, doc="width of the latent space")
    width: int = whole(128, least=1, doc="width of both hidden layers of encoder and decoder")
    reconstruction: float = real(
        2.0, above=0, doc="weight of the reconstruction loss relative to the KL divergence"
    )
    modes: int = whole(10, least=1, doc="maximum number of Gaussian modes of a numeric column")
    device: str = choice("auto", ("auto", "cpu", "cuda"), doc="device for training and sampling")
    seed: int = whole(0, least=0, doc="random seed of the fit")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        device = choose_device(self.device)
        encoding = Encoding.fit(layout, v, self.modes)
        rows = encoding.encode(v, rng).to(device)
        batch = self.batch or batch_size(len(rows))
        with torch_seed(self.seed, device):
            encoder, decoder = (
                _build_mlp(encoding.width, self.width, 2 * self.latent).to(device),
                _build_mlp(self.latent, self.width, encoding.width).to(device),
            )
            log_sigma = torch.full((encoding.width,), float(np.log(0.1)), device=device, requires_grad=True)
            optimizer = torch.optim.Adam(
                [*encoder.parameters(), *decoder.parameters(), log_sigma],
                lr=self.lr,
                weight_decay=self.decay,
                fused=True,
            )

            def train_epoch(epoch: int) -> dict[str, float]:
                total = rows.new_zeros(())
                for index in torch.split(torch.randperm(len(rows), device=device), batch):
                    x = rows[index]
                    mean, log_variance = encoder(x).chunk(2, dim=1)
                    z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
                    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
                    loss = (
                        self.reconstruction * _reconstruction_loss(decoder(z), x, log_sigma, encoding)
                        + divergence
                    ) / len(x)
                    optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimizer.step()
                    with torch.no_grad():
                        log_sigma.clamp_(float(np.log(0.01)), 0.0)  # σ in [0.01, 1], as in the authors' code
                        total += loss.detach() * len(x)
                return {"loss": float(total) / len(rows)}

            history = run_epochs(self.epochs, train_epoch, watch)
        state = {f"decoder.{name}": t.detach().cpu() for name, t in decoder.state_dict().items()}
        return GeneratorState(
            {**encoding.tensors(), **state, "log_sigma": log_sigma.detach().cpu()}, history=history
        )

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        encoding, device = Encoding.from_tensors(layout, state.tensors), choose_device(self.device)
        with torch_seed(int(rng.integers(2**62)), device), torch.no_grad():
            decoder = _build_mlp(self.latent, self.width, encoding.width).to(device)
            decoder.load_state_dict(
                {
                    name.removeprefix("decoder."): t
                    for name, t in state.tensors.items()
                    if name.startswith("decoder.")
                }
            )
            raw = decoder(torch.randn(n, self.latent, device=device))
            # sample from the decoder's distribution: Gaussian scalars, and the argmax with Gumbel noise
            drawn = raw - torch.log(torch.empty_like(raw).exponential_().clamp_min(1e-20))
            at = encoding.scalars
            drawn[:, at] = torch.tanh(raw[:, at]) + torch.randn_like(raw[:, at]) * torch.exp(
                state.tensors["log_sigma"].to(device)[at]
            )
        return encoding.decode(drawn.cpu().numpy())


def batch_size(rows: int) -> int:
    """Return the batch size for so many rows.

    Small tables need small batches for enough steps: 60 epochs of 2,000 rows are 240 steps of 500 rows, after
    which TVAE had learned no dependence (TSTR .63), and 2,400 of 50 rows (.75; lognormal and Pareto columns).
    """
    return min(max(rows // 40, 50), 500)


def _build_mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def _reconstruction_loss(raw: Tensor, x: Tensor, log_sigma: Tensor, encoding: Encoding) -> Tensor:
    """Return −log p(x | z), summed: cross-entropy of indicators, Gaussian for scalars."""
    at = encoding.scalars
    gap = x[:, at] - torch.tanh(raw[:, at])
    total = (0.5 * gap**2 * torch.exp(-2 * log_sigma[at]) + log_sigma[at]).sum()
    for b in encoding.blocks:
        total = total - (x[:, b.indicators] * functional.log_softmax(raw[:, b.indicators], dim=1)).sum()
    return total

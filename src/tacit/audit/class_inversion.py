"""Model inversion: a row of a class from a model's confidence in it.

M. Fredrikson, S. Jha, T. Ristenpart: "Model Inversion Attacks that Exploit Confidence Information and Basic
Countermeasures", CCS 2015: `climb`, their MI-Face with the model's weights, and rounding as the
countermeasure. With confidences alone, the gradient is estimated from antithetic pairs of queries
(`estimate`; natural evolution strategies: D. Wierstra et al., JMLR 15, 2014).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .inversion import total_variation

Bounds = tuple[Tensor | float, Tensor | float] | None
Confidences = Callable[[Tensor], Tensor]  # rows [n, …] → probabilities [n, C]
FLOOR = 1e-6  # confidences are raised to it: a service that rounds returns 0


def climb(
    module: nn.Module,
    start: Tensor,
    classes: Tensor,
    *,
    steps: int = 200,
    lr: float = 0.05,
    tv: float = 0.0,
    bounds: Bounds = None,
    watch: Callable[[int, int], bool | None] | None = None,
) -> Tensor:
    """Raise the logarithm of each row's confidence in its class by gradient steps on the row (Adam)."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=lr)
    for step in range(steps):
        log = module(x).log_softmax(-1).gather(-1, classes[:, None]).sum()
        x.grad = torch.autograd.grad(tv * len(x) * total_variation(x) - log, x)[0]
        _step(optimizer, x, bounds)
        if watch is not None and watch(step + 1, steps):
            break
    return x.detach()


def estimate(
    answer: Confidences,
    start: Tensor,
    classes: Tensor,
    *,
    steps: int = 200,
    pairs: int = 32,
    width: float = 0.1,
    lr: float = 0.05,
    tv: float = 0.0,
    bounds: Bounds = None,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> Tensor:
    """The same with confidences only: 2 · `pairs` queries for each row and step, at distance `width`."""
    x, rng = start.clone(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([x], lr=lr)
    shape = (len(x), pairs, *x.shape[1:])
    for step in range(steps):
        noise = torch.randn(shape, generator=rng)
        both = torch.cat([x[:, None] + width * noise, x[:, None] - width * noise], 1)
        asked = answer(both.reshape(-1, *x.shape[1:])).clamp(min=FLOOR).log()
        log = asked.gather(-1, classes.repeat_interleave(2 * pairs)[:, None])[:, 0].view(len(x), 2, pairs)
        slope = (log[:, 0] - log[:, 1]) / (2 * width)
        gradient = (slope.view(len(x), pairs, *[1] * (x.dim() - 1)) * noise).mean(1)
        smooth = torch.zeros_like(x)
        if tv:
            with torch.enable_grad():
                own = x.detach().requires_grad_()
                smooth = torch.autograd.grad(len(x) * total_variation(own), own, allow_unused=True)[0]
        x.grad = tv * smooth - gradient
        _step(optimizer, x, bounds)
        if watch is not None and watch(step + 1, steps):
            break
    return x.detach()


def _step(optimizer: torch.optim.Optimizer, x: Tensor, bounds: Bounds) -> None:
    optimizer.step()
    if bounds is not None:
        x.data.clamp_(*(torch.as_tensor(b) for b in bounds))


def class_means(x: Tensor, y: Tensor, classes: Tensor) -> Tensor:
    """[K, features]: the mean row of each class, in float64."""
    flat = x.double().flatten(1)
    return torch.stack([flat[y == c].mean(0) for c in classes.tolist()])


def likeness(rebuilt: Tensor, means: Tensor) -> Tensor:
    """[K, C]: the correlation of each rebuilt row with each class's mean row, both less the mean of all.

    Without the common mean, two classes that share a background are alike.
    """
    seen = means.std(0) > 1e-3 * means.std()  # a pixel that all classes share tells nothing
    a, b = ((t - means.mean(0))[:, seen] for t in (rebuilt.double().flatten(1), means))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    cosine: Tensor = (a @ b.T) / (a.norm(dim=1)[:, None] * b.norm(dim=1)[None]).clamp(min=1e-30)
    return cosine

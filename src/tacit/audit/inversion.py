"""Gradient inversion: rebuild a client's rows from the update that it sends.

Exact rows from a linear layer: L. T. Phong, Y. Aono, T. Hayashi, L. Wang, S. Moriai: "Privacy-Preserving Deep
Learning via Additively Homomorphic Encryption", TIFS 13(5), 2018; batches: F. Boenisch et al.: "When the
Curious Abandon Honesty", EuroS&P 2023 (also the trap weights). A malicious first layer that sorts rows into
bins: L. Fowl, J. Geiping, W. Czaja, M. Goldblum, T. Goldstein: "Robbing the Fed", ICLR 2022. A malicious
last layer that shows the rows of one class: Y. Wen, J. Geiping, L. Fowl, M. Goldblum, T. Goldstein: "Fishing
for User Data in Large-Batch Federated Learning via Gradient Magnification", ICML 2022, class fishing.
Labels: B. Zhao, K. Mopuri, H. Bilen: "iDLG", 2020. DLG: L. Zhu, Z. Liu, S. Han: "Deep Leakage from
Gradients", NeurIPS 2019. Cosine and total variation: J. Geiping, H. Bauermeister, H. Dröge, M. Moeller:
"Inverting Gradients: How easy is it to break privacy in federated learning?", NeurIPS 2020; several local
steps are simulated by the attacker, as there.

An update is a list of tensors, one for each trainable parameter: (w_before − w_after) / η. After one step
this is the gradient.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..engine.members import members_of
from ..errors import BadParameter

Loss = Callable[[Tensor, Tensor], Tensor]
SAME = 1e-3  # relative distance of two neurons' ratios that are the same row: updates are float32 differences
SMALL = 1e-3  # a bias gradient below this share of the largest is too inexact to compare
OUTSIDE = 0.1  # how far an exact row may lie outside of the range of values


@dataclass(frozen=True)
class ClientSteps:
    """What a server knows of a client's work: n rows, in batches of B, E times, with learning rate η."""

    rows: int
    lr: float = 1.0
    batch_size: int | None = None
    epochs: int = 1

    def batches(self) -> list[slice]:
        size = self.batch_size or self.rows
        return [slice(i, i + size) for i in range(0, self.rows, size)] * self.epochs


def update_of(module: nn.Module, x: Tensor, y: Tensor, client: ClientSteps, loss: Loss) -> list[Tensor]:
    """The update of a client with these rows; differentiable in x.

    The members of an ensemble have a loss each, and a client descends their sum.
    """
    start = {k: p.detach().requires_grad_() for k, p in module.named_parameters() if p.requires_grad}
    now, total = start, [torch.zeros_like(p) for p in start.values()]
    batches = client.batches()
    for step, at in enumerate(batches):
        value = _loss_at(module, now, x[at], y[at], loss)
        gradients = torch.autograd.grad(value, list(now.values()), create_graph=True)
        total = [a + g for a, g in zip(total, gradients)]
        if step + 1 < len(batches):
            now = {k: p - client.lr * g for (k, p), g in zip(now.items(), gradients)}
    return total


def _loss_at(module: nn.Module, values: dict[str, Tensor], x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    members = members_of(module)
    if not members:
        return loss(functional_call(module, values, (x,)), y)
    each = []
    for k, member in enumerate(members):
        start = f"members.{k}."
        own = {name.removeprefix(start): v for name, v in values.items() if name.startswith(start)}
        each.append(loss(functional_call(member, own, (x,)), y))
    return torch.stack(each).sum()


def first_linear(module: nn.Module, shape: Sequence[int]) -> nn.Linear | None:
    """The layer that reads the rows themselves, if it is linear and has a bias."""
    first = next((m for m in module.modules() if any(True for _ in m.parameters(recurse=False))), None)
    if isinstance(first, nn.Linear) and first.bias is not None and first.in_features == math.prod(shape):
        return first
    return None


def gradient_of(module: nn.Module, update: Sequence[Tensor], parameter: Tensor) -> Tensor:
    """The part of an update that belongs to a parameter."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    return next(u for p, u in zip(trainable, update) if p is parameter)


def exact_rows(weight: Tensor, bias: Tensor, bounds: tuple[float, float] | None = None) -> Tensor:
    """[K, features]: rows that were the only ones to activate two or more neurons of a linear layer.

    For such a neuron i, ∂L/∂W_i = δ·x and ∂L/∂b_i = δ, so the ratio is the row itself. With a single row in
    the batch, all neurons agree on it; if several rows activate a neuron, its ratio is a mixture, on which no
    other neuron agrees.
    """
    keep = bias.abs() > SMALL * bias.abs().max().clamp(min=1e-30)
    order = bias[keep].abs().argsort(descending=True)
    ratios = (weight[keep] / bias[keep][:, None])[order]
    if bounds is not None:  # mixtures with weights of both signs lie anywhere
        room = OUTSIDE * (bounds[1] - bounds[0])
        ratios = ratios[((ratios >= bounds[0] - room) & (ratios <= bounds[1] + room)).all(1)]
    if not len(ratios):
        return ratios
    distance = torch.cdist(ratios.double(), ratios.double()) / ratios.double().norm(dim=1).clamp(min=1e-9)
    same = distance < SAME
    found, used = [], torch.zeros(len(ratios), dtype=torch.bool)
    for i in range(len(ratios)):
        if not used[i] and int(same[i].sum()) >= 2:
            spread = float(distance[i][same[i]].sum() / (same[i].sum() - 1))
            found.append((spread, ratios[i]))  # the neuron with the largest gradient, which is the most exact
            used |= same[i]
    found.sort(key=lambda pair: pair[0])  # mixtures of similar rows agree less
    return torch.stack([row for _, row in found]) if found else ratios[:0]


def infer_labels(
    module: nn.Module, update: Sequence[Tensor], client: ClientSteps, shape: Sequence[int]
) -> Tensor:
    """[n]: the labels of the client's rows, from the last layer's bias.

    Its gradient is mean(p_c) − n_c/n. A single row has its label where the gradient is negative. For batches,
    p is taken as the model's mean output on noise, and counts are rounded to sum up to n.
    """
    network = (members_of(module) or [module])[0]  # the labels are those of each member
    last = last_linear(network)
    if last is None:
        raise BadParameter(
            "invert: labels are read from the last linear layer's bias, and this model has none. Give "
            "labels=."
        )
    gradient = gradient_of(module, update, last.bias) / len(client.batches())
    if client.rows == 1:
        return gradient.argmin()[None]
    with torch.no_grad():
        noise = torch.rand((64, *shape), generator=torch.Generator().manual_seed(0))
        mean = network(noise).softmax(-1).mean(0)
    counts = (client.rows * (mean - gradient)).clamp(min=0)
    whole = counts.floor().long()
    for c in (counts - whole).argsort(descending=True)[: max(0, client.rows - int(whole.sum()))]:
        whole[c] += 1
    labels = torch.repeat_interleave(torch.arange(len(whole)), whole)
    missing = client.rows - len(labels)
    more = gradient.argsort()[: max(0, missing)]
    return torch.cat([labels, more, more.new_zeros(max(0, missing - len(more)))])[: client.rows]


def total_variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighboring pixels; 0 for rows that are not images."""
    if x.dim() < 3:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def _distance(found: Sequence[Tensor], observed: Sequence[Tensor], kind: str) -> Tensor:
    if kind == "l2":
        return torch.stack([((a - b) ** 2).sum() for a, b in zip(found, observed)]).sum()
    dot = torch.stack([(a * b).sum() for a, b in zip(found, observed)]).sum()
    norms = [torch.stack([(a**2).sum() for a in part]).sum().sqrt() for part in (found, observed)]
    return 1 - dot / (norms[0] * norms[1]).clamp(min=1e-30)


def compare_update(
    module: nn.Module, x: Tensor, y: Tensor, client: ClientSteps, observed: Sequence[Tensor], loss: Loss
) -> float:
    """1 − the cosine of the angle between the observed update and that of these rows."""
    return max(0.0, float(_distance(update_of(module, x, y, client, loss), observed, "cosine").detach()))


def match_cosine(
    module: nn.Module,
    observed: Sequence[Tensor],
    client: ClientSteps,
    start: Tensor,
    y: Tensor,
    loss: Loss,
    *,
    steps: int = 200,
    tv: float = 1e-4,
    lr: float = 0.1,
    bounds: tuple[float, float] | None = None,
    watch: Callable[[int, int], bool | None] | None = None,
) -> tuple[Tensor, float]:
    """Search rows whose update has the direction of the observed one (Geiping et al. 2020, equation 4).

    Adam on the signs of the gradient; the rate falls by 10 after 3/8, 5/8 and 7/8 of the steps. Returns the
    best rows and their distance. `watch(done, all)` may return True to stop.
    """
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=lr)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * k // 8 for k in (3, 5, 7)], gamma=0.1)
    best, at_best = math.inf, start
    for step in range(steps):
        distance = _distance(update_of(module, x, y, client, loss), observed, "cosine")
        if (value := float(distance.detach())) < best:
            best, at_best = value, x.detach().clone()
        x.grad = torch.autograd.grad(distance + tv * total_variation(x), x)[0].sign()
        optimizer.step()
        falls.step()
        if bounds is not None:
            x.data.clamp_(*bounds)
        if watch is not None and watch(step + 1, steps):
            break
    return at_best, best


def match_l2(
    module: nn.Module,
    observed: Sequence[Tensor],
    client: ClientSteps,
    start: Tensor,
    y: Tensor,
    loss: Loss,
    *,
    steps: int = 300,
    watch: Callable[[int, int], bool | None] | None = None,
) -> tuple[Tensor, float]:
    """Search rows whose update equals the observed one, by L-BFGS on the squared distance (DLG).

    Models with smooth activations only: the second derivative of ReLU is zero. One step is 20 iterations.
    """
    x = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], lr=1.0, max_iter=20, history_size=100)
    best, at_best = math.inf, start

    def close() -> Tensor:
        nonlocal best, at_best
        optimizer.zero_grad()
        distance = _distance(update_of(module, x, y, client, loss), observed, "l2")
        if (value := float(distance.detach())) < best:
            best, at_best = value, x.detach().clone()
        x.grad = torch.autograd.grad(distance, x)[0]
        return distance.detach()

    for step in range(0, steps, 20):
        before = best
        optimizer.step(close)
        if not torch.isfinite(x).all() or best == before:
            break  # it diverged, or does not move any more
        if watch is not None and watch(step + 20, steps):
            break
    return at_best, best


def trap_weights(module: nn.Module, shape: Sequence[int], scale: float = 0.7, seed: int = 0) -> nn.Module:
    """A copy of a model whose first linear layer passes each row to few neurons, each neuron few rows.

    What a malicious server sends: in each neuron, half of the weights are negative and the other half are the
    same numbers, positive and `scale` times as large. Rows with values of at least 0 then activate a neuron
    rarely, and a batch of many is rebuilt by `exact_rows`.
    """
    trapped = copy.deepcopy(module)
    layer = first_linear(trapped, shape)
    if layer is None:
        raise BadParameter(
            "trap_weights: the model's first layer is not linear with a bias, so that it cannot be trapped."
        )
    rng = torch.Generator().manual_seed(seed)
    width = layer.in_features
    with torch.no_grad():
        for row in layer.weight:
            order, size = torch.randperm(width, generator=rng), torch.randn(width // 2, generator=rng).abs()
            size *= math.sqrt(2 / width)
            row.zero_()
            row[order[: width // 2]] = -size
            row[order[width // 2 : 2 * (width // 2)]] = scale * size
        layer.bias.zero_()
    return trapped


def imprint_weights(
    module: nn.Module, shape: Sequence[int], means: tuple[float, float] = (0.0, 1.0)
) -> nn.Module:
    """A copy of a model whose first linear layer sorts the rows of a batch by their mean value.

    `means` is the range that they are expected in. Neuron i is active for rows whose mean is above the i-th
    of equally spaced cuts, and the next layer treats all neurons alike. The difference of two neighbors'
    gradients then is that of the rows between their cuts: exact rows, where a bin has one (`sorted_rows`).
    """
    trapped = copy.deepcopy(module)
    layers = [m for m in trapped.modules() if isinstance(m, nn.Linear)]
    layer = first_linear(trapped, shape)
    if layer is None or len(layers) < 2:
        raise BadParameter(
            "imprint_weights: the model must begin with a linear layer with a bias, and have another one "
            "after it."
        )
    with torch.no_grad():
        layer.weight.fill_(1 / layer.in_features)
        cuts = torch.linspace(*means, layer.out_features + 1)[:-1]
        layer.bias.copy_(-cuts)
        layers[1].weight.copy_(layers[1].weight[:, :1].expand_as(layers[1].weight))
    return trapped


def sorted_rows(weight: Tensor, bias: Tensor) -> Tensor:
    """[K, features]: one row, or a mixture of several, from each bin of an imprinted layer that has any."""
    w = torch.cat([weight[:-1] - weight[1:], weight[-1:]])
    b = torch.cat([bias[:-1] - bias[1:], bias[-1:]])
    keep = b.abs() > SMALL * b.abs().max().clamp(min=1e-30)
    return w[keep] / b[keep][:, None]


SURE = 100.0  # bias of the other classes: exp(−100) times a gradient is 0 in float32


def fish_weights(module: nn.Module, target: int) -> nn.Module:
    """A copy of a model whose gradients before the last layer come from rows of the class `target` alone.

    All other classes get no weights and a large bias, so that the model is sure that no row is of `target`:
    the logits of other rows do not depend on their features, and those of the target's rows have the full
    gradient.
    """
    fished = copy.deepcopy(module)
    layers = last_layers(fished)
    if not layers or not 0 <= target < layers[0].out_features:
        raise BadParameter(
            "fish_weights: the model must end with a linear layer with a bias, and target must be one of its "
            f"classes; got {target}."
        )
    others = torch.arange(layers[0].out_features) != target
    with torch.no_grad():
        for last in layers:
            last.weight[others] = 0.0
            last.bias[others] = SURE
    return fished


def last_linear(module: nn.Module) -> nn.Linear | None:
    """The last linear layer, if it has a bias."""
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)][-1:]
    return layers[0] if layers and layers[0].bias is not None else None


def last_layers(module: nn.Module) -> list[nn.Linear]:
    """The last linear layer of a model, or of each member of one, if they have a bias."""
    found = [last_linear(network) for network in members_of(module) or [module]]
    return [layer for layer in found if layer is not None]


def fish_out(
    module: nn.Module, update: Sequence[Tensor], client: ClientSteps, target: int
) -> tuple[nn.Module, list[Tensor], ClientSteps]:
    """The part of an update of a fished model that belongs to the rows of `target`, and how many they are.

    Their number follows from the last bias's gradient, −n_target/n. The last layer's own gradient is of all
    rows, and is left out.
    """
    layers = last_layers(module)  # not empty: checked by fish_weights
    share = -gradient_of(module, update, layers[0].bias).detach() / len(client.batches())
    count = max(0, round(client.rows * float(share[target])))
    left_out = {id(p) for layer in layers for p in layer.parameters()}
    keep = [id(p) not in left_out for p in module.parameters() if p.requires_grad]
    scale = client.rows / max(1, count)
    rest = [u * scale for u, kept in zip(update, keep) if kept]
    alone = copy.deepcopy(module)
    for last in last_layers(alone):
        last.requires_grad_(False)
    size = None if client.batch_size is None or client.batch_size >= client.rows else client.batch_size
    return alone, rest, ClientSteps(count, client.lr, size, client.epochs)

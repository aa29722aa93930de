"""A model as a function of one flat vector: two ways to the same gradient, and layers that do not notice
padding.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.algorithms.plan import identify, plan
from tacit.algorithms.types import Batch, LocalState, State
from tacit.engine.layers import LocalStep
from tacit.engine.stacking import cannot_stack
from tacit.engine.task import Task

KEY = torch.zeros((), dtype=torch.int64)


def rows(
    n: int = 12, shape: tuple[int, ...] = (5,), classes: int = 3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=g), torch.randint(0, classes, (n,), generator=g)


def task(module: nn.Module, **options: Any) -> Task:
    return Task(module, *rows(**options))


def walk(t: Task) -> LocalState:
    start = t.initial()
    return LocalState(
        start["w"], {"buffers": start["buffers"]} if "buffers" in start else {}, {}, torch.zeros(())
    )


def batch(index: list[int], padding: int = 0, key: Tensor = KEY) -> Batch:
    """The rows, then `padding` more that do not count."""
    return Batch(
        torch.tensor(index + index[:1] * padding), torch.tensor([1.0] * len(index) + [0.0] * padding), key
    )


def visits(t: Task, b: Batch) -> list[tuple[Tensor, State]]:
    """Bound, functional, and in a stack of three."""
    stacked, here = t.for_stacking(), walk(t)

    def one(w: Tensor, buffers: State, index: Tensor) -> tuple[Tensor, LocalState]:
        return stacked.gradient(here._replace(w=w, buffers=buffers), b._replace(index=index))

    mine = {k: v.expand(3, -1) for k, v in here.buffers.items()}  # every client has its own, as in the engine
    g, after = torch.vmap(one, in_dims=(0, {k: 0 for k in mine} or None, 0))(
        here.w.expand(3, -1), mine, b.index.expand(3, -1)
    )
    with torch.no_grad():
        ways = [
            t.gradient(here, b),
            stacked.gradient(here, b),
            (g[1], after._replace(buffers={k: v[1] for k, v in after.buffers.items()})),
        ]
    return [(g, after.buffers) for g, after in ways]


def plain(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """torch's own gradient and buffers on just these rows, in double precision: normalizing few rows makes
    much of rounding.
    """
    module = copy.deepcopy(module).double().train()
    grads = torch.autograd.grad(F.cross_entropy(module(x.double()), y), list(module.parameters()))
    return torch.cat([g.reshape(-1) for g in grads]).float(), torch.cat(
        [b.reshape(-1).float() for b in module.buffers() if b.is_floating_point()] or [torch.zeros(0)]
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def norm1() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


def norm2() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3, eps=1e-3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.BatchNorm1d(3, affine=False),
    )


@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (5,)), (norm1, (5,)), (norm2, (2, 4, 4))], ids=["mlp", "norm 1d", "norm 2d"]
)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(n=st.integers(3, 8), padding=st.integers(0, 5), seed=st.integers(0, 99))
def test_a_padded_batch_gives_torchs_own_gradient_and_statistics_on_the_truncated_one(
    make: Any, shape: tuple[int, ...], n: int, padding: int, seed: int
) -> None:
    torch.manual_seed(seed)
    module = make()
    t = task(module, shape=shape, seed=seed)
    index = np.random.default_rng(seed).permutation(12)[:n].tolist()
    g, buffers = plain(module, t.x[index], t.y[index])
    for got, after in visits(t, batch(index, padding)):
        assert torch.allclose(got, g, atol=2e-5)
        if t.buffer_slots:
            assert torch.allclose(after["buffers"], buffers, atol=1e-5)


class Doubling(nn.Sequential):
    """A Sequential that is not what it looks like."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


DENSE = {
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)),
    "relu": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 3)),
    "two linear layers in a row": lambda: nn.Sequential(
        nn.Linear(5, 7), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3)
    ),
    "a subclass": lambda: Doubling(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)),
    "relu first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, 3)),
    "relu last": lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
    "relu twice": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.ReLU(), nn.Linear(7, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.0), nn.Linear(7, 3)),
}


@pytest.mark.parametrize("name", DENSE)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(n=st.integers(1, 8), padding=st.integers(0, 5), seed=st.integers(0, 99))
def test_a_perceptrons_written_out_gradient_is_autograds(name: str, n: int, padding: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = DENSE[name]()
    t = task(module, seed=seed)
    index = np.random.default_rng(seed).permutation(12)[:n].tolist()
    g, _ = plain(module, t.x[index], t.y[index])
    for got, _ in visits(t, batch(index, padding)):
        assert torch.allclose(got, g, atol=1e-6)


def test_the_written_out_gradient_is_used_where_it_may_be() -> None:
    assert [name for name, make in DENSE.items() if task(make()).dense] == [
        "logistic",
        "relu",
        "no bias",
        "two linear layers in a row",
    ]
    hooked = DENSE["relu"]()
    hooked[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    assert not task(hooked).dense
    frozen = DENSE["relu"]()
    frozen[2].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    assert not task(frozen).dense


@pytest.mark.parametrize("filters", [4, 20])  # few go as band matrices, many as patches
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"stride": 2},
        {"stride": (1, 2), "padding": (2, 0), "bias": False},
        {"dilation": 2, "padding": 2},
        {"groups": 2},
        {"padding": "same"},
    ],
    ids=str,
)
def test_convolutions_as_products_of_patches_are_torchs_own(options: dict[str, Any], filters: int) -> None:
    """As a stack on a GPU runs them: values and gradients, alone and under vmap."""
    torch.manual_seed(0)
    convolution, x = nn.Conv2d(2, filters, 3, **options), torch.randn(3, 2, 7, 6)

    def total(weight: Tensor, x: Tensor, patches: bool) -> Tensor:
        with LocalStep(KEY, torch.ones(3), patches=patches):
            return torch.sin(torch.func.functional_call(convolution, {"weight": weight}, (x,))).sum()

    both = torch.func.grad(total, argnums=(0, 1))
    want = both(convolution.weight.detach(), x, False)
    alone = both(convolution.weight.detach(), x, True)
    stacked = torch.vmap(lambda w, x: both(w, x, True))(
        convolution.weight.detach().expand(3, *convolution.weight.shape), torch.stack([x, x + 1, x])
    )
    for a, b, c in zip(want, alone, stacked):
        assert torch.allclose(a, b, atol=1e-4)
        assert torch.allclose(a, c[2], atol=1e-4)


def test_a_batch_of_one_row_is_normalized_without_a_crash() -> None:
    for g, after in visits(task(norm1()), batch([3], padding=4)):
        assert torch.isfinite(g).all()
        assert torch.isfinite(after["buffers"]).all()


def test_untrained_buffers_are_kept_and_restored_in_the_module() -> None:
    t = task(norm1())
    start = t.initial()
    assert start["w"].shape == (t.dim,)
    assert start["buffers"].shape == (7 + 7,)  # without the counter
    module = t.module_at(start["w"] + 1, start["buffers"] + 2)
    assert torch.equal(module[1].running_mean, torch.full((7,), 2.0))  # type: ignore[index, union-attr]
    assert module[1].num_batches_tracked == 0  # type: ignore[index, union-attr]
    assert torch.allclose(module[0].weight, t.module[0].weight + 1)  # type: ignore[index, union-attr]
    assert not module.training


def test_a_non_persistent_buffer_is_restored_too() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.register_buffer("seen", torch.zeros(1), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    t = task(Counting())
    # operator]
    assert t.module_at(t.initial()["w"], torch.tensor([4.0])).seen.item() == 4.0  # type: ignore[union-attr,


def masks(
    p: float, keys: list[int], shape: tuple[int, ...] = (4, 50), calls: int = 1, layer: Any = F.dropout
) -> list[Tensor]:
    out = []
    for key in keys:
        with LocalStep(torch.tensor(key), torch.ones(shape[0])):
            out += [layer(torch.ones(shape), p, True) for _ in range(calls)]
    return out


@settings(max_examples=15, deadline=None)
@given(p=st.floats(0.05, 0.95), key=st.integers(-(2**63), 2**63 - 1))
def test_dropout_keeps_the_right_share_and_scales_it(p: float, key: int) -> None:
    """200·100 positions: a share that is off by six standard deviations would be one in 500 million."""
    (mask,) = masks(p, [key], (200, 100))
    assert abs(float((mask > 0).double().mean()) - (1 - p)) < 6 * (p * (1 - p) / 20_000) ** 0.5
    assert torch.allclose(mask[mask > 0], torch.tensor(1 / (1 - p)))


def test_dropout_masks_differ_between_steps_clients_and_calls() -> None:
    keys = plan(0, 0, identify(["a", "b"]), np.array([9, 9]), 2, 3).key
    assert len(set(keys.reshape(-1).tolist())) == keys.numel() == 12
    drawn = masks(0.5, keys[0, :3].tolist() + keys[1, :3].tolist(), calls=4)
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            agree = float(((a > 0) == (b > 0)).double().mean())
            assert 0.25 < agree < 0.75  # 200 fair coins: outside once in 10¹²


def test_dropout_does_not_depend_on_the_number_of_later_rows() -> None:
    (short,), (long,) = masks(0.5, [7], (3, 10)), masks(0.5, [7], (8, 10))
    assert torch.equal(short, long[:3])


def test_channel_dropout_drops_whole_channels() -> None:
    (mask,) = masks(0.5, [3], (6, 8, 5, 5), layer=F.dropout2d)
    share = (mask > 0).double().mean((2, 3))
    assert set(share.reshape(-1).tolist()) == {0.0, 1.0}


def test_dropout_of_nothing_of_everything_and_at_test_time() -> None:
    assert torch.equal(masks(0.0, [1])[0], torch.ones(4, 50))
    assert torch.equal(masks(1.0, [1])[0], torch.zeros(4, 50))
    with LocalStep(KEY, torch.ones(4)):
        assert torch.equal(F.dropout(torch.ones(4), 0.5, False), torch.ones(4))


def test_all_engines_drop_the_same_units() -> None:
    t = task(nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.4), nn.Linear(30, 3)))
    first, *others = visits(t, batch([0, 4, 5], padding=2, key=torch.tensor(12345)))
    alone = visits(t, batch([0, 4, 5], key=torch.tensor(12345)))
    for g, _ in others + alone:
        assert torch.allclose(g, first[0], atol=1e-6)
    assert not torch.allclose(visits(t, batch([0, 4, 5], key=torch.tensor(12346)))[0][0], first[0], atol=1e-3)


@pytest.mark.parametrize(
    ("make", "special", "draws"),
    [
        (mlp, False, False),
        (norm1, True, False),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3)), True, False),
        (lambda: nn.Sequential(nn.RReLU(), nn.Linear(5, 3)), False, True),
    ],
    ids=["plain", "norm", "dropout", "rrelu"],
)
def test_layers_that_need_care_are_found_without_touching_the_random_state(
    make: Any, special: bool, draws: bool
) -> None:
    module, state = make(), torch.get_rng_state()
    t = task(module)
    assert (t.special, t.draws) == (special, draws)
    assert torch.equal(torch.get_rng_state(), state)


def test_predictions_are_the_modules_own_in_evaluation_mode_whatever_the_chunk() -> None:
    module = norm1()
    t = task(module)
    start = t.initial()
    want = copy.deepcopy(module).eval()(t.x)
    for chunk in (1, 5, 100):
        assert torch.allclose(t.predict(start["w"], t.x, start["buffers"], chunk), want, atol=1e-6)
    assert t.predict(start["w"], t.x[:0], start["buffers"]).shape == (0, 3)


def test_the_loss_and_its_gradient_agree() -> None:
    t = task(mlp())
    w, b = t.initial()["w"].double().float(), batch([1, 2, 3], padding=1)
    direction = torch.randn(t.dim, generator=torch.Generator().manual_seed(0))
    slope = (t.loss(w + 1e-2 * direction, b) - t.loss(w - 1e-2 * direction, b)) / 2e-2
    assert float(slope) == pytest.approx(
        float(t.gradient(LocalState(w, {}, {}, w[0]), b)[0] @ direction), rel=1e-2
    )


def test_a_task_is_not_copied_by_accident() -> None:
    with pytest.raises(TypeError, match=r"a Task must not be copied: use Task\.on"):
        copy.deepcopy(task(mlp()))


def test_a_relu_that_occurs_twice_is_applied_twice() -> None:
    """`named_children` leaves repeats out; the written-out gradient must not."""
    torch.manual_seed(0)
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(5, 6), relu, nn.Linear(6, 7), relu, nn.Linear(7, 3))
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    task = Task(module, x, y)
    batch = Batch(torch.arange(4)[None], torch.ones(1, 4), torch.zeros(1, dtype=torch.int64))
    w = task.initial()["w"]
    stacked = torch.vmap(
        lambda w, i, m, k: task.for_stacking().gradient(LocalState(w, {}, {}, w[0]), Batch(i, m, k))[0]
    )(w[None], *batch)
    alone, _ = task.gradient(LocalState(w, {}, {}, w[0]), Batch(batch.index[0], batch.live[0], batch.key[0]))
    assert task.dense is not None
    assert torch.allclose(stacked[0], alone, atol=1e-6)


class _TimeFirst(nn.Module):
    """Rows of 4 × 3 numbers, laid out time first inside the model: dropout and batch norm then do not see the
    batch as the first axis.
    """

    def __init__(self, norm: bool):
        super().__init__()
        self.a, self.out, self.norm = nn.Linear(3, 6), nn.Linear(6, 3), nn.BatchNorm1d(6) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x.view(-1, 4, 3).transpose(0, 1)))
        h = (
            F.dropout(h, 0.5, self.training)
            if self.norm is None
            else self.norm(h.reshape(-1, 6)).view(h.shape)
        )
        return self.out(h).mean(0)


class _OwnStatistics(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize(
    "make",
    [lambda: _TimeFirst(False), lambda: _TimeFirst(True), lambda: _OwnStatistics(12, 3)],
    ids=["dropout", "norm", "mean"],
)
def test_a_model_that_minds_padding_gets_none(make: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 12), torch.randint(0, 3, (9,))
    task = Task(make(), x, y)
    assert task.mixes
    start = task.initial()
    buffers = {"buffers": start["buffers"]} if "buffers" in start else {}
    key = torch.tensor(5)
    padded = Batch(torch.tensor([4, 1, 7, 4, 1]), torch.tensor([1.0, 1, 1, 0, 0]), key)
    exact = Batch(torch.tensor([4, 1, 7]), torch.ones(3), key)
    a, b = (
        task.gradient(LocalState(start["w"], buffers, {}, start["w"][0]), batch)[0]
        for batch in (padded, exact)
    )
    assert torch.equal(a, b)


def test_ordinary_models_do_not_mind_padding() -> None:
    x, y = torch.randn(9, 12), torch.randint(0, 3, (9,))
    for module in (
        nn.Linear(12, 3),
        nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)),
    ):
        assert not Task(module, x, y).mixes


def test_a_stack_counts_what_each_model_gets_right() -> None:
    """Three models on the same rows, in pieces of two models and four rows: as each alone."""
    t = task(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    w = torch.stack([t.initial()["w"] * k for k in (1.0, -1.0, 0.3)])
    want = [int((t.predict(v, t.x).argmax(-1) == t.y).sum()) for v in w]
    assert t.count_correct(w, t.x, t.y, rows=4, room=4 * t.bytes_kept() * 8 * 2).tolist() == want
    assert len(set(want)) > 1


class _RoundsByShape(nn.Linear):
    """As in TF32: in single precision, a row's output depends a little on the number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * (1 + 1e-3 * len(x)) if x.dtype == torch.float32 else out


def test_rounding_that_depends_on_the_shape_is_not_taken_for_mixed_rows() -> None:
    x, y = rows(shape=(12,))
    assert not Task(_RoundsByShape(12, 3), x, y).mixes


class _SingleOnly(nn.Linear):
    """It cannot run in double precision."""

    def __init__(self, mixing: bool):
        super().__init__(12, 3)
        self.mixing = mixing

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return super().forward(x - x.mean(0) if self.mixing else x)


@pytest.mark.parametrize("mixing", [True, False])
def test_a_model_for_single_precision_only_is_compared_with_other_rows_beside_it(mixing: bool) -> None:
    x, y = rows(shape=(12,))
    assert Task(_SingleOnly(mixing), x, y).mixes == mixing


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril()},
        {"attn_mask": torch.linspace(-1, 1, 25).view(5, 5)},
    ],
    ids=["plain", "causal", "scale", "boolean mask", "mask of numbers"],
)
def test_attention_as_products_is_torchs_own(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    with LocalStep(KEY, torch.ones(2), products=True):
        got = F.scaled_dot_product_attention(q, k, v, **options)
        shared = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True, **options)
    assert torch.allclose(got, F.scaled_dot_product_attention(q, k, v, **options), atol=1e-6)
    repeated = (t[:, :2].repeat_interleave(2, 1) for t in (k, v))
    assert torch.allclose(shared, F.scaled_dot_product_attention(q, *repeated, **options), atol=1e-6)


class _Encoder(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x).mean(1))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_transformer_is_stacked_and_its_dropout_is_the_same_every_way(dropout: float) -> None:
    torch.manual_seed(0)
    t = task(_Encoder(dropout), shape=(4, 8))
    assert not t.draws  # attention's own dropout is found
    assert not t.mixes
    assert not cannot_stack(t, t.initial()["w"][None], None)
    (a, _), *others = visits(t, batch([3, 1, 2], padding=2))
    assert all(torch.allclose(a, b, atol=1e-5) for b, _ in others)
    if not dropout:
        assert torch.allclose(a, plain(t.module, t.x[[3, 1, 2]], t.y[[3, 1, 2]])[0], atol=1e-5)


def test_copies_share_frozen_parameters_only_and_their_bytes_are_not_a_rows() -> None:
    frozen = nn.Linear(5, 400).requires_grad_(False)
    t = task(nn.Sequential(frozen, nn.Tanh(), nn.Linear(400, 3)))
    a, b = t.copy(), t.for_stacking().copy()
    assert a[0].weight.data_ptr() == b[0].weight.data_ptr()  # type: ignore[index,union-attr,operator]
    assert a[2].weight.data_ptr() != b[2].weight.data_ptr()  # type: ignore[index,union-attr,operator]
    assert t.bytes_kept() < 4 * (5 + 2 * 400 + 3) + 64

"""Attacks on DP-SGD: rows crafted to pass the clipping, and training loops in which one row moves more than
its clipped gradient.

A row's contribution is what sensitivity is about: the sum that the code really forms with the row in the
batch, minus the sum without it.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tacit.errors import BadParameter
from tacit.private import DPSGD
from tacit.private.ghost import GhostClipping, flat_factors
from tests.private.reference import clipped_sum, close, each_gradient

CLIP = 1.0
BOUND = CLIP * (1 + 1e-5)
OTHERS = 3


def total(model, x, y):
    """The clipped sum that the code forms for squared errors summed over each row's outputs, as one float64
    vector.
    """
    ghost = GhostClipping(model, flat_factors(CLIP))
    ghost.is_mean = False
    (model(x).flatten(1) - y).square().sum().backward()
    out = torch.cat([t.double().flatten() for t in ghost.take()])
    ghost.close()
    return out


def contributions(model, x, y):
    """‖sum with row 0 − sum without it‖ in a batch, and ‖sum of row 0 alone‖.

    Float32 addition of the other rows' gradients rounds differently with and without row 0. With three others
    that is below 1e-6 of the clip.
    """
    together = total(model, x, y) - total(model, x[1:], y[1:])
    return float(together.norm()), float(total(model, x[:1], y[:1]).norm())


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(24, 8, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class Repeated(nn.Module):
    """One wide layer used three times in a pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(160, 160)

    def forward(self, x):
        return self.layer(x) - self.layer(x.flip(1)) + self.layer(2 * x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 24), nn.Linear(24, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x))


class Scale(nn.Module):
    """A layer without a rule of its own."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.randn(24))

    def forward(self, x):
        return x * self.by


MODELS = {
    "linear, one position": (lambda: nn.Linear(160, 120), (160,)),
    "linear, positions": (lambda: nn.Linear(24, 8), (4, 24)),
    "linear, positions, wide": (lambda: nn.Linear(160, 120), (4, 160)),
    "linear, positions, wide, no bias": (lambda: nn.Linear(160, 120, bias=False), (7, 160)),
    "linear, positions, wide, stacked": (
        lambda: nn.Sequential(nn.Linear(160, 120), nn.Tanh(), nn.Linear(120, 150)),
        (4, 160),
    ),
    "linear, several uses": (Repeated, (4, 160)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "conv1d, wide": (lambda: nn.Conv1d(80, 80, 3), (80, 6)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 6)),
    "conv2d, wide": (lambda: nn.Conv2d(48, 48, 3, padding=1), (48, 3, 3)),
    "conv2d, wide, strided": (lambda: nn.Conv2d(48, 48, 3, stride=2, dilation=2), (48, 7, 7)),
    "conv2d, grouped": (lambda: nn.Conv2d(4, 8, 3, groups=2), (4, 6, 6)),
    "embedding": (lambda: nn.Embedding(9, 24), (6, None)),
    "embedding, tied": (Tied, (6, None)),
    "layer norm": (lambda: nn.LayerNorm(24), (4, 24)),
    "rms norm": (lambda: nn.RMSNorm(24), (4, 24)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 6, 6)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 6, 6)),
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 24)),
    "gru": (lambda: Recurrent(nn.GRU), (4, 24)),
    "a layer of one's own": (Scale, (4, 24)),
}


def crafted(name, seed, offset, target, spread, noise=0.0):
    """A model and a batch whose row 0 is crafted: inputs near `offset`, and targets that pull its positions
    in opposite directions.
    """
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    model = make()
    if shape[-1] is None:
        x = torch.randint(0, 9, (1 + OTHERS, shape[0]))
        x[0] = seed % 9  # one token at every position: its gradients add up before they are squared
    else:
        x = torch.randn(1 + OTHERS, *shape)
        x[0] = offset + spread * x[0]
    with torch.no_grad():
        out = model(x)
    y = out + torch.randn_like(out)
    position = out.dim() - 1 if "conv" in name or name in ("group norm", "instance norm") else 1
    signs = torch.ones(out.shape[position])
    signs[1::2] = -1
    signs = (signs - signs.mean() * (len(shape) > 1)).view(
        -1, *[1] * (out.dim() - 1 - position)
    )  # positions cancel
    y[0] = out[0] - target * signs - noise * torch.randn_like(out[0])
    return model, x, y.flatten(1)


@pytest.mark.parametrize("name", MODELS)
@given(
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 1e3, 1e5, 1e6, 1e7]),
    target=st.sampled_from([0.0, 1.0, 1e4, 1e7]),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    noise=st.sampled_from([0.0, 1e-3, 1.0]),
)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_no_crafted_row_contributes_more_than_the_clip(name, seed, offset, target, spread, noise):
    model, x, y = crafted(name, seed, offset, target, spread, noise)
    together, alone = contributions(model, x, y)
    assert alone <= BOUND
    assert together <= BOUND


@pytest.mark.parametrize("offset", [1e5, 1e6, 1e7])
@pytest.mark.parametrize("name", ["linear, positions, wide", "conv1d, wide", "conv2d, wide, strided"])
def test_a_large_offset_does_not_cancel_in_the_norm(name, offset):
    """Finding 9: Gram matrices cancel in float32, so that the norm came out as 0 and the gradient passed as
    it was.
    """
    for seed in range(3):
        model, x, y = crafted(name, seed, offset, 1.0, 1.0)
        together, alone = contributions(model, x, y)
        assert 0.9 <= alone <= BOUND  # clipped and not dropped
        assert together <= BOUND


def test_many_small_numbers_beside_a_large_one_count_towards_the_norm():
    """Accumulated one by one in float32, squares below 2⁻²⁵ of the running sum are lost: here 4% of the
    squared norm.
    """
    model = nn.Linear(1 << 20, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    x = torch.full((1, 1 << 20), 2.0**-12.6)
    x[0, :64] = 1.0
    assert float(total(model, x, torch.full((1, 1), -0.5)).norm()) <= BOUND


def test_a_tiny_gradient_at_huge_inputs_counts_towards_the_norm():
    """Squares of numbers below 1e-23 are zero in float32; times an input of 1e18 they are none the less part
    of the gradient.
    """
    model = nn.Sequential(nn.Linear(4, 64, bias=False), nn.Linear(64, 1, bias=False))
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].weight.fill_(2.4e-23)
    x = torch.full((1, 4), 1e18)
    assert float(total(copy.deepcopy(model), x, torch.full((1, 1), -1e9)).norm()) <= BOUND


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith("embedding")])
def test_a_row_that_is_not_finite_adds_nothing(name, bad):
    """NaN, infinite, or so large that a product overflows: the sum stays finite, and is that of the other
    rows to within the clip.
    """
    model, x, y = crafted(name, 0, 1.0, 1.0, 1.0)
    x[0, ..., 0] = bad
    got = total(model, x, y)
    assert torch.isfinite(got).all()
    assert float((got - total(model, x[1:], y[1:])).norm()) <= BOUND


# loops in which one row moves the sum by more than its clipped gradient -------------------------------------

N = 60


def table():
    torch.manual_seed(0)
    y = torch.cat([torch.zeros(50, dtype=torch.int64), torch.randint(1, 3, (10,))])
    return torch.randn(N, 6), y


def attach(data, model=None, batch_size=30, insecure_seed=None, **more):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more = {"noise_multiplier": 1.0, "delta": 1e-4, "sampling": "shuffle", **more}
    return (
        DPSGD(**more).attach(model, optimizer, data, batch_size=batch_size, insecure_seed=insecure_seed),
        model,
        optimizer,
    )


def run(loss, model=None, **more):
    """An epoch of the documented kind of loop; `loss` is called with the session, the model and a batch, and
    calls backward.
    """
    private, model, optimizer = attach(table(), model, **more)
    for x, y in private:
        optimizer.zero_grad()
        loss(private, model, x, y)
        optimizer.step()
    return private


WEIGHTS = torch.tensor([0.1, 1.0, 20.0])
COUPLED = {
    "class weights": lambda p, m, x, y: F.cross_entropy(m(x), y, weight=WEIGHTS).backward(),
    "class weights by hand": lambda p, m, x, y: (
        (F.cross_entropy(m(x), y, reduction="none") * WEIGHTS[y]).sum() / WEIGHTS[y].sum()
    ).backward(),
    "class weights in losses": lambda p, m, x, y: p.backward(
        F.cross_entropy(m(x), y, weight=WEIGHTS, reduction="none") / WEIGHTS[y].sum()
    ),
    "a mean over some rows": lambda p, m, x, y: F.cross_entropy(m(x), y, ignore_index=0).backward(),
    "losses over their mean": lambda p, m, x, y: p.backward(
        (z := F.cross_entropy(m(x), y, reduction="none")) / z.detach().mean()
    ),
    "a sum": lambda p, m, x, y: F.cross_entropy(m(x), y, reduction="sum").backward(),
    "losses over the batch's size": lambda p, m, x, y: p.backward(
        F.cross_entropy(m(x), y, reduction="none") / len(x)
    ),
    "pairs of rows": lambda p, m, x, y: (
        F.cross_entropy(m(x), y) + F.cross_entropy(m(x.flip(0)), y.flip(0))
    ).backward(),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_in_which_rows_depend_on_each_other_is_refused(name):
    """Finding 17: class weights in a mean moved the sum by 28.9 × clip, and a sum was scaled by the batch
    size, silently.
    """
    with pytest.raises(
        BadParameter, match=r"one loss per row, such as F.cross_entropy\(model\(x\), y, reduction='none'\)"
    ):
        run(COUPLED[name])


OWN = {
    "the mean": lambda p, m, x, y: F.cross_entropy(m(x), y).backward(),
    "losses": lambda p, m, x, y: p.backward(F.cross_entropy(m(x), y, reduction="none")),
    "weighted losses": lambda p, m, x, y: p.backward(
        F.cross_entropy(m(x), y, weight=WEIGHTS, reduction="none")
    ),
    "label smoothing": lambda p, m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1).backward(),
    "two terms": lambda p, m, x, y: (F.cross_entropy(m(x), y) + 0.1 * m(2 * x).square().mean()).backward(),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_loss_of_each_row_by_itself_is_taken(name, dropout):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))
    private = run(OWN[name], model)
    assert private.steps == private.account.spent == 2
    assert model.training


def test_a_loss_per_row_that_depends_on_other_rows_is_refused_on_drawn_rows():
    """A contrastive loss has one number for each row, and none of them is of that row alone."""
    x, _ = table()
    private, model, _ = attach(N)
    rows = private.draw()
    z = F.normalize(model(x[rows]), dim=1)
    with pytest.raises(BadParameter, match="the loss of one row depends on other rows of the batch"):
        private.backward(F.cross_entropy(z @ z.T, torch.arange(len(rows)), reduction="none"))


def test_a_reduced_loss_is_refused_on_drawn_rows():
    x, y = table()
    private, model, optimizer = attach(N)
    rows = private.draw()
    F.cross_entropy(model(x[rows]), y[rows], weight=WEIGHTS).backward()
    with pytest.raises(
        BadParameter, match=r"a reduced loss.*private.backward\(losses\) with one loss per row"
    ):
        optimizer.step()


@pytest.mark.parametrize("shape", [(), (30, 1), (30, 2)])
def test_losses_that_are_not_one_for_each_row_are_refused(shape):
    x, y = table()
    private, model, _ = attach(N)
    losses = F.cross_entropy(model(x[private.draw()]), y[:30], reduction="none")
    with pytest.raises(BadParameter, match=r"losses of shape .*; expected one loss per row, \[rows\]"):
        private.backward(losses.mean() if not shape else losses[:, None].expand(*shape))


def test_more_rows_than_were_drawn_are_refused():
    x, y = table()
    private, model, _ = attach(N, batch_size=10)
    private.draw()
    with pytest.raises(BadParameter, match="10 rows were drawn and 60 passed through the model"):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))


@pytest.mark.parametrize("drawn", [False, True])
def test_a_batch_without_a_step_is_refused_before_the_next_is_charged(drawn):
    """Two batches were charged, and the first one's gradient was lost: what gradient accumulation does in a
    plain loop.
    """
    x, y = table()
    private, model, _ = attach(N if drawn else (x, y))

    def one():
        if drawn:
            rows = private.draw()
            private.backward(F.cross_entropy(model(x[rows]), y[rows], reduction="none"))
        else:
            for a, b in private:
                private.backward(F.cross_entropy(model(a), b, reduction="none"))
                if not private.is_checking:
                    break

    one()
    with pytest.raises(BadParameter, match=r"without optimizer.step\(\).*larger batch_size with micro_batch"):
        one()
    assert private.account.spent == 1


def test_two_backward_passes_of_one_batch_are_refused():
    """They were taken for one, whose rows belong together: here row i and row n − i, so that leaving one out
    changes two.
    """
    private, model, _ = attach(table())
    x, y = next(iter(private))
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(BadParameter, match="a second backward pass in one step"):
        F.cross_entropy(model(x.flip(0)), y.flip(0)).backward()


class FunctionallyTied(nn.Module):
    """The embedding's weight is also that of the output, without a layer: `h @ self.e.weight.T`."""

    def __init__(self):
        super().__init__()
        self.e, self.mid = nn.Embedding(9, 5), nn.Linear(5, 5)

    def forward(self, x):
        return torch.tanh(self.mid(self.e(x).mean(1))) @ self.e.weight.T


def test_a_weight_used_outside_its_layer_is_refused_on_drawn_rows_and_functional_takes_it():
    """Part of the gradient was lost, silently: norm 0.52 instead of 0.72."""
    torch.manual_seed(0)
    x, y = torch.randint(0, 9, (N, 4)), torch.randint(0, 9, (N,))
    private, model, _ = attach(N, FunctionallyTied())
    rows = private.draw()
    with pytest.raises(
        BadParameter,
        match=r"the parameter 'e.weight' is used outside its own layer's forward pass.*method='functional'",
    ):
        private.backward(F.cross_entropy(model(x[rows]), y[rows], reduction="none"))
    private.close()
    private, model, optimizer = attach(
        N, FunctionallyTied(), method="functional", noise_multiplier=0.0, clip=None
    )
    plain = copy.deepcopy(model).requires_grad_(True)
    rows = private.draw()
    private.backward(F.cross_entropy(model(x[rows]), y[rows], reduction="none"))
    optimizer.step()
    F.cross_entropy(plain(x[rows]), y[rows], reduction="sum").backward()
    assert torch.allclose(model.e.weight.grad * 30, plain.e.weight.grad, rtol=1e-4, atol=1e-6)


def test_a_penalty_on_weights_in_the_loss_is_refused():
    """Weights are not part of the graph, so a penalty had no effect, silently."""
    x, y = table()
    private, model, _ = attach(N)
    rows = private.draw()
    penalty = sum(p.square().sum() for p in model.parameters())
    with pytest.raises(BadParameter, match="move a penalty on weights from the loss to the optimizer"):
        private.backward(F.cross_entropy(model(x[rows]), y[rows], reduction="none") + penalty)


def test_the_advice_against_a_weighted_sampler_is_one_that_holds():
    x, y = table()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, sampler=WeightedRandomSampler([1.0] * N, N))
    with pytest.raises(
        BadParameter,
        match=r"private.backward\(F.cross_entropy\(model\(x\), y, weight=w, reduction='none'\)\)",
    ) as refused:
        attach(loader, batch_size=None)
    assert "weigh the loss" not in str(refused.value)
    run(OWN["weighted losses"])


def test_weighted_losses_keep_to_the_clip():
    """What the advice leads to: leaving out any one row moves the sum by at most the clip, with weights from
    0.1 to 20.
    """
    x, y = table()
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    model_sums = []
    for left_out in (None, 0, 20, 55, 59):
        kept = [i for i in range(N) if i != left_out]
        ghost = GhostClipping(model, flat_factors(CLIP))
        ghost.is_mean = False
        F.cross_entropy(model(x[kept]), y[kept], weight=WEIGHTS, reduction="none").sum().backward()
        model_sums.append(torch.cat([t.double().flatten() for t in ghost.take()]))
        ghost.close()
    assert all(float((s - model_sums[0]).norm()) <= BOUND for s in model_sums[1:])


# precision, compilation, frozen statistics ------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside autocast", "backward outside"])
def test_under_bf16_autocast_no_row_contributes_more_than_the_clip(inside):
    for row in range(4):
        torch.manual_seed(row)
        model = nn.Sequential(
            nn.Linear(40, 30), nn.Tanh(), nn.LayerNorm(30), Recurrent30(), nn.Flatten(), nn.Linear(120, 3)
        )
        x, y = 30 * torch.randn(1, 4, 40), torch.randint(0, 3, (1,))
        private, model, optimizer = attach(1, model, batch_size=1, noise_multiplier=0.0, clip=0.01)
        x = x[private.draw()]
        with torch.autocast("cpu", torch.bfloat16):
            losses = F.cross_entropy(model(x), y, reduction="none")
            if inside:
                private.backward(losses)
        if not inside:
            private.backward(losses)
        optimizer.step()
        norm = float(torch.cat([p.grad.double().flatten() for p in model.parameters()]).norm())
        assert 0.0099 < norm <= 0.01 * (1 + 1e-5)


class Recurrent30(Recurrent):
    def __init__(self):
        super().__init__(nn.GRU)
        self.layer = nn.GRU(30, 30, batch_first=True)


def test_a_loop_under_bf16_autocast_is_taken():
    def loss(p, m, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            p.backward(F.cross_entropy(m(x), y, reduction="none"))

    assert run(loss).steps == 2


def test_half_precision_weights_are_refused():
    with pytest.raises(BadParameter, match=r"'weight' is bfloat16.*model.float\(\).*torch.autocast"):
        attach(N, nn.Linear(6, 3).bfloat16())


def test_a_model_compiled_before_attach_is_refused():
    with pytest.raises(
        BadParameter, match=r"the model is compiled \(torch.compile\).*compile it after attach"
    ):
        attach(N, torch.compile(nn.Linear(6, 3), backend="eager"))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch's compiler looks at it
def test_a_model_compiled_after_attach_takes_the_same_steps():
    ends = []
    for backend in (None, "eager"):
        private, model, optimizer = attach(
            table(), noise_multiplier=0.0, clip=0.1, sampling="poisson", insecure_seed=0
        )
        called = model if backend is None else torch.compile(model, backend=backend)
        for _ in range(2):  # four steps, of which the first two are compared with torch's own gradients
            for x, y in private:
                private.backward(F.cross_entropy(called(x), y, reduction="none"))
                optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-4, atol=1e-6)


def test_a_step_whose_gradients_went_past_the_layers_is_refused():
    """The step would be noise alone, silently: here the loop trains a copy."""
    private, model, _ = attach(table())
    other = copy.deepcopy(model).requires_grad_(True)
    x, y = next(batches := iter(private))
    F.cross_entropy(other(x), y).backward()
    with pytest.raises(
        BadParameter,
        match="did not reach the attached layers, so the step would be noise alone",
    ):
        next(batches)


def frozen_norm():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model[1].running_mean.normal_()
    model[1].eval()
    return model


@pytest.mark.parametrize("learns", [False, True], ids=["frozen scale", "learned scale"])
def test_batch_norm_in_evaluation_mode_works(learns):
    x, y = table()
    model = frozen_norm()
    model[1].requires_grad_(learns)
    before = model[1].running_mean.clone()
    private, model, optimizer = attach((x, y), model, batch_size=N, noise_multiplier=0.0, clip=0.1)
    want = clipped_sum(
        each_gradient(copy.deepcopy(model).requires_grad_(True) if learns else unfrozen(model), x, y), 0.1
    )
    for a, b in private:
        private.backward(F.cross_entropy(model(a), b, reduction="none"))
        optimizer.step()
    assert close([p.grad * N for p in private.ghost.parameters], want, 1e-4)
    assert torch.equal(model[1].running_mean, before)


def unfrozen(model):
    out = copy.deepcopy(model).requires_grad_(True)
    out[1].requires_grad_(False)
    return out


def test_batch_norm_that_goes_back_to_training_mode_is_refused():
    x, _ = table()
    private, model, _ = attach(N, frozen_norm())
    model.train()
    with pytest.raises(
        BadParameter,
        match=r"'1' \(BatchNorm1d\) was in evaluation mode at attach and is now in training mode",
    ):
        model(x[private.draw()])

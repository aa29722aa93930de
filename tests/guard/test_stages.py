"""Each stage alone: its guarantees about norms, means, bits and memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tacit import guard as room
from tacit.errors import BadParameter, ProtocolError
from tacit.guard import Clients, Clip, Form, Guard, Layout, Lazy, Noise, Quantize, SecAgg, Sparsify, as_stages
from tacit.guard.quantize import Fine

NAMES = tuple("abcdefgh")


def crowd(stage_or_guard, form=None, round=0, insecure_seed=7):
    fresh = stage_or_guard.client_state(form) if form is not None else stage_or_guard.client_state()
    return Clients(
        NAMES, round, {k: v.expand(len(NAMES), *v.shape).clone() for k, v in fresh.items()}, {}, insecure_seed
    )


def updates(d=40, scale=1.0, seed=0):
    return scale * torch.from_numpy(np.random.default_rng(seed).normal(size=(len(NAMES), d)))


# Clip -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, derandomize=True)
@given(norm=st.floats(1e-3, 1e3), scale=st.floats(1e-6, 1e6))
def test_no_clipped_update_is_longer_than_the_norm_and_shorter_ones_stay_as_they_are(norm, scale):
    x, form = updates(scale=scale), Form(dimension=40)
    me = crowd(Clip(norm), form)
    y = Clip(norm).out(x, me, form)
    lengths = x.norm(dim=1)
    assert (y.norm(dim=1) <= norm * (1 + 1e-12)).all()
    assert torch.equal(y[lengths <= norm], x[lengths <= norm])
    assert me.events["clipped"] == int((lengths > norm).sum())


def test_per_layer_clips_each_layer_to_its_share_and_the_whole_to_the_norm():
    x, form = updates(), Form(dimension=40, layers=(10, 30))
    y = Clip(1.0, per="layer").out(x, crowd(Clip(1.0), form), form)
    for part in y.split([10, 30], 1):
        assert part.norm(dim=1).max() == pytest.approx(1 / math.sqrt(2))
    assert y.norm(dim=1).max() == pytest.approx(1.0)


def test_the_adaptive_norm_converges_to_its_quantile():
    """Andrew et al. 2021: norms 1 … 8; with γ = 0.5 and η_C = 0.2 the norm settles where half are shorter,
    from above and from below.
    """
    lengths = torch.arange(1.0, 9.0, dtype=torch.float64)
    x = lengths[:, None] * torch.nn.functional.normalize(updates(), dim=1)
    for start in (0.1, 100.0):
        stage, form = Clip(start, quantile=0.5), Form(dimension=40, clients=8)
        state = stage.server_state(form)
        for _ in range(200):
            me = Clients(NAMES, 0, {}, state)
            total, state = stage.back(stage.out(x, me, form).sum(0), 8, form, state)
            assert total.shape == (40,)
        assert 3.9 <= float(state["clip"]) <= 5.1


def test_the_adaptive_bound_covers_the_update_and_its_bit():
    stage, form = Clip(1.0, quantile=0.5), Form(dimension=40, clients=8)
    state = stage.server_state(form)
    y = stage.out(updates(), Clients(NAMES, 0, {}, state), form)
    after = stage.form(form, state)
    assert after.dimension == 41
    assert y.norm(dim=1).max() <= after.bound * (1 + 1e-12)


# Quantize ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(bits=st.integers(10, 40), stochastic=st.booleans(), clients=st.integers(1, 50), hidden=st.booleans())
def test_whole_numbers_stay_within_the_limit_and_the_bound_and_all_clients_fit_the_ring(
    bits, stochastic, clients, hidden
):
    stage = Quantize(bits=bits, stochastic=stochastic)
    form = Form(dimension=40, clients=clients, bound=1.0, hidden=hidden, noise=1.0)
    after = stage.form(form, {})
    x = torch.nn.functional.normalize(updates(), dim=1)
    x[0] = 0
    x[0, 3] = -1.0  # all of the norm in one number
    rows = stage.out(x, crowd(stage, form), form)
    assert rows.dtype == torch.int64
    assert int(rows.abs().max()) <= after.limit
    assert float((rows.double() * after.step).norm(dim=1).max()) <= after.bound * (1 + 1e-9)
    assert (rows.double() * after.step - x).abs().max() <= after.step * (1 if stochastic else 0.5) * (
        1 + 1e-9
    )
    if hidden:
        assert 2 * clients * after.limit < after.modulus == 2**bits


def test_stochastic_rounding_is_right_on_average():
    """20,000 clients round 0.3 of a unit: the mean of 0s and 1s has a deviation of 0.00324, so 5 of them are
    passed by chance once in 10⁶.
    """
    names = tuple(map(str, range(20_000)))
    form = Form(dimension=1, bound=1.0)
    step = Quantize(bits=8).form(form, {}).step
    rows = Quantize(bits=8).out(
        torch.full((20_000, 1), 0.3 * step, dtype=torch.float64), Clients(names), form
    )
    assert set(rows.flatten().tolist()) == {0, 1}
    assert float(rows.double().mean()) == pytest.approx(0.3, abs=5 * 0.00324)


def test_without_clip_each_client_has_a_grid_of_its_own():
    x = updates() * torch.logspace(-6, 6, 8, dtype=torch.float64)[:, None]
    stage, form = Quantize(bits=12, stochastic=False), Form(dimension=40)
    rows = stage.out(x, crowd(stage, form), form)
    back = stage.read(rows, stage.form(form, {}))
    assert (
        (back - x).abs().amax(1) / x.abs().amax(1)
    ).max() <= 0.51 / 2047 + 1e-6  # 1e-6: the scale travels as float32


def test_the_grid_under_noise_never_lengthens_an_update():
    """Clip in float64 may leave a norm above the bound by a part in 10¹⁵; in whole numbers it may not."""
    form = Form(dimension=40, clients=8, bound=1.0, noise=1.0)
    x = torch.nn.functional.normalize(updates(), dim=1) * (1 + 1e-12)
    after = Fine().form(form, {})
    rows = Fine().out(x, crowd(Fine(), form), form)
    units = [sum(v * v for v in row) for row in rows.tolist()]
    assert max(units) <= (form.bound / after.step) ** 2
    assert (rows.double() * after.step - x).abs().max() <= 2 * after.step


# Noise ------------------------------------------------------------------------------------------------------


def fitted(stages, clients=8, expected=8.0, d=40, seed=3, **more):
    return Guard(
        as_stages(stages),
        Layout({"delta": (d,)}, (), (d // 4, d - d // 4)),
        clients,
        expected,
        insecure_seed=seed,
        **more,
    )


def through(guard, x, weights=None, number=0):
    me = Clients(
        NAMES,
        number,
        {k: v.expand(len(NAMES), *v.shape).clone() for k, v in guard.client_state().items()},
        guard.state,
        guard.insecure_seed,
    )
    down = {"w": torch.zeros(x.shape[1])}
    sent = guard.out(torch.ones(len(NAMES)) if weights is None else weights, {"delta": x}, down, me)
    return guard.back(*guard.total(*sent, number), down, number)["delta"], sent[1]


@pytest.mark.parametrize(
    ("placement", "width"),
    [("central", 1 / 8), ("local", 1 / math.sqrt(8)), ("distributed", math.sqrt(8 / 5) / 8)],
)
@pytest.mark.parametrize("bits", [None, 24])
def test_the_mean_carries_the_noise_its_placement_says(placement, width, bits):
    """z = 1, bound 1, 8 clients: σ of the mean is 1/8 where the server adds it, 1/√8 where each client does,
    and √(8/5)/8 where 5 of 8 must suffice. Over 20,000 numbers the deviation is known to 0.5%; 4 of those are
    passed by chance once in 15,000.
    """
    if bits is None and placement == "distributed":
        bits = 32
    hide = [SecAgg(threshold=0.6)] if placement == "distributed" else []
    guard = fitted(
        [
            Clip(1.0),
            Noise(multiplier=1.0, placement=placement),
            *([Quantize(bits=bits)] if bits else []),
            *hide,
        ],
        d=20_000,
    )
    mean, _ = through(guard, torch.zeros(8, 20_000))
    rounded = guard.output_form().bound  # what the noise is calibrated to, rounding included
    assert float(mean.std()) == pytest.approx(width * rounded, rel=0.02)
    assert abs(float(mean.mean())) < 5 * width * rounded / math.sqrt(20_000)


def test_skellam_noise_of_many_clients_is_skellam_noise_of_the_sum():
    """8 clients of which 5 must suffice, on a coarse grid. χ² of 20,000 numbers fails a right one once in 10⁶
    seeds.
    """
    guard = fitted(
        [
            Clip(1.0),
            Noise(multiplier=0.25, placement="distributed", distribution="skellam"),
            Quantize(bits=13, stochastic=False),
            SecAgg(threshold=0.6),
        ],
        d=20_000,
    )
    _, rows = through(guard, torch.zeros(8, 20_000))
    form = guard.output_form()
    own = form.own_noise * form.bound / form.step
    assert own < 40
    variance = 8 * math.ceil(own**2 * 1024) / 1024
    total = rows.sum(0).numpy()
    reach = math.ceil(10 * math.sqrt(variance))
    expected = special.ive(np.arange(-reach, reach + 1), variance) * len(total)
    seen = np.bincount(total + reach, minlength=2 * reach + 1)
    many = expected >= 5
    a, b = (
        np.append(seen[many], len(total) - seen[many].sum()),
        np.append(expected[many], len(total) - expected[many].sum()),
    )
    assert stats.chisquare(a, b).pvalue > 1e-6
    mean, _ = through(guard, torch.zeros(8, 20_000))
    assert float(mean.std()) == pytest.approx(0.25 * math.sqrt(8 / 5) / 8 * form.bound, rel=0.02)


def test_numbers_that_noise_takes_out_of_range_are_cut_off_and_counted():
    """Zeros, a range of one unit: nearly all go beyond it. With the range that Quantize leaves, none does."""
    guard = fitted([Clip(1.0), Noise(multiplier=1.0, placement="local"), Quantize(bits=12)])
    form = replace(guard.output_form(), limit=1)
    me = crowd(guard)
    rows = guard.noise.out(torch.zeros(8, 40, dtype=torch.int64), me, form)
    assert int(rows.abs().max()) == 1
    assert me.events["out of range"] > 250
    me = crowd(guard)
    assert (
        int(guard.noise.out(torch.zeros(8, 40, dtype=torch.int64), me, guard.output_form()).abs().max()) > 1
    )
    assert "out of range" not in me.events


def test_a_run_without_a_seed_never_repeats_its_noise_and_one_with_a_seed_does():
    x = updates(scale=0.01)
    stages = [Clip(1.0), Noise(multiplier=1.0)]
    open_one, seeded = (lambda: fitted(stages, seed=None)), (lambda: fitted(stages, seed=5))
    assert not torch.equal(through(open_one(), x)[0], through(open_one(), x)[0])
    assert torch.equal(through(seeded(), x)[0], through(seeded(), x)[0])
    assert not torch.equal(through(seeded(), x)[0], through(seeded(), x, number=1)[0])


def test_noise_comes_from_the_operating_system_not_from_torch_or_numpy():
    x = updates(scale=0.01)
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        found.append(
            through(
                fitted([Clip(1.0), Noise(multiplier=1.0, placement="local"), Quantize(bits=20)], seed=None), x
            )[0]
        )
    assert not torch.equal(*found)


def test_the_floating_point_attack_finds_only_multiples_of_one_step():
    """Mironov 2012: the set of reachable floats reveals the value under the noise. Here all reachable sums are multiples
    of one step, whatever the value.
    """
    for x in (torch.zeros(8, 40), updates(scale=0.1)):
        guard = fitted([Clip(1.0), Noise(multiplier=1.0)])
        _, rows = through(guard, x)
        total, _ = guard.total(torch.ones(8), rows, 0)
        assert total.dtype == torch.int64
        assert (
            guard.noise.server(total, guard.output_form(), np.random.default_rng(0).bytes).dtype
            == torch.int64
        )


# Sparsify and Lazy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [Sparsify(top_k=0.1), Sparsify(random_k=0.1)])
def test_what_is_not_sent_is_kept_and_comes_later(stage):
    """Stich et al. 2018: what was sent in all, and what is still kept, add up to what there was to send."""
    form, sent = Form(dimension=40, shared=1), torch.zeros(8, 40, dtype=torch.float64)
    me = crowd(stage, form)
    for r in range(30):
        here = replace(form, round=r)
        rows = stage.out(updates(seed=r), me, here)
        assert int((rows != 0).sum(1).max()) <= 4
        sent += torch.stack([stage.back(row, 1, here, {})[0] for row in rows])
    everything = sum(updates(seed=r) for r in range(30))
    assert torch.allclose(sent + me.memory["sparsify.error"].double(), everything, atol=1e-4)


def test_random_k_without_feedback_is_right_on_average_and_its_places_change():
    stage = Sparsify(random_k=0.25, feedback=False)
    x = torch.ones(8, 40, dtype=torch.float64)
    forms = [Form(dimension=40, shared=1, round=r) for r in range(400)]
    mean = sum(stage.back(stage.out(x, crowd(stage, f), f)[0], 1, f, {})[0] for f in forms) / 400
    assert mean.mean() == pytest.approx(1.0)
    assert float((mean - 1).abs().max()) < 5 * math.sqrt(
        3 / 400
    )  # each number is 4 in a quarter of the rounds: deviation √3; once in 10⁵ by chance
    assert len({tuple(stage.positions(f).tolist()) for f in forms}) == 400


def test_a_lazy_client_skips_while_nothing_changes_and_sends_after_at_most_most_rounds():
    stage, form, x = Lazy(xi=1.0, most=3), Form(dimension=40), updates()
    me = crowd(stage, form)
    me.state = {**stage.server_state(form), "lazy.moved": torch.ones(10, dtype=torch.float64)}
    spoke = []
    for _ in range(9):
        before = me.events.get("skipped", 0)
        rows = stage.out(x, me, form)
        spoke.append(me.events["skipped"] - before == 0)
        assert torch.allclose(rows, x, atol=1e-6)
    assert spoke == [True, False, False, False, True, False, False, False, True]


def test_a_lazy_client_sends_when_its_update_changes_more_than_the_model_did():
    stage, form = Lazy(xi=1.0), Form(dimension=40)
    me = crowd(stage, form)
    me.state = {"lazy.moved": torch.full((10,), 1e-3, dtype=torch.float64)}
    stage.out(updates(), me, form)
    stage.out(updates(seed=1), me, form)
    assert me.events["skipped"] == 0


# the whole guard --------------------------------------------------------------------------------------------

EVERY = [
    [Clip(1.0)],
    [Clip(1.0, per="layer"), Quantize(bits=10)],
    [Quantize(bits=6)],
    [Sparsify(top_k=0.2)],
    [Sparsify(top_k=0.2), Quantize(bits=5)],
    [Sparsify(random_k=0.2), Clip(1.0), Noise(multiplier=0.5, placement="local")],
    [Clip(1.0), Noise(multiplier=0.5)],
    [Lazy()],
    [Clip(1.0, quantile=0.5), Noise(multiplier=0.5), Quantize(bits=20)],
    [Clip(1.0), Quantize(bits=24), SecAgg()],
    [Clip(1.0), Noise(multiplier=2.0, placement="distributed"), Quantize(bits=24), SecAgg()],
    [
        Clip(1.0),
        Noise(multiplier=2.0, placement="distributed", distribution="skellam"),
        Quantize(bits=16),
        SecAgg(),
    ],
]


@pytest.mark.parametrize("stages", EVERY, ids=lambda s: "+".join(type(x).__name__ for x in s))
def test_a_stack_of_clients_and_each_alone_send_the_same_and_encoding_preserves_it(stages):
    x, weights = updates(scale=0.3), torch.arange(1.0, 9.0)
    together, apart = fitted(stages, max_weight=8.0), fitted(stages, max_weight=8.0)
    me = Clients(
        NAMES,
        2,
        {k: v.expand(8, *v.shape).clone() for k, v in together.client_state().items()},
        together.state,
        3,
    )
    down = {"w": torch.zeros(40), **apart.server_message()}
    w, rows = together.out(weights, {"delta": x}, down, me)
    for i, name in enumerate(NAMES):
        weight, sent, _ = apart.encode_upload(
            name, 2, float(weights[i]), {"delta": x[i]}, down, apart.client_state()
        )
        assert weight == float(w[i])
        assert torch.allclose(apart.unpack(sent, 2).double(), rows[i].double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "stages",
    [[Clip(100.0), Quantize(bits=40), SecAgg()], [Clip(100.0)], [Quantize(bits=24)], [Lazy()]],
    ids=lambda s: type(s[-1]).__name__,
)
def test_a_guard_that_takes_nothing_away_gives_the_weighted_mean(stages):
    x, weights = updates(scale=0.3), torch.arange(1.0, 9.0)
    mean, _ = through(fitted(stages, max_weight=8.0), x, weights)
    assert torch.allclose(mean.double(), (weights.double()[:, None] * x).sum(0) / weights.sum(), atol=2e-6)


def test_under_noise_every_client_counts_the_same():
    x = updates(scale=0.01)
    mean, _ = through(fitted([Clip(1.0), Noise(multiplier=1e-6)]), x, torch.arange(1.0, 9.0))
    assert torch.allclose(mean.double(), x.mean(0), atol=1e-5)


def test_a_weight_above_what_was_agreed_counts_as_what_was_agreed():
    stages, x = [Clip(1000.0), Quantize(bits=40, stochastic=False), SecAgg()], updates()
    more, most = (
        through(fitted(stages, max_weight=4.0), x, w)[0]
        for w in (torch.arange(1.0, 9.0), torch.arange(1.0, 9.0).clamp(max=4.0))
    )
    assert torch.equal(more, most)


def test_an_update_that_is_not_finite_is_refused():
    with pytest.raises(
        ValueError,
        match=r"guard: an update of round 1 contains NaN or infinite values, so its norm cannot be bounded\. "
        r"Use a smaller learning rate\.",
    ):
        through(fitted([Clip(1.0)]), torch.full((8, 40), torch.nan))


def test_too_few_bits_for_the_sum_say_so():
    with pytest.raises(
        BadParameter,
        match=r"has 4 bits for the sum of 8 clients of 41 numbers: each number has 1 points, which are too "
        r"few\. "
        r"Use more bits",
    ):
        fitted([Clip(1.0), Quantize(bits=4), SecAgg()])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), bits=st.integers(1, 48), count=st.integers(0, 50))
def test_packed_numbers_come_back_and_take_no_spare_byte(data, bits, count):
    limit = (2**bits - 1) // 2
    form = Form("ring", count, step=1.0, limit=limit, bits=bits)
    row = torch.tensor(
        data.draw(st.lists(st.integers(-limit, limit), min_size=count, max_size=count)), dtype=torch.int64
    )
    sent = room.wire.pack_row(row, form)
    assert sent["whole"].numel() == -(-count * bits // 8)
    assert torch.equal(room.wire.unpack_row(sent, form), row)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"real": torch.zeros(4)}, r"an upload has the fields \['real'\]; \['whole'\] were agreed"),
        ({"whole": torch.zeros(3, dtype=torch.uint8)}, "3 bytes for 4 numbers of 8 bits, which take 4"),
        ({"whole": torch.zeros(4)}, "bytes for 4 numbers"),
        ({"whole": torch.full((4,), 255, dtype=torch.uint8)}, "numbers outside ±100, the agreed range"),
        (
            {"whole": torch.zeros(2, dtype=torch.uint8), "at": torch.tensor([1, 1], dtype=torch.int32)},
            r"positions outside 0 … 3, or one of them twice",
        ),
        (
            {"whole": torch.zeros(1, dtype=torch.uint8), "at": torch.tensor([4], dtype=torch.int32)},
            r"positions outside 0 … 3",
        ),
    ],
)
def test_an_upload_that_does_not_fit_is_refused_before_it_reaches_a_sum(sent, words):
    with pytest.raises(ProtocolError, match=words):
        room.wire.unpack_row(sent, Form("ring", 4, step=1.0, limit=100, bits=8))


def test_real_numbers_that_are_none_are_refused():
    with pytest.raises(ProtocolError, match="4 finite ones were agreed"):
        room.wire.unpack_row({"real": torch.tensor([0.0, 1.0, torch.nan, 2.0])}, Form("real", 4))


def test_a_client_that_never_spoke_cannot_be_silent():
    guard = fitted([Lazy()])
    with pytest.raises(
        ProtocolError, match="'a' sent an empty upload, and there is no earlier upload of it to reuse"
    ):
        guard.decode_uploads({"a": (1.0, {})}, {"w": torch.zeros(40)}, 0)

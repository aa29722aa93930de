"""Checks that need a GPU, which CI does not have.

    PYTHONPATH=src python tests/on_a_gpu.py [WORD ...]

It needs torch and numpy; checks that also need msgpack, cryptography or rbcl are reported as not run
without them. With words, only the checks whose name contains one of them run. A failed check does not stop
the others: the summary at the end lists all of them, and the exit status is 1 if one failed.

How far two runs may differ
---------------------------
Two runs of the same training that add numbers in different orders (CPU and GPU, alone and stacked) differ by
rounding, and training amplifies the difference. Both factors of the limit follow from the arithmetic:

1. The size of the errors. A float32 operation has a relative error of at most u = 2⁻²⁴, a sum of n terms a
   relative error of about γ = √n·u (N. J. Higham, T. Mary: "A New Approach to Probabilistic Rounding Error
   Analysis", SIAM J. Sci. Comput. 41, 2019). No sum of a local step here has more terms than a batch has
   values, so n = batch size × values of a row. The errors of T steps are independent: together √T·γ.
2. Their amplification. By backward error analysis a step with rounding errors is the exact step from weights
   that are changed by a relative γ. Training from initial weights changed by ±√T·γ (all errors at once,
   at the start, where they are amplified longest) therefore differs from training from unchanged weights by
   at least about as much as rounding makes two runs differ. The difference is measured, on the CPU, for three
   random choices of the signs; it includes ReLUs and max pools that switch.

The limit is SAFETY times the largest of the three. Two runs have independent errors (a factor √2), and the
largest of three normal errors is typically 1.3 deviations: SAFETY = 4 is more than three of √2 deviations.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import gc
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tacit
from tacit import aggregate, algorithms, data, models, private
from tacit.algorithms.plan import count_steps
from tacit.errors import MissingExtra, PartyFailed

SAFETY = 4
UNIT = 2.0**-24  # u, the unit roundoff of float32
# Shares are fixed-point numbers with 16 fractional bits, so every factor is rounded by at most 2⁻¹⁷. The
# longest sum of the network below has 48 products of factors of about 1: 48 · 2 · 2⁻¹⁷ = 7e-4; the shorter
# sums add less.
SHARES = 1e-3
# (y² + 1)·y over 9 numbers of at most 3: y² is off by 2·3·2⁻¹⁷ + 2⁻¹⁶ = 6e-5, the sum by 9·(10·2⁻¹⁷ +
# 3·6e-5) = 2.3e-3
PRODUCTS = 2.5e-3
DIGITS = 16  # of a comparison on shares
SMALL = models.MLP(hidden=(16,))
PROTOCOLS: dict[str, dict[str, Any]] = {
    "with a helper": {},
    "against active adversaries": {"adversary": "active"},
    "without a helper": {"helper": None},
}
GENERATORS = ("TVAE", "GAN", "WGAN", "CTGAN", "TabDDPM", "ARGN")
JOB: dict[str, Any] = {"rounds": 4, "batch_size": 16, "seed": 3, "local_epochs": 1}


class NotRun(Exception):
    """A package is missing."""


def federation(
    skew: Any = None, shape: tuple[int, ...] = (20,), rows: int = 600, parties: int = 7
) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    y = (x.reshape(rows, -1) @ rng.standard_normal((int(np.prod(shape)), 3))).argmax(1)
    return data.from_arrays(x, y, classes=3, test=(x[:50], y[:50])).split(
        parties, skew=skew or data.Quantity(0.8), seed=0
    )


def distance(a: Any, b: Any) -> float:
    """The largest difference between the values of two trained models."""
    return max(
        float((p - q).detach().abs().max())
        for p, q in zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    )


def limit(fed: data.Federation, job: dict[str, Any], model: nn.Module, unchanged: Any) -> float:
    """How far a run may be from `unchanged`, a run of the same job: see the top of this file."""
    epochs = np.broadcast_to(job["local_epochs"], len(fed))
    steps = job["rounds"] * int(count_steps(fed.train.sizes.numpy(), epochs, job["batch_size"], None).max())
    terms = job["batch_size"] * int(np.prod(fed.rows.x.shape[1:]))
    size = np.sqrt(steps) * np.sqrt(terms) * UNIT
    distances = []
    for draw in range(3):
        changed, rng = copy.deepcopy(model), torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for p in changed.parameters():
                p *= 1 + size * (2 * torch.randint(0, 2, p.shape, generator=rng) - 1)
        distances.append(distance(tacit.train(fed, **{**job, "model": changed, "device": "cpu"}), unchanged))
    return SAFETY * max(distances)


def build(fed: data.Federation, model: Any) -> nn.Module:
    assert fed.classes is not None
    return models.build(model, tuple(fed.rows.x.shape[1:]), fed.classes, JOB["seed"])


def same(name: str, off: float, allowed: float) -> str:
    assert off <= allowed, f"{name}: {off:.1e} apart, {allowed:.1e} allowed"
    return f"{off:.1e} apart, {allowed:.1e} allowed"


def as_on_the_cpu(fed: data.Federation, model: Any = SMALL, **options: Any) -> str:
    """Train on the CPU and on the GPU."""
    module = build(fed, model)
    job = {**JOB, **options, "model": module}
    cpu, gpu = (tacit.train(fed, device=device, **job) for device in ("cpu", "cuda"))
    return same("CPU and GPU", distance(cpu, gpu), limit(fed, job, module, cpu))


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + 0.1 * torch.randn_like(x))


def field_arithmetic(device: str) -> None:
    """Arithmetic modulo 2^61 − 1, of checked shares, and modulo 2^64 is exact: bit for bit as on the CPU."""
    from tacit.mpc import prime, ring
    from tacit.mpc.beaver import Bilinear

    rng = np.random.default_rng(1)
    conv = Bilinear("conv2d", ((2, 1), (1, 1), (1, 1), 2))
    a, b, images, filters = (
        torch.from_numpy(rng.integers(0, prime.P, s))
        for s in ((40, 1500), (1500, 30), (3, 4, 9, 8), (6, 2, 3, 3))
    )
    for compute in (
        lambda *t: prime.mul(t[0], t[0]),
        lambda *t: prime.add(t[0], t[0]),
        lambda *t: prime.total(t[0], 1),
        lambda *t: prime.matmul(t[0], t[1]),
        lambda *t: prime.bilinear(conv, t[2], t[3]),
        lambda *t: ring.matmul(t[0], t[1]),
        lambda *t: conv(t[2], t[3]),
    ):
        tensors = (a, b, images, filters)
        assert torch.equal(compute(*tensors), compute(*[t.to(device) for t in tensors]).cpu())


def keystream(device: str) -> None:
    """The kernel of ChaCha20 gives the bytes of OpenSSL."""
    from tacit.crypto import chacha, gpu_kernels

    if not gpu_kernels.has_triton():
        raise NotRun("the package 'triton' is not installed")
    rng = np.random.default_rng(3)
    for first, count in ((0, 1), (5, 1000), ((1 << 32) - 3, 300)):
        key = rng.bytes(32)
        here, there = (chacha.ChaCha20(key, d).blocks(first, count) for d in ("cpu", device))
        assert torch.equal(here, there.cpu()), "ChaCha20"


def kernels_and_twins(device: str) -> None:
    """Each other Triton kernel gives the bits of its twin on the CPU."""
    from tacit.crypto import gpu_kernels
    from tacit.mpc import compare, ring, truncate

    if not gpu_kernels.has_triton():
        raise NotRun("the package 'triton' is not installed")
    rng = np.random.default_rng(2)

    def words(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, shape, endpoint=True))

    def bits(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))

    def same_bits(compute: Callable[..., Any], *given: Any) -> None:
        there = compute(*(x.to(device) if isinstance(x, Tensor) else x for x in given))
        for a, b in zip(
            *(x if isinstance(x, tuple) else (x,) for x in (compute(*given), there)), strict=True
        ):
            assert torch.equal(a, b.cpu()), getattr(compute, "__name__", compute)

    for m, k, n in ((16, 25, 1000), (1, 1, 1), (3, 5, 7), (130, 20000, 33)):
        x, y = words(m, k), words(k, n)
        same_bits(ring.matmul, x, y)
        same_bits(ring.matmul, y.t(), x.t())
    far = torch.tensor([-(2**63), 2**63 - 1, 0x7F7F7F7F7F7F7F7F, -0x7F7F7F7F7F7F7F80])  # digits at their ends
    same_bits(ring.matmul, far.repeat(20, 5000), far.repeat(5000)[:, None].expand(-1, 24))
    for count in (1, 7, 8, 1003):
        size = (count + 7) // 8
        c, codes = words(count), bits(DIGITS, count)
        same_bits(compare.make_codes, c, bits(DIGITS, size), bits(size))
        for first in (True, False):
            same_bits(compare.compare_digits, c, codes, first)
            same_bits(compare.finish, words(count), c, words(count), words(count), bits(size), first)
            for pairs in compare.LEVELS:
                names = ("a", "b", "ab") if pairs == 1 else ("a", "b", "ab", "g", "ag")
                masks = [bits(pairs - (name in ("g", "ag")), size) for name in names]

                def level(step: Any, lt: Tensor, other: Tensor, *masks: Tensor, names: Any = names) -> Any:
                    pairs = len(masks[0])
                    t = {f"{name}{pairs}": mask for name, mask in zip(names, masks)}
                    return step(lt, other, t, pairs)

                lt, eq = bits(2 * pairs, size), bits(2 * pairs - 1, size)
                same_bits(functools.partial(level, compare.mask_pairs), lt, eq, *masks)
                combine = functools.partial(compare.combine_pairs, first=first)
                same_bits(functools.partial(level, combine), lt, bits(3 * pairs - 1, size), *masks)

    def truncate_alone(
        v: Tensor, mask: Tensor, uw: Tensor, flips: Tensor, places: int, first: bool
    ) -> Tensor:
        """A party's truncation; what it opens becomes `flips`."""

        async def open_flips(kind: Any, masked: Tensor) -> list[Tensor]:
            return [flips ^ masked]

        ctx: Any = types.SimpleNamespace(first=first, open=open_flips)
        return asyncio.run(truncate._by_carry(ctx, v, places, {"u": mask, "w": mask, "uw": uw}))

    for count in (1, 9, 1003):
        size = (count + 7) // 8
        for places in (1, 13, 16, 17, 40):
            uw = words(count).bitwise_right_shift_(50).to(truncate.residue(places))
            for first in (True, False):
                same_bits(truncate_alone, words(count), bits(size), uw, bits(size), places, first)


def kernels_on_many_values(device: str) -> None:
    """Offsets that do not fit into 32 bits: 150 million values have 16 digits each."""
    from tacit.crypto import gpu_kernels
    from tacit.mpc import compare, ring

    if not gpu_kernels.has_triton():
        raise NotRun("the package 'triton' is not installed")
    if torch.cuda.get_device_properties(device).total_memory < 100e9:
        raise NotRun("needs 100 GB of GPU memory")

    def bits(*shape: int) -> Tensor:
        return torch.randint(256, shape, dtype=torch.uint8, device=device)

    def twin(compute: Callable[..., Any], *given: Any) -> Any:
        supports, gpu_kernels.supports = gpu_kernels.supports, lambda x: False
        try:
            return compute(*given)
        finally:
            gpu_kernels.supports = supports

    def same_bits(compute: Callable[..., Any], *given: Any) -> None:
        for a, b in zip(compute(*given), twin(compute, *given), strict=True):
            assert torch.equal(a, b), getattr(compute, "__name__", compute)
        torch.cuda.empty_cache()

    count = 150_000_001
    size = (count + 7) // 8
    c = torch.randint(-(2**63), 2**63 - 1, (count,), device=device)
    same_bits(compare.make_codes, c, bits(DIGITS, size), bits(size))
    same_bits(compare.compare_digits, c, bits(DIGITS, count), True)
    pairs, size = 8, (1 << 27) + 1
    t = {f"{name}8": bits(pairs, size) for name in ("a", "b", "ab")}
    t |= {f"{name}8": bits(pairs - 1, size) for name in ("g", "ag")}
    lt, eq, opened = bits(16, size), bits(15, size), bits(23, size)
    same_bits(lambda: (compare.mask_pairs(lt, eq, t, pairs),))
    same_bits(lambda: compare.combine_pairs(lt, opened, t, pairs, True))
    x, y = (
        torch.randint(-(2**63), 2**63 - 1, shape, device=device) for shape in ((20_000, 16), (16, 16_384))
    )
    same_bits(lambda: (ring.matmul(x, y),))


def truncated_on(device: str) -> None:
    """Truncations on the GPU are off by less than a unit, as on the CPU."""
    x = torch.linspace(-1000, 1000, 1001, dtype=torch.float64)
    a = tacit.mpc.share(x.to(device))
    off = float(((a * 0.37).open().cpu() - 0.37 * x).abs().max())
    assert off < 1000 * 2.0**-17 + 2.0**-16, off  # 0.37 is rounded to 16 bits, and the product truncated


def shared_network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 8),
        nn.Tanh(),
        nn.Linear(8, 4),
    ).eval()
    return model, torch.randn(5, 1, 8, 8)


class TokenReader(nn.Module):
    """Token ids to scores: an embedding, causal attention, a norm and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) * (ids != 0).unsqueeze(-1)
        x = x + nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).flip(1)
        out: Tensor = self.last(self.gru(self.norm(x))[0][:, -1])
        return out


def shared_reader() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return TokenReader().eval(), torch.tensor([[1, 0, 6], [5, 2, 2]])


def network_on_shares(
    device: str,
    protocol: str,
    model: nn.Module,
    x: Tensor,
    reveals: Sequence[str] = ("logits", "argmax"),
) -> None:
    """Compare inference on shares with the model itself; without a helper, transfers need rbcl."""
    with torch.no_grad():
        plain = model(x)
    for reveal in reveals:
        try:
            out = tacit.infer(model, x, device=device, reveal=reveal, batch=3, **PROTOCOLS[protocol])
        except PartyFailed as error:
            if isinstance(error.__cause__, MissingExtra):
                raise error.__cause__ from error
            raise
        assert out.value.device.type == "cpu"
        assert (
            torch.equal(out.value, plain.argmax(-1))
            if reveal == "argmax"
            else (out.value - plain).abs().max() < SHARES
        ), (protocol, reveal)


def checked_tensors(device: str) -> None:
    y = torch.linspace(-3, 3, 9)
    a = tacit.mpc.share(y.to(device), checked=True)
    assert (a.sigmoid().open().cpu() - y.sigmoid()).abs().max() < SHARES
    assert (((a * a + 1) @ a).open().cpu() - (y * y + 1) @ y).abs() < PRODUCTS
    a.shares[1][0, 0] ^= 1
    message = ""
    try:
        a.open()
    except PartyFailed as error:
        message = str(error)
    assert "check 1 failed" in message, "a changed share on the GPU was not detected"


def generator(
    name: str, device: str, rows: int = 3000, draws: int = 2000, epochs: int = 10, **options: int
) -> None:
    """Fit a neural generator on the GPU and sample it, from arrays, because pandas may be missing.

    Its values are finite and in the domain, the same seed and a copy of the fitted tensors give the same
    rows, and sampling on the CPU gives rows of the same distribution.
    """
    from tacit import synth
    from tacit.synth.encode import Conditions, Layout
    from tacit.synth.generator import GeneratorState

    table = synth.Table.declare(
        {
            "kind": synth.categorical(["a", "b", "c"]),
            "age": synth.integer(0, 99),
            "dose": synth.continuous(0, 8, missing=True),
            "smokes": synth.categorical(["no", "yes"], missing=True),
        }
    )
    layout, rng = Layout(table), np.random.default_rng(0)
    kind = rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    v = np.column_stack(
        [
            kind,
            np.where(kind == 0, rng.integers(10, 30, rows), rng.integers(60, 90, rows)),
            np.where(rng.random(rows) < 0.1, np.nan, rng.normal(4, 1, rows).clip(0, 8)),
            rng.integers(0, 3, rows),
        ]
    ).astype(np.float64)
    model = synth.ALL[name](epochs=epochs, device=device, **options)  # type: ignore[call-arg]
    events: list[Any] = []
    state = model.learn(v, layout, np.random.default_rng(1), events.append)
    assert all(bool(torch.isfinite(t).all()) and t.device.type == "cpu" for t in state.tensors.values()), name
    assert 1 <= len(events) <= epochs  # ARGN stops early, by rows that are held out
    assert all(np.isfinite(x) for event in events for x in event.values() if isinstance(x, float)), name
    copied = GeneratorState(
        {k: torch.from_numpy(t.numpy().copy()) for k, t in state.tensors.items()}, state.metadata
    )
    for asked in (Conditions({}, {}, {}), Conditions({"kind": "c"}, {0: np.array([2.0])}, {})):
        first, again = (
            model.draw(known, layout, draws, np.random.default_rng(2), asked) for known in (state, copied)
        )
        assert np.array_equal(first, again, equal_nan=True), f"{name}: the same seed gives other rows"
        here = dataclasses.replace(model, device="cpu").draw(
            state, layout, draws, np.random.default_rng(2), asked
        )  # type: ignore[type-var]
        for drawn in (first, here):
            x = table.fit_to_domain(layout.decode(drawn))
            assert np.isfinite(drawn[:, [0, 1, 3]]).all(), name
            assert set(np.unique(drawn[:, 0])) <= {0.0, 1.0, 2.0}, name
            assert ((x[:, 1] >= 0) & (x[:, 1] <= 99)).all(), name
            assert np.nanmax(x[:, 2]) <= 8, name
        if not asked.mapping:
            assert abs(np.mean(first[:, 0] == 0) - np.mean(here[:, 0] == 0)) < 2.8 / draws**0.5, (
                f"{name}: the CPU samples another distribution"
            )  # 2.8 ≥ 4·√(2·p(1 − p)) for every share p: four deviations of a difference of two shares


def checks() -> dict[str, Callable[[], str | None]]:
    """Every check by its name; it returns details, and raises if it fails."""
    ragged = federation()
    found: dict[str, Callable[[], str | None]] = {}
    for name in GENERATORS:
        found[f"synthetic data: {name}"] = lambda name=name: generator(
            name, "cuda", **({} if name == "TabDDPM" else {"width": 64})
        )
    found["shares: arithmetic modulo 2^64 and modulo a prime"] = lambda: field_arithmetic("cuda")
    for name in PROTOCOLS:
        found[f"shares: inference {name}"] = lambda name=name: network_on_shares(
            "cuda", name, *shared_network()
        )
        found[f"shares: reading tokens {name}"] = lambda name=name: network_on_shares(
            "cuda", name, *shared_reader()
        )
    found["shares: keystream"] = lambda: keystream("cuda")
    found["shares: kernels and their twins"] = lambda: kernels_and_twins("cuda")
    found["shares: kernels on many values"] = lambda: kernels_on_many_values("cuda")
    found["shares: truncation"] = lambda: truncated_on("cuda")
    found["shares: a changed share is detected"] = lambda: checked_tensors("cuda")
    for algorithm in algorithms.ALL.values():
        found[f"algorithm: {algorithm.__name__}"] = lambda algorithm=algorithm: as_on_the_cpu(
            ragged, algorithm=algorithm(), per_round=4, local_epochs=[1, 2, 3, 1, 1, 1, 2]
        )
    for rule in (aggregate.Momentum(aggregate.Median()), aggregate.FoolsGold(), aggregate.Legato(window=2)):
        found[f"rule with memory: {type(rule).__name__}"] = lambda rule=rule: as_on_the_cpu(
            ragged, aggregate=rule, per_round=4
        )
    found["clusters that split"] = clusters
    found["rows that drift"] = lambda: as_on_the_cpu(federation(data.ConceptDrift(every=1)), rounds=6)
    found["graphs that are collected while another is recorded"] = collected_graphs
    found["model: batch norm and dropout"] = lambda: as_on_the_cpu(federation(shape=(1, 8, 8)), norm)
    for shape in ((1, 8, 8), (3, 32, 32), (1, 28, 28)):  # the three kinds of tiles in tacit.engine.pooled
        found[f"model: convolutions on {shape}"] = lambda shape=shape: as_on_the_cpu(
            federation(shape=shape, rows=200), "cnn", rounds=2
        )
    found["model: random crops"] = lambda: as_on_the_cpu(
        federation(shape=(1, 8, 8)), models.CNN(crop=2, flip=True)
    )
    for engine in ("stack", "streams", "compile"):
        found[f"engine {engine}: attention"] = lambda engine=engine: in_engine(engine, attention)
    for algorithm in (algorithms.FedAvg(), algorithms.Scaffold(), algorithms.FedProx(), algorithms.FedDyn()):
        name = type(algorithm).__name__
        found[f"engine streams: batch norm and dropout, {name}"] = lambda algorithm=algorithm: in_engine(
            "streams", norm, algorithm=algorithm, per_round=4
        )
    found["engine graph: a model that mixes rows"] = lambda: in_engine("graph", Centered)
    found["engine graph: a GRU"] = lambda: in_engine("graph", Reader)
    found["model: random numbers of its own"] = random_model
    for engine in ("stack", "streams"):
        found[f"engine {engine}: an own loss of several outputs"] = lambda engine=engine: in_engine(
            engine, Heads, loss=loss_of_heads, metrics={"hit": hit_of_heads}
        )
    found["optimizer: AdamW with clipping"] = lambda: as_on_the_cpu(
        ragged, optimizer=algorithms.AdamW(max_norm=1.0), algorithm=algorithms.FedAvg(lr=0.01)
    )
    found["precision: bf16"] = half_precision
    found["DP-SGD"] = lambda: as_on_the_cpu(
        ragged, private=private.DPSGD(epsilon=8.0, delta=1e-3), insecure_seed=1, rounds=2
    )
    found["rows on disk"] = stored_rows
    for every in (True, False):
        found[f"model: LSTM, {'all tokens' if every else 'one label'}"] = lambda every=every: recurrent(every)
    found["one program per party"] = lambda: as_on_the_cpu(
        ragged, runtime="inprocess", algorithm=algorithms.Scaffold()
    )
    found["a table of a comparison"] = lambda: table("cuda")
    found["runs side by side equal runs alone"] = comparison
    found["speed: ragged clients, 50 of 100 in a round"] = speed
    return found


class Heads(nn.Module):
    """A network with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.size = nn.Linear(64, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.trunk(x.flatten(1)))
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


def loss_of_heads(out: dict[str, Tensor], y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out["kind"], y, reduction="none") + (out["size"] - y) ** 2


def hit_of_heads(out: dict[str, Tensor], y: Tensor) -> Tensor:
    return (out["kind"].argmax(1) == y).float().mean()


def half_precision() -> str:
    """Local steps in bf16 end near those in float32: a relative error of 2⁻⁸ in each product."""
    fed = federation(shape=(1, 8, 8))
    job = {**JOB, "model": build(fed, "cnn"), "device": "cuda"}
    full, half = (tacit.train(fed, precision=precision, **job) for precision in ("float32", "bf16"))
    off = abs(full.metrics["loss"] - half.metrics["loss"])
    assert 0 < off < 0.05, off
    return f"losses {off:.1e} apart"


def stored_rows() -> str:
    """Rows that stay on disk are read for each step, and give the model of rows in memory."""
    fed = federation()
    rows = {name: torch.nonzero(fed.owner == k).flatten() for k, name in enumerate(fed.parties)}
    sets = {name: torch.utils.data.TensorDataset(*fed.rows.take(index)) for name, index in rows.items()}
    job = {**JOB, "model": build(fed, SMALL), "device": "cuda"}
    runs = [
        tacit.train(data.from_torch(sets, classes=3, keep=keep, seed=0), **job) for keep in ("memory", "disk")
    ]
    return same("in memory and on disk", distance(*runs), 1e-5)


class Attention(nn.Module):
    """Two attention layers over the rows of an image, by torch's own module and by its function."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        x = x + self.heads(x, x, x, need_weights=False)[0]
        x = x + nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.out(x.flatten(1))


def attention() -> nn.Module:
    return Attention()


class Centered(nn.Sequential):
    """Rows minus their mean: what a row gives depends on the others."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Reader(nn.Module):
    """A GRU, which cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x.flatten(1, 2))[0][:, -1])


def in_engine(engine: str, model: Callable[[], nn.Module], **options: Any) -> str:
    """The same model as on the CPU, with this engine, which must be the one that was chosen."""
    from tacit.runtimes import cohort

    chosen, limit = [], cohort.STREAMS_ABOVE
    choose = cohort.Cohort._choose_engine

    def watch(self: Any, asked: str) -> str:
        found = choose(self, asked)
        if self.device.type == "cuda":
            chosen.append((found, self.compiles, self.notes))
        return found

    cohort.Cohort._choose_engine = watch  # type: ignore[method-assign]
    cohort.STREAMS_ABOVE = 0 if engine == "streams" else limit
    try:
        asked = {"engine": engine} if engine == "compile" else {}
        found = as_on_the_cpu(federation(shape=(1, 8, 8)), model, **asked, **options)
    finally:
        cohort.Cohort._choose_engine, cohort.STREAMS_ABOVE = choose, limit  # type: ignore[method-assign]
    wanted = ("streams", True) if engine == "compile" else (engine, False)
    assert chosen
    assert all((name, compiles) == wanted for name, compiles, _ in chosen), chosen
    return found


def norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256, 3),
    )


def clusters() -> str:
    fed = federation()
    fed = dataclasses.replace(fed, rows=fed.rows._replace(y=(fed.rows.y + fed.owner % 2) % 3))
    job = {**JOB, "algorithm": algorithms.CFL(lr=0.3), "rounds": 8}
    run = tacit.train(fed, model=SMALL, device="cuda", **job)
    assert run.history[-1]["clusters"] > 1, "the parties were not split"
    return as_on_the_cpu(fed, **job)


def collected_graphs() -> str:
    """Graphs of earlier runs are collected at any time, also while this run records its own."""
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        return as_on_the_cpu(federation())
    finally:
        gc.set_threshold(*threshold)


def random_model() -> None:
    runs = [tacit.train(federation(), model=Draws, device="cuda", rounds=2, seed=1) for _ in range(2)]
    assert distance(*runs) == 0, "two runs with the same seed differ"
    assert any("draws random numbers" in e.get("text", "") for e in runs[0].events), (
        "the run has no note of it"
    )


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 9, (300, 12))


def recurrent(every: bool) -> str:
    x = tokens()
    following = np.where(x < 8, np.roll(x, -1, 1), -1)  # a label for each token, except some
    following[:, 0] = x[:, 1]
    y = following if every else x[:, 0]
    text = data.from_arrays(x, y, classes=9, tokens=True, test=(x[:50], y[:50])).split(
        9, skew=data.Quantity(0.5), seed=0, min_size=5
    )
    model = models.LSTM(embedding=4, hidden=24, every=every)
    return as_on_the_cpu(text, model, algorithm=algorithms.FedAvg(lr=0.5), batch_size=7)


def table(device: str) -> None:
    text = data.from_arrays(tokens(), tokens()[:, 0], classes=9, tokens=True).split(3)
    rows = tacit.compare(
        text, algorithms=[algorithms.FedAvg()], model=models.LSTM(hidden=16), rounds=1, seeds=2, device=device
    ).table()
    assert list(rows.index) == ["FedAvg", "central", "local only"], list(rows.index)


def comparison(device: str = "cuda") -> str:
    fed = federation(shape=(1, 28, 28), parties=20)
    module = build(fed, "cnn")
    job = {**JOB, "model": module, "rounds": 2, "seed": 0}
    kinds = [algorithms.FedAvg(), algorithms.FedProx()]
    options = {k: v for k, v in job.items() if k != "seed"}
    wide = tacit.compare(fed, algorithms=kinds, seeds=2, device=device, **options)
    alone = tacit.train(fed, algorithm=kinds[0], device=device, **job)
    cpu = alone if device == "cpu" else tacit.train(fed, algorithm=kinds[0], device="cpu", **job)
    allowed = limit(fed, {**job, "algorithm": kinds[0]}, module, cpu)
    return same("in a comparison and alone", distance(wide.results[0], alone), allowed)


def speed() -> str:
    run = tacit.train(
        federation(data.Dirichlet(0.3), parties=100, rows=8000),
        model=SMALL,
        device="cuda",
        rounds=20,
        per_round=50,
        batch_size=8,
    )
    return (
        f"{np.median([r['seconds'] for r in run.history[5:]]):.3f} s a round, "
        f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB of GPU memory at most so far"
    )


def run_checks(found: dict[str, Callable[[], str | None]]) -> int:
    """Run every check and print a summary; the exit status is 1 if one failed."""
    results: dict[str, tuple[str, str]] = {}
    for name, check in found.items():
        begun = time.perf_counter()
        try:
            results[name] = "passed", check() or ""
        except (NotRun, MissingExtra, ModuleNotFoundError) as error:
            results[name] = "NOT RUN", str(error)
        except Exception as error:
            traceback.print_exc()
            results[name] = "FAILED", f"{type(error).__name__}: {error}"
        status, details = results[name]
        print(f"{status:8} {name} ({time.perf_counter() - begun:.1f} s) {details}", flush=True)
    counts = {s: sum(status == s for status, _ in results.values()) for s in ("passed", "FAILED", "NOT RUN")}
    print("\nSummary: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    for name, (status, details) in results.items():
        if status != "passed":
            print(f"{status:8} {name}: {details}")
    return int(counts["FAILED"] > 0)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run_checks({k: v for k, v in checks().items() if not words or any(w in k for w in words)}))

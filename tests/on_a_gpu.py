"""What CI, which has no GPU, cannot show: run it where there is one.

    PYTHONPATH=src python tests/on_a_gpu.py        needs torch and numpy only; shares also msgpack, cryptography and rbcl (what is absent is said)

Every check holds a run on the card to the same run on the CPU, or to itself.
"""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tacit
from tacit import aggregate, algorithms, data, models

SMALL = models.MLP(hidden=(16,))
WAYS: dict[str, dict[str, Any]] = {
    "with a helper": {},
    "against cheats": {"adversary": "active"},
    "without a helper": {"helper": None},
}
GENERATORS = ("TVAE", "GAN", "WGAN", "CTGAN", "TabDDPM")


def federation(
    skew: Any = None, shape: tuple[int, ...] = (20,), rows: int = 600, parties: int = 7
) -> data.Federation:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, *shape)).astype(np.float32)
    y = (x.reshape(rows, -1) @ rng.standard_normal((int(np.prod(shape)), 3))).argmax(1)
    return data.from_arrays(x, y, classes=3, test=(x[:50], y[:50])).split(
        parties, skew=skew or data.Quantity(0.8), seed=0
    )


def apart(a: Any, b: Any) -> float:
    return max(
        float((p - q).detach().abs().max())
        for p, q in zip(a.model.state_dict().values(), b.model.state_dict().values())
    )


def both(fed: data.Federation, limit: float, **options: Any) -> None:
    cpu, gpu = (
        tacit.train(fed, device=device, **{"rounds": 4, "batch_size": 16, "seed": 3, **options})
        for device in ("cpu", "cuda")
    )
    assert apart(cpu, gpu) < limit, (options, apart(cpu, gpu))


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + 0.1 * torch.randn_like(x))


def field_arithmetic(device: str) -> None:
    """Numbers modulo 2^61 − 1, in which checked shares are computed, and modulo 2^64: what the card makes is
    what the CPU makes, to the last bit.
    """
    from tacit.mpc import prime, ring
    from tacit.mpc.beaver import Bilinear

    rng = np.random.default_rng(1)
    conv = Bilinear("conv2d", ((2, 1), (1, 1), (1, 1), 2))
    a, b, images, filters = (
        torch.from_numpy(rng.integers(0, prime.P, s))
        for s in ((40, 1500), (1500, 30), (3, 4, 9, 8), (6, 2, 3, 3))
    )
    for made in (
        lambda *t: prime.mul(t[0], t[0]),
        lambda *t: prime.add(t[0], t[0]),
        lambda *t: prime.total(t[0], 1),
        lambda *t: prime.matmul(t[0], t[1]),
        lambda *t: prime.bilinear(conv, t[2], t[3]),
        lambda *t: ring.matmul(t[0], t[1]),
        lambda *t: conv(t[2], t[3]),
    ):
        given = (a, b, images, filters)
        assert torch.equal(made(*given), made(*[t.to(device) for t in given]).cpu())


def network_on_shares(device: str, way: str, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        plain = model(x)
    for reveal in ("logits", "argmax"):
        out = tacit.infer(model, x, device=device, reveal=reveal, batch=3, **WAYS[way])
        assert out.value.device.type == "cpu"
        assert (
            torch.equal(out.value, plain.argmax(-1))
            if reveal == "argmax"
            else (out.value - plain).abs().max() < 1e-3
        ), (way, reveal)


def checked_tensors(device: str) -> None:
    from tacit.errors import PartyFailed

    y = torch.linspace(-3, 3, 9)
    a = tacit.mpc.share(y.to(device), checked=True)
    assert (a.sigmoid().open().cpu() - y.sigmoid()).abs().max() < 1e-3
    assert (((a * a + 1) @ a).open().cpu() - (y * y + 1) @ y).abs() < 1e-2
    a.shares[1][0, 0] ^= 1
    caught = ""
    try:
        a.open()
    except PartyFailed as failed:
        caught = str(failed)
    assert "check 1 failed" in caught, "a changed share on the card went unnoticed"


def shares(device: str) -> None:
    """A network on the card against the plain model, in every way; that without a helper needs rbcl for its
    transfers.
    """
    from tacit.errors import MissingExtra, PartyFailed

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
    for way in WAYS:
        try:
            network_on_shares(device, way, model, torch.randn(5, 1, 8, 8))
            print(f"inference on shares, {way}, on {device}: as the plain model")
        except (MissingExtra, PartyFailed) as absent:
            if not isinstance(absent, MissingExtra) and not isinstance(absent.__cause__, MissingExtra):
                raise
            print(f"inference on shares, {way}: NOT RUN, {absent}")
    try:
        checked_tensors(device)
        print(f"checked tensors on {device}: a changed share is caught")
    except MissingExtra as absent:
        print(f"checked tensors: NOT RUN, {absent}")


def generator(
    name: str, device: str, rows: int = 3000, draws: int = 2000, epochs: int = 30, **options: int
) -> None:
    """A generator that is a network learns and draws there, from arrays, since neither pandas nor safetensors
    need be here: finite, in its domain, the same again from the same seed, from a copy of what it learnt, and
    drawn on the CPU from what the card learnt.
    """
    from tacit import synth
    from tacit.synth.conditions import Conditions
    from tacit.synth.encode import Layout
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
    made = synth.ALL[name](epochs=epochs, device=device, **options)  # type: ignore[call-arg]
    told: list[Any] = []
    state = made.learn(v, layout, np.random.default_rng(1), told.append)
    assert all(bool(torch.isfinite(t).all()) and t.device.type == "cpu" for t in state.tensors.values()), name
    assert len(told) == epochs
    assert all(np.isfinite(x) for event in told for x in event.values() if isinstance(x, float)), name
    copied = GeneratorState(
        {k: torch.from_numpy(t.numpy().copy()) for k, t in state.tensors.items()}, state.facts
    )
    for asked in (Conditions({}, {}, {}), Conditions({"kind": "c"}, {0: np.array([2.0])}, {})):
        first, again = (
            made.draw(known, layout, draws, np.random.default_rng(2), asked) for known in (state, copied)
        )
        assert np.array_equal(first, again, equal_nan=True), f"{name}: the same seed draws other rows"
        here = dataclasses.replace(made, device="cpu").draw(
            state, layout, draws, np.random.default_rng(2), asked
        )  # type: ignore[type-var]
        for drawn in (first, here):
            x = table.fit_to_domain(layout.decode(drawn))
            assert np.isfinite(drawn[:, [0, 1, 3]]).all(), name
            assert set(np.unique(drawn[:, 0])) <= {0.0, 1.0, 2.0}, name
            assert ((x[:, 1] >= 0) & (x[:, 1] <= 99)).all(), name
            assert np.nanmax(x[:, 2]) <= 8, name
        if not asked.told:
            assert abs(np.mean(first[:, 0] == 0) - np.mean(here[:, 0] == 0)) < 2.8 / draws**0.5, (
                f"{name}: drawn here other rows than there"
            )  # 4 deviations


def main() -> None:
    for name in GENERATORS:
        generator(name, "cuda", **({} if name == "TabDDPM" else {"width": 64}))
    print(
        "every network of tacit.synth: learns and draws, the same again, and on the CPU from what the card "
        "learnt"
    )
    try:
        field_arithmetic("cuda")
        print("arithmetic of shares, modulo 2^64 and modulo a prime: as on the CPU")
        shares("cuda")
    except ModuleNotFoundError as absent:  # messages need msgpack, and so does everything that may send one
        print(f"inference on shares: NOT RUN, {absent}")
    for algorithm in algorithms.ALL.values():
        both(
            federation(),
            1e-4,
            model=SMALL,
            algorithm=algorithm(),
            per_round=4,
            local_epochs=[1, 2, 3, 1, 1, 1, 2],
        )
    print("every algorithm, ragged, partial participation: as on the CPU")
    for rule in (aggregate.Momentum(aggregate.Median()), aggregate.FoolsGold(), aggregate.Legato(window=2)):
        both(federation(), 1e-4, model=SMALL, aggregate=rule, per_round=4, rounds=4)
    parted = federation()
    parted = dataclasses.replace(parted, rows=parted.rows._replace(y=(parted.rows.y + parted.owner % 2) % 3))
    both(parted, 1e-3, model=SMALL, algorithm=algorithms.CFL(lr=0.3), rounds=8)
    assert (
        tacit.train(
            parted,
            model=SMALL,
            algorithm=algorithms.CFL(lr=0.3),
            rounds=8,
            batch_size=16,
            seed=3,
            device="cuda",
        ).history[-1]["clusters"]
        > 1
    )
    print("rules that remember earlier rounds, and clusters that part: as on the CPU")
    both(federation(data.ConceptDrift(every=1)), 1e-4, model=SMALL, rounds=6)
    print("rows that drift: as on the CPU, and no graph reads rows that are gone")
    often = gc.get_threshold()
    gc.set_threshold(
        1
    )  # the graphs of the runs before are collected wherever this one may be, also while it records its own
    both(federation(), 1e-4, model=SMALL, rounds=4)
    gc.set_threshold(*often)
    print("a run whose predecessors are collected while it records: as on the CPU")

    def norm():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(256, 3),
        )

    both(federation(shape=(1, 8, 8)), 1e-3, model=norm)
    for shape in (
        (1, 8, 8),
        (3, 32, 32),
        (1, 28, 28),
    ):  # the three kinds of tiles that tacit.engine.pooled cuts
        both(
            federation(shape=shape, rows=200), 1e-3, model="cnn", rounds=2
        )  # in four, 2e-7 in the pixels of the last become 6e-4: another one is the largest
    both(federation(shape=(1, 8, 8)), 1e-3, model=tacit.models.CNN(crop=2, flip=True))
    print("convolutions as products, batch norm, dropout, random crops: as on the CPU")
    both(federation(), 1e-4, model=SMALL, runtime="inprocess", algorithm=algorithms.Scaffold())
    print("one program per party on the card: as on the CPU")
    fed = federation()
    runs = [tacit.train(fed, model=Draws, device="cuda", rounds=2, seed=1) for _ in range(2)]
    assert apart(*runs) == 0, "a model that draws is not repeated from the seed"
    assert any("draws random numbers" in e.get("text", "") for e in runs[0].events)
    print("a model that draws: noted, and the same twice")
    tokens = np.random.default_rng(0).integers(0, 9, (300, 12))
    text = data.from_arrays(tokens, tokens[:, 0], classes=9, tokens=True).split(3)
    table = tacit.compare(
        text, algorithms=[algorithms.FedAvg()], model=models.LSTM(hidden=16), rounds=1, seeds=2, device="cuda"
    ).table()
    assert list(table.index) == ["FedAvg", "central", "local only"]
    following = np.where(tokens < 8, np.roll(tokens, -1, 1), -1)  # a label for each token, but for some
    following[:, 0] = tokens[:, 1]
    for labels, every in ((following, True), (tokens[:, 0], False)):
        text = data.from_arrays(
            tokens, labels, classes=9, tokens=True, test=(tokens[:50], labels[:50])
        ).split(9, skew=data.Quantity(0.5), seed=0, min_size=5)
        both(
            text,
            1e-4,
            model=models.LSTM(embedding=4, hidden=24, every=every),
            algorithm=algorithms.FedAvg(lr=0.5),
            batch_size=7,
        )
    print("networks of characters, stacked and ragged: as on the CPU")
    wide = tacit.compare(
        federation(shape=(1, 28, 28), parties=20),
        algorithms=[algorithms.FedAvg(), algorithms.FedProx()],
        model="cnn",
        rounds=2,
        seeds=2,
        device="cuda",
        batch_size=16,
    )
    alone = tacit.train(
        federation(shape=(1, 28, 28), parties=20),
        algorithm=algorithms.FedAvg(),
        model="cnn",
        rounds=2,
        device="cuda",
        batch_size=16,
    )
    assert apart(wide.results[0], alone) < 1e-4, apart(wide.results[0], alone)
    print(f"comparisons on the card: rows as alone; {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most")
    ragged = tacit.train(
        federation(data.Dirichlet(0.3), parties=100, rows=8000),
        model=SMALL,
        device="cuda",
        rounds=20,
        per_round=50,
        batch_size=8,
    )
    print(
        f"ragged clients, 50 of 100 a round: {np.median([r['seconds'] for r in ragged.history[5:]]):.3f} s "
        "a round"
    )


if __name__ == "__main__":
    main()

"""SecAgg, LightSecAgg and Encrypt in a guard: what they refuse, and that a guarded run is the unguarded one
up to its grid, in simulation and over messages.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tacit
from tacit import algorithms, data, guard
from tacit.errors import BadParameter, PartyFailed
from tacit.jobs.train import messages
from tacit.runtimes.inprocess import InProcess
from tests.protocols.leaving import leaving

BITS = 28
HIDING = {
    "secagg": guard.SecAgg(),
    "active": guard.SecAgg(threshold=0.75, adversary="active"),
    "sparse": guard.SecAgg(neighbors=4),
    "light": guard.LightSecAgg(),
    "encrypt": guard.Encrypt(),
}
LINEAR = [
    algorithms.FedAvg(lr=0.1),
    algorithms.FedProx(lr=0.1, mu=0.1),
    algorithms.FedNova(lr=0.1),
    algorithms.Scaffold(lr=0.1),
    algorithms.FedNAG(lr=0.1),
    algorithms.FedNova(lr=0.1, tau="harmonic"),
    algorithms.FedAdam(lr=0.1),
    algorithms.FedAvgM(lr=0.1),
    algorithms.FedSGD(lr=0.1),
    algorithms.FedDyn(lr=0.1),
]


@pytest.fixture(scope="module")
def fed() -> Any:
    return data.gaussian_blobs(rows=200, seed=0).split(5, skew=data.Dirichlet(0.5), seed=0)


def weights(run: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def train(fed: Any, **more: Any) -> Any:
    return tacit.train(
        fed, **({"model": "logistic", "algorithm": algorithms.FedAvg(lr=0.1), "rounds": 3} | more)
    )


def hidden(stage: Any, bits: int = BITS) -> list[Any]:
    return [guard.Clip(20.0), guard.Quantize(bits=bits, stochastic=False), stage]


@pytest.mark.parametrize("algorithm", LINEAR, ids=lambda a: type(a).__name__)
def test_every_linear_algorithm_under_secagg_is_itself_up_to_quantization(fed: Any, algorithm: Any) -> None:
    """The grid: ±20 in 2^28/5 points, 7e-7 apart; three rounds of it, and float32's own rounding."""
    plain, masked = (
        train(fed, algorithm=algorithm),
        train(fed, algorithm=algorithm, runtime="inprocess", guard=hidden(guard.SecAgg())),
    )
    assert float((weights(plain) - weights(masked)).abs().max()) < (
        2e-4 if isinstance(algorithm, algorithms.FedAdam) else 2e-5
    )  # Adam divides by √v
    assert not [line for line in masked.ledger.seen if line.kind == "Upload"]
    assert [line.how for line in masked.ledger.seen if line.kind == "MaskedVector"] == ["executed"] * 5


@pytest.mark.parametrize("name", HIDING)
def test_simulation_and_messages_come_to_the_same_model(fed: Any, name: str) -> None:
    """Nearest rounding: the same whole numbers are added up, by the protocol and by its ideal, bit for
    bit.
    """
    simulated, real = (
        train(fed, runtime=runtime, guard=hidden(HIDING[name])) for runtime in ("cohort", "inprocess")
    )
    assert float((weights(simulated) - weights(real)).abs().max()) < 1e-6
    assert {line.how for line in simulated.ledger.seen} == {"ideal"}
    assert {line.how for line in real.ledger.seen} == {"executed"}
    assert not [line for line in real.ledger.seen if line.kind == "Upload"]


class Leaving(InProcess):
    """`gone` clients drop out after this many messages."""

    gone: dict[str, int] = {}  # set by each test  # noqa: RUF012

    def stream(self, programs: Any, *args: Any, **more: Any) -> Any:
        return super().stream(leaving(programs, self.gone), *args, **more)


@pytest.mark.parametrize("name", HIDING)
def test_a_party_that_dies_in_the_middle_of_a_sum_is_left_out_of_it(
    fed: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains, shares its secrets in the first round, and drops out. The model is that of the other four from the
    start.
    """
    gone = fed.parties[1]
    monkeypatch.setattr(Leaving, "gone", {gone: 2 if name != "encrypt" else 1})
    monkeypatch.setattr(messages, "InProcess", Leaving)
    monkeypatch.setattr(messages.MessageTrainer, "within", 30.0)
    monkeypatch.setattr(messages.MessageTrainer, "at_least", 4)
    killed = train(fed, rounds=2, evaluate_every=0, runtime="inprocess", guard=hidden(HIDING[name]))
    assert [set(e.get("dropped", {})) for e in killed.events if e["kind"] == "round"] == [{gone}, {gone}]
    monkeypatch.undo()
    from tacit.protocols import rounds

    original = rounds.server

    async def four(me: Any, clients: Any, numbers: Any, choose: Any, *more: Any, **network: Any) -> None:
        """The same federation, unguarded, where that party is never asked."""
        await original(me, clients, numbers, lambda r: [n for n in choose(r) if n != gone], *more, **network)

    monkeypatch.setattr(messages.protocol, "server", four)
    plain = train(fed, rounds=2, evaluate_every=0, runtime="inprocess")
    assert float((weights(plain) - weights(killed)).abs().max()) < 2e-5


def test_too_few_left_end_the_run_and_open_nothing(fed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leaving, "gone", {name: 2 for name in fed.parties[:3]})
    monkeypatch.setattr(messages, "InProcess", Leaving)
    monkeypatch.setattr(messages.MessageTrainer, "within", 30.0)
    monkeypatch.setattr(messages.MessageTrainer, "at_least", 1)
    with pytest.raises(
        PartyFailed,
        match=r"secure aggregation was aborted, and no update was opened\. .* Round 1 was tried 3 times",
    ):
        train(fed, runtime="inprocess", evaluate_every=0, guard=hidden(guard.SecAgg()))


@pytest.mark.parametrize("bits", [16, 20, 32])
def test_uploads_take_the_bits_of_quantize(fed: Any, bits: int) -> None:
    run = train(fed, rounds=1, runtime="inprocess", evaluate_every=0, guard=hidden(guard.SecAgg(), bits))
    numbers = len(weights(run)) + 1  # and the weight
    histograms = fed.classes**2 + 2 * (1 if fed.classes == 2 else fed.classes) * 1024
    counts = 4 * (1 + 12 * 5 + histograms)  # the evaluation after the last round: words of 32 bits
    lines = [line for line in run.ledger.seen if line.kind == "MaskedVector"]
    assert {line.count for line in lines} == {2}
    assert all(0 <= line.bytes - -(-numbers * bits // 8) - counts < 160 for line in lines)


def test_a_client_keeps_its_weight_to_itself(fed: Any) -> None:
    """No message to the server reveals a party's number of rows, and the mean is weighted nevertheless."""
    run = train(fed, rounds=1, runtime="inprocess", guard=hidden(guard.SecAgg()))
    assert {line.kind for line in run.ledger.seen if line.party == "server"} == {
        "AdvertisedKeys",
        "SealedShares",
        "MaskedVector",
        "RevealedShares",
    }
    assert float((weights(run) - weights(train(fed, rounds=1))).abs().max()) < 1e-5


def test_noise_under_masking_reaches_the_sum(fed: Any) -> None:
    run = train(
        fed,
        rounds=2,
        runtime="inprocess",
        guard=[
            guard.Clip(1.0),
            guard.Noise(multiplier=2.0, placement="distributed"),
            guard.Quantize(bits=20),
            guard.SecAgg(),
        ],
    )
    assert run.ledger.spent
    assert float((weights(run) - weights(train(fed, rounds=2))).abs().max()) > 1e-3


def test_sampling_lowers_no_epsilon_if_the_clients_of_a_round_know_each_other(fed: Any) -> None:
    """RoundKeys names them to each client, and a client sees the models: against a client the sample is not secret, so ε
    cannot assume it.
    """
    stages = [guard.Clip(1.0), guard.Noise(multiplier=2.0), guard.Quantize(bits=24)]
    hidden = train(fed, guard=[*stages, guard.SecAgg()], per_round=3, rounds=2).ledger.spent[0]
    assert (hidden.sampling, hidden.unit) == ("no", "client, present or not")
    assert hidden.epsilon == pytest.approx(
        train(fed, guard=stages, rounds=2).ledger.spent[0].epsilon, rel=1e-9
    )  # everyone in every round
    assert "drawn in secret" in train(fed, guard=stages, per_round=3, rounds=2).ledger.spent[0].sampling


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (
            [guard.Clip(1.0), guard.SecAgg()],
            "SecAgg adds integers, and there is no Quantize before it",
        ),
        (
            [guard.Quantize(bits=16), guard.SecAgg()],
            "SecAgg needs a bound on each update, and there is no Clip before it",
        ),
        ([guard.Clip(1.0), guard.SecAgg(), guard.Quantize(bits=16)], "Quantize comes after SecAgg"),
        (
            [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(), guard.LightSecAgg()],
            "LightSecAgg does the same as SecAgg before it",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(neighbors=3)],
            "SecAgg: neighbors is 3; it must be even",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(threshold=0.4)],
            r"SecAgg: threshold is 0\.4; it must be a number above 0\.5 and at most 1",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(adversary="active")],
            r"SecAgg: threshold is 0\.6; it must be above 2/3 against an active server",
        ),
        (
            [
                guard.Clip(1.0),
                guard.Quantize(bits=16),
                guard.SecAgg(threshold=0.7, adversary="active", neighbors=4),
            ],
            "SecAgg: neighbors is 4; it must be None",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=16), guard.LightSecAgg(threshold=0.6, colluding=0.7)],
            r"LightSecAgg: colluding is 0\.7; it must be below",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=40), guard.LightSecAgg()],
            r"LightSecAgg adds in a field of 31 bits, and Quantize has 40",
        ),
        (
            [guard.Clip(1.0), guard.Quantize(bits=40), guard.Encrypt()],
            r"Encrypt adds in slots of 32 bits, and Quantize has 40",
        ),
        (
            [guard.Clip(1.0), guard.Noise(multiplier=1.0), guard.Quantize(bits=24), guard.Encrypt()],
            r"Encrypt lets two of the clients decrypt the sum, who would see it before the server adds its "
            r"noise. Use Noise\(placement='distributed'\), or SecAgg",
        ),
    ],
)
def test_a_guard_that_cannot_work_is_refused_when_the_job_is_built(
    fed: Any, stages: list[Any], words: str
) -> None:
    with pytest.raises(BadParameter, match=words):
        train(fed, guard=stages)


def test_one_party_a_round_has_nothing_to_hide_among(fed: Any) -> None:
    with pytest.raises(
        BadParameter,
        match=r"SecAgg hides one update among several, and 1 takes part in a round\. Use at least 2 clients, "
        r"better 3",
    ):
        train(fed, per_round=1, guard=hidden(guard.SecAgg()))


def test_poisson_sampling_hides_the_number_of_participants_from_everyone(fed: Any) -> None:
    with pytest.raises(
        BadParameter,
        match=r"SecAgg needs to know how many parties take part in a round, and by Poisson sampling nobody does\. "
        r"Use sampling='fixed'",
    ):
        train(fed, per_round=3, sampling="poisson", runtime="inprocess", guard=hidden(guard.SecAgg()))


def test_a_round_that_is_run_again_draws_new_masks(fed: Any) -> None:
    """The same round, twice: the same model, other masks. Two of 29 masked numbers equal by chance: below
    1e-6.
    """
    from tacit.parties.codec import decode
    from tacit.parties.conformance import Tap
    from tacit.protocols.secagg import MaskedVector

    seen = []
    for _ in range(2):
        tap = Tap()

        class Tapped(InProcess):
            def run_sync(self, programs: Any, *, tap: Tap = tap, **more: Any) -> Any:
                return super().run_sync(tap.on(programs), **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(messages, "InProcess", Tapped)
            run = train(fed, rounds=1, runtime="inprocess", guard=hidden(guard.SecAgg(), 32))
        seen.append(
            (
                weights(run),
                {
                    s: m.packed.view(torch.int32)
                    for s, _, _, f in tap.frames
                    if isinstance(m := decode(f), MaskedVector)
                },
            )
        )
    (first, a), (again, b) = seen
    assert torch.equal(first, again)
    assert all(int((a[name] == b[name]).sum()) <= 1 for name in a)

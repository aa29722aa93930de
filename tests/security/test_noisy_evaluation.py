"""Evaluation between real parties if an ε is claimed: a malicious server gets as many noisy vectors as agreed, the
noise is the claimed one, and the ε of the ledger equals that of an independent accountant for updates and
evaluations together (issue 19, finding 7).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import pld, rdp
from scipy import stats

from tacit.cli.progress import summary
from tacit.engine.metrics import Counts, count
from tacit.guard import Clip, Noise, Quantize, SecAgg
from tacit.jobs.plan import plan
from tacit.jobs.train import deployed, guards
from tacit.jobs.train import member as members
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.figures import (
    KEY,
    NORM,
    add_noise,
    compute_figures,
    estimate,
    fit_figures,
    largest_loss,
    standard_deviation,
)
from tacit.jobs.train.hidden_sums import HiddenSum
from tacit.jobs.train.plan import make_plan, make_task
from tacit.protocols import rounds, secagg
from tests.clinics import write_files
from tests.runtimes.net import Net
from tests.security.lying_server import CLIENTS, JOB, LOCAL_NOISE, SIZES, Attacker, play, refusals

HIDDEN_NOISE = """
[[guard]]
name = "Clip"
norm = 1.0
[[guard]]
name = "Noise"
placement = "distributed"
epsilon = 3.0
[[guard]]
name = "Quantize"
bits = 30
[[guard]]
name = "SecAgg"
threshold = 0.7
adversary = "active"
"""
CENTRAL_NOISE = LOCAL_NOISE.replace("local", "central")
TESTS = 4  # of JOB's three rounds: the model before training, and after each round


def spent(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"state-{name}" / "spent.jsonl").read_text().splitlines()]


async def ask_test(server: Attacker, r: int, name: str = "a") -> bytes:
    await server.me.send(name, rounds.Test(r, server.task.initial()))
    counts = (await server.me.scope(f"test {r}").recv(name, rounds.Tested)).counts
    assert set(counts) == {"whole"}  # a guarded row, and no count
    return bytes(counts["whole"].tolist())


# --- what a lying server gets -------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["epsilon = 3.0", "multiplier = 1.0"])
def test_a_test_that_is_asked_again_gives_the_same_noisy_vector_also_after_a_restart(
    noise: str, tmp_path: Path
) -> None:
    """Ten vectors with noise of their own would average out a third of it. One costs ε once, however often it
    is sent.
    """
    got: set[tuple[int, bytes]] = set()

    async def attack(server: Attacker) -> bool:
        await server.offer(["a"])
        for _ in range(3):
            got.update([(r, await ask_test(server, r)) for r in range(-1, 3)])
        return True

    for k in range(2):  # the party is restarted in between
        gained, _ = play(attack, tmp_path / str(k), JOB + LOCAL_NOISE + noise, state=tmp_path)
        assert gained
    assert len(got) == len({row for _, row in got}) == TESTS
    assert len(spent(tmp_path, "a")) == TESTS


def test_tests_leave_as_many_updates_as_were_agreed_and_no_more(tmp_path: Path) -> None:
    """Without an ε to keep, a server that does not ask for tests could ask for updates in their place."""
    answered: list[int] = []

    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        await ask_test(server, -1)
        while True:
            await server.me.send("a", rounds.Down(0, server.down(0)))
            await server.me.scope("round 0").recv("a", rounds.Upload)
            answered.append(1)

    gained, ended = play(attack, tmp_path, JOB + LOCAL_NOISE + "multiplier = 1.0")
    assert gained is None
    assert len(answered) == 3
    assert "has answered 3 of the 3 times it agreed to" in refusals(ended)[0]
    assert len(spent(tmp_path, "a")) == 4


@pytest.mark.parametrize("r", [3, 7, -2])
def test_a_test_beyond_the_agreed_ones_is_refused(r: int, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        return await ask_test(server, r)

    gained, ended = play(attack, tmp_path, JOB + LOCAL_NOISE + "epsilon = 3.0")
    assert gained is None
    assert "which is not part of the contract" in refusals(ended)[0]
    assert not (tmp_path / "state-a" / "spent.jsonl").exists()


def test_another_model_in_the_same_test_is_refused(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        await ask_test(server, -1)
        await server.me.send("a", rounds.Test(-1, {"w": server.task.initial()["w"] + 1.0}))
        return await server.me.scope("test -1").recv("a", rounds.Tested)

    gained, ended = play(attack, tmp_path, JOB + LOCAL_NOISE + "epsilon = 3.0")
    assert gained is None
    assert "a different model 0 than before" in refusals(ended)[0]
    assert len(spent(tmp_path, "a")) == 1


def test_a_regression_under_noise_reports_nothing(tmp_path: Path) -> None:
    job = JOB.replace(
        'label = "sick"\nlabels = ["no", "yes"]\nnumbers = ["age", "chol"]',
        'label = "chol"\nnumbers = ["age"]',
    )

    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        return await ask_test(server, -1)

    gained, ended = play(attack, tmp_path, job + LOCAL_NOISE + "epsilon = 3.0")
    assert gained is None
    assert "which is not part of the contract" in refusals(ended)[0]


def test_figures_are_in_one_hidden_sum_with_those_of_parties_that_have_few_rows(tmp_path: Path) -> None:
    """Party c holds back 5 rows, fewer than min_rows: it takes part with zeros and its noise, and nobody sees
    that.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        assert server.guard is not None
        figures = fit_figures(server.plan, server.guard)
        assert figures is not None
        sums, gained = HiddenSum(figures, server.contract.digest), list[Any]()
        for k, (r, names) in enumerate(((-1, CLIENTS), (-1, CLIENTS), (-1, CLIENTS[:3]))):
            message = rounds.Test(
                r, {**server.task.initial(), rounds.SESSION: torch.full((8,), k, dtype=torch.uint8)}
            )
            await server.me.send(names, message)
            with server.me.scope(rounds._tag(message)) as here:
                try:
                    gained.append(
                        (await sums.server(here, r, names, None, rounds.digest_of_request(message)))[:2]
                    )
                except secagg.ProtocolError as error:
                    gained.append(error)
        return gained

    for k in range(2):  # the parties are restarted in between
        gained, _ = play(attack, tmp_path / str(k), JOB + HIDDEN_NOISE, state=tmp_path)
        assert all(isinstance(other, rounds.SumAborted) for other in gained[1:])
        assert isinstance(gained[0], rounds.SumAborted) if k else sorted(gained[0][1]) == list(CLIENTS)
    for name in CLIENTS:
        assert len(spent(tmp_path, name)) == 1


# --- the noise ----------------------------------------------------------------------------------------------


def plan_of(stages: list[Any], parties: int = 4, **more: Any) -> Any:
    fed = Elsewhere.of("blobs", tuple(f"p{k}" for k in range(parties)), (2,), ("no", "yes"), ())
    return make_plan(
        fed, model="logistic", **{"rounds": 5, "guard": stages, "runtime": Deployed(None, {}), **more}
    )


def fitted(stages: list[Any], **more: Any) -> tuple[Any, Any]:
    p = plan_of(stages, **more)
    task = make_task(p)
    return p, guards.fit(p, task, task.initial())


def outcomes(hits: int, rows: int) -> dict[str, torch.Tensor]:
    """Counts of a party of which the model gets so many rows right."""
    y = torch.zeros(rows, dtype=torch.int64)
    out = torch.zeros(rows, 2)
    out[:hits, 0], out[hits:, 1] = 1.0, 1.0
    return count(out, y, 2)._asdict()


PLACEMENTS = {
    "local": [Clip(1.0), Noise(multiplier=1.5, placement="local")],
    "central": [Clip(1.0), Noise(multiplier=1.5)],
    "distributed": [
        Clip(1.0),
        Noise(multiplier=1.5, placement="distributed"),
        Quantize(bits=30),
        SecAgg(threshold=0.7),
    ],
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_opened_figures_of_neighbors_carry_the_claimed_noise(placement: str) -> None:
    """One party's outcomes are flipped: 18 right of 20, or 2. The opened sums differ by that on average, and
    spread by the σ that is accounted for: 12 checks a placement at 1e-10 each, so a false alarm below
    4e-9 in all. Noise of half the σ never passes.
    """
    n, alarm = 150, 1e-10
    p, guard = fitted(PLACEMENTS[placement])
    figures = fit_figures(p, guard)
    assert figures is not None
    form, noise = figures.output_form(), figures.noise
    claimed = (
        1.5
        * form.bound
        * {"local": math.sqrt(4), "central": 1.0, "distributed": math.sqrt(4 / form.least)}[placement]
    )
    assert form.bound >= NORM
    opened = {}
    for hits in (18, 2):
        everyone = [outcomes(hits, 20), outcomes(15, 20), outcomes(12, 20), {}]
        sums = []
        for k in range(n):
            rows = torch.stack(
                [
                    figures.unpack(add_noise(figures, name, k, mine, 2), k)
                    for name, mine in zip(p.fed.parties, everyone)
                ]
            )
            sums.append(figures.back(rows.sum(0), 4.0, {"w": torch.zeros(1)}, k)[KEY].double() * 4)
        opened[hits] = torch.stack(sums)
        exact = torch.stack([compute_figures(mine, 2) for mine in everyone]).sum(0)
        off = (opened[hits].mean(0) - exact).abs() / (claimed / math.sqrt(n))
        assert float(off.max()) < stats.norm.isf(alarm / 2)
        spread = (opened[hits].var(0) * (n - 1) / claimed**2).tolist()
        low, high = stats.chi2.ppf(alarm / 2, n - 1), stats.chi2.isf(alarm / 2, n - 1)
        assert all(low < s < high * 1.01 for s in spread), (
            spread,
            low,
            high,
        )  # rounding adds less than a hundredth
    release = guards.evaluation_release(p, guard)
    assert release is not None
    assert noise is not None
    distance = 2 * form.bound if placement == "local" else form.bound
    if placement != "distributed":  # there, distributed_multiplier takes off what the grid costs
        assert release.multiplier == pytest.approx(1.5 * form.bound / distance)
    assert release.multiplier <= 1.5


def test_a_partys_figures_are_bounded_whatever_its_counts() -> None:
    p, guard = fitted(PLACEMENTS["local"])
    figures = fit_figures(p, guard)
    wild = [
        Counts(
            torch.tensor(loss),
            torch.tensor(20.0),
            torch.diag(torch.tensor([20.0, 0.0])),
            torch.zeros(0, 0),
            torch.zeros(0, 0),
            torch.zeros(0),
        )
        for loss in (math.inf, -math.inf, math.nan, 1e300, -1e300)
    ]
    for mine in [outcomes(0, 20), outcomes(20, 20), {}, *(w._asdict() for w in wild)]:
        row = compute_figures(mine, 2)
        assert row.abs().max() <= 0.5
        assert float(row.norm()) <= NORM * (1 + 1e-12)
    silent = dataclasses.replace(
        guard,
        stages=tuple(
            s if not isinstance(s, Noise) else dataclasses.replace(s, placement="central")
            for s in guard.stages
        ),
    )
    exact = fit_figures(p, silent)
    assert exact is not None
    assert figures is not None
    row = exact.unpack(add_noise(exact, "p0", 0, outcomes(20, 20), 2), 0)
    assert float(row.double().norm()) * exact.output_form().step <= exact.output_form().bound


def test_the_estimates_lie_within_their_ranges_and_err_as_they_say() -> None:
    """Of 400 parties, 100 of them without rows, 300 at 75%: nine of ten estimates lie within three of the
    standard errors that go with them. With errors as stated 0.3% would not, so a false alarm (more than 20 of
    200) has a probability below 1e-15.
    """
    p, guard = fitted([Clip(1.0), Noise(multiplier=1.5)], parties=400)
    figures = fit_figures(p, guard)
    assert figures is not None
    everyone = torch.stack([compute_figures(outcomes(15, 20), 2)] * 300 + [compute_figures({}, 2)] * 100)
    loss = float(outcomes(15, 20)["loss"]) / 20
    whole = torch.round(everyone / figures.output_form().step).to(torch.int64).sum(0)
    outside = 0
    for k in range(200):
        found = estimate(figures, figures.back(whole, 400.0, {"w": torch.zeros(1)}, k), 2, False)
        outside += (
            abs(found["accuracy"] - 0.75) > 3 * found["accuracy_error"]
            or abs(found["loss"] - loss) > 3 * found["loss_error"]
        )
    assert outside <= 20
    assert 0.002 < found["accuracy_error"] < 0.01
    for value in (-1e6, 1e6):
        wild = estimate(figures, {KEY: torch.full((3,), value)}, 2, True)
        assert 0 <= wild["accuracy"] <= 1
        assert 0 <= wild["loss"] <= largest_loss(2)
        assert wild["personal_accuracy"] == wild["accuracy"]
    assert standard_deviation(figures) == pytest.approx(1.5 * NORM, rel=1e-3)


# --- the accounts -------------------------------------------------------------------------------------------


def composed(p: Any, z: float) -> float:
    """ε of the run by dp_accounting alone, from the multiplier of the norm and the contract's numbers of
    rounds and evaluations.
    """
    rate, tests, delta = p.per_round / len(p.fed), 1 + p.rounds, 1e-5
    if p.sampling == "poisson":
        step = pld.privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=rate, value_discretization_interval=1e-4
        )
        whole = pld.privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=1e-4)
        return float(
            step.self_compose(p.rounds).compose(whole.self_compose(tests)).get_epsilon_for_delta(delta)
        )
    if rate < 1:  # one client exchanged for another lies up to two norms away
        accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(
                len(p.fed), p.per_round, dp_accounting.GaussianDpEvent(z / 2)
            ),
            p.rounds,
        )
        accountant.compose(dp_accounting.GaussianDpEvent(z / 2), tests)
        return float(accountant.get_epsilon(delta))
    local = p.guard[1].placement == "local"
    each = pld.privacy_loss_distribution.from_gaussian_mechanism(
        z / (2 if local else 1), value_discretization_interval=1e-4
    )
    return float(each.self_compose(p.rounds + tests).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(
    ("noise", "more"),
    [
        (Noise(epsilon=3.0, placement="local"), {}),
        (Noise(epsilon=3.0), {}),
        (Noise(multiplier=2.0), {}),
        (Noise(epsilon=3.0), {"sampling": "poisson", "per_round": 4, "parties": 40}),
        (Noise(epsilon=8.0), {"per_round": 4, "parties": 40}),
    ],
    ids=["local", "central", "multiplier", "poisson", "fixed"],
)
def test_epsilon_covers_rounds_and_evaluations(noise: Noise, more: dict[str, Any]) -> None:
    p, guard = fitted([Clip(1.0), noise], **more)
    assert p.evaluations == 6
    outlook = plan(
        p.fed,
        model="logistic",
        rounds=5,
        guard=[Clip(1.0), noise],
        runtime=Deployed(None, {}),
        **{k: v for k, v in more.items() if k != "parties"},
    )
    z = guard.noise.multiplier
    independent = composed(p, z)
    assert outlook.spends is not None
    assert outlook.spends["epsilon"] == pytest.approx(independent, rel=5e-3)
    assert "5 rounds and 6 evaluations" in outlook.spends["mechanism"]
    assert "not covered" not in outlook.spends["note"]
    assert "with noise, 6 times; ε covers them" in str(outlook)
    if noise.epsilon is not None:
        assert 0.99 * noise.epsilon < outlook.spends["epsilon"] <= noise.epsilon * (1 + 1e-9)


def test_fewer_evaluations_need_less_noise() -> None:
    multipliers = [
        fitted([Clip(1.0), Noise(epsilon=3.0, placement="local")], evaluate_every=every)[1].noise.multiplier
        for every in (1, 5, 0)
    ]
    assert multipliers == sorted(multipliers, reverse=True)
    assert multipliers[0] / multipliers[2] == pytest.approx(math.sqrt(11 / 6), rel=1e-3)


def test_a_budget_that_ends_the_run_early_counts_its_evaluations() -> None:
    stages = [Clip(1.0), Noise(multiplier=4.0, epsilon=2.0)]
    p, guard = fitted(stages, rounds=50)
    account = guards.account(p, guard, None, p.rounds)
    assert account is not None
    last = guards.last_round(p, guard, account, 0)
    costs = [guards.plan_spend(p, guard, account, r).epsilon for r in (last, last + 1)]
    assert 0 < last < 50
    assert costs[0] <= 2.0 < costs[1]
    assert account.allowed > last  # what the rounds alone would have allowed


def run_job(folder: Path, job: str) -> Any:
    write_files(folder, SIZES)
    (folder / "job.toml").write_text(job)

    async def run() -> Any:
        async with Net.of("server", *CLIENTS) as net, asyncio.timeout(300):
            clients = [
                asyncio.create_task(
                    net.party(
                        n,
                        lambda me, n=n: members.member(
                            me,
                            {"table": str(folder / f"{n}.csv")},
                            str(folder / f"state-{n}"),
                            agreement=deployed.agreement(net.kits[n], folder / "job.toml"),
                        ),
                    )
                )
                for n in CLIENTS
            ]
            server = asyncio.to_thread(
                deployed.coordinate, net.kits["server"], folder / "job.toml", out=folder / "run"
            )
            return (await asyncio.gather(server, *clients))[0]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "guard",
    [LOCAL_NOISE + "epsilon = 3.0", CENTRAL_NOISE + "epsilon = 3.0", HIDDEN_NOISE],
    ids=["local", "central", "distributed"],
)
def test_a_run_between_organizations_has_noisy_figures_and_one_epsilon_for_all(
    guard: str, tmp_path: Path
) -> None:
    result = run_job(tmp_path, JOB + guard)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    tested = [event for event in events if event["kind"] == "round"]
    assert len(tested) == TESTS
    for event in tested:
        assert 0 <= event["accuracy"] <= 1
        assert event["accuracy_error"] > 0
        assert event["loss_error"] > 0
        assert not {"parties", "precision", "auc"} & set(event)
    assert any(
        event["kind"] == "note" and "noise hides the figures on held-out rows" in event["text"]
        for event in events
    )  # of four parties
    assert "best_accuracy" not in result.metrics  # the best of noisy figures is the luckiest
    page = result.report(tmp_path / "report.html").read_text()
    assert f"standard error of {100 * tested[-1]['accuracy_error']:.1f}%" in page
    assert " ± " in summary(tested[-1])
    (line,) = result.ledger.spent
    assert "3 rounds and 4 evaluations" in line.mechanism
    assert "not covered" not in line.note
    assert line.epsilon == tested[-1]["epsilon"]
    assert 2.9 < line.epsilon <= 3.0 * (1 + 1e-9)
    assert not any("confusion matrix" in s.reveals for s in result.ledger.seen)
    if "central" not in guard:
        for name in CLIENTS:
            assert len(spent(tmp_path, name)) == 3 + TESTS

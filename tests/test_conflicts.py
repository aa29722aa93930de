"""One table of conflicts: `plan` refuses exactly what `train` refuses, with the same words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tacit
from tacit import aggregate, algorithms, data, guard, pace, private, selection, speeds
from tacit.config import conflicts
from tacit.config.train import OPTIONS
from tacit.errors import TacitError

FED = data.gaussian_blobs(rows=80, seed=0).split(5, seed=0)
NORMED = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
GUARDS: list[Any] = [
    None,
    [guard.Clip(1.0)],
    [guard.Clip(1.0, quantile=0.5)],
    [guard.Clip(1.0), guard.Noise(multiplier=1.0)],
    [guard.Clip(1.0), guard.Noise(multiplier=1.0, sampling="poisson")],
    [guard.Clip(1.0), guard.Quantize(bits=16)],
    [guard.Sparsify(top_k=0.5)],
    [guard.Lazy(xi=1.0)],
    [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg()],
    [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(threshold=0.9, adversary="active")],
    [guard.Clip(1.0), guard.Noise(multiplier=1.0, placement="distributed"), guard.Quantize(), guard.SecAgg()],
]
# every option that is part of a conflict, with values that differ in what they allow
AXES: dict[str, list[Any]] = {
    "algorithm": ["FedAvg", "FedSGD", "Scaffold", "FedNova", "IFCA", "CFL", "FedPSO", "FedBN", "QFedAvg"],
    "guard": GUARDS,
    "aggregate": [
        None,
        aggregate.Median(),
        aggregate.Best(),
        aggregate.FoolsGold(),
        aggregate.Krum(),
        aggregate.MultiKrum(byzantine=0.4),
        aggregate.Bulyan(),
        aggregate.Matched(),
        aggregate.Momentum(),
        aggregate.Momentum(rule=aggregate.Krum(byzantine=0.45)),
    ],
    "adversaries": [None, {"sign_flip": 0.2}],
    "select": [None, selection.BySize(), selection.PowerOfChoice(candidates=3), selection.Fast()],
    "pace": [None, pace.FedBuff(2), pace.FedAsync(), pace.SAFA()],
    "speed": [None, speeds.Lognormal()],
    "topology": [None, *(tacit.Hierarchy(edges=n) for n in (1, 2, 3))],
    "fed": [
        FED,
        *(dataclasses.replace(FED, parties=(name, *FED.parties[1:])) for name in ("edge-0", "server")),
    ],
    "private": [None, private.DPSGD(epsilon=8.0, delta=1e-3)],
    "runtime": ["cohort", "inprocess"],
    "sampling": ["fixed", "poisson"],
    "per_round": [None, 2, 5],
    "landscape": [False, True],
    "engine": ["auto", "stack", "each"],
}


def outcome(verb: Any, fed: Any = FED, **options: Any) -> str:
    """Return the words with which a verb refuses, or ""."""
    try:
        verb(fed, **{"model": "logistic", "rounds": 1, "batch_size": 8, "insecure_seed": 1} | options)
    except TacitError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("examples", [30, pytest.param(400, marks=pytest.mark.slow)])
def test_plan_refuses_exactly_what_train_refuses_with_the_same_words(examples: int) -> None:
    """Random combinations of all axes. Most axes are left at their default, so that many are allowed."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in AXES.items()}), st.data())
    def agree(options: dict[str, Any], draw: st.DataObject) -> None:
        kept = draw.draw(st.sets(st.sampled_from(sorted(AXES)), max_size=4))
        chosen = {name: value for name, value in options.items() if name in kept}
        assume(chosen)
        assert outcome(tacit.plan, **chosen) == outcome(tacit.train, **chosen)

    agree()


def test_plan_refuses_what_it_once_promised_and_train_refused() -> None:
    """The case that was reported: an ε for a run that train refuses."""
    chosen = {"topology": tacit.Hierarchy(), "guard": [guard.Clip(1.0), guard.Noise(multiplier=1.0)]}
    words = outcome(tacit.plan, **chosen)
    assert "Noise is accounted for one server's sum, and with a Hierarchy there are several" in words
    assert words == outcome(tacit.train, **chosen)


@pytest.mark.parametrize(
    "chosen",
    [
        {"aggregate": "Bulyan"},
        {"aggregate": "Bulyan", "runtime": "inprocess"},
        {"aggregate": aggregate.Krum(byzantine=0.4), "per_round": 3},
        {"aggregate": aggregate.Krum(byzantine=0.4), "topology": tacit.Hierarchy(edges=2)},
        {"aggregate": aggregate.Krum(byzantine=0.4), "sampling": "poisson", "per_round": 4},
        {"aggregate": "Matched", "algorithm": "Scaffold"},
        {"aggregate": "Matched", "algorithm": "IFCA"},
        {"aggregate": "Momentum", "algorithm": "FedNova"},
        {"aggregate": "Matched", "model": NORMED},
    ],
)
def test_a_rule_that_cannot_work_is_refused_before_anything_is_written(
    chosen: dict[str, Any], tmp_path: Path
) -> None:
    words = outcome(tacit.plan, **chosen)
    assert "Krum" in words or "Bulyan" in words or "Matched" in words or "Momentum" in words
    assert words == outcome(tacit.train, **chosen, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_party_with_the_name_of_an_edge_is_refused(tmp_path: Path) -> None:
    fed = dataclasses.replace(FED, parties=("edge-0", *FED.parties[1:]))
    words = outcome(tacit.plan, fed, topology=tacit.Hierarchy())
    assert "has a party called 'edge-0', which is an edge's name" in words
    assert words == outcome(tacit.train, fed, topology=tacit.Hierarchy(), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


UNWEIGHTED = algorithms.FedAvg(weighted=False)  # which a hidden sum inside an edge needs


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
@pytest.mark.parametrize("edges", [1, 2, 3])
@pytest.mark.parametrize("stages", [g for g in GUARDS if g and g[-1].hides])
def test_a_hidden_sum_inside_edges_is_refused_alike_and_leaves_nothing(
    runtime: str, edges: int, stages: Any, tmp_path: Path
) -> None:
    """With three edges and five parties, one edge has one party, whose update no sum hides."""
    topology = tacit.Hierarchy(edges=edges)
    chosen = {"topology": topology, "guard": stages, "algorithm": UNWEIGHTED, "runtime": runtime}
    words = outcome(tacit.plan, **chosen)
    assert words == outcome(tacit.train, **chosen, out=tmp_path / "run")
    assert bool(words) == (edges == 3 or len(stages) == 4)  # four stages: with Noise
    assert bool(words) == (not list(tmp_path.iterdir()))


def test_edges_hide_updates_from_an_active_server_in_one_process() -> None:
    """Clients sign with keys of this process, as without edges; the model is that of the simulation."""
    chosen: dict[str, Any] = {"topology": tacit.Hierarchy(edges=2), "algorithm": UNWEIGHTED, "rounds": 2}
    stages = [guard.Clip(1.0), guard.Quantize(bits=16), guard.SecAgg(threshold=0.9, adversary="active")]
    runs = [
        tacit.train(FED, model="logistic", guard=stages, runtime=runtime, insecure_seed=1, **chosen)
        for runtime in ("cohort", "inprocess")
    ]
    first, second = (run.model.state_dict() for run in runs)
    assert all(torch.allclose(first[k], second[k], atol=1e-4) for k in first)


def test_an_edge_without_participants_keeps_its_model_and_its_clipping_norm() -> None:
    """Two of five parties a round, behind three edges: some edge has none. Both runtimes agree."""
    chosen: dict[str, Any] = {"topology": tacit.Hierarchy(edges=3), "per_round": 2, "rounds": 4}
    stages = [guard.Clip(1.0, quantile=0.5)]
    runs = [
        tacit.train(FED, model="logistic", guard=stages, runtime=runtime, insecure_seed=1, **chosen)
        for runtime in ("cohort", "inprocess")
    ]
    first, second = (run.model.state_dict() for run in runs)
    assert all(torch.allclose(first[k], second[k], atol=1e-5) for k in first)
    assert all(torch.isfinite(v).all() for v in first.values())


def test_plan_states_the_epsilon_of_rows_that_the_ledger_states() -> None:
    settings = {"model": "logistic", "rounds": 2, "batch_size": 8, "insecure_seed": 1}
    dpsgd = private.DPSGD(epsilon=8.0, delta=1e-3)
    outlook = tacit.plan(FED, private=dpsgd, **settings)
    spent = tacit.train(FED, private=dpsgd, **settings).ledger.spent
    assert outlook.spends is not None
    assert outlook.spends["epsilon"] == max(line.epsilon for line in spent)
    assert "no differential privacy" not in str(outlook)
    assert "for each row of any party, present or not" in str(outlook)


def test_every_pair_of_options_is_refused_or_runs() -> None:
    """All pairs of values that differ from the default: never an internal error."""
    singles = [(name, value) for name, values in AXES.items() for value in values[1:]]
    for i, (name, value) in enumerate(singles):
        for other, its in singles[i + 1 :]:
            if other != name:
                outcome(tacit.plan, **{name: value, other: its})


def test_a_conflict_says_what_why_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TacitError) as refused:
        tacit.train(FED, pace=pace.FedBuff(2), algorithm="Scaffold", out=tmp_path / "run")
    option, _, rest = str(refused.value).partition(": ")
    assert option in OPTIONS
    assert rest.count(". ") >= 1
    assert not list(tmp_path.iterdir())


def test_entries_name_options_of_train() -> None:
    """An entry names the option to change: one of train's, or gossip."""
    source = "".join(file.read_text() for file in sorted(Path(conflicts.__file__).parent.glob("*.py")))
    names = {
        part.split('"')[1] for part in source.split("Conflict(\n            ")[1:] if part.startswith('"')
    }
    assert len(names) > 20
    assert names <= {*OPTIONS, "gossip", "resume"}

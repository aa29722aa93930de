"""Simulations over ranks: real processes, the same bits, and what happens when one dies."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit import algorithms, data
from tacit.errors import BadFrame, BadParameter
from tacit.jobs.train.plan import make_plan, prepare_stack
from tacit.runtimes import shared_rounds
from tacit.runtimes.cohort import Cohort
from tacit.runtimes.ranks import (
    Heartbeats,
    RankGroup,
    decode_frame,
    encode_frame,
    find_launch,
    first_host,
    tasks_per_node,
)
from tacit.runtimes.shared_rounds import (
    FULL_GPU,
    IDLE_RATE,
    NOBODY,
    STAY,
    RoundWork,
    choose_ranks,
    deal,
)

from . import rank_job
from .launching import environment, run_ranks

JOB = str(Path(rank_job.__file__))


# same bits --------------------------------------------------------------------------------------------------


def test_three_ranks_give_the_bits_of_one_process_for_every_kind_of_round(tmp_path: Path) -> None:
    """Sums, gathered updates, kept state, guards, clocks, edges; and every rank returns the same result."""
    names = list(rank_job.CASES)
    ranks = run_ranks([JOB, *names], 3, tmp_path)
    assert [code for code, _, _ in ranks] == [0, 0, 0], ranks
    found = [json.loads(out) for _, out, _ in ranks]
    assert found[0] == found[1] == found[2]
    for name in names:
        alone = rank_job.train(name)
        assert found[0][name] == rank_job.digest(alone.model), name
        assert found[0][f"{name}: metrics"] == {
            k: v for k, v in alone.metrics.items() if isinstance(v, float)
        }


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="rows are shared where there is /dev/shm")
def test_ranks_of_a_machine_map_the_same_rows(tmp_path: Path) -> None:
    ranks = run_ranks([JOB], 2, tmp_path, {0: {"RANK_SHARES": "1"}, 1: {"RANK_SHARES": "1"}})
    for code, out, err in ranks:
        assert code == 0, err
        assert json.loads(out) == {"is mapped": True, "is equal": True}
    assert not list(Path("/dev/shm").glob("tacit-rows-*")), "the file is deleted when all have mapped it"


# failures ---------------------------------------------------------------------------------------------------


def test_a_killed_rank_is_named_by_the_others_and_the_run_resumes_alone(tmp_path: Path) -> None:
    """Rank 1 of 3 is killed in the fourth round of SCAFFOLD, whose state lives with the ranks."""
    run = tmp_path / "run"
    ranks = run_ranks([JOB, f"kept state={run}"], 3, tmp_path, {1: {"RANK_DIES": "3"}})
    codes = [code for code, _, _ in ranks]
    assert codes == [2, -signal.SIGKILL, 2], ranks
    for q in (0, 2):
        assert "RankLost: rank 1 of 3 (process " in ranks[q][2]
        assert "stopped" in ranks[q][2]
        assert f"tacit run --resume {run}" in ranks[q][2]
    resumed = rank_job.train("kept state", out=run, resume=True, rounds=5)
    assert rank_job.digest(resumed.model) == rank_job.digest(rank_job.train("kept state", rounds=5).model)


def test_a_killed_rank_zero_ends_the_others_and_two_ranks_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = run_ranks([JOB, f"kept state={run}"], 3, tmp_path, {0: {"RANK_DIES": "3"}})
    assert [code for code, _, _ in first] == [-signal.SIGKILL, 2, 2], first
    for q in (1, 2):
        assert "RankLost: rank 0 of 3 (process " in first[q][2]
    again = run_ranks([JOB, f"kept state={run}"], 2, tmp_path)
    assert [code for code, _, _ in again] == [0, 0], again
    whole = rank_job.train("kept state", rounds=5)
    assert json.loads(again[0][1])["kept state"] == rank_job.digest(whole.model)


def test_a_rank_with_other_rows_is_refused_by_name(tmp_path: Path) -> None:
    ranks = run_ranks([JOB, "a stack"], 2, tmp_path, {1: {"RANK_DATA": "7"}})
    assert [code for code, _, _ in ranks] == [2, 2]
    assert "BadRun: rank 1 of 2 (process " in ranks[0][2]
    assert "differs from rank 0 in the job, the rows, or who holds them" in ranks[0][2]
    assert "RankLost: rank 0 of 2" in ranks[1][2]


# the command ------------------------------------------------------------------------------------------------

TOML = """
[data]
name = "digits"
parties = 6

[model]
name = "logistic"

[train]
rounds = 2
"""


def test_only_rank_zero_of_tacit_run_writes_and_prints(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(TOML)
    ranks = run_ranks(["-m", "tacit", "run", "job.toml", "--json"], 2, tmp_path)
    assert [code for code, _, _ in ranks] == [0, 0], ranks
    answer = json.loads(ranks[0][1])
    assert ranks[1][1:] == ("", "")
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["job"]
    assert any(note.startswith("2 ranks share the clients of every round") for note in answer["notes"])
    assert "ranks" not in answer["job"]["train"], "the number of processes is not a part of the job"
    alone = tacit.train(data.digits().split(6), model="logistic", rounds=2)
    assert answer["metrics"]["accuracy"] == alone.metrics["accuracy"]


# refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"runtime": "inprocess"}, "runtime='inprocess' starts processes of its own"),
        ({"algorithm": algorithms.CFL()}, "CFL forms clusters"),
    ],
)
def test_what_ranks_cannot_share_is_refused_before_they_connect(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], why: str
) -> None:
    for name, value in environment(1, 2, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadParameter, match=f"2 ranks were started, and {why}"):
        tacit.train(data.digits().split(4), model="logistic", rounds=1, **options)  # type: ignore[arg-type]


def test_ranks_off_trains_alone_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = data.digits().split(4)
    alone = tacit.train(fed, model="logistic", rounds=1)
    for name, value in environment(1, 2, 1).items():
        monkeypatch.setenv(name, value)
    off = tacit.train(fed, model="logistic", rounds=1, ranks="off")
    assert rank_job.digest(off.model) == rank_job.digest(alone.model)
    assert off.config["train"]["ranks"] == "off"


# the environment --------------------------------------------------------------------------------------------


def test_torchrun_and_srun_are_found_and_anything_else_is_one_process() -> None:
    e = environment(2, 4, 1234)
    launch = find_launch(e)
    assert launch is not None
    assert (launch.rank, launch.size, launch.port, launch.hosts_store) == (2, 4, 1234, False)
    assert find_launch({**e, "WORLD_SIZE": "1"}) is None
    assert find_launch({}) is None
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "2",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        "SLURM_STEP_NODELIST": "gpu[003-005]",
    }
    launch = find_launch(slurm)
    assert launch is not None
    assert (launch.rank, launch.size, launch.local_rank, launch.local_size) == (5, 6, 1, 2)
    assert (launch.address, launch.hosts_store) == ("gpu003", True)
    assert 61440 <= launch.port < 65536
    batch = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "6", "SLURM_PROCID": "0"}  # not started by srun
    assert find_launch(batch) is None


def test_an_incomplete_environment_is_one_sentence() -> None:
    with pytest.raises(BadParameter, match="WORLD_SIZE is 2 and LOCAL_RANK is not set"):
        find_launch({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(BadParameter, match="RANK is 'one', which must be a whole number"):
        find_launch({**environment(0, 2, 1), "RANK": "one"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-007,9]", "gpu003"),
        ("gpu[12,14]", "gpu12"),
        ("rack[1-2]n4,x", "rack1n4"),
        ("a,b[1-2]", "a"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_tasks_per_node() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]


# dealing ----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_dealing_ends_no_later_than_grahams_bound(costs: list[float], size: int) -> None:
    """Of m equal ranks, the last ends at most at Σ/m + (1 − 1/m)·max (Graham 1969)."""
    owner = deal(costs, [1.0] * size)
    loads = [sum(c for c, q in zip(costs, owner) if q == k) for k in range(size)]
    assert max(loads) <= sum(costs) / size + (1 - 1 / size) * max(costs) + 1e-9


def test_a_rank_that_is_twice_as_fast_gets_two_thirds_of_equal_chunks() -> None:
    owner = deal([1.0] * 30, [2.0, 1.0])
    assert np.bincount(owner).tolist() == [20, 10]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 2)), min_size=1, max_size=30))
def test_chunks_stay_with_their_state_unless_that_delays_the_round(items: list[tuple[float, int]]) -> None:
    costs, homes = [c for c, _ in items], [h for _, h in items]
    owner = deal(costs, [1.0] * 3, homes)
    fair = sum(costs) / 3
    for k in range(3):
        stayed = sum(c for c, q, h in zip(costs, owner, homes) if q == k == h)
        assert stayed <= max(STAY * fair, sum(costs) / 3 + max(costs))
    if all(sum(c for c, h in items if h == k) <= STAY * fair for k in range(3)):
        assert owner.tolist() == homes
    assert deal(costs, [1.0] * 3, [NOBODY] * len(costs)).tolist() == deal(costs, [1.0] * 3).tolist()


# frames and heartbeats --------------------------------------------------------------------------------------


def test_a_frame_returns_its_tensors_bit_for_bit() -> None:
    tensors = {
        "a": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        "": torch.tensor([1, -2, 2**40]),
        "none": torch.zeros(0, 7),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "bits": torch.tensor([True, False, True]),
        "cut": torch.arange(10.0).view(2, 5).T,
    }
    frame = decode_frame(encode_frame("part", {"n": [1, 2], "x": 0.1}, tensors))
    assert (frame.kind, frame.values) == ("part", {"n": [1, 2], "x": 0.1})
    assert list(frame.tensors) == list(tensors)
    for name, t in tensors.items():
        assert frame.tensors[name].dtype == t.dtype
        assert torch.equal(frame.tensors[name], t)


@settings(max_examples=60)
@given(st.binary(max_size=80), st.integers(0, 400))
def test_a_malformed_frame_is_refused_and_nothing_of_it_is_executed(noise: bytes, at: int) -> None:
    """Whoever reaches the port of a rank may send anything: it is a named error, or a frame of tensors."""
    good = encode_frame("part", {"seconds": 1.0}, {"x": torch.ones(4), "y": torch.zeros(2, 3)})
    bad = good.clone()
    part = torch.tensor(list(noise), dtype=torch.uint8)[: max(0, len(bad) - at)]
    bad[at : at + len(part)] = part
    for data_ in (bad, good[:at], torch.tensor(list(noise), dtype=torch.uint8)):
        try:
            frame = decode_frame(data_)
        except BadFrame:
            continue
        assert all(isinstance(t, torch.Tensor) for t in frame.tensors.values())


def test_tensors_outside_a_frame_are_refused() -> None:
    for entry in (["x", "float32", [1 << 40], 0], ["x", "float32", [1], 1 << 20], ["x", "float32", [-1], 0]):
        head = json.dumps({"kind": "part", "values": {}, "tensors": [entry]}).encode()
        data_ = torch.zeros(512, dtype=torch.uint8)
        data_[:8] = torch.tensor([len(head)]).view(torch.uint8)
        data_[8 : 8 + len(head)] = torch.tensor(list(head), dtype=torch.uint8)
        with pytest.raises(BadFrame, match="malformed"):
            decode_frame(data_)


def test_a_rank_without_heartbeats_is_lost_after_a_minute_of_this_clock() -> None:
    now, counts = [0.0], {0: 5, 1: 5}
    beats = Heartbeats(2, counts.__getitem__, lambda: now[0])
    assert beats.find_lost([0, 1]) is None
    for t in (30.0, 60.0):
        now[0], counts[0] = t, counts[0] + 1
        assert beats.find_lost([0, 1]) is None
    now[0], counts[0] = 61.0, counts[0] + 1
    assert beats.find_lost([0, 1]) == 1
    counts[1] += 1
    assert beats.find_lost([0, 1]) is None


# GPUs that ranks share --------------------------------------------------------------------------------------


class OnGpus:
    """A group of ranks as `choose_ranks` sees it: `machines` with `local` ranks and `gpus` GPUs each."""

    def __init__(self, machines: int, local: int, gpus: int, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        self.group = object.__new__(RankGroup)
        self.group.rank, self.group.size = 0, machines * local
        self.group.local_rank, self.group.local_size = 0, local


@pytest.mark.parametrize(
    ("machines", "local", "gpus", "first"),
    [(1, 4, 1, [0]), (1, 4, 2, [0, 1]), (2, 4, 1, [0, 4]), (2, 4, 2, [0, 1, 4, 5]), (1, 4, 4, [0, 1, 2, 3])],
)
def test_a_round_that_fills_a_gpu_is_computed_by_one_rank_of_each(
    machines: int, local: int, gpus: int, first: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, everyone = OnGpus(machines, local, gpus, monkeypatch).group, list(range(machines * local))
    assert choose_ranks(group, "cuda", FULL_GPU) == first
    assert choose_ranks(group, "cuda", FULL_GPU / 2) == everyone  # small clients: the CPUs are the limit
    assert choose_ranks(group, "cpu", FULL_GPU) == everyone


def test_a_resumed_run_shares_its_rounds_as_the_first_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a batch size, a round of large clients fills a GPU and one of small ones does not, whichever round
    a process computes first.
    """
    cohort: Any = object.__new__(Cohort)
    cohort.task, cohort.engine, cohort.device = object(), "each", torch.device("cuda")
    cohort.ranks = OnGpus(1, 4, 1, monkeypatch).group
    cohort.runs = [SimpleNamespace(batch_size=None)]
    monkeypatch.setattr("tacit.runtimes.cohort.multiplications", lambda task, batch: batch * FULL_GPU / 1000)
    cohort.lengths = lambda work: (np.array(work.sizes), None, None)
    rounds = [SimpleNamespace(who=[0], sizes=[1000]), SimpleNamespace(who=[0], sizes=[10])]
    for order in (rounds, rounds[::-1]):
        cohort.row_work = None
        assert {tuple(w.sizes): cohort.sharing(w) for w in order} == {(1000,): [0], (10,): [0, 1, 2, 3]}


def test_ranks_that_take_no_part_in_a_round_are_dealt_nothing() -> None:
    rates = np.full(6, IDLE_RATE)
    rates[[0, 3]] = 1.0
    owner = deal([1.0] * 8, rates, [NOBODY] * 8)
    assert sorted(owner.tolist()) == [0, 0, 0, 0, 3, 3, 3, 3]


def test_a_stack_is_cut_for_the_ranks_that_share_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cohort of digits on a GPU of four ranks; what fills the GPU is set below and above its step."""
    p = make_plan(rank_job.federation(), model="logistic", rounds=1, batch_size=8)
    task, starts = prepare_stack([p])
    cohort = Cohort(task, starts, [p.run()], "stack", memory=1e9)
    cohort.ranks, cohort.device = OnGpus(1, 4, 1, monkeypatch).group, torch.device("cuda")
    none = np.zeros(12, dtype=np.int64)
    work = RoundWork(0, none, np.arange(12), none, none, {})
    chunks = cohort.cut(work)
    assert [len(c) for c in chunks] == [3, 3, 3, 3]
    assert sorted(np.concatenate(chunks).tolist()) == list(range(12))
    monkeypatch.setattr(shared_rounds, "FULL_GPU", 12 * 8 * 640.0)  # 12 clients, 8 rows, 64 × 10 weights
    assert [len(c) for c in cohort.cut(work)] == [12]
    monkeypatch.setattr(shared_rounds, "FULL_GPU", 12 * 8 * 660.0)
    assert [len(c) for c in cohort.cut(work)] == [3, 3, 3, 3]

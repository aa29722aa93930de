"""Types of the options, for type checkers. Written by tacit.config.write_types: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from ..aggregate.rule import Rule
from ..algorithms.types import Algorithm, Solver
from ..audit.poisoning import Attack
from ..guard import Stage
from ..pace import SAFA, FedAsync, FedBuff
from ..private.dpsgd import DPSGD
from ..runtimes.processes import Processes
from ..script import Script
from ..selection.rule import SelectionRule as Selection
from ..speeds import Constant, Exponential, Given, Lognormal
from ..topologies import Gossip, Hierarchy

Model = str | nn.Module | Callable[[], nn.Module] | Any  # Any: a dataclass with `build`, as tacit.models has
Pace = FedBuff | FedAsync | SAFA
Speed = Constant | Lognormal | Exponential | Given
Topology = Hierarchy | Gossip | Mapping[str, Any]
Runtime = Processes | Any  # Any: real parties, which `tacit party` sets


class TrainOptions(TypedDict, total=False):
    model: Model | None
    algorithm: str | Algorithm | None
    optimizer: str | Mapping[str, Any] | Solver | Callable[..., Any] | None
    rounds: int
    per_round: int | None
    local_epochs: int | Sequence[int]
    local_steps: int | None
    batch_size: int | None
    seed: int
    device: str
    precision: str
    engine: str
    ranks: str
    runtime: str | Runtime
    evaluate_every: int
    min_rows: int
    landscape: bool
    guard: Stage | Sequence[Stage] | None
    sampling: str
    insecure_seed: int | None
    pace: str | Pace | None
    speed: Speed | None
    aggregate: str | Rule | None
    adversaries: Mapping[str, float] | Sequence[Attack] | None
    topology: Topology | None
    private: DPSGD | None
    select: str | Selection | None
    threshold: float | None
    subgroups: Sequence[str] | Mapping[str, Sequence[float]] | None
    metric: str | None
    stop_by: str | None
    loss: str | Callable[[Any, Any], Any] | None
    class_weight: str | Mapping[str, float] | Sequence[float] | None
    l2: float | None
    metrics: Mapping[str, Any] | None
    callbacks: Sequence[Any] | None
    client: str | Path | Script | Mapping[str, Any] | None
    patience: int | None
    intended_use: str


class CompareOptions(TypedDict, total=False):
    algorithms: Sequence[str | Algorithm]
    seeds: int | Sequence[int]
    match: str | None
    baseline: str | Algorithm | None
    aggregates: Sequence[str | Rule] | None
    guards: Sequence[Any] | Mapping[str, Any] | None
    variants: Mapping[str, Mapping[str, Any]] | None
    model: Model | None
    rounds: int
    per_round: int | None
    local_epochs: int | Sequence[int]
    local_steps: int | None
    batch_size: int | None
    device: str
    precision: str
    engine: str
    ranks: str
    evaluate_every: int
    min_rows: int
    landscape: bool
    sampling: str
    adversaries: Mapping[str, float] | Sequence[Attack] | None
    threshold: float | None
    subgroups: Sequence[str] | Mapping[str, Sequence[float]] | None
    metric: str | None
    stop_by: str | None
    loss: str | Callable[[Any, Any], Any] | None
    class_weight: str | Mapping[str, float] | Sequence[float] | None
    l2: float | None
    patience: int | None
    intended_use: str


class GossipOptions(TypedDict, total=False):
    mode: str
    period: int
    wait: float
    churn: float
    secure: bool
    model: Model | None
    algorithm: str | Algorithm | None
    optimizer: str | Mapping[str, Any] | Solver | Callable[..., Any] | None
    rounds: int
    local_epochs: int | Sequence[int]
    local_steps: int | None
    batch_size: int | None
    seed: int
    device: str
    precision: str
    engine: str
    ranks: str
    runtime: str | Runtime
    evaluate_every: int
    min_rows: int
    threshold: float | None
    subgroups: Sequence[str] | Mapping[str, Sequence[float]] | None
    metric: str | None
    loss: str | Callable[[Any, Any], Any] | None
    class_weight: str | Mapping[str, float] | Sequence[float] | None
    l2: float | None
    metrics: Mapping[str, Any] | None
    callbacks: Sequence[Any] | None
    client: str | Path | Script | Mapping[str, Any] | None
    intended_use: str


class PrivateOptions(TypedDict, total=False):
    epsilon: float | None
    delta: float
    epochs: int
    clip: float | None
    batch_size: int | None
    lr: float | None
    momentum: float
    optimizer: str
    clipping: str
    sampling: str
    noise_multiplier: float | None
    accountant: str
    micro_batch: int | None
    public_size: int | None
    method: str
    seed: int
    device: str
    precision: str
    evaluate_every: int
    insecure_seed: int | None

"""Every stage passes `testing.check_stage`; and the suite can fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from tacit import testing
from tacit.guard import ALL, Clip, Encrypt, Lazy, LightSecAgg, Noise, Quantize, SecAgg, Sparsify
from tacit.guard.stage import Clients, Form, Stage, State
from tacit.parameters import real

RING = (Clip(1.0), Quantize(bits=26))
STAGES: list[tuple[Stage, tuple[Stage, ...]]] = [
    (Clip(1.0), ()),
    (Clip(1.0, per="layer"), ()),
    (Clip(1.0, quantile=0.5), (Noise(multiplier=0.5),)),
    (Sparsify(top_k=0.2), ()),
    (Sparsify(random_k=0.2), (Clip(1.0),)),
    (Sparsify(random_k=0.2, feedback=False), ()),
    (Lazy(xi=2.0), ()),
    (Quantize(bits=8), ()),
    (Quantize(bits=12, stochastic=False), (Clip(1.0),)),
    (Noise(multiplier=1.0), (Clip(1.0),)),
    (Noise(multiplier=1.0, placement="local"), RING),
    (Noise(multiplier=1.0, placement="distributed"), (*RING, SecAgg())),
    (Noise(multiplier=1.0, placement="distributed", distribution="skellam"), (*RING, LightSecAgg())),
    (SecAgg(), RING),
    (SecAgg(neighbors=2), RING),
    (SecAgg(threshold=0.7, adversary="active"), RING),
    (LightSecAgg(), RING),
    (Encrypt(), RING),
]


@pytest.mark.parametrize(("stage", "others"), STAGES, ids=[f"{s!r} with {len(b)}" for s, b in STAGES])
def test_every_stage_conforms(stage: Stage, others: tuple[Stage, ...]) -> None:
    testing.check_stage(stage, others)


def test_no_stage_is_left_out() -> None:
    assert {type(s).__name__ for s, _ in STAGES} == set(ALL)


@dataclass(frozen=True)
class Halve(Stage):
    """A good stage, from which the bad ones differ in one thing."""

    share: float = real(0.5, above=0, most=1, doc="what is left of an update")
    place: ClassVar[int] = 25

    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector * self.share

    def back(self, total: torch.Tensor, n: float, form: Form, state: State) -> tuple[torch.Tensor, State]:
        return total / self.share, state


class InPlace(Halve):
    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector.mul_(self.share)


class TooLong(Halve):
    place: ClassVar[int] = 35  # behind Clip, whose bound it breaks

    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector * 2


class Short(Halve):
    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector[:, 1:]


class Crowded(Halve):
    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector - vector.mean(0)


class FromTorch(Halve):
    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        return vector + torch.randn(vector.shape, dtype=vector.dtype)


class Forgets(Halve):
    def client_state(self, form: Form) -> State:
        return {"kept": torch.zeros(3)}

    def out(self, vector: torch.Tensor, me: Clients, form: Form) -> torch.Tensor:
        me.memory.clear()
        return vector


class Lonely(SecAgg):
    def survivors(self, clients: int) -> int:
        return 1


@dataclass
class Thawed(Stage):
    place: ClassVar[int] = 25


def test_a_stage_of_ones_own_conforms() -> None:
    testing.check_stage(Halve())
    testing.check_stage(Halve(), [Clip(1.0), Quantize(bits=16)])


@pytest.mark.parametrize(
    ("stage", "others", "words"),
    [
        (InPlace(), (), "InPlace.out changes its rows in place"),
        (TooLong(), (Clip(1.0),), r"TooLong.out returns a row of norm 2; the bound of its form is 1"),
        (Short(), (), r"Short.out returns rows of shape \(29,\); its form has dimension 30"),
        (Crowded(), (), "Crowded: the uploads of 'a' alone and in a stack differ by"),
        (FromTorch(), (), "FromTorch.out uses torch's random generator"),
        (Forgets(), (), r"Forgets.out leaves the client state \[\]; client_state has \['kept'\]"),
        (Lonely(), RING, r"Lonely: survivors\(2\) is 1; it must be between 2 and 2"),
        (Thawed(), (), "Thawed is not a frozen dataclass"),
    ],
)
def test_errors_of_a_stage_are_reported(stage: Any, others: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        testing.check_stage(stage, others)

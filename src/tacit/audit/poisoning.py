"""Parties that lie: what they do to their rows, or to the update they send.

An attack is a frozen dataclass with the `share` of parties that take part in it. Those that poison rows
answer in `rows`; those that poison updates in `updates`, which sees what the attackers would honestly have
sent, as ways from the server's model, and gives what they send instead. Attackers know each other and nobody
else, except where the docstring says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data.federation import Federation, Rows, check_one_label
from ..errors import BadParameter
from ..parameters import bad, check, nearest, real, whole

State = dict[str, Tensor]


class Attack:
    """What liars do. `share` of the parties lie; `needs_classes` where a label is part of it."""

    needs_classes: ClassVar[bool] = False
    sees_all: ClassVar[bool] = False  # whether the attackers are taken to know honest parties' updates too
    share: float

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        return fed

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        """`own` [A, …] of the attackers; `everyone` [S, …] of the round, for attacks that see all."""
        return own

    def test(self, test: Rows) -> Rows | None:
        """Rows on which the attack wants to succeed, with the labels it wants."""
        return None


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on labels turned round: class c is called C − 1 − c. B. Biggio, B. Nelson, P. Laskov: ACML 2011;
    V. Tolpegin et al.: ESORICS 2020.
    """

    needs_classes: ClassVar[bool] = True
    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        y, at = fed.rows.y.clone(), _rows_of(fed, who)
        y[at] = _classes(fed) - 1 - y[at]
        return replace(fed, rows=Rows(fed.rows.x, y))


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send the opposite of what was learned, a few times over."""

    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    factor: float = real(4.0, above=0, doc="how many times over")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: -self.factor * v for k, v in own.items()}


@dataclass(frozen=True)
class Scale(Attack):
    """Send what was learned many times over, which replaces the mean by one's own. E. Bagdasaryan et al.,
    AISTATS 2020.
    """

    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    factor: float = real(
        100.0,
        above=0,
        doc="how many times over; the number of parties in a round replaces the model outright",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.factor * v for k, v in own.items()}


@dataclass(frozen=True)
class Gaussian(Attack):
    """Send noise. P. Blanchard et al., NIPS 2017."""

    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    deviation: float = real(1.0, above=0, doc="σ of each coordinate")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.deviation * torch.randn(v.shape, generator=generator).to(v) for k, v in own.items()}


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Send the mean less z deviations, z as large as passes for one of the crowd. G. Baruch, M. Baruch, Y.
    Goldberg: NeurIPS 2019, Algorithm 3.

    Mean and deviation are those of the attackers' own honest updates.
    """

    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    z: float | None = real(
        None,
        above=0,
        none=True,
        doc="deviations from the mean; None: the paper's z_max for the round's numbers",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        n, m = len(next(iter(everyone.values()))), len(next(iter(own.values())))
        honest = max(1, n - m)
        supporters = (
            n // 2 + 1 - m
        )  # honest parties that must lie beyond the attackers, so that these are the majority
        z = (
            NormalDist().inv_cdf(min(0.999, max(0.501, (honest - supporters) / honest)))
            if self.z is None
            else self.z
        )
        return {k: (v.mean(0) - z * v.std(0, correction=0)).expand_as(v) for k, v in own.items()}


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Send the opposite of the mean, small enough to pass. C. Xie, O. Koyejo, I. Gupta: "Fall of Empires",
    UAI 2019. It sees all honest updates.
    """

    sees_all: ClassVar[bool] = True
    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    epsilon: float = real(0.5, above=0, doc="ε, how much of the mean's opposite")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: (-self.epsilon * everyone[k].mean(0)).expand_as(v) for k, v in own.items()}


@dataclass(frozen=True)
class Backdoor(Attack):
    """Teach the model to answer `target` wherever a trigger stands: a bright corner of a picture, or the last
    columns of a row at their maximum. T. Gu, B. Dolan-Gavitt, S. Garg: "BadNets", 2017; with `factor`, model
    replacement as in Bagdasaryan et al., AISTATS 2020.
    """

    needs_classes: ClassVar[bool] = True
    share: float = real(0.1, above=0, below=1, doc="the share of parties that lie")
    target: int = whole(0, least=0, doc="the class a trigger is to bring")
    poisoned: float = real(0.5, above=0, most=1, doc="the share of an attacker's rows that carry the trigger")
    size: int = whole(3, least=1, doc="pixels a side, or columns, of the trigger")
    factor: float = real(1.0, least=1, doc="how many times over the update is sent")

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        if self.target >= _classes(fed):
            raise bad("Backdoor", "target", self.target, f"one of the {fed.classes} classes, counted from 0")
        at = _rows_of(fed, who)
        at = at[torch.from_numpy(np.random.default_rng(fed.seed).random(len(at)) < self.poisoned)]
        x, y = fed.rows.x.clone(), fed.rows.y.clone()
        x[at], y[at] = self.stamp(x[at]), self.target
        return replace(fed, rows=Rows(x, y))

    def stamp(self, x: Tensor) -> Tensor:
        x = x.clone()
        if not len(x):
            return x
        if not x.is_floating_point():
            raise BadParameter(
                "Backdoor: the rows are tokens, and a trigger is made for pictures and numbers. Attack "
                "another way."
            )
        top = x.amax()
        x[
            (..., slice(-self.size, None), slice(-self.size, None))
            if x.dim() > 2
            else (..., slice(-self.size, None))
        ] = top
        return x

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.factor * v for k, v in own.items()}

    def test(self, test: Rows) -> Rows | None:
        others = test.y != self.target
        return (
            Rows(self.stamp(test.x[others]), torch.full_like(test.y[others], self.target))
            if others.any()
            else None
        )


@dataclass(frozen=True)
class FreeRide(Attack):
    """Send noise as small as an honest update, having learned nothing. Y. Fraboni, R. Vidal, M. Lorenzi:
    AISTATS 2021.
    """

    share: float = real(0.2, above=0, below=1, doc="the share of parties that lie")
    noise: float = real(
        0.0,
        least=0,
        doc="the noise that hides it, in lengths of an honest update; 0 sends the model back as it came",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        out = {}
        for k, v in own.items():
            flat = v.reshape(len(v), -1)
            drawn = torch.randn(flat.shape, generator=generator).to(v)
            out[k] = (
                self.noise * flat.norm(dim=1, keepdim=True) * drawn / max(1, flat.shape[1]) ** 0.5
            ).view(v.shape)
        return out


ALL = {
    "label_flip": LabelFlip,
    "sign_flip": SignFlip,
    "scale": Scale,
    "gaussian": Gaussian,
    "little_is_enough": LittleIsEnough,
    "inner_product": InnerProduct,
    "backdoor": Backdoor,
    "free_ride": FreeRide,
}


def attacks(given: Any) -> tuple[Attack, ...]:
    """{"sign_flip": 0.2}, or a list of attacks, every parameter checked."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        for name in given:
            if name not in ALL:
                raise bad(
                    "train", "adversaries", name, "one of " + ", ".join(ALL), nearest(str(name), list(ALL))
                )
        return tuple(check(ALL[name](share=share)) for name, share in given.items())
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for attack in listed:
        if not isinstance(attack, Attack):
            raise bad(
                "train",
                "adversaries",
                given,
                "a share of the parties by attack, such as {'sign_flip': 0.2}, or a list of attacks from "
                "tacit.audit",
            )
    return tuple(check(a) for a in listed)


def name_of(attack: Attack) -> str:
    return next((name for name, kind in ALL.items() if kind is type(attack)), type(attack).__name__)


@dataclass(frozen=True)
class Adversaries:
    """The attacks of one run, and which parties are in each. Nobody is in two."""

    attacks: tuple[Attack, ...]
    who: tuple[np.ndarray, ...]
    seed: int

    @classmethod
    def among(cls, fed: Federation, attacks: tuple[Attack, ...], seed: int) -> Adversaries:
        order, at, who = np.random.default_rng([seed, 0xADE]).permutation(len(fed)), 0, []
        for attack in attacks:
            if attack.needs_classes and fed.classes is None:
                raise BadParameter(
                    f"adversaries: {name_of(attack)} turns labels round, and {fed.name} has numbers to "
                    "predict. Attack another way."
                )
            if attack.needs_classes:
                check_one_label(f"adversaries: {name_of(attack)}", fed)
            n = max(1, round(attack.share * len(fed)))
            who.append(np.sort(order[at : at + n]))
            at += n
        if at >= len(fed):
            raise BadParameter(
                f"adversaries: {at} of {len(fed)} parties would lie, and nobody is left to learn from. Take "
                "smaller shares."
            )
        return cls(attacks, tuple(who), seed)

    def rows(self, fed: Federation) -> Federation:
        for attack, who in zip(self.attacks, self.who):
            fed = attack.rows(fed, who)
        return fed

    def updates(self, number: int, who: np.ndarray, vectors: State, down: State) -> State:
        """What reaches the server of the updates [S, …] of parties `who` in this round. Statistics of layers
        (buffers) are left alone.
        """
        out = dict(vectors)
        ways = {k: v - down[k] if k in down else v for k, v in vectors.items() if k != "buffers"}
        for i, (attack, liars) in enumerate(zip(self.attacks, self.who)):
            here = torch.from_numpy(np.flatnonzero(np.isin(who, liars)))
            if not len(here):
                continue
            generator = torch.Generator().manual_seed(
                int(np.random.SeedSequence([self.seed, number, i]).generate_state(1)[0])
            )
            sent = attack.updates({k: v[here] for k, v in ways.items()}, ways, generator)
            for k, v in sent.items():
                out[k] = out[k].clone()
                out[k][here] = v + down[k] if k in down else v
        return out

    def wanted(self, test: Rows) -> Rows | None:
        """Rows on which a backdoor wants to succeed."""
        return next((rows for attack in self.attacks if (rows := attack.test(test)) is not None), None)


def _rows_of(fed: Federation, who: np.ndarray) -> Tensor:
    return torch.cat([fed.train.of(int(k)) for k in who])


def _classes(fed: Federation) -> int:
    assert fed.classes is not None  # checked in `among`
    return fed.classes

"""Poisoning attacks: malicious clients that change their rows or their updates.

An attack is a frozen dataclass with the `share` of malicious parties. `rows` poisons the parties' data.
`updates` gets the honest updates of the malicious parties, relative to the server's model, and returns what
they send instead. Malicious parties know each other's updates and no others, unless the docstring says so.
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


@dataclass(frozen=True)
class Attack:
    """An attack by a share of the parties."""

    needs_classes: ClassVar[bool] = False  # whether it changes labels
    sees_all: ClassVar[bool] = False  # whether the attackers know the updates of honest parties too
    share: float = real(0.2, above=0, below=1, doc="the share of malicious parties")

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        """The federation with the poisoned rows of the parties `who`."""
        return fed

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        """What the attackers send, from their updates `own` [A, …] and those of the round [S, …]."""
        return own

    def test(self, test: Rows) -> Rows | None:
        """Test rows with the labels that the attack aims at, if it aims at any."""
        return None


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on flipped labels: class c becomes C − 1 − c.

    B. Biggio, B. Nelson, P. Laskov: ACML 2011; V. Tolpegin et al.: ESORICS 2020.
    """

    needs_classes: ClassVar[bool] = True

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        y, at = fed.rows.y.clone(), _rows_of(fed, who)
        y[at] = _classes(fed) - 1 - y[at]
        return replace(fed, rows=Rows(fed.rows.x, y))


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send the negative update, scaled up."""

    factor: float = real(4.0, above=0, doc="the factor on the update")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: -self.factor * v for k, v in own.items()}


@dataclass(frozen=True)
class Scale(Attack):
    """Send the update scaled up, which replaces the mean by the attacker's model.

    E. Bagdasaryan et al., AISTATS 2020.
    """

    factor: float = real(
        100.0,
        above=0,
        doc="the factor on the update; the number of parties in a round replaces the model completely",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.factor * v for k, v in own.items()}


@dataclass(frozen=True)
class Gaussian(Attack):
    """Send Gaussian noise. P. Blanchard et al., NIPS 2017."""

    deviation: float = real(1.0, above=0, doc="σ of each coordinate")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.deviation * torch.randn(v.shape, generator=generator).to(v) for k, v in own.items()}


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Send the mean minus z standard deviations, with the largest z that is not an outlier.

    G. Baruch, M. Baruch, Y. Goldberg: NeurIPS 2019, Algorithm 3. Mean and deviation are those of the
    attackers' honest updates.
    """

    z: float | None = real(
        None,
        above=0,
        none=True,
        doc="the number of deviations; None: the paper's z_max for the number of parties",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        n, m = len(next(iter(everyone.values()))), len(next(iter(own.values())))
        honest = max(1, n - m)
        supporters = n // 2 + 1 - m  # honest parties with which the attackers are a majority
        z = (
            NormalDist().inv_cdf(min(0.999, max(0.501, (honest - supporters) / honest)))
            if self.z is None
            else self.z
        )
        return {k: (v.mean(0) - z * v.std(0, correction=0)).expand_as(v) for k, v in own.items()}


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Send a small multiple of the negative mean of all updates, which it knows.

    C. Xie, O. Koyejo, I. Gupta: "Fall of Empires", UAI 2019.
    """

    sees_all: ClassVar[bool] = True
    epsilon: float = real(0.5, above=0, doc="ε, the factor on the negative mean")

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: (-self.epsilon * everyone[k].mean(0)).expand_as(v) for k, v in own.items()}


@dataclass(frozen=True)
class Backdoor(Attack):
    """Train the model to predict `target` for rows with a trigger.

    The trigger is a bright corner of an image, or the last columns of a row at their maximum. T. Gu, B.
    Dolan-Gavitt, S. Garg: "BadNets", 2017; with `factor`, model replacement as in Bagdasaryan et al.,
    AISTATS 2020.
    """

    needs_classes: ClassVar[bool] = True
    share: float = real(0.1, above=0, below=1, doc="the share of malicious parties")
    target: int = whole(0, least=0, doc="the class predicted for the trigger")
    poisoned: float = real(0.5, above=0, most=1, doc="the share of an attacker's rows with the trigger")
    size: int = whole(3, least=1, doc="the side of the trigger in pixels, or its columns")
    factor: float = real(1.0, least=1, doc="the factor on the update")

    def rows(self, fed: Federation, who: np.ndarray) -> Federation:
        if self.target >= _classes(fed):
            raise bad("Backdoor", "target", self.target, f"one of the {fed.classes} classes, counted from 0")
        at = _rows_of(fed, who)
        at = at[torch.from_numpy(np.random.default_rng(fed.seed).random(len(at)) < self.poisoned)]
        x, y = fed.rows.matrix("Backdoor").clone(), fed.rows.y.clone()
        x[at], y[at] = self.stamp(x[at]), self.target
        return replace(fed, rows=Rows(x, y))

    def stamp(self, x: Tensor) -> Tensor:
        x = x.clone()
        if not len(x):
            return x
        if not x.is_floating_point():
            raise BadParameter(
                "Backdoor: the rows are tokens, and the trigger is defined for images and numbers. Use "
                "another attack."
            )
        last = slice(-self.size, None)
        x[(..., last, last) if x.dim() > 2 else (..., last)] = x.amax()
        return x

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        return {k: self.factor * v for k, v in own.items()}

    def test(self, test: Rows) -> Rows | None:
        others = test.y != self.target
        return (
            Rows(self.stamp(test.matrix("Backdoor")[others]), torch.full_like(test.y[others], self.target))
            if others.any()
            else None
        )


@dataclass(frozen=True)
class FreeRide(Attack):
    """Send noise of the size of an honest update, without training.

    Y. Fraboni, R. Vidal, M. Lorenzi: AISTATS 2021.
    """

    noise: float = real(
        0.0,
        least=0,
        doc="the norm of the noise, relative to an honest update; 0 returns the model unchanged",
    )

    def updates(self, own: State, everyone: State, generator: torch.Generator) -> State:
        flat = {k: v.reshape(len(v), -1) for k, v in own.items()}
        noise = {k: torch.randn(v.shape, generator=generator).to(v) for k, v in flat.items()}
        return {
            k: (self.noise * v.norm(dim=1, keepdim=True) * noise[k] / max(1, v.shape[1]) ** 0.5).view_as(
                own[k]
            )
            for k, v in flat.items()
        }


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


def attacks(adversaries: Any) -> tuple[Attack, ...]:
    """The attacks of an `adversaries=` argument, {"sign_flip": 0.2} or a list, with checked parameters."""
    if adversaries is None:
        return ()
    if isinstance(adversaries, Mapping):
        for name in adversaries:
            if name not in ALL:
                raise bad(
                    "train", "adversaries", name, "one of " + ", ".join(ALL), nearest(str(name), list(ALL))
                )
        return tuple(check(ALL[name](share=share)) for name, share in adversaries.items())
    is_list = isinstance(adversaries, Sequence) and not isinstance(adversaries, str)
    listed = list(adversaries) if is_list else [adversaries]
    for attack in listed:
        if not isinstance(attack, Attack):
            raise bad(
                "train",
                "adversaries",
                adversaries,
                "a share of the parties by attack, such as {'sign_flip': 0.2}, or a list of attacks from "
                "tacit.audit",
            )
    return tuple(check(a) for a in listed)


def name_of(attack: Attack) -> str:
    return next((name for name, kind in ALL.items() if kind is type(attack)), type(attack).__name__)


@dataclass(frozen=True)
class Adversaries:
    """The attacks of one run and their parties; no party is in two attacks."""

    attacks: tuple[Attack, ...]
    who: tuple[np.ndarray, ...]
    seed: int

    @classmethod
    def assign(cls, fed: Federation, attacks: tuple[Attack, ...], seed: int) -> Adversaries:
        order, at, who = np.random.default_rng([seed, 0xADE]).permutation(len(fed)), 0, []
        for attack in attacks:
            if attack.needs_classes and fed.classes is None:
                raise BadParameter(
                    f"adversaries: {name_of(attack)} changes class labels, and {fed.name} is a regression. "
                    "Use another attack."
                )
            if attack.needs_classes:
                check_one_label(f"adversaries: {name_of(attack)}", fed)
            n = max(1, round(attack.share * len(fed)))
            who.append(np.sort(order[at : at + n]))
            at += n
        if at >= len(fed):
            raise BadParameter(
                f"adversaries: {at} of {len(fed)} parties would be malicious, and none is left to learn "
                "from. Use smaller shares."
            )
        return cls(attacks, tuple(who), seed)

    def rows(self, fed: Federation) -> Federation:
        for attack, who in zip(self.attacks, self.who):
            fed = attack.rows(fed, who)
        return fed

    def updates(self, number: int, who: np.ndarray, vectors: State, down: State) -> State:
        """What the server receives for the updates [S, …] of parties `who`; buffers are not changed."""
        out = dict(vectors)
        deltas = {k: v - down[k] if k in down else v for k, v in vectors.items() if k != "buffers"}
        for i, (attack, malicious) in enumerate(zip(self.attacks, self.who)):
            here = torch.from_numpy(np.flatnonzero(np.isin(who, malicious)))
            if not len(here):
                continue
            generator = torch.Generator().manual_seed(
                int(np.random.SeedSequence([self.seed, number, i]).generate_state(1)[0])
            )
            sent = attack.updates({k: v[here] for k, v in deltas.items()}, deltas, generator)
            for k, v in sent.items():
                out[k] = out[k].clone()
                out[k][here] = v + down[k] if k in down else v
        return out

    def target_rows(self, test: Rows) -> Rows | None:
        """Test rows with a backdoor's trigger and target, if there is a backdoor."""
        return next((rows for attack in self.attacks if (rows := attack.test(test)) is not None), None)


def _rows_of(fed: Federation, who: np.ndarray) -> Tensor:
    return torch.cat([fed.train.of(int(k)) for k in who])


def _classes(fed: Federation) -> int:
    assert fed.classes is not None  # checked in `assign`
    return fed.classes

"""`tacit.audit.memorization`: does a text model know secrets of its training text by heart?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...audit import chance, exposure
from ...data.federation import Federation, Rows
from ...engine.losses import classes_last
from ...errors import BadData, BadParameter
from ...guard import Noise
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.svg import Figure, Rule, bars
from ...results import JobResult, Result
from ..train.plan import Plan
from ..train.train import train_side_by_side
from .runs import claim_of, open_run, plan_of, rounds_of
from .shadows import outputs

NONE = -1  # the label of a token that is not predicted
ALPHABET = 10  # tokens that secrets are made of: 3.3 bits each
EXTRACTS = 50  # prefixes of the search


@dataclass(frozen=True)
class Canary:
    """A secret in the training text: how often, and how it stands out afterwards."""

    copies: int
    tokens: tuple[int, ...]
    place: int  # among the candidates and itself
    exposure: float  # bits
    extracted: bool  # the search over prefixes finds it

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass
class Memorization(JobResult):
    """Exposure of canaries by how often they were in the training text."""

    title: ClassVar[str] = "Memorization of text"
    facts: ClassVar[tuple[str, ...]] = (
        *(
            "exposure",
            "largest",
            "extracted",
            "p_value",
            "secret_bits",
            "candidates",
            "party",
            "claim",
            "notes",
        ),
    )

    model: nn.Module = field(repr=False)  # of the run with canaries
    canaries: tuple[Canary, ...]
    candidates: int
    secret_bits: float  # log2 of the number of possible secrets
    party: str  # in whose rows the canaries were
    claim: tuple[float, float] | None
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.exposure

    @property
    def exposure(self) -> float:
        """The mean exposure of the canaries with the most copies, in bits; about 1.4 without memorization."""
        return float(np.mean([c.exposure for c in self._most]))

    @property
    def largest(self) -> float:
        """The exposure of a canary that is more likely than all candidates: the most this audit can show."""
        return exposure.exposure(1, self.candidates)

    @property
    def extracted(self) -> int:
        """How many canaries a search over prefixes finds, without candidates."""
        return sum(c.extracted for c in self.canaries)

    @property
    def p_value(self) -> float:
        """P(such places of the canaries with the most copies | the model was trained without them).

        A secret is drawn as the candidates are, so that its place is uniform.
        """
        return chance.fisher([c.place / (self.candidates + 1) for c in self._most])

    @property
    def by_copies(self) -> dict[int, float]:
        """The mean exposure of the canaries with each number of copies."""
        numbers = sorted({c.copies for c in self.canaries})
        return {n: float(np.mean([c.exposure for c in self.canaries if c.copies == n])) for n in numbers}

    @property
    def _most(self) -> list[Canary]:
        top = max(c.copies for c in self.canaries)
        return [c for c in self.canaries if c.copies == top]

    def plot(self) -> Figure:
        """Mean exposure by number of copies."""
        names = [f"{n} copies" if n > 1 else "1 copy" for n in self.by_copies]
        rules = [Rule("largest that is measured", self.largest)]
        return bars(
            "Exposure of canaries",
            names,
            list(self.by_copies.values()),
            lambda v: f"{v:.1f} bits",
            rules=rules,
            columns=("copies in the text", "exposure"),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "canaries": [c.to_dict() for c in self.canaries]}

    def _page(self) -> str:
        from ...report.layout import Section, figure
        from ...report.result import render

        return render(self.title, self.to_dict(), [Section("exposure", "Exposure", figure(self.plot()))])


def memorization(
    run: Result | str | Path,
    *,
    copies: Sequence[int] = (1, 4, 16),
    canaries: int = 2,
    length: int = 6,
    party: str | int | None = None,
    candidates: int = 1000,
    rounds: int | None = None,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> Memorization:
    """Train a text model's run again with secrets in a party's text; measure how exposed they are after it.

    A canary is a random beginning, and a secret of `length` random tokens out of ten. `canaries` of them are
    in the text for each number of `copies`, instead of as many of the rows of `party` (default: the one with
    the most rows). After training, the secret's place among `candidates` other secrets gives its exposure in
    bits, and a search over prefixes tries to extract it. `rounds` (default: the run's) makes the audit
    cheaper. `watch(done, all)` follows the canaries that were measured.

    The result has `.exposure`, `.by_copies`, `.extracted` and `.p_value`. Rows are tokens [N, T], with a
    label for each token or for the last one only.
    """
    _check(copies, canaries, length, candidates, rounds)
    opened = open_run(run, "memorization")
    p = plan_of(opened)
    _check_plan(p)
    rng = np.random.default_rng(seed)
    who = _party(p, party)
    texts = _Texts.of(p, length, rng)
    numbers = [n for n in sorted(copies) for _ in range(canaries)]
    drawn = [texts.draw(rng) for _ in numbers]
    fed = _insert(
        p.fed, who, [row for n, canary in zip(numbers, drawn) for row in texts.rows(*canary) * n], rng
    )
    planned = dataclasses.replace(
        p,
        fed=fed,
        rounds=rounds or rounds_of(opened),
        # noise is divided between rounds and evaluations
        evaluate_every=p.evaluate_every if any(isinstance(s, Noise) for s in p.guard) else 0,
        patience=None,
        callbacks=(),
        landscape=False,
        adversaries=None,
        runtime="cohort",
        through=None,
        label="canaries",
    )
    (made,) = train_side_by_side([planned], [None])
    found = []
    for k, (n, (prefix, secret)) in enumerate(zip(numbers, drawn)):
        others = torch.stack([texts.secret(rng) for _ in range(candidates)])
        others = others[(others != secret).any(1)]

        def surprise(secrets: Tensor, prefix: Tensor = prefix) -> Tensor:
            return texts.surprise(made.model, prefix, secrets)

        own = float(surprise(secret[None]).sum())
        place = exposure.rank(own, surprise(others).sum(1))
        best = exposure.search(surprise, texts.letters, length, EXTRACTS)
        bits = exposure.exposure(place, candidates)
        found.append(Canary(n, tuple(secret.tolist()), place, bits, bool((best == secret).all())))
        if watch is not None:
            watch(k + 1, len(numbers))
    return Memorization(
        made.model,
        tuple(found),
        candidates,
        length * float(np.log2(len(texts.letters))),
        fed.parties[who],
        claim_of(opened.ledger, "row"),
        made.ledger,
        (f"the secrets replaced {_count(texts, numbers)} of {int(fed.train.sizes[who])} rows of the party",),
    )


def _count(texts: _Texts, numbers: list[int]) -> int:
    return sum(numbers) * (1 if texts.every else texts.length)


@dataclass(frozen=True)
class _Texts:
    """How a canary becomes rows: tokens [T], with a label for each token or for the last."""

    width: int
    every: bool  # labels of all tokens, or of the last
    tokens: Tensor  # that beginnings are made of
    letters: Tensor  # that secrets are made of
    length: int

    @classmethod
    def of(cls, p: Plan, length: int, rng: np.random.Generator) -> _Texts:
        rows = p.fed.rows
        x = rows.matrix("memorization")
        width, every = int(x.shape[1]), rows.y.dim() > 1
        if width < length + 1:
            raise bad("memorization", "length", length, f"less than the {width} tokens of a row")
        known = torch.unique(x[:10_000])
        counts = torch.bincount(x[:10_000].reshape(-1))
        letters = counts.argsort(descending=True)[: min(ALPHABET, len(known))].sort().values
        if len(letters) < 2:
            raise BadData("memorization: the text has one token only.")
        return cls(width, every, known, letters, length)

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """A beginning, which the attacker knows, and a secret."""
        size = min(self.width - self.length, 2 * self.length) if self.every else self.width
        prefix = self.tokens[torch.from_numpy(rng.integers(0, len(self.tokens), size))]
        return prefix.long(), self.secret(rng)

    def secret(self, rng: np.random.Generator) -> Tensor:
        return self.letters[torch.from_numpy(rng.integers(0, len(self.letters), self.length))].long()

    def rows(self, prefix: Tensor, secret: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One row with all labels, or one for each token of the secret."""
        x, y = self.encode(prefix, secret[None])
        return list(zip(x, y))

    def encode(self, prefix: Tensor, secrets: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and labels of many secrets after the same beginning; one after the other if not `every`."""
        text = torch.cat([prefix.expand(len(secrets), -1), secrets], 1)
        if self.every:
            rest = self.width - text.shape[1] + 1
            x = torch.nn.functional.pad(text[:, :-1], (0, rest))
            return x, torch.nn.functional.pad(text[:, 1:], (0, rest), value=NONE)
        windows = text.unfold(1, self.width, 1)[:, : self.length]
        return windows.reshape(-1, self.width), secrets.reshape(-1)

    def surprise(self, model: nn.Module, prefix: Tensor, secrets: Tensor) -> Tensor:
        """[M, L]: −log P of each token of the secrets."""
        x, y = self.encode(prefix, secrets)
        out = outputs(model, x)
        log = classes_last(out, y).double().log_softmax(-1)
        each = -log.gather(-1, y.clamp(min=0)[..., None])[..., 0]
        if self.every:
            return each[:, len(prefix) - 1 : len(prefix) - 1 + self.length]
        return each.view(len(secrets), self.length)


def _insert(
    fed: Federation, who: int, rows: list[tuple[Tensor, Tensor]], rng: np.random.Generator
) -> Federation:
    """The federation with these rows instead of some of a party's, so that all sizes stay."""
    own = fed.train.of(who).numpy()
    if len(rows) > len(own) // 2:
        raise BadData(
            f"memorization: the canaries are {len(rows)} rows, and party {fed.parties[who]} has {len(own)} "
            "training rows; at most half of them are replaced. Use fewer copies or canaries."
        )
    at = torch.from_numpy(rng.permutation(own)[: len(rows)])
    x, y = fed.rows.matrix("memorization").clone(), fed.rows.y.clone()
    x[at] = torch.stack([r[0] for r in rows]).to(x.dtype)
    y[at] = torch.stack([r[1] for r in rows]).to(y.dtype)
    return dataclasses.replace(fed, rows=Rows(x, y), source=None)


def _party(p: Plan, given: Any) -> int:
    if given is None:
        return int(p.fed.train.sizes.argmax())
    index = p.fed.parties.index(given) if given in p.fed.parties else given
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(p.fed):
        raise bad("memorization", "party", given, f"a party's name, or its number below {len(p.fed)}")
    return index


def _check(copies: Any, canaries: Any, length: Any, candidates: Any, rounds: Any) -> None:
    def whole(n: Any, least: int) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and n >= least

    listed = isinstance(copies, Sequence) and not isinstance(copies, str) and len(copies) > 0
    refuse(
        (
            not listed or not all(whole(n, 1) for n in copies),
            bad("memorization", "copies", copies, "numbers of at least 1, such as (1, 4, 16)"),
        ),
        *(
            (
                not whole(n, least),
                bad("memorization", name, n, f"a whole number of at least {least}"),
            )
            for name, n, least in (
                ("canaries", canaries, 1),
                ("length", length, 1),
                ("candidates", candidates, 10),
                ("rounds", 1 if rounds is None else rounds, 1),
            )
        ),
    )


def _check_plan(p: Plan) -> None:
    if p.fed.classes is None or p.fed.rows.matrix("memorization").is_floating_point():
        raise BadParameter(
            "memorization: the audit is for models of text, whose rows are tokens and whose labels are the "
            "next tokens. For other models use tacit.audit.membership."
        )
    if p.algorithm.sees_each:
        raise BadParameter(
            f"memorization: {type(p.algorithm).__name__} has one model for each cluster. Audit a run with "
            "one model."
        )
    if p.fed.skew is not None and p.fed.at(1) is not p.fed.rows:
        raise BadParameter("memorization: the rows of this run change over rounds (ConceptDrift).")

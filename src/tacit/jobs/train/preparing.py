"""Federated preparation between real parties: whether a job has it, and what its result must be.

Before round 0 the server computes the statistics of the parties' tables (data/pipeline.py) by hidden sums
over all parties or none (protocols/sum_program.py), whatever guard the training has. It sends the result to
every party. A party accepts one result under one contract, and hidden sums of the training are bound to it:
parties that were sent different statistics share no masks.

The statistics are the server's word: a party does not see the sums. It checks that they belong to the agreed
recipe, and that rows encoded with them are finite. What a server gains by false ones is what it gains by a
model of its choice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...config.train import BALANCED
from ...data.pipeline import Pipeline, PipelinePreparation
from ...data.private_preparation import PrivatePreparation
from ...data.recipe import OTHER, RANKS, Recipe
from ...errors import BadData, BadRun, ProtocolError
from ...files import write_atomic
from ...guard import Noise

if TYPE_CHECKING:
    from ...parties.ledger import How, Ledger
    from ...protocols.sum_program import SumRules
    from .party_rows import PartyTable
    from .plan import Plan

SCOPE = "preparation"
KEY = "pipeline"  # of the vector that carries the result
MOST_BYTES = 1 << 24  # of a result
FEWEST = 3  # parties whose sum hides each of them from the others
TWO = (
    "The statistics of the tables are sums over two parties: each of them can compute the other's counts, "
    "means, deviations and quantiles from these and its own rows. The job allows it (fit = 'federated')."
)
PartyPreparation = PipelinePreparation | PrivatePreparation
OWN = (
    "Each of the two parties encodes its rows by statistics of its own: from a sum of two, each would learn "
    "the other's part. fit = 'federated' in [data] allows that."
)

ENCODED = (
    "ε does not cover the statistics by which the table was encoded, which are exact. Give fit_epsilon, "
    "declare mean and std (fit=data.Recipe(…)), or use fit='none' if that matters."
)


def has_exact_statistics(p: Plan) -> bool:
    """Whether rows of a table are encoded by statistics of theirs that no ε of the ledger covers."""
    if p.fed.spent is not None:
        return False
    if p.fed.pipeline is not None and p.fed.pipeline.recipe.fill is not None:  # federated
        return True
    table = None if p.fed.source is None else p.fed.source.table
    if table is None or table.recipe.is_fitted:
        return False
    # noise that hides a whole party also hides what it computes for itself
    return table.recipe.fit == "pooled" or (table.recipe.fit == "party" and p.private is not None)


def program_of(p: Plan, layout: Mapping[str, Any] | None) -> PartyPreparation | None:
    """Return the program of sums that prepares the parties' tables; None where there is none.

    By default it is there for three parties or more, unless an ε is claimed, which would not cover it.
    `fit = "federated"` asks for it also for two. With `fit_epsilon` it is one sum with every party's own
    noise, also for two parties and beside another ε.
    """
    from .party_rows import read_layout

    if not layout:
        return None
    agreed = read_layout(layout)
    if agreed.recipe.is_fitted or agreed.fit in ("party", "none"):
        return None
    if agreed.private is not None:
        return agreed.private_preparation(len(p.fed))
    if agreed.fit == "" and (len(p.fed) < FEWEST or claims_epsilon(p)):
        return None
    return PipelinePreparation(agreed.pipeline, counts_labels=p.class_weight == BALANCED)


def simulated_program(p: Plan) -> PartyPreparation | None:
    """Return the program of sums by which the parties of a simulation prepared their tables, if they did."""
    if not p.talks or p.runtime == "parties" or p.fed.source is None or p.fed.source.table is None:
        return None
    return p.fed.source.table.program(p.fed)


def fewest_rows(layout: Mapping[str, Any] | None) -> int:
    """Return the number of rows below which a party is small; 0: none is."""
    from .party_rows import read_layout

    return read_layout(layout).min_rows if layout else 0


def to_table(program: PartyPreparation | None) -> dict[str, Any] | None:
    """Return what a contract says about the preparation."""
    if program is None:
        return None
    table: dict[str, Any] = {"fit": "federated", "steps": program.max_steps}
    if isinstance(program, PrivatePreparation):
        table |= {"epsilon": program.epsilon, "delta": program.delta, "unit": unit_of(program)}
    return table


def unit_of(program: PrivatePreparation) -> str:
    return "person" if program.group else "row"


def describe(program: PartyPreparation) -> list[tuple[str, str]]:
    """Return who learns what by a preparation: (party, what) each."""
    if isinstance(program, PrivatePreparation):
        noise = f"; with noise of every party: ε = {program.epsilon:g} at δ = {program.delta:g} for each "
        noise += unit_of(program)
    else:
        noise = ""
    steps = f"{program.max_steps} sum{'s' if program.max_steps > 1 else ''}"
    parts = "counts and sums" if noise else "counts, sums and histograms"
    return [
        (
            "the server",
            f"{steps} over the training rows of all parties: {parts} of columns, before round 1; nothing of "
            f"one party{noise}",
        ),
        ("every party", f"the statistics of the columns that follow from {'it' if noise else 'these sums'}"),
    ]


def record_sums(ledger: Ledger, program: PartyPreparation, everyone: str, server: str | None) -> None:
    """Add what the parties of a simulation would have seen of the preparation; without a server, each all."""
    for (party, what), kind in zip(describe(program), ("PreparationSums", "Statistics")):
        to_server = party == "the server" and server is not None
        sender = everyone if to_server or server is None else server
        ledger.record(server if to_server and server else everyone, sender, kind, what, how="ideal")


def record_label_counts(ledger: Ledger, party: str, sender: str, how: How = "executed") -> None:
    """Add the line of the label counts that class_weight = "balanced" needs."""
    what = "how many training rows of all parties together have each label (class_weight = 'balanced')"
    ledger.record(party, sender, "LabelCounts", what, how=how)


def claims_epsilon(p: Plan) -> bool:
    return p.private is not None or any(isinstance(stage, Noise) for stage in p.guard)


def rules_of(contract: str, parties: tuple[str, ...], within: float | None = None) -> SumRules:
    """Return the rules of its sums: over all parties or none, against an active server."""
    from ...protocols.sum_program import SumRules  # it needs msgpack, which a simulation does not

    return SumRules(contract, parties, 1.0, "active", within)


def notes_of(p: Plan, layout: Mapping[str, Any] | None, program: PartyPreparation | None) -> list[str]:
    """Return what users should know about how tables are prepared."""
    if not layout or len(p.fed) != 2 or isinstance(program, PrivatePreparation):
        return []
    if program is not None:
        return [TWO]
    from .party_rows import read_layout

    agreed = read_layout(layout)
    return [OWN] if agreed.fit == "" and not agreed.recipe.is_fitted and not claims_epsilon(p) else []


# the result -------------------------------------------------------------------------------------------------


def to_text(pipeline: Pipeline) -> str:
    """Return the canonical text of a fitted pipeline, of which a digest is taken."""
    return json.dumps(pipeline.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def bind_statistics(contract: str, text: str) -> str:
    """Return what hidden sums of the training are bound to: the contract, and statistics if there are any."""
    return f"{contract} {digest_of(text)}" if text else contract


def to_vectors(pipeline: Pipeline) -> dict[str, Tensor]:
    data = bytearray(to_text(pipeline).encode())
    return {KEY: torch.frombuffer(data, dtype=torch.uint8)}


def from_vectors(vectors: Mapping[str, Tensor]) -> str:
    """Return the text that a server shared; raise ProtocolError if it is none."""
    tensor = vectors.get(KEY)
    if set(vectors) != {KEY} or tensor is None or tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise ProtocolError("the server sends no statistics at the end of the preparation. Nothing was sent.")
    try:
        return bytes(tensor.numpy().data).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the server's statistics are not text: {error}. Nothing was sent.") from None


def check_result(text: str, agreed: Pipeline, program: PartyPreparation | None = None) -> Pipeline:
    """Return the fitted pipeline of a server's text, if it is one of the agreed recipe and program."""
    try:
        if len(text) > MOST_BYTES:
            raise BadData(f"they have {len(text)} bytes")
        pipeline = Pipeline.from_dict(json.loads(text, parse_constant=_refuse_constant))
        if to_text(pipeline) != text:
            raise BadData("they are not in canonical form")
        if unfitted(pipeline) != unfitted(agreed):
            raise BadData("they belong to another recipe than the agreed one")
        if agreed.labels and pipeline.target != agreed.target:
            raise BadData("a classification has no mean and deviation of its target")
        if isinstance(program, PrivatePreparation):
            _check_bounds(pipeline, program)
            _check_statistics(replace(pipeline.recipe, limits={}))
        else:
            _check_statistics(pipeline.recipe)
    # whatever a server's text can cause in the readers of a pipeline
    except (BadData, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ProtocolError(
            f"the server's statistics of the tables cannot be used: {str(error).rstrip('.')}. Nothing was "
            "sent in answer."
        ) from None
    return pipeline


def check_rows(table: PartyTable, pipeline: Pipeline) -> None:
    """Raise ProtocolError if a party's rows, encoded with a server's statistics, are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows = table.encode(pipeline).rows
    if not all(bool(torch.isfinite(values).all()) for values in (rows.matrix(table.name), rows.y)):
        raise ProtocolError(
            "the server's statistics of the tables cannot be used: this party's rows, encoded with them, are "
            "not finite. Nothing was sent in answer."
        )


def unfitted(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline without what preparation computes."""
    recipe = replace(pipeline.recipe, mean=None, std=None, fill=None, limits={}, knots={}, rare={})
    return replace(pipeline, recipe=recipe, target=(0.0, 1.0), label_counts=())


def check_label_counts(pipeline: Pipeline, program: PartyPreparation, table: PartyTable) -> None:
    """Raise ProtocolError unless label counts are there as agreed, and none is below this party's own."""
    why = ""
    if bool(pipeline.label_counts) != program.counts_labels:
        why = "they have label counts exactly if the agreed class_weight is 'balanced'"
    elif isinstance(program, PipelinePreparation) and program.counts_labels:
        own = program.count_labels(table.training_rows).tolist()
        if any(n < mine for n, mine in zip(pipeline.label_counts, own)):
            why = "they have fewer rows of a label than this party alone"
    if why:
        raise ProtocolError(
            f"the server's statistics of the tables cannot be used: {why}. Nothing was sent in answer."
        )


def _check_bounds(pipeline: Pipeline, program: PrivatePreparation) -> None:
    """Raise BadData unless numbers are clipped at the agreed bounds, and means are between these."""
    recipe = pipeline.recipe
    if recipe.limits != {name: program.range_of(name) for name in recipe.numeric}:
        raise BadData("the numbers are not clipped at the agreed bounds")
    means = dict(zip(recipe.numeric, recipe.mean or ()))
    if not pipeline.labels:
        means[pipeline.label] = pipeline.target[0]
    for name, mean in means.items():
        low, high = program.range_of(name)
        if not low <= mean <= high:
            raise BadData(f"the mean of {name!r:.60} is not within its agreed bounds")


def _check_statistics(recipe: Recipe) -> None:
    """Raise BadData unless every statistic has its shape, is finite and, where it divides, above 0."""
    n = len(recipe.numeric)
    for key in ("mean", "std", "fill"):
        values = getattr(recipe, key)
        if values is None or len(values) != n or not all(_is_finite(v) for v in values):
            raise BadData(f"{key} is not a list of {n} finite numbers")
    if not all(v > 0 for v in recipe.std or ()):
        raise BadData("a standard deviation is not above 0")
    ranked = {name for name in recipe.numeric if recipe.scaling_of(name) == "quantile"}
    if set(recipe.knots) != ranked:
        raise BadData("the quantiles are not those of the numbers that are scaled by rank")
    for name, limits in recipe.limits.items():
        if recipe.winsorize == "none" or recipe.scaling_of(name) not in ("standard", "robust"):
            raise BadData(f"{name!r:.60} has limits, and the agreed recipe does not clip it")
        if name not in recipe.numbers or len(limits) != 2 or not all(map(_is_finite, limits)):
            raise BadData(f"the limits of {name!r:.60} are not two finite numbers of a number's column")
        if not limits[0] < limits[1]:
            raise BadData(f"the limits of {name!r} are in the wrong order")
    for name, knots in recipe.knots.items():
        if len(knots) != len(RANKS) or not all(map(_is_finite, knots)):
            raise BadData(f"the quantiles of {name!r:.60} are not {len(RANKS)} finite numbers")
        if any(a > b for a, b in pairwise(knots)):
            raise BadData(f"the quantiles of {name!r} are not in order")
    for name, rare in recipe.rare.items():
        if OTHER not in recipe.categories.get(name, ()) or not set(rare) <= set(recipe.categories[name]):
            raise BadData(f"the rare values of {name!r:.60} are not among its categories")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


# where the two sides keep it --------------------------------------------------------------------------------


def result_file(folder: Path, contract: str) -> Path:
    return folder / f"statistics-{contract[:12]}.json"


class SumJournal:
    """The sums of a preparation in the server's run directory: a resumed server computes none again."""

    def __init__(self, directory: Path | None, contract: str):
        self.file = None if directory is None else directory / "preparation.json"
        self.contract = contract
        self.sums: list[np.ndarray] = []
        if self.file is not None and self.file.exists():
            try:
                entry = json.loads(self.file.read_text())
                if entry["contract"] == contract:
                    self.sums = [np.array(total, dtype=np.int64) for total in entry["sums"]]
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise BadRun(
                    f"{self.file} cannot be read: {error}. It holds the sums of the preparation. Restore it "
                    "from a copy, or start a new run."
                ) from None

    def keep(self, step: int, total: np.ndarray) -> None:
        """Add the sum of a step; on disk when this returns."""
        assert step == len(self.sums)
        self.sums.append(total)
        if self.file is not None:
            sums = [part.tolist() for part in self.sums]
            write_atomic(self.file, json.dumps({"contract": self.contract, "sums": sums}))

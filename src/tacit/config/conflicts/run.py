"""What surrounds training: model, evaluation, preparation, runtime, resuming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...data.subgroups import PARTY, SITE, parse
from ...models import Linear, Pretrained
from ...topologies import Hierarchy
from .entry import Conflict, has_noise, hiding_stage, is_declared, layout_of, name_of

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan


def model_kind(p: Plan) -> Iterator[Conflict]:
    """Linear regression is for numbers; `make_plan` takes it for them where 'logistic' is given."""
    spec = p.model.spec if isinstance(p.model, Pretrained) else p.model
    if p.fed.classes is not None and (spec == "linear" or isinstance(spec, Linear)):
        yield Conflict(
            "model", f"'linear' is a regression, and {p.fed.name} has classes", "Use model='logistic'."
        )


def judging(p: Plan) -> Iterator[Conflict]:
    """Thresholds and subgroups that a run has no counts for."""
    if p.threshold is not None and p.fed.classes != 2:
        yield Conflict("threshold", "it is for two classes", "Leave it out.")
    if not p.subgroups:
        return
    if hiding_stage(p) is not None and {PARTY, SITE} & {parse(text).column for text in p.subgroups}:
        yield Conflict(
            "subgroups",
            f"the guard hides the metrics of single parties, and {PARTY!r} asks for them",
            f"Leave {PARTY!r} out.",
        )
    if p.runtime == "parties" and has_noise(p):
        yield Conflict(
            "subgroups",
            "where an ε is claimed, real parties report noisy figures of all their rows and nothing else",
            "Leave one of the two out.",
        )


def patience(p: Plan) -> Iterator[Conflict]:
    if p.patience is None:
        if p.stop_by is not None:
            yield Conflict(
                "stop_by",
                "it is the metric of early stopping, and the run has none",
                "Set patience, or leave stop_by out.",
            )
        return
    if not p.evaluate_every:
        yield Conflict(
            "patience",
            "early stopping compares models of several rounds, and evaluate_every=0 evaluates the last one",
            "Set evaluate_every to 1 or more.",
        )
    if has_noise(p):
        yield Conflict(
            "patience",
            "which round is the best is read from held-out rows, and the ε of Noise does not cover that",
            "Leave one of the two out.",
        )
    if p.algorithm.personalizes or p.algorithm.sees_each:
        yield Conflict(
            "patience",
            f"early stopping keeps the server's model of the best round, and {name_of(p.algorithm)} has a "
            "model for each party or cluster",
            "Leave it out.",
        )
    if p.landscape:
        yield Conflict("patience", "landscape draws the loss around the last model", "Leave one out.")
    if p.pace is not None or p.topology is not None:
        yield Conflict(
            "patience", "early stopping is for synchronous rounds with one server", "Leave it out here."
        )


def preparation(p: Plan) -> Iterator[Conflict]:
    layout = layout_of(p)
    is_small_known = layout.get("min_rows") is not None or layout.get("small", "refuse") != "refuse"
    if is_small_known and (has_noise(p) or p.private is not None or layout.get("fit_epsilon")):
        yield Conflict(
            "min_rows",
            "in [data] it shows whether a party has so many rows, which ε does not cover",
            "Leave min_rows and small out of [data]; a party knows by itself whether it is too small.",
        )
    if layout.get("small") == "drop" and p.pace is not None:
        yield Conflict(
            "pace",
            f"{name_of(p.pace)} asks whichever party is free, and small parties (small = 'drop') do not "
            "answer",
            "Leave one of the two out.",
        )
    if layout.get("fit_epsilon") and has_noise(p):
        yield Conflict(
            "guard",
            "Noise claims an ε for all rows of a party, and fit_epsilon covers one row or person",
            "Declare mean and std in [data], or set fit = 'party' there.",
        )
        return
    if p.runtime != "parties" or is_declared(p.through.layout):
        return
    if p.through.layout.get("fit") == "federated" and has_noise(p):
        yield Conflict(
            "guard",
            "Noise claims an ε, which does not cover the sums of a federated preparation of tables",
            "Declare mean and std in [data], or set fit = 'party' there.",
        )


def runtime(p: Plan) -> Iterator[Conflict]:
    if isinstance(p.model, Pretrained) and p.runtime != "cohort":
        yield Conflict(
            "runtime",
            f"it is {p.runtime!r}, and the model starts from a file that parties do not have",
            "Use runtime='cohort', or leave out weights.",
        )
    if p.runtime != "cohort" and "server" in p.fed.parties:
        yield Conflict(
            "runtime",
            f"{p.fed.name} has a party called 'server', which is the server's own name in messages",
            "Rename the party.",
        )
    if p.topology is not None and p.runtime == "processes":
        for setting, default in (("deadline", None), ("restart", False)):
            if (value := getattr(p.through, setting)) != default:
                yield Conflict(
                    "topology",
                    f"the runtime has {setting}={value!r}, and no party can leave or restart here",
                    f"Leave {setting} out.",
                )


def resume(p: Plan) -> Iterator[Conflict]:
    if isinstance(p.topology, Hierarchy) and p.runtime != "cohort":
        yield Conflict(
            "resume",
            "edges and their clients keep their state to themselves, and it ends with their programs",
            "Start a new run, or use runtime='cohort'.",
        )
    if p.private is not None and p.runtime != "parties":  # real parties keep what they sent
        yield Conflict(
            "resume",
            "with private, a round that was lost and computed again would be spent twice",
            "Start a new run.",
        )

"""What cannot be combined in one training run: the one table that train, plan, compare, study and parties
read.

An entry is a function that yields a `Conflict` (which option, why, what to do instead) for a plan it does
not allow. `ENTRIES` run when a plan is built; `MODEL_ENTRIES` also need the model, and run before training
starts and in `plan`. A new option of `train` adds its entries here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ..aggregate import Best, Mean
from ..algorithms import IFCA, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedLBFGSCV, FedNova, FedYogi
from ..algorithms.solvers import OwnOptimizer
from ..algorithms.types import State
from ..data.subgroups import PARTY, SITE, parse
from ..engine.losses import CLASSIFICATION, LABELS, REGRESSION, classes_last
from ..engine.task import Task
from ..errors import BadParameter
from ..guard import Noise, Quantize, Sparsify, Stage
from ..guard.guard import Layout
from ..models import Linear, Pretrained
from ..own_code import OwnLoss
from ..pace import SAFA
from ..selection import PowerOfChoice
from ..topologies import Gossip, Hierarchy
from .train import BALANCED, CLASS_METRICS, REGRESSION_METRICS

if TYPE_CHECKING:
    from ..jobs.train.plan import Plan

# whose clients only train and send the update, so that a party's own loop can do it
LOOP_ALGORITHMS = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)
FINE_BITS = 24  # a grid on which one over a thousand steps is still a number of its own


class Conflict(NamedTuple):
    """Two options of a run that cannot be combined."""

    option: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.option}: {self.why}. {self.remedy}"


def check(p: Plan) -> None:
    """Raise BadParameter for the first conflict between the options of a plan."""
    for entry in ENTRIES:
        for conflict in entry(p):
            raise BadParameter(str(conflict))


def check_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> None:
    """Raise BadParameter for the first conflict between the options of a plan and its model."""
    for entry in MODEL_ENTRIES:
        for conflict in entry(p, task, start, layout):
            raise BadParameter(str(conflict))


def check_resume(p: Plan) -> None:
    """Raise BadParameter if a run of this plan cannot be resumed."""
    for conflict in _resume(p):
        raise BadParameter(str(conflict))


def _name(component: Any) -> str:
    return type(component).__name__


def _hiding(p: Plan) -> Stage | None:
    return next((stage for stage in p.guard if stage.hides), None)


def _has_noise(p: Plan) -> bool:
    return any(isinstance(stage, Noise) for stage in p.guard)


# ----------------------------------------------------------------------------------------------- aggregation


def _aggregation(p: Plan) -> Iterator[Conflict]:
    name = _name(p.aggregate)
    if isinstance(p.aggregate, Best) and not p.algorithm.scores:
        yield Conflict(
            "aggregate",
            f"Best selects by the scores that parties send, and parties of {_name(p.algorithm)} send none",
            "Use algorithms.FedPSO, or another rule.",
        )
    if p.topology is not None and p.aggregate.works_on_models:
        yield Conflict(
            "aggregate",
            f"{name} needs one server that has every party's model",
            "Leave out topology, or use another rule.",
        )
    if p.topology is not None and p.aggregate.remembers:
        yield Conflict(
            "aggregate",
            f"{name} remembers what one server received in earlier rounds",
            "Leave out topology, or use another rule.",
        )
    if p.aggregate != Mean() and (p.guard or p.pace is not None):
        option, what = ("guard", "its stages work") if p.guard else ("pace", f"{_name(p.pace)} works")
        yield Conflict(
            option,
            f"{what} on a sum of updates, and {name} computes something else from them",
            "Aggregate with Mean, or leave it out.",
        )


def _too_few_updates(p: Plan) -> Iterator[Conflict]:
    """A rule that needs more parties than a round, or an edge, has: the rule itself raises."""
    p.aggregate.check_parties(p.update_counts())
    yield from ()


def _single_updates(p: Plan) -> Iterator[Conflict]:
    """A rule or an algorithm that must see single updates."""
    hiding = _hiding(p)
    if hiding is not None:
        remedies = (
            (p.aggregate, "find outliers", "Aggregate with Mean"),
            (p.algorithm, "tell which parties are similar", "Use another algorithm"),
        )
        for component, why, remedy in remedies:
            if component.sees_each:
                yield Conflict(
                    "guard",
                    f"{_name(hiding)} hides each update from the server, and {_name(component)} must see "
                    "each "
                    f"of them to {why}",
                    f"{remedy}, or leave the updates unhidden.",
                )
    others = (("guard", p.guard), ("pace", p.pace), ("topology", p.topology), ("select", p.select))
    option = next((name for name, value in others if value), None)
    if p.algorithm.sees_each and option:
        yield Conflict(
            option,
            f"{_name(p.algorithm)} clusters the parties by what each of them sends to one server, in "
            "synchronous rounds",
            f"Leave out {option}, or use another algorithm.",
        )


def _division(p: Plan) -> Iterator[Conflict]:
    """A server that divides by a mean of what parties send needs it to arrive, however small it is."""
    if not p.algorithm.divides:
        return
    nova = isinstance(p.algorithm, FedNova)
    how, other = (" (tau='harmonic')", "tau='mean'") if nova else ("", "another algorithm")
    for stage in p.guard:
        if isinstance(stage, Noise):
            why = "may bring that near zero or below"
        elif isinstance(stage, Sparsify):
            why = "may leave that out"
        elif isinstance(stage, Quantize) and nova and stage.bits < FINE_BITS:
            why = f"with {stage.bits} bits may round that to zero"
        else:
            continue
        more = f", or bits={FINE_BITS}" if isinstance(stage, Quantize) else f", or leave {_name(stage)} out"
        yield Conflict(
            "guard",
            f"the server of {_name(p.algorithm)} divides by a mean of what parties send{how}, and "
            f"{_name(stage)} {why}, so that the model diverges",
            f"Use {other}{more}.",
        )


# ------------------------------------------------------------------------------------- selection and sampling


def _selection(p: Plan) -> Iterator[Conflict]:
    if p.select is None:
        return
    name, hiding = _name(p.select), _hiding(p)
    asks_losses = isinstance(p.select, PowerOfChoice)
    if _has_noise(p):
        yield Conflict(
            "guard",
            f"Noise assumes that parties are drawn independently of their data, and {name} is not",
            "Leave one of the two out.",
        )
    if asks_losses and hiding is not None:
        yield Conflict(
            "guard",
            f"{_name(hiding)} hides what each party sends, and {name} asks each party for its loss in the "
            "clear",
            "Use BySize, or leave one of the two out.",
        )
    if asks_losses and p.private is not None:
        yield Conflict(
            "private",
            f"{name} asks parties for the losses of their rows, which no noise covers",
            "Use BySize.",
        )
    if p.sampling != "fixed" or p.pace is not None or p.topology is not None:
        yield Conflict(
            "select",
            f"{name} is for synchronous rounds with one server and sampling='fixed'",
            "Leave it out here.",
        )
    # real parties are timed
    if p.select.needs_speed and p.speed is None and p.runtime in ("cohort", "inprocess"):
        yield Conflict(
            "select",
            f"{name} needs to know how long parties take",
            "Give speed, such as speeds.Lognormal().",
        )
    if p.select.fills and p.asked_per_round is None:
        yield Conflict(
            "select",
            f"{name} chooses the participants of a round, and without per_round everyone takes part",
            "Give per_round.",
        )
    if asks_losses and p.asked_per_round is not None and p.select.candidates < p.asked_per_round:
        yield Conflict(
            "select",
            f"PowerOfChoice has candidates={p.select.candidates}, fewer than the {p.asked_per_round} parties "
            "of a round (per_round)",
            "With as many it equals BySize; with more, those with the largest losses are chosen.",
        )


def _sampling(p: Plan) -> Iterator[Conflict]:
    hiding = _hiding(p)
    if hiding is not None and p.real_sampling == "poisson":
        yield Conflict(
            "guard",
            f"{_name(hiding)} needs to know how many parties take part in a round, and by Poisson sampling "
            "nobody does",
            "Use sampling='fixed'.",
        )
    words = {
        "everyone": "everyone takes part in every round",
        "poisson": "each client takes part with a probability of its own (Poisson)",
        "fixed": "a fixed number of clients is drawn without replacement",
    }
    for noise in (stage for stage in p.guard if isinstance(stage, Noise)):
        if noise.sampling not in ("as run", p.real_sampling):
            yield Conflict(
                "guard",
                f"Noise assumes that {words[noise.sampling]}, and in this run {words[p.real_sampling]}; its "
                "ε "
                "would be that of another run",
                "Set train's sampling and per_round to what you assume, or leave Noise's sampling out.",
            )


# ------------------------------------------------------------------------------------- hidden sums,
# adversaries


def _hidden_sums(p: Plan) -> Iterator[Conflict]:
    """What a hidden sum would not hide."""
    hiding = _hiding(p)
    if hiding is None:
        return
    name = _name(p.algorithm)
    if isinstance(p.algorithm, IFCA):
        yield Conflict(
            "guard",
            f"{_name(hiding)} hides single updates in a sum, and in the sum of {name} each cluster has its "
            "own "
            "place, so that a cluster with one party shows its update",
            "Use another algorithm, or leave the guard out.",
        )
    if p.runtime == "parties" and hiding.max_rows is None and p.weights_hidden:
        yield Conflict(
            "guard",
            f"{_name(hiding)} hides how many rows a party has, and its weight is a share of a number that "
            "all "
            "parties agree on",
            f"Give {_name(hiding)} max_rows, such as max_rows = 10000; a party with more rows is counted as "
            "having max_rows. Or use an algorithm with weighted = false.",
        )
    if hiding.adversary != "active":
        return
    if p.algorithm.client_state(torch.zeros(1)) or p.algorithm.own_buffers:
        yield Conflict(
            "guard",
            f"clients of {name} keep state from round to round, and an active server could prepare it so "
            "that "
            "all updates but one are known",
            "Use FedAvg or another algorithm without client state, or adversary='curious'.",
        )
    for stage in p.guard:
        settings = (
            ("feedback", stage.feedback),
            ("quantile", stage.quantile),
        )
        for setting, value in settings:
            if value:
                yield Conflict(
                    "guard",
                    f"{_name(stage)} depends on what a server sent before, which an active server chooses",
                    f"Leave out {setting}, or use adversary='curious'.",
                )


def _adversaries(p: Plan) -> Iterator[Conflict]:
    if p.adversaries and (p.guard or p.pace is not None or p.runtime != "cohort"):
        yield Conflict(
            "adversaries",
            "malicious parties are simulated in synchronous rounds of the cohort runtime, before any guard, "
            "whose stages a malicious party would not apply",
            "Leave out guard and pace, and use runtime='cohort'.",
        )


# --------------------------------------------------------------------------------------- pace, speed,
# topology


def _pace(p: Plan) -> Iterator[Conflict]:
    if p.pace is None:
        return
    name, algorithm = _name(p.pace), _name(p.algorithm)
    if p.algorithm.client_state(torch.zeros(1)):
        yield Conflict(
            "pace",
            f"the clients of {algorithm} keep state from round to round, and {name} has no rounds: work may "
            "be "
            "abandoned, and the model moves on in between",
            "Use an algorithm without client state, such as FedAvg or FedProx, or no pace.",
        )
    if not p.algorithm.scales:
        yield Conflict(
            "pace",
            f"{name} gives old updates less weight, and an update of {algorithm} cannot be scaled",
            "Use FedAvg or FedProx, or no pace.",
        )
    if p.sampling != "fixed":
        yield Conflict("sampling", f"{name} asks whichever party is free", "Use sampling='fixed'.")
    if isinstance(p.pace, SAFA) and p.asked_per_round not in (None, len(p.fed)):
        yield Conflict("per_round", "with SAFA every party trains", "Leave it out, and set SAFA's fraction.")
    for stage in p.guard:
        if isinstance(stage, Noise):
            why = "needs to know how many parties are in a round, and a fast party may be in a buffer twice"
        elif stage.hides:
            why = "agrees on masks or keys among the parties of one round, and here there are no rounds"
        elif stage.skips:
            why = "uses an update of an earlier round again"
        elif stage.quantile is not None:
            why = "follows how many updates of a round are clipped"
        elif stage.feedback:
            why = "keeps at the client what it left out, for the next round"
        else:
            continue
        yield Conflict(
            "guard",
            f"{_name(stage)} {why}, so it cannot be combined with {name}",
            "Leave one of the two out; Clip and Quantize can be combined with it.",
        )


def _speed(p: Plan) -> Iterator[Conflict]:
    if p.speed is not None and p.runtime not in ("cohort", "inprocess"):
        yield Conflict(
            "speed",
            "it sets the virtual clock of a simulation, and processes take real time",
            "Leave it out.",
        )


def _hierarchy(p: Plan) -> Iterator[Conflict]:
    if not isinstance(p.topology, Hierarchy):
        return
    hides = _hiding(p) is not None
    if taken := set().union(*p.topology.names) & set(p.fed.parties):
        yield Conflict(
            "topology",
            f"{p.fed.name} has a party called {min(taken)!r}, which is an edge's name",
            "Rename the party.",
        )
    if p.pace is not None or p.speed is not None:
        yield Conflict(
            "topology", "a Hierarchy has synchronous rounds and no clock", "Leave out pace and speed."
        )
    if p.adversaries:
        yield Conflict("topology", "a Hierarchy is simulated with honest parties", "Leave out adversaries.")
    if _has_noise(p):
        yield Conflict(
            "guard",
            "Noise is accounted for one server's sum, and with a Hierarchy there are several",
            "Leave one of the two out; SecAgg hides updates inside each edge.",
        )
    if hides and p.per_round < len(p.fed):
        yield Conflict(
            "guard",
            "a hidden sum inside an edge needs to know how many parties take part there, and with per_round "
            "that differs from round to round",
            "Leave per_round out.",
        )
    if hides and p.algorithm.weighted:
        yield Conflict(
            "guard",
            f"a hidden sum does not tell an edge how many rows it covers, and {_name(p.algorithm)} weighs by "
            "rows",
            "Use an algorithm with weighted=False.",
        )
    if p.runtime != "cohort" and not len(p.fed.test.y):
        yield Conflict(
            "topology",
            f"{p.fed.name} has no test rows of the server's own, and through edges it cannot ask the clients "
            "for theirs",
            "Use runtime='cohort'.",
        )


def _gossip(p: Plan) -> Iterator[Conflict]:
    if not isinstance(p.topology, Gossip):
        return
    others = (
        ("guard", p.guard),
        ("pace", p.pace),
        ("speed", p.speed),
        ("adversaries", p.adversaries),
        ("per_round", p.asked_per_round),
        ("aggregate", p.aggregate != Mean()),
        ("landscape", p.landscape),
    )
    for option, value in others:
        if value:
            yield Conflict(
                "gossip", f"{option} is for training with a server, and here there is none", "Leave it out."
            )


# --------------------------------------------------------------------------------------------- private,
# runtime


def _private(p: Plan) -> Iterator[Conflict]:
    if p.private is None:
        return
    if p.runtime == "processes":
        yield Conflict(
            "private",
            "each party keeps its own account, and processes of one machine have one owner",
            "Use runtime='cohort' or 'inprocess', or real parties (tacit party).",
        )
    if p.runtime == "parties" and not p.private.private:
        yield Conflict(
            "private",
            "without clipping or without noise nothing is guaranteed to the parties",
            "Give epsilon, or noise_multiplier above 0 and clip, or leave [private] out.",
        )
    if p.runtime == "parties" and p.private.epsilon is None and p.private.public_size is None:
        yield Conflict(
            "private",
            "with noise_multiplier, ε follows from a party's number of rows, which the others do not know",
            "Give epsilon, or public_size.",
        )
    if p.runtime == "parties" and not _is_declared(p.through.layout) and not _layout(p).get("fit_epsilon"):
        yield Conflict(
            "private",
            "means and standard deviations follow from a party's rows, and ε does not cover them",
            "Declare mean and std in [data], such as round numbers that everyone knows, give fit_epsilon and "
            "bounds there, or set fit = 'none'.",
        )
    if p.engine == "stack":
        yield Conflict("private", "clients run one after the other", "Leave engine at 'auto', or use 'each'.")
    for option in ("pace", "topology", "landscape"):
        if getattr(p, option):
            yield Conflict(
                "private",
                f"with {option} it would not be known beforehand how often a party's rows are used",
                "Leave one of the two out.",
            )


def _objective(p: Plan) -> Iterator[Conflict]:
    """Losses, weights and metrics that are for another kind of label, or need counts nobody may have."""
    is_regression = p.fed.classes is None
    kind = "a regression" if is_regression else "a classification"
    losses = (*REGRESSION, *LABELS) if is_regression else CLASSIFICATION
    if p.objective.is_own:
        # a process of this machine reads its contract without a kit, and imports its user's own code
        is_approved = isinstance(p.loss, OwnLoss)
        if p.runtime == "parties" and p.through.kit is not None and not is_approved:
            yield Conflict(
                "loss",
                "real parties run no code that they did not approve",
                "Name it with its digest in the job file, or use a loss by its name.",
            )
    elif p.loss not in losses:
        advice = f"Use {' or '.join(map(repr, losses))}, or leave it out."
        if p.loss in (*REGRESSION, *LABELS):
            advice += (
                f" If {p.loss!r} is meant, make the federation with regression=True: labels are then numbers."
            )
        yield Conflict("loss", f"{p.loss!r} is not for {kind}, which {p.fed.name} is", advice)
    y = p.fed.rows.y
    if p.loss == "bce" and is_regression and bool(((y > 1) | ((y < 0) & (y != -1))).any()):
        yield Conflict(
            "loss",
            f"'bce' is for labels of 0 and 1 (−1: unknown), and {p.fed.name} has other numbers",
            "Use 'mse', or another loss.",
        )
    if p.loss == "poisson" and bool((y < 0).any()):
        yield Conflict("loss", f"'poisson' is for counts, and {p.fed.name} has numbers below 0", "Use 'mse'.")
    wrong = CLASS_METRICS if is_regression else REGRESSION_METRICS
    for option, metric in (("metric", p.metric), ("stop_by", p.stop_by)):
        if metric in wrong and p.loss not in LABELS:
            known = REGRESSION_METRICS if is_regression else CLASS_METRICS
            yield Conflict(
                option,
                f"{metric!r} is not for {kind}, which {p.fed.name} is",
                f"Use one of {', '.join(map(repr, ('loss', *known)))}.",
            )
    if p.class_weight is not None and p.objective.is_own:
        yield Conflict(
            "class_weight", "an own loss weighs classes itself", "Leave it out, and weigh them there."
        )
    if p.class_weight is not None and is_regression:
        yield Conflict("class_weight", f"{p.fed.name} is a regression, without classes", "Leave it out.")
    if p.class_weight != BALANCED:
        return
    if _has_noise(p) or p.private is not None or p.fed.spent is not None or _layout(p).get("fit_epsilon"):
        yield Conflict(
            "class_weight",
            "'balanced' needs the exact label counts of all parties together, which no ε covers",
            "Give weights by label: class_weight={'ill': 4, 'healthy': 1}.",
        )


def _cross_validation(p: Plan) -> Iterator[Conflict]:
    """FedLBFGSCV chooses the penalty, from more gradients and losses than guards and DP-SGD are for."""
    if not isinstance(p.algorithm, FedLBFGSCV):
        return
    instead = "Use algorithms.FedLBFGS."
    if p.l2:
        yield Conflict("l2", "FedLBFGSCV chooses it by cross-validation", f"Leave it out. Or: {instead}")
    if p.private is not None:
        yield Conflict("private", "FedLBFGSCV uses losses of rows, which no noise covers", instead)
    if p.guard:
        yield Conflict("guard", "an update of FedLBFGSCV is the gradients of many models", instead)


def _own_loop(p: Plan) -> Iterator[Conflict]:
    """What a party's own training loop replaces, or tacit cannot hold it to."""
    if p.client is None:
        return
    if p.runtime == "inprocess":
        yield Conflict("runtime", "a script is a process of its own", "Leave runtime out.")
    if p.runtime == "processes" and not p.client.path:
        yield Conflict("client", "there is no script", "Give its path: client='train.py'.")
    if type(p.algorithm) not in LOOP_ALGORITHMS or (
        isinstance(p.algorithm, FedAvg) and p.algorithm.option != "II"
    ):
        yield Conflict(
            "algorithm",
            f"the local steps of {_name(p.algorithm)} are tacit's own, and here a script trains",
            f"Use one of {', '.join(c.__name__ for c in LOOP_ALGORITHMS)}: their servers average updates.",
        )
    given = {
        "private": (p.private, "DP-SGD needs the gradient of every row, and a script has its own steps"),
        "pace": (p.pace, "a script answers rounds, one after the other"),
        "topology": (p.topology, "a script answers one server"),
        "adversaries": (p.adversaries, "attacks change tacit's own local steps"),
        "class_weight": (p.class_weight, "the loss is the script's own"),
        "subgroups": (p.subgroups or None, "rows of the parties are known to their scripts only"),
        "patience": (p.patience, "parties' held-out rows are known to their scripts only"),
        "local_steps": (p.local_steps, "the script has its own steps"),
        "l2": (p.l2 or None, "the loss is the script's own"),
    }
    for option, (value, why) in given.items():
        if value is not None:
            yield Conflict(option, why, "Leave it out.")
    if p.asks_losses:
        yield Conflict("select", "rows of the parties are known to their scripts only", "Select otherwise.")
    if p.client.metrics and p.guard:
        yield Conflict(
            "client",
            "its metrics would reach the server next to updates that the guard protects",
            "Leave metrics out, and evaluate the model with callbacks.Evaluate.",
        )


def _own_optimizer(p: Plan) -> Iterator[Conflict]:
    if isinstance(p.algorithm.solver, OwnOptimizer) and p.runtime not in ("cohort", "inprocess"):
        yield Conflict(
            "optimizer",
            "a function stays in this process, and parties are in others",
            "Give a name, a class of torch.optim, or a solver.",
        )


def _own_metrics(p: Plan) -> Iterator[Conflict]:
    if p.metrics is None or len(p.fed.test.y):
        return
    if p.noisy_figures:
        yield Conflict(
            "metrics",
            "where an ε is claimed, real parties report noisy figures of all their rows and nothing else",
            "Leave one of the two out.",
        )
    if p.client is not None:
        yield Conflict(
            "metrics", "rows of the parties are known to their scripts only", "Send them with c.send."
        )
    if isinstance(p.topology, Gossip | Hierarchy) and p.runtime != "cohort":
        yield Conflict(
            "metrics",
            "without a test set they are computed by the parties, whose edges and neighbors send no sums of "
            "them",
            "Use runtime='cohort', or give a test set.",
        )
    if p.runtime == "processes" and (names := p.metrics.objects()):
        yield Conflict(
            "metrics",
            f"{', '.join(map(repr, names))} is an object of this process, and parties are in others",
            "Use runtime='cohort' or 'inprocess', give a test set, or a function of outputs and targets.",
        )
    if p.runtime != "cohort" and (names := p.metrics.unsendable()):
        yield Conflict(
            "metrics",
            f"{', '.join(map(repr, names))} has states that are not sums, and nothing else leaves a party",
            "Use another object, or a function of outputs and targets.",
        )
    if p.runtime == "cohort" and (names := p.metrics.unsummable()):
        yield Conflict(
            "metrics",
            f"{', '.join(map(repr, names))} keeps every prediction, and without a test set only sums leave "
            "a party",
            "Give it thresholds (thresholds=100), or give a test set.",
        )


def _model_kind(p: Plan) -> Iterator[Conflict]:
    """Linear regression is for numbers; `make_plan` takes it for them where 'logistic' is given."""
    spec = p.model.spec if isinstance(p.model, Pretrained) else p.model
    if p.fed.classes is not None and (spec == "linear" or isinstance(spec, Linear)):
        yield Conflict(
            "model", f"'linear' is a regression, and {p.fed.name} has classes", "Use model='logistic'."
        )


def _judging(p: Plan) -> Iterator[Conflict]:
    """Thresholds and subgroups that a run has no counts for."""
    if p.threshold is not None and p.fed.classes != 2:
        yield Conflict("threshold", "it is for two classes", "Leave it out.")
    if not p.subgroups:
        return
    if _hiding(p) is not None and {PARTY, SITE} & {parse(text).column for text in p.subgroups}:
        yield Conflict(
            "subgroups",
            f"the guard hides the metrics of single parties, and {PARTY!r} asks for them",
            f"Leave {PARTY!r} out.",
        )
    if p.runtime == "parties" and _has_noise(p):
        yield Conflict(
            "subgroups",
            "where an ε is claimed, real parties report noisy figures of all their rows and nothing else",
            "Leave one of the two out.",
        )


def _patience(p: Plan) -> Iterator[Conflict]:
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
    if _has_noise(p):
        yield Conflict(
            "patience",
            "which round is the best is read from held-out rows, and the ε of Noise does not cover that",
            "Leave one of the two out.",
        )
    if p.algorithm.personalizes or p.algorithm.sees_each:
        yield Conflict(
            "patience",
            f"early stopping keeps the server's model of the best round, and {_name(p.algorithm)} has a "
            "model for each party or cluster",
            "Leave it out.",
        )
    if p.landscape:
        yield Conflict("patience", "landscape draws the loss around the last model", "Leave one out.")
    if p.pace is not None or p.topology is not None:
        yield Conflict(
            "patience", "early stopping is for synchronous rounds with one server", "Leave it out here."
        )


def _is_declared(layout: Mapping[str, Any]) -> bool:
    """Whether rows of real parties are encoded without statistics of theirs."""
    return bool(layout.get("mean")) or layout.get("fit") == "none"


def _layout(p: Plan) -> Mapping[str, Any]:
    """[data] of a job for real parties; empty in a simulation."""
    return p.through.layout if p.runtime == "parties" else {}


def _preparation(p: Plan) -> Iterator[Conflict]:
    layout = _layout(p)
    is_small_known = layout.get("min_rows") is not None or layout.get("small", "refuse") != "refuse"
    if is_small_known and (_has_noise(p) or p.private is not None or layout.get("fit_epsilon")):
        yield Conflict(
            "min_rows",
            "in [data] it shows whether a party has so many rows, which ε does not cover",
            "Leave min_rows and small out of [data]; a party knows by itself whether it is too small.",
        )
    if layout.get("small") == "drop" and p.pace is not None:
        yield Conflict(
            "pace",
            f"{_name(p.pace)} asks whichever party is free, and small parties (small = 'drop') do not answer",
            "Leave one of the two out.",
        )
    if layout.get("fit_epsilon") and _has_noise(p):
        yield Conflict(
            "guard",
            "Noise claims an ε for all rows of a party, and fit_epsilon covers one row or person",
            "Declare mean and std in [data], or set fit = 'party' there.",
        )
        return
    if p.runtime != "parties" or _is_declared(p.through.layout):
        return
    if p.through.layout.get("fit") == "federated" and _has_noise(p):
        yield Conflict(
            "guard",
            "Noise claims an ε, which does not cover the sums of a federated preparation of tables",
            "Declare mean and std in [data], or set fit = 'party' there.",
        )


def _runtime(p: Plan) -> Iterator[Conflict]:
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


def _resume(p: Plan) -> Iterator[Conflict]:
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


# ------------------------------------------------------------------------------------------------- the model


def _other_vectors(layout: Layout) -> list[str]:
    """Return what clients send in addition to the update of the model."""
    return [name for name in layout.shapes if name not in layout.known and name != "delta"]


def _batch_loss(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    if p.private is not None and task.is_batch_loss:
        yield Conflict(
            "loss",
            "it returns one number for a batch, and DP-SGD clips the gradient of each row",
            "Return a loss per row, or leave out private.",
        )
    if p.objective.is_own and p.fed.classes is not None and p.runtime != "cohort" and len(task.x):
        y, out = task.y[:2], task.predict(start["w"], task.x[:2], start.get("buffers"))
        if p.objective.outputs.columns or tuple(classes_last(out, y).shape) != (*y.shape, p.fed.classes):
            yield Conflict(
                "loss",
                f"parties report counts by class, and the model returns {tuple(out.shape[1:])} numbers for "
                f"{p.fed.classes} classes",
                "Use runtime='cohort', or give the targets as numbers (regression=True).",
            )


def _paced_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    """A pace that mixes models needs an algorithm whose clients send models."""
    if p.pace is not None and p.pace.sends_models and (others := _other_vectors(layout())):
        yield Conflict(
            "pace",
            f"{_name(p.pace)} mixes models, and clients of {_name(p.algorithm)} send {others[0]!r}",
            "Use FedAvg or FedProx with it, or FedBuff, which works on updates.",
        )


def _aggregated_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    """A rule that cannot combine what the clients send, or does not know such a model: it raises itself."""
    if p.aggregate != Mean():
        p.aggregate.with_task(task, [p.fed.test.x])
        p.aggregate.check_uploads(layout().shapes, tuple(start["w"].shape))
    yield from ()


def _gossip_model(p: Plan, task: Task, start: State, layout: Callable[[], Layout]) -> Iterator[Conflict]:
    state = p.algorithm.server_state(start["w"]) or p.algorithm.client_state(start["w"])
    if isinstance(p.topology, Gossip) and (state or _other_vectors(layout())):
        yield Conflict(
            "gossip",
            f"{_name(p.algorithm)} needs a server, and here there is none",
            "Use FedAvg, LocalSGD or FedProx: they need local steps only.",
        )


def _running_statistics(
    p: Plan, task: Task, start: State, layout: Callable[[], Layout]
) -> Iterator[Conflict]:
    norms = [m for m in task.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if any(m.track_running_stats and m.momentum is None for m in norms):
        yield Conflict(
            "model",
            "a batch norm with momentum=None averages over all batches so far, which parties do not count",
            "Give it a momentum, like the default of 0.1.",
        )
    if "buffers" in start and _has_noise(p):
        yield Conflict(
            "model",
            "it has running statistics, and noise would make a variance negative",
            "Use GroupNorm or LayerNorm.",
        )


ENTRIES: tuple[Callable[[Plan], Iterator[Conflict]], ...] = (
    _single_updates,
    _aggregation,
    _adversaries,
    _selection,
    _hidden_sums,
    _division,
    _gossip,
    _sampling,
    _pace,
    _speed,
    _hierarchy,
    _private,
    _preparation,
    _objective,
    _own_metrics,
    _own_loop,
    _own_optimizer,
    _cross_validation,
    _model_kind,
    _judging,
    _patience,
    _runtime,
    _too_few_updates,
)
MODEL_ENTRIES: tuple[Callable[[Plan, Task, State, Callable[[], Layout]], Iterator[Conflict]], ...] = (
    _batch_loss,
    _aggregated_model,
    _paced_model,
    _gossip_model,
    _running_statistics,
)

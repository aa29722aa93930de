"""What a party computes: privacy of its rows, losses, its own loop, optimizer and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...algorithms import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedLBFGSCV, FedYogi
from ...algorithms.solvers import OwnOptimizer
from ...engine.losses import CLASSIFICATION, LABELS, REGRESSION
from ...own_code import OwnLoss
from ...topologies import Gossip, Hierarchy
from ..train import BALANCED, CLASS_METRICS, REGRESSION_METRICS
from .entry import Conflict, has_noise, is_declared, layout_of, name_of

if TYPE_CHECKING:
    from ...jobs.train.plan import Plan

# whose clients only train and send the update, so that a party's own loop can do it
LOOP_ALGORITHMS = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)


def private(p: Plan) -> Iterator[Conflict]:
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
    if p.runtime == "parties" and not is_declared(p.through.layout) and not layout_of(p).get("fit_epsilon"):
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


def objective(p: Plan) -> Iterator[Conflict]:
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
    if has_noise(p) or p.private is not None or p.fed.spent is not None or layout_of(p).get("fit_epsilon"):
        yield Conflict(
            "class_weight",
            "'balanced' needs the exact label counts of all parties together, which no ε covers",
            "Give weights by label: class_weight={'ill': 4, 'healthy': 1}.",
        )


def cross_validation(p: Plan) -> Iterator[Conflict]:
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


def own_loop(p: Plan) -> Iterator[Conflict]:
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
            f"the local steps of {name_of(p.algorithm)} are tacit's own, and here a script trains",
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


def own_optimizer(p: Plan) -> Iterator[Conflict]:
    if isinstance(p.algorithm.solver, OwnOptimizer) and p.runtime not in ("cohort", "inprocess"):
        yield Conflict(
            "optimizer",
            "a function stays in this process, and parties are in others",
            "Give a name, a class of torch.optim, or a solver.",
        )


def own_metrics(p: Plan) -> Iterator[Conflict]:
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

"""How models on tables are trained where the options leave it open.

The values were chosen on tables other than those of `benchmarks/tables.py`, which reports them.
docs/how-to-learn-from-tables.md describes the procedure.

- Linear models: FedLBFGSCV. The mean of the parties' gradients is the gradient of the pooled rows, so unequal
  parties do not matter, and 30 rounds end at the optimum. λ = c/n, for n training rows of all parties and c
  from cross-validation on them.
- Linear models with another algorithm or with a guard: λ = 10/n. A real party does not know n. With n_k rows
  of its own and K parties it takes λ_k = 10/(K·n_k), and the mean by rows, Σ (n_k/n)·λ_k, is 10/n.
- Linear models with noise: λ = 0.001, because 10/n would tell how many rows ε hides.
- Networks: one local step and Adam at the server. The mean of the parties' steps is a step on a batch of the
  pooled rows, so parties do not drift apart, whatever their sizes. Early stopping by the loss of held-out
  rows ends a run. A perceptron is four of them side by side (`models.MLP(members=4)`), each of which keeps
  the weights of its own best round.
- Networks with embeddings: the same without a penalty, and with a smaller τ. The gradient of a category that
  few rows have is small: next to it, λ = 0.003 or τ = 0.0001 would keep its embedding from being learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import algorithms, models
from ...aggregate import Mean
from ...algorithms.fedlbfgscv import FEWEST_ROWS, PENALTIES
from ...algorithms.types import Algorithm, State
from ...config.train import TrainConfig
from ...data.federation import Federation
from ...data.recipe import Recipe
from ...guard import Noise
from .elsewhere import Deployed
from .party_rows import read_layout

if TYPE_CHECKING:
    from .plan import Plan

L2 = 1e-3  # λ of linear models on tables, where it does not follow from the number of rows
L2_ROWS = 10.0  # λ·n of linear models on tables, where it is not cross-validated
LINEAR: dict[str, Any] = {
    "algorithm": algorithms.FedLBFGS(),
    "rounds": 30,
    "batch_size": 256,  # limits the memory of a full gradient, and changes nothing else
    "evaluate_every": 5,
}
NETWORK: dict[str, Any] = {
    "algorithm": algorithms.FedAdam(lr=0.1, server_lr=0.003, tau=1e-4),
    "rounds": 500,
    "local_steps": 1,
    "batch_size": 256,
    "l2": 3e-3,  # λ
    "evaluate_every": 5,
    "patience": 20,
    "stop_by": "loss",  # of a few dozen rows, accuracy and AUC are too coarse to compare rounds by
}
EMBEDDINGS: dict[str, Any] = NETWORK | {
    "algorithm": algorithms.FedAdam(lr=0.1, server_lr=0.003, tau=1e-6),
    "l2": 0.0,
}
MEMBERS = 4  # networks of a perceptron, where each stops by its own loss
BLIND_ROUNDS = 60  # of a network without held-out rows to stop by: little overfit, nearly trained
# an option that says how to train: whoever gives one of them chooses all
CHOICES = ("algorithm", "rounds", "local_epochs", "local_steps", "batch_size")


def is_linear(model: Any) -> bool:
    """Whether a model is one of tacit's linear models."""
    spec = model.spec if isinstance(model, models.Pretrained) else model
    return spec in ("logistic", "linear") or isinstance(spec, models.Logistic | models.Linear)


def is_network(model: Any) -> bool:
    """Whether a model is one of tacit's networks for tables."""
    spec = model.spec if isinstance(model, models.Pretrained) else model
    return spec in ("mlp", "table_network") or isinstance(spec, models.MLP | models.TableNetwork)


def recipe_of(fed: Federation, runtime: Any) -> Recipe | None:
    """Return how the rows of a federation are encoded, if they are from a table; at real parties, too."""
    if fed.pipeline is not None:
        return fed.pipeline.recipe
    if isinstance(runtime, Deployed) and runtime.layout:
        return read_layout(runtime.layout).recipe
    return None


def choose_model(options: Mapping[str, Any], fed: Federation) -> dict[str, Any]:
    """Return the options with a model: the given one, or the one to begin with for these rows."""
    if options.get("model") is not None:
        return dict(options)
    if recipe_of(fed, options.get("runtime")) is None:
        return {**options, "model": models.MLP()}
    return {**options, "model": models.Linear() if fed.classes is None else models.Logistic()}


def table_defaults(config: TrainConfig, fed: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run on a table that `given`, the user's options, leave open.

    Nothing where rows are not from a table, or where the user says how to train.
    """
    chosen = {name for name, value in given.items() if name != "algorithm" or value is not None}
    if any(name in chosen for name in CHOICES) or not _is_plain(config):
        return {}
    recipe = recipe_of(fed, config.runtime)
    if recipe is None:
        return {}
    preset: dict[str, Any] = {}
    if is_network(config.model):
        preset = dict(EMBEDDINGS if _has_embeddings(config.model, fed, recipe) else NETWORK)
    elif is_linear(config.model) and config.per_round in (None, len(fed)):
        preset = dict(LINEAR)
        if not config.guard and config.l2 is None:  # a guard bounds one gradient, not those of all folds
            preset["algorithm"] = algorithms.FedLBFGSCV()
    has_held = isinstance(config.runtime, Deployed) or len(fed.held.index)
    is_never_evaluated = "evaluate_every" in chosen and not config.evaluate_every
    is_unlimited = "patience" in chosen and config.patience is None
    if "patience" in preset and (not has_held or is_never_evaluated or config.landscape or is_unlimited):
        # nothing to stop by, or to draw around; the test set is for judging
        preset = {k: v for k, v in preset.items() if k not in ("patience", "stop_by")}
        preset["rounds"] = BLIND_ROUNDS
    if "stop_by" in preset:
        preset["stop_by"] = _stop_by(config, fed)
    if "patience" in preset and (config.stop_by if "stop_by" in chosen else preset["stop_by"]) == "loss":
        several = with_members(config.model)
        chosen -= {"model"} if several != config.model else set()
        preset["model"] = several
    return {name: value for name, value in preset.items() if name not in chosen}


def with_members(model: Any) -> Any:
    """Return a perceptron as several networks, unless it says how many it is; other models as they are."""
    if model == "mlp":
        model = models.MLP()
    if type(model) is models.MLP and model.members is None:
        return replace(model, members=MEMBERS)
    return model


def default_l2(config: TrainConfig, fed: Federation) -> float | None:
    """Return λ where it is left open: of linear models on tables, else 0.

    None: every real party computes its own from its rows (`party_l2`).
    """
    is_cross_validated = isinstance(config.algorithm, algorithms.FedLBFGSCV)
    if is_cross_validated or not is_linear(config.model) or recipe_of(fed, config.runtime) is None:
        return 0.0
    if config.private is not None or any(isinstance(stage, Noise) for stage in config.guard):
        return L2
    return None if isinstance(config.runtime, Deployed) else L2_ROWS / int(fed.train.sizes.sum())


def party_l2(rows: int, parties: int) -> float:
    """Return λ_k of a real party: the mean of all, weighted by rows, is L2_ROWS / (all rows)."""
    return L2_ROWS / (parties * max(1, rows))


def with_parties(algorithm: Algorithm, parties: int) -> Algorithm:
    """Return an algorithm that knows how many parties share its penalty, if it has one."""
    if isinstance(algorithm, algorithms.FedLBFGSCV) and algorithm.parties is None:
        return replace(algorithm, parties=float(parties))
    return algorithm


def among_parties(algorithm: Algorithm, parties: int) -> Algorithm:
    """Return the algorithm of a run for a run with only some of its parties."""
    if isinstance(algorithm, algorithms.FedLBFGSCV):
        return replace(algorithm, parties=float(parties))
    return algorithm


def for_one_party(p: Plan, algorithm: Algorithm, rows: int) -> dict[str, Any]:
    """Return the algorithm and λ with which these rows, all of them at one place, are trained on."""
    if isinstance(algorithm, algorithms.FedLBFGSCV):
        return {"algorithm": among_parties(algorithm, 1), "l2": 0.0}
    follows = not p.is_l2_given and p.l2 == L2_ROWS / int(p.fed.train.sizes.sum())
    return {"algorithm": algorithm, "l2": L2_ROWS / rows if follows else p.l2}


def describe_penalty(algorithm: algorithms.FedLBFGSCV, state: State) -> str:
    """Return the note that says which λ a run chose; `state` is as it is saved."""
    losses = state["server.losses"]
    if not bool(losses.any()):
        return (
            f"l2 = {PENALTIES[0]:g}/n for n training rows: every party has fewer than "
            f"{algorithm.folds * FEWEST_ROWS} of them, too few for cross-validation."
        )
    among = f"{len(PENALTIES)} values from {min(PENALTIES):g}/n to {max(PENALTIES):g}/n"
    return (
        f"l2 = {PENALTIES[int(algorithm.choose(losses))]:g}/n for n training rows, chosen among {among} by "
        f"{algorithm.folds}-fold cross-validation on these rows."
    )


def _has_embeddings(model: Any, fed: Federation, recipe: Recipe) -> bool:
    """Whether a network embeds columns of this table."""
    spec = model.spec if isinstance(model, models.Pretrained) else model
    fitted = fit_model(spec, fed, recipe)
    return isinstance(fitted, models.TableNetwork) and bool(fitted.starts)


def _stop_by(config: TrainConfig, fed: Federation) -> str:
    """Return the metric by which a network stops: the one asked for, or the loss if that is minimized."""
    if config.metric is not None:
        return config.metric
    if config.class_weight is None and config.loss in (None, "cross_entropy", "mse"):
        return str(NETWORK["stop_by"])
    return "r2" if fed.classes is None else "auc"


def _is_plain(config: TrainConfig) -> bool:
    """Whether rounds are synchronous, with one server and without noise: what the values were chosen for."""
    return (
        config.pace is None
        and config.topology is None
        and config.private is None
        and not config.adversaries
        and config.select is None
        and config.aggregate == Mean()
        and not any(isinstance(stage, Noise) for stage in config.guard)
    )


def fit_model(model: Any, fed: Federation, recipe: Recipe | None) -> Any:
    """Return the model that fits the data: linear regression for numbers, embeddings for a table's columns.

    A regression with model='logistic' is linear regression, and is called so everywhere.
    """
    if fed.classes is None and (model == "logistic" or isinstance(model, models.Logistic)):
        return models.Linear()
    if model == "table_network":
        model = models.TableNetwork()
    if not isinstance(model, models.TableNetwork) or model.starts or recipe is None:
        return model
    at, blocks = len(recipe.numeric), []
    for values in recipe.categories.values():
        blocks.append((at, len(values)))
        at += len(values)
    return model.with_blocks(blocks)

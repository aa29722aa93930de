"""A job as a contract: everything that affects what a party computes or sends, in one canonical form with one
digest.

A server offers its contract as text. A party compares all of it with the contract its owner agreed to, before
it reads a row or builds a model. Where the owner agreed to no particular job, `Limits` apply. A mismatch is
answered with a fixed sentence; only the owner learns what differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import aggregate, guard, models, own_code, pace, selection
from ...config.train import (
    BALANCED,
    SIMULATED,
    algorithm_from_table,
    algorithm_table,
    loss_name,
    metrics_table,
)
from ...config.train import SETTINGS as TRAIN_SETTINGS
from ...engine.own_metrics import OwnMetrics, is_object
from ...errors import BadJob, TacitError
from ...own_code import Approved, OwnLoss
from ...parameter_shapes import NAME as SHAPES
from ...parameter_shapes import ParameterShapes
from ...parameters import from_table, to_table, whole
from . import preparing
from .elsewhere import Deployed, Elsewhere
from .plan import Plan, make_plan
from .preparing import program_of

FORMAT = 6
MOST_BYTES = (
    1 << 20
)  # of a contract's text: a table with thousands of columns and categories takes a tenth of it
MOST_FEATURES, MOST_CLASSES = 10**8, 10**6  # checked before anything is built from them
SETTINGS = tuple(name for name in TRAIN_SETTINGS if name not in SIMULATED)
KEYS = (
    "format",
    "federation",
    "server",
    "above",
    "parties",
    "data",
    "preparation",
    "features",
    "classes",
    "model",
    "algorithm",
    "train",
    "guard",
    "private",
    "pace",
    "losses",
    "scores",
    "client",
    "metrics",
)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


class NotAgreed(BadJob):
    """The server's job is not one that this party's owner agreed to."""

    outside = "it has not agreed to this job"


@dataclass(frozen=True)
class Contract:
    """The canonical tables of a job. Two parties run the same job exactly if their contracts have the same
    digest.
    """

    tables: Mapping[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.tables, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def of(
        cls,
        p: Plan,
        layout: Mapping[str, Any] | None,
        server: str,
        shape: Sequence[int],
        above: str | None = None,
    ) -> Contract:
        """The contract of a checked plan. A model that is code has no table: each party has its own, by its
        own configuration. `above` is the federation that the server sends the model to.
        """
        model = models.ALL[p.model]() if isinstance(p.model, str) and p.model in models.ALL else p.model
        program = program_of(p, layout)
        epochs = p.local_epochs[0] if len(set(p.local_epochs)) == 1 else list(p.local_epochs)
        tables = {
            "format": FORMAT,
            "federation": p.fed.name,
            "server": server,
            "above": above,
            "parties": list(p.fed.parties),
            "data": None if layout is None else dict(layout),
            # the steps that a party answers before round 0, of the recipe in `data`
            "preparation": preparing.to_table(program),
            "features": list(shape),
            "classes": p.fed.classes or 0,
            "model": _model_table(model),
            "algorithm": algorithm_table(p.algorithm),
            "train": {name: getattr(p, name) for name in SETTINGS}
            | {"local_epochs": epochs, "loss": loss_name(p.loss)},
            "guard": [to_table(stage) for stage in p.guard],
            "private": None if p.private is None else to_table(p.private),
            "pace": None if p.pace is None else to_table(p.pace),
            # of the rules that choose parties and combine updates, which are the server's: whether parties
            # state losses, or scores and then one model
            "losses": p.asks_losses,
            "scores": p.picks,
            # parties train with scripts of their own, and agree on this
            "client": None if p.client is None else to_table(p.client.agreed),
            # a user's own, which parties compute of their held-out rows
            "metrics": None if p.party_rules.own is None else metrics_table(p.party_rules.own),
        }
        return cls(json.loads(json.dumps(tables)))  # tuples become lists, as they are on the wire

    @classmethod
    def read(cls, text: str) -> Contract:
        """A contract as another party wrote it. Only that it is one is checked here: `plan` checks every
        value.
        """
        if len(text) > MOST_BYTES:
            raise NotAgreed(f"the server's contract has {len(text)} bytes; at most {MOST_BYTES} are read.")
        try:
            tables = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise NotAgreed(
                f"the server's contract is not JSON: {error}. Do both run the same version of tacit?"
            ) from None
        if (
            not isinstance(tables, dict)
            or set(tables) != set(KEYS)
            or tables["format"] != FORMAT
            or not isinstance(tables["train"], dict)
        ):
            raise NotAgreed(
                "the server's contract does not have the entries of a contract. Do both run the same "
                "version of tacit?"
            )
        if tables["above"] is not None and not isinstance(tables["above"], str):
            raise NotAgreed(f"the server's contract: above is {tables['above']!r}; it must be text.")
        names, shape, classes = tables["parties"], tables["features"], tables["classes"]
        texts = (
            isinstance(names, list)
            and all(isinstance(name, str) and name for name in names)
            and len(set(names)) == len(names) > 0
        )
        sizes = (
            isinstance(shape, list)
            and 0 < len(shape) <= 8
            and all(type(n) is int and n > 0 for n in shape)
            and math.prod(shape) <= MOST_FEATURES
        )
        if not texts or not sizes or type(classes) is not int or not 0 <= classes <= MOST_CLASSES:
            raise NotAgreed(
                "the server's contract has parties, features or classes that no job has. Do both run the "
                "same version of tacit?"
            )
        return cls(tables)

    def plan(
        self,
        model: Any = None,
        own: Mapping[str, Any] | None = None,
        approved: Approved | None = None,
    ) -> Plan:
        """The plan this contract describes, every value checked as those of a job file are. `model` takes the
        place of one that is code; `own` is code of this machine's user, by option; `approved` is what the
        owner approved, and all that a contract can name.
        """
        t = self.tables
        try:
            own = dict(own or {})
            if own_code.is_code(_entry(t["algorithm"], "name")) and "algorithm" not in own:
                own["algorithm"] = (approved or Approved()).load(
                    _entry(t["algorithm"], "name"), _entry(t["algorithm"], "digest")
                )
            if t["model"] is None and model is None:
                raise NotAgreed(
                    "the job's model is code, which a server cannot send. Use one of tacit's own models."
                )
            if isinstance(t["train"].get("loss"), dict) and "loss" not in own:
                own["loss"] = loss_from_code(t["train"]["loss"], approved, "contract, loss")
            if t["metrics"] is not None and "metrics" not in own:
                own["metrics"] = metrics_from_code(t["metrics"], approved, "contract, metrics")
            labels = None if not t["classes"] else tuple(map(str, range(t["classes"])))
            fed = Elsewhere.of(t["federation"], tuple(t["parties"]), tuple(t["features"]), labels, ())
            if not isinstance(t["losses"], bool) or not isinstance(t["scores"], bool):
                raise NotAgreed("losses and scores must be true or false.")
            p = make_plan(
                fed,
                model=model if t["model"] is None else _read_model(t["model"], t["client"], approved),
                algorithm=algorithm_from_table(t["algorithm"], own.get("algorithm"), "contract, algorithm"),
                runtime=Deployed(None, t["data"] or {}),
                guard=[from_table(stage, guard.ALL, "contract, guard") for stage in t["guard"]] or None,
                private=t["private"],
                pace=None if t["pace"] is None else from_table(t["pace"], pace.ALL, "contract, pace"),
                select=selection.PowerOfChoice(len(t["parties"])) if t["losses"] else None,
                aggregate=aggregate.Best() if t["scores"] else None,
                client=t["client"],
                **{name: t["train"][name] for name in SETTINGS}
                | {name: own[name] for name in ("loss", "metrics") if name in own},
            )
            same = Contract.of(p, t["data"], t["server"], t["features"], t["above"]).text == self.text
        except (TacitError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise NotAgreed(f"the server's contract cannot be used: {error}") from error
        if not same:
            raise NotAgreed(
                "the server's contract is not in canonical form: it has entries that nothing reads, or "
                "values left out. Do both run the same "
                "version of tacit?"
            )
        return p

    def differences(self, other: Contract) -> list[str]:
        """Where two contracts differ, with the value here and the value there, like "train.batch_size
        (agreed: 32, offered: 1)".
        """
        found = []
        for key in KEYS:
            mine, theirs = self.tables[key], other.tables.get(key)
            if isinstance(mine, dict) and isinstance(theirs, dict):
                found += [
                    _difference(f"{key}.{k}", mine.get(k), theirs.get(k))
                    for k in sorted({*mine, *theirs})
                    if mine.get(k) != theirs.get(k)
                ]
            elif mine != theirs:
                found.append(_difference(key, mine, theirs))
        return found

    def describe(self) -> str:
        """One line for the party's owner."""
        t, train = self.tables, self.tables["train"]
        batch = "whole batches" if train["batch_size"] is None else f"batches of {train['batch_size']}"
        stages = (
            " → ".join(_stage(stage) for stage in t["guard"])
            or "none: the server sees each update in the clear"
        )
        unit = "person" if t["data"] and t["data"].get("group") else "row"
        rows = "" if t["private"] is None else f"; {_row_privacy(t['private'], unit)}"
        if least := preparing.fewest_rows(t["data"]):
            what = "contributes none" if t["data"].get("small") == "drop" else "does not take part"
            rows += f"; a party with fewer than {least} rows {what}"
        if t["data"] and t["data"].get("test_after"):
            rows += f"; rows of {t['data']['test_after']} and later are held out"
        for key, what in (
            ("drop_rows", "rows are left out by values of"),
            ("spellings", "values are read as others in"),
        ):
            if columns := (t["data"] or {}).get(key):
                rows += f"; {what} {', '.join(map(ascii, columns))}"
        if t["preparation"] is not None and "epsilon" in t["preparation"]:
            prepared = t["preparation"]
            rows += (
                "; statistics of the tables by a hidden sum with every party's noise, ε = "
                f"{prepared['epsilon']:g} at δ = {prepared['delta']:g} for each {prepared['unit']}"
            )
        elif t["preparation"] is not None:
            rows += (
                f"; statistics of the tables by {t['preparation']['steps']} hidden sums over all parties"
                + (", with how many rows have each label" if train["class_weight"] == BALANCED else "")
                + (", from which each of the two learns the other's part" if len(t["parties"]) == 2 else "")
            )
        model = "own code" if t["model"] is None else t["model"].get("name")
        if isinstance(train["loss"], dict):
            model += f", loss {train['loss'].get('name')}"
        if t["metrics"] is not None:
            rows += "; of held-out rows also " + ", ".join(
                f"{name} by {table.get('name')}" for name, table in t["metrics"].items()
            )
        networks = (t["model"] or {}).get("members") or 1
        if networks > 1 and train["patience"] is not None and train["stop_by"] == "loss":
            rows += (
                f"; of held-out rows also the loss of each of the model's {networks} networks, and one more "
                "evaluation at the end"
            )
        above = "" if t["above"] is None else f", which sends the model to the federation {t['above']!r}"
        return (
            f"contract {self.digest[:12]} of {t['server']!r} in {t['federation']!r}{above}: "
            f"{t['algorithm'].get('name')}, model {model}, "
            f"{train['rounds']} rounds, {batch}, {len(t['parties'])} parties; guard: {stages}{rows}"
        )


def _model_table(model: Any) -> dict[str, Any] | None:
    """A model as a table; None if it is code."""
    if isinstance(model, ParameterShapes | models.OwnModel):
        return model.as_table()
    return models.table_of(model) if type(model) in models.ALL.values() else None


def _read_model(table: Any, client: Any, approved: Approved | None) -> Any:
    """The model of a table: one of tacit's, approved code, or only shapes where parties have scripts."""
    if own_code.is_code(_entry(table, "name")):
        return model_from_code(table, approved, "contract, model")
    known = models.ALL if client is None else {**models.ALL, SHAPES: ParameterShapes}
    return from_table(table, known, "contract, model")


def model_from_code(table: Mapping[str, Any], approved: Approved | None, where: str) -> models.OwnModel:
    """The model of a table that names code, if the owner approved it; nothing else is imported."""
    if unknown := set(table) - {"name", "digest"}:
        raise BadJob(f"{where}: code takes a name and a digest, and no {sorted(unknown)[0]!r}.")
    factory = (approved or Approved()).load(table["name"], table.get("digest"))
    if not callable(factory):
        raise BadJob(f"{where}: {table['name']} is {type(factory).__name__}; it must be a function.")
    return models.OwnModel(table["name"], table["digest"], factory)


def _load_code(table: Any, approved: Approved | None, where: str) -> Any:
    if not isinstance(table, Mapping) or set(table) != {"name", "digest"}:
        raise BadJob(f"{where}: code takes a name and a digest, as `tacit code` prints them.")
    return (approved or Approved()).load(table["name"], table["digest"])


def loss_from_code(table: Any, approved: Approved | None, where: str) -> OwnLoss:
    """The loss of a table that names code, if the owner approved it; nothing else is imported."""
    loss = _load_code(table, approved, where)
    if not callable(loss) or isinstance(loss, type):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else f"a {type(loss).__name__}"
        raise BadJob(f"{where}: {table['name']} is {what}; it must be a function of outputs and targets.")
    return OwnLoss(table["name"], table["digest"], loss)


def metrics_from_code(tables: Any, approved: Approved | None, where: str) -> OwnMetrics:
    """The metrics of a table that names code for each, if the owner approved all of it."""
    if not isinstance(tables, Mapping) or not tables:
        raise BadJob(f"{where}: write a name for each, with the code's name and digest.")
    found = {name: _load_code(table, approved, f"{where}.{name}") for name, table in tables.items()}
    for name, metric in found.items():
        if isinstance(metric, type) or not (callable(metric) or is_object(metric)):
            raise BadJob(
                f"{where}.{name}: {tables[name]['name']} is {metric!r:.60}; it must be a function of outputs "
                "and targets, or an object of torchmetrics."
            )
    return OwnMetrics(found, {name: dict(table) for name, table in tables.items()})


def _entry(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, Mapping) else None


def _difference(name: str, mine: Any, theirs: Any) -> str:
    """Texts of an untrusted server are shortened, and control characters are escaped."""

    def shown(value: Any) -> str:
        text = json.dumps(value, sort_keys=True)
        return text if len(text) <= 80 else text[:77] + "..."

    return f"{name} (agreed: {shown(mine)}, offered: {shown(theirs)})"


def _stage(stage: Mapping[str, Any]) -> str:
    """A guard's stage with its settings, like "Noise(epsilon=2.0, delta=1e-05)"; those that are not set are
    left out.
    """
    settings = ", ".join(f"{k}={v}" for k, v in stage.items() if k != "name" and v is not None)
    return f"{stage['name']}({settings})"


def _row_privacy(private: Mapping[str, Any], unit: str) -> str:
    """What a contract promises for each row, or person, of a party."""
    amount = (
        f"ε ≤ {private['epsilon']:g}"
        if private.get("epsilon") is not None
        else f"noise of {private['noise_multiplier']:g} times the clipping norm, taken of "
        f"{private['public_size']:,} {'people' if unit == 'person' else 'rows'},"
    )
    whom = "of its training rows" if unit == "row" else "person with all their training rows there"
    return f"DP-SGD at each party: {amount} at δ = {private['delta']:g} for each {whom}"


@dataclass(frozen=True)
class Limits:
    """What a party accepts whose owner agreed to no particular job."""

    rounds: int = whole(1000, least=1, doc="most rounds of a job")
    batch_size: int = whole(8, least=1, doc="fewest rows in a batch: an update from one row shows that row")
    min_rows: int = whole(10, least=1, doc="fewest held-out rows on which this party reports counts")
    parameters: int = whole(50_000_000, least=1, doc="most parameters of a model")
    classes: int = whole(1000, least=2, doc="most classes: counts of an evaluation grow with their square")
    local_epochs: int = whole(100, least=1, doc="most local epochs of a round")
    local_steps: int = whole(10_000, least=1, doc="most local steps of a round")
    contracts: int = whole(
        3, least=1, doc="most different jobs on the same data: each is a new chance to ask"
    )

    def check_contract(self, contract: Contract, p: Plan, accepted: Sequence[Mapping[str, Any]]) -> None:
        train = contract.tables["train"]
        sizes = {
            "classes": (contract.tables["classes"], self.classes),
            "local epochs": (max(p.local_epochs), self.local_epochs),
            "local steps": (p.local_steps or 0, self.local_steps),
        }
        for what, (value, most) in sizes.items():
            if value > most:
                raise NotAgreed(
                    f"the server's job has {value} {what}; without an agreed job at most {most} are "
                    f"accepted. {AGREE}"
                )
        others = {entry["contract"] for entry in accepted if not entry["agreed"]} - {contract.digest}
        if len(others) >= self.contracts:
            raise NotAgreed(
                f"this party has accepted {len(others)} other jobs without a job file, which is the limit. "
                f"{AGREE}"
            )
        hid = [entry["hiding"] for entry in accepted if entry["hiding"]]
        now = next((stage for stage in contract.tables["guard"] if guard.ALL[stage["name"]].hides), None)
        if hid and now not in hid:
            how = "hides updates in another way" if now else "asks for single updates in the clear"
            raise NotAgreed(
                f"the server's job {how}, and this party has taken part in hidden sums before. {AGREE}"
            )
        if train["rounds"] > self.rounds:
            raise NotAgreed(
                f"the server's job has {train['rounds']} rounds; without an agreed job at most "
                f"{self.rounds} are accepted. {AGREE}"
            )
        if train["batch_size"] is not None and train["batch_size"] < self.batch_size:
            raise NotAgreed(
                f"the server's job has a batch size of {train['batch_size']}; without an agreed job at "
                f"least {self.batch_size} is required, "
                f"because an update from few rows shows them. {AGREE}"
            )
        if train["min_rows"] < self.min_rows:
            raise NotAgreed(
                f"the server's job has min_rows = {train['min_rows']}; without an agreed job at least "
                f"{self.min_rows} is asked for, because counts "
                f"on few rows show them. {AGREE}"
            )
        if contract.tables["metrics"] is not None:
            raise NotAgreed(
                "the server's job asks for metrics that are code; without an agreed job none are sent, "
                "because code that was approved for another use may tell of single rows. "
                f"{AGREE}"
            )
        if train["subgroups"]:
            raise NotAgreed(
                "the server's job asks for counts by subgroup ("
                f"{', '.join(map(str, train['subgroups']))[:80]}); without an agreed job none are sent, "
                f"because a narrow subgroup is a single person. {AGREE}"
            )
        if program_of(p, contract.tables["data"]) is not None:
            raise NotAgreed(
                "the server's job sums statistics of the parties' columns before training; without an agreed "
                "job none are sent, because a category that the server names may be a single person. "
                f"{AGREE}"
            )
        if (contract.tables["data"] or {}).get("test_after"):
            raise NotAgreed(
                "the server's job chooses the held-out rows by their time; without an agreed job it may not, "
                "because two such choices differ by the rows of a few days. "
                f"{AGREE}"
            )
        if group := (contract.tables["data"] or {}).get("group"):
            raise NotAgreed(
                f"the server's job chooses the held-out rows by the column {group!r:.60}; without an agreed "
                "job it may not, because training rows and held-out rows would be those of values that the "
                f"server is curious about. {AGREE}"
            )
        for key, what in (
            ("drop_rows", "leaves out rows by their values"),
            ("spellings", "reads values as others"),
        ):
            if columns := (contract.tables["data"] or {}).get(key):
                raise NotAgreed(
                    f"the server's job {what}, in the column {next(iter(columns))!r:.60} ({key}); without an "
                    "agreed job it may not, because two such choices differ by the rows of one value. "
                    f"{AGREE}"
                )
        with torch.device("meta"):  # nothing is allocated
            module = models.build(
                p.model, tuple(contract.tables["features"]), contract.tables["classes"] or 1, p.seed
            )
        size = sum(q.numel() for q in (*module.parameters(), *module.buffers()))
        if size > self.parameters:
            raise NotAgreed(
                f"the server's model has {size:,} parameters; without an agreed job at most "
                f"{self.parameters:,} are accepted. {AGREE}"
            )


AGREE = "Nothing was read or sent. To accept this job, give its job file to `tacit party`."


@dataclass(frozen=True)
class Agreement:
    """What a party's owner agreed to: one contract (`agreed`, read from the file `source`), or any contract
    within `limits`.
    """

    federation: str
    server: str
    parties: tuple[str, ...]
    agreed: Contract | None = None
    source: str = ""
    limits: Limits = dataclasses.field(default_factory=Limits)
    lifetime: float | None = None  # most ε of all private releases about the party's data (jobs/lifetime.py)
    approved: Approved = dataclasses.field(default_factory=Approved)  # code that the owner approved
    read_template: Callable[[Path], Mapping[str, Any]] | None = None  # the contract's tables of a job file
    above: str | None = None  # the federation that its own is under, by its kit

    def check_offer(self, offered: Contract, accepted: Sequence[Mapping[str, Any]] = ()) -> Plan:
        """The plan of an offered contract, or NotAgreed. `accepted` are contracts this party accepted before:
        {"contract", "hiding", "agreed"} each.
        """
        if self.agreed is not None:
            if offered.text != self.agreed.text:
                where = "; ".join(self.agreed.differences(offered))
                raise NotAgreed(
                    f"the server's job differs from {self.source}, to which this party agreed, in {where}. "
                    "Nothing was read or sent; ask whoever "
                    "runs the server."
                )
            return offered.plan(approved=self.approved)
        ours = {
            "federation": self.federation,
            "server": self.server,
            "above": self.above,
            "parties": list(self.parties),
        }
        wrong = [name for name, value in ours.items() if offered.tables[name] != value]
        if wrong:
            what = "federation above" if wrong[0] == "above" else wrong[0]
            raise NotAgreed(f"the server's job names another {what} than this party's kit. {AGREE}")
        p = offered.plan(approved=self.approved)
        self.limits.check_contract(offered, p, accepted)
        return p

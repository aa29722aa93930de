"""Job files of `tacit split`, `ftl`, `regress`, `join` and `link`: settings, and a table for each party.

[split]                                       [parties.bank]            [parties.shop]
labels = "bank"                               file = "bank.csv"         file = "shop.csv"
epochs = 20                                   id = "id"                 id = "customer"
top = [16]                                    label = "default"         bottom = [16]
                                              bottom = [16]
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.recipe import IMPUTE, SCALINGS, UNSEEN, WINSORIZE
from ..data.table_files import check_reading, reading_in
from ..errors import BadJob, BadParameter
from ..mpc.glm_terms import FAMILIES, TIES
from ..parameters import bad, choice, component, from_fields, from_table, hold_to_type, real, whole
from ..protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ..protocols.splitnn_parts import MERGES
from . import toml
from .join_boost import JOIN_BOOST_OPTIONS

LEARNING_RATES = {"sgd": 0.1, "adam": 0.01}
OPTIMIZERS = tuple(LEARNING_RATES)
PATIENCE = 10  # epochs
RELAY_EPOCHS = 10  # without early stopping
SECURE = ("cut", "shared")


def _take(name: str, hint: Any) -> Any:
    return lambda value, where: hold_to_type(where, name, value, hint)


def _take_widths(name: str, least: int = 0) -> Any:
    def take(value: Any, where: str) -> Any:
        if (
            not isinstance(value, list)
            or len(value) < least
            or not all(isinstance(w, int) and not isinstance(w, bool) and w >= 1 for w in value)
        ):
            raise bad(where, name, value, "a list of widths, like [16]")
        return value

    return take


def _take_categories(value: Any, where: str) -> Any:
    names = list(value) if isinstance(value, dict | list) else None
    values = value.values() if isinstance(value, dict) else ()
    if (
        names is None
        or not all(isinstance(name, str) for name in names)
        or not all(isinstance(v, list) and v and all(isinstance(w, str) for w in v) for v in values)
    ):
        raise bad(
            where, "categories", value, 'a list of columns, or a table like {town = ["a", "b", "other"]}'
        )
    return value


def _take_guards(value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise bad(where, "guards", value, "a list of tables with a `name` each")
    for i, table in enumerate(value):
        from_table(table, ACTIVATIONS, f"{where}, guards[{i}]")
    return value


def _take_protect(value: Any, where: str) -> Any:
    from_table(value, GRADIENTS, f"{where}, protect")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutSettings:
    """What [split] and [ftl] have in common."""

    batch_size: int = whole(64, least=1, doc="rows in a step")
    seed: int = whole(0, least=0, doc="determines the order of the rows and the initial weights")
    guards: Any = component((), _take_guards, doc="guards of activations: tables with a name each")
    protect: Any = component(None, _take_protect, doc="guard of gradients: a table with a name")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSettings(CutSettings):
    """[split]: a network whose parts are held by different parties."""

    labels: str = component("", _take("labels", str), doc="the party with labels, if it is to be stated")
    merge: str = choice("concat", MERGES, doc="how the outputs of several bottoms are merged")
    top: Any = component((), _take_widths("top"), doc="widths of the layers before the output")
    epochs: int = whole(100, least=0, doc="passes over the rows, at most")
    patience: int = whole(
        PATIENCE,
        least=0,
        doc="epochs without a lower loss on validation rows after which training stops; the weights of the "
        "best epoch are kept; 0: all epochs",
    )
    optimizer: str = choice("adam", OPTIMIZERS, doc="optimizer of every part")
    lr: float | None = real(None, above=0, none=True, doc="learning rate; none: 0.01 for adam, 0.1 for sgd")
    momentum: float = real(0.0, least=0, doc="momentum of sgd")
    weight_decay: float = real(0.0, least=0, doc="weight decay")
    regression: bool = component(False, _take("regression", bool), doc="the label is a number")
    test_fraction: float = real(0.2, least=0, below=1, doc="share of the rows held out")
    join: str = choice(
        "inner",
        ("inner", "left"),
        doc="left: the label holder's rows of people the other party lacks are kept",
    )
    slices: int = whole(1, least=1, doc="slices of a batch, so that parties compute concurrently")
    every: int = whole(1, least=0, doc="epochs between evaluations; 0: only at the end")
    nopeek: float = real(0.0, least=0, doc="weight of the distance correlation in the loss")

    def check(self) -> None:
        if self.optimizer == "adam" and self.momentum:
            raise bad("splitnn", "momentum", self.momentum, "0 with adam, which has its own")
        if self.nopeek and self.slices != 1:
            raise bad("splitnn", "slices", self.slices, "1 with nopeek, which needs the whole batch")

    def optimizer_settings(self) -> dict[str, float]:
        """Return the arguments of the optimizer."""
        momentum = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        lr = LEARNING_RATES[self.optimizer] if self.lr is None else self.lr
        return {"lr": lr, "weight_decay": self.weight_decay, **momentum}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferSettings(CutSettings):
    """[ftl]: transfer between two parties with different columns."""

    secure: str = choice("cut", SECURE, doc="what crosses between the parties")
    width: int = whole(8, least=1, doc="numbers in a representation")
    epochs: int = whole(60, least=0, doc="joint passes over the shared rows")
    first_epochs: int = whole(100, least=0, doc="steps each party takes alone first")
    lr: float = real(0.01, above=0, doc="learning rate of Adam")
    weight_decay: float = real(0.03, least=0, doc="weight decay")
    gamma: float = real(1.0, least=0, doc="weight of the agreement of two representations of a shared row")
    own: float = real(1.0, least=0, doc="weight of the source's own labeled rows")
    rebuild: float = real(1.0, least=0, doc="weight of the target's autoencoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileParty:
    """[parties.NAME]: a party's own file, and how it is read. Parties need not agree on these keys."""

    file: str = component("", _take("file", str), doc="its table, relative to the job file")
    separator: str = component(
        "", _take("separator", str), doc="between the cells of its CSV file; none: detected"
    )
    decimal: str = component(
        "", _take("decimal", str), doc="decimal sign of its CSV file, '.' or ','; none: '.'"
    )
    encoding: str = component("", _take("encoding", str), doc="of its CSV file, such as cp1252; none: UTF-8")

    def check(self) -> None:
        check_reading("a party's file", **reading_in(vars(self)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableParty(FileParty):
    """[parties.NAME]: a party's own table."""

    id: str = component("", _take("id", str), doc="the id column")
    label: str = component("", _take("label", str), doc="the column to predict, at one party")
    drop: Any = component((), _take("drop", list[str]), doc="columns to leave out")
    categories: Any = component(
        (),
        _take_categories,
        doc="columns of codes, not numbers: a list, or a table with the values of each column",
    )
    missing: Any = component(
        (), _take("missing", list[str]), doc="columns that get an indicator of missing cells"
    )
    missing_codes: Any = component(
        None, _take("missing_codes", dict[str, list[Any]]), doc="values that mean missing, by column"
    )
    dates: Any = component(
        None, _take("dates", dict[str, list[str]]), doc="parts of dates that become features, by column"
    )
    scaling: str = choice("standard", SCALINGS, doc="how numbers are scaled")
    winsorize: str = choice(
        "auto",
        WINSORIZE,
        doc="whether numbers are clipped at their 1% and 99% quantiles; "
        "'auto': those with heavy tails, farther out for a regression",
    )
    impute: str = choice("mean", IMPUTE, doc="what a missing number becomes")
    unseen: str = choice("other", UNSEEN, doc="values that are not among a column's categories")
    duplicates: str = choice("refuse", ("refuse", "first"), doc="rows with the id of an earlier row")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitParty(TableParty):
    """A party of a split network: with a table, or only a middle part of the network."""

    bottom: Any = component((), _take_widths("bottom", 1), doc="widths of the layers over its columns")
    middle: Any = component((), _take_widths("middle", 1), doc="widths of its layers, without a table")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferParty(TableParty):
    """A party of a transfer."""

    helper: bool = component(False, _take("helper", bool), doc="it has no table and deals randomness")
    measure: str = component(
        "", _take("measure", str), doc="the target's column of labels, used only for metrics"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressSettings:
    """[regress]: a regression with standard errors on secret shares."""

    family: str = choice("binomial", FAMILIES, doc="distribution of the label")
    ties: str = choice("efron", TIES, doc="method for equal times of a Cox model")
    steps: int | None = whole(None, least=2, most=100, none=True, doc="of Newton's method; none: by family")
    publish: bool = component(False, _take("publish", bool), doc="every party learns all estimates")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchedParty(FileParty):
    """A party with a table of people whom others have, too; or a helper without one."""

    id: str = component("", _take("id", str), doc="the id column")
    drop: Any = component((), _take("drop", list[str]), doc="columns to leave out")
    duplicates: str = choice("refuse", ("refuse", "first"), doc="rows with the id of an earlier row")
    helper: bool = component(False, _take("helper", bool), doc="it has no table and deals randomness")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressParty(MatchedParty):
    """A party of a regression."""

    label: str = component("", _take("label", str), doc="the column to explain, at one party")
    time: str = component("", _take("time", str), doc="the time of a Cox model, at one party")
    event: str = component("", _take("event", str), doc="whether the time ends with the event: 0 or 1")
    offset: str = component("", _take("offset", str), doc="the column added to the score, with the label")
    weights: str = component("", _take("weights", str), doc="the column of the rows' weights, with the label")
    categories: Any = component((), _take("categories", list[str]), doc="columns of codes, not numbers")


def _take_questions(value: Any, where: str) -> Any:
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise bad(where, "queries", value, "one or more tables, [[join.queries]]")
    of_trees = (*JOIN_BOOST_OPTIONS, "categories")
    known = ("name", "what", "of", "above", "by", "people", "family", *of_trees)
    whats = ("total", "count", "enough", "describe", "regress", "boost")
    names = [v.get("name") for v in value]
    for table in value:
        unknown = [key for key in table if key not in known]
        if unknown:
            raise bad(where, "queries", unknown[0], f"one of {', '.join(known)}")
        if not isinstance(table.get("name"), str) or names.count(table["name"]) > 1:
            raise bad(where, "queries", table.get("name"), "a different name for each question")
        if table.get("what") not in whats:
            allowed = (
                "'total' or 'count'; with reveal = 'shares' also 'enough', 'describe', 'regress' or 'boost'"
            )
            raise bad(where, f"what of {table['name']!r}", table.get("what"), allowed)
        others = [key for key in of_trees if key in table and table["what"] != "boost"]
        if others:
            raise bad(
                where, f"{others[0]} of {table['name']!r}", table[others[0]], "left out without 'boost'"
            )
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """[join]: sums and counts over people whom all parties have."""

    how: str = choice("inner", ("inner", "left"), doc="with 'shares', left: all people of the first party")
    reveal: str = choice("all", ("all", "shares"), doc="who learns who is matched: all parties, or nobody")
    decimals: int = whole(2, least=0, most=6, doc="decimals of the columns; sums are exact")
    minimum: int = whole(10, least=3, doc="fewest people in a figure, and in the difference of two")
    queries: Any = component(
        (),
        _take_questions,
        doc="tables with name, what (total or count; with shares also enough, describe, regress or boost), "
        "of (columns), above (thresholds), by (a category), people (with enough: how many), family (of a "
        "regression: gaussian or binomial), and with boost its options and categories",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinParty(MatchedParty):
    """A party of a join."""

    columns: Any = component((), _take("columns", list[str]), doc="the columns that are asked about")


def _take_fields(value: Any, where: str) -> Any:
    if not isinstance(value, dict) or not value:
        raise bad(where, "fields", value, 'the columns that both have, by kind, like {surname = "name"}')
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """[link]: which records of two tables belong to one person, without a common id."""

    fields: Any = component(
        (),
        _take_fields,
        doc="a table: each field's kind (name, text, date, code, category), or a table with kind, m and u",
    )
    threshold: float = real(
        0.9, above=0, below=1, doc="the probability from which two records are one person"
    )
    blocks: Any = component(
        (), _take("blocks", list[list[str]]), doc="lists of fields on which compared records agree"
    )
    overlap: float = real(
        0.5, above=0, most=1, doc="the expected share of the smaller table that the other has, too"
    )
    max_block: int = whole(
        32, least=1, most=256, doc="rows of a block at one party; larger blocks are not compared"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkParty(FileParty):
    """A party of a linkage, or its helper."""

    columns: Any = component(
        (), _take("columns", dict[str, str]), doc="its own names of fields, where they differ"
    )
    helper: bool = component(False, _take("helper", bool), doc="it has no table and deals randomness")


def has_party_tables(path: str | Path, verb: str) -> bool:
    """Whether a job file has a table for each party, as for different columns; otherwise files by party."""
    parties = toml.load(path, (), (verb, "data", "sums", "parties")).get("parties", {})
    return isinstance(parties, Mapping) and any(isinstance(v, Mapping) for v in parties.values())


def read_parties(
    path: str | Path, verb: str, settings: type[Any], party: type[Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read a job file; return ([verb] with defaults, what each [parties.…] gives), as plain values.

    One error names all unknown keys and bad values.
    """
    tables = toml.load(path, (), (verb, "parties"))
    raw, parties = (toml.table(str(path), name, tables.get(name, {})) for name in (verb, "parties"))
    problems, values = [], {}
    sections: list[tuple[str, Any, type[Any], str]] = [(verb, raw, settings, "it has no key")]
    sections += [(f"parties.{name}", entry, party, "a party has no key") for name, entry in parties.items()]
    for place, table, cls, unknown in sections:
        try:
            entry = toml.table(str(path), place, table)
            values[place] = from_fields(entry, cls, f"{path}, {place}", unknown)
        except (BadJob, BadParameter) as error:
            problems.append(str(error))
    if problems:
        raise BadJob("\n".join(problems))
    # as JSON, because all parties compare it, and other processes receive it
    return json.loads(json.dumps(dataclasses.asdict(values[verb]))), parties

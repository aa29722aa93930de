"""Job files of `tacit infer`: inference on secret shares between organizations.

[infer]                              [parties.bank]          [parties.clinic]        [parties.notary]
columns = ["age", "bill"]            holds = "model"         holds = "rows"          helper = true
reveal = "logits"                    file = "model.json"     file = "new.csv"
                                                             id = "person"

All parties have the same file; `file` is each party's own. The helper may be left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..parameters import bad, choice, component, refuse, whole
from .vertical import FileParty, _take

REVEALS, RECEIVERS, ADVERSARIES = ("logits", "argmax"), ("rows", "model"), ("semi-honest", "active")
PRODUCTS = ("he", "ot")
HOLDS = ("", "model", "rows")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferSettings:
    """[infer]: what is computed, and who learns what."""

    columns: Sequence[str] = component(
        (), _take("columns", list[str]), doc="the columns of the rows that the model takes, and no others"
    )
    reveal: str = choice("logits", REVEALS, doc="what the receiver learns: scores, or only the class")
    receiver: str = choice(
        "rows", RECEIVERS, doc="who learns it: the holder of the rows, or the holder of the model"
    )
    adversary: str = choice(
        "semi-honest",
        ADVERSARIES,
        doc="'semi-honest' parties follow their programs; 'active' ones may deviate, and are caught (needs a "
        "helper)",
    )
    products: str = choice(
        "he",
        PRODUCTS,
        doc="matrix products without a helper: by homomorphic encryption ('he', extra he), or by oblivious "
        "transfer only ('ot'), which sends more",
    )
    batch: int = whole(64, least=1, most=1 << 16, doc="rows that are evaluated at once")
    fraction: int = whole(16, least=4, most=24, doc="fractional bits of numbers on shares")

    def check(self) -> None:
        refuse(
            (
                not self.columns or len(set(self.columns)) < len(self.columns),
                bad("infer", "columns", list(self.columns), "a list of different names, at least one"),
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferParty(FileParty):
    """A party of an inference on shares."""

    holds: str = choice("", HOLDS, doc="'model' or 'rows'")
    file: str = component("", _take("file", str), doc="its model or its rows, relative to the job file")
    id: str = component("", _take("id", str), doc="with rows: the column to copy to the scores")
    helper: bool = component(False, _take("helper", bool), doc="it has nothing and deals randomness")


@dataclasses.dataclass(frozen=True)
class InferPolicy:
    """[infer] of a party's policy.toml: what its owner allows, whatever the others ask for."""

    max_rows: int = whole(100_000, least=1, doc="with the model: most rows of a run")
    rows_per_day: int = whole(
        100_000, least=1, doc="with the model: most rows of a client in 24 hours; each score tells of it"
    )
    reveal: str = choice("logits", REVEALS, doc="with the model: 'argmax' allows no scores, only classes")
    scores_to_model: bool = component(
        False,
        _take("scores_to_model", bool),
        doc="with the rows: whether the holder of a hidden model may get the scores, which may then be any "
        "function of the rows",
    )
    adversary: str = choice(
        "semi-honest", ADVERSARIES, doc="'active' allows only runs that catch parties which deviate"
    )

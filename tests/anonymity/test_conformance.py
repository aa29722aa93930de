"""Every method passes the conformance checks, and a method that violates one is detected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tacit import anonymity
from tacit.anonymity.conformance import check_anonymizer
from tacit.anonymity.release import AnonymizationRequest, TableRelease
from tacit.anonymity.table import EncodedTable

MEMBERS = [
    *(m() for m in anonymity.ALL.values()),
    anonymity.Mondrian(strict=False),
    anonymity.Cells(cost="loss"),
    anonymity.Cluster(rounds=0),
]


# k-ambiguity promises something else; levels fixed in advance and private ones cannot follow k, and have
# tests of their own (test_private.py)
OTHERS = (anonymity.Ambiguity, anonymity.Fixed, anonymity.Private)


@pytest.mark.parametrize("method", [m for m in MEMBERS if not isinstance(m, OTHERS)], ids=repr)
def test_every_method_conforms(method):
    rows = (
        8 if isinstance(method, anonymity.Cells) else 12
    )  # k = all rows makes every group of the table a candidate
    check_anonymizer(method, rows=rows)


@pytest.mark.parametrize("two_way", [False, True])
@pytest.mark.parametrize("exact", [0, 12])
def test_ambiguity_conforms_in_both_directions(two_way, exact):
    rows = 5 if exact else 20
    check_anonymizer(anonymity.Ambiguity(two_way=two_way, exact=exact), rows=rows, k=3, ways=(True, two_way))


def test_larger_tables_conform_too():
    for method in (
        anonymity.Datafly(),
        anonymity.Optimal(),
        anonymity.Mondrian(),
        anonymity.Mondrian(strict=False),
    ):
        check_anonymizer(method, k=5, rows=60)
    check_anonymizer(anonymity.Cluster(block=100), k=5, rows=110)  # two blocks


@dataclass(frozen=True)
class Careless:
    """Publishes everything unchanged, and says so."""

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        cells = [table.codes[:, j] for j in range(len(table.columns))]
        return TableRelease(
            table.inverse.astype(np.int64),
            cells,
            [c.words[0] for c in table.columns],
            0.0,
            [None] * len(cells),
        )


@dataclass(frozen=True)
class Liar(anonymity.Optimal):
    """Gives a lower loss than it costs."""

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        made = super().run(table, request)
        made.loss *= 0.9
        return made


@dataclass(frozen=True)
class Forger(anonymity.Optimal):
    """Publishes another sex than the row's."""

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        made = super().run(table, request)
        made.words[3] = list(made.words[3])[::-1]
        made.levels[3] = None
        return made


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Careless(), "a published row is in a class of 1 rows"),
        (Liar(), "but the cells of the table give"),
        (Forger(), "which does not cover it"),
    ],
)
def test_a_method_that_breaks_a_promise_is_caught(method, words):
    with pytest.raises(AssertionError, match=words):
        check_anonymizer(method, k=3)

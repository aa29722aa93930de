"""`tacit.link`: people with typing errors are found in both tables, one to one, and nobody else is."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.data.identifiers import identify
from tacit.errors import BadData, BadParameter
from tacit.jobs.vertical.link import make_plan
from tacit.linkage import blocks as blocking
from tacit.linkage import weights as weighing
from tacit.linkage.fields import MISSING, read_records, to_texts
from tacit.mpc import linked
from tacit.mpc.linked import LinkField, LinkTerms

from ..linkage.people import FIELDS, make_tables


@pytest.fixture(scope="module")
def case():
    left, right, truth = make_tables(150, 100)
    return left, right, truth, tacit.link(left, right, fields=FIELDS)


def test_people_with_errors_in_their_records_are_found(case):
    _, _, truth, result = case
    found = dict(result.pairs[["left", "right"]].to_numpy().tolist())
    hits = sum(truth.get(i) == j for i, j in found.items())
    assert hits / len(found) > 0.97
    assert hits / len(truth) > 0.9
    assert len(set(found.values())) == len(found) == result.people
    assert result.value is result.pairs
    assert result.sizes == {"left": 250, "right": 250}


def link_in_the_clear(left, right, fields, threshold, max_block=32, names=("left", "right")):
    """All steps of both parties, with the ideal function in place of the protocols."""
    plan = make_plan(fields, threshold, None, 0.5, max_block)
    records = [
        read_records(to_texts(t, plan.fields, n), plan.fields, n) for n, t in zip(names, (left, right))
    ]
    rates = [weighing.estimate_u(r, np.random.default_rng(k)) for k, r in enumerate(records)]
    weights = weighing.compute_weights(plan.fields, *rates)
    rows = (records[0].rows, records[1].rows)
    made = [blocking.make_blocks(r, plan.keys) for r in records]
    at = [{bytes(d): k for k, d in enumerate(identify(b.values).digests)} for b in made]
    shared = sorted(at[0].keys() & at[1].keys())
    members = [[b.members[where[d]] for d in shared] for b, where in zip(made, at)]
    sizes = [[blocking.pad_size(len(r), max_block) for r in m] for m in members]
    shapes = blocking.make_shapes(*sizes)
    sides = [
        linked.make_side(
            [e.filters for e in r.encoded],
            [e.counts for e in r.encoded],
            MISSING,
            blocking.make_slots(shapes, k, members[k], lambda n: bytes(n)),
        )
        for k, r in enumerate(records)
    ]
    score = [LinkField(f.how.bits, f.how.levels, w.base, w.steps) for f, w in zip(plan.fields, weights)]
    limit = weighing.compute_threshold(threshold, 0.5, rows)
    counts = tuple((n, m, len(b)) for (n, m), b in zip(shapes.sizes, shapes.blocks))
    terms = LinkTerms(names, "helper", rows, len(plan.keys), tuple(score), limit, counts)
    found = linked.ideal(terms, *sides)
    pairs = [linked.find_rows(terms, s.slots, k, found).tolist() for k, s in enumerate(sides)]
    return sorted(zip(*pairs)), terms


def test_the_pairs_are_those_of_the_ideal_function(case):
    """u is declared, because both parties estimate it from random pairs of rows."""
    left, right, _, _ = case
    fields = {c: {"kind": kind, "u": [0.01, 0.01]} for c, kind in FIELDS.items()}
    result = tacit.link(left, right, fields=fields, threshold=0.5, max_block=4)
    expected, terms = link_in_the_clear(left, right, fields, 0.5, max_block=4)
    assert [tuple(p) for p in result.pairs.to_numpy().tolist()] == expected
    assert result.candidates == terms.pairs


def test_the_ledger_says_what_each_party_learned(case):
    ledger = case[3].ledger
    lines = {(s.party, s.kind): s.reveals for s in ledger.seen}
    text = lines["right", "Conclusion"]
    assert "'left' has 250 rows" in text
    conclusions = [s.reveals for s in ledger.seen if s.kind == "Conclusion" and s.party == "left"]
    assert any(
        "which of its own records match one of 'right'" in t and "one to one" in t for t in conclusions
    )
    assert any(stamp.startswith("SEMI-HONEST: records without a match") for stamp in ledger.stamps)
    helper = {s.kind for s in ledger.seen if s.party == "helper"}
    assert helper == {"LinkSettings"}


def test_the_report_and_the_weights(case, tmp_path):
    result = case[3]
    assert result.report(tmp_path / "link.html").read_text().count("Linked records") >= 1
    weights = {(w["field"], w["level"]): w["weight"] for w in result.weights}
    assert weights["born", "equal"] > weights["born", "similar"] > weights["born", "different"]
    assert any("values of 'born' are missing" in note for note in result.notes)


def test_swapped_days_other_case_and_accents_are_one_person():
    left = pd.DataFrame(
        {"name": ["José Muñoz", "Ann Lee"], "born": ["1980-03-05", "1971-01-02"], "town": ["x", "y"]}
    )
    right = pd.DataFrame(
        {"name": ["JOSE MUNOZ", "Bob Ray"], "born": ["1980-05-03", "1955-06-07"], "town": ["X", "z"]}
    )
    fields = {
        "name": {"kind": "name", "u": [1e-5, 1e-4]},
        "born": {"kind": "date", "u": [1e-4, 1e-3]},
        "town": "category",
    }
    result = tacit.link(left, right, fields=fields, blocks=[["name"]], names=("a", "b"))
    assert result.pairs.to_dict("list") == {"a": [0], "b": [0]}


def test_large_blocks_are_left_out_and_noted(case):
    left, right, _, _ = case
    result = tacit.link(left, right, fields=FIELDS, blocks=[["surname"], ["born"]], max_block=2)
    assert re.search(r"\d+ of \d+ shared blocks have more than 2 rows at one party", " ".join(result.notes))


@pytest.mark.parametrize("right", [["zed quirk"], [""]])
def test_tables_without_a_shared_block_have_no_pairs(right):
    left, other = (pd.DataFrame({"name": names, "x": "1"}) for names in (["ada byron"], right))
    result = (
        tacit.link(left, other, fields={"name": "name", "x": "code"}, blocks=["name"]) if right[0] else None
    )
    if result is None:
        with pytest.raises(tacit.errors.TacitError, match="has no value that can be read as a name"):
            tacit.link(left, other, fields={"name": "name", "x": "code"}, blocks=["name"])
        return
    assert (result.people, result.candidates) == (0, 0)
    assert list(result.pairs.columns) == ["left", "right"]


TABLE = pd.DataFrame({"name": ["ada", "eve"], "born": ["1980-03-05", "1981-03-05"]})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fields": {"nmae": "name"}}, BadData, "the table of 'left' has no column 'nmae'"),
        ({"fields": {"name": "nam"}}, BadParameter, "the kind of 'name' is 'nam'; it must be one of name"),
        ({"threshold": 1.0}, BadParameter, "threshold is 1.0; it must be a number above 0 and below 1"),
        ({"overlap": 0}, BadParameter, "overlap is 0"),
        ({"max_block": 0}, BadParameter, "max_block is 0"),
        ({"names": ("a", "a")}, BadParameter, "two different words"),
        ({"names": ("a", "helper")}, BadParameter, "neither 'helper'"),
        ({"blocks": [["nam"]]}, BadParameter, "blocks is 'nam'; it must be one of the fields"),
        ({"fields": {"name": "category"}}, BadParameter, "given where no field is a name, a date or a code"),
    ],
)
def test_bad_options_are_refused_with_what_is_allowed(options, error, text):
    with pytest.raises(error) as caught:
        tacit.link(TABLE, TABLE, **{"fields": {"name": "name", "born": "date"}, **options})
    assert text in str(caught.value)


@pytest.mark.parametrize("table", [TABLE.iloc[:0], "left.csv"])
def test_tables_must_have_rows(table):
    with pytest.raises(BadParameter, match="a DataFrame with at least one row"):
        tacit.link(TABLE, table, fields={"name": "name"})


@pytest.mark.slow
def test_two_thousand_people_of_each_table():
    left, right, truth = make_tables(1500, 500, seed=3)
    found = dict(tacit.link(left, right, fields=FIELDS).pairs.to_numpy().tolist())
    hits = sum(truth.get(i) == j for i, j in found.items())
    assert 2 * hits / (len(found) + len(truth)) > 0.93

"""Attacks on `tacit.regress` with standard errors and on `tacit.join` by their own participants: what they see,
and what happens if one of them lies about shapes, labels, orders, settings or groups.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import BadData, BadParameter, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs.vertical import regress_policy
from tacit.jobs.vertical.join_deployed import JoinPolicy, admit_thresholds, check_policy
from tacit.mpc import glm, joined
from tacit.mpc.glm_terms import GlmTerms, LabelFacts, check_facts, check_widths
from tacit.mpc.joined import JoinQuery, JoinTerms
from tacit.mpc.shuffle import PermutedOrder
from tacit.parties import decode
from tacit.runtimes import InProcess
from tests.security.test_mpc import looks_uniform
from tests.security.test_regression_attacks import OPENINGS, Recorder

NAMES = ("guest", "host")


def rows(n=60):
    g = torch.Generator().manual_seed(0)
    x = {name: torch.randn(n, 2, generator=g).double() for name in NAMES}
    noise = torch.randn(n, generator=g).double()
    return x, x["guest"][:, 0] - x["host"][:, 1] + noise


class Lying:
    """A party whose messages are changed on their way out."""

    def __init__(self, me: Any, change: Any):
        self.me, self.change = me, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.me, name)

    async def send(self, to: Any, message: Any) -> None:
        await self.me.send(to, self.change(message))


def fit_with_liar(family: str, y: torch.Tensor, liar: str, change: Any, settings: Any = None) -> None:
    x, _ = rows()
    terms = GlmTerms(NAMES, "guest", "helper", 60, family, steps=2)
    plain = {**asdict(terms), "names": list(NAMES)}

    def program(name: str) -> Any:
        own = {**plain, **(settings or {})} if name == liar else plain

        async def party(me: Any) -> Any:
            me = Lying(me, change) if name == liar else me
            return await glm.holder(me, own, x[name], y if name == "guest" else None)

        return party

    programs = {name: program(name) for name in NAMES}
    InProcess().run_sync({**programs, "helper": functools.partial(glm.helper, terms=plain)})


def only(kind: type, change: Any) -> Any:
    return lambda message: change(message) if isinstance(message, kind) else message


TIMES = torch.stack([torch.arange(60) % 25 + 1.0, torch.arange(60) % 2], 1)


@pytest.mark.parametrize(
    ("family", "liar", "change", "words"),
    [
        (
            "gaussian",
            "host",
            only(glm.EstimateShare, lambda m: glm.EstimateShare([m.values[0][:-1]])),
            "'host' sent a share that does not match the estimates",
        ),
        (
            "gaussian",
            "host",
            only(glm.CheckShare, lambda m: glm.CheckShare([m.values[0].double()])),
            "'host' sent a share that does not match the checks",
        ),
        (
            "gaussian",
            "guest",
            only(LabelFacts, lambda m: LabelFacts(900, 2, -1)),
            r"announced a label of scale 2\^900",
        ),
        ("gaussian", "guest", only(LabelFacts, lambda m: LabelFacts(1, 60, -1)), "60 classes"),
        ("cox", "guest", only(LabelFacts, lambda m: LabelFacts(0, 2, 40)), "40 doublings"),
        (
            "gaussian",
            "guest",
            only(LabelFacts, lambda m: LabelFacts(m.scale, 2, -1, 3)),
            "which no label of a",
        ),
        (
            "gaussian",
            "guest",
            only(LabelFacts, lambda m: LabelFacts(m.scale, 2, -1, 0, 60)),  # effective rows without weights
            "which no label of a",
        ),
        (
            "cox",
            "guest",
            only(PermutedOrder, lambda m: PermutedOrder(torch.zeros_like(m.order))),
            "an order that is no permutation of 60 rows",
        ),
        (
            "gaussian",
            "host",
            only(glm.ColumnCount, lambda m: glm.ColumnCount(10**9, m.settings)),
            r"'host' announced 1000000000 columns",
        ),
        (
            "gaussian",
            "host",
            only(glm.ColumnCount, lambda m: glm.ColumnCount(300, m.settings)),
            "303 coefficients and 60 rows",
        ),
    ],
)
def test_a_party_that_lies_about_shapes_or_labels_is_refused(family, liar, change, words):
    with pytest.raises(PartyFailed, match=words):
        fit_with_liar(family, TIMES if family == "cox" else rows()[1], liar, change)


def test_a_party_with_another_family_is_refused():
    for settings in (
        {"family": "poisson"},
        {"publish": True},
        {"steps": 50},
        {"rows": 60, "ties": "breslow"},
    ):
        with pytest.raises(PartyFailed, match="have different settings"):
            fit_with_liar("gaussian", rows()[1], "host", lambda m: m, settings)


def test_all_but_the_final_estimates_is_uniform_and_does_not_grow_with_the_steps():
    """The host gets 2 coefficients and a covariance of 2 × 2; the guest the same, 4 checks and 2 numbers of the
    intercept. `looks_uniform` states its false-alarm probability.
    """
    x, y = rows()
    for steps in (2, 4):
        recorder = Recorder()
        tacit.regress(x, {"guest": y}, steps=steps, runtime=recorder)
        for sender, to, sizes in (
            ("guest", "host", {"EstimateShare": [6]}),
            ("host", "guest", {"EstimateShare": [6], "CheckShare": [4], "InterceptShare": [2]}),
        ):
            values = recorder.sent(sender, to)
            found = {
                kind: [v.numel() for k, v in values if k == kind]
                for kind, _ in values
                if kind not in OPENINGS
            }
            assert found == sizes
            assert looks_uniform([v for kind, v in values if kind in OPENINGS and v.dtype is torch.int64])
        assert {decode(frame).kind for frame in recorder.tap.view("helper")} == {"ColumnCount", "LabelFacts"}


def test_the_order_of_the_times_stays_with_the_label_holder():
    """The times are in the order of the rows, so its order is the identity, and what it sends is a uniform
    permutation: its correlation with the identity has a deviation of 1/√59 = 0.13; beyond 0.85 with a
    probability below 1e-9.
    """
    x, _ = rows()
    time, sent = torch.arange(60).double() + 1, []
    for _ in range(2):
        recorder = Recorder()
        y = torch.stack([time, torch.arange(60) % 2], 1)
        tacit.regress(x, {"guest": y}, family="cox", steps=2, runtime=recorder)
        frames = [decode(f) for by, to, _, f in recorder.tap.frames if (by, to) == ("guest", "host")]
        sent += [m.order.double() for m in frames if m.kind == "PermutedOrder"]
    assert len(sent) == 2
    assert not torch.equal(*sent)
    for order in sent:
        assert float(torch.corrcoef(torch.stack([order, time]))[0, 1].abs()) < 0.85


def banks(n=120):
    rng = np.random.default_rng(0)
    ids = [f"c{k}" for k in range(n)]
    frames = [pd.DataFrame({"id": ids, "cash": rng.normal(100, 50, n).round(2)}) for _ in range(3)]
    frames[0]["region"] = np.where(np.arange(n) < 60, "north", np.where(np.arange(n) < 116, "south", "east"))
    return dict(zip("abc", frames))


def test_no_value_of_a_person_and_no_party_total_is_opened_by_a_join():
    recorder = Recorder()
    table = tacit.join(banks(), on="id", runtime=recorder)
    recorder.tap.frames.clear()
    table.total("cash")
    messages = [(by, decode(f)) for by, _, _, f in recorder.tap.frames if by in "abc"]
    shares = {by: m.values[0] for by, m in messages if m.kind == "FigureShare"}
    own = {who: round(float(t["cash"].sum()) * 100) for who, t in banks().items()}
    assert sum(int(v[1]) for v in shares.values()) % 2**64 == sum(own.values())
    # a share is uniform: it is within 2^40 of a total with probability 2^-23 each, all three never
    assert not all(abs(int(shares[who][1]) - own[who]) < 2**40 for who in own)
    frames = [decode(f) for by, to, _, f in recorder.tap.frames if (by, to) == ("a", "b")]
    words = [v for m in frames if m.kind in OPENINGS for v in m.values if v.dtype is torch.int64]
    assert looks_uniform(words)


def test_small_groups_and_small_differences_are_not_opened():
    table = tacit.join(banks(), on="id")
    by_region = table.sum_by("cash", "a.region")
    # east has 4 people; the total is known, so the next smallest group is hidden with it
    assert list(by_region.index) == ["north"]
    highest = sorted(banks()["b"]["cash"])[-5]
    assert table.count_above("b.cash", float(highest)) is None
    with pytest.raises(QueryRefused, match="other thresholds of this measure were asked before"):
        table.count_above("b.cash", 100.0)
    with pytest.raises(QueryRefused, match="other thresholds of this measure were asked before"):
        table.count_above("b.cash", 100.0, by="region")
    counts = table.count_above("c.cash", [50, 100, 100.01, 150])[
        "count"
    ]  # few have more than 100 and not 100.01
    assert counts.isna().tolist() == [False, True, True, False]


def test_a_join_between_few_people_or_with_a_low_minimum_is_refused():
    with pytest.raises(BadData, match=r"share 5 people; a figure needs 10"):
        tacit.join({who: t.iloc[:5] for who, t in banks().items()}, on="id")
    with pytest.raises(BadParameter, match="minimum is 2; it must be"):
        tacit.join(banks(), on="id", minimum=2)
    terms = JoinTerms(("a", "b"), "h", 100, 5, (JoinQuery("total", (("a", "cash", 1),)),))
    with pytest.raises(QueryRefused, match=r"about 5 people, and the policy of this party requires 10"):
        check_policy(JoinPolicy(), "a", terms)
    with pytest.raises(QueryRefused, match="the job asks about 'cash'"):
        check_policy(JoinPolicy(min_count=3, columns=("loans",)), "a", terms)
    check_policy(JoinPolicy(min_count=3, columns=("loans",)), "b", terms)  # it is not asked


def test_other_thresholds_in_another_job_are_refused(tmp_path):
    def terms(limit):
        return JoinTerms(("a", "b"), "h", 100, 10, (JoinQuery("count", (("a", "cash", 1),), (limit,)),))

    admit_thresholds(tmp_path, terms(1000))
    admit_thresholds(tmp_path, terms(1000))  # a run that is started again
    with pytest.raises(QueryRefused, match="other thresholds of this measure were answered before"):
        admit_thresholds(tmp_path, terms(1001))


def test_parties_with_other_questions_or_bad_group_names_are_refused():
    data = torch.arange(50)
    plain = JoinTerms(
        ("a", "b"), "h", 50, 10, (JoinQuery("total", (("a", "cash", 1),), (), ("a", "region")),)
    )
    group = (["x", "y"], torch.stack([data < 25, data >= 25]).long())

    def run(change: Any, theirs: JoinTerms = plain) -> None:
        async def a(me: Any) -> Any:
            return await joined.holder(Lying(me, change), theirs.to_dict(), [data], [group])

        async def b(me: Any) -> Any:
            return await joined.holder(me, plain.to_dict(), [torch.zeros_like(data)], [None])

        InProcess().run_sync({"a": a, "b": b, "h": functools.partial(joined.helper, terms=plain.to_dict())})

    run(lambda m: m)
    with pytest.raises(PartyFailed, match="sent group names that do not match"):
        run(only(joined.GroupNames, lambda m: joined.GroupNames(m.settings, ["x", "x"])))
    with pytest.raises(PartyFailed, match="sent group names that do not match"):
        run(only(joined.GroupNames, lambda m: joined.GroupNames(m.settings, [str(k) for k in range(500)])))
    with pytest.raises(PartyFailed, match="ask different questions"):
        run(lambda m: m, JoinTerms(("a", "b"), "h", 50, 3, plain.queries))
    with pytest.raises(PartyFailed, match="shapes"):
        run(only(joined.FigureShare, lambda m: joined.FigureShare([m.values[0][:1]])))


def test_known_limit_a_group_holder_that_deviates_reads_one_person():
    """Inputs are not verified: the weight 10 for one person passes the minimum. The ledger's stamp says so."""
    cash = torch.arange(50) * 100
    query = JoinQuery("total", (("b", "cash", 1),), (), ("a", "region"))
    terms = JoinTerms(("a", "b"), "h", 50, 10, (query,)).to_dict()
    weights = torch.zeros(1, 50, dtype=torch.int64)
    weights[0, 7] = 10
    programs = {
        "a": functools.partial(
            joined.holder, terms=terms, measures=[torch.zeros_like(cash)], groups=[(["x"], weights)]
        ),
        "b": functools.partial(joined.holder, terms=terms, measures=[cash], groups=[None]),
        "h": functools.partial(joined.helper, terms=terms),
    }
    result = InProcess().run_sync(programs)["a"][0]
    assert result["figures"] == [[10 * int(cash[7])]]
    assert "learn a person's value" in joined.ASSUMES


def test_a_policy_counts_models_and_small_differences(tmp_path):
    policy = regress_policy.RegressPolicy(min_rows=20, max_models=2)
    people = [str(k) for k in range(100)]
    for job in ("one", "two", "one"):
        regress_policy.admit_rows(tmp_path, policy, job, people, "columns")
    with pytest.raises(QueryRefused, match="2 other queries were answered about these people"):
        regress_policy.admit_rows(tmp_path, policy, "three", people, "columns")
    with pytest.raises(QueryRefused, match="differ from those of an earlier one by 1 people"):
        regress_policy.admit_rows(tmp_path, policy, "one", people[1:], "columns")
    regress_policy.admit_rows(tmp_path, policy, "one", people[20:], "columns")
    with pytest.raises(QueryRefused, match="10 people are shared, and the policy of this party requires 20"):
        regress_policy.admit_rows(None, policy, "one", people[:10], "columns")
    (tmp_path / "policy.toml").write_text('[regress]\nfamilies = ["gaussian"]\npublish = false\n')
    mine = regress_policy.read_policy(str(tmp_path))
    with pytest.raises(QueryRefused, match="does not allow family 'cox'"):
        regress_policy.check_settings(mine, {"family": "cox", "publish": False})
    with pytest.raises(QueryRefused, match="publishes all parties' estimates"):
        regress_policy.check_settings(mine, {"family": "gaussian", "publish": True})


def test_announced_effective_rows_are_possible_ones_and_held_against_the_policy():
    """No weight is above 8 times the mean, so that 400 rows are worth 50 to 400; a policy may require 100."""
    terms = GlmTerms(("host", "guest"), "guest", "helper", 400, weights=True)
    for worth in (0, 49, 401):
        with pytest.raises(ProtocolError, match="which no label of a"):
            check_facts(terms, LabelFacts(0, 2, -1, 0, worth))
    facts = check_facts(terms, LabelFacts(0, 2, -1, 0, 60))
    check_widths(terms, facts, {"host": 2, "guest": 2}, 1, 60)
    with pytest.raises(QueryRefused, match=r"400 rows worth 60, and the policy of this party requires 100"):
        check_widths(terms, facts, {"host": 2, "guest": 2}, 1, 100)
    with pytest.raises(QueryRefused, match="7 coefficients and 60 effective rows"):
        check_widths(terms, facts, {"host": 3, "guest": 3}, 1)

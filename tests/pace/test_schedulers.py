"""The parties that each pace sends work to and waits for, worked by hand."""

from __future__ import annotations

import pytest
import torch

from tacit import pace
from tacit.pace import Arrival, staleness
from tacit.parameters import check, from_table, to_table

NAMES = ("a", "b", "c", "d")
NOW = {"delta": torch.tensor([0.0])}


def arrives(scheduler: pace.Scheduler, name: str, value: float = 0.0, weight: float = 1.0) -> None:
    order = scheduler.finish(name, scheduler.at_work[name].number)
    assert order is not None
    scheduler.add(Arrival(order, weight, {"delta": torch.tensor([value])}))


def names(orders: list[pace.Order]) -> list[str]:
    return [o.name for o in orders]


@pytest.mark.parametrize(
    "one",
    [
        pace.FedBuff(),
        pace.FedAsync(),
        pace.SAFA(),
        pace.FedBuff(3, pace.Hinge(2.0, 1)),
        pace.FedAsync(0.5, pace.Constant()),
    ],
)
def test_a_pace_is_restored_from_its_table(one):
    assert from_table(to_table(check(one)), pace.ALL, "pace") == one


def test_the_three_functions_of_staleness_by_their_formulas():
    assert [staleness.Constant().weight(s) for s in (0, 3, 100)] == [1, 1, 1]
    assert [staleness.Hinge(a=10, b=4).weight(s) for s in (0, 4, 5, 6)] == [1, 1, 1 / 11, 1 / 21]
    assert [staleness.Polynomial(0.5).weight(s) for s in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])


def test_fedbuff_keeps_so_many_at_work_and_makes_a_version_of_every_k_answers():
    scheduler = pace.FedBuff(buffer=2).scheduler(NAMES, 3, seed=0)
    first = names(scheduler.next_orders(0.0))
    assert len(first) == 3
    assert scheduler.next_orders(0.0) == []
    arrives(scheduler, first[0])
    assert scheduler.take_batch(NOW) is None
    (fourth,) = names(scheduler.next_orders(1.0))
    assert fourth in (first[0], *(set(NAMES) - set(first)))
    arrives(scheduler, first[1])
    batch = scheduler.take_batch(NOW)
    assert batch is not None
    assert [a.order.name for a in batch] == first[:2]
    scheduler.advance()
    (fifth,) = scheduler.next_orders(2.0)
    assert fifth.version == 1


def test_a_party_counts_its_own_pieces_of_work():
    scheduler = pace.FedBuff(buffer=1).scheduler(("a",), 1, seed=0)
    for number in range(3):
        (order,) = scheduler.next_orders(float(number))
        assert (order.number, order.serial) == (number, number)
        arrives(scheduler, "a")
        assert scheduler.take_batch(NOW)
        scheduler.advance()


def test_every_idle_party_eventually_gets_work():
    """One of four at work at a time: 60 draws miss one of them with probability 4·(3/4)^60 < 2e-7; the seed
    is fixed.
    """
    scheduler = pace.FedBuff(buffer=1).scheduler(NAMES, 1, seed=1)
    seen = set()
    for _ in range(60):
        (order,) = scheduler.next_orders(0.0)
        seen.add(order.name)
        arrives(scheduler, order.name)
        scheduler.take_batch(NOW)
        scheduler.advance()
    assert seen == set(NAMES)


def test_fedbuff_divides_by_all_weights_and_so_shrinks_old_updates():
    """Two updates of weight 1 and 3; the second began 3 versions ago and counts half (1/√4)."""
    one = pace.Order("a", 0, 5, 0.0, 0)
    two = pace.Order("b", 0, 2, 0.0, 1)
    moves = pace.FedBuff(2).updates(
        [
            Arrival(one, 1.0, {"delta": torch.tensor([4.0])}),
            Arrival(two, 3.0, {"delta": torch.tensor([8.0])}),
        ],
        5,
        NOW,
    )
    assert [(w, float(v["delta"])) for w, v in moves] == [(1.0, 4.0), (3.0, 4.0)]


def test_fedasync_moves_by_alpha_toward_the_new_model():
    new = Arrival(pace.Order("a", 0, 0, 0.0, 0), 7.0, {"delta": torch.tensor([10.0])})
    ((weight, move),) = pace.FedAsync(alpha=0.6, staleness=pace.Polynomial(0.5)).updates(
        [new], 3, {"delta": torch.tensor([2.0])}
    )
    assert weight == 1.0
    assert float(move["delta"]) == pytest.approx(0.6 * 0.5 * 8.0)


# SAFA -------------------------------------------------------------------------------------------------------


def lap(scheduler: pace.Scheduler, *who: str) -> list[str]:
    """A round in which these answer; who is new in the version."""
    for name in who:
        arrives(scheduler, name)
    scheduler.check_deadline(scheduler.closes or 0.0)
    batch = scheduler.take_batch(NOW)
    assert batch is not None
    took = [a.order.name for a in scheduler.participants(batch)]
    scheduler.advance()
    return took


def test_safa_lets_a_late_party_work_on_until_it_lags_too_far():
    """lag = 2: d starts with version 0 and continues at versions 1 and 2; at version 3 it is three versions behind, is
    listed, and restarts.
    """
    scheduler = pace.SAFA(fraction=0.5, lag=2, deadline=0.9).scheduler(NAMES, 4, seed=0)
    assert names(scheduler.next_orders(0.0)) == list(NAMES)
    lap(scheduler, "a", "b", "c")
    assert names(scheduler.next_orders(1.0)) == ["a", "b", "c"]
    lap(scheduler, "a", "b", "c")
    assert names(scheduler.next_orders(2.0)) == ["a", "b", "c"]
    assert scheduler.at_work["d"].version == 0
    lap(scheduler, "a", "b", "c")
    assert names(scheduler.next_orders(3.0)) == ["a", "b", "c", "d"]
    assert scheduler.at_work["d"] == pace.Order("d", 1, 3, 3.0, scheduler.at_work["d"].serial)
    assert scheduler.dropped == {"d": "its work began 3 versions ago, and 2 are tolerated: it starts again"}
    assert scheduler.finish("d", 0) is None  # what it had begun is not taken any more


def test_safa_keeps_a_party_that_lags_within_what_is_tolerated():
    scheduler = pace.SAFA(fraction=0.5, lag=2, deadline=0.9).scheduler(NAMES, 4, seed=0)
    scheduler.next_orders(0.0)
    lap(scheduler, "a", "b", "c")
    scheduler.next_orders(1.0)
    assert "d" in lap(scheduler, "a", "b", "d")  # one behind, and left out last time: it comes first


def test_safa_takes_first_who_was_left_out_last_time():
    """Quota 2. Round 1 takes a and b (first come); c came too late. In round 2 a and b come first again, but
    c and d are picked.
    """
    scheduler = pace.SAFA(fraction=0.5, lag=5).scheduler(NAMES, 4, seed=0)
    scheduler.next_orders(0.0)
    assert lap(scheduler, "a", "b", "c") == ["a", "b"]
    scheduler.next_orders(1.0)
    for name in ("a", "b"):
        arrives(scheduler, name)
        assert scheduler.take_batch(NOW) is None
    assert lap(scheduler, "c", "d") == ["c", "d"]


def test_safa_does_with_who_has_come_when_its_time_is_over():
    scheduler = pace.SAFA(fraction=1.0, lag=5, deadline=2.0).scheduler(NAMES, 4, seed=0)
    scheduler.next_orders(1.0)
    assert scheduler.closes == 3.0
    scheduler.check_deadline(3.0)
    assert scheduler.take_batch(NOW) is None  # nobody has come: it waits for the first
    arrives(scheduler, "c")
    batch = scheduler.take_batch(NOW)
    assert batch is not None
    assert [a.order.name for a in batch] == ["c"]


def test_safa_fills_up_with_previously_selected_parties_if_no_other_is_working():
    scheduler = pace.SAFA(fraction=1.0, lag=5).scheduler(NAMES, 4, seed=0)
    scheduler.next_orders(0.0)
    assert lap(scheduler, *NAMES) == list(NAMES)
    scheduler.next_orders(1.0)
    assert lap(scheduler, *NAMES) == list(NAMES)


def test_safa_averages_the_last_model_of_every_party():
    """Worked by hand, quota 1 of 2, models x: round 1 takes a (x=4), b (x=8) comes too late and counts from
    round 2 on.
    """
    scheduler, way = pace.SAFA(fraction=0.5, lag=5).scheduler(("a", "b"), 2, seed=0), pace.SAFA()
    scheduler.next_orders(0.0)
    arrives(scheduler, "a", 4.0)
    arrives(scheduler, "b", 8.0, weight=3.0)
    batch = scheduler.take_batch(NOW)
    assert batch is not None
    assert [(w, float(v["delta"])) for w, v in way.updates(batch, 0, NOW)] == [(1.0, 4.0)]
    scheduler.advance()
    scheduler.next_orders(1.0)
    arrives(scheduler, "b", 10.0, weight=3.0)
    batch = scheduler.take_batch({"delta": torch.tensor([4.0])})
    assert batch is not None
    assert [(w, float(v["delta"])) for w, v in way.updates(batch, 1, {"delta": torch.tensor([4.0])})] == [
        (1.0, 0.0),
        (3.0, 6.0),
    ]


def test_safa_uses_the_servers_model_for_a_party_that_lags_too_far():
    scheduler, way = (
        pace.SAFA(fraction=0.5, lag=1, deadline=0.9).scheduler(("a", "b"), 2, seed=0),
        pace.SAFA(),
    )
    scheduler.next_orders(0.0)
    lap(scheduler, "a", "b")  # both are in the cache
    for now in (1.0, 2.0):
        scheduler.next_orders(now)
        lap(scheduler, "a")
    scheduler.next_orders(3.0)
    assert "b" in scheduler.dropped
    arrives(scheduler, "a", 6.0)
    scheduler.check_deadline(3.9)
    here = {"delta": torch.tensor([5.0])}
    batch = scheduler.take_batch(here)
    assert batch is not None
    assert [float(v["delta"]) for _, v in way.updates(batch, 3, here)] == [1.0, 0.0]


@pytest.mark.parametrize(
    "one", [pace.FedBuff(2), pace.FedAsync(), pace.SAFA(0.5, lag=1)], ids=lambda one: type(one).__name__
)
def test_a_saved_scheduler_resumes_identically(one):
    scheduler = one.scheduler(NAMES, 4, 3)
    scheduler.next_orders(0.0)
    arrives(scheduler, "b", 1.5, 2.0)
    if scheduler.take_batch(NOW) is not None:
        scheduler.advance()
    arrives(scheduler, "c", 2.5, 3.0)
    said, tensors = scheduler.save()
    again = one.scheduler(NAMES, 4, 3)
    again.load(said, tensors)
    assert again.at_work == scheduler.at_work
    arrives(scheduler, "a", 3.5)
    arrives(again, "a", 3.5)
    for _ in range(3):
        mine, other = scheduler.take_batch(NOW), again.take_batch(NOW)
        assert [(a.order, a.weight, a.vectors) for a in mine or []] == [
            (a.order, a.weight, a.vectors) for a in other or []
        ]
        scheduler.advance()
        again.advance()
        assert scheduler.next_orders(9.0) == again.next_orders(9.0)


def test_a_party_that_is_lost_is_not_waited_for_and_its_late_answer_is_none():
    scheduler = pace.SAFA(fraction=1.0, lag=5).scheduler(("a", "b"), 2, seed=0)
    scheduler.next_orders(0.0)
    scheduler.give_up("b")
    assert lap(scheduler, "a") == ["a"]
    assert scheduler.finish("b", 0) is None
    assert names(scheduler.next_orders(1.0, there=["a"])) == ["a"]  # b is not there

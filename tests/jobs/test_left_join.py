"""A left join keeps the label holder's people that the other party does not hold, and tells nobody more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data
from tacit.errors import BadData, BadParameter
from tacit.jobs.vertical.split import SplitResult
from tacit.protocols.splitnn_terms import CutGradients
from tacit.protocols.splitnn_worker import SplitWorker

N = 160


def tables(seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A clinic with labels and 160 people, and a lab that holds 100 of them and 20 others."""
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(2, N + 20))
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(N + 20)], "u": u, "v": v})
    frame["town"] = np.where(frame.v > 1, "a", "b")
    frame["y"] = np.where(2 * frame.u + frame.v > 0, "sick", "well")
    clinic = frame[["id", "u", "y"]].iloc[:N].sample(frac=1, random_state=1)
    return clinic, frame[["id", "v", "town"]].iloc[60:].sample(frac=1, random_state=2)


def read(clinic: pd.DataFrame, lab: pd.DataFrame) -> dict[str, Any]:
    return {
        "lab": data.from_frame(lab, id="id"),
        "clinic": data.from_frame(clinic, "y" if "y" in clinic else None, id="id"),
    }


def test_the_rows_are_those_of_a_left_merge_in_pandas() -> None:
    clinic, lab = tables()
    joined = tacit.align({"clinic": clinic.id.tolist(), "lab": lab.id.tolist()}, how="left")
    left, right = joined.rows["clinic"], joined.rows["lab"]
    assert joined.size == 100
    mine = clinic.iloc[left].reset_index(drop=True)
    theirs = lab.reset_index(drop=True).reindex(right)[["v", "town"]].reset_index(drop=True)
    made = pd.concat([mine, theirs], axis=1).sort_values("id", ignore_index=True)
    merged = clinic.merge(lab, on="id", how="left").sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(made, merged[made.columns])
    assert (right[:100] >= 0).all()
    assert (right[100:] == -1).all()


def test_the_order_of_people_the_other_does_not_hold_is_that_of_the_own_table() -> None:
    """Sorted by digest, their places between shared ids would tell the other party about their ids."""
    clinic, lab = tables()
    joined = tacit.align({"clinic": clinic.id.tolist(), "lab": lab.id.tolist()}, how="left")
    assert (np.diff(joined.rows["clinic"][100:]) > 0).all()


def test_each_party_receives_the_same_messages_as_in_an_inner_join() -> None:
    clinic, lab = tables()
    ids = {"clinic": clinic.id.tolist(), "lab": lab.id.tolist()}

    def seen(how: str) -> list[tuple[str, str, int]]:
        """Sorted: which of two messages on their way arrives first is chance."""
        ledger = tacit.align(ids, how=how).ledger
        return sorted((line.party, line.kind, line.bytes) for line in ledger.seen)

    assert seen("left") == seen("inner")
    text = {
        line.party: line.reveals
        for line in tacit.align(ids, how="left").ledger.seen
        if line.kind == "Conclusion"
    }
    assert text["lab"].endswith("; so 60 rows of 'clinic' have no match here, not which people they are")
    assert "it keeps the other 60 as well" in text["clinic"]


@pytest.fixture(scope="module")
def run() -> SplitResult:
    return tacit.splitnn(read(*tables()), join="left", epochs=30, seed=1)


def test_a_network_is_trained_on_everybody_of_the_label_holder(run: SplitResult) -> None:
    assert sum(run.config["rows"]) + sum(run.config["tests"]) == N
    assert run.metrics["auc"] > 0.9
    assert any(
        "100 people are shared, of 160 at clinic, 120 at lab; 60 more are kept" in n for n in run.notes
    )


def test_people_whom_only_the_label_holder_has_are_predicted_by_the_same_numbers_as_missing_values(
    run: SplitResult,
) -> None:
    clinic, lab = tables()
    new = clinic.drop(columns="y")
    both = run.predict(read(new, lab))
    assert len(both) == N
    alone = new[~new.id.isin(lab.id)].reset_index(drop=True)
    blank = pd.DataFrame({"v": [np.nan] * len(alone), "town": [None] * len(alone)})
    torch.testing.assert_close(both[100:], run.predict({"clinic": alone[["u"]], "lab": blank}))
    one = new[~new.id.isin(lab.id)].iloc[:1]  # one person, whom the other party does not hold
    torch.testing.assert_close(run.predict(read(one, lab)), both[100:101])


def test_the_other_party_gets_no_gradient_of_people_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would tell their labels."""
    sent: list[torch.Tensor] = []
    send = SplitWorker.send_message

    async def record(self: SplitWorker, to: str, message: Any) -> None:
        if isinstance(message, CutGradients):
            sent.append(message.values)
        await send(self, to, message)

    monkeypatch.setattr(SplitWorker, "send_message", record)
    run = tacit.splitnn(
        read(*tables()), join="left", epochs=1, patience=0, test_fraction=0.0, batch_size=N, every=0
    )
    (gradient,) = sent
    order = run.shares["clinic"].terms.batches(0, 0)[0]
    absent = order >= 100
    assert int(absent.sum()) == 60
    assert not gradient[absent].any()
    assert gradient[~absent].abs().sum(1).min() > 0


def test_what_cannot_be_joined_is_refused() -> None:
    clinic, lab = tables()
    three = {**read(clinic, lab), "bank": data.from_frame(lab, id="id")}
    with pytest.raises(BadParameter, match="join is 'left'; it must be 'inner' with 3 parties"):
        tacit.splitnn(three, join="left")
    x = torch.zeros(20, 2)
    with pytest.raises(BadParameter, match="or 'left' with tables that have ids"):
        tacit.splitnn({"a": x, "b": x}, {"a": torch.zeros(20).long()}, join="left")
    with pytest.raises(BadParameter, match="how is 'outer'; it must be 'inner' or 'left'"):
        tacit.align({"a": ["1"], "b": ["1"]}, how="outer")
    with pytest.raises(BadParameter, match="'inner' where only one party learns the result"):
        tacit.align({"a": ["1"], "b": ["1"]}, how="left", reveal="leader")
    only_ids = data.from_frame(clinic[["id", "y"]], "y", id="id")
    with pytest.raises((BadParameter, BadData), match="has no columns of its own"):
        tacit.splitnn({"clinic": only_ids, "lab": data.from_frame(lab, id="id")}, join="left")

"""What an accuracy costs on the wire: five ways in one comparison, whose bytes are the ledger's, stacked and
over real messages.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import tacit
from tacit import algorithms, data, guard
from tacit.config import job as config
from tacit.errors import BadJob, BadParameter

WAYS = {
    "none": {},
    "quantized": {"guard": [guard.Quantize(bits=8)]},
    "sparsified": {"guard": [guard.Sparsify(top_k=0.1)]},
    "lazily skipped": {"guard": [guard.Lazy(xi=4.0)]},
    "several local steps": {"local_steps": 4},
}
TOLD = {"model": "logistic", "rounds": 6, "local_steps": 1}


def fed():
    return data.digits().split(4, seed=0)


@functools.cache
def found():
    return tacit.compare(fed(), algorithms=[algorithms.FedAvg(lr=0.3)], variants=WAYS, **TOLD)


def wire(run):
    """Bytes of updates and of models, as the ledger has them."""
    return sum(s.bytes for s in run.ledger.seen if s.kind == "Upload"), sum(
        s.bytes for s in run.ledger.seen if s.kind == "Down"
    )


def test_five_variants_are_five_rows_in_addition_to_the_baselines():
    assert list(found().table().index) == [*WAYS, "central", "local only"]


@pytest.mark.parametrize("way", WAYS)
def test_bytes_until_the_last_rounds_accuracy_are_the_ledgers_stacked_and_over_messages(way):
    """An accuracy that is reached in the last round only costs all that was sent: the table's bytes are the
    ledger's to the byte.
    """
    run = found().results[list(WAYS).index(way)]
    history = run.history
    assert (sum(e["bytes_up"] for e in history), sum(e["bytes_down"] for e in history)) == wire(run)
    row = found().bytes_to(history[-1]["accuracy"]).loc[way]
    first = next(k for k, e in enumerate(history, 1) if e["accuracy"] >= history[-1]["accuracy"])
    assert row["rounds"] == first
    assert row["bytes"] == sum(e["bytes_up"] + e["bytes_down"] for e in history[:first])
    assert row["up"] == sum(e["bytes_up"] for e in history[:first])
    spoken = tacit.train(
        fed(), algorithm=algorithms.FedAvg(lr=0.3), runtime="inprocess", **{**TOLD, **WAYS[way]}
    )
    assert wire(spoken) == wire(run)
    assert [e["bytes_up"] for e in spoken.history] == [e["bytes_up"] for e in history]
    if way != "quantized":  # which rounds at random, with numbers of the operating system's
        assert [e["accuracy"] for e in spoken.history] == [e["accuracy"] for e in history]


def test_bytes_over_processes_are_those_of_the_table():
    spoken = tacit.train(
        fed(), algorithm=algorithms.FedAvg(lr=0.3), runtime="processes", **{**TOLD, **WAYS["lazily skipped"]}
    )
    assert wire(spoken) == wire(found().results[list(WAYS).index("lazily skipped")])


def test_each_variant_saves_the_stated_bytes():
    up = {name: wire(run)[0] for name, run in zip(WAYS, found().results)}
    assert up["quantized"] < 0.3 * up["none"]  # a byte for four, and what says how to read it
    assert up["sparsified"] < 0.35 * up["none"]  # a tenth of the numbers, each with its place
    assert up["lazily skipped"] < up["none"]
    assert up["several local steps"] == up["none"]  # no less a round, but
    level = found().results[0].history[-1]["accuracy"]
    assert (
        found().bytes_to(level)["rounds"]["several local steps"] < found().bytes_to(level)["rounds"]["none"]
    )


def test_what_is_never_reached_has_no_number():
    row = found().bytes_to(1.0).loc["none"]
    assert row["reached"] == 0
    assert row.isna()["bytes"]
    with pytest.raises(
        BadParameter, match="bytes_to: accuracy is 90; it must be a number above 0 and at most 1"
    ):
        found().bytes_to(90)


def test_the_report_draws_one_plot_of_all_with_the_table(tmp_path: Path):
    page = found().report(tmp_path / "page.html").read_text()
    assert page.count("Accuracy vs. bytes sent") >= 1
    assert "sent to reach 95% of its best" in page
    lowest = min(max(e["accuracy"] for e in run.history) for run in found().results[:5])
    assert f"sent to reach {int(100 * lowest)}" in page


@pytest.mark.parametrize(
    ("variants", "text"),
    [
        (
            {"a": {"depth": 3}},
            "a setting of the variant 'a' is 'depth'; it must be one of 'guard', 'local_epochs'",
        ),
        ([1], r"compare: variants is \[1\]; it must be settings by name"),
        ({}, "settings by name, such as"),
        ({"a": {"local_steps": 0}}, "local_steps is 0"),
    ],
    ids=["key", "list", "none", "value"],
)
def test_bad_variants(variants, text):
    with pytest.raises(BadParameter, match=text):
        tacit.compare(fed(), algorithms=[algorithms.FedAvg()], variants=variants, **TOLD)


def test_a_guard_for_all_and_one_of_a_variants_own_do_not_go_together():
    with pytest.raises(
        BadParameter,
        match="guards is 'given'; it must be None where a variant has a guard of its own, as 'quantized' has",
    ):
        tacit.compare(fed(), algorithms=[algorithms.FedAvg()], guards=[None], variants=WAYS, **TOLD)


def test_the_example_is_this_comparison_and_survives_being_written_down(tmp_path: Path):
    job = config.load(Path(__file__).parents[2] / "examples" / "communication.toml")
    told = job.compare()
    assert list(told["variants"]) == list(WAYS)
    assert told["variants"]["lazily skipped"] == {"guard": [guard.Lazy(xi=4.0)]}
    (tmp_path / "again.toml").write_text(config.dumps(job.resolved()))
    assert config.load(tmp_path / "again.toml").comparison == job.comparison
    with pytest.raises(BadJob, match="lists several"):
        job.train()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[variants]]\nlocal_steps = 2\n", "a list of tables with a label each"),
        ('[[variants]]\nlabel = "a"\n[[variants]]\nlabel = "a"\n', "two have the same label"),
        ('[[variants]]\nlabel = "a"\nlocal_step = 2\n', r"variants\[0\].*local_step"),
    ],
    ids=["label", "twice", "key"],
)
def test_bad_variants_in_a_job_file(tmp_path: Path, text: str, told: str):
    (tmp_path / "job.toml").write_text('[data]\nname = "digits"\nparties = 3\n' + text)
    with pytest.raises(BadJob, match=told):
        config.load(tmp_path / "job.toml")

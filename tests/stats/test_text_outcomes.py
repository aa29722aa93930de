"""`positive="yes"`: an outcome of two texts, of which one is the event."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import cli
from tacit.errors import BadData, BadParameter
from tacit.parameters import propose_lines
from tacit.stats.design import Agreement
from tacit.stats.regression import START, GlmProgram
from tests.stats.references import split


def people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(size=n)
    ill = rng.random(n) < 1 / (1 + np.exp(-0.8 * age + 0.3))
    return pd.DataFrame({"age": age, "ill": np.where(ill, "yes", "no"), "y": ill * 1, "code": ill + 1})


@pytest.mark.parametrize(
    ("formula", "positive"), [("ill ~ age", "yes"), ("C(ill) ~ age", "yes"), ("C(code) ~ age", 2)]
)
def test_a_text_outcome_gives_the_fit_of_the_same_outcome_in_numbers(formula, positive):
    fed = split(people(), 3)
    want = tacit.stats.glm(fed, "y ~ age")
    found = tacit.stats.glm(fed, formula, positive=positive)
    pd.testing.assert_frame_equal(found.summary(), want.summary(), atol=1e-9)
    assert found.aic == pytest.approx(want.aic)
    name = formula.split(" ~")[0].removeprefix("C(").removesuffix(")")
    assert f"The event (1) is {name} = {positive!r}." in found.notes
    rows = people(5)[["age"]]
    np.testing.assert_allclose(found.predict(rows), want.predict(rows), atol=1e-9)


def test_the_other_value_as_the_event_turns_the_signs():
    fed = split(people(), 3)
    yes, no = (tacit.stats.glm(fed, "ill ~ age", positive=p).summary()["coef"] for p in ("yes", "no"))
    np.testing.assert_allclose(yes, -no, atol=1e-7)


def test_options_of_the_model_go_with_a_text_outcome():
    fed = split(people(), 3)
    for more in ({"robust": "HC1"}, {"firth": True}, {"l2": 0.1}, {"link": "probit"}):
        found = tacit.stats.glm(fed, "ill ~ age", positive="yes", **more).summary()
        pd.testing.assert_frame_equal(found, tacit.stats.glm(fed, "y ~ age", **more).summary(), atol=1e-8)


def test_without_a_declared_event_the_error_shows_how():
    """Before: "the outcome is not a number. Code it as 0 and 1"."""
    fed = split(people(), 3)
    with pytest.raises(BadData, match=r"the event: positive='no' or positive='yes'\.$"):
        tacit.stats.glm(fed, "ill ~ age")
    with propose_lines(), pytest.raises(BadData, match='the event: positive = "no" or positive = "yes"'):
        tacit.stats.glm(fed, "ill ~ age")


@pytest.mark.parametrize("query", ["gee", "mixed", "meta"])
def test_a_model_of_sites_says_that_it_needs_0_and_1(query):
    """Before: "glm: … Say which is the event: positive='yes'", which these queries do not take."""
    more = {"open_sites": True} if query == "meta" else {}
    with pytest.raises(
        BadData, match=rf"^{query}: .* is text, 'no' and 'yes', and {query} needs 0 and 1"
    ) as e:
        getattr(tacit.stats, query)(split(people(), 3), "ill ~ age", **more)
    assert "positive" not in str(e.value)
    assert ".map({EVENT: 1, OTHER: 0})" in str(e.value)


def test_an_event_of_two_texts_has_its_values_in_the_error_and_not_outside():
    frame = people().assign(t=np.arange(300) + 1.0)
    times = {"time": "t", "event": "ill"}
    for ask in (
        lambda fed: tacit.stats.cox(fed, "age", **times),
        lambda fed: tacit.stats.kaplan_meier(fed, **times),
        lambda fed: tacit.stats.logrank(fed, by="code", **times),
    ):
        with pytest.raises(BadData, match=r"It is text, 'no' and 'yes'\. Replace the value") as error:
            ask(split(frame, 3))
        assert "yes" not in error.value.outside
    with pytest.raises(BadData, match="Code it so, or leave these rows out"):
        tacit.stats.kaplan_meier(
            split(frame.assign(ill=frame["ill"].where(frame.index > 9, "?")), 3), **times
        )


def test_values_that_differ_between_parties_are_not_taken_for_the_other_value():
    frame = people()
    frame.loc[:99, "ill"] = frame.loc[:99, "ill"].replace("yes", "Yes")
    fed = {"a": frame[:100], "b": frame[100:]}
    with pytest.raises(BadData, match="is text with 3 different values at all parties together") as error:
        tacit.stats.glm(fed, "ill ~ age", positive="yes")
    assert "Yes" not in str(error.value)


@pytest.mark.parametrize(
    ("formula", "options", "words"),
    [
        (
            "ill ~ age",
            {"positive": "Yes"},
            "positive is 'Yes', and the outcome 'ill' has the values 'no' and",
        ),
        ("y ~ age", {"positive": 1}, r"the outcome 'y' is a number. Leave positive out.*C\(y\)"),
        ("y ~ age", {"positive": 1, "family": "poisson"}, "it is for family='binomial'"),
        ("ill ~ age", {"positive": ["yes"]}, "a level of the outcome, like 'yes'"),
        ("y + code ~ age", {"positive": "yes"}, "must have one outcome on the left"),
    ],
)
def test_what_cannot_be_an_event_is_named(formula, options, words):
    with pytest.raises((BadData, BadParameter), match=words):
        tacit.stats.glm(split(people(), 3), formula, **options)


def test_a_private_model_refuses_it_clearly():
    with pytest.raises(BadParameter, match="positive"):
        tacit.stats.glm(split(people(), 3), "ill ~ age", positive="yes", epsilon=3.0, bounds={"age": (-3, 3)})


@pytest.mark.parametrize("levels", [("no", "yes", "maybe"), ("maybe", "no"), ("yes",)])
def test_a_party_refuses_a_coordinators_other_levels_of_the_outcome(levels):
    """A lying coordinator would make an event of its choice of them: nothing is sent."""
    frame = people()
    program = GlmProgram("ill ~ age", positive="yes")
    down = program.coordinate()
    next(down)
    request = down.send(program.local(0, frame, {}))
    assert int(request["phase"]) == START
    assert len(program.local(1, frame, request))
    with pytest.raises(BadData, match=r"exactly two|has the values|of which no party has 2 rows"):
        program.local(1, frame.copy(), request | {"levels": Agreement({"ill": levels}).to_tensor()})


def test_rare_events_are_refused_as_of_a_number():
    frame = people().assign(ill="no")
    frame.loc[:2, "ill"] = "yes"
    with pytest.raises(tacit.errors.QueryRefused, match="'ill'"):
        tacit.stats.glm(split(frame, 3), "ill ~ age", positive="yes")


@pytest.mark.parametrize("positive", ["yes", None])
def test_a_job_file_declares_the_event(tmp_path, monkeypatch, capsys, positive):
    monkeypatch.chdir(tmp_path)
    for name, part in split(people(), 3).items():
        part.to_csv(f"{name}.csv", index=False)
    lines = ["[stats]", 'formula = "ill ~ age"', *([f'positive = "{positive}"'] if positive else [])]
    lines += ["[parties]", *(f'{name} = "{name}.csv"' for name in split(people(), 3))]
    Path("job.toml").write_text("\n".join(lines))
    code = cli.main(["stats", "glm", "job.toml"])
    out, err = capsys.readouterr()
    if positive:
        assert code == 0, err
        assert "The event (1) is ill = 'yes'." in out + err
        return
    assert code == 2
    line = re.search(r'positive = "yes"', err)[0]  # the proposal, pasted
    Path("job.toml").write_text("\n".join([lines[0], line, *lines[1:]]))
    assert cli.main(["stats", "glm", "job.toml"]) == 0

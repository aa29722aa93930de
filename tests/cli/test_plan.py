"""`tacit plan` takes every job file, and says what its job would reveal."""

from __future__ import annotations

import numpy as np
import pytest

import tacit
from tacit import data
from tacit.jobs.plan_file import verb_of

from .shell import EXAMPLES, ROOT, answer, provision, refused, run

RUN = '[data]\nname = "gaussian_blobs"\nrows = 200\nparties = 4\n[model]\nname = "logistic"\n[train]\nrounds = 3\n'
ONE_HOLDER = '[data]\nname = "gaussian_blobs"\nrows = 2000\n[model]\nname = "logistic"\n'
REAL = (
    '[data]\nlabel = "ill"\nlabels = ["no", "yes"]\nnumbers = ["age"]\n[model]\nname = "logistic"\n'
    "[train]\nrounds = 3\n"
)
SPLIT = (
    '[split]\nlabels = "bank"\n[parties.bank]\nid = "id"\nlabel = "default"\nbottom = [8]\n'
    '[parties.shop]\nid = "customer"\nbottom = [8]\n'
)


def plan(folder, capsys, text: str, *more: str):
    (folder / "any.toml").write_text(text)
    return answer(capsys, "plan", "any.toml", *more)


def text_of(folder, capsys, text: str, *more: str) -> str:
    (folder / "any.toml").write_text(text)
    code, out, err = run(capsys, "plan", "any.toml", *more)
    assert code == 0, err
    return out


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_every_example_has_a_plan(folder, capsys, file):
    value = answer(capsys, "plan", str(file))
    for one in value.get("plans", [value]):
        assert any(line["party"] == "the server" for line in one["sees"])


def test_private_steps_of_a_federation_have_their_epsilon(folder, capsys):
    value = plan(folder, capsys, RUN + "[private]\nepsilon = 2.0\npublic_size = 40\n")
    assert 1.9 < value["spends"]["epsilon"] <= 2.0
    assert value["spends"]["unit"].startswith("row of any party")


def test_one_holder_with_a_budget_or_with_a_noise_multiplier(folder, capsys):
    budget = plan(folder, capsys, ONE_HOLDER + "[private]\nepsilon = 3.0\nepochs = 4\npublic_size = 2000\n")
    assert 2.9 < budget["spends"]["epsilon"] <= 3.0
    z = budget["spends"]["multiplier"]
    noise = plan(
        folder, capsys, ONE_HOLDER + f"[private]\nnoise_multiplier = {z}\nepochs = 4\npublic_size = 2000\n"
    )
    assert noise["spends"]["epsilon"] == pytest.approx(budget["spends"]["epsilon"], rel=1e-6)
    counted = plan(folder, capsys, ONE_HOLDER + "[private]\nepsilon = 3.0\nepochs = 4\n")
    assert "do not publish" in counted["notes"][0]
    assert counted["spends"]["multiplier"] > z  # a part of ε pays for the noisy count
    loud = plan(folder, capsys, ONE_HOLDER + "[private]\nnoise_multiplier = 0.0\n")
    assert loud["spends"] is None
    assert "NOT PRIVATE" in loud["notes"][0]


def test_the_epsilon_of_a_plan_is_that_of_the_run(folder, capsys):
    """`tacit train-private` spends what its plan says."""
    job = ONE_HOLDER + "[private]\nnoise_multiplier = 1.1\nepochs = 2\npublic_size = 2000\n"
    planned = plan(folder, capsys, job)["spends"]["epsilon"]
    ran = answer(capsys, "train-private", "any.toml", "--out", "run", "--quiet")
    assert ran["metrics"]["epsilon"] == pytest.approx(planned, rel=1e-6)


def test_a_comparison_without_algorithms_is_planned_as_it_is_run(folder, capsys):
    """Before, the plan of a comparison on a table was that of FedAvg with 10 rounds, and its ε too small."""
    lines = [f"{k % 3},{k % 7},{'yn'[k * k % 5 > 1]}" for k in range(240)]
    (folder / "t.csv").write_text("site,age,ill\n" + "\n".join(lines))
    job = '[data]\npath = "t.csv"\nlabel = "ill"\nby = "site"\n[train]\nseeds = [0, 1]\n'
    planned = plan(folder, capsys, job)
    (one,) = planned.get("plans", [planned])
    assert one["rounds"] == 30
    fed = tacit.data.from_csv(folder / "t.csv", label="ill").by("site")
    compared = tacit.compare(fed)
    assert {r.config["train"]["rounds"] for r in compared.results} == {30}
    assert one["bytes_up"] == tacit.plan(fed).bytes_up
    given = plan(folder, capsys, job + "rounds = 4\n")
    assert given.get("plans", [given])[0]["rounds"] == 4


def test_votes_of_teachers_have_an_epsilon_before_they_are_counted(folder, capsys):
    value = plan(
        folder, capsys, '[data]\nname = "digits"\n[pate]\nteachers = 40\nqueries = 50\nepsilon = 4.0\n'
    )
    assert value["spends"]["epsilon"] == 4.0
    assert value["verb"] == "tacit pate"


def test_parties_with_different_columns_see_what_crosses_the_cut(folder, capsys):
    text = text_of(folder, capsys, SPLIT)
    assert "bank sees: what the sender's part of the network lets through of each row" in text
    assert "shop sees: the loss's gradient at the cut" in text
    ftl = SPLIT.replace("split", "ftl").replace("bottom = [8]\n", "").replace('labels = "bank"\n', "")
    assert "run it with `tacit ftl any.toml`" in text_of(folder, capsys, ftl)


def test_real_parties_are_planned_with_and_without_a_kit(folder, capsys):
    text = text_of(folder, capsys, REAL)
    assert text.startswith("3 parties")
    assert "this is the plan for 3 clients" in text
    assert "held-out rows" in text.split("every party sees")[0]  # what the server sees of the evaluation
    assert text_of(folder, capsys, REAL, "--parties", "5").startswith("5 parties")
    provision("a", "b", "c", "d")
    capsys.readouterr()
    assert plan(folder, capsys, REAL, "--kit", "kits/server")["parties"] == 4
    text = refused(capsys, "plan", "any.toml", "--kit", "kits/server", "--parties", "2")
    assert "Leave out --parties" in text


def test_files_that_are_no_single_job_name_the_verb_that_plans_them(folder, capsys):
    study = next((ROOT / "src" / "tacit" / "studies").glob("*.toml"))
    assert "tacit study" in refused(capsys, "plan", str(study))
    (folder / "any.toml").write_text('[age]\nkind = "number"\nlow = 0\nhigh = 100\n')
    assert "`tacit synthesize`" in refused(capsys, "plan", "any.toml")
    (folder / "any.toml").write_text(RUN)
    assert "--parties is for jobs of real parties" in refused(capsys, "plan", "any.toml", "--parties", "3")


def test_the_verb_of_a_file_follows_from_its_tables():
    assert verb_of({"data": {"path": "a.csv", "label": "y", "by": "site"}, "private": {}}) == "run"
    assert verb_of({"data": {"path": "a.csv", "label": "y"}, "private": {}}) == "train-private"
    assert verb_of({"data": {"label": "y"}, "private": {}}) == "party"
    assert verb_of({}) == "run"


STATS = '[stats]\nformula = "y ~ x"\n[parties]\na = "a.csv"\n'
BOOST = '[boost]\nlabel = "y"\nfeatures = ["x"]\n[parties]\na = "a.csv"\n'


@pytest.mark.parametrize(
    ("command", "text", "says"),
    [
        ("run", STATS, "`tacit stats QUERY any.toml`, with a QUERY such as describe, glm or cox."),
        ("plan", BOOST, "`tacit boost any.toml`."),
        ("boost", STATS, "`tacit stats QUERY any.toml`, with"),
        ("stats glm", BOOST, "`tacit boost any.toml`."),
        ("run", SPLIT, "`tacit split any.toml`."),
        ("stats glm", RUN, "`tacit run any.toml`."),
    ],
)
def test_the_job_of_another_verb_is_named_with_its_command(folder, capsys, command, text, says):
    """Before: "'stats' is not known here. Known: adversaries, aggregate, …" and two further problems."""
    (folder / "any.toml").write_text(text)
    err = refused(capsys, *command.split(), "any.toml")
    assert "any.toml is a job of `tacit " in err
    assert f"Run it by {says}" in err
    assert "Known:" not in err


def test_a_job_with_a_table_too_many_is_still_of_its_own_verb(folder, capsys):
    (folder / "any.toml").write_text(RUN + '[stats]\nformula = "y ~ x"\n')
    assert "'stats' is not known here" in refused(capsys, "run", "any.toml")


def test_one_party_and_one_round_are_not_plural() -> None:
    rows = data.from_arrays(np.zeros((20, 2)), np.arange(20) % 2, classes=2)
    for parties, words in ((1, "1 party, 1 a round, 1 round"), (2, "2 parties, 2 a round, 1 round")):
        outlook = tacit.plan(rows.split(parties, seed=0), model="logistic", rounds=1)
        assert str(outlook).splitlines()[0] == words

"""The page for a data-protection officer: facts of the run's records, open answers, attacks, evidence."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest

import tacit
from tacit import data, guard
from tacit.errors import BadRun, MissingFiles
from tacit.report.dpo import TEXTS, draft_answers, read_assessment, render_dpo

from ..cli.shell import refused, said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty parties, clipped and noisy sums, in a directory that no test changes."""
    path = tmp_path_factory.mktemp("dpo") / "run"
    stages = [guard.Clip(1.0), guard.Noise(epsilon=2.0, delta=1e-3), guard.Quantize(bits=16), guard.SecAgg()]
    tacit.train(data.digits().split(20, seed=0), model="logistic", rounds=2, guard=stages, out=path)
    return path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_the_page_states_what_the_ledger_states(run: Path) -> None:
    page = render_dpo(read_assessment(run))
    ledger = json.loads((run / "ledger.json").read_text())
    for line in ledger["seen"]:
        assert line["reveals"].replace("'", "&#x27;") in page
    (spent,) = ledger["spent"]
    assert f"ε = {spent['epsilon']:.3g}" in page
    assert "received the update of a single party in the clear" in page
    assert "This run was a simulation on one machine" in page
    assert spent["adversary"] in page.split('id="processing"')[0]  # whom ε does not stop is in the summary


def test_epsilon_is_stated_as_odds(run: Path) -> None:
    (spent,) = json.loads((run / "ledger.json").read_text())["spent"]
    share = math.exp(spent["epsilon"]) / (1 + math.exp(spent["epsilon"]))
    page = render_dpo(read_assessment(run))
    assert f"at most {math.ceil(share * 1000) / 10:.1f}% sure" in page
    # an officer takes "client" for a person; here a party with everybody in it is protected
    assert "the data of one party, with all of its rows, was used" in page
    assert "reveals about one client" not in page
    assert "it holds for each person whose rows only this party has" in page
    assert "Guarantees about the same rows add up" in page


def test_updates_in_the_clear_are_called_out(tmp_path: Path) -> None:
    tacit.train(data.digits().split(3, seed=0), model="logistic", rounds=1, out=tmp_path / "plain")
    page = render_dpo(read_assessment(tmp_path / "plain"))
    assert "received updates of single parties, not only sums" in page
    assert "No mathematical guarantee" in page
    assert "No protection of updates was configured" in page


def test_open_questions_are_marked_until_they_are_answered(run: Path, tmp_path: Path) -> None:
    page = render_dpo(read_assessment(run))
    assert page.count("TO BE FILLED IN") == 11
    answers = tmp_path / "answers.toml"
    answers.write_text(draft_answers().replace('purpose = ""', 'purpose = "To find <b>sepsis</b> early."'))
    page = render_dpo(read_assessment(run, answers))
    assert page.count("TO BE FILLED IN") == 10
    assert "To find &lt;b&gt;sepsis&lt;/b&gt; early." in page


def test_attacks_and_their_verdict_are_shown(copy: Path) -> None:
    assert "No attack was tried" in render_dpo(read_assessment(copy))
    finding = {
        "adversary": "the server",
        "attack": "inversion",
        "could": "rebuild rows",
        "did": "rebuilt <0>%",
        "stops": "SecAgg",
        "limit": 0.05,
        "verdict": "within the limit",
    }
    (copy / "audit.json").write_text(json.dumps({"passed": True, "findings": [finding]}))
    page = render_dpo(read_assessment(copy))
    assert "rebuilt &lt;0&gt;% [within the limit]" in page
    assert "no attack exceeded its limit" in page
    (copy / "audit.json").write_text(json.dumps({"passed": False, "findings": [finding]}))
    assert "It is not released" in render_dpo(read_assessment(copy))


def test_evidence_is_the_digest_of_each_file_and_a_changed_model_is_named(copy: Path) -> None:
    page = render_dpo(read_assessment(copy))
    for name in ("job.toml", "ledger.json", "events.jsonl", "model.safetensors"):
        assert hashlib.sha256((copy / name).read_bytes()).hexdigest() in page
    assert "was changed after the run" not in page
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "model.safetensors does not match the digest" in render_dpo(read_assessment(copy))


def test_a_translation_replaces_every_text_and_a_partial_one_is_refused(run: Path, tmp_path: Path) -> None:
    words = tmp_path / "de.toml"
    words.write_text(TEXTS.read_text().replace('summary = "Summary"', 'summary = "Zusammenfassung"'))
    assert "Zusammenfassung" in render_dpo(read_assessment(run, texts=words))
    words.write_text('language = "de"\n[sections]\nsummary = "Zusammenfassung"\n')
    with pytest.raises(BadRun, match=r"lacks title, foot, .*sections.processing"):
        read_assessment(run, texts=words)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("answers.toml", "purpose = 5", "has 'purpose'; expected texts for controller, purpose"),
        ("answers.toml", 'porpoise = "x"', "has 'porpoise'; expected texts"),
        ("answers.toml", "purpose = ", "is not TOML"),
    ],
)
def test_bad_answers_are_named(run: Path, tmp_path: Path, file: str, content: str, says: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(BadRun, match=says):
        read_assessment(run, tmp_path / file)
    with pytest.raises(MissingFiles, match="there is no file"):
        read_assessment(run, tmp_path / "none.toml")


def test_the_command_writes_a_draft_a_page_and_a_pdf(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(capsys, "dpo", "run", "--draft", "answers.toml")[0] == 0
    assert "legal_basis" in Path("answers.toml").read_text()
    assert "so that no answer is lost" in refused(capsys, "dpo", "run", "--draft", "answers.toml")
    code, text = said(capsys, "dpo", "run", "--answers", "answers.toml", "-o", "page.pdf")
    assert code == 0, text
    assert Path("page.pdf").read_bytes().startswith(b"%PDF")
    assert "open    controller" in text
    assert "must end in .html or .pdf" in refused(capsys, "dpo", "run", "-o", "page.docx")
    assert "is not a run directory" in refused(capsys, "dpo", ".")

"""Text columns masked by a spaCy pipeline through Presidio: a real pipeline on disk, and no network."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pandas
import pytest
import spacy

from tacit import cli
from tacit.anonymity import mask_text
from tacit.errors import BadData, BadParameter, MissingExtra

TEXT = "Dr. Weiss and Zebulon of Acme Trust met in Zurich; write to zebulon@example.org."
PATTERNS = [
    {"label": "PERSON", "pattern": "Zebulon"},
    {"label": "PERSON", "pattern": "Dr. Weiss"},  # a rule masks a part of it
    {"label": "GPE", "pattern": "Zurich"},
    {"label": "ORG", "pattern": "Acme Trust"},
    {"label": "PERSON", "pattern": "zebulon@example.org"},  # a rule masks all of it
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of patterns: as loaded from disk as a trained one."""
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns(PATTERNS)  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("pipelines") / "en"
    pipeline.to_disk(folder)
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def notes(*texts: str | None) -> pandas.DataFrame:
    return pandas.DataFrame({"note": list(texts)})


def test_entities_of_the_model_are_masked_beside_what_rules_find(model: Path) -> None:
    masked = mask_text(notes(TEXT, None), ["note"], model=model)
    assert masked.table["note"][0] == (
        "[NAME]. [NAME] and [NAME] of [ORGANIZATION] met in [PLACE]; write to [EMAIL]."
    )
    assert masked.table["note"].isna().tolist() == [False, True]
    assert masked.found["note"][["name", "place", "organization", "email", "id"]].tolist() == [3, 1, 1, 1, 0]


def test_kinds_limit_what_the_model_masks(model: Path) -> None:
    masked = mask_text(notes(TEXT), ["note"], model=model, kinds=["place"])
    assert masked.table["note"][0] == TEXT.replace("Zurich", "[PLACE]")


def test_bad_models_are_refused_with_what_to_do(model: Path, tmp_path: Path) -> None:
    frame = notes(TEXT)
    with pytest.raises(BadParameter, match=r"neither a folder .* Nothing is downloaded: install"):
        mask_text(frame, ["note"], model="en_core_web_none")
    with pytest.raises(BadParameter, match="is for the language 'en', and language='de'"):
        mask_text(frame, ["note"], model=model, language="de")
    with pytest.raises(BadParameter, match="Places are found by a model: give model="):
        mask_text(frame, ["note"], kinds=["place"])
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(BadParameter, match="finds no entities; it has no parts"):
        mask_text(frame, ["note"], model=tmp_path / "blank")
    (tmp_path / "blank" / "config.cfg").write_text("[nlp]\nlang = 3\n")
    with pytest.raises(BadData, match="cannot be loaded"):
        mask_text(frame, ["note"], model=tmp_path / "blank")


def test_without_the_extra_the_install_line_is_printed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tacit\[text\]'"):
        mask_text(notes(TEXT), ["note"], model=model)


def test_the_command_masks_with_a_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pandas.DataFrame({"age": [30] * 10, "note": [TEXT] * 10}).to_csv("t.csv", index=False)
    words = ["anonymize", "t.csv", "--quasi", "age", "--k", "5", "--force", "--out", "o.csv"]
    assert cli.main([*words, "--mask", "note", "--text-model", str(model)]) == 0
    assert "Zurich" not in Path("o.csv").read_text()
    assert "[PLACE]" in Path("o.csv").read_text()
    assert "Recognizer" not in capsys.readouterr().err
    assert cli.main([*words, "--text-model", str(model)]) != 0
    assert "need --mask" in capsys.readouterr().err
    assert cli.main([*words, "--mask", "note", "--text-language", "de"]) != 0
    assert "needs --text-model" in capsys.readouterr().err

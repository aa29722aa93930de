"""Names, places and ids that a language model finds in text: Presidio with a spaCy pipeline from this disk.

The pipeline is loaded from a folder, or is an installed package such as `en_core_web_lg`. Presidio by itself
downloads a missing pipeline, and its recognizer of e-mail addresses asks the network for a list of domains:
neither is used here. Text never leaves the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadData, BadParameter, MissingExtra

# the kinds of masking.py for Presidio's entities; those of no row are ids (passports, tax numbers, …)
KINDS_OF_ENTITIES = {
    "PERSON": "name",
    "LOCATION": "place",
    "NRP": "place",  # nationalities, religions, political groups
    "ORGANIZATION": "organization",
    "DATE_TIME": "date",
    "EMAIL_ADDRESS": "email",
    "URL": "url",
    "IBAN_CODE": "iban",
    "CREDIT_CARD": "card",
    "IP_ADDRESS": "ip",
    "PHONE_NUMBER": "phone",
}
LEAST_SCORE = (
    0.4  # Presidio gives less to a pattern that fits any number of its length without a word beside it
)


class Found(NamedTuple):
    """A part of a text, and what the model takes it for."""

    start: int
    end: int
    kind: str


def load_model(model: str | Path, language: str) -> Callable[[str], list[Found]]:
    """Return a function that finds entities in a text; `model` is a folder or an installed package."""
    try:
        import spacy
        from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
        from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine
    except ImportError as error:
        raise MissingExtra("mask_text(model=…)", "text", error.name or "presidio-analyzer") from error

    named = f"model={str(model)!r}"
    try:
        pipeline = spacy.load(model)
    except OSError as error:
        raise BadParameter(
            f"mask_text: {named} is neither a folder with a spaCy pipeline nor an installed one. "
            "Nothing is downloaded: install the pipeline here, or give its folder."
        ) from error
    except (ValueError, ImportError) as error:
        raise BadData(f"mask_text: the spaCy pipeline {str(model)!r} cannot be loaded: {error}") from error
    if pipeline.lang not in (language, "xx"):  # xx: pipelines for several languages
        raise BadParameter(
            f"mask_text: {named} is for the language {pipeline.lang!r}, and language={language!r}. "
            "Give the language of the texts, and a pipeline for it."
        )
    if not {"ner", "entity_ruler", "span_ruler", "transformer"} & set(pipeline.pipe_names):
        raise BadParameter(
            f"mask_text: {named} finds no entities; it has {pipeline.pipe_names or 'no parts'}. "
            "Give one with named-entity recognition (a part named 'ner')."
        )

    class LoadedPipeline(SpacyNlpEngine):
        """Presidio's engine around a pipeline that is loaded already, so that it downloads none."""

        def __init__(self) -> None:
            # organizations are left out by Presidio's default
            super().__init__(ner_model_configuration=NerModelConfiguration(labels_to_ignore=[]))
            self.nlp = {language: pipeline}  # type: ignore[assignment]

    engine = LoadedPipeline()
    registry = RecognizerRegistry(supported_languages=[language])
    logger = logging.getLogger("presidio-analyzer")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of each recognizer that is for another language
    registry.load_predefined_recognizers(languages=[language], nlp_engine=engine)
    logger.setLevel(level)
    registry.remove_recognizer("EmailRecognizer")  # it asks the network; masking.py has a rule
    analyzer: Any = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[language])

    def find(text: str) -> list[Found]:
        found = analyzer.analyze(text=text, language=language, score_threshold=LEAST_SCORE)
        return sorted(Found(r.start, r.end, KINDS_OF_ENTITIES.get(r.entity_type, "id")) for r in found)

    return find

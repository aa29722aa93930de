"""Score the rows of a file: CSV or Parquet, of any length, some rows at a time.

Every cell of a CSV file is read as text and interpreted as the pipeline declares its column. What a cell
means then does not depend on the other rows: a file with one row is read as one with a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from ..data.table_files import check_encoding, check_table_name, read_chunks, read_header, write_table
from ..data.thousands import refuse_thousands
from ..errors import BadData, BadParameter
from ..files import check_free
from ..parameters import bad, nearest
from .release import Release
from .score import (
    check_threshold,
    count_unseen,
    decode,
    evaluate,
    interpret,
    note_unseen,
    select_columns,
)

if TYPE_CHECKING:
    import pandas

    from ..data.recipe import Recipe


class Scored(NamedTuple):
    """How many rows were scored, where they are, and what is to be said about them."""

    rows: int
    out: Path
    notes: list[str]


@dataclass(frozen=True)
class FileModel:
    """A model of a table, as it scores a file: what its columns are, and the scores of some rows."""

    recipe: Recipe
    labels: tuple[str, ...]  # of the classes; none: the prediction is a number
    score: Callable[[pandas.DataFrame], Mapping[str, Any]]  # rows with the recipe's columns → columns
    label: str = ""  # the column that was predicted in training, if it is known
    unseen: str = "as no category"  # what a category is to the model that training rows did not have
    produced: tuple[str, ...] = ()  # the columns that `score` returns; default: p(label) and `prediction`


def score_file(
    release: Release,
    module: nn.Module,
    path: str | Path,
    out: str | Path,
    *,
    threshold: float | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Scored:
    """Score a file with the model of a run, as `write_scores` does.

    Without `separator` and `decimal` the file is read as the job declares its own, and without `encoding` as
    UTF-8 or else as the job declares.
    """
    if release.pipeline is None:
        raise BadParameter(
            "predict: this model was not trained on a table, so it cannot read one. Call run.predict(array) "
            "in Python."
        )
    pipeline, usual = release.pipeline, release.metadata.get("reading", {})
    threshold = check_threshold(release, threshold)

    def score(frame: pandas.DataFrame) -> Mapping[str, Any]:
        return decode(release, evaluate(release, module, pipeline.encode(frame)), threshold)

    return write_scores(
        FileModel(pipeline.recipe, tuple(release.labels), score, pipeline.label),
        path,
        out,
        separator=separator or usual.get("separator"),
        decimal=decimal or usual.get("decimal", "."),
        encoding=encoding or (f"utf-8, {usual['encoding']}" if "encoding" in usual else None),
        **options,
    )


def write_scores(
    model: FileModel,
    path: str | Path,
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    force: bool = False,
) -> Scored:
    """Write the scores of a file's rows, in their order, to a new file; `keep` are columns to copy to it.

    The new file appears when it is complete, or not at all.
    """
    decimal = decimal or "."
    if decimal not in (".", ","):
        raise bad("predict", "decimal", decimal, "'.' or ','")
    check_encoding("predict", encoding)
    check_table_name(out, "predict: --out ")
    file = check_free(out, force, [path])
    names = read_header(path, separator, encoding).names
    produced = model.produced or (*(f"p({label})" for label in model.labels), "prediction")
    for column in keep:
        if column not in names:
            raise BadData(f"predict: {path} has no column {column!r} to keep. {nearest(column, list(names))}")
        if column in produced:
            raise BadParameter(
                f"predict: --keep {column}: the output has a column of this name. Rename yours."
            )
    notes: list[str] = []
    unseen: dict[str, tuple[int, str]] = {}
    count = 0

    def parts() -> Iterator[pandas.DataFrame]:
        nonlocal count, notes
        for chunk in read_chunks(path, separator=separator, encoding=encoding):
            if chunk.empty:
                continue  # only column names: refused below
            frame, notes = select_columns(model.recipe, chunk, model.label, keep, str(path))
            if decimal == ",":
                refuse_thousands(path, frame[list(model.recipe.numbers)], least=0)
            try:
                frame = interpret(frame, model.recipe, decimal)
                columns = model.score(frame)
            except BadData as error:
                place = f", in rows from {count + 1:,} on" if count else ""
                raise BadData(f"{path}{place}: {error}") from None
            for name, (cells, example) in count_unseen(frame, model.recipe).items():
                before, first = unseen.get(name, (0, example))
                unseen[name] = (before + cells, first)
            scores = chunk[list(keep)].assign(**columns)
            count += len(scores)
            yield scores
        if not count:
            raise BadData(f"{path} has column names and no rows. Give at least one row.")

    write_table(parts(), file, text_columns=keep)
    return Scored(count, file, [*notes, *note_unseen(unseen, model.recipe, model.unseen)])

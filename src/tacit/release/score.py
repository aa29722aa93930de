"""Apply a model to new rows: one or a million, the same numbers everywhere.

Rows are prepared by the pipeline, whose statistics are those of training, never those of the new rows.
tacit's own models are evaluated in 64 bits: the probability of a row then does not depend on the rows beside
it, nor on the machine, beyond the last digits.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.arrays import has_several, to_inputs
from ..data.cells import float_texts, to_text
from ..data.inputs import Inputs, outline_of
from ..data.recipe import OTHER
from ..data.table_files import NULLS
from ..engine.calling import call
from ..errors import BadData, BadParameter, BadRun
from ..parameters import bad, nearest

if TYPE_CHECKING:
    import pandas

    from ..data.recipe import Recipe
    from .release import Release

TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")  # as `read_table` reads them
CODE = r"0\d+"  # a number with leading zeros is a code
SHOWN = 10  # columns that an error or a note names
ROWS = 8192  # evaluated at a time, which bounds memory


def score(release: Release, module: nn.Module, rows: Any, threshold: float | None = None) -> pandas.DataFrame:
    """Return probabilities and predictions, as `Result.predict` describes."""
    import pandas as pd

    threshold = check_threshold(release, threshold)
    notes: list[str] = []
    if release.pipeline is None:
        x = _encoded(release, rows)
        index = pd.RangeIndex(len(x))
    else:
        recipe = release.pipeline.recipe
        frame, notes = select_columns(recipe, rows, release.pipeline.label)
        frame = interpret(frame, recipe)
        x, index = release.pipeline.encode(frame), frame.index
        notes += note_unseen(count_unseen(frame, recipe), recipe)
    columns = decode(release, evaluate(release, module, x), threshold)
    scored = pd.DataFrame(columns, index=index)
    scored.attrs["notes"] = notes
    return scored


def select_columns(
    recipe: Recipe, rows: Any, label: str = "", keep: Sequence[str] = (), source: str = "the table"
) -> tuple[pandas.DataFrame, list[str]]:
    """Return the recipe's columns of a table, and notes about those that are ignored.

    One error names all missing columns, and calls the table `source`. Columns in `keep` are used otherwise,
    and not noted.
    """
    import pandas as pd

    if not isinstance(rows, pd.DataFrame):
        hint = {pd.Series: "For one row: series.to_frame().T.", dict: "For one row: pandas.DataFrame([row])."}
        must_be = "a pandas DataFrame with the columns of the training table"
        raise bad("predict", "rows", type(rows).__name__, must_be, hint.get(type(rows), ""))
    frame = rows.rename(columns=str)
    known = list(frame.columns)
    needed = recipe.inputs
    twice = sorted({c for c in needed if known.count(c) > 1})
    missing = [c for c in needed if c not in known]
    if missing or twice:
        problems = []
        if missing:
            near = _describe_others(missing, [c for c in known if c not in needed])
            names = ", ".join(map(repr, missing))
            problems.append(
                f"{source} has no column{'s' * (len(missing) > 1)} {names}; the model needs "
                f"{'them' if len(missing) > 1 else 'it'}. {near}".rstrip()
            )
        if twice:
            problems.append(f"two columns are named {', '.join(map(repr, twice))}.")
        raise BadData("predict: " + " ".join(problems))
    extra = [c for c in known if c not in needed and c not in keep and c != label]
    shown = ", ".join(map(repr, extra[:SHOWN])) + (
        f" and {len(extra) - SHOWN} more" if len(extra) > SHOWN else ""
    )
    notes = [f"columns that the model does not use were ignored: {shown}."] if extra else []
    if label in known and label not in keep:
        notes.append(f"{label!r} is the label: its values were not used.")
    return frame[list(needed)], notes


def _describe_others(missing: Sequence[str], others: list[str]) -> str:
    """Return what a missing column may be called: the columns that the model does not use."""
    if not others:
        return "All its other columns are used."
    if len(missing) == 1 and (near := nearest(missing[0], others)).startswith("Did"):
        return near

    def likeness(name: str) -> float:
        return max(SequenceMatcher(None, name.lower(), m.lower()).ratio() for m in missing)

    ranked = sorted(others, key=likeness, reverse=True)
    more = f" and {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    names = ", ".join(map(repr, ranked[:SHOWN]))
    return f"Its columns that the model does not use, nearest first: {names}{more}."


def interpret(frame: pandas.DataFrame, recipe: Recipe, decimal: str = ".") -> pandas.DataFrame:
    """Return the cells of text columns as the recipe's columns have them; typed columns stay as they are.

    A cell means the same whatever the other rows are: a column of text is read as the training table was,
    cell by cell. Numbers are refused where the categories are codes with leading zeros: 1067 is not 01067.
    """
    import pandas as pd

    coded = [name for name in frame.columns if _has_lost_zeros(frame[name], recipe.categories.get(name, ()))]
    if coded:
        kinds = ", ".join(f"{name!r}: str" for name in coded)
        example = next(v for v in recipe.categories[coded[0]] if re.fullmatch(CODE, v))
        raise BadData(
            f"predict: the categories of {', '.join(map(repr, coded))} are codes with leading zeros, like "
            f"{example!r}, and the table has numbers there. Read them as text: "
            f"pandas.read_csv(…, dtype={{{kinds}}})."
        )
    out = {}
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
            out[name] = column
            continue
        known = set(recipe.categories.get(name, ()))
        column = column.astype(object)
        column = column.mask(column.isin([n for n in NULLS if n not in known]), np.nan)
        if known:  # TRUE is a spelling of yes as True is: a typed column of the training table had this
            known |= set(recipe.spellings.get(name, ()))
        if name in recipe.numbers:
            column = column.map(lambda v: _as_number(v, decimal) if isinstance(v, str) else v)
        elif known:
            column = column.map(lambda v, known=known: v if v in known else _as_category(v, known))
        out[name] = column
    return pd.DataFrame(out, index=frame.index)


def count_unseen(frame: pandas.DataFrame, recipe: Recipe) -> dict[str, tuple[int, str]]:
    """Return, by column, how many cells are not among its categories, and the first of them."""
    unseen = {}
    for name, values in recipe.categories.items():
        texts = to_text(recipe.column_of(frame, name).dropna())
        foreign = ~np.isin(texts, [*values, *float_texts(values).values()])
        if foreign.any():
            unseen[name] = (int(foreign.sum()), str(texts[foreign][0]))
    return unseen


def note_unseen(
    unseen: Mapping[str, tuple[int, str]], recipe: Recipe, counted: str = "as no category"
) -> list[str]:
    """Return one note for each column with cells that are not among its categories.

    `counted` says what such a cell is to the model, if "other" is not one of the categories.
    """
    notes = []
    for name, (count, example) in unseen.items():
        as_what = f"as {OTHER!r}" if OTHER in recipe.categories[name] else counted
        rows = "1 row" if count == 1 else f"{count:,} rows"
        notes.append(
            f"{name!r} has values that are not among its categories, in {rows}, like {example!r}: they count "
            f"{as_what}."
        )
    return notes


def _has_lost_zeros(column: Any, categories: Sequence[str]) -> bool:
    """Whether a column has numbers where the categories are codes like 01067."""
    import pandas as pd

    is_number = pd.api.types.is_numeric_dtype(column) and bool(column.notna().any())
    return is_number and any(re.fullmatch(CODE, value) for value in categories)


def _as_number(text: str, decimal: str) -> str:
    if text in (*TRUE, *FALSE):
        return "1" if text in TRUE else "0"
    return text.replace(",", ".") if decimal == "," else text


def _as_category(value: Any, known: set[str]) -> Any:
    """Return an unknown cell as a typed column would have it, if that is known: 2.0 as 2, TRUE as True."""
    if not isinstance(value, str):
        return value
    if value in (*TRUE, *FALSE):
        word = value.capitalize()
        return word if word in known else value
    try:
        number = float(value)
    except ValueError:
        return value
    word = str(int(number)) if number.is_integer() else str(number)
    return word if word in known else value


def evaluate(release: Release, module: nn.Module, x: Tensor | Inputs) -> Tensor:
    """Return the model's outputs for encoded rows: logits, or the numbers of a regression."""
    module = ready(release, module)
    if isinstance(x, Tensor) and x.is_floating_point() and release.spec is not None:
        x = x.double()
    parts = []
    with torch.no_grad():
        for part in x.split(ROWS) if len(x) else ():
            try:
                out = call(module, part)
            except BadParameter as error:
                raise BadRun(
                    "predict: the model returns several outputs, and a prediction is of one. Call the model "
                    "itself: run.model(x)."
                ) from error
            if out.dim() == 1 or release.is_regression:
                out = out.reshape(len(part), -1)
            if out.shape != (len(part), release.outputs):
                raise BadRun(
                    f"predict: the model returns {tuple(out.shape[1:])} numbers for a row, and "
                    f"{release.outputs} were expected. Call the model itself: run.model(x)."
                )
            parts.append(out.double())
    outputs = torch.cat(parts) if parts else torch.zeros(0, release.outputs, dtype=torch.float64)
    if not torch.isfinite(outputs).all():
        raise BadRun(
            "predict: the model returns NaN or infinite numbers: it diverged in training, or a value of the "
            "table is far outside of what it was trained on."
        )
    return outputs


def ready(release: Release, module: nn.Module) -> nn.Module:
    """Return a copy of the model for predictions, on the CPU: tacit's own models in 64 bits."""
    module = copy.deepcopy(module).cpu().eval()
    return module.double() if release.spec is not None else module


def decode(release: Release, outputs: Tensor, threshold: float | None) -> dict[str, Any]:
    """Return the columns of the answer: probabilities and predicted labels, or predicted numbers."""
    if release.loss or outputs.dim() > 2 or (release.is_regression and outputs.shape[1:] != (1,)):
        return _decode_others(release, outputs)
    if release.is_regression:
        mean, std = (0.0, 1.0) if release.pipeline is None else release.pipeline.target
        return {"prediction": (outputs[:, 0] * std + mean).numpy()}
    return name_classes(outputs.softmax(1).numpy(), release.labels, threshold)


def name_classes(p: np.ndarray, labels: Sequence[str], threshold: float | None) -> dict[str, Any]:
    """Return the columns of probabilities, and the predicted label."""
    best = p.argmax(1) if threshold is None else (p[:, 1] >= threshold).astype(np.int64)
    predicted = np.array(labels, dtype=object)[best]
    return {**{f"p({label})": p[:, k] for k, label in enumerate(labels)}, "prediction": predicted}


def _decode_others(release: Release, outputs: Tensor) -> dict[str, Any]:
    """Return a column for each output: probabilities of labels, rates, or what the model returns.

    Outputs of an own loss are shown as they are, with the largest of the classes as the prediction.
    """
    mean, std = (0.0, 1.0) if release.pipeline is None else release.pipeline.target
    if release.labels and outputs.dim() == 2:
        best = np.array(release.labels, dtype=object)[outputs.argmax(1).numpy()]
        names = [f"output({label})" for label in release.labels]
        return {**dict(zip(names, outputs.T.numpy())), "prediction": best}
    flat = outputs.reshape(len(outputs), -1)
    if release.loss == "bce":
        return {f"p({k})": v for k, v in enumerate(torch.sigmoid(flat).T.numpy())}
    if release.loss == "poisson":
        flat = flat.exp()
    elif release.is_regression:
        flat = flat * std + mean
    return {"prediction" if flat.shape[1] == 1 else f"output {k}": v for k, v in enumerate(flat.T.numpy())}


def check_threshold(release: Release, threshold: Any) -> float | None:
    """Return the threshold to use: the given one, or that of the pipeline."""
    if threshold is None:
        return None if release.pipeline is None else release.pipeline.threshold
    return check_probability(threshold, release.labels)


def check_probability(threshold: Any, labels: Sequence[str]) -> float:
    """Return a given threshold; raise BadParameter unless it is a probability, and of two classes."""
    if len(labels) != 2:
        raise bad("predict", "threshold", threshold, "left out: a threshold is for two classes")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise bad("predict", "threshold", threshold, "a probability between 0 and 1, or left out")
    return float(threshold)


def _encoded(release: Release, rows: Any) -> Tensor | Inputs:
    """Return encoded rows as a tensor: the data of the run did not come from a table."""
    import pandas as pd

    if release.inputs is not None and set(release.inputs["parts"]) != {""}:
        return _several(release.inputs, rows)
    if isinstance(rows, pd.DataFrame):
        raise BadData(
            "predict: this run has no pipeline for a table: its data were arrays, or each party scaled its "
            "own rows (fit='party'). Train with fit='federated', or give an array of encoded rows."
        )
    try:
        x = rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows))
    except (TypeError, ValueError) as error:
        raise bad("predict", "rows", type(rows).__name__, "an array of numbers", f"{error}.") from None
    if tuple(x.shape[1:]) != release.shape:
        must_be = f"an array of shape (rows, {', '.join(map(str, release.shape))})"
        raise bad("predict", "rows", f"an array of shape {tuple(x.shape)}", must_be)
    return x.long() if release.tokens else x.float()


def _several(outline: Mapping[str, Any], rows: Any) -> Inputs:
    """Return the inputs of a model that takes several, as it was trained on them."""
    names = ", ".join(outline["parts"])
    if not has_several(rows):
        kind = "a dictionary" if outline["is_named"] else "a tuple"
        raise bad("predict", "rows", type(rows).__name__, f"{kind} of arrays: {names}")
    x = to_inputs("predict", "rows", rows)
    if outline_of(x) != outline:
        expected = ", ".join(f"{k} {dtype} {tuple(shape)}" for k, (dtype, shape) in outline["parts"].items())
        raise bad("predict", "rows", x.describe(), f"as in training: {expected}")
    return x

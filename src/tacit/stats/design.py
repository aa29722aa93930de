"""The model matrix of a formula, with the same columns at every party.

Which columns are categorical, and their levels, is agreed first by a sum over all parties (`Agreement`). The
matrix is then built by formulaic from a specification that follows from the formula and the agreement alone:
a party that lacks a level has a column of zeros for it. A party evaluates no expression but arithmetic and
the functions listed here, whatever the formula says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from ..errors import BadData, BadParameter, MissingExtra, ProtocolError
from ..parameters import nearest, propose
from . import level_sketch
from .level_sketch import LEVEL_ROWS

FUNCTIONS = ("C", "I", "Q", "log", "log10", "log2", "exp", "sqrt", "abs")
NUMPY = ("log", "log10", "log2", "log1p", "exp", "expm1", "sqrt", "abs", "square", "sin", "cos", "minimum")
CONTRASTS = ("treatment", "SAS", "sum", "helmert", "diff", "poly")
PATSY = {  # contrasts of statsmodels' formulas: what they are called here
    "Treatment": "contr.treatment(base=…)",
    "Sum": "contr.sum",
    "Helmert": "contr.helmert",
    "Diff": "contr.diff",
    "Poly": "contr.poly",
}
LEARNED = ("center", "scale", "standardize", "poly", "bs", "cs", "cr", "cc", "lag", "hashed", "ecdf")
_SYNTAX = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator,
    ast.unaryop, ast.cmpop, ast.Call, ast.Attribute, ast.keyword, ast.List, ast.Tuple,
)  # fmt: skip

MANY_LEVELS = 20  # of a column whose levels are nearly all numbers: a category has fewer

Scalar = str | int | float | bool


class Variables(NamedTuple):
    """The columns that a formula names."""

    response: tuple[str, ...]
    names: tuple[str, ...]  # of the right-hand side
    categorical: tuple[str, ...]  # those inside C(…)


@dataclass(frozen=True)
class Agreement:
    """What all parties agreed to: the categorical columns with their levels, in order."""

    levels: Mapping[str, tuple[Scalar, ...]]

    def to_tensor(self) -> torch.Tensor:
        text = json.dumps([[name, list(levels)] for name, levels in self.levels.items()])
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, data: torch.Tensor) -> Agreement:
        return cls({name: tuple(levels) for name, levels in json.loads(bytes(data.tolist()).decode())})

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.levels.items())


def load_formulaic() -> Any:
    try:
        import formulaic
    except ImportError as error:
        raise MissingExtra("a formula", "stats", "formulaic") from error
    return formulaic


def check_formula(formula: Any) -> None:
    if not isinstance(formula, str) or not formula.strip():
        raise BadParameter(f"formula is {formula!r}; expected a text like 'death ~ age + C(sex)'.")


@lru_cache(maxsize=64)
def read_formula(formula: str, *, response: bool) -> Variables:
    """Return the columns of a formula, or raise BadParameter if it is not one that parties may evaluate."""
    formulaic = load_formulaic()
    check_formula(formula)
    try:
        parsed = formulaic.Formula(formula)
    except Exception as error:
        if "`.` operator" in str(error):
            raise BadParameter(
                f"formula {formula!r}: '.' for all columns is not allowed, because parties agree on the "
                "columns of a model. Name them: 'outcome ~ age + sex'."
            ) from None
        raise BadParameter(f"formula {formula!r} cannot be read: {_first_line(error)}") from error
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", parsed)
    if not all(isinstance(side, formulaic.SimpleFormula) for side in (left, right) if side is not None):
        raise BadParameter(
            f"formula {formula!r} has several parts ('|'); expected one, like 'outcome ~ age + sex'."
        )
    if response and (left is None or len(list(left)) != 1):
        raise BadParameter(f"formula {formula!r} must have one outcome on the left: 'outcome ~ age + sex'.")
    if not response and left is not None:
        raise BadParameter(f"formula {formula!r} must have no left-hand side here; expected 'age + sex'.")
    on_left, in_c = read_side(left, formula) if left is not None else (set(), [])
    on_right, also_in_c = read_side(right, formula)
    return Variables(
        tuple(sorted(on_left)), tuple(sorted(on_right)), tuple(dict.fromkeys([*in_c, *also_in_c]))
    )


def read_side(side: Any, formula: str) -> tuple[set[str], list[str]]:
    """Return the columns of one side of a formula, and those inside C(…)."""
    # not formulaic's required_variables: it cuts `ph.ecog` at the dot
    names: set[str] = set()
    categorical: list[str] = []
    for factor in (factor for term in side for factor in term.factors):
        if factor.eval_method.value == "lookup":
            names.add(str(factor.expr))
        elif factor.eval_method.value == "python":
            used, in_c = _check_expression(factor.expr, formula)
            names |= used
            categorical += in_c
    return names, categorical


def _first_line(error: Exception) -> str:
    """formulaic's own sentence, without its colored copy of the formula."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_expression(text: str, formula: str) -> tuple[set[str], list[str]]:
    """Raise unless the expression is arithmetic over columns; return its columns, and those inside C(…)."""
    quoted: dict[str, str] = {}  # `a b` is a column that is not a Python name
    # no quotation marks inside: '`' + code + '`' would be a column to one parser, and code to another
    plain = re.sub("`([^`'\"\\\\{}]+)`", lambda m: quoted.setdefault(m[1], f"quoted_{len(quoted)}"), text)
    if "`" in plain:
        raise _refuse(text, formula, "a name in backticks has no quotation marks, backslashes or braces")
    columns = {name: column for column, name in quoted.items()}
    try:
        tree = ast.parse(plain, mode="eval")
    except SyntaxError as error:
        raise BadParameter(f"formula {formula!r}: {text!r} cannot be read as an expression.") from error
    categorical: list[str] = []
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    modules = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {
        columns.get(node.id, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and id(node) not in functions | modules
    }
    for node in ast.walk(tree):
        if not isinstance(node, _SYNTAX):
            raise _refuse(text, formula, f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.Attribute) and not _is_known(node):
            raise _refuse(text, formula, f"{ast.unparse(node)!r} is not allowed")
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.split(".")[0] in LEARNED:
                raise _refuse(
                    text,
                    formula,
                    f"{name} depends on all rows of a table, so it would differ between parties",
                )
            if name in PATSY:
                raise _refuse(text, formula, f"instead of patsy's {name}, write {PATSY[name]}")
            if not (isinstance(node.func, ast.Name) and name in FUNCTIONS) and not (
                isinstance(node.func, ast.Attribute) and _is_known(node.func)
            ):
                raise _refuse(text, formula, f"the function {name!r} is not allowed")
            if name == "Q" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                names.add(str(node.args[0].value))
            if name == "C" and node.args:
                inner = node.args[0]
                if not isinstance(inner, ast.Name):
                    raise _refuse(text, formula, "C(…) takes the name of a column")
                categorical.append(columns.get(inner.id, inner.id))
                for contrast in (a.id for a in node.args[1:] if isinstance(a, ast.Name)):
                    why = f"instead of {contrast}, write {PATSY.get(contrast, 'contr.treatment(base=…)')}"
                    raise _refuse(text, formula, why)
    return names, categorical


def _is_known(node: ast.Attribute) -> bool:
    if not isinstance(node.value, ast.Name):
        return False
    return node.attr in {"np": NUMPY, "contr": CONTRASTS}.get(node.value.id, ())


def _refuse(text: str, formula: str, why: str) -> BadParameter:
    return BadParameter(
        f"formula {formula!r}: {text!r}: {why}. Allowed are arithmetic, {', '.join(FUNCTIONS)}, "
        f"np.{', np.'.join(NUMPY)} and contr.{', contr.'.join(CONTRASTS)}. "
        "Compute other columns before the job."
    )


# --- the agreement ------------------------------------------------------------------------------------------


def count_kinds(
    frame: pd.DataFrame,
    names: Sequence[str],
    categorical: Sequence[str],
    declared: Mapping[str, Any],
    least: int = LEVEL_ROWS,
) -> np.ndarray:
    """Return one party's part of the agreement: for each column (number, category), and a sketch of levels.

    Of columns that are not declared it has the levels of which this party has at least `least` rows.
    """
    check_columns(frame, names)
    kinds, levels = [], []
    for position, name in enumerate(names):
        column = frame[name]
        if pd.api.types.is_datetime64_any_dtype(column.dtype) and name not in declared:
            raise BadData(
                f"column {name!r} contains dates. Turn it into a number, such as days since a date, or into "
                "a category, such as the year."
            )
        is_category = name in declared or name in categorical or not _is_numeric(column)
        kinds += [0, 1] if is_category else [1, 0]
        if is_category and name not in declared:
            counts = level_sketch.count_levels(column, plain_level)
            if _are_numbers(list(counts)):  # of which most are rare, so that the sum would not show it
                raise _refuse_numbers([name])
            for level, rows in counts.items():
                if rows >= least:
                    levels.append((position, json.dumps(level, ensure_ascii=False)))
    return np.concatenate([np.array(kinds, dtype=np.int64), level_sketch.encode(levels)])


def own_agreement(
    frame: pd.DataFrame, names: Sequence[str], categorical: Sequence[str], declared: Mapping[str, Any]
) -> Agreement:
    """Return the agreement of one party alone: declared levels, and its own where none are declared."""
    levels: dict[str, tuple[Scalar, ...]] = {}
    for name in names:
        column = frame[name]
        if name in declared:
            levels[name] = tuple(plain_level(v) for v in declared[name])
        elif name in categorical or not _is_numeric(column):
            found = {plain_level(v) for v in pd.unique(column.dropna())}
            levels[name] = tuple(sorted(found, key=lambda v: (isinstance(v, str), v)))
    return Agreement({name: values for name, values in levels.items() if values})


def kinds_length(names: Sequence[str]) -> int:
    return 2 * len(names) + level_sketch.LENGTH


def agree(
    total: np.ndarray,
    names: Sequence[str],
    declared: Mapping[str, Sequence[Scalar]],
    owner: str,
    least: int = LEVEL_ROWS,
) -> Agreement:
    """Return the agreement that follows from the sum of `count_kinds`."""
    kinds = np.asarray(total[: 2 * len(names)]).reshape(-1, 2)
    mixed = [name for name, (numbers, texts) in zip(names, kinds) if numbers and texts]
    if mixed:
        raise BadData(
            f"{owner}: {', '.join(map(repr, mixed))}: numbers at some parties, text at others. Give all "
            f"parties the same type, or declare the levels: {propose('levels', {mixed[0]: ['a', 'b']})}."
        )
    found: dict[str, list[Scalar]] = {}
    for position, text in level_sketch.decode(total[2 * len(names) :]):
        found.setdefault(names[position], []).append(json.loads(text))
    levels: dict[str, tuple[Scalar, ...]] = {}
    for name, (_, texts) in zip(names, kinds):
        if name in declared:
            levels[name] = tuple(plain_level(v) for v in declared[name])
        elif texts:
            levels[name] = tuple(sorted(found.get(name, ()), key=lambda v: (isinstance(v, str), v)))
    texts = [name for name, values in levels.items() if name not in declared and _are_numbers(values)]
    if texts:
        raise _refuse_numbers(texts, f"{owner}: ")
    few = [name for name, values in levels.items() if len(values) < 2]
    if few:
        rare = ""
        if least > 1 and any(name not in declared for name in few):
            rare = (
                f" A level is found if a party has at least {least} rows of it (min_level_rows), unlike ids "
                f"and dates; declare others: {propose('levels', {few[0]: ['a', 'b']})}."
            )
        raise BadData(
            f"{owner}: the categorical column{'s' * (len(few) > 1)} {', '.join(map(repr, few))} "
            f"{'have' if len(few) > 1 else 'has'} fewer than two levels at all parties together. "
            f"Leave it out: there is nothing to compare.{rare}"
        )
    return Agreement(levels)


def _are_numbers(values: Sequence[Scalar]) -> bool:
    """Whether a column is of numbers, with some text among them: a cell "n/a", or one wrong in a file."""
    if len(values) < MANY_LEVELS:
        return False
    numbers = [v for v in values if not isinstance(v, str) or _is_number(v)]
    return len(values) > len(numbers) > 0.8 * len(values)


def _refuse_numbers(names: Sequence[str], owner: str = "") -> BadData:
    return BadData(
        f"{owner}{', '.join(map(repr, names))}: nearly all of its values are numbers, and some are text, so "
        "that every number would be a level. Replace the texts by missing values, or declare the levels: "
        f"{propose('levels', {names[0]: ['a', 'b']})}."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_agreement(
    agreement: Agreement,
    frame: pd.DataFrame,
    names: Sequence[str],
    categorical: Sequence[str],
    declared: Mapping[str, Sequence[Scalar]],
) -> None:
    """Raise unless what a coordinator sent as agreed can follow from this party's columns and the contract.

    Levels of a column of numbers would open the sums of every single value, and levels other than the
    declared ones would be another model.
    """
    is_category = {n: n in declared or n in categorical or not _is_numeric(frame[n]) for n in names}
    wrong = [n for n in {*names, *agreement.levels} if is_category.get(n, False) != (n in agreement.levels)]
    wrong += [
        n
        for n, levels in declared.items()
        if n in names and agreement.levels.get(n) != tuple(plain_level(v) for v in levels)
    ]
    if wrong:
        raise ProtocolError(
            f"the coordinator sends levels of {', '.join(sorted({repr(n)[:60] for n in wrong}))} that the "
            "parties cannot have agreed on: they are those of another model. Nothing was sent."
        )


def check_found(
    frame: pd.DataFrame, agreement: Agreement, declared: Mapping[str, Any], least: int = LEVEL_ROWS
) -> None:
    """Raise if rows of this party have values that were not found as levels, because they are rare.

    Such rows are in no level: with those of the reference level, or left out, they would bias a coefficient.
    """
    for name, levels in agreement.levels.items():
        if name in declared:
            continue
        known = set(levels)
        rare = [v for v in map(plain_level, pd.unique(frame[name].dropna())) if v not in known]
        if rare:
            why = f"of which no party has {least} rows (min_level_rows), so that no level was opened for them"
            remedy = (
                f"Declare the levels: {propose('levels', {name: ['a', 'b']})}; or join rare values into one "
                "level, such as 'other', before the job"
            )
            shown = ", ".join(map(repr, rare[:3])) + (", …" if len(rare) > 3 else "")
            raise BadData(
                f"column {name!r} has values {why}: {shown}. {remedy}.",
                outside=f"its column {name!r} has values {why}. {remedy}",
            )


def plain_level(value: Any) -> Scalar:
    """Return a level as JSON holds it; 1.0 and 1 are the same level."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return int(value) if float(value).is_integer() else float(value)
    return str(value)


def _is_numeric(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype))


def check_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise unless a table has these columns; all that are missing are named."""
    missing = [n for n in names if n not in frame.columns]
    if missing:
        columns = [str(c) for c in frame.columns]
        raise BadData(
            f"a party's table has no column {', '.join(map(repr, missing))}. {nearest(missing[0], columns)}",
            outside=f"its table has no column {', '.join(map(repr, missing))} of the agreed job",
        )


# --- the matrix ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _spec(formula: str, names: tuple[str, ...], levels: tuple[Any, ...]) -> Any:
    """Return formulaic's specification, built from a table with every level and no party's rows."""
    agreed = dict(levels)
    length = max([2, *(len(v) for v in agreed.values())])
    pilot = {
        name: pd.Categorical([agreed[name][k % len(agreed[name])] for k in range(length)], list(agreed[name]))
        if name in agreed
        else np.ones(length)
        for name in names
    }
    formulaic = load_formulaic()
    try:
        with np.errstate(all="ignore"):  # of the made-up numbers
            matrices = formulaic.model_matrix(formula, pd.DataFrame(pilot), context={}, na_action="ignore")
    except Exception as error:
        raise BadParameter(f"formula {formula!r} cannot be evaluated: {_first_line(error)}") from error
    right = getattr(matrices, "rhs", matrices)
    learned = [name for name, state in right.model_spec.transform_state.items() if state]  # Q(…) learns none
    if learned:
        names_ = ", ".join(learned)
        raise BadParameter(
            f"formula {formula!r}: {names_} depends on all rows of a table, so it would differ between "
            "parties."
        )
    return matrices.model_spec


def term_names(formula: str, names: Sequence[str], agreement: Agreement) -> list[str]:
    """Return the columns of the model matrix."""
    spec = _spec(formula, tuple(names), agreement.key)
    return [str(c) for c in getattr(spec, "rhs", spec).column_names]


def model_matrix(
    formula: str,
    names: Sequence[str],
    agreement: Agreement,
    frame: pd.DataFrame,
    every_row: bool = False,
    event: tuple[str, int] | None = None,
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the outcome (None without one) and the matrix of rows that have no missing values.

    `every_row`: rows for which the formula gives NaN or infinity have these, and are no error. `event`: the
    column of a text outcome, and the position of the level that is coded as 1.
    """
    spec = _spec(formula, tuple(names), agreement.key)
    columns = {}
    for name in names:
        column = frame[name]
        if name in agreement.levels:
            columns[name] = to_levels(column, agreement.levels[name], name)
        elif not _is_numeric(column):
            raise BadData(f"column {name!r} has text, but the parties agreed that it has numbers.")
        else:
            columns[name] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    infinite = [n for n, c in columns.items() if n not in agreement.levels and np.isinf(c).any()]
    if infinite and not every_row:
        raise BadData(
            f"column{'s' * (len(infinite) > 1)} {', '.join(map(repr, infinite))} "
            f"{'have' if len(infinite) > 1 else 'has'} infinite values. Replace or remove them."
        )
    index = pd.RangeIndex(len(frame))
    with np.errstate(all="ignore"):  # NaN and infinite values are found below
        matrices = spec.get_model_matrix(pd.DataFrame(columns, index=index), context={})
    right, left = getattr(matrices, "rhs", matrices), getattr(matrices, "lhs", None)
    if every_row:  # formulaic leaves out those with NaN
        right, left = right.reindex(index), None if left is None else left.reindex(index)
    x = np.ascontiguousarray(right.to_numpy(dtype=np.float64))
    y = None if left is None else left.to_numpy(dtype=np.float64)
    if event is not None:
        y = (columns[event[0]].codes == event[1]).astype(np.float64)[:, None]
    if y is not None and y.shape[1] != 1:
        raise BadData("the outcome is not a number. Code it as 0 and 1, or as a count or a measurement.")
    whole = len(x) == len(frame)  # formulaic leaves out rows with NaN, as of log(-1)
    if not every_row and not (whole and np.isfinite(x).all() and (y is None or np.isfinite(y).all())):
        raise BadData(
            f"the formula {formula!r} gives NaN or infinite values in rows of a party, for example the "
            "logarithm of 0 or of a negative number. Change the term, or leave these rows out."
        )
    return None if y is None else y[:, 0], x


def to_levels(column: pd.Series, levels: Sequence[Scalar], name: str) -> pd.Categorical:
    """Return a column with the agreed levels; raise BadData if it has others."""
    codes, values = pd.factorize(column)
    place = {level: k for k, level in enumerate(levels)}
    plain = [plain_level(v) for v in values]
    unknown = [v for v in plain if v not in place]
    if unknown:
        shown = ", ".join(map(repr, unknown[:3]))
        raise BadData(
            f"column {name!r} has the level {shown}, which is not among the agreed {list(levels)[:20]}.",
            outside=f"its column {name!r} has a level that is not among the agreed ones",
        )
    lookup = np.array([place[v] for v in plain] + [-1])  # the last for a missing value, code -1
    return pd.Categorical.from_codes(lookup[codes], categories=pd.Index(list(levels)))


def has_all(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Whether each row has a value in all these columns."""
    if not names:
        return np.ones(len(frame), dtype=bool)
    return np.asarray(frame[list(names)].notna().all(axis=1).to_numpy(), dtype=bool)


def complete_cases(frame: pd.DataFrame, names: Sequence[str], missing: str) -> pd.DataFrame:
    """Return the rows without missing values in these columns; `missing="error"` raises if there are "
    "others."""
    complete = has_all(frame, names)
    if complete.all():
        return frame
    if missing == "error":
        raise BadData(
            f"{int((~complete).sum())} of {len(frame)} rows of a party have missing values in "
            f"{', '.join(n for n in names if frame[n].isna().any())}. Fill them, or use missing='drop' "
            "(complete cases)."
        )
    return frame[complete]

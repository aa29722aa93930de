"""A model as ONNX, with the preparation of its table inside.

Each column of the table is an input of shape [rows, 1]: a number is a double with NaN where it is missing, a
category a string, "" where it is missing. The outputs are `probabilities` [rows, classes], in the order of
the labels in the metadata, and `prediction` [rows]; a regression has `prediction` alone, in the table's
units.

The graph computes what `Recipe.transform` computes, in the same order and precision. It cannot read dates,
and it cannot refuse a value; a recipe that needs either is exported from the encoded row on (`encoded=True`).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.cells import code_texts, float_texts
from ..data.recipe import OTHER, RANKS
from ..data.spellings import all_spellings
from ..engine.members import Members, members_of
from ..errors import BadParameter, MissingExtra
from .export import Scorer, cannot_trace, describe

if TYPE_CHECKING:
    from ..data.recipe import Recipe
    from .release import Release

OPSET = 20
IR_VERSION = 10  # that of opset 20
DENSE = (nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, nn.Identity)  # layers that are written directly
ENCODED = "encoded"  # the input of the model itself


def to_onnx(release: Release, scorer: Scorer, example: Tensor, is_encoded: bool) -> bytes:
    """Return the file's content. `is_encoded`: without the preparation."""
    onnx = _need_onnx()
    if not is_encoded:
        assert release.pipeline is not None
        check_expressible(release.pipeline.recipe)
    core = _write_dense(onnx, release, scorer) or _trace(release, scorer, example)
    core = _add_prediction(onnx, release, core)
    whole = core
    if not is_encoded:
        assert release.pipeline is not None
        check_names(core, release.pipeline.recipe)
        front = Graph(onnx, "prepare")
        front.prepare(release.pipeline.recipe)
        whole = onnx.compose.merge_models(
            front.model(
                onnx.TensorProto.FLOAT, ["rows", len(release.pipeline.recipe.columns)], core.ir_version
            ),
            core,
            io_map=[(front.result, ENCODED)],
        )
    for key, value in describe(release, is_encoded).items():
        whole.metadata_props.add(key=key, value=str(value))
    whole.producer_name = "tacit"
    onnx.checker.check_model(whole, full_check=True)
    return bytes(whole.SerializeToString())


def check_expressible(recipe: Recipe) -> None:
    """Raise BadParameter, with every reason, if ONNX cannot express the preparation."""
    reasons = []
    if recipe.dates:
        reasons.append(f"it has no dates (columns {', '.join(map(repr, recipe.dates))})")
    if recipe.unseen == "refuse" and recipe.categories:
        reasons.append("it cannot refuse an unknown category (unseen='refuse')")
    if reasons:
        raise BadParameter(
            f"export: ONNX cannot express this preparation: {'; '.join(reasons)}. Export the model from the "
            "encoded row on: run.export(path, encoded=True), `tacit export --encoded`."
        )


def check_names(core: Any, recipe: Recipe) -> None:
    """Raise BadParameter if a column, which is an input, has the name of another value of the graph."""
    values = {name for node in core.graph.node for name in (*node.output, node.name)}
    values |= {part.name for part in (*core.graph.initializer, *core.graph.output)}
    both = [name for name in (*recipe.numbers, *recipe.categories) if name in values]
    if both:
        raise BadParameter(
            f"export: columns are inputs of the file, and {', '.join(map(repr, both))} is the name of "
            "an output or a step. Rename the column and train again, or export the model from the encoded "
            "row on: run.export(path, encoded=True), `tacit export --encoded`."
        )


class Graph:
    """Nodes of a graph. Every method but `model` and `prepare` returns the name of a value."""

    def __init__(self, onnx: Any, prefix: str):
        self.prefix = prefix
        self.onnx, self.result = onnx, ""
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []

    def prepare(self, recipe: Recipe) -> None:
        kinds = self.onnx.TensorProto
        missing: dict[str, str] = {}  # column: whether it is missing, [rows, 1] bool
        numbers, flags = [], []
        for k, name in enumerate(recipe.numbers):
            x = self.input(name, kinds.DOUBLE)
            known = [c for c in map(_number, recipe.missing_codes.get(name, ())) if c is not None]
            missing[name] = self.any_of(x, known, self.op("IsNaN", x))
            numbers.append(self.number(recipe, k, name, x, missing[name]))
        for name, values in recipe.categories.items():
            x = self.input(name, kinds.STRING)
            codes = recipe.missing_codes.get(name, ())
            words = ["", *dict.fromkeys((*code_texts(codes), *(c for c in codes if isinstance(c, str))))]
            words += float_texts(words).values()
            spelled = all_spellings(recipe.spellings.get(name, {}))
            missing[name] = self.any_of(x, _written(words, spelled))
            flags.append(self.category(values, recipe.rare.get(name, ()), x, missing[name], spelled))
        flags += [self.op("Cast", missing[name], to=kinds.FLOAT) for name in recipe.missing]
        parts = [self.op("Cast", n, to=kinds.FLOAT) for n in numbers] + flags
        self.result = self.op("Concat", *parts, axis=1)

    def number(self, recipe: Recipe, k: int, name: str, x: str, missing: str) -> str:
        """Impute, winsorize and scale one number, as `Recipe.scale` does."""
        assert recipe.mean is not None
        assert recipe.std is not None
        x = self.op(
            "Where", missing, self.constant(recipe.mean[k] if recipe.fill is None else recipe.fill[k]), x
        )
        if name in recipe.limits:
            low, high = recipe.limits[name]
            x = self.op("Min", self.op("Max", x, self.constant(low)), self.constant(high))
        if name in recipe.knots:
            q, ranks = np.array(recipe.knots[name]), np.array(RANKS)
            up = self.interpolate(x, q, ranks)
            down = self.op("Neg", self.interpolate(self.op("Neg", x), -q[::-1], -ranks[::-1]))
            middle = self.op("Div", self.op("Add", up, down), self.constant(2.0))
            return self.op("Mul", self.op("Sub", middle, self.constant(0.5)), self.constant(np.sqrt(12)))
        return self.op("Div", self.op("Sub", x, self.constant(recipe.mean[k])), self.constant(recipe.std[k]))

    def interpolate(self, x: str, at: np.ndarray, values: np.ndarray) -> str:
        """`np.interp`: the number of points at or below x is the piece; before and after, a constant."""
        kinds = self.onnx.TensorProto
        gap = np.diff(at)
        slope = np.divide(np.diff(values), gap, out=np.zeros_like(gap), where=gap > 0)
        starts, bases = np.concatenate([at[:1], at]), np.concatenate([values[:1], values])
        slopes = np.concatenate([[0.0], slope, [0.0]])
        reached = self.op("GreaterOrEqual", x, self.constant(at[None]))
        piece = self.op("ReduceSum", self.op("Cast", reached, to=kinds.INT64), self.constant(np.array([1])))
        start, base, rise = (self.op("Gather", self.constant(v), piece) for v in (starts, bases, slopes))
        return self.op("Add", self.op("Mul", rise, self.op("Sub", x, start)), base)

    def category(
        self,
        values: Sequence[str],
        rare: Sequence[str],
        x: str,
        missing: str,
        spellings: Mapping[str, str],
    ) -> str:
        """One-hot, [rows, values]; rare and unknown values are at "other", if that is a category."""
        kinds = self.onnx.TensorProto
        zero = self.op("And", missing, self.op("Not", missing))
        floats = float_texts(values)
        own = {v: [v, *filter(None, [floats.get(v)])] for v in values if v not in rare and v != OTHER}
        own = {v: _written(words, spellings) for v, words in own.items()}
        here = {
            v: self.op("And", self.any_of(x, words), self.op("Not", missing))
            for v, words in own.items()
            if words
        }
        if OTHER in values and OTHER not in rare:
            known = missing
            for v in here.values():
                known = self.op("Or", known, v)
            here[OTHER] = self.op("Not", known)
        columns = [here.get(v, zero) for v in values]
        return self.op("Cast", self.op("Concat", *columns, axis=1), to=kinds.FLOAT)

    def any_of(self, x: str, values: Sequence[Any], start: str = "") -> str:
        """Whether x is one of the values, or `start` holds."""
        found = start
        for value in values:
            equal = self.op("Equal", x, self.constant(value))
            found = self.op("Or", found, equal) if found else equal
        return found

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def input(self, name: str, kind: int) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["rows", 1]))
        return name

    def constant(self, value: Any) -> str:
        """A number or an array of numbers (as doubles or integers), or a text."""
        name = f"{self.prefix}_constant_{len(self.constants)}"
        array = np.array([[value]], dtype=object) if isinstance(value, str) else np.asarray(value)
        if array.dtype == object:
            tensor = self.onnx.helper.make_tensor(
                name, self.onnx.TensorProto.STRING, array.shape, [value.encode()]
            )
        else:
            array = array if array.dtype == np.int64 else array.astype(np.float64)
            tensor = self.onnx.numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def model(self, kind: int, shape: Sequence[Any], ir_version: int = IR_VERSION) -> Any:
        """Return the graph as a model whose output is `result`."""
        helper = self.onnx.helper
        out = helper.make_tensor_value_info(self.result, kind, list(shape))
        graph = helper.make_graph(self.nodes, self.prefix, self.inputs, [out], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=ir_version)


def _write_dense(onnx: Any, release: Release, scorer: Scorer) -> Any | None:
    """Return a linear model or a perceptron from the encoded row on; None for other models.

    torch's own exporter takes seconds, and needs one more package.
    """
    members = [list(member.children()) for member in members_of(scorer.module) or [scorer.module]]
    is_dense = all(type(layer) in DENSE for layers in members for layer in layers) and all(members)
    if type(scorer.module) not in (nn.Sequential, Members) or not is_dense or not scorer.is_double:
        return None
    kinds, graph = onnx.TensorProto, Graph(onnx, "model")
    graph.inputs.append(onnx.helper.make_tensor_value_info(ENCODED, kinds.FLOAT, ["rows", *release.shape]))
    x = graph.op("Cast", ENCODED, to=kinds.DOUBLE)
    outputs = [_apply(graph, layers, x) for layers in members]
    x = outputs[0]
    if len(outputs) > 1:  # onnxruntime has no Mean of doubles
        x = graph.op("Div", graph.op("Sum", *outputs), graph.constant(float(len(outputs))))
    if release.is_regression:
        x = graph.op("Reshape", x, graph.constant(np.array([-1])))
        x = graph.op("Mul", x, graph.constant(scorer.std))
        graph.result = graph.op("Add", x, graph.constant(scorer.mean), out="prediction")
        return graph.model(kinds.DOUBLE, ["rows"])
    graph.result = graph.op("Softmax", x, axis=1, out="probabilities")
    return graph.model(kinds.DOUBLE, ["rows", release.outputs])


def _apply(graph: Graph, layers: Sequence[nn.Module], x: str) -> str:
    """Add a perceptron to the graph; return the name of its outputs."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weights = [layer.weight, *([] if layer.bias is None else [layer.bias])]
            x = graph.op("Gemm", x, *(graph.constant(w.detach().numpy()) for w in weights), transB=1)
        elif isinstance(layer, nn.ReLU):
            x = graph.op("Relu", x)
        elif isinstance(layer, nn.Flatten):
            x = graph.op("Flatten", x, axis=1)
    return x


def _trace(release: Release, scorer: Scorer, example: Tensor) -> Any:
    """Return the model from the encoded row on, as torch writes it."""
    name = "prediction" if release.is_regression else "probabilities"
    try:
        with _quiet():
            program = torch.onnx.export(
                scorer,
                (example,),
                dynamo=True,
                input_names=[ENCODED],
                output_names=[name],
                dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
                opset_version=OPSET,
                verbose=False,
            )
    except ImportError:
        raise MissingExtra("export to ONNX", "onnx", "onnxscript") from None
    except Exception as error:  # torch raises what it likes for code that it cannot trace
        raise cannot_trace(release, "ONNX", error) from error
    assert program is not None
    return program.model_proto


def _add_prediction(onnx: Any, release: Release, core: Any) -> Any:
    """Add the predicted label to a classifier's graph."""
    if release.is_regression:
        return core
    helper, kinds, graph = onnx.helper, onnx.TensorProto, core.graph
    labels = helper.make_tensor(
        "label_names", kinds.STRING, [len(release.labels)], [label.encode() for label in release.labels]
    )
    graph.initializer.append(labels)
    threshold = None if release.pipeline is None else release.pipeline.threshold
    if threshold is None:
        graph.node.append(helper.make_node("ArgMax", ["probabilities"], ["label_place"], axis=1, keepdims=0))
    else:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "second"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(threshold), "threshold"))
        graph.node.append(helper.make_node("Gather", ["probabilities", "second"], ["p_second"], axis=1))
        graph.node.append(helper.make_node("GreaterOrEqual", ["p_second", "threshold"], ["is_second"]))
        graph.node.append(helper.make_node("Cast", ["is_second"], ["label_place"], to=kinds.INT64))
    graph.node.append(helper.make_node("Gather", ["label_names", "label_place"], ["prediction"], axis=0))
    graph.output.append(helper.make_tensor_value_info("prediction", kinds.STRING, ["rows"]))
    return core


def _need_onnx() -> Any:
    try:
        import onnx
        import onnx.compose
    except ImportError:
        raise MissingExtra("export to ONNX", "onnx", "onnx") from None
    return onnx


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch's exporter says about packages that are not installed, and about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _number(code: Any) -> float | None:
    """Return a code for "missing" as a number; None for one that a number cannot be."""
    try:
        return float(code)
    except (TypeError, ValueError):
        return None


def _written(words: Sequence[str], spellings: Mapping[str, str]) -> list[str]:
    """Return every text that is read as one of these words."""
    return [
        *(w for w in words if w not in spellings),
        *(w for w, meant in spellings.items() if meant in words),
    ]

"""A user's module as a program (`program.py`), by `torch.export`: Hugging Face encoders and decoders,
attention, embeddings, recurrent layers, and arithmetic that `trace.py` does not take.

The module is exported for the input's names, shapes and kinds of numbers, with any number of rows; no value
of the input is used. What depends on weights and constants alone is computed by the owner, once:

    parameters, persistent buffers of real numbers, and what is computed from them     private weights
    other buffers (positions, rotary frequencies, causal masks), numbers in the code   public constants

A norm's weight and bias are multiplied into the linear layers that follow; x/√(mean of x²) and GPT-2's GELU
are recognized (`patterns.py`). `operations` has the operations. Anything else is refused by name and place.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..errors import BadParameter
from . import program
from .functions import FAR_BELOW

Layer = dict[str, Any]
ATEN = torch.ops.aten
ROWS = 2  # rows of the example; the exported module takes any number
INFINITE = -1e4  # numbers that are added to scores and are below this stand for −∞
HINT = (
    "The model may use embeddings, linear and convolution layers, attention, norms, the activations listed "
    "in docs/how-to-infer-on-shares.md, LSTM, GRU, arithmetic, comparisons, torch.cat and views. Rewrite "
    "this part, or wrap the model in a module that leaves it out."
)


@dataclass(frozen=True)
class Rows:
    """A size of `times` times the number of rows."""

    times: int


@dataclass
class Constant:
    """What does not depend on the input; `private` if it depends on weights."""

    tensor: Tensor
    private: bool
    rows_at: int | None = None  # the dimension that has one entry per row


@dataclass
class Value:
    """A value of the program. `whole` numbers have no fractional bits; `vocabulary`: one-hot rows."""

    number: int
    size: list[Any]  # numbers, and Rows
    whole: bool = False
    bits: bool = False  # whole, and 0 or 1
    vocabulary: int | None = None
    hidden: Tensor | None = None  # where it is publicly −∞ (a number) or 0 (a bit)
    # a norm's weight and bias, which are still to be applied along the last dimension
    affine: tuple[Constant, Constant | None, str] | None = None
    applied: Value | None = field(default=None, repr=False)
    filled: Value | None = field(default=None, repr=False)


class Refused(Exception):
    """An operation that cannot be evaluated on shares, and why."""


def compile_program(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[list[Layer], dict[str, Tensor]]:
    """(architecture, weights by name in float64) of a module for inputs of these names, shapes and types."""
    exported = _export(model, inputs)
    builder = Builder(exported, list(inputs), type(model).__name__)
    return builder.build()


class _Call(nn.Module):
    """Call a model by the names of its inputs, and return one tensor."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names
        parameters = inspect.signature(model.forward).parameters
        self.options = {"use_cache": False} if "use_cache" in parameters else {}
        self.positional = len(names) == 1 and names[0] not in parameters

    def forward(self, *values: Tensor) -> Any:
        given = {} if self.positional else dict(zip(self.names, values))
        out = self.model(*values if self.positional else (), **given, **self.options)
        logits = getattr(out, "logits", None)
        return out if logits is None else logits


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's fused attention, which has no shares, and its warnings about our example."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _export(model: nn.Module, inputs: dict[str, Tensor]) -> Any:
    kind = type(model).__name__
    parameters = inspect.signature(model.forward).parameters
    named = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in inputs if name not in parameters and not named]
    if len(inputs) > 1 and unknown:
        raise BadParameter(
            f"infer: {kind} takes no input {', '.join(map(repr, unknown))}; its inputs are "
            f"{', '.join(map(repr, parameters))}. Leave it out."
        )
    examples = tuple(_example(x) for x in inputs.values())
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    modes = {part: part.training for part in model.modules()}
    call = _Call(model, list(inputs)).eval()
    try:
        with _quiet():
            return torch.export.export(
                call, examples, dynamic_shapes=(tuple({0: rows} for _ in examples),), strict=False
            )
    except Exception as error:  # torch.export raises whatever the module's own code raises
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise BadParameter(
            f"infer: {kind} cannot be exported by torch.export for inputs of shapes "
            f"{[list(x.shape) for x in inputs.values()]}: {first:.300} Data-dependent control flow and "
            "code that depends on the number of rows (len(x) instead of x.shape[0]) are not supported. "
            f"{HINT}"
        ) from None
    finally:
        for part, training in modes.items():
            part.training = training


def _example(x: Tensor) -> Tensor:
    """A tensor of the same kind and shape, without the input's values."""
    if x.dim() < 1 or any(n == 0 for n in x.shape[1:]):
        raise BadParameter(
            f"infer: an input has the shape {list(x.shape)}; it needs rows that are not empty."
        )
    return (torch.zeros if x.is_floating_point() else torch.ones)((ROWS, *x.shape[1:]), dtype=x.dtype)


class Builder:
    """Walks over an exported graph and emits the nodes of a program."""

    def __init__(self, exported: Any, names: list[str], kind: str):
        from .operations import HANDLERS, MASKED

        self.exported, self.kind, self.handlers, self.masked = exported, kind, HANDLERS, MASKED
        self.graph: fx.Graph = exported.graph
        self.inputs: list[Layer] = []
        self.nodes: list[Layer] = []
        self.constants: list[Layer] = []
        self.weights: dict[str, Tensor] = {}
        self.environment: dict[fx.Node, Any] = {}
        self.origin: dict[int, str] = {}  # a private tensor's name, by its identity
        self._packed: dict[str, int] = {}
        self._layers: dict[Any, Layer] = {}
        self._kept: list[Tensor] = []  # so that identities stay unique
        self.names, self.place = names, ""
        self.node: fx.Node | None = None

    def build(self) -> tuple[list[Layer], dict[str, Tensor]]:
        from .patterns import simplify

        simplify(self.graph)
        self._place_inputs()
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.node, self.place = node, _place_of(node)
                self.environment[node] = self._call(node)
            elif node.op == "get_attr":
                self.environment[node] = getattr(self.exported.graph_module, str(node.target))
        output = next(n for n in self.graph.nodes if n.op == "output")
        (results,) = output.args
        if len(results) != 1 or not isinstance(value := self.environment.get(results[0]), Value | Constant):
            raise BadParameter(
                f"infer: {self.kind} returns {len(results)} values instead of one tensor. Wrap it in a "
                "module whose forward returns the one that you need, for example its `logits` or "
                "`last_hidden_state[:, 0]`."
            )
        if isinstance(value, Constant):
            raise BadParameter(
                f"infer: the output of {self.kind} does not depend on its input. Check its forward method."
            )
        result = self.fill(self.number(value))
        if not isinstance(result.size[0], Rows) or result.size[0].times != 1:
            raise BadParameter(
                f"infer: the output of {self.kind} has no first dimension of rows. Each row of the input "
                "must give one row of the output."
            )
        layer = {
            "kind": "program",
            "inputs": self.inputs,
            "constants": self.constants,
            "nodes": self.nodes,
            "output": result.number,
        }
        return [_drop_unused(layer)], {name: w.detach().double().cpu() for name, w in self.weights.items()}

    # inputs and weights -------------------------------------------------------------------------------------

    def _place_inputs(self) -> None:
        signature = self.exported.graph_signature
        parameters = dict(signature.inputs_to_parameters)
        buffers = dict(signature.inputs_to_buffers)
        fleeting = set(signature.non_persistent_buffers)
        constants = dict(signature.inputs_to_lifted_tensor_constants)
        names = iter(self.names)
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in parameters:
                name = parameters[node.name]
                self.environment[node] = self._weight(self.exported.state_dict[name], name)
            elif node.name in buffers:
                name = buffers[node.name]
                tensor = self.exported.state_dict.get(name, self.exported.constants.get(name))
                if name in fleeting or not tensor.is_floating_point():
                    self.environment[node] = Constant(tensor.detach(), False)
                else:
                    self.environment[node] = self._weight(tensor, name)
            elif node.name in constants:
                tensor = self.exported.constants[constants[node.name]].detach()
                private = tensor.is_floating_point() and tensor.numel() > 1
                self.environment[node] = (
                    self._weight(tensor, constants[node.name]) if private else Constant(tensor, False)
                )
            else:
                self._place_input(node, next(names))

    def _weight(self, tensor: Tensor, name: str) -> Constant:
        constant = Constant(tensor.detach(), True)
        self.origin[id(constant.tensor)] = name.removeprefix("model.")
        self._kept.append(constant.tensor)
        return constant

    def _place_input(self, node: fx.Node, name: str) -> None:
        if not node.users:
            self.environment[node] = None
            self.inputs.append({"name": name, "kind": "unused", "shape": []})
            return
        example = node.meta["val"]
        shape = [int(n) for n in example.shape[1:]]
        part: Layer = {"name": name, "kind": "numbers", "shape": shape}
        value = Value(len(self.inputs), [Rows(1), *shape])
        if not example.is_floating_point():
            vocabulary = _vocabulary(node, self.environment)
            part |= {"kind": "tokens", "vocabulary": vocabulary} if vocabulary else {"kind": "bits"}
            value.whole, value.bits, value.vocabulary = True, vocabulary is None, vocabulary
        self.inputs.append(part)
        self.environment[node] = value

    # one operation ------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        args: Any
        kwargs: Any
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self.environment.get)
        if node.target in (ATEN.sym_size.int,):
            value = node.args[0]
            assert isinstance(value, fx.Node)
            return _size(value.meta["val"].shape[node.args[1]])
        if _is_about_metadata(node):
            return None
        if node.target is operator.getitem and not isinstance(args[0], Value | Constant):
            return args[0][args[1]]
        found: list[Value] = []
        fx.node.map_aggregate((args, kwargs), lambda a: found.append(a) if isinstance(a, Value) else None)
        if not found:
            return self._compute(node, args, kwargs)
        name = _name_of(node.target)
        handler = self.handlers.get(name)
        try:
            if handler is None:
                raise Refused("it cannot be evaluated on shares")
            if name not in self.masked:
                args, kwargs = fx.node.map_aggregate((args, kwargs), self._fill_values)
            return handler(self, *args, **kwargs)
        except Refused as refused:
            raise self._refuse(name, str(refused)) from None
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise self._refuse(name, f"with these arguments: {error}") from None
            raise

    def _refuse(self, name: str, why: str) -> BadParameter:
        assert self.node is not None
        trace = [line.strip() for line in (self.node.stack_trace or "").splitlines() if line.strip()]
        code = f" ({trace[-2]}: {trace[-1]})" if len(trace) > 1 and trace[-2].startswith("File") else ""
        return BadParameter(
            f"infer: {self.kind} uses {name} in {self.place or 'its forward method'}{code}: {why}. {HINT}"
        )

    def _compute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operation on constants, for the example's number of rows."""
        private = False

        def plain(a: Any) -> Any:
            nonlocal private
            if isinstance(a, Constant):
                private |= a.private
                return a.tensor
            return a.times * ROWS if isinstance(a, Rows) else a

        args, kwargs = fx.node.map_aggregate((args, kwargs), plain)
        with torch.no_grad():
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        meta = node.meta.get("val")
        if isinstance(result, Tensor):
            return self._constant(result, private, meta)
        if isinstance(result, tuple | list):
            metas = meta if isinstance(meta, tuple | list) else [None] * len(result)
            return tuple(self._constant(r, private, m) for r, m in zip(result, metas))
        return _size(meta) if isinstance(meta, torch.SymInt) else result

    def _constant(self, tensor: Tensor, private: bool, meta: Any) -> Constant:
        rows_at = None
        if isinstance(meta, Tensor):
            at = [i for i, n in enumerate(meta.shape) if isinstance(_size(n), Rows)]
            rows_at = at[0] if at else None
        self._kept.append(tensor)
        return Constant(tensor, private, rows_at)

    # for the operations -------------------------------------------------------------------------------------

    def size(self, index: int | None = None) -> list[Any]:
        """The size of the current node's result."""
        assert self.node is not None
        meta = self.node.meta["val"]
        meta = meta if index is None else meta[index]
        return [_size(n) for n in meta.shape]

    def emit(self, op: str, args: list[Value], size: list[Any], /, **options: Any) -> Value:
        value = Value(len(self.inputs) + len(self.nodes), list(size))
        node = {"op": op, "args": [a.number for a in args], **options}
        self.nodes.append({**node, "at": self.place} if self.place else node)
        return value

    def layer(self, x: Value, layers: list[Layer], size: list[Any]) -> Value:
        return self.emit("layer", [self.number(x)], size, layers=layers)

    def number(self, x: Value) -> Value:
        """As a number with fractional bits, with the norm's weight applied."""
        if x.vocabulary is not None:
            raise Refused("token ids can only be looked up in an embedding, or compared with a number")
        if not x.whole and x.affine is None:
            return x
        if x.applied is None:
            if x.whole:
                x.applied = self.emit("times", [x], x.size, factor=1, number=True)
            else:
                assert x.affine is not None
                weight, bias, name = x.affine
                place, self.place = self.place, name
                plain = Value(x.number, x.size)
                x.applied = self.layer(
                    plain, [self.weighted("affine", weight, bias, list(weight.tensor.shape))], x.size
                )
                self.place = place
            x.applied.hidden = None if x.whole else x.hidden
        return x.applied

    def fill(self, x: Value) -> Value:
        """With a number far below all others where a public mask hides numbers, for operations that do not
        know of masks.
        """
        if x.whole or x.hidden is None or not bool(x.hidden.any()):
            return x
        if x.filled is None:
            kept, far = self.store((~x.hidden).int()), self.store(x.hidden.double() * FAR_BELOW)
            shown = self.emit("times_public", [self.number(x)], x.size, constant=kept)
            x.filled = self.emit("add_public", [shown], x.size, constant=far, whole=False)
        return x.filled

    def _fill_values(self, x: Any) -> Any:
        return self.fill(x) if isinstance(x, Value) else x

    def weighted(
        self,
        kind: str,
        weight: Constant,
        bias: Constant | None,
        shape: list[int],
        transform: Any = None,
        key: Any = None,
        **options: Any,
    ) -> Layer:
        """A layer with weights; the same tensors in the same layer are masked once."""
        identity = (
            kind,
            id(weight.tensor),
            id(bias.tensor) if bias is not None else None,
            key,
            repr(options),
        )
        if identity in self._layers:
            return self._layers[identity]
        origin = self.origin.get(id(weight.tensor), "").removesuffix(".weight")
        name = self._unique(origin if origin.startswith(self.place) else self.place)
        tensor = reduce_rows(weight) if transform is None else transform(reduce_rows(weight))
        ending = "shift" if kind == "shift" else "weight"
        self.weights[f"{name}.{ending}"] = tensor.double()
        layer = {"kind": kind, "name": name, "shape": shape, "bias": bias is not None, **options}
        if bias is not None:
            self.weights[f"{name}.bias"] = reduce_rows(bias).double()
        self._layers[identity] = layer
        return layer

    def _unique(self, name: str) -> str:
        taken, candidate, i = {w.rsplit(".", 1)[0] for w in self.weights}, name, 2
        while candidate in taken:
            candidate, i = f"{name} ({i})", i + 1
        return candidate

    def public(self, constant: Constant, what: str = "a weight") -> Tensor:
        """The tensor of a public constant, equal for all rows."""
        if constant.private:
            raise Refused(f"it uses {what} of the model where a public constant is needed")
        return reduce_rows(constant)

    def store(self, tensor: Tensor) -> int:
        """The number of a public constant, each kept once."""
        tensor = tensor.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.double()
        elif tensor.dtype not in (torch.bool, torch.int32):
            tensor = tensor.long()
        packed = program.pack_constant(tensor)
        key = repr(packed)
        if key not in self._packed:
            self._packed[key] = len(self.constants)
            self.constants.append(packed)
        return self._packed[key]

    def derived(self, constant: Constant, tensor: Tensor) -> Constant:
        """A constant computed from another one."""
        self._kept.append(tensor)
        if id(constant.tensor) in self.origin:
            self.origin[id(tensor)] = self.origin[id(constant.tensor)]
        return Constant(tensor, constant.private, constant.rows_at)


def reduce_rows(constant: Constant) -> Tensor:
    """A constant without its dimension of rows, along which it must not change."""
    x, at = constant.tensor, constant.rows_at
    if at is None:
        return x
    first = x.narrow(at, 0, 1)
    if not bool((x == first.expand_as(x)).all()):
        raise Refused("a constant differs from row to row of a batch")
    return first


def encode_size(size: list[Any]) -> list[Any]:
    return [{"rows": n.times} if isinstance(n, Rows) else n for n in size]


def _size(n: Any) -> Any:
    """A size of the exported graph: a number, or a multiple of the number of rows."""
    if isinstance(n, int) or not isinstance(n, torch.SymInt):
        return n
    times, rest = n.node.expr.as_coeff_Mul()
    if rest.is_Symbol and times.is_Integer:
        return Rows(int(times))
    if n.node.expr.is_Integer:
        return int(n.node.expr)
    raise Refused(f"it has a size of {n} for s rows; sizes may be multiples of the number of rows")


def _name_of(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return (
        str(packet).removeprefix("aten.") if packet is not None else getattr(target, "__name__", str(target))
    )


def _is_about_metadata(node: fx.Node) -> bool:
    return _name_of(node.target) in (
        "_assert_tensor_metadata",
        "_assert_scalar",
        "sym_constrain_range_for_size",
        "sym_constrain_range",
    )


def _place_of(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = [str(path) for path, _ in stack.values()]
    last = path[-1] if path else ""
    return last.removeprefix("L['self'].").removeprefix("model").removeprefix(".")


def _vocabulary(node: fx.Node, environment: dict[fx.Node, Any]) -> int | None:
    """The rows of the table in which these ids are looked up."""
    for user in node.users:
        name = _name_of(user.target)
        if name == "embedding" and user.args[1] is node:
            table = user.args[0]
            assert isinstance(table, fx.Node)
            return int(table.meta["val"].shape[0])
        if name in ("view", "reshape", "slice", "select", "alias", "to", "contiguous", "unsqueeze", "clone"):
            found = _vocabulary(user, environment)
            if found is not None:
                return found
    return None


def _drop_unused(layer: Layer) -> Layer:
    """Without the nodes and constants that the output does not depend on, and without unused inputs."""
    begin = len(layer["inputs"])
    needed = {layer["output"]}
    for i in range(len(layer["nodes"]) - 1, -1, -1):
        if begin + i in needed:
            needed |= set(layer["nodes"][i]["args"])
    inputs = [i for i, part in enumerate(layer["inputs"]) if i in needed]
    kept = [*inputs, *(begin + i for i in range(len(layer["nodes"])) if begin + i in needed)]
    number = {old: new for new, old in enumerate(kept)}
    nodes = [layer["nodes"][i - begin] for i in kept if i >= begin]
    used = sorted({n[k] for n in nodes for k in ("constant", "hidden") if n.get(k) is not None})
    place = {old: new for new, old in enumerate(used)}
    return {
        "kind": "program",
        "inputs": [layer["inputs"][i] for i in inputs],
        "constants": [layer["constants"][i] for i in used],
        "nodes": [
            {
                **node,
                "args": [number[j] for j in node["args"]],
                **{k: place[node[k]] for k in ("constant", "hidden") if node.get(k) is not None},
            }
            for node in nodes
        ],
        "output": number[layer["output"]],
    }

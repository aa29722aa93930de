"""A model as a function of one flat vector: its loss, gradient and predictions.

The gradient is computed in one of two ways. `torch.func.grad` can be stacked with `vmap`: thousands of
clients as one tensor program. `_bound` copies the vector into this thread's module and uses
plain autograd, which is faster if clients run one by one.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..algorithms.plan import Plans
from ..algorithms.types import Batch, LocalState, State
from . import dense, pooled, recurrent
from .dense import Layer, Slot, cover, for_one_client, layers_of, parts_of
from .layers import LocalStep
from .losses import Objective
from .pooled import Network, network_of
from .recurrent import Chain, chain_of

_dense = for_one_client(
    lambda task, w, index, live: dense.gradient(
        task.dense, w, task.x, task.y, index, live, task.objective, task.class_weights
    )
)
_pooled, _recurrent, _answers = (
    for_one_client(pooled.gradient),
    for_one_client(recurrent.gradient),
    for_one_client(recurrent.answers),
)


def _slots(named: Iterable[tuple[str, Tensor]]) -> list[Slot]:
    slots: list[Slot] = []
    for name, tensor in named:
        at = slots[-1].stop if slots else 0
        slots.append(Slot(name, at, at + tensor.numel(), tensor.shape, tensor.dtype))
    return slots


def _join(slots: list[Slot], values: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([values[s.name].reshape(-1).to(dtype) for s in slots])


def _split(slots: list[Slot], flat: Tensor) -> dict[str, Tensor]:
    # one split: its gradient is one concatenation, while that of each slice would be a whole vector
    pieces = torch.split(flat, [s.stop - s.start for s in slots])
    return {s.name: piece.view(s.shape).to(s.dtype) for s, piece in zip(slots, pieces)}


class Task:
    """A model, a loss and the rows they work on. A local step only needs `gradient`."""

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        y: Tensor,
        objective: Objective | None = None,
        precision: str = "float32",
        stacked: bool = False,
        like: Task | None = None,
    ):
        """`objective` is cross-entropy by default; `like` is a task of the same model on other rows."""
        self.module, self.x, self.y, self.precision = module, x, y, precision
        self.objective = objective or Objective()
        self.class_weights = self.objective.weights(x.device)
        # frozen parameters and counters are the same at all parties: they are never sent, averaged or noisy
        self.parameters = _slots((k, p) for k, p in module.named_parameters() if p.requires_grad)
        self.buffer_slots = _slots((k, b) for k, b in module.named_buffers() if b.is_floating_point())
        self.dim = sum(s.stop - s.start for s in self.parameters)
        self.stacked = stacked  # whether an engine runs `gradient` under vmap
        self._local = _Thread()
        self.kind: tuple[bool, bool, bool] = like.kind if like is not None and len(like.x) else self._kind()
        self.special, self.draws, self.mixes = self.kind
        self.dense, self.pooled, self.chain = (
            self._written_out() if precision != "bf16" else (None, None, None)
        )
        self._penalty = self._penalized()

    def __deepcopy__(self, memo: Any) -> Task:
        raise TypeError("a Task must not be copied: use Task.on(rows) for other rows")

    def on(self, x: Tensor, y: Tensor) -> Task:
        """The same model on other rows."""
        return Task(self.module, x, y, self.objective, self.precision, like=self)

    def for_stacking(self) -> Task:
        """A copy for `vmap` with its own module, because `functional_call` swaps values inside the module."""
        module = copy.deepcopy(self.module).to(self.x.device).train()
        return Task(module, self.x, self.y, self.objective, self.precision, stacked=True, like=self)

    def redraw(self, plans: Plans, name: str, epochs: int) -> Plans:
        """The plans of the stacked clients; a private task draws the rows of its one client `name` in
        secret.
        """
        return plans

    # the vector ---------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """The module's values: `w`, and `buffers` if it has any."""
        values = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        values = {name: value.detach() for name, value in values.items()}
        start = {"w": _join(self.parameters, values, torch.float32)}
        if self.buffer_slots:
            start["buffers"] = _join(self.buffer_slots, values, torch.float32)
        return {k: v.to(self.x.device) for k, v in start.items()}

    def constants(self) -> dict[str, Tensor]:
        """What is not in the vector: frozen parameters, and buffers that are not real numbers."""
        named = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        held = {s.name for s in (*self.parameters, *self.buffer_slots)}
        return {name: tensor.detach() for name, tensor in named.items() if name not in held}

    def module_at(self, w: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """A new module with these values."""
        module = copy.deepcopy(self.module).to("cpu")
        values = _split(self.parameters, w.detach().cpu())
        if buffers is not None:
            values |= _split(self.buffer_slots, buffers.detach().cpu())
        with torch.no_grad():
            # load_state_dict would leave out buffers that are not persistent
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if name in values:
                    tensor.copy_(values[name])
        return module.eval()

    # one step -----------------------------------------------------------------------------------------------

    def gradient(self, current: LocalState, batch: Batch) -> tuple[Tensor, LocalState]:
        """The gradient of the objective on the batch at `current.w`, and the state with updated buffers."""
        g, current = self._data_gradient(current, batch)
        return self.add_penalty(g, current.w), current

    def add_penalty(self, g: Tensor, w: Tensor) -> Tensor:
        """A gradient with that of the L2 penalty, λ·W, added."""
        return g if self._penalty is None else torch.addcmul(g, self._penalty, w)

    def _penalized(self) -> Tensor | None:
        """[D]: λ for weights that are penalized, 0 for the others; None: there is no penalty."""
        if not self.objective.l2:
            return None
        each = [
            torch.full((s.stop - s.start,), self.objective.l2 * (len(s.shape) > 1)) for s in self.parameters
        ]
        return torch.cat(each).to(self.x.device)

    def row_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, of outputs on the CPU."""
        return self.objective.of_rows(out, y, self.objective.weights(out.device))

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        return self.objective.of_rows(out, y, self.class_weights)

    def _data_gradient(self, current: LocalState, batch: Batch) -> tuple[Tensor, LocalState]:
        if self.stacked and self.dense:
            return _dense(self, current.w, batch.index, batch.live), current
        if (
            self.stacked and self.pooled and self.x.device.type == "cuda"
        ):  # on a CPU the zeros of the bands cost more than the copies they save
            x = self.x[batch.index]
            if self.pooled.front:
                with self._forward(batch):
                    x = self.pooled.front(x)
            return _pooled(self.pooled, current.w, x, self.y[batch.index], batch.live), current
        if self.stacked and self.chain:
            return _recurrent(
                self.chain, current.w, self.x[batch.index], self.y[batch.index], batch.live
            ), current
        differentiate = torch.func.grad(self._mean_loss, has_aux=True) if self.stacked else self._bound
        g, buffers = differentiate(current.w, current.buffers, batch)
        return g, current._replace(buffers=buffers)

    def loss(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor:
        """The mean loss over the batch's live rows, without the penalty, differentiable in w (except for
        stacked LSTMs).
        """
        if self.stacked and self.chain:
            losses = self._loss(_answers(self.chain, w, self.x[batch.index]), self.y[batch.index])
            return (losses * batch.live).sum() / batch.live.sum().clamp(min=1)
        module = (
            self.module if self.stacked else self._thread_module().module
        )  # this thread's, in training mode
        return self._mean_loss(w, buffers or {}, batch, module)[0]

    def _mean_loss(
        self, w: Tensor, buffers: State, batch: Batch, module: nn.Module | None = None
    ) -> tuple[Tensor, State]:
        module = self.module if module is None else module
        # clones, because the forward pass writes into them
        values = _split(self.parameters, w) | {
            k: b.clone() for k, b in module.named_buffers() if not b.is_floating_point()
        }
        if buffers:
            values |= {k: v.clone() for k, v in _split(self.buffer_slots, buffers["buffers"]).items()}
        with self._forward(batch):
            out = functional_call(module, values, (self.x[batch.index],))
        losses = self._loss(out.float(), self.y[batch.index])
        after = {"buffers": _join(self.buffer_slots, values, w.dtype).detach()} if buffers else {}
        return (losses * batch.live).sum() / batch.live.sum().clamp(min=1), after

    def _bound(self, w: Tensor, buffers: State, batch: Batch) -> tuple[Tensor, State]:
        own = self._thread_module()
        own.load(w, buffers.get("buffers"))
        trim = self.mixes or (w.device.type == "cpu" and not self.special)
        # drop the padding, which comes after the live rows, if it changes the result or need not be read
        # from a GPU
        if trim:
            live = int(batch.live.sum())
            batch = batch._replace(index=batch.index[:live], live=batch.live[:live])
        index = batch.index
        with torch.enable_grad():
            with self._forward(batch):
                out = own.module(self.x.index_select(0, index))
            losses = self._loss(out.float(), self.y[index])
            mean = losses.mean() if trim else (losses * batch.live).sum() / batch.live.sum().clamp(min=1)
            g = own.gradient(mean)
        return g, {"buffers": own.buffers(w.dtype)} if buffers else {}

    def distillation_gradient(
        self, w: Tensor, x: Tensor, target: Tensor, buffers: Tensor | None = None
    ) -> Tensor:
        """The gradient of the distance between the model's outputs on x and `target`, in evaluation mode.

        `target` are probabilities of classes (cross-entropy) or values (squared error).
        """
        own = self._thread_module()
        own.load(w, buffers)
        own.module.eval()
        try:
            with torch.enable_grad():
                out = own.module(x).float()
                return own.gradient(
                    -(target * out.log_softmax(-1)).sum(-1).mean()
                    if self.objective.is_classification
                    else (out - target).square().mean()
                )
        finally:
            own.module.train()

    def _thread_module(self) -> _FlatModule:
        if self._local.module is None:
            self._local.module = _FlatModule(
                copy.deepcopy(self.module).to(self.x.device).train(), self.parameters, self.buffer_slots
            )
        return self._local.module

    @contextmanager
    def _forward(self, batch: Batch) -> Iterator[None]:
        lower: AbstractContextManager[Any] = (
            torch.autocast(self.x.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        )
        patches = self.stacked and self.x.device.type == "cuda"
        with lower, LocalStep(batch.key, batch.live, patches) if self.special or patches else nullcontext():
            yield

    def probe(self, module: nn.Module) -> LocalStep:
        """Run two rows through a module in training mode; the caller's random state does not change."""
        rows, device = self.x[:2], self.x.device
        key = torch.zeros((), dtype=torch.int64, device=device)
        gpus = [device] if device.type == "cuda" else []

        def states() -> list[Tensor]:
            return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]

        mode = LocalStep(key, torch.ones(len(rows), device=device))
        with torch.random.fork_rng(devices=gpus), mode:
            before = states()
            module(rows)
            mode.draws = not all(map(torch.equal, before, states()))
        return mode

    def _kind(self) -> tuple[bool, bool, bool]:
        """Whether the model has dropout or batch norm, draws other random numbers, and depends on padding.

        The model is run to find out, because it may call functions rather than have layers.
        """
        if len(self.x) == 0:
            return False, False, False
        with torch.no_grad():
            mode = self.probe(copy.deepcopy(self.module).to(self.x.device).train())
            return mode.drops + mode.norms > 0, mode.draws, not mode.draws and self._depends_on_padding()

    def _depends_on_padding(self) -> bool:
        """Whether padding changes the outputs, as with dropout over another axis or batch statistics."""
        device, rows = self.x.device, self.x[:2]
        key = torch.zeros((), dtype=torch.int64, device=device)
        with LocalStep(key, torch.ones(len(rows), device=device)):
            alone = copy.deepcopy(self.module).to(device).train()(rows)
        live = torch.cat([torch.ones(len(rows), device=device), torch.zeros(1, device=device)])
        try:
            with LocalStep(key, live):
                padded = copy.deepcopy(self.module).to(device).train()(torch.cat([rows, rows[:1]]))
        except RuntimeError:
            return True
        return not torch.allclose(alone, padded[: len(rows)], rtol=1e-4, atol=1e-5)

    def _written_out(self) -> tuple[list[Layer] | None, Network | None, Chain | None]:
        """The model as one of the three kinds whose gradient over a stack is written out.

        That of convolutions and of LSTMs is written out for plain cross-entropy only.
        """
        layers = layers_of(parts_of(self.module), self.parameters)
        stacked = layers if layers and cover(layers, self.parameters) and self.y.dim() == 1 else None
        if self.objective.loss != "cross_entropy" or self.objective.class_weight:
            return stacked, None, None
        return (
            stacked,
            network_of(self.module, self.parameters, self.x.shape[1:]),
            chain_of(self.module, self.parameters),
        )

    # predictions --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict_stack(
        self, w: Tensor, x: Tensor, buffers: Tensor | None = None, rows: int | None = None, room: float = 4e9
    ) -> Tensor:
        """The outputs [R, N, …] of R models on all of x, as one program, in about `room` bytes of memory."""
        many, (rows, models) = self._many(x, buffers), self._at_once(rows, room)
        return torch.cat(
            [
                torch.cat(
                    [
                        many(
                            w[k : k + models],
                            None if buffers is None else buffers[k : k + models],
                            x[i : i + rows],
                        ).cpu()
                        for i in range(0, len(x), rows)
                    ],
                    dim=1,
                )
                for k in range(0, len(w), models)
            ]
        )

    @torch.no_grad()
    def count_correct(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        buffers: Tensor | None = None,
        rows: int | None = None,
        room: float = 4e9,
    ) -> Tensor:
        """[R]: the number of rows (or tokens) that each of R models predicts correctly, without a GPU
        sync.
        """
        many, (rows, models) = self._many(x, buffers), self._at_once(rows, room)
        right = torch.zeros(len(w), dtype=torch.int64, device=w.device)
        for k in range(0, len(w), models):
            for i in range(0, len(x), rows):
                out = many(
                    w[k : k + models], None if buffers is None else buffers[k : k + models], x[i : i + rows]
                )
                right[k : k + models] += (out.argmax(-1) == y[i : i + rows]).flatten(1).sum(-1)
        return right

    def _at_once(self, rows: int | None, room: float) -> tuple[int, int]:
        """How many rows and models to run at once; an LSTM gets many rows, because its products are small."""
        if self.chain:
            row = self.chain.row(self.x.shape[1], learns=False)
            rows = rows or int(min(4096, max(1, room // row)))
            return rows, max(1, int(room // (rows * row)))
        rows = rows or 256
        # ×8: the patches of a convolution take several times the memory of its input
        return rows, max(1, int(room // (rows * self.bytes_kept() * 8)))

    def _many(self, x: Tensor, buffers: Tensor | None) -> Any:
        if self.pooled and x.device.type == "cuda":
            return lambda w, _, x: pooled.predict(self.pooled, w, x)
        if self.chain:
            return lambda w, _, x: recurrent.answers(self.chain, w, x.expand(len(w), *x.shape))
        module = copy.deepcopy(self.module).to(x.device).eval()
        nothing = torch.zeros((), dtype=torch.int64, device=x.device)

        def one(w: Tensor, buffers: Tensor | None, x: Tensor) -> Tensor:
            values = _split(self.parameters, w) | (
                _split(self.buffer_slots, buffers) if buffers is not None else {}
            )
            with LocalStep(nothing, nothing, patches=True):  # convolutions as one product
                out: Tensor = functional_call(module, values, (x,))
            return out.float()

        return torch.vmap(one, in_dims=(0, None if buffers is None else 0, None))

    def bytes_kept(self) -> int:
        """Bytes that a row needs for the backward pass, measured on a batch of two."""
        if self.chain:
            return self.chain.row(self.x.shape[1], learns=True)
        total = 0

        def pack(t: Tensor) -> Tensor:
            nonlocal total
            total += t.numel() * t.element_size()
            return t

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            self.probe(copy.deepcopy(self.module).to(self.x.device).train())
        return total // 2 + self.x[:1].numel() * self.x.element_size()

    @torch.no_grad()
    def predict(self, w: Tensor, x: Tensor, buffers: Tensor | None = None, chunk: int = 2048) -> Tensor:
        """The model's outputs on x, in evaluation mode."""
        if len(x) == 0:  # some layers fail on empty batches: run one row, and drop it
            return self.predict(w, x.new_zeros(1, *x.shape[1:]), buffers)[:0]
        own = self._thread_module()
        own.load(w, buffers)
        own.module.eval()
        try:
            return torch.cat([own.module(x[i : i + chunk]).float() for i in range(0, len(x), chunk)])
        finally:
            own.module.train()


class _Thread(threading.local):
    """A thread's own module, and a private task's per-example gradients of it."""

    module: _FlatModule | None = None
    ghost: Any = None


class _FlatModule:
    """A module whose parameters are views of one flat tensor."""

    def __init__(self, module: nn.Module, slots: list[Slot], buffer_slots: list[Slot]):
        self.module, self.buffer_slots = module, buffer_slots
        self.values = [p for p in module.parameters() if p.requires_grad]
        self.floats = [b for b in module.buffers() if b.is_floating_point()]
        self.flat = torch.empty(sum(s.stop - s.start for s in slots), device=self.values[0].device)
        for p, s in zip(self.values, slots):
            p.data = self.flat[s.start : s.stop].view(s.shape)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient by all trainable parameters as one vector: zero for unused ones."""
        each = torch.autograd.grad(loss, self.values, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(each, self.values)]
        )

    def load(self, w: Tensor, buffers: Tensor | None) -> None:
        self.flat.copy_(w)
        if buffers is not None:
            for slot, buffer in zip(self.buffer_slots, self.floats):
                buffer.copy_(buffers[slot.start : slot.stop].view(slot.shape))

    def buffers(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([b.reshape(-1).to(dtype) for b in self.floats])

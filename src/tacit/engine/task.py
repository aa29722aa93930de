"""A model as a function of one flat vector: its loss, gradient and predictions.

The gradient is computed in one of two ways. `torch.func.grad` can be stacked with `vmap`: thousands of
clients as one tensor program. `_bound` copies the vector into this thread's module and uses
plain autograd, which is faster if clients run one by one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from ..algorithms.plan import Plans
from ..algorithms.types import Batch, LocalState, State
from ..data.inputs import Features, Stored, blank_rows, bytes_of_row, concatenate, read
from ..errors import BadParameter
from . import dense, pooled, recurrent
from .calling import LOGITS, LOSS, Part, call, call_with, last_input
from .dense import Layer, Slot, cover, for_one_client, layers_of, parts_of
from .flat_module import FlatModule, ThreadModules, join, slots_of, split
from .layers import LocalStep
from .losses import EVALUATED, WRITTEN_OUT, Objective, probe_own
from .members import Members, members_of
from .pooled import Network, network_of
from .recurrent import Chain, chain_of

_dense = for_one_client(
    lambda task, w, index, live: dense.gradient(
        task.dense, w, task.x, task.y, index, live, task.objective, task.class_weights, task.members
    )
)
_linear = for_one_client(
    lambda task, models, index, live, left_out: dense.sums_of_models(
        task.dense[0], models, task.x, task.y, index, live, left_out, task.objective, task.class_weights
    )
)
_pooled, _recurrent, _answers = (
    for_one_client(pooled.gradient),
    for_one_client(recurrent.gradient),
    for_one_client(recurrent.answers),
)


READ = 2**26  # bytes of a file that are read at a time to evaluate a model
COUNTING = 10  # times the memory of logits that counting them takes: probabilities and labels as float64
CHUNK = 2048  # rows on which a model is evaluated at a time


class Kind(NamedTuple):
    """What the engines must know of a model."""

    special: bool = False  # it has dropout or batch norm
    draws: bool = False  # it draws other random numbers
    mixes: bool = False  # its outputs depend on padding


class Task:
    """A model, a loss and the rows they work on. A local step only needs `gradient`."""

    def __init__(
        self,
        module: nn.Module,
        x: Features,
        y: Tensor,
        objective: Objective | None = None,
        precision: str = "float32",
        stacked: bool = False,
        like: Task | None = None,
        recorded: bool = False,
    ):
        """`objective` is cross-entropy by default; `like` is a task of the same model on other rows."""
        self.module, self.x, self.y, self.precision = module, x, y, precision
        self.objective = objective or Objective()
        # what is taken of the objects that a model may return
        self.part: Part = LOSS if self.objective.is_of_model else LOGITS
        if self.objective.is_own and not self.objective.is_of_model:
            self.part = self.objective.outputs
        self.class_weights = self.objective.weights(x.device)
        # frozen parameters and counters are the same at all parties: they are never sent, averaged or noisy
        self.parameters = slots_of((k, p) for k, p in module.named_parameters() if p.requires_grad)
        self.buffer_slots = slots_of((k, b) for k, b in module.named_buffers() if b.is_floating_point())
        self.dim = sum(s.stop - s.start for s in self.parameters)
        self.members = len(members_of(module)) or 1  # the loss is the sum of theirs
        self.stacked = stacked  # whether an engine runs `gradient` under vmap
        self.recorded = recorded  # or records it, client by client, as a CUDA graph
        self.compiles = False  # whether the recorded forward and backward pass are compiled
        self._local = ThreadModules()
        # (original, copy) of frozen parameters by the original's id, on each device
        self._frozen: dict[torch.device, dict[int, tuple[Tensor, Tensor]]] = (
            {} if like is None else like._frozen
        )
        self.kind: Kind = like.kind if like is not None and len(like.x) else self._kind()
        self.special, self.draws, self.mixes = self.kind
        # a loss over a batch depends on its rows as a batch norm does: no padding, clients one by one
        self.is_batch_loss: bool = (
            like.is_batch_loss if like is not None and len(like.x) else self._has_batch_loss()
        )
        self.mixes = self.mixes or self.is_batch_loss
        self.dense, self.pooled, self.chain = (
            self._written_out() if precision != "bf16" and not recorded else (None, None, None)
        )
        self._penalty = self.objective.l2 * self.penalized if self.objective.l2 else None

    @property
    def device(self) -> torch.device:
        """Where the rows are, and the model is trained."""
        return self.x.device

    def __deepcopy__(self, memo: Any) -> Task:
        raise TypeError("a Task must not be copied: use Task.on(rows) for other rows")

    def on(self, x: Features, y: Tensor) -> Task:
        """The same model on other rows."""
        return Task(self.module, x, y, self.objective, self.precision, like=self)

    def for_stacking(self) -> Task:
        """A copy for `vmap` with its own module, because `functional_call` swaps values inside the module."""
        return Task(self.copy(), self.x, self.y, self.objective, self.precision, stacked=True, like=self)

    def for_recording(self, compiles: bool = False) -> Task:
        """A copy whose steps can be recorded as a CUDA graph, on several streams at once."""
        if type(self) is not Task:  # a private task draws noise in each step, which a replay would repeat
            raise TypeError(f"the steps of a {type(self).__name__} must not be recorded")
        task = Task(self.copy(), self.x, self.y, self.objective, self.precision, like=self, recorded=True)
        task.compiles = compiles
        return task

    def copy(self) -> nn.Module:
        """The module on the rows' device, in training mode; all copies there share the frozen parameters."""
        device = self.x.device
        frozen = [p for p in self.module.parameters() if not p.requires_grad]
        if device not in self._frozen:
            self._frozen[device] = {
                id(p): (p, nn.Parameter(p.detach().to(device), requires_grad=False)) for p in frozen
            }
        shared = self._frozen[device]
        memo: dict[int, Any] = {id(p): shared[id(p)][1] if id(p) in shared else p for p in frozen}
        module = copy.deepcopy(self.module, memo).to(device).train()
        if isinstance(module, Members):
            module.is_apart = True
        return module

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
        start = {"w": join(self.parameters, values, torch.float32)}
        if self.buffer_slots:
            start["buffers"] = join(self.buffer_slots, values, torch.float32)
        return {k: v.to(self.x.device) for k, v in start.items()}

    def constants(self) -> dict[str, Tensor]:
        """What is not in the vector: frozen parameters, and buffers that are not real numbers."""
        named = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        held = {s.name for s in (*self.parameters, *self.buffer_slots)}
        return {name: tensor.detach() for name, tensor in named.items() if name not in held}

    @property
    def member_parts(self) -> list[slice]:
        """The part of the vector of each member; of one network, the whole."""
        if self.members == 1:
            return [slice(None)]
        stops = [0, *self.members * [0]]
        for slot in self.parameters:  # the members' parameters come one member after the other
            stops[int(slot.name.split(".")[1]) + 1] = slot.stop
        return [slice(a, b) for a, b in itertools.pairwise(stops)]

    def values_at(self, w: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """The parameters and buffers of these vectors by name, on the CPU."""
        values = split(self.parameters, w.detach().cpu())
        if buffers is not None:
            values |= split(self.buffer_slots, buffers.detach().cpu())
        return values

    def vectors_of(self, values: dict[str, Tensor]) -> State:
        """The vectors of these values: what `values_at` undoes."""
        state = {"w": join(self.parameters, values, torch.float32)}
        if self.buffer_slots:
            state["buffers"] = join(self.buffer_slots, values, torch.float32)
        return state

    def module_at(self, w: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """A new module with these values."""
        module = copy.deepcopy(self.module).to("cpu")
        values = self.values_at(w, buffers)
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

    @cached_property
    def penalized(self) -> Tensor:
        """[D]: 1 for weights that an L2 penalty is for, 0 for the others."""
        each = [torch.full((s.stop - s.start,), float(len(s.shape) > 1)) for s in self.parameters]
        return torch.cat(each).to(self.x.device)

    def sums_of_models(
        self, models: Tensor, current: LocalState, batch: Batch, live: Tensor, left_out: Tensor
    ) -> tuple[Tensor, LocalState]:
        """[M, D + 1]: for M models [M, D], the sums of gradients over their live rows, and in the last column
        those of losses over rows that were left out; [M, B] each. Without the penalty.

        Buffers follow the last model.
        """
        if self.dense and len(self.dense) == 1 and self.members == 1:
            return _linear(self, models, batch.index, live, left_out), current
        parts = [self._sums(current._replace(w=w), batch, a, b) for w, a, b in zip(models, live, left_out)]
        return torch.stack([sums for sums, _ in parts]), current._replace(buffers=parts[-1][1].buffers)

    def _sums(
        self, at: LocalState, batch: Batch, live: Tensor, left_out: Tensor
    ) -> tuple[Tensor, LocalState]:
        order = torch.argsort(1 - live, stable=True)  # padding comes after the live rows
        count, held = live.sum(), left_out.sum()
        loss = torch.where(held > 0, self.loss(at.w, batch._replace(live=left_out), at.buffers), 0.0) * held
        g, after = self._data_gradient(at, Batch(batch.index[order], live[order], batch.key))
        g = torch.where(count > 0, g, 0.0) * count
        return torch.cat([g, loss[None]]), after

    def row_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """[N]: the loss of each row; of a loss over batches, that of the row's batch."""
        return self.objective.of_each(out, y)

    def _has_batch_loss(self) -> bool:
        """Whether an own loss returns one number for a batch; BadParameter if it returns neither."""
        if not self.objective.is_own or not len(self.x):
            return False
        with torch.random.fork_rng(devices=[]):
            with torch.no_grad():
                out = call(copy.deepcopy(self.module).eval(), self.x[:2], self.part).float()
            return probe_own(self.objective, out, self.y[:2]).dim() == 0

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        if self.members == 1:
            return self.objective.of_rows(out, y, self.class_weights)
        return torch.stack([self.objective.of_rows(o, y, self.class_weights) for o in out.unbind(1)]).sum(0)

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
        functional = self.stacked or self._is_stacked(batch)
        differentiate = torch.func.grad(self._mean_loss, has_aux=True) if functional else self._bound
        g, buffers = differentiate(current.w, current.buffers, batch)
        return g, current._replace(buffers=buffers)

    def loss(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor:
        """The mean loss over the batch's live rows, without the penalty, differentiable in w (except for
        stacked LSTMs).
        """
        if self.stacked and self.chain:
            losses = self._loss(_answers(self.chain, w, self.x[batch.index]), self.y[batch.index])
            return (losses * batch.live).sum() / batch.live.sum().clamp(min=1)
        module = self._own_module()
        if self.is_batch_loss:
            live = int(batch.live.sum())
            batch = batch._replace(index=batch.index[:live], live=batch.live[:live])
        return self._mean_loss(w, buffers or {}, batch, module)[0]

    def labels(self, batch: Batch) -> Tensor:
        """[B, …]: the labels or targets of the batch's rows, padding included."""
        return self.y[batch.index]

    def logits(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor:
        """[B, …]: the outputs for the batch's rows, padding included, differentiable in w (except for stacked
        LSTMs). Buffers, such as batch-norm statistics, are read and not updated.
        """
        if self.stacked and self.chain:
            found: Tensor = _answers(self.chain, w, self.x[batch.index])
            return found
        return self._outputs(self._own_module(), w, batch, buffers)

    def features(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor:
        """[B, F]: what the last layer with parameters receives, for the batch's rows; differentiable in w."""
        if self.members > 1:
            raise BadParameter("features: every member of the model has its own. Use models.MLP(members=1).")
        module = self._own_module()
        with last_input(module) as received:
            self._outputs(module, w, batch, buffers)
        return received.features()

    def _outputs(self, module: nn.Module, w: Tensor, batch: Batch, buffers: State | None) -> Tensor:
        if self.buffer_slots:
            own = (buffers or {}).get("buffers")
            flat = join(self.buffer_slots, dict(module.named_buffers()), w.dtype) if own is None else own
            # the forward pass writes into them: where the batch is of a stack, they must be of it, too
            buffers = {"buffers": flat + 0 * batch.live.sum()}
        values = self._values(w, buffers or {}, module)
        with self._forward(batch):
            out = call_with(module, values, self._rows(batch), self.part).float()
        return out if self.members == 1 else out.mean(1)

    def _own_module(self) -> nn.Module:
        """The module that only this thread uses, in training mode."""
        return self.module if self.stacked else self._thread_module().module

    def _values(self, w: Tensor, buffers: State, module: nn.Module) -> dict[str, Tensor]:
        # clones, because the forward pass writes into them
        values = split(self.parameters, w) | {
            k: b.clone() for k, b in module.named_buffers() if not b.is_floating_point()
        }
        if "buffers" in buffers:
            values |= {k: v.clone() for k, v in split(self.buffer_slots, buffers["buffers"]).items()}
        return values

    def _rows(self, batch: Batch) -> Features:
        return self._read(batch) if isinstance(self.x, Stored) else self.x[batch.index]

    def _mean_loss(
        self, w: Tensor, buffers: State, batch: Batch, module: nn.Module | None = None
    ) -> tuple[Tensor, State]:
        module = self.module if module is None else module
        values = self._values(w, buffers, module)
        with self._forward(batch):
            out = call_with(module, values, self._rows(batch), self.part)
        losses = self._loss(out.float(), self.y[batch.index])
        after = {"buffers": join(self.buffer_slots, values, w.dtype).detach()} if buffers else {}
        return (losses * batch.live).sum() / batch.live.sum().clamp(min=1), after

    def _read(self, batch: Batch) -> Features:
        """The rows of a step; those that are not in memory are read, and changed by their transform."""
        rows = self.x.index_select(0, batch.index)
        return rows.read_to_train(int(batch.key)) if isinstance(rows, Stored) else rows

    def _bound(self, w: Tensor, buffers: State, batch: Batch) -> tuple[Tensor, State]:
        own = self._thread_module()
        own.load(w, buffers.get("buffers"))
        trim = not self.recorded and (self.mixes or (w.device.type == "cpu" and not self.special))
        # drop the padding, which comes after the live rows, if it changes the result or need not be read
        # from a GPU
        if trim:
            live = int(batch.live.sum())
            batch = batch._replace(index=batch.index[:live], live=batch.live[:live])
        index = batch.index
        with torch.enable_grad():
            with self._forward(batch):
                out = call(own.forward, self._read(batch), self.part)
            losses = self._loss(out.float(), self.y[index])
            mean = losses.mean() if trim else (losses * batch.live).sum() / batch.live.sum().clamp(min=1)
            g = own.gradient(mean)
        return g, {"buffers": own.buffers(w.dtype)} if buffers else {}

    def distillation_gradient(
        self, w: Tensor, x: Features, target: Tensor, buffers: Tensor | None = None
    ) -> Tensor:
        """The gradient of the distance between the model's outputs on x and `target`, in evaluation mode.

        `target` are probabilities of classes (cross-entropy) or values (squared error).
        """
        own = self._thread_module()
        own.load(w, buffers)
        own.module.eval()
        try:
            with torch.enable_grad():
                out = call(own.module, x).float()
                return own.gradient(
                    -(target * out.log_softmax(-1)).sum(-1).mean()
                    if self.objective.is_classification
                    else (out - target).square().mean()
                )
        finally:
            own.module.train()

    def _thread_module(self) -> FlatModule:
        """The module of this thread; of this stream, if steps are recorded: those of several run at once."""
        stream = torch.cuda.current_stream(self.x.device).cuda_stream if self.recorded else 0
        modules = self._local.of_streams()
        if stream not in modules:
            # it may be needed first inside torch.func.grad, whose tensors must not become parameters
            with temporarily_clear_interpreter_stack():
                modules[stream] = FlatModule(self.copy(), self.parameters, self.buffer_slots, self.compiles)
        return modules[stream]

    def _is_stacked(self, batch: Batch) -> bool:
        """Whether an algorithm asks for a gradient outside its loop, where recorded clients are a stack."""
        return self.recorded and bool(torch._C._functorch.is_batchedtensor(batch.index))

    @contextmanager
    def _forward(self, batch: Batch) -> Iterator[None]:
        lower: AbstractContextManager[Any] = (
            torch.autocast(self.x.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()
        )
        stacked = self.stacked or self._is_stacked(batch)
        replaced = LocalStep(
            batch.key, batch.live, patches=stacked and self.x.device.type == "cuda", products=stacked
        )
        with lower, replaced if self.special or stacked else nullcontext():
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
            call(module, rows, self.part)
            mode.draws = not all(map(torch.equal, before, states()))
        return mode

    def _kind(self) -> Kind:
        """What the engines must know of the model, found by running it: it may call functions rather than
        have layers.
        """
        if len(self.x) == 0:
            return Kind()
        with torch.no_grad():
            mode = self.probe(self.copy())
            return Kind(
                mode.drops + mode.norms > 0,
                mode.draws,
                not mode.draws and (self.part == LOSS or self._depends_on_padding()),
            )

    def _depends_on_padding(self) -> bool:
        """Whether padding changes the outputs, as with dropout over another axis or batch statistics.

        In float64 on the CPU: in TF32 the outputs of a deep network differ with the shape of the batch. A
        model that cannot run there is compared with itself, on its device, where only the padding differs.
        """
        rows = self.x[:2]
        try:
            module, rows = copy.deepcopy(self.module).cpu().double().train(), read(rows.cpu())
            rows = rows if isinstance(rows, Tensor) and not rows.is_floating_point() else rows.double()
            # a run may change buffers
            first = copy.deepcopy(module) if any(True for _ in module.buffers()) else module
            alone = _run(first, rows, 0, self.part)
            padded = _run(module, concatenate([rows, rows[:1]]), 1, self.part)
            return alone.shape != padded.shape or not torch.allclose(alone, padded, rtol=1e-7, atol=1e-9)
        except (RuntimeError, TypeError, ValueError):
            pass
        rows = read(self.x[:3])
        try:
            each = [
                _run(self.copy(), concatenate([rows[:2], row]), 1, self.part)
                for row in (rows[:1], rows[-1:], blank_rows(rows, 1))
            ]
        except (RuntimeError, TypeError, ValueError):
            return True
        return not all(torch.equal(each[0], other) for other in each[1:])

    def _written_out(self) -> tuple[list[Layer] | None, Network | None, Chain | None]:
        """The model as one of the three kinds whose gradient over a stack is written out.

        That of convolutions and of LSTMs is written out for plain cross-entropy only.
        """
        if not isinstance(self.x, Tensor):
            return None, None, None
        layers, slots = self._layers()
        if self.objective.loss not in WRITTEN_OUT:
            return None, None, None
        stacked = layers if layers and cover(layers, slots) and self.y.dim() == 1 else None
        if self.objective.loss != "cross_entropy" or self.objective.class_weight:
            return stacked, None, None
        return (
            stacked,
            network_of(self.module, self.parameters, self.x.shape[1:]),
            chain_of(self.module, self.parameters),
        )

    def _layers(self) -> tuple[list[Layer] | None, list[Slot]]:
        """The layers of a perceptron, or of each member of one, in the part of the vector that is its own."""
        members = members_of(self.module)
        if not members:
            return layers_of(parts_of(self.module), self.parameters), self.parameters
        each = [slots_of((k, p) for k, p in m.named_parameters() if p.requires_grad) for m in members]
        is_repeated = all(slots == each[0] for slots in each) and self.dim == len(each) * each[0][-1].stop
        found = [layers_of(parts_of(m), each[0]) for m in members] if is_repeated else [None]
        return found[0] if all(layers == found[0] for layers in found) else None, each[0]

    # predictions --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict_stack(
        self,
        w: Tensor,
        x: Features,
        buffers: Tensor | None = None,
        rows: int | None = None,
        room: float = 4e9,
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
        x: Features,
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
                if y.dim() > 2 and out.shape[2:-1] != y.shape[1:]:  # images have their classes first
                    out = out.movedim(2, -1)
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

    def _many(self, x: Features, buffers: Tensor | None) -> Any:
        if self.pooled and x.device.type == "cuda":
            return lambda w, _, x: pooled.predict(self.pooled, w, x)
        if self.chain:
            return lambda w, _, x: recurrent.answers(self.chain, w, x.expand(len(w), *x.shape))
        module = self.copy().to(x.device).eval()
        nothing = torch.zeros((), dtype=torch.int64, device=x.device)

        def one(w: Tensor, buffers: Tensor | None, x: Features) -> Tensor:
            values = split(self.parameters, w) | (
                split(self.buffer_slots, buffers) if buffers is not None else {}
            )
            with LocalStep(nothing, nothing, patches=True, products=True):  # convolutions as one product
                return call_with(module, values, x, self.part).float()

        def many(w: Tensor, buffers: Tensor | None, x: Features) -> Tensor:
            rows, dims = read(x), (0, None if buffers is None else 0)
            out: Tensor = torch.vmap(lambda w, buffers: one(w, buffers, rows), in_dims=dims)(w, buffers)
            return out

        return many

    def bytes_kept(self) -> int:
        """Bytes that a row needs for the backward pass, measured on a batch of two."""
        if self.chain:
            return self.chain.row(self.x.shape[1], learns=True)
        total, module = 0, self.copy()
        weights = {p.untyped_storage()._cdata for p in module.parameters()}

        def pack(t: Tensor) -> Tensor:
            nonlocal total
            if t.untyped_storage()._cdata not in weights:  # a client's, not a row's
                total += t.numel() * t.element_size()
            return t

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            self.probe(module)
        return total // 2 + bytes_of_row(self.x)

    def predict_in_chunks(
        self, w: Tensor, x: Features, buffers: Tensor | None = None, apart: bool = False
    ) -> Iterator[tuple[slice, Tensor]]:
        """The model's outputs, on the CPU, with the rows that they are of; with `apart`, of each member.

        Rows in memory are one chunk. Rows that are read from files or data sets are read, and forgotten, a
        chunk at a time, so that neither they nor their outputs are in memory as a whole.
        """
        if not isinstance(x, Stored) or not len(x):
            yield slice(0, len(x)), self.predict(w, x, buffers, apart=apart).cpu()
            return
        first = self.predict(w, x[:1], buffers, apart=apart)
        size = max(1, bytes_of_row(x), COUNTING * first.numel() * first.element_size())
        rows = max(1, min(CHUNK, READ // size))
        if self.is_batch_loss:  # evaluated in batches of this many rows, whatever the chunks are
            rows = max(EVALUATED, rows // EVALUATED * EVALUATED)
        starts = list(range(0, len(x), rows))
        if self.is_batch_loss and len(starts) > 1 and len(x) - starts[-1] == 1:
            starts.pop()  # many such losses are undefined for one row
        for start, stop in zip(starts, [*starts[1:], len(x)]):
            yield slice(start, stop), self.predict(w, x[start:stop], buffers, apart=apart).cpu()

    @torch.no_grad()
    def predict(
        self,
        w: Tensor,
        x: Features,
        buffers: Tensor | None = None,
        chunk: int = CHUNK,
        apart: bool = False,
    ) -> Tensor:
        """The model's outputs on x, in evaluation mode; with `apart`, those of each member, [N, M, …]."""
        if len(x) == 0:  # some layers fail on empty batches: run one row, and drop it
            one = blank_rows(x if isinstance(x, Tensor) else self.x, 1)
            return self.predict(w, one, buffers, apart=apart)[:0]
        own = self._thread_module()
        own.load(w, buffers)
        own.module.eval()
        try:
            if isinstance(x, Stored):
                chunk = min(chunk, max(1, READ // max(1, bytes_of_row(x))))
            chunk = EVALUATED if self.is_batch_loss and self.part == LOSS else chunk
            parts = [x[i : i + chunk] for i in range(0, len(x), chunk)]
            module = own.module.each if apart and isinstance(own.module, Members) else own.module
            each = [call(module, part, self.part).float() for part in parts]
            # a loss over a batch is that of each of its rows
            return torch.cat([out if out.dim() else out.expand(len(part)) for out, part in zip(each, parts)])
        finally:
            own.module.train()


def _run(module: nn.Module, rows: Features, padding: int, part: Part) -> Tensor:
    """The outputs of a module for the rows without the padding, which comes last."""
    live = torch.ones(len(rows), device=rows.device, dtype=torch.float64)
    live[len(rows) - padding :] = 0
    with LocalStep(torch.zeros((), dtype=torch.int64, device=rows.device), live):
        return call(module, rows, part)[: len(rows) - padding]

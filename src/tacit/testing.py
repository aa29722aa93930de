"""Conformance suites for your own algorithms, rules, stages, models, data and runtimes.

    from tacit import testing
    testing.check_algorithm(MyAlgorithm(lr=0.1))        # algorithms/: local and merge
    testing.check_aggregate(MyRule())                   # aggregate/: how updates are combined
    testing.check_stage(MyStage(), others=[Clip(1.0)])  # guard/: stages of an upload
    testing.check_model(MyModel(), rows)                # models.py: a spec that builds a module
    testing.check_skew(MySkew())                        # data/: how rows are partitioned
    testing.check_dataset(my_dataset)                   #        a constructor, or a Dataset
    testing.check_federation(fed, rows=1797)            #        a partition of rows across parties
    testing.check_protocol(programs, ideal, inputs)     # protocols/: the programs compute the ideal function
    testing.check_runtime(MyRuntime())                  # runtimes/: how programs are run

Each raises an AssertionError that says what is wrong. Members listed in the `ALL` of a package are checked by
tacit's own tests.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from . import algorithms, models
from .aggregate import Rule
from .algorithms.plan import identify, plan
from .algorithms.types import Algorithm, Batch, Batches, LocalState, State, Upload
from .algorithms.types import fresh as fresh_state
from .data.conformance import check_dataset, check_federation, check_skew
from .data.federation import Federation, Holdings, Rows
from .data.inputs import tensors_of
from .engine.task import Task
from .guard import Stage
from .guard.conformance import check_form
from .parameters import check, from_table, to_table
from .parties.conformance import check_protocol, demand
from .runtimes.cohort import Cohort, Run
from .runtimes.conformance import check_runtime

__all__ = [
    "check_aggregate",
    "check_algorithm",
    "check_dataset",
    "check_federation",
    "check_model",
    "check_protocol",
    "check_runtime",
    "check_skew",
    "check_stage",
]

T = TypeVar("T")
CLOSE = 1e-5  # float32 rounding over a few steps, for weights of about one
# Where the steps amplify rounding (a batch norm over two rows, a large learning rate), the tolerance follows
# from what they make of a start that is off by rounding. Every one of the about ten operations of a step
# rounds; a wrong algorithm is off by much more than the largest tolerance.
AMPLIFIED, LARGEST = 10, 1e-3
# parties differ in rows and epochs, and one of them does not take part in each round
SIZES, EPOCHS = (7, 12, 3, 9), (2, 1, 3, 1)
BATCH, PER_ROUND, ROUNDS = 4, 3, 3


# algorithms -------------------------------------------------------------------------------------------------


def check_algorithm(algorithm: Algorithm, messages: bool = True) -> None:
    """Raise AssertionError unless every engine can run the algorithm.

    1. It is a frozen dataclass with declared parameters, and can be written to a job file and read back.
    2. `local` and `merge` are pure: the same inputs give the same bits, inputs are not changed, and there is
       no I/O and no randomness.
    3. An upload is a positive weight and named float vectors; states keep their names and shapes; `sends`
       names parts of the server's state.
    4. `merge` uses only the weighted mean of the uploads: another object with the same parameters does the
       same.
    5. Padding rows in a batch change nothing.
    6. Clients stacked under `vmap` equal clients one by one, with different numbers of steps and partial
       participation, including batch-norm statistics.
    7. Runs side by side (other seeds, another learning rate) equal each run alone.
    8. One program per party over messages gives the same model. `messages=False` skips this (it needs
       msgpack).
    """
    name = type(algorithm).__name__
    _check_parameters(algorithm, name)
    for kind in ("tanh", "batch norm"):
        _check_functions(algorithm, name, kind)
        stacked, each = (_train([algorithm], kind, engine)[0] for engine in ("stack", "each"))
        _check_equal(
            f"{name}, {kind} model: clients stacked and one by one",
            stacked,
            each,
            lambda kind=kind: _train([algorithm], kind, "each", rounded=True)[0],  # type: ignore[misc]
        )
        demand(
            float((stacked["w"] - _task(kind).initial()["w"]).abs().max()) > 0,
            f"{name}: {ROUNDS} rounds did not change the {kind} model.",
        )
    _check_side_by_side(algorithm, name)
    if messages:
        _check_runtimes(name, algorithm=algorithm, per_round=PER_ROUND)


def _check_parameters(algorithm: Algorithm, name: str) -> None:
    demand(
        dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type),
        f"{name} is not a dataclass: its parameters must be fields.",
    )
    declared = vars(type(algorithm)).get("__dataclass_params__")
    demand(
        declared is not None and declared.frozen,
        f"{name} is not frozen: write @dataclass(frozen=True) above it.",
    )
    demand(isinstance(algorithm, Algorithm), f"{name} does not extend algorithms.Algorithm.")
    fields = {f.name: f.metadata for f in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    for key, metadata in fields.items():
        demand(
            bool(metadata),
            f"{name}.{key} is not declared: use parameters.real, whole, choice, flag or part.",
        )
    demand("lr" in fields, f"{name} has no field `lr`, which the effective update and the baselines need.")
    _check_job_file(algorithm, "algorithm", algorithms.PARTS)


def _check_job_file(thing: Any, where: str, members: Mapping[str, type]) -> Any:
    """Check the parameters, and that the thing can be written to a job file and read back; return that."""
    name = type(thing).__name__
    check(thing)
    back = from_table(to_table(thing), {**members, name: type(thing)}, where)
    demand(back == thing, f"{name}: {thing} becomes {back} in a job file.")
    return back


def _check_functions(algorithm: Algorithm, name: str, kind: str) -> None:
    task = _task(kind)
    start = task.initial()
    server = algorithm.server_state(start["w"])
    fresh = fresh_state(algorithm, start)
    for key in algorithm.sends:
        demand(
            key in server,
            f"{name}: sends names {key!r}, which server_state does not have "
            f"({', '.join(server) or 'nothing'}).",
        )
    taken = {"w", "round", "buffers"} & server.keys()
    demand(
        not taken,
        f"{name}: server_state may not use {', '.join(map(repr, taken))}: `down` has those already.",
    )
    down = {**start, "round": torch.tensor(0.0), **{k: server[k] for k in algorithm.sends}}
    uploads = []
    for k in range(len(SIZES)):
        batches = _batches(k)
        upload, mine = _twice(f"{name}.local", algorithm.local, task, down, fresh, batches)
        _check_upload(name, upload, start)
        _check_shapes(f"{name}.local: the client's state", mine, fresh)
        uploads.append(upload)
        padded, _ = algorithm.local(task, down, fresh, _pad(batches))
        _check_equal(
            f"{name}: an upload, and the same with padding rows in its batches",
            padded.vectors,
            upload.vectors,
            lambda batches=batches: (  # type: ignore[misc]
                algorithm.local(task, down | {"w": _rounded(down["w"])}, fresh, batches)[0].vectors
            ),
        )
        demand(
            float(padded.weight) == float(upload.weight), f"{name}: padding rows change a client's weight."
        )
    demand(
        all(upload.vectors.keys() == uploads[0].vectors.keys() for upload in uploads),
        f"{name}: clients upload different vectors.",
    )
    total = sum(u.weight for u in uploads)
    mean = {
        k: sum((u.weight * u.vectors[k] for u in uploads), torch.zeros(())) / total
        for k in uploads[0].vectors
    }
    mean.pop("buffers", None)
    fraction = torch.tensor(0.75)
    w, state = _twice(f"{name}.merge", algorithm.merge, start["w"], server, mean, fraction)
    demand(
        w.shape == start["w"].shape and bool(torch.isfinite(w).all()),
        f"{name}.merge returns weights of shape {tuple(w.shape)}, or NaN or infinite ones.",
    )
    _check_shapes(f"{name}.merge: the server's state", state, server)
    # an object that has run no client
    other = _check_job_file(algorithm, "algorithm", algorithms.PARTS)
    demand(
        torch.equal(other.merge(start["w"], server, mean, fraction)[0], w),
        f"{name}.merge depends on more than its arguments: an object that ran no client merges the same mean "
        "differently.",
    )


def _check_upload(name: str, upload: Any, start: State) -> None:
    demand(isinstance(upload, Upload), f"{name}.local returns {type(upload).__name__}, not (Upload, state).")
    demand(
        isinstance(upload.weight, Tensor)
        and upload.weight.shape == ()
        and bool(upload.weight > 0)
        and bool(torch.isfinite(upload.weight)),
        f"{name}: an upload's weight is {upload.weight!r}; it must be a tensor of one positive number.",
    )
    demand(bool(upload.vectors), f"{name}: an upload has no vectors.")
    for key, value in upload.vectors.items():
        demand(
            isinstance(value, Tensor)
            and value.is_floating_point()
            and not value.requires_grad
            and bool(torch.isfinite(value).all()),
            f"{name}: upload {key!r} is not a finite float tensor without gradient.",
        )
    demand(
        ("buffers" in upload.vectors) == ("buffers" in start),
        f"{name}: a model's buffers must be uploaded as 'buffers', and only then: "
        "add **current.buffers to the vectors.",
    )


def _twice(what: str, function: Callable[..., T], *inputs: Any) -> T:
    """The result of a call that must be pure, which is checked by a second call."""
    before = copy.deepcopy(list(_tensors(inputs)))
    generators = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    with torch.no_grad():
        first = function(*inputs)
        printed = io.StringIO()
        with _no_io(what), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            second = function(*inputs)
    demand(not printed.getvalue(), f"{what} prints: {printed.getvalue()!r:.80}")
    demand(
        all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(before, _tensors(inputs))),
        f"{what} changes its inputs in place.",
    )
    demand(
        torch.equal(generators[0], torch.get_rng_state())
        and (generators[1] == np.random.get_state()[1]).all(),  # type: ignore[index]
        f"{what} uses a global random generator; use the keys of the batches, or its own generator.",
    )
    demand(
        all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(second), strict=True)),
        f"{what} is not pure: two calls with the same inputs differ.",
    )
    return first


def _tensors(thing: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples and dicts, and of a Task."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Task):
        yield from (*tensors_of(thing.x), thing.y, *thing.module.state_dict().values())
    elif isinstance(thing, dict | list | tuple):
        for value in thing.values() if isinstance(thing, dict) else thing:
            yield from _tensors(value)


_io_events: dict[int, list[str]] = {}  # thread → its I/O; empty unless a check is running
_hooks: list[bool] = []


def _record_io(event: str, arguments: Any) -> None:
    if _io_events and event in (
        "open",
        "socket.connect",
        "socket.bind",
        "subprocess.Popen",
        "os.system",
        "os.remove",
        "os.mkdir",
    ):
        events = _io_events.get(threading.get_ident())
        if events is not None:
            events.append(f"{event} {arguments[0]!r:.80}")


@contextlib.contextmanager
def _no_io(what: str) -> Iterator[None]:
    if not _hooks:  # an audit hook cannot be removed, so there is one for all checks
        _hooks.append(True)
        sys.addaudithook(_record_io)
    events = _io_events[threading.get_ident()] = []
    try:
        yield
    finally:
        del _io_events[threading.get_ident()]
    demand(not events, f"{what} does I/O: {'; '.join(events[:3])}")


def _check_side_by_side(algorithm: Algorithm, name: str) -> None:
    slower = dataclasses.replace(algorithm, lr=algorithm.lr / 2)  # type: ignore[type-var]
    together = _train([algorithm, slower], "tanh", "stack")
    for seed, (one, mine) in enumerate(zip((algorithm, slower), together)):
        _check_equal(
            f"{name}: two runs side by side, and run {seed} alone",
            mine,
            _train([one], "tanh", "stack", seed)[0],
            lambda one=one, seed=seed: _train([one], "tanh", "stack", seed, rounded=True)[0],  # type: ignore[misc]
        )


def _check_runtimes(name: str, **options: Any) -> list[Any]:
    """Train in a simulation, and with one program per party; return both results, which must be equal."""
    from .jobs.train.plan import make_plan
    from .jobs.train.train import train_side_by_side

    fed, module = _federation(), _task("tanh").module
    same = {"rounds": 2, "local_epochs": EPOCHS, "batch_size": BATCH, "evaluate_every": 0, **options}

    def run(runtime: str, module: nn.Module) -> Any:
        return train_side_by_side([make_plan(fed, model=module, runtime=runtime, **same)], [None])[0]

    def weights(result: Any) -> State:
        return {k: v.detach() for k, v in result.model.named_parameters()}

    def from_rounded() -> State:
        other = copy.deepcopy(module)
        with torch.no_grad():
            for p in other.parameters():
                p.copy_(_rounded(p))
        return weights(run("inprocess", other))

    here, there = (run(runtime, module) for runtime in ("cohort", "inprocess"))
    what = f"{name}: the simulation, and one program per party over messages"
    _check_equal(what, weights(here), weights(there), from_rounded)
    return [here, there]


# the federation and the models that algorithms are checked with ---------------------------------------------


def _federation() -> Federation:
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    x = torch.from_numpy(rng.standard_normal((n, 4)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, n))
    order = np.split(rng.permutation(n), np.cumsum(SIZES)[:-1])
    rows = Rows(x, y)
    return Federation(
        "conformance",
        rows,
        Holdings.from_lists(order),
        Holdings.from_lists([[] for _ in SIZES]),
        rows,
        3,
        tuple("abcd"),
    )


def _task(kind: str) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm = kind == "batch norm"
        # before a batch norm the gradient of a bias is only rounding, which Adam would amplify
        first = nn.Linear(4, 5, bias=not norm)
        # a smooth activation, so that rounding does not decide a branch
        module = nn.Sequential(first, *[nn.BatchNorm1d(5)] * norm, nn.Tanh(), nn.Linear(5, 3))
    return Task(module, *_federation().rows)


def _batches(k: int) -> Batches:
    batches = plan(0, 0, identify(["abcd"[k]]), np.array([SIZES[k]]), EPOCHS[k], BATCH).of(0)
    return batches._replace(index=_federation().train.of(k)[batches.index])


def _pad(batches: Batches) -> Batches:
    """The same with two padding rows in every batch."""
    more = batches.index[:, :1].expand(-1, 2)
    return batches._replace(
        index=torch.cat([batches.index, more], 1), live=torch.cat([batches.live, torch.zeros(more.shape)], 1)
    )


def _train(
    runs: list[Algorithm], kind: str, engine: str, first_seed: int = 0, rounded: bool = False
) -> list[State]:
    """The final weights, buffers and server state of each run; `rounded`: from a start off by rounding."""
    task, fed = _task(kind), _federation()
    start = task.initial()
    if rounded:
        start["w"] = _rounded(start["w"])
    one = runs[0].local_epochs
    epochs, steps = np.array(EPOCHS) if one is None else np.full(len(SIZES), one), runs[0].local_steps
    settings = [Run(fed, a, first_seed + i, PER_ROUND, epochs, BATCH, steps) for i, a in enumerate(runs)]
    cohort = Cohort(task, [start] * len(runs), settings, engine)
    demand(cohort.engine == engine, f"the {kind} model cannot be stacked: {cohort.notes}")
    try:
        for r in range(ROUNDS):
            cohort.round(r)
    except Exception as error:
        raise AssertionError(
            f"{type(runs[0]).__name__}: {len(runs)} run(s) of clients, engine {engine!r}, {kind} model: "
            f"{type(error).__name__}: {str(error).strip()[:200]}"
        ) from error
    final = {"w": cohort.w, **cohort.state} | ({} if cohort.buffers is None else {"buffers": cohort.buffers})
    return [{k: v[i] for k, v in final.items()} for i in range(len(runs))]


def _check_shapes(what: str, got: State, expected: State) -> None:
    shapes = [{k: tuple(v.shape) for k, v in state.items()} for state in (got, expected)]
    demand(shapes[0] == shapes[1], f"{what} is {shapes[0]}; it was {shapes[1]}.")


def _rounded(w: Tensor) -> Tensor:
    """These weights, each off by one unit in the last place of float32."""
    with torch.no_grad():
        up = torch.arange(w.numel(), device=w.device).view(w.shape) % 2 == 0
        return torch.nextafter(w, torch.where(up, torch.inf, -torch.inf).to(w.dtype))


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1))


def _check_equal(what: str, a: State, b: State, from_rounded: Callable[[], State] | None = None) -> None:
    """Raise unless a and b are equal up to rounding; `from_rounded` is b of a start off by rounding."""
    demand(a.keys() == b.keys(), f"{what}: one has {', '.join(a)}, the other {', '.join(b)}.")
    differences = {key: _distance(a[key], b[key]) for key in a}
    if all(d <= CLOSE for d in differences.values()):
        return
    off = b if from_rounded is None else from_rounded()
    for key, difference in differences.items():
        close = max(CLOSE, min(AMPLIFIED * _distance(off[key], b[key]), LARGEST))
        demand(difference <= close, f"{what}: {key!r} differs by {difference:.1e}, more than {close:.1e}.")


# guards -----------------------------------------------------------------------------------------------------


def check_stage(stage: Stage, others: Sequence[Stage] = ()) -> None:
    """Raise AssertionError unless the stage works in a guard, with the `others` it needs.

    1. It is a frozen dataclass with declared parameters, and can be written to a job file and read back. 2.
    Its output has the declared form: dimension, norm and range; the modulus is above the sum of all
    clients. 3. It does not change its inputs; a client's state keeps its names. 4. A stack of clients and
    each client alone send the same, also through a message. 5. Its randomness is the operating system's, or
    follows from a seed for tests; never NumPy's or torch's. 6. A stage that hides declares how many clients
    must remain, and rejects what it cannot hide. 7. A simulation and one program per party over messages
    give the same model and the same number of bytes.
    """
    stages = check_form(stage, others)
    active = any(s.adversary == "active" for s in stages)  # which is refused where clients keep state
    algorithm = algorithms.FedAvg(lr=0.1) if active else algorithms.Scaffold(lr=0.1)
    name = type(stage).__name__
    results = _check_runtimes(name, algorithm=algorithm, guard=stages, insecure_seed=1)
    up = [[e["bytes_up"] for e in f.history] for f in results]
    demand(
        all(abs(a - b) <= b // 100 for a, b in zip(*up, strict=True)),
        f"{name}: the simulation counts {up[0]} bytes up; the parties sent {up[1]}.",
    )


# models -----------------------------------------------------------------------------------------------------


def check_model(model: Any, x: Tensor, classes: int = 3) -> None:
    """Raise AssertionError unless the model (a spec with `build`) can be trained on rows like x.

    1. Its initial values follow from the seed, and building it does not change the caller's random state.
    2. Its output for a row is one finite number for each class.
    3. Every parameter has a gradient.
    4. A client's step is the same alone and, if torch can stack the model, in a stack.
    """
    name, shape = models.name_of(model), tuple(x.shape[1:])
    state = torch.get_rng_state()
    a, b, c = (models.build(model, shape, classes, seed) for seed in (0, 0, 1))
    demand(
        torch.equal(state, torch.get_rng_state()), f"{name}: building it changed the caller's random state."
    )
    values = [torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (a, b, c)]
    demand(torch.equal(values[0], values[1]), f"{name}: the same seed gave different models.")
    demand(not torch.equal(values[0], values[2]), f"{name}: another seed gave the same model.")
    task = Task(a, x, torch.arange(len(x)) % classes)
    start = task.initial()
    out = task.predict(start["w"], x, start.get("buffers"))
    demand(
        tuple(out.shape) == (len(x), classes) and bool(torch.isfinite(out).all()),
        f"{name}: the outputs for {len(x)} rows have shape {tuple(out.shape)}.",
    )
    buffers = {"buffers": start["buffers"]} if "buffers" in start else {}
    current = LocalState(start["w"], buffers, {}, start["w"][0])
    batch = Batch(torch.arange(len(x)), torch.ones(len(x)), torch.zeros((), dtype=torch.int64))
    g, _ = task.gradient(current, batch)
    idle = [s.name for s in task.parameters if not g[s.start : s.stop].any()]
    demand(not idle, f"{name}: the gradient of {', '.join(idle)} is zero.")
    if buffers:
        return
    stacked = task.for_stacking()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns if it loops over the clients
            two = torch.vmap(lambda w: stacked.gradient(LocalState(w, {}, {}, w[0]), batch)[0])(
                start["w"].expand(2, -1)
            )
    except (RuntimeError, UserWarning):
        return  # the engine runs the clients of such a model one by one, and says so
    _check_equal(f"{name}: a step alone and in a stack", {"g": two[0]}, {"g": g})


# aggregation rules ------------------------------------------------------------------------------------------


def check_aggregate(rule: Rule) -> None:
    """Raise AssertionError unless the rule can replace the mean.

    1. It extends aggregate.Rule and is a frozen dataclass that can be written to a job file and read back.
    2. `start`, `add` and `result` are pure; the vectors keep their names and shapes, also single numbers.
    3. The result of equal updates is that update. 4. The order of the updates, the chunks in which they are
    added and the scale of the weights do not matter. 5. Runs side by side equal each run alone: updates
    with weight zero are ignored. 6. A rule with `sees_each = False` is the weighted mean, because secure
    aggregation gives it only sums.
    """
    name = type(rule).__name__
    demand(
        dataclasses.is_dataclass(rule) and rule.__dataclass_params__.frozen,
        f"{name} is not a frozen dataclass.",
    )
    demand(isinstance(rule, Rule), f"{name} does not extend aggregate.Rule.")
    demand(
        isinstance(rule.sees_each, bool),
        f"{name}.sees_each must be True or False: whether the rule sees single updates.",
    )
    _check_job_file(rule, "aggregate", {})
    rng = np.random.default_rng(0)
    n = 7
    shapes: dict[str, tuple[int, ...]] = {"w": (5,), "tau": (), "m": (2, 3), "score": ()}
    vectors = {
        k: torch.from_numpy(rng.standard_normal((n, *shape)).astype(np.float32))
        for k, shape in shapes.items()
    }
    weights = torch.from_numpy(rng.uniform(1, 9, (1, n)).astype(np.float32))
    result = _aggregate(rule, weights, vectors)
    for key, v in vectors.items():
        demand(
            result[key].shape == (1, *v.shape[1:]),
            f"{name}: {key!r} of shape {tuple(v.shape[1:])} becomes {tuple(result[key].shape[1:])}.",
        )
    alike = {k: v[:1].expand_as(v).contiguous() for k, v in vectors.items()}
    _check_equal(
        f"{name}: the result of equal updates, and one of them",
        _aggregate(rule, weights, alike),
        {k: v[:1] for k, v in alike.items()},
    )
    order = torch.from_numpy(rng.permutation(n))
    _check_equal(
        f"{name}: the updates in two orders",
        _aggregate(rule, weights[:, order], {k: v[order] for k, v in vectors.items()}),
        result,
    )
    _check_equal(
        f"{name}: the updates at once and in chunks", _aggregate(rule, weights, vectors, chunks=3), result
    )
    _check_equal(
        f"{name}: weights, and the same ten times larger", _aggregate(rule, 10 * weights, vectors), result
    )
    mine = torch.arange(n) < 4  # two runs side by side: the first has four updates, the second the others
    both = _aggregate(rule, torch.cat([weights * mine, weights * ~mine]), vectors)
    for i, rows in enumerate((mine, ~mine)):
        alone = _aggregate(rule, weights[:, rows], {k: v[rows] for k, v in vectors.items()})
        _check_equal(
            f"{name}: two runs side by side, and run {i} alone",
            {k: v[i : i + 1] for k, v in both.items()},
            alone,
        )
    if not rule.sees_each:
        mean = {
            k: (weights[0] @ v.reshape(n, -1) / weights.sum()).view(1, *v.shape[1:])
            for k, v in vectors.items()
        }
        _check_equal(f"{name} has sees_each=False, so it must be the weighted mean", result, mean)


def _aggregate(rule: Rule, weights: Tensor, vectors: State, chunks: int = 1) -> State:
    total = rule.start()
    for rows in torch.arange(weights.shape[1]).chunk(chunks):
        total = _twice(
            f"{type(rule).__name__}.add",
            rule.add,
            total,
            weights[:, rows],
            {k: v[rows] for k, v in vectors.items()},
        )
    return _twice(f"{type(rule).__name__}.result", rule.result, total)

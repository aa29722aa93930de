"""Conformance suites: what every member of a room must hold to, public so that yours can be held to it too.

    from tacit import testing
    testing.check_algorithm(MyAlgorithm(lr=0.1))        # algorithms/: local and merge
    testing.check_aggregate(MyRule())                   # aggregate/: many updates become one
    testing.check_stage(MyStage(), beside=[Clip(1.0)])  # guard/: what leaves a party
    testing.check_model(MyModel(), rows)                # models.py: a spec that builds a module
    testing.check_skew(MySkew())                        # data/: who holds which rows
    testing.check_dataset(my_dataset)                   #        a constructor, or a Dataset
    testing.check_federation(fed, rows=1797)            #        rows dealt out to parties
    testing.check_protocol(programs, ideal, inputs)     # protocols/: a program per party computes its ideal
    testing.check_runtime(MyRuntime())                  # runtimes/: where programs run

Each raises AssertionError and says what is wrong; silence is a pass. A member listed in its room's `ALL` is
checked by our own tests.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from .engine.task import Task
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

CLOSE = 1e-5  # two ways to the same float32 numbers: a few roundings a step, on weights of about one
SIZES, EPOCHS, BATCH, PER_ROUND, ROUNDS = (
    (7, 12, 3, 9),
    (2, 1, 3, 1),
    4,
    3,
    3,
)  # ragged in rows and in epochs; one party sits out each round


# algorithms -------------------------------------------------------------------------------------------------


def check_algorithm(algorithm: Algorithm, messages: bool = True) -> None:
    """Raise AssertionError, saying what is wrong, unless the algorithm is two pure functions that every
    engine can run.

    1. It is a frozen dataclass of declared parameters and comes back from its own TOML table.
    2. `local` and `merge` are pure: the same inputs give the same bits, no input is changed, nothing is read, written, printed or drawn.
    3. An upload is a positive weight and named float vectors; states keep their names and shapes; `sends` names parts of the server's state.
    4. `merge` knows the uploads by their weighted mean alone: another object with the same parameters does the same with it.
    5. Rows that only pad a short batch change nothing.
    6. Clients stacked under `vmap` equal clients one by one, ragged and partly taking part; with batch norm, its statistics too.
    7. Runs side by side (other seeds, another learning rate) equal each run alone.
    8. One program per party over messages gives the same model. `messages=False` leaves this out (it needs msgpack).
    """
    name = type(algorithm).__name__
    _is_declared(algorithm, name)
    for kind in ("tanh", "batch norm"):
        _is_pure(algorithm, name, kind)
        stacked, each = (_rounds([algorithm], kind, engine)[0] for engine in ("stack", "each"))
        _same_state(f"{name}, {kind} model: clients stacked and one by one", stacked, each)
        moved = float((stacked["w"] - _task(kind).initial()["w"]).abs().max())
        demand(moved > 0, f"{name}: {ROUNDS} rounds left the {kind} model as it was.")
    _is_a_row_of_a_study(algorithm, name)
    if messages:
        _speaks(algorithm, name)


def _is_declared(algorithm: Algorithm, name: str) -> None:
    demand(
        dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type),
        f"{name} is no dataclass: its parameters must be fields.",
    )
    declared = vars(type(algorithm)).get("__dataclass_params__")
    demand(
        declared is not None and declared.frozen,
        f"{name} is not frozen: write @dataclass(frozen=True) above it.",
    )
    demand(isinstance(algorithm, Algorithm), f"{name} does not extend algorithms.Algorithm.")
    for f in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        demand(
            bool(f.metadata),
            f"{name}.{f.name} is not declared: use parameters.real, whole, choice, flag or part, which say "
            "what it may be.",
        )
    demand(
        "lr" in {f.name for f in dataclasses.fields(algorithm)},  # type: ignore[arg-type]
        f"{name} has no `lr`: the effective update and the baselines need it.",
    )
    check(algorithm)
    table = to_table(algorithm)
    back = from_table(table, {**algorithms.PARTS, name: type(algorithm)}, "algorithm")
    demand(back == algorithm, f"{name}: {algorithm} came back from its table as {back}.")


def _is_pure(algorithm: Algorithm, name: str, kind: str) -> None:
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
        _is_an_upload(name, upload, start)
        _same_shapes(f"{name}.local: what the client keeps", mine, fresh)
        uploads.append(upload)
        padded, _ = algorithm.local(task, down, fresh, _padded(batches))
        _same_state(
            f"{name}: an upload, and the same with padding rows in its batches",
            padded.vectors,
            upload.vectors,
        )
        demand(
            float(padded.weight) == float(upload.weight), f"{name}: padding rows change a client's weight."
        )
    for upload in uploads:
        demand(
            upload.vectors.keys() == uploads[0].vectors.keys(), f"{name}: clients upload different vectors."
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
        f"{name}.merge gives weights of shape {tuple(w.shape)} or not finite.",
    )
    _same_shapes(f"{name}.merge: the server's state", state, server)
    other = from_table(
        to_table(algorithm), {**algorithms.PARTS, name: type(algorithm)}, "algorithm"
    )  # it has seen no client
    same = torch.equal(other.merge(start["w"], server, mean, fraction)[0], w)
    demand(
        same,
        f"{name}.merge depends on more than its arguments: an object that ran no client merges the same "
        "mean differently.",
    )


def _is_an_upload(name: str, upload: Any, start: State) -> None:
    demand(isinstance(upload, Upload), f"{name}.local returns {type(upload).__name__}, not (Upload, state).")
    weight_fine = (
        isinstance(upload.weight, Tensor)
        and upload.weight.shape == ()
        and bool(upload.weight > 0)
        and bool(torch.isfinite(upload.weight))
    )
    demand(
        weight_fine,
        f"{name}: an upload's weight is {upload.weight!r}; it must be a tensor of one positive number.",
    )
    demand(bool(upload.vectors), f"{name}: an upload without vectors.")
    for key, value in upload.vectors.items():
        fine = (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and not value.requires_grad
            and bool(torch.isfinite(value).all())
        )
        demand(fine, f"{name}: upload {key!r} is not a finite float tensor without gradient.")
    demand(
        ("buffers" in upload.vectors) == ("buffers" in start),
        f"{name}: a model's buffers must be uploaded as 'buffers', and only then: "
        "add **current.buffers to the vectors.",
    )


def _twice(what: str, function: Callable[..., Any], *inputs: Any) -> Any:
    """The result of a call that must be pure: called again it gives the same bits, its inputs are as before,
    and nobody outside noticed.
    """
    before = copy.deepcopy([x for x in _tensors(inputs)])
    numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    with torch.no_grad():
        first = function(*inputs)
        told = io.StringIO()
        with _no_io(what), contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            second = function(*inputs)
    demand(not told.getvalue(), f"{what} prints: {told.getvalue()!r:.80}")
    unchanged = all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(before, _tensors(inputs)))
    demand(unchanged, f"{what} changes its inputs in place.")
    drew = (
        not torch.equal(numbers[0], torch.get_rng_state()) or (numbers[1] != np.random.get_state()[1]).any()  # type: ignore[index]
    )
    demand(
        not drew,
        f"{what} draws from a global random generator; use the batches' keys, or a generator of its own.",
    )
    same = all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(second), strict=True))
    demand(same, f"{what} is not pure: two calls with the same inputs differ.")
    return first


def _tensors(thing: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples and dicts; of a Task its rows."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Task):
        yield from (thing.x, thing.y, *thing.module.state_dict().values())
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value)


_listening: dict[int, list[str]] = {}  # thread → what it touched; empty unless a check is running
_hooked: list[bool] = []


def _hear(event: str, arguments: Any) -> None:
    if _listening and event in (
        "open",
        "socket.connect",
        "socket.bind",
        "subprocess.Popen",
        "os.system",
        "os.remove",
        "os.mkdir",
    ):
        heard = _listening.get(threading.get_ident())
        if heard is not None:
            heard.append(f"{event} {arguments[0]!r:.80}")


@contextlib.contextmanager
def _no_io(what: str) -> Iterator[None]:
    if not _hooked:  # python keeps an audit hook for good, so there is one, and it sleeps between checks
        _hooked.append(True)
        sys.addaudithook(_hear)
    heard = _listening[threading.get_ident()] = []
    try:
        yield
    finally:
        del _listening[threading.get_ident()]
    demand(not heard, f"{what} does I/O: {'; '.join(heard[:3])}")


def _is_a_row_of_a_study(algorithm: Algorithm, name: str) -> None:
    slower = dataclasses.replace(algorithm, lr=algorithm.lr / 2)  # type: ignore[attr-defined,type-var]
    together = _rounds([algorithm, slower], "tanh", "stack")
    for seed, (one, mine) in enumerate(zip((algorithm, slower), together)):
        alone = _rounds([one], "tanh", "stack", seed)[0]
        _same_state(f"{name}: two runs side by side, and run {seed} alone", mine, alone)


def _speaks(algorithm: Algorithm, name: str) -> None:
    from .jobs.train.plan import make_plan
    from .jobs.train.train import train_side_by_side

    fed, module = _federation(), _task("tanh").module
    weights = []
    for runtime in ("cohort", "inprocess"):
        p = make_plan(
            fed,
            model=module,
            algorithm=algorithm,
            rounds=2,
            per_round=PER_ROUND,
            local_epochs=EPOCHS,
            batch_size=BATCH,
            runtime=runtime,
            evaluate_every=0,
        )
        model = train_side_by_side([p], [None])[0].model
        weights.append({k: v.detach() for k, v in model.named_parameters()})
    _same_state(f"{name}: the simulation, and one program per party over messages", *weights)


# the little world that algorithms are checked in ------------------------------------------------------------


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
        first = nn.Linear(
            4, 5, bias=not norm
        )  # before a batch norm a bias has no gradient but rounding, which Adam would blow up
        module = nn.Sequential(
            first, *[nn.BatchNorm1d(5)] * norm, nn.Tanh(), nn.Linear(5, 3)
        )  # smooth: rounding must not decide a branch
    return Task(module, *_federation().rows)


def _batches(k: int) -> Batches:
    made = plan(0, 0, identify(["abcd"[k]]), np.array([SIZES[k]]), EPOCHS[k], BATCH).of(0)
    return made._replace(index=_federation().train.of(k)[made.index])


def _padded(batches: Batches) -> Batches:
    """Two more places in every batch, filled with a row of the client's, that do not count."""
    more = batches.index[:, :1].expand(-1, 2)
    return batches._replace(
        index=torch.cat([batches.index, more], 1), live=torch.cat([batches.live, torch.zeros(more.shape)], 1)
    )


def _rounds(runs: list[Algorithm], kind: str, engine: str, first_seed: int = 0) -> list[State]:
    """What the cohort ends with after a few rounds: the weights, the buffers, the server's state, of each
    run.
    """
    task, fed = _task(kind), _federation()
    one = runs[0].local_epochs
    epochs, steps = np.array(EPOCHS) if one is None else np.full(len(SIZES), one), runs[0].local_steps
    made = [Run(fed, a, first_seed + i, PER_ROUND, epochs, BATCH, steps) for i, a in enumerate(runs)]
    cohort = Cohort(task, [task.initial()] * len(runs), made, engine)
    demand(cohort.engine == engine, f"the {kind} model cannot be stacked: {cohort.notes}")
    try:
        for r in range(ROUNDS):
            cohort.round(r)
    except Exception as error:
        raise AssertionError(
            f"{type(runs[0]).__name__}: {len(runs)} run(s) of clients, engine {engine!r}, {kind} model: "
            f"{type(error).__name__}: {str(error).strip()[:200]}"
        ) from error
    ends = {"w": cohort.w, **cohort.state} | ({} if cohort.buffers is None else {"buffers": cohort.buffers})
    return [{k: v[i] for k, v in ends.items()} for i in range(len(runs))]


def _same_shapes(what: str, got: State, wanted: State) -> None:
    shapes = [{k: tuple(v.shape) for k, v in state.items()} for state in (got, wanted)]
    demand(shapes[0] == shapes[1], f"{what} has {shapes[0]}, and began as {shapes[1]}.")


def _same_state(what: str, a: State, b: State) -> None:
    demand(a.keys() == b.keys(), f"{what}: one has {', '.join(a)}, the other {', '.join(b)}.")
    for key in a:
        apart = float((a[key] - b[key]).abs().max() / b[key].abs().max().clamp(min=1))
        demand(apart <= CLOSE, f"{what}: {key!r} is {apart:.1e} apart, more than {CLOSE:g}.")


# guards -----------------------------------------------------------------------------------------------------


def check_stage(stage: Any, beside: Sequence[Any] = ()) -> None:
    """Raise AssertionError, saying what is wrong, unless the stage can stand around an update, with those
    it needs `beside` it.

    1. It is a frozen dataclass of declared parameters and comes back from its own TOML table.
    2. What it leaves is what its form says: how many numbers, how long, in which range; the ring holds the sum of all clients.
    3. It changes no input; what a client keeps has the same names before and after.
    4. A stack of clients and each client alone send the same, and the wire keeps it.
    5. What it draws is the operating system's, or follows from a seed that is for tests; never numpy's or torch's generators.
    6. A stage that hides says how many must stay, and refuses what it cannot hide.
    7. A simulation and one program per party over messages come to the same model, and count the same bytes.
    """
    from .jobs.train.plan import make_plan
    from .jobs.train.train import train_side_by_side

    stages = check_form(stage, beside)
    fed, module, found = _federation(), _task("tanh").module, []
    active = any(s.adversary == "active" for s in stages)  # which is refused where clients keep state
    algorithm = algorithms.FedAvg(lr=0.1) if active else algorithms.Scaffold(lr=0.1)
    for runtime in ("cohort", "inprocess"):
        p = make_plan(
            fed,
            model=module,
            algorithm=algorithm,
            rounds=2,
            local_epochs=EPOCHS,
            batch_size=BATCH,
            runtime=runtime,
            guard=stages,
            evaluate_every=0,
            secret_seed=1,
        )
        found.append(train_side_by_side([p], [None])[0])
    name = type(stage).__name__
    _same_state(
        f"{name}: the simulation, and one program per party over messages",
        *({k: v.detach() for k, v in f.model.named_parameters()} for f in found),
    )
    up = [[e["bytes_up"] for e in f.history] for f in found]
    demand(
        all(abs(a - b) <= b // 100 for a, b in zip(*up, strict=True)),
        f"{name}: the simulation counts {up[0]} bytes up, the parties sent {up[1]}.",
    )


# models -----------------------------------------------------------------------------------------------------


def check_model(model: Any, x: Tensor, classes: int = 3) -> None:
    """Raise AssertionError, saying what is wrong, unless the model (a spec with `build`) can be trained on
    rows like x.

    1. Its first values follow from the seed alone, and leave the caller's random state as it was.
    2. It gives one number a class for every row, finite ones.
    3. Every parameter has a gradient: nothing is along for the ride.
    4. A client's step is the same alone and, where torch can stack the model, in a stack.
    """
    name, shape = models.name_of(model), tuple(x.shape[1:])
    state = torch.get_rng_state()
    a, b, c = (models.build(model, shape, classes, seed) for seed in (0, 0, 1))
    demand(
        torch.equal(state, torch.get_rng_state()), f"{name}: building it changed the caller's random state."
    )
    values = [torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in (a, b, c)]
    demand(torch.equal(values[0], values[1]), f"{name}: the same seed gave two models.")
    demand(not torch.equal(values[0], values[2]), f"{name}: another seed gave the same model.")
    y = torch.arange(len(x)) % classes
    task = Task(a, x, y)
    out = task.predict(task.initial()["w"], x, task.initial().get("buffers"))
    demand(
        tuple(out.shape) == (len(x), classes) and bool(torch.isfinite(out).all()),
        f"{name}: {len(x)} rows gave outputs of shape {tuple(out.shape)}.",
    )
    start = task.initial()
    buffers = {"buffers": start["buffers"]} if "buffers" in start else {}
    current = LocalState(start["w"], buffers, {}, start["w"][0])
    batch = Batch(torch.arange(len(x)), torch.ones(len(x)), torch.zeros((), dtype=torch.int64))
    g, _ = task.gradient(current, batch)
    idle = [s.name for s in task.parameters if not g[s.start : s.stop].any()]
    demand(not idle, f"{name}: no gradient reaches {', '.join(idle)}.")
    stacked = task.for_stacking()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it would loop over the clients
            two = (
                torch.vmap(lambda w: stacked.gradient(LocalState(w, {}, {}, w[0]), batch)[0])(
                    start["w"].expand(2, -1)
                )
                if not buffers
                else None
            )
    except (RuntimeError, UserWarning):
        return  # the engine runs such a model one client after the other, and says so
    if two is not None:
        _same_state(f"{name}: a step alone and in a stack", {"g": two[0]}, {"g": g})


# aggregation rules ------------------------------------------------------------------------------------------


def check_aggregate(rule: Rule) -> None:
    """Raise AssertionError, saying what is wrong, unless the rule can stand where the mean stands.

    1. A frozen dataclass that comes back from its table, and says with `sees_each` whether it must see single updates.
    2. `start`, `add`, `result` are pure; names and shapes of the vectors are kept, single numbers included.
    3. Updates that all agree come out as they are.
    4. The order of the updates, and the chunks they come in, do not matter; nor does the scale of the weights.
    5. Runs side by side equal each run alone: a weight of zero is not a vote.
    6. A rule that does not see each update is the weighted mean: sums are all that secure aggregation gives it.
    """
    name = type(rule).__name__
    demand(
        dataclasses.is_dataclass(rule) and rule.__dataclass_params__.frozen,  # type: ignore[union-attr]
        f"{name} is no frozen dataclass.",
    )
    demand(isinstance(rule, Rule), f"{name} does not extend aggregate.Rule.")
    demand(
        isinstance(rule.sees_each, bool),
        f"{name} does not say with sees_each (True or False) whether it sees single updates.",
    )
    check(rule)
    back = from_table(to_table(rule), {name: type(rule)}, "aggregate")
    demand(back == rule, f"{name}: {rule} came back from its table as {back}.")
    rng = np.random.default_rng(0)
    n = 7
    shapes: dict[str, tuple[int, ...]] = {"w": (5,), "tau": (), "m": (2, 3), "score": ()}
    vectors = {
        k: torch.from_numpy(rng.standard_normal((n, *shape)).astype(np.float32))
        for k, shape in shapes.items()
    }
    weights = torch.from_numpy(rng.uniform(1, 9, (1, n)).astype(np.float32))
    whole = _aggregated(rule, weights, vectors)
    for key, v in vectors.items():
        demand(
            whole[key].shape == (1, *v.shape[1:]),
            f"{name}: {key!r} of shape {tuple(v.shape[1:])} comes out as {tuple(whole[key].shape[1:])}.",
        )
    alike = {k: v[:1].expand_as(v).contiguous() for k, v in vectors.items()}
    _same_state(
        f"{name}: the result of updates that all agree, and any of them",
        _aggregated(rule, weights, alike),
        {k: v[:1] for k, v in alike.items()},
    )
    order = torch.from_numpy(rng.permutation(n))
    _same_state(
        f"{name}: the updates in two orders",
        _aggregated(rule, weights[:, order], {k: v[order] for k, v in vectors.items()}),
        whole,
    )
    _same_state(
        f"{name}: the updates at once and in chunks", _aggregated(rule, weights, vectors, chunks=3), whole
    )
    _same_state(
        f"{name}: weights, and the same ten times larger", _aggregated(rule, 10 * weights, vectors), whole
    )
    mine = (
        torch.arange(n) < 4
    )  # two runs side by side: the first four updates are one's, the rest the other's
    both = _aggregated(rule, torch.cat([weights * mine, weights * ~mine]), vectors)
    for i, rows in enumerate((mine, ~mine)):
        alone = _aggregated(rule, weights[:, rows], {k: v[rows] for k, v in vectors.items()})
        _same_state(
            f"{name}: two runs side by side, and run {i} alone",
            {k: v[i : i + 1] for k, v in both.items()},
            alone,
        )
    if not rule.sees_each:
        mean = {
            k: (weights[0] @ v.reshape(n, -1) / weights.sum()).view(1, *v.shape[1:])
            for k, v in vectors.items()
        }
        _same_state(
            f"{name} says it does not see single updates, so it must be the weighted mean", whole, mean
        )


def _aggregated(rule: Rule, weights: Tensor, vectors: State, chunks: int = 1) -> State:
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

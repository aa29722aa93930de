"""Every member of every room passes its room's suite; and each suite can fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tacit import aggregate, algorithms, data, models, parameters, runtimes, testing
from tacit.algorithms import FedAvg, Upload
from tacit.parties import Message

SKEWS = {"ByColumn": lambda: data.ByColumn("hospital")}  # the rest have defaults
ALGORITHMS = [
    *(kind() for kind in algorithms.ALL.values()),
    FedAvg(option="I"),
    FedAvg(solver=algorithms.Adam()),
    FedAvg(solver=algorithms.AdamW(max_norm=1.0)),
    FedAvg(solver=algorithms.SGD(schedule=algorithms.Cosine())),
    algorithms.Scaffold(option="i"),
    algorithms.LocalSGD(local_steps=3),
    algorithms.FedNova(mu=0.1, solver=algorithms.SGD(momentum=0.9, nesterov=True)),
    algorithms.FedNova(tau="harmonic"),
    algorithms.FedProx(
        solver=algorithms.SGD(momentum=0.9, weight_decay=0.01, schedule=algorithms.Exponential())
    ),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_conforms(algorithm):
    testing.check_algorithm(algorithm)


@pytest.mark.parametrize("name", aggregate.ALL)
def test_every_rule_conforms(name):
    testing.check_aggregate(aggregate.ALL[name]())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logistic", (12,)),
        ("linear", (12,)),
        ("mlp", (12,)),
        ("table_network", (12,)),
        ("cnn", (1, 8, 8)),
        ("cnn", (3, 32, 32)),
        ("resnet8", (3, 8, 8)),
        ("lstm", (9,)),
    ],
)
def test_every_model_conforms(name, shape):
    g = torch.Generator().manual_seed(0)
    x = (
        torch.randint(0, 3, (6, *shape), generator=g)
        if name == "lstm"
        else torch.randn(6, *shape, generator=g)
    )
    testing.check_model(models.ALL[name](), x)


def test_no_model_is_left_out_of_its_suite():
    (mark,) = (m for m in test_every_model_conforms.pytestmark if m.name == "parametrize")
    assert {name for name, _ in mark.args[1]} == set(models.ALL)


@dataclass(frozen=True)
class Idle:
    def build(self, shape, outputs):
        class Net(torch.nn.Linear):
            def __init__(self):
                super().__init__(shape[0], outputs)
                self.spare = torch.nn.Parameter(torch.zeros(2))

        return Net()


@dataclass(frozen=True)
class Narrow:
    def build(self, shape, outputs):
        return torch.nn.Linear(shape[0], outputs - 1)


@dataclass(frozen=True)
class Fixed:
    def build(self, shape, outputs):
        made = torch.nn.Linear(shape[0], outputs)
        torch.nn.init.ones_(made.weight)
        torch.nn.init.zeros_(made.bias)
        return made


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Idle(), "the gradient of spare is zero"),
        (Narrow(), r"have shape \(6, 2\)"),
        (Fixed(), "another seed gave the same model"),
    ],
)
def test_a_broken_model_is_caught(model, words):
    with pytest.raises(AssertionError, match=words):
        testing.check_model(model, torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", data.SKEWS)
def test_every_skew_conforms(name):
    testing.check_skew(SKEWS.get(name, data.SKEWS[name])())


def test_every_runtime_conforms():
    for name in runtimes.__all__:
        testing.check_runtime(getattr(runtimes, name)())


class ConformanceNumber(Message, reveals="a number made for a test"):
    value: int


def doubling(x):
    async def asks(me):
        await me.send("b", ConformanceNumber(x))
        return (await me.recv("b", ConformanceNumber)).value

    async def answers(me):
        await me.send("a", ConformanceNumber(2 * (await me.recv("a", ConformanceNumber)).value))

    return {"a": asks, "b": answers}


def test_a_protocol_is_held_to_its_ideal():
    testing.check_protocol(doubling, lambda x: {"a": 2 * x}, [1, 21])
    with pytest.raises(AssertionError, match="party 'a' got 2, the ideal gives 3"):
        testing.check_protocol(doubling, lambda x: {"a": 3 * x}, [1])


# deliberately broken algorithms, one for each promise -------------------------------------------------------


@dataclass(frozen=True)
class Undeclared(FedAvg):
    speed: float = 1.0


class Plain(algorithms.Algorithm):
    def local(self, task, down, mine, batches):
        return Upload(batches.size.float(), {"delta": torch.zeros_like(down["w"])}), mine

    def merge(self, w, state, mean, fraction):
        return w + mean["delta"], state


@dataclass(frozen=True)
class RateLess(Plain):
    eta: float = parameters.real(0.1, above=0)


@dataclass(frozen=True)
class Printing(FedAvg):
    def local(self, task, down, mine, batches):
        print("a client trains")
        return super().local(task, down, mine, batches)


@dataclass(frozen=True)
class Reading(FedAvg):
    def local(self, task, down, mine, batches):
        Path(__file__).read_text()
        return super().local(task, down, mine, batches)


@dataclass(frozen=True)
class Drawing(FedAvg):
    def merge(self, w, state, mean, fraction):
        return w + mean["delta"] + 1e-3 * torch.randn_like(w), state


@dataclass(frozen=True)
class InPlace(FedAvg):
    def merge(self, w, state, mean, fraction):
        return w.add_(mean["delta"]), state


@dataclass(frozen=True)
class Remembering(FedAvg):
    seen: ClassVar[list[Any]] = []

    def local(self, task, down, mine, batches):
        self.seen.append(1)
        upload, mine = super().local(task, down, mine, batches)
        return upload._replace(vectors={k: v * len(self.seen) for k, v in upload.vectors.items()}), mine


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Merges with what it saw of single clients, which no secure sum would give it."""

    def local(self, task, down, mine, batches):
        upload, mine = super().local(task, down, mine, batches)
        if not hasattr(self, "largest"):
            object.__setattr__(self, "largest", upload.vectors["delta"])
        return upload, mine

    def merge(self, w, state, mean, fraction):
        return w + getattr(self, "largest", mean["delta"]), state


@dataclass(frozen=True)
class Weightless(FedAvg):
    def local(self, task, down, mine, batches):
        upload, mine = super().local(task, down, mine, batches)
        return upload._replace(weight=0 * upload.weight), mine


@dataclass(frozen=True)
class Bufferless(FedAvg):
    def local(self, task, down, mine, batches):
        upload, mine = super().local(task, down, mine, batches)
        return Upload(upload.weight, {"delta": upload.vectors["delta"]}), mine


@dataclass(frozen=True)
class CountsPadding(FedAvg):
    def local(self, task, down, mine, batches):
        upload, mine = super().local(task, down, mine, batches)
        return upload._replace(
            vectors={k: v * batches.index.shape[1] for k, v in upload.vectors.items()}
        ), mine


@dataclass(frozen=True)
class Branching(FedAvg):
    """A Python `if` on a value: fine for one client, impossible for a stack."""

    def step(self, current, batch, task, down, mine):
        g, current = task.gradient(current, batch)
        return self.solver.step(current, g / g.norm() if g.norm() > 1 else g, self.lr)


@dataclass(frozen=True)
class FoldsItself(FedAvg):
    """Its own loop over the plan runs the padding steps of shorter clients too."""

    def local(self, task, down, mine, batches):
        w = down["w"]
        for _ in range(len(batches.index)):
            w = 0.9 * w
        return Upload(batches.size, {"delta": w - down["w"], **self.solver.start(down).buffers}), mine


@dataclass(frozen=True)
class Forgetful(FedAvg):
    def client_state(self, w):
        return {"c": torch.zeros_like(w)}

    def local(self, task, down, mine, batches):
        return super().local(task, down, {}, batches)


@dataclass(frozen=True)
class Unsendable(FedAvg):
    sends: ClassVar[tuple[str, ...]] = ("c",)


@dataclass(frozen=True)
class Idle(FedAvg):
    def merge(self, w, state, mean, fraction):
        return w + 0 * mean["delta"], state


@dataclass(frozen=True)
class FixedRate(FedAvg):
    """A rate turned into a plain number cannot differ from run to run."""

    def merge(self, w, state, mean, fraction):
        return w + float(self.lr) * mean["delta"], state


BROKEN = [
    (Plain(), "is not a dataclass"),
    (Undeclared(), "Undeclared.speed is not declared"),
    (RateLess(), "has no field `lr`"),
    (Printing(), "Printing.local prints"),
    (Reading(), "Reading.local does I/O: open"),
    (Drawing(), "Drawing.merge uses a global random generator"),
    (InPlace(), "InPlace.merge changes its inputs in place"),
    (Remembering(), "Remembering.local is not pure"),
    (Peeking(), "Peeking.merge depends on more than its arguments"),
    (Weightless(), "it must be a tensor of one positive number"),
    (Bufferless(), "buffers must be uploaded as 'buffers'"),
    (CountsPadding(), "with padding rows in its batches: 'delta' differs"),
    (Branching(), "engine 'stack', tanh model"),
    (FoldsItself(), "clients stacked and one by one: 'w' differs"),
    (Forgetful(), "the client's state is {}; it was"),
    (Unsendable(), "sends names 'c', which server_state does not have"),
    (Idle(), "rounds did not change the tanh model"),
    (FixedRate(), "2 run.s. of clients, engine 'stack'"),
]


@pytest.mark.parametrize(
    ("algorithm", "words"), BROKEN, ids=lambda v: type(v).__name__ if not isinstance(v, str) else ""
)
def test_a_broken_algorithm_is_caught(algorithm, words):
    with pytest.raises(AssertionError, match=words):
        testing.check_algorithm(algorithm, messages=False)


# deliberately broken rules ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum(aggregate.Mean):
    def result(self, total):
        return {k: v for k, v in total.items() if k}


@dataclass(frozen=True)
class Unweighted(aggregate.Mean):
    def add(self, total, weights, vectors):
        return super().add(total, (weights > 0).float(), vectors)


@dataclass(frozen=True)
class Voting(aggregate.Mean):
    """Counts everybody, other runs' clients too."""

    def add(self, total, weights, vectors):
        return super().add(total, weights + 1e-2, vectors)


@dataclass(frozen=True)
class LastChunk(aggregate.Mean):
    def add(self, total, weights, vectors):
        return super().add({}, weights, vectors)


@dataclass(frozen=True)
class FirstOnly(aggregate.Mean):
    def add(self, total, weights, vectors):
        return super().add(total, weights * (torch.arange(weights.shape[1]) == 0), vectors)


@dataclass(frozen=True)
class Flattens(aggregate.Mean):
    def result(self, total):
        return {k: v.flatten(1) if v.dim() > 1 else v[:, None] for k, v in super().result(total).items()}


@dataclass(frozen=True)
class Overwrites(aggregate.Mean):
    def add(self, total, weights, vectors):
        weights.mul_(2)
        return super().add(total, weights, vectors)


@dataclass(frozen=True)
class Mute(aggregate.Mean):
    sees_each: ClassVar[Any] = None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Sum(), "the result of equal updates, and one of them"),
        (Unweighted(), "so it must be the weighted mean"),
        (Voting(), "the same ten times larger"),
        (LastChunk(), "at once and in chunks"),
        (FirstOnly(), "the updates in two orders"),
        (Flattens(), "becomes"),
        (Overwrites(), "changes its inputs in place"),
        (Mute(), "sees_each must be True or False"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else "",
)
def test_a_broken_rule_is_caught(rule, words):
    with pytest.raises(AssertionError, match=words):
        testing.check_aggregate(rule)


def test_a_rule_that_is_not_what_it_claims_to_be_may_say_so():
    """Seeing each update is allowed, if it is said: then the rule need not be the mean."""

    @dataclass(frozen=True)
    class Seeing(Unweighted):
        sees_each: ClassVar[bool] = True

    testing.check_aggregate(Seeing())


def test_the_suites_of_data_and_runtimes_can_fail():
    @dataclass(frozen=True, repr=False)
    class Loses(data.IID):
        def partition(self, dataset, parties, rng, min_size=1):
            return [rows[:-1] for rows in super().partition(dataset, parties, rng, min_size)]

    with pytest.raises(AssertionError, match="rows partitioned"):
        testing.check_skew(Loses())
    iris = data.iris()
    with pytest.raises(AssertionError, match="of 999 rows partitioned"):
        testing.check_federation(iris.split(3), 999)
    with pytest.raises(AssertionError, match="not float32"):
        testing.check_dataset(type(iris)("x", data.Rows(iris.rows.x.double(), iris.rows.y), iris.test, 3))

    class Deaf(runtimes.InProcess):
        async def run(self, programs, ledger=None):
            return dict.fromkeys(programs)

    with pytest.raises(AssertionError, match="ping-pong gave"):
        testing.check_runtime(Deaf())


def test_every_algorithm_has_a_row_in_the_papers_page_and_its_tests_exist():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = "".join(
        page[page.index(f"## {part}") :].split("\n## ")[0]
        for part in ("Algorithms", "Personalized and fair training")
    )
    for kind in [*algorithms.ALL.values(), *algorithms.PARTS.values()]:
        file = kind.__module__.rpartition(".")[2]
        assert f"`algorithms/{file}.py`" in rows, f"{kind.__name__} has no row in docs/papers.md"
    for name in set(re.findall(r"test_\w+\.py", rows)):
        assert any((root / "tests" / room / name).exists() for room in ("algorithms", "own")), (
            f"docs/papers.md names {name}, which is not there"
        )


@pytest.mark.parametrize("lr", [0.2, 1.0])
def test_the_tolerance_follows_from_how_much_the_steps_amplify_rounding(lr):
    """At lr = 0.2 a batch norm over few rows turns an error of 6e-8 into 4e-5."""
    testing.check_algorithm(FedAvg(lr=lr), messages=False)


def test_an_algorithm_that_is_off_by_little_is_found_where_rounding_is_amplified():
    @dataclass(frozen=True)
    class Off(FedAvg):
        """A stacked client is off by 1 part in 100: only there is `w` a batched tensor."""

        def local(self, task, down, mine, batches):
            upload, mine = super().local(task, down, mine, batches)
            factor = 1.01 if torch._C._functorch.is_batchedtensor(upload.vectors["delta"]) else 1.0
            return upload._replace(vectors={k: v * factor for k, v in upload.vectors.items()}), mine

    with pytest.raises(AssertionError, match="clients stacked and one by one: 'w' differs by"):
        testing.check_algorithm(Off(lr=0.2), messages=False)

"""A network of characters whose gradient is written out for a stack: what autograd gives. And rows that have
a label for each of their tokens.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit import algorithms, audit, data, graphs, models
from tacit.audit.canaries import one_run
from tacit.engine import recurrent
from tacit.engine.losses import Objective
from tacit.engine.metrics import count, measure
from tacit.engine.task import Task
from tacit.errors import BadData, BadParameter

from . import card

LETTERS = 7


def task(every: bool, length: int, layers: int = 2, n: int = 9) -> Task:
    g = torch.Generator().manual_seed(length)
    x = torch.randint(0, LETTERS, (n, length), generator=g)
    y = torch.randint(0, LETTERS, (n, length) if every else (n,), generator=g)
    if every:
        y[: n // 2, length // 2 + 1 :] = -1  # lines that end early
    return Task(
        models.build(models.LSTM(embedding=3, hidden=5, layers=layers, every=every), (length,), LETTERS, 0),
        x,
        y,
    )


def by_autograd(t: Task, w: Tensor, rows: Tensor) -> Tensor:
    module = copy.deepcopy(t.module).double()
    nn.utils.vector_to_parameters(w.double(), module.parameters())
    loss = Objective().of_rows(module(t.x[rows]), t.y[rows]).mean()
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize(("length", "layers"), [(1, 1), (2, 2), (9, 1), (9, 3)])
def test_the_gradient_of_every_client_is_autograds_over_its_live_rows(
    every: bool, length: int, layers: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused:
        monkeypatch.setattr(recurrent, "_CELL", card.cell)
        monkeypatch.setattr(recurrent, "_CELL_BACK", card.cell_back)
        monkeypatch.setattr(recurrent, "_forward", recurrent._FusedPass)
    t, g = task(every, length, layers), torch.Generator().manual_seed(2)
    assert t.chain is not None
    w = t.initial()["w"] + 0.3 * torch.randn(3, t.dim, generator=g)
    index, live = torch.randint(0, len(t.x), (3, 5), generator=g), torch.ones(3, 5)
    live[1, 3:] = 0
    got = recurrent.gradient(t.chain, w, t.x[index], t.y[index], live)
    for k, rows in enumerate((index[0], index[1, :3], index[2])):
        assert torch.allclose(got[k].double(), by_autograd(t, w[k], rows), rtol=1e-4, atol=1e-6), k
    assert torch.allclose(
        recurrent.answers(t.chain, w, t.x.expand(3, *t.x.shape)),
        torch.stack([t.predict(v, t.x) for v in w]),
        atol=1e-6,
    )
    assert t.count_correct(w, t.x, t.y, rows=4).tolist() == [
        int((t.predict(v, t.x).argmax(-1) == t.y).sum()) for v in w
    ]


@pytest.mark.parametrize("stack", [1, 3])
def test_clients_that_still_share_one_vector_or_are_alone(stack: int) -> None:
    """As in a first step, where the stack is one vector seen as many."""
    t, g = task(True, 6), torch.Generator().manual_seed(4)
    w, index = t.initial()["w"].expand(stack, -1), torch.randint(0, len(t.x), (stack, 4), generator=g)
    assert stack == 1 or w.stride(0) == 0
    shared, own = (
        recurrent.gradient(t.chain, v, t.x[index], t.y[index], torch.ones(stack, 4))
        for v in (w, w.contiguous())
    )  # type: ignore[arg-type]
    assert torch.allclose(shared, own, atol=1e-7)
    assert torch.allclose(shared[-1].double(), by_autograd(t, w[0], index[-1]), rtol=1e-4, atol=1e-6)


def test_a_row_s_loss_is_the_mean_over_the_tokens_that_have_a_label() -> None:
    out, y = (
        torch.randn(2, 3, LETTERS, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[1, 2, -1], [3, -1, -1]]),
    )
    each = -out.log_softmax(-1)
    assert torch.allclose(
        Objective().of_rows(out, y), torch.stack([(each[0, 0, 1] + each[0, 1, 2]) / 2, each[1, 0, 3]])
    )


def hooked(m: Any) -> None:
    m.lstm.register_forward_hook(lambda *a: None)


def frozen(m: Any) -> None:
    m.embed.weight.requires_grad_(False)


def both_ways(m: Any) -> None:
    m.lstm = nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True)
    m.out = nn.Linear(10, LETTERS)


def wider(m: Any) -> None:
    m.more = nn.Linear(2, 2)


def tied(m: Any) -> None:
    m.out = nn.Linear(3, LETTERS)
    m.lstm = nn.LSTM(3, 3, 2, batch_first=True)
    m.out.weight, m.built = m.embed.weight, (LETTERS, 3, 3, 2, False)


def told_otherwise(m: Any) -> None:
    m.every = True


def another_layer(m: Any) -> None:
    m.lstm.forward = lambda x: (torch.zeros(len(x), 4, 5), None)


def another_way(m: Any) -> None:
    m.forward = lambda x: m.out(m.lstm(m.embed(x))[0][:, 0])


@pytest.mark.parametrize(
    "change",
    [
        hooked,
        frozen,
        both_ways,
        wider,
        tied,
        told_otherwise,
        another_layer,
        another_way,
        lambda m: setattr(m, "lstm", nn.GRU(3, 5, 2, batch_first=True)),
        lambda m: setattr(m, "out", nn.Linear(5, LETTERS, bias=False)),
        lambda m: setattr(m, "lstm", nn.LSTM(3, 5, 2, batch_first=True, dropout=0.5)),
        lambda m: setattr(m, "lstm", nn.LSTM(3, 5, 2)),
        lambda m: setattr(m, "embed", nn.Embedding(LETTERS, 3, padding_idx=0)),
        lambda m: setattr(m, "out", nn.Sequential(nn.Linear(5, LETTERS))),
    ],
)
def test_one_that_was_changed_since_it_was_built_is_left_to_autograd(change: Any) -> None:
    t = task(False, 4)
    change(t.module)
    assert Task(t.module, t.x, t.y).chain is None


def lines(parties: int = 5, every: bool = True) -> data.Federation:
    """Rows of tokens in which the next one follows from the last."""
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 5, (120, 1)) + np.arange(8)) % 5
    y = np.where(np.arange(8) < rng.integers(2, 9, (120, 1)), (x + 1) % 5, -1)
    return data.from_arrays(
        x, y if every else y[:, 0], classes=5, tokens=True, test=(x[:30], y[:30] if every else y[:30, 0])
    ).split(parties, skew=data.Quantity(0.7), seed=0, min_size=4)


SMALL = {
    "rounds": 3,
    "batch_size": 6,
    "local_epochs": 2,
    "algorithm": algorithms.FedAvg(lr=1.0),
    "seed": 1,
    "min_rows": 1,
}


@pytest.mark.parametrize("every", [True, False])
def test_stacked_clients_equal_clients_alone_and_over_messages(every: bool) -> None:
    told: dict[str, Any] = {**SMALL, "model": models.LSTM(embedding=4, hidden=8, every=every)}
    stacked, alone, messages = (
        tacit.train(lines(every=every), **told, **way)
        for way in ({"engine": "stack"}, {"engine": "each"}, {"runtime": "inprocess"})
    )
    assert stacked.events[0]["runtime"] == "cohort, clients stacked"
    for other in (alone, messages):
        assert (
            max(
                float((a - b).abs().max())
                for a, b in zip(stacked.model.state_dict().values(), other.model.state_dict().values())
            )
            < 1e-5
        )
        assert abs(stacked.metrics["accuracy"] - other.metrics["accuracy"]) < 1e-6
        assert stacked.history[-1]["parties"]["accuracy"] == pytest.approx(
            other.history[-1]["parties"]["accuracy"]
        )


# those whose clients keep state, models of their own or send more than one vector; the others stack alike
DIFFERENT = ("FedAvg", "Scaffold", "FedNova", "IFCA", "FedRep", "PFedMe")


@pytest.mark.parametrize(
    "name",
    [*DIFFERENT, *(pytest.param(n, marks=pytest.mark.slow) for n in algorithms.ALL if n not in DIFFERENT)],
)
def test_every_algorithm_stacks_them(name: str) -> None:
    told: dict[str, Any] = {
        **SMALL,
        "algorithm": algorithms.ALL[name](),
        "model": models.LSTM(embedding=3, hidden=4, layers=1, every=True),
        "rounds": 2,
    }
    stacked, alone = (tacit.train(lines(), engine=engine, **told) for engine in ("stack", "each"))
    assert stacked.events[0]["runtime"] == "cohort, clients stacked"
    assert (
        max(
            float((a - b).abs().max())
            for a, b in zip(stacked.model.state_dict().values(), alone.model.state_dict().values())
        )
        < 1e-5
    )


def test_what_follows_is_learned_and_tokens_are_counted() -> None:
    fed = lines()
    run = tacit.train(
        fed, **{**SMALL, "rounds": 15, "model": models.LSTM(embedding=4, hidden=16, every=True)}
    )
    assert run.metrics["accuracy"] > 0.95
    right = run.model(fed.test.x).argmax(-1) == fed.test.y
    assert run.metrics["accuracy"] == pytest.approx(float(right.sum() / (fed.test.y >= 0).sum()))
    held = fed.held.of(2)
    hit = run.model(fed.rows.x[held]).argmax(-1) == fed.rows.y[held]
    assert run.history[-1]["parties"]["accuracy"][2] == pytest.approx(
        float(hit.sum() / (fed.rows.y[held] >= 0).sum())
    )
    assert [sum(row) for row in fed.summary()["counts"]] == [
        int((fed.rows.y[fed.owner == k] >= 0).sum()) for k in range(len(fed))
    ]


def test_the_counts_of_tokens_are_those_of_as_many_rows() -> None:
    fed, out = lines(), torch.randn(120, 8, 5, generator=torch.Generator().manual_seed(0))
    there = fed.rows.y >= 0
    assert measure(count(out, fed.rows.y, 5)) == measure(
        count(out[there], fed.rows.y[there], 5, curves=False)
    )


def test_real_processes_and_neighbors_learn_it_too() -> None:
    told: dict[str, Any] = {**SMALL, "model": models.LSTM(embedding=4, hidden=8, every=True)}
    here, there = tacit.train(lines(3), **told), tacit.train(lines(3), runtime="processes", **told)
    assert there.metrics["accuracy"] == pytest.approx(here.metrics["accuracy"], abs=1e-6)
    below = tacit.train(lines(4), topology=tacit.Hierarchy(edges=2), runtime="inprocess", **told)
    assert below.metrics["accuracy"] == pytest.approx(
        tacit.train(lines(4), topology=tacit.Hierarchy(edges=2), **told).metrics["accuracy"], abs=1e-6
    )
    assert 0 < min(tacit.gossip(lines(4), graph=graphs.ring(4), **told).history[-1]["nodes"]["accuracy"]) <= 1


@pytest.mark.parametrize(
    "made",
    [
        lambda fed: tacit.train(fed, model=models.LSTM(hidden=4)),
        lambda fed: tacit.train(lines(every=False), model=models.LSTM(hidden=4, every=True)),
    ],
)
def test_a_model_with_the_wrong_output_shape_is_refused(made: Any) -> None:
    with pytest.raises(
        BadParameter,
        match=r"returns outputs of shape .*(per token; LSTM\(every=True\) does|logits per row)\.",
    ):
        made(lines())


def dataset() -> data.Dataset:
    fed = lines()
    return data.from_arrays(fed.rows.x, fed.rows.y, classes=5, tokens=True, test=(fed.test.x, fed.test.y))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: dataset().split(3, skew=data.Dirichlet(0.5)),
        lambda: dataset().split(3, skew=data.LabelsPerParty(2)),
        lambda: dataset().split(3, skew=data.ConceptShift()),
        lambda: dataset().split(3, skew=data.ConceptDrift()),
        lambda: tacit.pate(dataset(), teachers=3),
        lambda: tacit.train_private(dataset(), noise_multiplier=1.0),
        lambda: dataset().vertical({"a": [0], "b": [1]}, label_at="a"),
        lambda: tacit.train(lines(), adversaries=[audit.LabelFlip(share=0.2)]),
        lambda: one_run(dataset(), lambda d: None, kind="label"),
        lambda: tacit.fedmd(lines(), models=["lstm"] * 5, public=lines().test.x),
    ],
)
def test_what_needs_one_label_a_row_says_so(ask: Any) -> None:
    with pytest.raises(BadData, match="has a label for each token, and one label per row is needed"):
        ask()


@pytest.mark.parametrize(
    ("x", "y", "options", "why"),
    [
        (
            np.zeros((4, 3), dtype=int),
            np.zeros((4, 2), dtype=int),
            {"tokens": True},
            "Give one label a row, or one a token",
        ),
        (np.zeros((4, 3), dtype=int), np.full((4, 3), -2), {"tokens": True}, "or −1 for none; found -2"),
        (np.zeros((4, 3), dtype=int), np.full((4, 3), 5), {"tokens": True, "classes": 5}, "from 0 to 4"),
        (
            np.zeros((4, 3), dtype=int),
            np.full((4, 3), 0.5),
            {"tokens": True},
            "labels of tokens must be integers",
        ),
        (np.zeros((4, 3), dtype=int), np.full((4, 3), "a"), {"tokens": True}, "these are text"),
        (
            np.zeros((4, 3), dtype=int),
            np.zeros((4, 3), dtype=int),
            {"tokens": True},
            "nothing to learn from one class",
        ),
        (
            np.zeros((4, 3), dtype=int),
            np.full((4, 3), 255, dtype=np.uint8),
            {"tokens": True},
            "255 is what −1 becomes in uint8",
        ),
        (
            np.array([[0, 1, 2], [0, -1, 1]]),
            np.ones((2, 3), dtype=int),
            {"tokens": True},
            "the token -1 in row 1; tokens count from 0",
        ),
        (np.zeros((2, 3), dtype=int), [[1, 2, 0], [1, 2]], {"tokens": True}, "y is not an array"),
        (
            np.zeros((4, 3), dtype=int),
            np.ones((4, 3), dtype=int),
            {"tokens": True, "test": (np.zeros((2, 3), dtype=int), np.array([[1, 1, 1], [-1, -1, -1]]))},
            "no token of test row 1 has a label",
        ),
        (
            np.zeros((4, 3), dtype=int),
            np.ones((4, 3), dtype=int),
            {"tokens": True, "regression": True},
            "regression is True; it must be False",
        ),
        (
            np.zeros((4, 3), dtype=int),
            np.array([[0, 1, 2], [-1, -1, -1], [0, 0, 0], [1, 1, 1]]),
            {"tokens": True},
            "no token of row 1 has a label",
        ),
        (
            np.zeros((4, 3), dtype=int),
            np.zeros((4, 3), dtype=int),
            {"tokens": True, "test": (np.zeros((2, 3), dtype=int), np.zeros(2, dtype=int))},
            "or both one a token",
        ),
        (
            np.zeros((4, 3), dtype=int),
            np.zeros((4, 3), dtype=int),
            {"tokens": True, "classes": 1},
            "classes is 1",
        ),
    ],
)
def test_labels_of_tokens_that_do_not_fit_are_refused(
    x: Any, y: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises((BadData, BadParameter), match=why):
        data.from_arrays(x, y, **options)


def test_whole_numbers_may_be_stored_as_fractions() -> None:
    assert (
        data.from_arrays(np.zeros((4, 3), dtype=int), np.array([[0.0, 1.0, -1.0]] * 4), tokens=True).classes
        == 2
    )


def test_an_unknown_token_is_reported() -> None:
    x, y = np.full((20, 3), 7), np.ones((20, 3), dtype=int)
    with pytest.raises(
        BadData, match="has the token 7, and the model knows 0 to 4, as many as there are classes"
    ):
        tacit.train(
            data.from_arrays(x, y, classes=5, tokens=True).split(2), model=models.LSTM(hidden=4, every=True)
        )


def test_a_test_set_is_split_off_rows_of_tokens() -> None:
    made = data.from_arrays(lines().rows.x, lines().rows.y, tokens=True, test_fraction=0.25)
    assert (made.classes, len(made), len(made.test.y)) == (5, 90, 30)

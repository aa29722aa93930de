"""Data sources: Datasets, IterableDatasets, memory-mapped arrays, files, transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import tacit
from tacit import algorithms, data
from tacit.data import torch_datasets
from tacit.data.inputs import Inputs, Stored, read
from tacit.errors import BadData, BadParameter

from .test_inputs import flat, rows, two_inputs


class Items(Dataset):
    """A map-style data set of given items."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset):
    """Items in order, without a length."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def numbers(n: int = 120) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, 4, generator=g)
    return x, (x[:, 0] > 0).long()


def pairs(a: int, b: int) -> list[tuple[Tensor, int]]:
    x, y = numbers()
    return [(x[i], int(y[i])) for i in range(a, b)]


def train(fed: data.Federation, **options: Any) -> tacit.Result:
    torch.manual_seed(0)
    options = {"model": nn.Linear(4, 2), "rounds": 2, "batch_size": 8, "engine": "each", **options}
    return tacit.train(fed, algorithm=algorithms.FedAvg(lr=0.3), **options)


def in_memory() -> data.Federation:
    x, y = numbers()
    groups = {"party": np.repeat(["a", "b"], [70, 50])}
    return data.from_arrays(x, y, groups=groups, test_fraction=0.0, name="torch").by(
        "party", held_fraction=0.3
    )


@pytest.mark.parametrize("keep", ["memory", "disk", "source"])
def test_a_dataset_per_party_gives_the_model_of_the_same_arrays(keep: str, tmp_path) -> None:
    sets = {"a": Items(pairs(0, 70)), "b": Items(pairs(70, 120))}
    fed = data.from_torch(sets, keep=keep, folder=tmp_path, held_fraction=0.3)
    assert fed.parties == ("a", "b")
    assert isinstance(fed.rows.x, Stored) == (keep != "memory")
    run, expected = train(fed), train(in_memory())
    assert torch.equal(flat(run.model), flat(expected.model))
    assert run.metrics["accuracy"] == expected.metrics["accuracy"]
    said = any("read while training" in e.get("text", "") for e in run.events)
    assert said == (keep != "memory")


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_an_iterable_dataset_gives_the_same_model(keep: str) -> None:
    sets = {"a": Stream(pairs(0, 70)), "b": Stream(pairs(70, 120))}
    run = train(data.from_torch(sets, keep=keep, limit=1000, held_fraction=0.3))
    assert torch.equal(flat(run.model), flat(train(in_memory()).model))


def test_a_limit_takes_the_first_rows_of_an_endless_stream() -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from pairs(0, 50)

    fed = data.from_torch({"a": Endless(), "b": Items(pairs(50, 90))}, limit=30)
    assert fed.sizes.tolist() == [30, 40]


def test_a_test_data_set_is_the_global_test_set() -> None:
    fed = data.from_torch({"a": Items(pairs(0, 60)), "b": Items(pairs(60, 90))}, test=Items(pairs(90, 120)))
    assert torch.equal(fed.test.x, numbers()[0][90:])
    assert len(fed.test.y) == 30


@pytest.mark.parametrize("keep", ["memory", "disk", "source"])
def test_items_that_are_dictionaries_are_named_inputs(keep: str) -> None:
    x, y = rows()
    items = [{**{k: v[i] for k, v in x.items()}, "label": int(y[i])} for i in range(90)]
    fed = data.from_torch({"a": Items(items[:50]), "b": Items(items[50:])}, keep=keep)
    groups = {"party": np.repeat(["a", "b"], [50, 40])}
    same = data.from_arrays(x, y, groups=groups, test_fraction=0.0).by("party")
    assert torch.equal(flat(train(fed, model=two_inputs).model), flat(train(same, model=two_inputs).model))


def ragged() -> list[tuple[dict[str, Tensor], int]]:
    x, y = rows()
    lengths = x["mask"].sum(1).tolist()
    return [
        ({"ids": x["ids"][i, : lengths[i]], "numbers": x["numbers"][i]}, int(y[i])) for i in range(len(y))
    ]


def join(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids, mask = data.pad([row["ids"] for row in each])
    return {"ids": ids, "mask": mask, "numbers": torch.stack([row["numbers"] for row in each])}


@pytest.mark.parametrize("keep", ["memory", "source"])
def test_collate_joins_sequences_of_different_lengths_at_once_or_for_each_batch(keep: str) -> None:
    """The model takes a masked mean, so that the length to which a batch is filled up changes nothing."""
    items = ragged()
    fed = data.from_torch({"a": Items(items[:50]), "b": Items(items[50:])}, collate=join, keep=keep)
    x, y = rows()
    groups = {"party": np.repeat(["a", "b"], [50, 40])}
    same = data.from_arrays(x, y, groups=groups, test_fraction=0.0).by("party")
    a, b = (flat(train(f, model=two_inputs).model) for f in (fed, same))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_rows_that_are_read_are_the_same_in_parties_and_resumed_runs(tmp_path) -> None:
    sets = {"a": Items(pairs(0, 70)), "b": Items(pairs(70, 120))}
    fed = data.from_torch(sets, keep="disk")
    whole = train(fed, rounds=4)
    parties = train(fed, rounds=4, runtime="inprocess")
    torch.testing.assert_close(flat(whole.model), flat(parties.model), rtol=0, atol=1e-6)
    first = train(fed, rounds=2, out=tmp_path / "run")
    assert torch.equal(flat(train(fed, rounds=4, resume=first).model), flat(whole.model))
    with pytest.raises(BadData, match="are not given to other processes"):
        train(fed, runtime="processes", model="logistic")


def test_a_memory_mapped_array_is_not_read_until_it_is_trained_on(tmp_path) -> None:
    x, y = numbers()
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    fed = data.from_arrays(mapped, y, name="m").split(3, seed=0)
    assert isinstance(fed.rows.x, Stored)
    same = data.from_arrays(x, y, name="m").split(3, seed=0)
    assert torch.equal(flat(train(fed).model), flat(train(same).model))


class Shift:
    """Adds noise, and notes what it was called for."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=rng)
        self.seen.append(float(noise[0]))
        return x + 0.1 * noise


def test_a_transform_draws_the_same_in_every_runtime_and_other_values_in_every_step() -> None:
    x, y = numbers()
    runs, seen = [], []
    for options in ({}, {}, {"runtime": "inprocess"}, {"seed": 1}):
        shift = Shift()
        fed = data.from_arrays(x, y, transform=shift).split(3, seed=0)
        runs.append(flat(train(fed, **options).model))
        seen.append(shift.seen)
    assert torch.equal(runs[0], runs[1])
    torch.testing.assert_close(runs[0], runs[2], rtol=0, atol=1e-6)
    assert not torch.equal(runs[0], runs[3])
    # one draw for every row of every step of two rounds (and of the checks before), none twice
    assert len(set(seen[0])) >= 2 * len(data.from_arrays(x, y).split(3, seed=0).train.index)
    plain = data.from_arrays(x, y).split(3, seed=0)
    assert not torch.equal(runs[0], flat(train(plain).model))


def test_a_transform_is_not_applied_to_rows_that_a_model_is_evaluated_on() -> None:
    """A transform that would change every label's rows: with no step, the metrics are those without it."""
    x, y = numbers()
    flipped = data.from_arrays(x, y, transform=lambda row, rng: -row).split(3, seed=0)
    run = train(flipped)
    with torch.no_grad():
        accuracy = float((run.model(flipped.test.x.read()).argmax(1) == flipped.test.y).float().mean())
    assert run.metrics["accuracy"] == pytest.approx(accuracy)
    assert accuracy < 0.3  # it has learned from flipped rows


BAD: list[tuple[Any, str]] = [
    (lambda: data.from_torch({"a": Items([])}), "party 'a': there are no rows"),
    (lambda: data.from_torch({"a": Stream(pairs(0, 5))}), "IterableDataset without a length may never end. Say limit"),
    (
        lambda: data.from_torch({"a": Stream(pairs(0, 5))}, keep="source", limit=5),
        "cannot be read by their number, so keep='source'",
    ),
    (lambda: data.from_torch({"a": Items([torch.zeros(3)] * 4)}), r"an item is a Tensor; expected \(x, y\)"),
    (lambda: data.from_torch({"a": Items([{"p": 1.0}] * 4)}), "has the entries 'p', and no label .*Say label="),
    (lambda: data.from_torch({"a": Items([(torch.zeros(3), None)] * 4)}), "row 0 has no label"),
    (
        lambda: data.from_torch({"a": Items([(torch.zeros(3), 0), (torch.zeros(4), 1)])}),
        r"different shapes, such as \(3,\) and \(4,\). Give collate=",
    ),
    (
        lambda: data.from_torch({"a": Items([(torch.zeros(2), [0]), (torch.zeros(2), [1, 0])])}),
        "labels have different shapes",
    ),
    (lambda: data.from_torch({"a": Items([("text", 0), ("more", 1)])}), "not a number or an array of numbers"),
    (lambda: data.from_torch({"a": 5}), "expected a torch Dataset with a length.* got a int"),
    (
        lambda: data.from_torch({"a": Items([(torch.tensor([1.0, float("inf")]), 0)] * 3)}),
        "has a NaN or infinite value",
    ),
    (lambda: data.from_torch({"a": Items(pairs(0, 9))}, collate=lambda x: x[0][None]), "returns 1 rows for 9"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), BAD)
def test_bad_data_sets_are_refused_with_what_to_do(make: Any, text: str) -> None:
    with pytest.raises(BadData, match=text):
        make()


def test_rows_of_different_shapes_are_refused_when_they_are_written(tmp_path) -> None:
    items = [*pairs(0, 120) * 3, (torch.zeros(5), 1)]
    with pytest.raises(BadData, match=r"rows cannot be joined|rows from 256 on have"):
        data.from_torch({"a": Items(items)}, keep="disk", folder=tmp_path)
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_bad_arguments_name_what_is_allowed() -> None:
    with pytest.raises(BadParameter, match="keep is 'ram'; it must be one of 'memory', 'disk', 'source'"):
        data.from_torch({"a": Items(pairs(0, 9))}, keep="ram")
    with pytest.raises(BadParameter, match="a dictionary of a data set for each party"):
        data.from_torch([Items(pairs(0, 9))])
    with pytest.raises(BadParameter, match=r"parties is \{\}; it must be a dictionary"):
        data.from_torch({})
    with pytest.raises(BadParameter, match="limit is 0"):
        data.from_torch({"a": Stream(pairs(0, 9))}, limit=0)


@pytest.mark.parametrize("keep", ["memory", "disk", "source"])
def test_entries_of_items_are_found_by_name_whatever_their_order(keep: str, tmp_path, monkeypatch) -> None:
    """Two inputs of one shape, whose order changes within a party and between blocks."""
    monkeypatch.setattr(torch_datasets, "BLOCK", 7)
    x, y = numbers(60)
    items = [{"a": x[i, :2], "b": x[i, 2:], "y": int(y[i])} for i in range(60)]
    items = [dict(reversed(item.items())) if i % 3 or i > 40 else item for i, item in enumerate(items)]
    fed = data.from_torch({"p": Items(items[:33]), "q": Items(items[33:])}, keep=keep, folder=tmp_path)
    found = read(fed.rows.x)
    assert isinstance(found, Inputs)
    assert torch.equal(found.parts["a"], x[:, :2])
    assert torch.equal(found.parts["b"], x[:, 2:])

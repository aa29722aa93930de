"""Parquet and Arrow files larger than memory, and Hugging Face's datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import tacit
from tacit import algorithms, data
from tacit.data.inputs import Inputs, Stored
from tacit.errors import BadData, BadParameter

from .memory import measure_peak
from .test_inputs import flat, rows, two_inputs
from .test_sources import in_memory, numbers, train

MB = 2**20


def table(a: int, b: int) -> pa.Table:
    x, y = numbers()
    columns = {f"x{j}": x[a:b, j].numpy() for j in range(4)}
    return pa.table({**columns, "y": y[a:b].numpy()})


def write(folder: Path, a: int, b: int, ending: str = "parquet") -> Path:
    path = folder / f"{a}.{ending}"
    if ending == "parquet":
        pq.write_table(table(a, b), path, row_group_size=16)
    else:
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table(a, b).schema) as file:
            file.write_table(table(a, b), max_chunksize=16)
    return path


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_of_parties_give_the_model_of_the_same_arrays(tmp_path, ending: str) -> None:
    files = {
        "a": [write(tmp_path, 0, 40, ending), write(tmp_path, 40, 70, ending)],
        "b": write(tmp_path, 70, 120, ending),
    }
    fed = data.from_parquet_files(files, label="y", held_fraction=0.3)
    run, expected = train(fed), train(in_memory())
    assert torch.equal(flat(run.model), flat(expected.model))
    assert run.metrics["accuracy"] == expected.metrics["accuracy"]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize("named", [None, ["x2", "x0", "x1", "x3"]])
def test_columns_are_read_by_name_whatever_their_order_in_a_file(tmp_path, ending: str, named: Any) -> None:
    files = {"a": write(tmp_path, 0, 70, ending), "b": write(tmp_path, 70, 120, ending)}
    same = data.from_parquet_files(files, label="y", columns=named)
    other = table(70, 120).select(["x3", "y", "x0", "x2", "x1"])
    if ending == "parquet":
        pq.write_table(other, files["b"], row_group_size=16)
    else:
        with pa.OSFile(str(files["b"]), "wb") as out, pa.ipc.new_file(out, other.schema) as file:
            file.write_table(other, max_chunksize=16)
    fed = data.from_parquet_files(files, label="y", columns=named)
    assert isinstance(fed.rows.x, Stored)
    assert isinstance(same.rows.x, Stored)
    x, y = numbers()
    order = [2, 0, 1, 3] if named else [0, 1, 2, 3]
    assert torch.equal(fed.rows.x.read(), x[:120, order])
    assert torch.equal(fed.rows.x.read(), same.rows.x.read())
    assert torch.equal(fed.rows.y, y[:120])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.drop_columns(["x1"]), r"0\.parquet has it"),
        (lambda t: t.rename_columns(["x0", "x1", "x2", "x4", "y"]), r"70\.parquet has no column 'x3'"),
        (
            lambda t: t.append_column("x4", t["x0"]),
            r"70\.parquet has the column 'x4', and .*0\.parquet does not",
        ),
        (lambda t: t.append_column("x0", t["x0"]), r"has several columns 'x0'"),
        (lambda t: t.drop_columns(["y"]), r"70\.parquet has no column 'y'"),
    ],
)
def test_files_with_other_columns_are_refused_by_name(tmp_path, change: Any, text: str) -> None:
    files = {"a": write(tmp_path, 0, 70), "b": write(tmp_path, 70, 120)}
    pq.write_table(change(table(70, 120)), files["b"])
    with pytest.raises(BadData, match=text):
        data.from_parquet_files(files, label="y")
    if "x4', and" in text:  # columns that are not asked for do not matter
        assert len(data.from_parquet_files(files, label="y", columns=["x0"]).rows.y) == 120


def test_columns_of_lists_are_named_inputs(tmp_path) -> None:
    x, y = rows()
    columns = {k: pa.array(v.tolist()) for k, v in x.items()}
    pq.write_table(pa.table({**columns, "y": y.numpy()}), tmp_path / "a.parquet")
    fed = data.from_parquet_files({"a": tmp_path / "a.parquet"}, label="y")
    same = data.from_arrays(x, y, groups={"party": np.repeat("a", 90)}, test_fraction=0.0).by("party")
    assert torch.equal(flat(train(fed, model=two_inputs).model), flat(train(same, model=two_inputs).model))


def test_training_on_files_larger_than_the_memory_it_takes(tmp_path) -> None:
    """240 MB of numbers; the resident memory of the process rises by less than half of that.

    It is 20 to 60 MB, by what the allocators keep. Reading all rows at once takes more than 180 MB, which is
    measured in the same way.
    """
    width, group, groups = 2048, 512, 60
    rng = np.random.default_rng(0)
    block = rng.normal(size=(group, width)).astype(np.float32)
    label = (block[:, 0] > 0).astype(np.int64)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), width)
    part = pa.table({"x": lists, "y": label})

    def write_large(many: int) -> dict[str, Path]:
        files = {}
        for party in "ab":
            files[party] = tmp_path / f"{party}{many}.parquet"
            with pq.ParquetWriter(files[party], part.schema, compression="none", use_dictionary=False) as out:
                for _ in range(many):
                    out.write_table(part, row_group_size=group)
        return files

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(width, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x)

    def run(files: dict[str, Path]) -> Any:
        fed = data.from_parquet_files(files, label="y", folder=tmp_path, held_fraction=0.02)
        return fed, tacit.train(
            fed, model=First(), rounds=1, batch_size=64, algorithm=algorithms.FedAvg(lr=0.01), engine="each"
        )

    run(write_large(1))  # what the first run of a process imports and allocates is not about large files
    files = write_large(groups // 2)
    assert sum(f.stat().st_size for f in files.values()) > 235 * MB
    with measure_peak() as peak:
        fed, result = run(files)
    assert result.metrics["accuracy"] > 0.6
    assert peak.growth < 120 * MB, f"{peak.growth / MB:.0f} MB"
    with measure_peak() as whole:
        assert isinstance(fed.rows.x, Stored)
        everything = fed.rows.x.read()
    assert len(everything) == group * groups
    assert whole.growth > 180 * MB  # 240, less what the allocators kept of the training and use now


def hugging() -> tuple[datasets.Dataset, dict[str, torch.Tensor], torch.Tensor]:
    """Ragged ids without a mask, numbers, a label and a party."""
    x, y = rows()
    lengths = x["mask"].sum(1).tolist()
    kinds = datasets.ClassLabel(names=["low", "middle", "high"])
    found = datasets.Dataset.from_dict(
        {
            "ids": [x["ids"][i, :n].tolist() for i, n in enumerate(lengths)],
            "numbers": x["numbers"].tolist(),
            "label": y.tolist(),
            "site": ["a"] * 50 + ["b"] * 40,
        }
    ).cast_column("label", kinds)
    return found, x, y


class Renamed(nn.Module):
    """`two_inputs` with the mask under the name that Hugging Face gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = two_inputs()

    def forward(self, ids: Any, numbers: Any, attention_mask: Any) -> Any:
        return self.inner(ids, attention_mask, numbers)


@pytest.mark.parametrize("keep", ["memory", "source"])
def test_a_hugging_face_data_set_gives_the_model_of_the_same_arrays(keep: str) -> None:
    dataset, x, y = hugging()
    fed = data.from_huggingface(dataset, by="site", pad=0, keep=keep)
    assert fed.parties == ("a", "b")
    assert fed.labels == ("low", "middle", "high")
    assert isinstance(fed.rows.x, Inputs if keep == "memory" else Stored)
    same = data.from_arrays(x, y, groups={"site": np.repeat(["a", "b"], [50, 40])}, test_fraction=0.0).by(
        "site"
    )
    a, b = flat(train(fed, model=Renamed).model), flat(train(same, model=two_inputs).model)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_a_selection_of_a_data_set_and_its_test_split_are_followed() -> None:
    dataset, x, y = hugging()
    order = list(range(89, -1, -1))
    splits = datasets.DatasetDict({"train": dataset.select(order[:60]), "test": dataset.select(order[60:])})
    fed = data.from_huggingface(splits, by="site", columns="numbers")
    assert isinstance(fed.rows.x, torch.Tensor)
    assert torch.equal(fed.rows.x, x["numbers"][torch.tensor(order[:60])])
    assert torch.equal(fed.test.y, y[torch.tensor(order[60:])])
    whole = data.from_huggingface(splits, columns=["numbers"])
    assert isinstance(whole, data.Dataset)
    assert len(whole.split(3, skew=data.Dirichlet(0.5), seed=0)) == 3


def test_a_transform_of_hugging_face_rows_is_called_in_training() -> None:
    dataset, _, _ = hugging()

    def shift(row: dict[str, Any], rng: torch.Generator) -> dict[str, Any]:
        return {**row, "numbers": torch.as_tensor(row["numbers"]) + torch.randn(4, generator=rng)}

    runs = [
        flat(
            train(
                data.from_huggingface(dataset, "site", pad=0, keep="source", transform=t), model=Renamed
            ).model
        )
        for t in (shift, shift, None)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def bad_parquet(folder: Path, **columns: Any) -> dict[str, Path]:
    pq.write_table(pa.table(columns), folder / "bad.parquet")
    return {"a": folder / "bad.parquet"}


BAD: list[tuple[Any, str]] = [
    (lambda d, f: data.from_huggingface(d, by="place"), r"there is no column 'place' \(by\)"),
    (lambda d, f: data.from_huggingface(d, by="site", label="lable"), "there is no column 'lable'"),
    (lambda d, f: data.from_huggingface(d, by="site"), "the rows of 'ids' have different lengths. Say pad="),
    (lambda d, f: data.from_huggingface(d, columns=["site"]), "'site' does not contain numbers"),
    (lambda d, f: data.from_huggingface(d.select([]), by="site"), "the data set has no rows"),
    (
        lambda d, f: data.from_huggingface(d.add_column("marks", [None] + [[1.0]] * (len(d) - 1)), by="site"),
        "1 rows have no 'marks'. Fill or drop them",
    ),
    (lambda d, f: data.from_huggingface(d.to_iterable_dataset()), "Give streamed rows to data.from_torch"),
    (lambda d, f: data.from_huggingface(datasets.DatasetDict({"dev": d})), "no split of dev is named 'train'"),
    (lambda d, f: data.from_parquet_files({"a": f / "none.parquet"}, label="y"), "there is no file"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, x=[1.0], z=[1]), label="y"), "has no column 'y'"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, x=[1.0, None], y=[0, 1]), label="y"), "1 rows have no 'x'"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, x=["a", "b"], y=[0, 1]), label="y"), "'x' does not contain numbers"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, x=[[1], [1, 2]], y=[0, 1]), label="y"), "lists of numbers of one length"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, x=[1.0], y=[None]), label="y"), "1 rows have no 'y'"),
    (lambda d, f: data.from_parquet_files(bad_parquet(f, y=[0, 1]), label="y"), "no columns besides the label"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "text"), BAD)
def test_bad_sources_are_refused_with_what_to_do(make: Any, text: str, tmp_path) -> None:
    with pytest.raises(BadData, match=text):
        make(hugging()[0], tmp_path)
    assert not list(tmp_path.glob("*.rows"))


def test_a_file_that_is_not_parquet_is_refused(tmp_path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + b"0" * 100)
    with pytest.raises(BadData, match="is not a Parquet or Arrow file"):
        data.from_parquet_files({"a": tmp_path / "a.parquet"}, label="y")
    with pytest.raises(BadParameter, match="keep is 'disk'"):
        data.from_huggingface(hugging()[0], keep="disk")

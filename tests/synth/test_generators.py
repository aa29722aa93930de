"""What holds for every generator, that the check of it can fail, and what `sample` promises around it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from tacit import synth
from tacit.errors import BadData, BadParameter
from tacit.parameters import describe, whole
from tacit.synth.conformance import check_generator, example
from tacit.synth.generator import CHUNK


def quick(name: str) -> synth.Generator:
    # replayable: a network that noise has made useless may need too many draws to meet a condition
    made = synth.ALL[name](**({"insecure_seed": 1} if synth.ALL[name].private else {}))
    if name == "TabDDPM":
        return dataclasses.replace(made, epochs=2, steps=20)
    return dataclasses.replace(made, epochs=2) if "epochs" in made.__dataclass_fields__ else made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "PATEGAN" else n for n in synth.ALL]
)
def test_every_generator_conforms(name):
    check_generator(quick(name))


@pytest.mark.parametrize("name", synth.ALL)
def test_every_parameter_is_explained(name):
    assert all(doc for _, _, doc in describe(synth.ALL[name]))


@pytest.mark.parametrize("name", synth.ALL)
def test_only_private_generators_have_an_insecure_seed_and_they_have_no_other(name):
    fields = {f.name for f in dataclasses.fields(synth.ALL[name])}
    assert fields & {"seed", "insecure_seed"} == ({"insecure_seed"} if synth.ALL[name].private else {"seed"})


def test_fit_returns_the_generator_and_fitting_again_replaces_what_was_learned():
    frame, table = example()
    generator = synth.Independent(seed=0)
    assert not generator.is_fitted
    with pytest.raises(BadParameter, match=r"Independent is not fitted yet\. Call fit\(frame\) first\."):
        generator.sample(3)
    assert generator.fit(frame, table) is generator
    assert generator.is_fitted
    first = generator.state
    generator.fit(frame.iloc[:50], table)
    assert generator.state is not first
    assert not dataclasses.replace(generator).is_fitted  # a copy of the parameters alone


@dataclass(frozen=True)
class Remembers(synth.Independent):
    """The trap of the best-known CTGAN: rows, or lists of row numbers by category, kept with the model."""

    what: int = whole(0, least=0, doc="0: the rows; 1: the order of rows by a column; 2: a name")
    seed: int = whole(0, least=0, doc="seed")

    def learn(self, v, layout, rng, watch):
        state = super().learn(v, layout, rng, watch)
        match self.what:
            case 0:
                state.tensors["kept"] = torch.from_numpy(v[:50].copy())
            case 1:
                state.tensors["kept"] = torch.from_numpy(np.argsort(v[:, 1]))
            case 2:
                state.metadata["kept"] = example()[0]["name"][7]
            case 3:
                state.tensors["kept"] = torch.from_numpy(v[:390, 0].astype(np.uint8))
        return state


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (0, "its file contains row"),
        (1, "kept is as long as the training table"),
        (2, "contains the identifier secret-00007"),
        (3, "its file contains age of rows 0 to 7"),
    ],
)
def test_a_generator_that_keeps_training_rows_or_their_order_does_not_conform(what, words):
    with pytest.raises(AssertionError, match=words):
        check_generator(Remembers(what=what))


@dataclass(frozen=True)
class Careless(synth.Independent):
    seed: int = whole(0, least=0, doc="seed")

    def draw(self, state, layout, n, rng, conditions):
        torch.rand(1)
        return super().draw(state, layout, n, rng, conditions)


def test_a_generator_that_draws_from_the_global_state_does_not_conform():
    with pytest.raises(AssertionError, match="changes the process's random state"):
        check_generator(Careless())


@pytest.mark.parametrize("name", ["Independent", "GaussianCopula", "Bayes", "Cart"])
def test_what_is_learned_does_not_depend_on_the_order_of_rows(name):
    """A file that is the same for every order of the rows cannot reveal their positions."""
    frame, table = example()
    here, there = (
        quick(name).fit(f, table).state.tensors
        for f in (frame, frame.sample(frac=1, random_state=1).reset_index(drop=True))
    )
    assert {k: t.shape for k, t in here.items()} == {k: t.shape for k, t in there.items()}
    for key, tensor in here.items():
        assert torch.allclose(tensor.double(), there[key].double(), atol=1e-8), key


@pytest.mark.parametrize("name", [n for n, c in synth.ALL.items() if not c.private])
@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1.5, 2.5]}),
        pd.DataFrame({"a": ["x", "x", "x", "y"]}),
        pd.DataFrame({"a": [3.0] * 12, "b": ["k"] * 12, "c": [None] * 12}),
        pd.DataFrame({"a": [None, 1.5, None, 2.25, 9.5, 3.5] * 5}),
        pd.DataFrame(
            {"zip": [f"z{i % 130}" for i in range(260)], "v": np.random.default_rng(0).normal(size=260)}
        ),
    ],
    ids=["two rows", "one category", "constant columns", "missing numbers", "130 categories"],
)
def test_small_odd_and_constant_tables_are_learned(name, frame):
    generator = dataclasses.replace(quick(name), copies=None) if name == "Cart" else quick(name)
    rows = generator.fit(frame, floor=1).sample(50, seed=1)
    assert list(rows.columns) == list(frame.columns)
    for column in frame:
        if frame[column].nunique() <= 1:
            assert rows[column].nunique() <= 1
        assert rows[column].isna().any() <= frame[column].isna().any()


def test_the_number_of_rows_must_be_an_integer():
    fitted = synth.Independent().fit(example()[0])
    for n in (0, -1, 1.5, True):
        with pytest.raises(
            BadParameter, match=rf"sample: n is {n!r}; it must be a whole number of at least 1"
        ):
            fitted.sample(n)
    with pytest.raises(BadParameter, match="sample: seed is -1"):
        fitted.sample(5, seed=-1)


@pytest.mark.parametrize(
    ("conditions", "error", "words"),
    [
        ({"sx": "F"}, BadParameter, "there is no modeled column 'sx'. Did you mean 'sex'?"),
        ({"sex": "X"}, BadData, "'X' is not a value of the column 'sex'. Allowed: 'F', 'M'"),
        ({"age": (60, 30)}, BadParameter, r"age=\(60, 30\) is an empty interval"),
        ({"name": "Ann"}, BadParameter, "no modeled column 'name'"),
        (
            {"age": 17},
            BadData,
            r"only 0 of 10 rows satisfy .*conditions=\{'age': 17\} after [\d,]+ were drawn",
        ),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(conditions, error, words):
    frame, table = example()
    with pytest.raises(error, match=words):
        synth.Independent().fit(frame, table).sample(10, conditions=conditions)


@pytest.mark.parametrize("name", ["Bayes", "Cart", "CTGAN", "GaussianCopula"])
def test_conditions_may_be_lists_missing_values_and_combined_columns(name):
    frame, table = example()
    fitted = quick(name).fit(frame, table)
    assert set(fitted.sample(30, conditions={"grade": ["low", "high"]})["grade"]) <= {"low", "high"}
    assert fitted.sample(20, conditions={"job": None})["job"].isna().all()
    french = fitted.sample(30, conditions={"country": "FR"})
    assert set(french["city"]) <= {"Lyon", "Lille"}


def test_unique_holds_over_the_whole_sample_and_gives_up_with_a_sentence():
    frame = pd.DataFrame({"a": np.arange(40) * 7, "b": ["x", "y"] * 20})
    table = synth.Table.infer(frame, constraints=[synth.Unique("a", "b")], a="integer")
    fitted = synth.Independent().fit(frame, table, floor=1)
    assert not fitted.sample(200).duplicated(["a", "b"]).any()
    with pytest.raises(BadData, match=r"only \d+ of 600 rows satisfy Unique\(columns=\('a', 'b'\)\)"):
        fitted.sample(600)


def test_a_sample_is_its_chunks_and_only_one_of_them_is_in_memory():
    frame, table = example()
    fitted = synth.Independent().fit(frame, table)
    n = CHUNK + 1000
    chunks = fitted.chunks(n, seed=2)
    first = next(chunks)
    assert len(first) == CHUNK
    assert pd.concat([first, *chunks], ignore_index=True).equals(fitted.sample(n, seed=2))
    assert fitted.sample(n, seed=2)["name"].is_unique


@pytest.mark.parametrize(
    "content", [b"", b"not a generator", (7).to_bytes(8, "little") + b'{"a":1}', b"\x00" * 64]
)
def test_a_file_that_is_not_a_generator_is_refused(tmp_path, content):
    (tmp_path / "g").write_bytes(content)
    with pytest.raises(BadData, match="is not a generator saved by tacit"):
        synth.load(tmp_path / "g")
    with pytest.raises(BadData, match="cannot be read: No such file"):
        synth.load(tmp_path / "nothing")


def test_a_file_cut_off_is_refused(tmp_path):
    path = synth.Bayes().fit(example()[0]).save(tmp_path / "g")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadData, match="is not a generator saved by tacit"):
        synth.load(path)


def test_saving_to_an_unwritable_path_is_refused(tmp_path):
    with pytest.raises(BadParameter, match=r"there is no directory .*Create it first"):
        synth.Independent().fit(example()[0]).save(tmp_path / "no" / "where")


def test_a_private_generator_of_ones_own_reads_no_domains_off_the_data():
    class Own(synth.Independent):
        private = True

    with pytest.raises(BadData, match="Own is private and needs declared domains"):
        Own().fit(pd.DataFrame({"age": [1, 2, 3]}))

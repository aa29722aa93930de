from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit import data
from tacit.data.conformance import check_dataset, check_federation
from tacit.errors import BadData, BadParameter, MissingExtra, MissingFiles

from . import formats

ROOT = Path(os.environ.get("TACIT_DATA") or Path(__file__).parents[3] / "shared" / "data")
# The shipped heart_disease is always there, so that this list is never empty; the others where their files
# are (as on CI).
REAL = ["heart_disease"] + [
    name for name in ("mnist", "fashion_mnist", "cifar10", "adult", "shakespeare") if (ROOT / name).is_dir()
]


def small(name: str, folder: Path) -> partial:
    """A constructor of the data set that needs nothing the test does not make."""
    written = {
        "mnist": partial(formats.write_idx, packed=True),
        "fashion_mnist": partial(formats.write_idx, packed=False),
        "cifar10": formats.write_cifar_binary,
        "adult": formats.write_adult,
        "shakespeare": formats.write_shakespeare,
    }
    if name not in written:
        return partial(data.ALL[name])
    written[name](folder / name)
    return partial(data.ALL[name], data_dir=folder, verify=False, **offline(name))


def offline(name: str) -> dict:
    """Shakespeare has no address to download it from."""
    return {} if name == "shakespeare" else {"download": False}


@pytest.mark.parametrize("name", data.ALL)
def test_every_data_set_conforms(name, tmp_path):
    made = check_dataset(small(name, tmp_path))
    assert made.name.startswith(name)
    check_federation(made.split(3, seed=1), len(made))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "cifar10" else n for n in REAL]
)
def test_real_files_are_the_published_ones_and_conform(name):
    facts = {  # rows, test rows, rows of label 1: from the publications
        "heart_disease": (486, 254, None),
        "mnist": (60000, 10000, 6742),
        "fashion_mnist": (60000, 10000, 6000),
        "cifar10": (50000, 10000, 5000),
        "adult": (32561, 16281, 7841),
        "shakespeare": (85614, 22027, 560887),
    }  # and so many of its characters are spaces
    made = check_dataset(
        data.ALL[name]() if name == "heart_disease" else data.ALL[name](data_dir=ROOT, **offline(name))
    )
    rows, test, ones = facts[name]
    assert (len(made), len(made.test.y)) == (rows, test)
    assert ones is None or int((made.rows.y == 1).sum()) == ones


def test_digits_are_pixels_in_the_unit_interval():
    flat, images = data.digits(), data.digits(images=True)
    assert flat.rows.x.shape[1:] == (64,)
    assert images.rows.x.shape[1:] == (1, 8, 8)
    assert torch.equal(images.rows.x.flatten(1), flat.rows.x)
    assert (flat.rows.x.min(), flat.rows.x.max()) == (0, 1)


@pytest.mark.parametrize("name", ["digits", "iris", "wine", "breast_cancer"])
def test_the_test_set_is_a_stratified_fraction_and_follows_the_seed(name):
    a, b = data.ALL[name](test_fraction=0.25, seed=1), data.ALL[name](test_fraction=0.25, seed=2)
    n = len(a) + len(a.test.y)
    assert len(a.test.y) == round(0.25 * n)
    share = torch.bincount(a.test.y) / (torch.bincount(a.test.y) + torch.bincount(a.rows.y))
    assert ((share - 0.25).abs() < 0.03).all()
    assert not torch.equal(a.test.x, b.test.x)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(
        MissingExtra, match=r"data.digits\(\) needs the package 'scikit-learn'.*tacit\[data\]"
    ):
        data.digits()


def test_heart_disease_follows_flambys_rule():
    fed = data.heart_disease(fit="party").by("hospital")  # as FLamby does
    assert fed.parties == ("cleveland", "hungarian", "switzerland", "va")
    assert fed.sizes.tolist() == [199, 172, 30, 85]  # FLamby's training sets
    _, tested = np.unique(data.heart_disease().test_groups["hospital"], return_counts=True)
    assert tested.tolist() == [104, 89, 16, 45]
    assert fed.rows.x.shape[1] == 15
    for k in range(4):  # each hospital standardized itself, on its own training rows
        own = fed.rows.x[fed.train.of(k)][:, :8]
        assert own.mean(0).abs().max() < 1e-5
        unit = (own.std(0, correction=0) - 1).abs() < 1e-4
        assert [name for name, ok in zip(fed.columns, unit) if not ok] == (
            ["chol"] if fed.parties[k] == "switzerland" else []
        )
        # Switzerland did not record cholesterol: it wrote 0 for everyone


def test_heart_disease_can_have_flambys_own_test_patients():
    a, b = data.heart_disease(split="flamby", seed=0), data.heart_disease(split="flamby", seed=1)
    assert torch.equal(a.test.x, b.test.x)
    assert np.unique(a.test_groups["hospital"], return_counts=True)[1].tolist() == [104, 89, 16, 45]
    with pytest.raises(
        BadParameter, match="heart_disease: split is 'own'; it must be one of 'seeded', 'flamby'"
    ):
        data.heart_disease(split="own")


def test_heart_disease_files_of_ones_own_are_held_to_the_published_sums(tmp_path):
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / f"processed.{name}.data").write_text(
            "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n44,1,4,130,209,0,1,127,0,0,?,?,?,0\n" * 3
        )
    with pytest.raises(
        BadData, match=r"processed.cleveland.data is not the published file: its sha256 is .* verify=False"
    ):
        data.heart_disease(data_dir=tmp_path)
    assert len(data.heart_disease(data_dir=tmp_path, verify=False)) == 4 * (6 - 3)


def test_synthetic_is_the_logistic_model_of_each_device():
    made = data.synthetic(1, 1, parties=12, seed=5)
    fed = made.by("device")
    assert len(fed) == 12
    assert fed.parties[0] == "d00"
    assert int(made.rows.y.max()) <= 9
    assert made.rows.x.shape[1] == 60
    per_device = (
        np.unique(made.groups["device"], return_counts=True)[1]
        + np.unique(made.test_groups["device"], return_counts=True)[1]
    )
    assert per_device.min() >= 50
    # x ~ N(v_k, diag(i^-1.2)): within a device the deviation of feature i is i^-0.6
    big = fed.train.of(int(fed.sizes.argmax()))
    x = fed.rows.x[big]
    error = x.std(0) / torch.arange(1, 61) ** -0.6 - 1
    assert (
        error.abs().max() < 6 / (2 * len(x)) ** 0.5
    )  # six standard errors on each of 60: below 1e-6 to fail by chance


def test_synthetic_devices_differ_more_with_beta_and_not_at_all_when_iid():
    def apart(**options) -> float:
        fed = data.synthetic(alpha=0, parties=20, seed=1, **options).by("device")
        return float(torch.stack([fed.rows.x[fed.train.of(k)].mean() for k in range(20)]).std())

    assert apart(beta=0, iid=True) < apart(beta=0) < apart(beta=3)


def test_synthetic_labels_do_not_depend_on_alpha_as_the_published_model_has_it():
    assert torch.equal(data.synthetic(0, 1).rows.y, data.synthetic(1, 1).rows.y)
    with pytest.raises(BadParameter, match="Synthetic: alpha is -1; it must be a number of at least 0"):
        data.synthetic(-1, 0)


def test_gaussian_blobs_with_a_small_spread_are_separable():
    made = data.gaussian_blobs(300, 3, 4, spread=0.01, seed=2)
    centres = torch.stack([made.rows.x[made.rows.y == c].mean(0) for c in range(3)])
    assert torch.equal(torch.cdist(made.test.x, centres).argmin(1), made.test.y)
    with pytest.raises(
        BadParameter, match="GaussianBlobs: rows is 1; it must be a whole number of at least 2"
    ):
        data.gaussian_blobs(1)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_reads_idx_files_packed_or_not_from_either_folder(tmp_path, packed):
    for folder in (tmp_path / "a" / "mnist", tmp_path / "b"):
        arrays = formats.write_idx(folder, packed)
        made = data.mnist(data_dir=tmp_path / folder.relative_to(tmp_path).parts[0], verify=False)
        assert made.rows.x.shape == (40, 1, 28, 28)
        assert np.array_equal((made.rows.x[:, 0] * 255).round().numpy(), arrays["train-images-idx3-ubyte"])
        assert np.array_equal(made.test.y.numpy(), arrays["t10k-labels-idx1-ubyte"])


def test_tacit_data_is_where_files_are_looked_for(tmp_path, monkeypatch):
    formats.write_idx(tmp_path / "fashion_mnist", packed=True)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    assert len(data.fashion_mnist(verify=False)) == 40


def test_scales_of_pictures(tmp_path):
    formats.write_idx(tmp_path, packed=True)
    unit, half, standard = (
        data.mnist(scale=s, data_dir=tmp_path, verify=False).rows.x for s in ("unit", "half", "standard")
    )
    assert (unit.min(), unit.max()) == (0, 1)
    assert torch.allclose(half, unit * 2 - 1, atol=1e-6)
    assert torch.allclose(standard, (unit - 0.1307) / 0.3081, atol=1e-5)
    with pytest.raises(BadParameter, match="it must be one of 'unit', 'half', 'standard'"):
        data.mnist(scale="imagenet", data_dir=tmp_path, verify=False)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b: b[:100], "says it holds 40×28×28 bytes and has 84"),
        (lambda b: b"PNG" + b, "is not an IDX file of bytes: it starts with 504e4700"),
        (lambda b: b"", "starts with nothing"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, damage, words):
    formats.write_idx(tmp_path, packed=False)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadData, match=words):
        data.mnist(data_dir=tmp_path, verify=False)


def test_files_that_are_not_the_published_ones_are_refused(tmp_path):
    formats.write_idx(tmp_path, packed=True)
    for name in ("mnist", "fashion_mnist"):
        with pytest.raises(
            BadData,
            match=r"train-images-idx3-ubyte.gz is not the published file: its sha256 is .* verify=False",
        ):
            data.ALL[name](data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "mnist",
            "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
            "t10k-labels-idx1-ubyte.gz",
        ),
        ("fashion_mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("adult", "adult.data, adult.test"),
    ],
)
def test_with_no_files_the_error_says_which_to_put_where(tmp_path, name, files):
    with pytest.raises(MissingFiles) as caught:
        data.ALL[name](data_dir=tmp_path, download=False)
    assert str(caught.value).startswith(f"{name}: missing {files}")
    assert f"in {tmp_path / name} (published at http" in str(caught.value)
    assert "data_dir=…, --data-dir or TACIT_DATA" in str(caught.value)


@pytest.mark.parametrize(
    "write",
    [
        formats.write_cifar_binary,
        formats.write_cifar_webp,
        formats.write_cifar_archive,
        formats.write_cifar_python,
        partial(formats.write_cifar_python, protocol=4),
    ],
)
def test_every_form_of_cifar10_gives_the_same_rows(tmp_path, write):
    write(tmp_path / "cifar10")
    made = data.cifar10(data_dir=tmp_path, verify=False, download=False)
    batches = formats.cifar_batches()
    expected = np.concatenate([batches[name] for name in formats.BATCHES[:5]])
    assert made.rows.y.tolist() == expected[:, 0].tolist()
    assert np.array_equal((made.rows.x.flatten(1) * 255).round().numpy(), expected[:, 1:])
    assert np.array_equal((made.test.x.flatten(1) * 255).round().numpy(), batches["test_batch"][:, 1:])
    with pytest.raises(BadData, match="is not the published file: its md5 is"):
        data.cifar10(data_dir=tmp_path, download=False)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-run",)


def test_a_pickle_among_the_cifar10_files_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    formats.write_cifar_python(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"labels": [1, 2], b"data": Bomb()}, protocol=2))
    with pytest.raises(BadData, match=r"data_batch_3 has 2 labels and .* do not fit"):
        data.cifar10(data_dir=tmp_path, verify=False, download=False)
    assert not (tmp_path / "pickle-was-run").exists()


def test_damaged_cifar10_files_are_refused(tmp_path):
    formats.write_cifar_binary(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(b"\x00" * 3000)
    with pytest.raises(BadData, match=r"data_batch_2.bin has 3000 bytes, not a multiple of 3073"):
        data.cifar10(data_dir=tmp_path, verify=False)
    (tmp_path / "data_batch_2.bin").write_bytes(b"\x0a" * 3073)
    with pytest.raises(BadData, match=r"has the label 10; labels go from 0 to 9"):
        data.cifar10(data_dir=tmp_path, verify=False)


@pytest.mark.parametrize("packed", [True, False])
def test_adult_marks_missing_values_and_joins_the_labels_of_both_files(tmp_path, packed):
    formats.write_adult(tmp_path, packed)
    made = data.adult(data_dir=tmp_path, verify=False, download=False)
    assert made.labels == ("<=50K", ">50K")
    assert (len(made), len(made.test.y)) == (20, 8)
    assert "fnlwgt" not in made.columns
    assert {"occupation missing", "native-country missing"} <= set(made.columns)
    check_federation(made.by("sex"), 20)


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_the_small_sets_are_standardized_without_looking_at_the_test_rows(name):
    made = data.ALL[name](test_fraction=0.3, seed=2)
    assert made.rows.x.double().mean(0).abs().max() < 1e-5
    assert (made.rows.x.double().std(0, correction=0) - 1).abs().max() < 1e-5
    both = torch.cat([made.rows.x, made.test.x]).double()
    assert both.mean(0).abs().max() > 1e-3  # so the statistics of all rows are others
    assert made.test.x.abs().max() < 20


def plays(tmp_path: Path, text: bytes | None = None, **options) -> data.Dataset:
    formats.write_shakespeare(tmp_path / "shakespeare", text)
    return data.shakespeare(data_dir=tmp_path, verify=False, **options)


def spoken(made: data.Dataset, rows: data.Rows) -> list[str]:
    return ["".join(made.labels[c] for c in y if c >= 0) for y in rows.y.tolist()]


def test_a_line_is_a_row_and_every_character_predicts_the_next(tmp_path):
    made = plays(tmp_path)
    assert made.labels == tuple(sorted({"\n", *"onetwothreefourfivesixsevennineten"}))
    assert sorted(spoken(made, made.rows)) == sorted(
        f"{w}\n" for w in ("one", "two", "three", "four", "six", "nine")
    )
    assert sorted(spoken(made, made.test)) == sorted(
        f"{w}\n" for w in ("five", "seven", "ten")
    )  # the last fifth of each role, at least one
    there = made.rows.y >= 0
    assert torch.equal(
        made.rows.x[:, 1:][there[:, 1:]], made.rows.y[:, :-1][there[:, 1:]]
    )  # each is the next one's past
    assert (made.rows.x[:, 0] == 0).all()  # a line begins after a newline


def test_a_role_is_a_play_s_own_and_needs_two_lines(tmp_path):
    fed = plays(tmp_path).by("role")
    assert fed.parties == ("A: FOOL", "A: KING", "B: KING")  # the other fool says one line
    assert plays(tmp_path, least=3).by("role").parties == ("A: FOOL",)
    assert len(plays(tmp_path, test_fraction=0).test.y) == 0


def test_a_line_longer_than_the_context_continues_in_the_next_row(tmp_path):
    text = b'{"play": "A", "role": "X", "speeches": ["' + b"ab" * 50 + b'", "c"]}'
    made = plays(tmp_path, text)
    assert made.rows.x.shape == (2, 80)
    assert "".join(spoken(made, made.rows)) == "ab" * 50 + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"no json", "line 1 of shakespeare_by_role.jsonl.gz is not a role with speeches"),
        (b'{"play": "A"}', "KeyError: 'speeches'"),
        (b'{"play": "A", "role": "X", "speeches": [1]}', "AttributeError"),
        (b"", "is empty"),
        (b'{"play": "A", "role": "X", "speeches": "to be"}', "speeches is not a list"),
        (b'{"play": "A", "role": "X", "speeches": ["one line"]}', "no role has 2 lines"),
    ],
)
def test_a_file_without_plays_is_refused(tmp_path, text, why):
    with pytest.raises(BadData, match=why):
        plays(tmp_path, text)


def test_plays_others_than_the_published_ones_are_refused(tmp_path):
    formats.write_shakespeare(tmp_path / "shakespeare")
    with pytest.raises(BadData, match="is not the published file"):
        data.shakespeare(data_dir=tmp_path)
    with pytest.raises(
        MissingFiles,
        match=r"missing shakespeare_by_role\.jsonl\.gz\. There is no download address for them\. Put "
        r"it in",
    ):
        data.shakespeare(data_dir=tmp_path / "nowhere")
    with pytest.raises(BadParameter, match="least is 1"):
        data.shakespeare(least=1)
    with pytest.raises(BadParameter, match="test_fraction is 1"):
        data.shakespeare(test_fraction=1)

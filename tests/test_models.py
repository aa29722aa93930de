"""Models by name: the sizes the literature gives, and refusals in one sentence."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import tacit
from tacit import cli, data, models
from tacit.config import job as config
from tacit.errors import BadData, BadJob, BadParameter


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        ("mlp", (784,), 199_210),  # McMahan et al. 2017: 2NN
        ("mlp", (1, 28, 28), 199_210),
        ("cnn", (1, 28, 28), 1_663_370),  # McMahan et al. 2017: CNN
        ("cnn", (3, 32, 32), 62_006),  # NIID-Bench, Li et al. 2021: the LeNet-like CNN on CIFAR-10
        ("logistic", (784,), 7_850),
        (models.MLP((32,)), (64,), 64 * 32 + 32 + 32 * 10 + 10),
    ],
)
def test_parameter_counts_are_those_of_the_literature(model: Any, shape: tuple[int, ...], count: int) -> None:
    assert parameters(models.build(model, shape, 10, seed=0)) == count


def test_the_leaf_lstm_has_its_layers() -> None:
    """LEAF: embedding 8, two layers of 256 over 80 characters. 4·256·(8+256+2) + 4·256·(256+256+2) + 80·8 +
    257·80.
    """
    assert (
        parameters(models.build("lstm", (80,), 80, seed=0)) == 4 * 256 * 266 + 4 * 256 * 514 + 640 + 257 * 80
    )


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("cnn", (1, 8, 8)),
        ("cnn", (1, 28, 28)),
        ("cnn", (3, 32, 32)),
        ("cnn", (2, 4, 5)),
        ("cnn", (3, 17, 30)),
        ("resnet8", (3, 32, 32)),
        ("resnet8", (1, 8, 8)),
        ("mlp", (3, 4, 5)),
        ("logistic", (7,)),
    ],
)
def test_every_model_takes_the_shapes_it_says(model: str, shape: tuple[int, ...]) -> None:
    assert models.build(model, shape, 4, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    "model", ["mlp", lambda: nn.Linear(3, 2), models.MLP((4,))], ids=["name", "factory", "spec"]
)
def test_initial_values_come_from_the_seed_alone_and_leave_the_callers_random_state(model: Any) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    a = models.build(model, (3,), 2, seed=5)
    torch.rand(3)
    torch.set_rng_state(states[0])
    b, other = models.build(model, (3,), 2, seed=5), models.build(model, (3,), 2, seed=6)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), other.parameters()))


def tiny(classes: int = 3) -> data.Federation:
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.normal(size=(30, 4)), rng.integers(0, classes, 30), classes=classes).split(
        2, seed=0
    )


def numbers() -> data.Federation:
    rng = np.random.default_rng(0)
    return data.from_arrays(rng.normal(size=(30, 4)), rng.normal(size=30)).split(2, seed=0)


def pixels() -> data.Federation:
    return data.digits().split(2, seed=0)


def images() -> data.Federation:
    return data.digits(images=True).split(2, seed=0)


def tokens() -> data.Federation:
    return data.from_arrays(np.arange(40).reshape(20, 2), np.arange(20) % 3, tokens=True).split(2)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), x


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("fed", "model", "words"),
    [
        (
            tiny,
            "mpl",
            r"train: model is 'mpl'; it must be one of 'logistic', 'linear', 'mlp', .* Did you mean 'mlp'\?",
        ),
        (
            tiny,
            "cnn",
            r"model 'cnn' needs images of shape \(channels, height, width\) of at least 4×4, and these rows "
            r"have shape \(4,\)\. Use 'mlp'",
        ),
        (tiny, "resnet8", r"model 'resnet8' needs images"),
        (
            tiny,
            nn.Linear(4, 2),
            r"train: model 'linear' returns outputs of shape \(2,\); arrays has 3 classes, so it must return 3 "
            r"logits per row\.",
        ),
        (
            tiny,
            nn.Linear(5, 3),
            r"train: model 'linear' cannot take rows of shape \(4,\): .* Give a model for this data, "
            r"or reshape the rows\.",
        ),
        (
            tiny,
            nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)),
            r"train: model 'sequential' returns probabilities; the loss expects logits, and would apply the "
            r"softmax a second time\. Remove the softmax at its end\.",
        ),
        (
            tiny,
            Two,
            r"train: model 'two' returns a tuple; it must return one tensor, or an object with `logits`",
        ),
        (tiny, lambda: 3, r"it must be a function that returns an nn\.Module\. It returned int\."),
        (
            tiny,
            3,
            r"train: model is 3; it must be one of 'logistic', .* an nn\.Module, or a function that returns "
            r"one\.",
        ),
        (
            tiny,
            nn.Linear,
            r"train: model is 'linear'; it must be a function without arguments that returns an nn\.Module\. "
            r"Calling it failed: ",
        ),
        (tiny, nn.Flatten(), r"train: model 'flatten' has no parameters, so there is nothing to train\."),
        (
            tiny,
            nn.Sequential(nn.LazyLinear(3)),
            r"train: '0.weight', '0.bias' of model 'sequential' have no values before a first batch",
        ),
        (tiny, frozen, r"train: every parameter of model 'frozen' is frozen \(requires_grad=False\)"),
        (tiny, models.MLP((0,)), r"MLP: hidden is \(0,\); it must be whole numbers of at least 1"),
        (
            tiny,
            nn.Linear(4, 3).double(),
            r"Its parameters are torch.float64, and rows are float32: give model.float\(\)\.",
        ),
        (
            tiny,
            nn.Sequential(nn.Embedding(9, 2), nn.Flatten()),
            r"It has an Embedding, .* from_arrays\(…, tokens=True\)\.",
        ),
        (
            tokens,
            "mlp",
            r"The rows are integer tokens: give a model that begins with an Embedding, or load the "
            r"data without tokens=True\.",
        ),
        (
            tiny,
            "lstm",
            r"train: model 'lstm' cannot take rows of shape \(4,\): the model reads integer tokens "
            r"\(from_arrays\(…, tokens=True\)\), and these rows "
            r"contain fractions\. Give a model for this data",
        ),
        (
            pixels,
            "lstm",
            r"train: model 'lstm' cannot take rows of shape \(64,\): the model reads integer tokens",
        ),
        (
            images,
            "lstm",
            r"model 'lstm' needs rows that are sequences of tokens, and these rows have shape \(1, 8, "
            r"8\)\. Use 'cnn' or 'mlp'\.",
        ),
        (
            numbers,
            nn.Linear(4, 2),
            r"returns outputs of shape \(2,\); arrays is a regression, so it must return one number per row\.",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_sentence(fed: Any, model: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        tacit.train(fed(), model=model, rounds=1)


def test_a_log_softmax_at_the_end_changes_nothing() -> None:
    """log softmax of a log softmax is the same again; only a softmax before the loss's own is a mistake."""
    fed, layer = tiny(), nn.Linear(4, 3)
    plain, twice = (
        tacit.train(fed, model=nn.Sequential(layer, *end), rounds=2).metrics["loss"]
        for end in ((), (nn.LogSoftmax(-1),))
    )
    assert twice == pytest.approx(plain, rel=1e-5)


def test_a_width_that_eight_groups_cannot_share_is_refused() -> None:
    with pytest.raises(BadParameter, match=r"ResNet8: width is 12; it must be a multiple of 8"):
        models.build(models.ResNet8(12), (3, 8, 8), 2, 0)
    with pytest.raises(BadParameter, match=r"ResNet8: width is 4; it must be a whole number of at least 8\."):
        models.build(models.ResNet8(4), (3, 8, 8), 2, 0)


def pictures(n: int = 400, side: int = 9) -> torch.Tensor:
    """Every pixel of a picture is another number, so that where it came from can be read off."""
    return (
        (torch.arange(side * side, dtype=torch.float32) + 1)
        .view(1, 1, side, side)
        .expand(n, 2, side, side)
        .clone()
    )


def test_crops_are_those_of_a_mirrored_border_and_every_one_occurs_equally_often() -> None:
    torch.manual_seed(0)
    x = pictures(6000)
    out = models.CropFlip(crop=1, flip=True)(x)
    wide = torch.nn.functional.pad(x[:1], (1, 1, 1, 1), mode="reflect")
    allowed = {}
    for i in range(3):
        for j in range(3):
            piece = wide[0, :, i : i + 9, j : j + 9]
            allowed[tuple(piece[0].flatten().tolist())] = (i, j, 0)
            allowed[tuple(piece[0].flip(1).flatten().tolist())] = (i, j, 1)
    assert len(allowed) == 18
    assert torch.equal(out[:, 0], out[:, 1])  # all channels move together
    found = [
        allowed[tuple(p.flatten().tolist())] for p in out[:, 0]
    ]  # a KeyError would be a picture that no crop gives
    counts = np.unique(np.array(found), axis=0, return_counts=True)[1]
    assert len(counts) == 18
    assert (
        (counts - 6000 / 18) ** 2 / (6000 / 18)
    ).sum() < 52  # chi-square of 17 degrees: less than one in 50,000, and the seed is fixed


def test_a_model_at_rest_sees_pictures_as_they_are() -> None:
    x = pictures(5)
    assert torch.equal(models.CropFlip(4).eval()(x), x)
    plain, shaken = (models.build(models.CNN(crop=c), (2, 9, 9), 3, seed=1).eval() for c in (0, 4))
    assert torch.equal(plain(x), shaken(x))


def test_crops_are_the_same_stacked_one_by_one_and_over_messages() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 90)
    fed = data.from_arrays(x, y, test=(x[:20], y[:20]), classes=3).split(3, skew=data.Quantity(1.0), seed=0)

    def trained(crop: int = 2, **how: Any) -> torch.Tensor:
        run = tacit.train(
            fed, model=models.CNN(crop=crop, flip=crop > 0), rounds=2, batch_size=8, seed=4, **how
        )
        return torch.cat([p.detach().flatten() for p in run.model.parameters()])

    stacked = trained(engine="stack")
    assert torch.allclose(stacked, trained(engine="each"), atol=1e-6)
    assert torch.allclose(stacked, trained(runtime="inprocess"), atol=1e-6)
    assert not torch.allclose(stacked, trained(crop=0), atol=1e-3)  # and they do something


def test_a_crop_wider_than_the_picture_is_refused() -> None:
    with pytest.raises(BadParameter, match="fewer pixels than the 8 of an image's side"):
        models.build(models.CNN(crop=8), (1, 8, 8), 3, seed=0)
    with pytest.raises(ValueError, match="cannot be shifted by 9 pixels"):
        models.CropFlip(9)(pictures(1))


# --- what starts from a file ---


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = tacit.train(data.iris().split(3), model="logistic", rounds=5)
    save_file({k: v.contiguous() for k, v in run.model.state_dict().items()}, tmp_path / "start.safetensors")
    (tmp_path / "job.toml").write_text(
        '[data]\nname = "iris"\nparties = 3\n[model]\nname = "logistic"\nweights = '
        '"start.safetensors"\n[train]\nrounds = 2\n'
    )
    return tmp_path


def test_a_job_file_starts_from_weights_like_a_given_module(saved: Path) -> None:
    fed = data.iris().split(3)
    module = models.build("logistic", (4,), 3, seed=9)
    module.load_state_dict(load_file(saved / "start.safetensors"))
    job = config.load(saved / "job.toml")
    told, given = tacit.train(fed, **job.train()), tacit.train(fed, model=module, rounds=2)
    assert all(
        torch.equal(a, b) for a, b in zip(told.model.state_dict().values(), given.model.state_dict().values())
    )
    sha256 = hashlib.sha256((saved / "start.safetensors").read_bytes()).hexdigest()
    assert told.config["model"] == {
        "name": "logistic",
        "weights": str(saved / "start.safetensors"),
        "sha256": sha256,
    }
    assert config.from_tables(job.resolved()) == job


def test_a_run_resumes_with_the_same_weights_only(saved: Path) -> None:
    job = config.load(saved / "job.toml")
    tacit.train(job.federations()[0], **job.train(), out=saved / "run")
    again = config.of_run(saved / "run")
    assert (
        tacit.train(again.federations()[0], **again.train(), out=saved / "run", resume=True).history[-1][
            "round"
        ]
        == 2
    )
    save_file({"1.weight": torch.zeros(3, 4), "1.bias": torch.zeros(3)}, saved / "start.safetensors")
    with pytest.raises(
        BadJob,
        match=r"job.toml, model, weights: the sha256 of .*start.safetensors is",
    ):
        config.of_run(saved / "run")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: f.unlink(),
            r"job.toml, model, weights: there is no file .*start.safetensors. Use a safetensors file",
        ),
        (lambda f: f.write_bytes(f.read_bytes()[:-8]), "is not a complete safetensors file"),
        (
            lambda f: torch.save({"1.bias": torch.zeros(3)}, f),
            r"is not a complete safetensors file: .* pickles \(.pt\) are not read",
        ),
        (
            lambda f: save_file({"1.weight": torch.zeros(3, 5), "1.bias": torch.zeros(3)}, f),
            r"has 1.weight of shape \(3, 5\), and this model, .* \(3, 4\)",
        ),
        (
            lambda f: save_file({"1.weight": torch.zeros(3, 4)}, f),
            "has no 1.bias, and this model, for these rows, has 1.bias of shape",
        ),
        (
            lambda f: save_file(
                {"1.weight": torch.zeros(3, 4), "1.bias": torch.zeros(3), "x": torch.zeros(1)}, f
            ),
            r"has x of shape \(1,\), .* has no x",
        ),
    ],
    ids=["missing", "torn", "pickle", "shape", "less", "more"],
)
def test_weights_that_do_not_fit_are_refused_and_leave_no_run(saved: Path, change: Any, said: str) -> None:
    change(saved / "start.safetensors")
    with pytest.raises((BadJob, BadData), match=said):
        tacit.train(data.iris().split(3), **config.load(saved / "job.toml").train(), out=saved / "run")
    assert not (saved / "run").exists()


def test_weights_are_refused_where_they_would_not_be_used(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = models.Pretrained(models.Logistic(), str(saved / "start.safetensors"))
    for given, said in (
        (
            dict(model=start, runtime="inprocess"),
            "runtime: it is 'inprocess', and the model starts from a file",
        ),
        (
            dict(model=models.Pretrained("mlp", start.weights)),
            "spec is 'mlp'; it must be one of tacit's models",
        ),
    ):
        with pytest.raises(BadParameter, match=said):
            tacit.train(data.iris().split(3), rounds=1, **given)
    for model, said in (
        ({"name": "mlp", "sha256": "00"}, "sha256 is of `weights`, and there are none"),
        ({"name": "mlp", "weights": 3}, "weights is 3; it must be text"),
    ):
        with pytest.raises(BadJob, match=said):
            config.from_tables({"data": {"name": "iris", "parties": 3}, "model": model})
    head = (saved / "job.toml").read_text().partition("[train]")[0]
    (saved / "pate.toml").write_text(head)
    (saved / "study.toml").write_text(head + '[[tables]]\n[[tables.rows]]\nlabel = "FedAvg"\n')
    for verb in ("pate", "study"):
        assert cli.main([verb, str(saved / f"{verb}.toml"), "--out", str(saved / "made")]) == 2
        assert "weights are for `tacit run` and `tacit compare`" in capsys.readouterr().err

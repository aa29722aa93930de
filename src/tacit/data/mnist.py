"""MNIST and Fashion-MNIST, and their file format IDX: a big-endian header with the shape, then bytes.

Y. LeCun, C. Cortes, C. Burges 1998; H. Xiao, K. Rasul, R. Vollgraf 2017.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from ..errors import BadData
from ..parameters import bad
from .federation import Dataset, Rows
from .sources import Published, contents, folders


def _file(mirrors: tuple[str, ...], name: str, sha256: str, inside: str = "") -> Published:
    return Published(name, sha256, inside, tuple(mirror + name for mirror in mirrors))


_MNIST = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION = (
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
MNIST_FILES = (
    _file(
        _MNIST,
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _file(
        _MNIST,
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _file(
        _MNIST,
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _file(
        _MNIST,
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_FILES = (
    _file(
        _FASHION,
        "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    _file(
        _FASHION,
        "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    _file(
        _FASHION,
        "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    _file(
        _FASHION,
        "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
CLOTHES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def mnist(
    scale: str = "unit",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits of 28×28 pixels.

    Images are [N, 1, 28, 28]; `scale` is "unit" (to [0, 1]), "half" (to [−1, 1]) or "standard", which uses
    the training set's mean and standard deviation (.1307, .3081).
    """
    standard, also = ([0.1307], [0.3081]), ("MNIST/raw",)
    return _load("mnist", MNIST_FILES, tuple("0123456789"), scale, standard, data_dir, also, verify, download)


def fashion_mnist(
    scale: str = "unit",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images of clothes, 28×28 pixels.

    Images are [N, 1, 28, 28]; `scale` is "unit" (to [0, 1]), "half" (to [−1, 1]) or "standard", which uses
    the training set's mean and standard deviation (.2860, .3530).
    """
    standard, also = ([0.2860], [0.3530]), ("FashionMNIST/raw",)
    return _load("fashion_mnist", FASHION_FILES, CLOTHES, scale, standard, data_dir, also, verify, download)


def _load(
    name: str,
    files: tuple[Published, ...],
    labels: tuple[str, ...],
    scale: str,
    standard: tuple[list[float], list[float]],
    data_dir: str | os.PathLike[str] | None,
    also: tuple[str, ...],
    verify: bool,
    download: bool,
) -> Dataset:
    """Load images [N, 1, H, W] and labels from four IDX files, for training and test."""
    x, y, xt, yt = (
        parse(f"{name}: {f.name}", data)
        for f, data in zip(files, contents(name, files, folders(name, data_dir, also), verify, download))
    )
    for pixels, marks in ((x, y), (xt, yt)):
        if (
            len(pixels) != len(marks)
            or pixels.ndim != 3
            or marks.ndim != 1
            or marks.max(initial=0) >= len(labels)
        ):
            raise BadData(
                f"{name}: images of shape {pixels.shape} and labels of shape {marks.shape} do not fit. Get "
                "all four files again."
            )
    rows, test = (
        Rows(scale_pixels(p[:, None], scale, standard), torch.from_numpy(m.astype(np.int64)))
        for p, m in ((x, y), (xt, yt))
    )
    return Dataset(name, rows, test, len(labels), labels=labels)


def parse(name: str, data: bytes) -> np.ndarray:
    """Return the array of unsigned bytes in an IDX file."""
    if len(data) < 8 or data[:3] != b"\x00\x00\x08":
        raise BadData(
            f"{name} is not an IDX file of bytes: it starts with {data[:4].hex() or 'nothing'}, not 000008. "
            "Get the file again."
        )
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if body.size != np.prod(shape):
        raise BadData(
            f"{name} says it holds {'×'.join(map(str, shape))} bytes and has {body.size}. It is truncated; "
            "get the file again."
        )
    return body.reshape(shape)


def scale_pixels(pixels: np.ndarray, scale: str, standard: tuple[list[float], list[float]]) -> torch.Tensor:
    """Scale bytes [N, C, H, W] to [0, 1], to [−1, 1], or by mean and deviation."""
    if scale not in ("unit", "half", "standard"):
        raise bad("scale", "scale", scale, "one of 'unit', 'half', 'standard'")
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255)
    if scale == "unit":
        return x
    mean, std = ([0.5], [0.5]) if scale == "half" else standard
    return x.sub_(torch.tensor(mean)[None, :, None, None]).div_(torch.tensor(std)[None, :, None, None])

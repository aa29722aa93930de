"""Fashion-MNIST: 60,000 + 10,000 images of clothes, 28×28 pixels.

H. Xiao, K. Rasul, R. Vollgraf 2017.
"""

from __future__ import annotations

import os

from .federation import Dataset
from .idx import images
from .sources import Published

_MIRRORS = (
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)


def _file(name: str, sha256: str) -> Published:
    return Published(name, sha256, "", tuple(mirror + name for mirror in _MIRRORS))


FILES = (
    _file("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    _file("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    _file("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    _file("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
LABELS = (
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


def fashion_mnist(
    scale: str = "unit",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """Load [N, 1, 28, 28]; `scale` is "unit" (to [0, 1]), "half" (to [−1, 1]) or "standard".

    "standard" uses the training set's mean and standard deviation (.2860, .3530.).
    """
    return images(
        "fashion_mnist",
        FILES,
        LABELS,
        scale,
        ([0.2860], [0.3530]),
        data_dir,
        ("FashionMNIST/raw",),
        verify,
        download,
    )

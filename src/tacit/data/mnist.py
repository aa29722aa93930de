"""MNIST: 60,000 + 10,000 handwritten digits of 28×28 pixels.

Y. LeCun, C. Cortes, C. Burges 1998.
"""

from __future__ import annotations

import os

from .federation import Dataset
from .idx import images
from .sources import Published

_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


def _file(name: str, sha256: str, inside: str) -> Published:
    return Published(name, sha256, inside, tuple(mirror + name for mirror in _MIRRORS))


FILES = (
    _file(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _file(
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _file(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _file(
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def mnist(
    scale: str = "unit",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """Load [N, 1, 28, 28]; `scale` is "unit" (to [0, 1]), "half" (to [−1, 1]) or "standard".

    "standard" uses the training set's mean and standard deviation (.1307, .3081.).
    """
    return images(
        "mnist",
        FILES,
        tuple("0123456789"),
        scale,
        ([0.1307], [0.3081]),
        data_dir,
        ("MNIST/raw",),
        verify,
        download,
    )

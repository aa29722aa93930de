"""CIFAR-10, from the files in which it is found (A. Krizhevsky 2009).

Read from the first of these forms that is in the folder:
    data_batch_1.bin …, test_batch.bin        the binary version
    data_batch_1.webp …, labels.npz           the same images as lossless mosaics of tiles (needs Pillow)
    data_batch_1 …, test_batch                the Python version
    cifar-10-binary.tar.gz                    the archive as published and downloaded
The Python version is a pickle, and loading a pickle can execute arbitrary code. It is not loaded:
`pickletools` lists its instructions without executing them, and the pixels (the one long string) and the
numbers after 'labels' are taken from the list.
"""

from __future__ import annotations

import io
import os
import pickletools
import tarfile
from pathlib import Path

import numpy as np
import torch

from ..errors import BadData, MissingExtra
from .federation import Dataset, Rows
from .mnist import scale_pixels
from .sources import Published, confirm, fetch, folders

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE = Published(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
BATCHES = {  # md5 of the binary and of the python version, as published
    "data_batch_1": ("5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
    "data_batch_2": ("5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
    "data_batch_3": ("942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
    "data_batch_4": ("ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
    "data_batch_5": ("53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
    "test_batch": ("803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),
}
CHANNELS = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])  # of the training set
ROW = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane


def cifar10(
    scale: str = "unit",
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 color images of 32×32 pixels, ten classes.

    Images are [N, 3, 32, 32]; `scale` is "unit" (to [0, 1]), "half" (to [−1, 1]) or "standard", which uses
    the training set's mean and standard deviation of each channel.
    """
    places = folders("cifar10", data_dir, ("cifar-10-batches-bin", "cifar-10-batches-py"))
    batches = _read_batches(places, verify)
    if batches is None:
        fetch("cifar10", (ARCHIVE,), places, download)
        batches = _archive(places[0] / ARCHIVE.name, verify)
    *train, test = batches
    rows, tested = (
        Rows(
            scale_pixels(b[:, 1:].reshape(-1, 3, 32, 32), scale, CHANNELS),
            torch.from_numpy(b[:, 0].astype(np.int64)),
        )
        for b in (np.concatenate(train), test)
    )
    return Dataset("cifar10", rows, tested, 10, labels=LABELS)


def _read_batches(places: list[Path], verify: bool) -> list[np.ndarray] | None:
    """Read six batches of rows [label, pixels] from the first place and form that has them all."""
    for folder in places:
        if all((folder / f"{name}.bin").is_file() for name in BATCHES):
            return [
                _binary(folder / f"{name}.bin", (folder / f"{name}.bin").read_bytes(), md5 if verify else "")
                for name, (md5, _) in BATCHES.items()
            ]
        if all((folder / f"{name}.webp").is_file() for name in BATCHES) and (folder / "labels.npz").is_file():
            return _mosaics(folder, verify)
        if all((folder / name).is_file() for name in BATCHES):
            return [_python(folder / name, md5 if verify else "") for name, (_, md5) in BATCHES.items()]
        if (folder / ARCHIVE.name).is_file():
            return _archive(folder / ARCHIVE.name, verify)
    return None


def _binary(path: Path, data: bytes, md5: str) -> np.ndarray:
    if md5:
        confirm("cifar10", path, data, md5)
    if not data or len(data) % ROW:
        raise BadData(
            f"cifar10: {path} has {len(data)} bytes, not a multiple of {ROW}. It is truncated; get the file "
            "again."
        )
    return _check_labels(path, np.frombuffer(data, np.uint8).reshape(-1, ROW))


def _check_labels(path: Path, batch: np.ndarray) -> np.ndarray:
    if batch[:, 0].max() >= len(LABELS):
        raise BadData(
            f"cifar10: {path} has the label {batch[:, 0].max()}; labels go from 0 to 9. Get the file again."
        )
    return batch


def _mosaics(folder: Path, verify: bool) -> list[np.ndarray]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("reading cifar10 from .webp mosaics", "data", "pillow") from None
    with np.load(folder / "labels.npz", allow_pickle=False) as marks:
        train, test = marks["train"], marks["test"]
    batches, used = [], 0
    for name, (md5, _) in BATCHES.items():
        path = folder / f"{name}.webp"
        with Image.open(path) as picture:
            mosaic = np.asarray(picture.convert("RGB"))
        down, across = mosaic.shape[0] // 32, mosaic.shape[1] // 32
        tiles = (
            mosaic.reshape(down, 32, across, 32, 3).transpose(0, 2, 4, 1, 3).reshape(down * across, ROW - 1)
        )
        labels = test if name == "test_batch" else train[used : used + len(tiles)]
        used += len(tiles)
        if len(labels) != len(tiles):
            raise BadData(
                f"cifar10: {path} has {len(tiles)} pictures and labels.npz {len(labels)} labels for them. "
                "Get both again."
            )
        batch = np.concatenate([labels[:, None].astype(np.uint8), tiles], axis=1)
        if verify:
            confirm(
                "cifar10", path, batch.tobytes(), md5
            )  # unpacked, it must be the published binary batch to the byte
        batches.append(_check_labels(path, batch))
    return batches


def _python(path: Path, md5: str) -> np.ndarray:
    data = path.read_bytes()
    if md5:
        confirm("cifar10", path, data, md5)
    pixels, labels, reading = b"", [], False
    try:
        for code, value, _ in pickletools.genops(io.BytesIO(data)):
            if isinstance(value, str | bytes) and code.name != "GLOBAL":
                text = value.encode("latin-1", "replace") if isinstance(value, str) else value
                pixels = max(pixels, text, key=len)
                # 'latin1' is how Python 3 writes the key's bytes in an old protocol; it stands between the
                # key and its list
                reading = text == b"labels" or (reading and text == b"latin1")
            elif reading and code.name in ("BININT", "BININT1", "BININT2", "INT", "LONG1"):
                labels.append(int(str(value)))
    except ValueError as error:
        raise BadData(
            f"cifar10: {path} is not a Python batch ({error}). Get it again, or use cifar-10-binary.tar.gz."
        ) from None
    if not labels or len(pixels) != len(labels) * (ROW - 1):
        raise BadData(
            f"cifar10: {path} has {len(labels)} labels and {len(pixels)} bytes of pixels, which do not fit. "
            "Get it again, or use cifar-10-binary.tar.gz."
        )
    tiles = np.frombuffer(pixels, np.uint8).reshape(len(labels), ROW - 1)
    return _check_labels(path, np.concatenate([np.array(labels, dtype=np.uint8)[:, None], tiles], axis=1))


def _archive(path: Path, verify: bool) -> list[np.ndarray]:
    try:
        with tarfile.open(path) as tar:  # members are read in place; nothing is unpacked onto the disk
            members = {Path(m.name).name: m for m in tar.getmembers() if m.isfile()}
            files = {name: tar.extractfile(members[f"{name}.bin"]) for name in BATCHES}
            return [
                _binary(path / f"{name}.bin", file.read(), BATCHES[name][0] if verify else "")
                for name, file in files.items()
                if file
            ]
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise BadData(
            f"cifar10: {path} is not a complete cifar-10-binary.tar.gz ({error}). Delete it and get it again."
        ) from None

"""Small files in the real formats of published data sets, for tests on machines that do not have the real
ones.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
TILES = 4  # pictures a CIFAR batch; a square number, for the mosaic


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        b"\x00\x00\x08"
        + bytes([array.ndim])
        + np.array(array.shape, ">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )


def write_idx(folder: Path, packed: bool, rows: int = 40) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for name in IDX:
        arrays[name] = rng.integers(0, 256, (rows, 28, 28)) if "images" in name else np.arange(rows) % 10
        data = idx_bytes(arrays[name])
        (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)
    return arrays


def cifar_batches() -> dict[str, np.ndarray]:
    """Rows [label, 3072 pixels]."""
    rng = np.random.default_rng(1)
    made = {}
    for i, name in enumerate(BATCHES):
        pixels = rng.integers(0, 256, (TILES, 3072))
        made[name] = np.concatenate([((np.arange(TILES) + TILES * i) % 10)[:, None], pixels], axis=1).astype(
            np.uint8
        )
    return made


def write_cifar_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in cifar_batches().items():
        (folder / f"{name}.bin").write_bytes(batch.tobytes())


def write_cifar_webp(folder: Path) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    side = round(TILES**0.5)
    batches = cifar_batches()
    for name, batch in batches.items():
        tiles = (
            batch[:, 1:]
            .reshape(side, side, 3, 32, 32)
            .transpose(0, 3, 1, 4, 2)
            .reshape(32 * side, 32 * side, 3)
        )
        Image.fromarray(tiles).save(folder / f"{name}.webp", lossless=True, exact=True)
    train = np.concatenate([batches[name][:, 0] for name in BATCHES[:5]])
    np.savez(folder / "labels.npz", train=train, test=batches["test_batch"][:, 0])


def write_cifar_python(folder: Path, protocol: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in cifar_batches().items():
        pixels = np.ascontiguousarray(batch[:, 1:])
        value = {
            b"batch_label": name.encode(),
            b"labels": batch[:, 0].tolist(),
            b"data": pixels,
            b"filenames": [b"a.png"],
        }
        (folder / name).write_bytes(pickle.dumps(value, protocol=protocol))


def write_cifar_archive(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, batch in cifar_batches().items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = batch.nbytes
            tar.addfile(member, io.BytesIO(batch.tobytes()))


def write_shakespeare(folder: Path, text: bytes | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    said = [
        ("A", "FOOL", ["one\ntwo\nthree", "four\nfive"]),
        ("A", "KING", ["six", "", "seven"]),
        ("B", "FOOL", ["eight"]),
        ("B", "KING", ["nine\nten"]),
    ]
    lines = [json.dumps({"play": play, "role": role, "speeches": speeches}) for play, role, speeches in said]
    (folder / "shakespeare_by_role.jsonl.gz").write_bytes(
        gzip.compress("\n".join(lines).encode() if text is None else text)
    )


def write_adult(folder: Path, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rich = (
        "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Not-in-family, White, Male, 2174, 0, 40, "
        "United-States, >50K"
    )
    poor = "50, Private, 83311, HS-grad, 9, Divorced, Sales, Husband, Black, Female, 0, 0, 13, ?, <=50K"
    train = "\n".join([rich, poor] * 10) + "\n\n"
    test = "|1x3 Cross validator\n" + "\n".join([rich + ".", poor + "."] * 4) + "\n"
    for name, text in (("adult.data", train), ("adult.test", test)):
        data = text.encode()
        (folder / (name + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)

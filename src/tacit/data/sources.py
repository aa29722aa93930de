"""Files of published data sets: find them, verify them, download them.

They are searched in DIR/<name>/ and DIR, where DIR is `data_dir` or the environment variable TACIT_DATA;
without either, in the user's cache. They may be packed (.gz). A missing file is downloaded if the network
allows, and kept only if its sha256 is the published one.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadData, MissingFiles
from ..progress import Progress

TIMEOUT = 20  # seconds without a byte before the next mirror is tried
CHUNK = 1 << 18


@dataclass(frozen=True)
class Published:
    """A published file.

    `inside` is the checksum of the unpacked bytes, which repacking does not change.
    """

    name: str
    sha256: str = ""
    inside: str = ""
    urls: tuple[str, ...] = ()


def folders(dataset: str, data_dir: str | os.PathLike[str] | None, also: tuple[str, ...] = ()) -> list[Path]:
    """Return the folders in which the files of a data set are searched, in order."""
    directory = data_dir if data_dir is not None else os.environ.get("TACIT_DATA")
    if directory:
        root = Path(directory).expanduser()
        return [root / dataset, root, *(root / a for a in also), *(root / dataset / a for a in also)]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [cache / "tacit" / dataset, *(cache / "tacit" / dataset / a for a in also)]


def find(name: str, places: list[Path]) -> Path | None:
    """Find a file by its name, with or without .gz."""
    other = name.removesuffix(".gz") if name.endswith(".gz") else name + ".gz"
    for folder in places:
        for candidate in (folder / name, folder / other):
            if candidate.is_file():
                return candidate
    return None


def contents(
    dataset: str, files: tuple[Published, ...], places: list[Path], verify: bool, download: bool
) -> list[bytes]:
    """Return the unpacked bytes of all files, or raise an error that says which to put where."""
    paths = [find(f.name, places) for f in files]
    if None in paths:
        absent = tuple(f for f, path in zip(files, paths) if path is None)
        fetch(dataset, absent, places, download)
        paths = [find(f.name, places) for f in files]
    return [read(dataset, f, path, verify) for f, path in zip(files, paths) if path is not None]


def read(dataset: str, file: Published, path: Path, verify: bool) -> bytes:
    """Return the unpacked bytes of one file, after comparing the checksum."""
    data = path.read_bytes()
    packed = path.suffix == ".gz"
    try:
        plain = gzip.decompress(data) if packed else data
    except (OSError, EOFError) as error:
        raise BadData(
            f"{dataset}: {path} cannot be unpacked ({error}): truncated, or not a gzip file. Delete it and "
            "get it again."
        ) from None
    if verify:
        if file.inside:
            confirm(dataset, path, plain, file.inside)
        elif file.sha256 and path.name == file.name:
            confirm(dataset, path, data, file.sha256)
    return plain


def confirm(dataset: str, path: Path | str, data: bytes, published: str) -> None:
    """Raise BadData if the md5 or sha256 (by its length) is not the published one."""
    algorithm = "md5" if len(published) == 32 else "sha256"
    digest = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    if digest != published:
        raise BadData(
            f"{dataset}: {path} is not the published file: its {algorithm} is {digest}, not {published}. "
            "Delete it and get it again, or pass verify=False if it is a file of your own in the same format."
        )


def fetch(dataset: str, files: tuple[Published, ...], places: list[Path], download: bool) -> None:
    """Download the files into the first folder, or say which files to put where."""
    why = "Downloading was turned off."
    for file in files if download else ():
        reasons = []
        for url in file.urls:
            try:
                download_file(dataset, url, places[0] / file.name, file.sha256)
                break
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                reasons.append(f"{url}: {getattr(error, 'reason', error)}")
        else:
            why = (
                f"The download failed ({'; '.join(reasons)})."
                if reasons
                else "There is no download address for them."
            )
            raise missing(dataset, files, places, why)
    if not download:
        raise missing(dataset, files, places, why)


def missing(dataset: str, files: tuple[Published, ...], places: list[Path], why: str) -> MissingFiles:
    names = ", ".join(f.name for f in files)
    pages = sorted({url.rsplit("/", 1)[0] + "/" for f in files for url in f.urls[:1]})
    return MissingFiles(
        f"{dataset}: missing {names}. {why} Put {'it' if len(files) == 1 else 'them'} in {places[0]}"
        + (f" (published at {', '.join(pages)})" if pages else "")
        + f", or name the folder that has {dataset}/ in it: data_dir=…, --data-dir or TACIT_DATA."
    )


def download_file(dataset: str, url: str, target: Path, sha256: str) -> None:
    """Download into NAME.part, resuming an earlier try.

    NAME appears only complete and verified.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the part is already as long as the file, or longer
            raise
        answer = None
    if answer is not None:
        with answer:
            resumed = answer.status == 206
            length = int(answer.headers.get("Content-Length") or 0) + (have if resumed else 0)
            with (
                part.open("ab" if resumed else "wb") as out,
                Progress(count_bytes=True) as progress,
            ):
                progress.start(target.name, length or None, have if resumed else 0)
                while block := answer.read(CHUNK):
                    out.write(block)
                    progress.update(out.tell())
        if length and part.stat().st_size < length:
            raise ConnectionError(
                f"the connection ended after {part.stat().st_size} of {length} bytes; try again to resume "
                "from there"
            )
    try:
        confirm(dataset, url, part.read_bytes(), sha256)
    except BadData:
        part.unlink()  # resuming from wrong bytes would fail again
        raise
    os.replace(part, target)

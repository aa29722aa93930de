"""tacit doctor: what is installed on this machine, and whether it computes correctly."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import platform
import re
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from ..report.numbers import size


def examine() -> dict[str, Any]:
    """Return all findings as plain values; `lines` formats them."""
    import torch

    import tacit

    from .. import data

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})  # not on Windows
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    cards = (
        [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    gpus = [{"name": card.name, "memory": card.total_memory} for card in cards]
    extras = {name: [p for p in packages if not _installed(p)] for name, packages in extra_packages().items()}
    places = {name: place_of(name) for name in data.ALL}
    test = self_test()
    missing = {
        name: f"missing {', '.join(absent)}: pip install 'tacit[{name}]'"
        for name, absent in extras.items()
        if absent
    }
    lines = [
        ("tacit", tacit.__version__),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", torch.__version__),
        ("cores", str(cores)),
        ("memory", size(memory)),
        (
            "gpu",
            ", ".join(f"{g['name']} ({size(g['memory'])})" for g in gpus)
            or 'none found by torch; using device="cpu"',
        ),
        *((f"extra {name}", missing.get(name, "installed")) for name in extras),
        ("data here", ", ".join(name for name, place in places.items() if place["found"])),
        *((f"data {name}", place["text"]) for name, place in places.items() if not place["found"]),
        (
            "self-test",
            f"passed: {test['text']}"
            if test["ok"]
            else f"FAILED: {test['text']}. Reinstall tacit and torch in a new environment; if it "
            "stays, report it with these lines.",
        ),
    ]
    return {
        "tacit": tacit.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": torch.__version__,
        "cores": cores,
        "memory": memory,
        "gpus": gpus,
        "missing_extras": extras,
        "data": places,
        "self_test": test,
        "lines": lines,
    }


def extra_packages() -> dict[str, list[str]]:
    """Return the optional packages by extra.

    They come from the installed metadata, or from pyproject.toml in a source checkout.
    """
    try:
        requirements = [
            (r.split(";")[0], match[1])
            for r in importlib.metadata.requires("tacit") or []
            if (match := re.search(r"extra\s*==\s*['\"](.+?)['\"]", r))
        ]
    except importlib.metadata.PackageNotFoundError:
        file = Path(__file__).parents[3] / "pyproject.toml"
        tables = (
            tomllib.loads(file.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
            if file.is_file()
            else {}
        )
        requirements = [(package, extra) for extra, packages in tables.items() for package in packages]
    extras: dict[str, list[str]] = {}
    for package, extra in requirements:
        name = re.split(r"[^\w.-]", package.strip())[0]
        if extra != "dev" and name != "tacit":  # dev is for developers of tacit
            extras.setdefault(extra, []).append(name)
    return extras


def place_of(name: str, data_dir: str | None = None) -> dict[str, Any]:
    """Return where a data set's files are.

    They are not read, which would take seconds and gigabytes for large ones.
    """
    from .. import data
    from ..data.sources import folders

    options = inspect.signature(data.ALL[name]).parameters
    shipped = (Path(data.__file__).parent / "files" / name).is_dir()
    if "data_dir" not in options or shipped:
        return {"found": True, "folder": None, "text": "needs none"}
    first = folders(name, data_dir)[0]
    has_files = first.is_dir() and any(first.iterdir())
    text = (
        f"in {first}"
        if has_files
        else f"not in {first}; "
        f"{'downloaded when first used' if 'download' in options else 'put its file there'}, or set "
        "TACIT_DATA"
    )
    return {"found": has_files, "folder": str(first), "text": text}


def self_test() -> dict[str, Any]:
    """Check that FedAvg with one full-batch step equals FedSGD over two rounds.

    On the CPU, and on the GPU if there is one.
    """
    import torch

    import tacit

    from .. import algorithms, data

    began = time.perf_counter()
    fed = data.gaussian_blobs(rows=200, seed=1).split(4, skew=data.Dirichlet(1.0), seed=1)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    try:
        results = [
            tacit.train(fed, model="logistic", algorithm=a, rounds=2, batch_size=None, device=d)
            for d in devices
            for a in (algorithms.FedAvg(lr=0.1), algorithms.FedSGD(lr=0.1))
        ]
        models = [torch.cat([p.detach().flatten().cpu() for p in r.model.parameters()]) for r in results]
    except Exception as error:  # any error is a finding
        return {
            "ok": False,
            "text": f"training stopped with {type(error).__name__}: {error}",
            "seconds": time.perf_counter() - began,
        }
    apart = max(float((m - models[0]).abs().max()) for m in models)
    ok = apart < 1e-4
    text = (
        f"FedAvg with one full step {'equals' if ok else 'differs from'} FedSGD on "
        f"{' and '.join(devices)} (apart by {apart:.1e})"
    )
    return {"ok": ok, "text": text, "seconds": time.perf_counter() - began}


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

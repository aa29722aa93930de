"""Search the memory of a party's own process for bytes, after its program has ended."""

from __future__ import annotations

import gc
import importlib
import json
from typing import Any

import numpy as np

SHIFT = 17  # patterns are given with this added to each byte, so that they are not themselves in memory


def shift(pattern: bytes) -> bytes:
    return bytes((b + SHIFT) % 256 for b in pattern)


def _is_own(words: list[str]) -> bool:
    """Whether an area is the heap, a stack or anonymous, and not the data of a library."""
    return len(words) < 6 or words[5] in ("[heap]", "[stack]")


def find(patterns: list[bytes]) -> list[bool]:
    """Which patterns (shifted) are in the writable memory of this process."""
    found = [False] * len(patterns)
    longest = max(map(len, patterns))
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        areas = [words for words in map(str.split, maps) if words[1].startswith("rw") and _is_own(words)]
        for area in areas:
            start, end = (int(v, 16) for v in area[0].split("-"))
            for at in range(start, end, 1 << 24):
                try:
                    memory.seek(at)
                    chunk = memory.read(min((1 << 24) + longest, end - at))
                except (OSError, ValueError, OverflowError):
                    continue  # guard pages and device memory cannot be read
                shifted = (np.frombuffer(chunk, np.uint8) + np.uint8(SHIFT)).tobytes()
                for k, pattern in enumerate(patterns):
                    found[k] = found[k] or pattern in shifted
    return found


async def scan_after(me: Any, program: str, patterns: list[bytes], **settings: Any) -> dict[str, Any]:
    """Run `program` (module:function); return which patterns are in memory then, with its result as text."""
    module, name = program.split(":")
    result = await getattr(importlib.import_module(module), name)(me, **settings)
    text = json.dumps(result)
    gc.collect()
    return {"size": len(text), "found": find(patterns)}

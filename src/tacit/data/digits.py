"""Digits: 1,797 handwritten digits of 8×8 pixels.

E. Alpaydin, C. Kaynak 1998; the copy in scikit-learn.
"""

from __future__ import annotations

from .arrays import load_bundled
from .federation import Dataset


def digits(images: bool = False, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """64 pixels / 16, so in [0, 1], and ten labels; `images=True` gives [N, 1, 8, 8]."""
    return load_bundled(
        "digits", "load_digits", test_fraction, seed, scale=16, shape=(1, 8, 8) if images else ()
    )

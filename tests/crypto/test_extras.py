"""Without an extra, the error is its install line."""

from __future__ import annotations

import sys

import pytest

from tacit.crypto import agree, ckks, prg
from tacit.errors import MissingExtra


def test_without_cryptography_the_error_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for call in (lambda: prg.stream(bytes(32), 1, 8), lambda: agree.public_of(bytes(32)), lambda: agree.seal(bytes(32), b"", b"", bytes)):
        with pytest.raises(MissingExtra, match=r"secure aggregation needs the package 'cryptography', .* pip install 'tacit\[secagg\]'"):
            call()


def test_without_tenseal_the_error_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(MissingExtra, match=r"Encrypt needs the package 'tenseal', which is not installed\. Install it with: pip install 'tacit\[he\]'"):
        ckks.secret()

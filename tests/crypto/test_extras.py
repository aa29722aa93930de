"""Without an extra, the error is its install line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import tacit
from tacit.crypto import agree, ckks, group, ot, prg
from tacit.errors import MissingExtra


@pytest.fixture(autouse=True)
def _forget_ciphers() -> None:
    prg._ciphers.cache_clear()  # an earlier test of this process may have imported them


def test_without_cryptography_the_error_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for call in (
        lambda: prg.stream(bytes(32), 1, 8),
        lambda: agree.public_of(bytes(32)),
        lambda: agree.seal(bytes(32), b"", b"", bytes),
    ):
        with pytest.raises(
            MissingExtra,
            match=r"secure aggregation needs the package 'cryptography', .* pip install 'tacit\[secagg\]'",
        ):
            call()


def test_without_tenseal_the_error_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(
        MissingExtra,
        match=r"Encrypt needs the package 'tenseal', which is not installed\. Install it with: pip install "
        r"'tacit\[he\]'",
    ):
        ckks.secret()


def test_without_libsodium_the_error_is_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    group._sodium.cache_clear()
    monkeypatch.setitem(sys.modules, "rbcl", None)
    wanted = (
        r"private set intersection needs the package 'rbcl', which is not installed\. Install it with: "
        r"pip install 'tacit\[psi\]'"
    )
    for call in (
        group.ready,
        lambda: group.scalar(bytes),
        lambda: tacit.psi(["a"], ["a"]),
        lambda: tacit.align({"a": ["x"], "b": ["x"], "c": ["x"]}),
    ):
        with pytest.raises(MissingExtra, match=wanted):
            call()


@pytest.mark.parametrize("options", [{}, {"adversary": "active"}, {"helper": None}])
def test_without_aes_inference_names_its_extra_and_starts_no_party(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingExtra, match=r"inference on secret shares needs .* pip install 'tacit\[mpc\]'"):
        tacit.infer(torch.nn.Linear(2, 1), torch.ones(1, 2), **options)


def test_without_aes_large_sets_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(
        MissingExtra,
        match=r"private set intersection of large sets needs the package 'cryptography', .* pip install "
        r"'tacit\[psi\]'",
    ):
        ot.Columns([bytes(32)])

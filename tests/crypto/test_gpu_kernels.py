"""How kernels are launched, without a GPU; `tests/on_a_gpu.py` runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tacit.crypto import gpu_kernels


class Kernels:
    """In place of the Triton kernels: records each launch and the card that is the current one."""

    def __init__(self) -> None:
        self.current, self.launched = "cuda:0", list[tuple[str, str]]()

    def __getattr__(self, name: str) -> Any:
        def launch(*arguments: Any) -> None:
            self.launched.append((name, self.current))

        return {grid: launch for grid in [(n,) for n in range(9)] + [(1, 1)]}

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, str(device)
        yield
        self.current = before


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels()
    monkeypatch.setattr(gpu_kernels, "_kernels", lambda: kernels)
    monkeypatch.setattr(torch.cuda, "device", kernels.device)
    monkeypatch.setattr(torch, "_int_mm", lambda x, y, out: out)
    return kernels


def test_every_kernel_runs_on_the_card_of_its_tensors(kernels: Kernels) -> None:
    """Not on the current one: device="cuda:1" of a program whose current card is 0. Here theirs is "cpu"."""
    words, bits = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.uint8)
    rows = torch.zeros((2, 1), dtype=torch.uint8)
    gpu_kernels.chacha_blocks(torch.zeros(8, dtype=torch.int32), 0, 1)
    gpu_kernels.matmul(words[None], words[:, None])
    gpu_kernels.compare_digits(words, torch.zeros((16, 3), dtype=torch.uint8), True)
    gpu_kernels.mask_pairs(rows, rows[:1], bits[None], bits[None], None)
    t = dict.fromkeys(("a1", "b1", "ab1"), bits[None])
    gpu_kernels.combine_pairs(rows, rows, t, 1, True)
    gpu_kernels.finish_sign(words, words, words, words, bits, True)
    gpu_kernels.make_codes(words, rows, bits)
    gpu_kernels.mask_tops(words, bits, True)
    gpu_kernels.add_carry(words, words, bits, bits, bits, bits, 16, True)
    assert {name for name, _ in kernels.launched} == {
        *("chacha", "split", "join", "digits", "mask", "combine", "finish", "codes", "tops", "carry")
    }
    assert {card for _, card in kernels.launched} == {"cpu"}
    assert kernels.current == "cuda:0"

"""Inference on shares with every party's tensors on one GPU, against the CPU and the plain model: seconds per
batch, all three parties in one process.

PYTHONPATH=src python benchmarks/mpc_gpu.py        # torch, msgpack and cryptography
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import tacit

torch.manual_seed(0)
MODELS = {
    "MLP": nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
    "CNN": nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    ),
}


def seconds(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def shared_tensors() -> None:
    """Every operator of a shared tensor on the GPU, against plain numbers."""
    x = torch.randn(40, 30, dtype=torch.float64)
    a = tacit.mpc.share(x.cuda())
    checks: dict[str, tuple[Tensor, Tensor]] = {
        "+": ((a + a - 1).open(), 2 * x - 1),
        "*": ((a * a).open(), x * x),
        "@": ((a @ a.transpose()).open(), x @ x.T),
        "relu": (a.relu().open(), x.relu()),
        "sigmoid": (a.sigmoid().open(), x.sigmoid()),
        "softmax": (a.softmax(-1).open(), x.softmax(-1)),
        "gelu": (a.gelu().open(), nn.functional.gelu(x)),
        "argmax": (a.argmax(-1).open(), x.argmax(-1)),
        "reciprocal": ((a * a + 1).reciprocal().open(), 1 / (x * x + 1)),
    }
    for name, (got, expected) in checks.items():
        assert got.is_cuda, name
        error = float((got.cpu().double() - expected.double()).abs().max())
        print(f"share on cuda, {name}: off by {error:.1e}")
        assert error < 2e-3, name


def main() -> None:
    shared_tensors()
    print(torch.cuda.get_device_name(), "; one CPU thread")
    torch.set_num_threads(1)
    print("| model | batch | shares, CUDA s | shares, CPU s | plain, CPU ms | off from plain |")
    for name, model in MODELS.items():
        for n in (1, 2, 8, 16, 64, 512):
            x = torch.randn(n, 1, 28, 28)
            with torch.no_grad():
                plain = model(x)
                clear = seconds(lambda x=x, m=model: m(x))
            card, cpu = (
                seconds(lambda x=x, m=model, d=d, n=n: tacit.infer(m, x, device=d, batch=n))
                for d in ("cuda", "cpu")
            )
            off = float((tacit.infer(model, x, device="cuda", batch=n).value - plain).abs().max())
            assert off < 1e-3, (name, n, off)
            print(f"| {name} | {n} | {card:.3f} | {cpu:.3f} | {clear * 1e3:.2f} | {off:.1e} |", flush=True)


if __name__ == "__main__":
    main()

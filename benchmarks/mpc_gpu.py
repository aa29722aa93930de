"""Inference on shares with every party's tensors on one GPU, against the CPU and the plain model: seconds per
batch, all three parties in one process.

PYTHONPATH=src python benchmarks/mpc_gpu.py        # torch, triton, msgpack and cryptography

`--only NAME …` runs some of the models (MLP, CNN, ResNet-18, ResNet-18 large). The CPU is left out for ResNet-18.
"""

from __future__ import annotations

import argparse
import itertools
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

SIZES = {"MLP": (1, 28, 28), "CNN": (1, 28, 28), "ResNet-18": (3, 32, 32), "ResNet-18 large": (3, 224, 224)}
BATCHES = {"ResNet-18": (1, 32), "ResNet-18 large": (1, 8, 32)}


class Block(nn.Module):
    """Two convolutions beside a shortcut (He, Zhang, Ren, Sun: Deep Residual Learning, CVPR 2016)."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.short = (
            nn.Sequential()
            if inside == outside and stride == 1
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(large: bool) -> nn.Module:
    """ResNet-18: for images of 224 × 224 as in the paper, or with a stem of 3 × 3 for those of 32 × 32."""
    stem = (
        [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        if large
        else [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    )
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Block(inside if i == 0 else outside, outside, 1 if i or outside == 64 else 2)
        for inside, outside in itertools.pairwise(widths)
        for i in range(2)
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000 if large else 10)]
    return nn.Sequential(*stem, *blocks, *head).eval()


MODELS["ResNet-18"], MODELS["ResNet-18 large"] = resnet(False), resnet(True)


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    only = parser.parse_args().only
    shared_tensors()
    print(torch.cuda.get_device_name(), "; one CPU thread")
    torch.set_num_threads(1)
    print(
        "| model | batch | shares, CUDA s | GB on the card | shares, CPU s | plain, CPU ms | off from plain | MB |"
    )
    for name in only:
        model = MODELS[name]
        for n in BATCHES.get(name, (1, 2, 8, 16, 64, 512)):
            x = torch.randn(n, *SIZES[name])
            with torch.no_grad():
                plain = model(x)
                clear = seconds(lambda x=x, m=model: m(x))
            torch.cuda.reset_peak_memory_stats()
            card = seconds(lambda x=x, m=model, n=n: tacit.infer(m, x, device="cuda", batch=n))
            memory = torch.cuda.max_memory_allocated() / 1e9
            cpu = (
                "–"
                if name in BATCHES
                else f"{seconds(lambda x=x, m=model, n=n: tacit.infer(m, x, device='cpu', batch=n)):.3f}"
            )
            result = tacit.infer(model, x, device="cuda", batch=n)
            off = float((result.value - plain).abs().max())
            assert off < 2e-2 * max(1.0, float(plain.abs().max())), (name, n, off)
            print(
                f"| {name} | {n} | {card:.3f} | {memory:.2f} | {cpu} | {clear * 1e3:.2f} | {off:.1e} | "
                f"{result.bytes / 1e6:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""CrypTen's side of benchmarks/mpc.py, in its own environment: two processes, figures as JSON on the last
line.
"""

from __future__ import annotations

import json
import sys
import time
import types

import torch
import torch.onnx
from torch import Tensor

# For converting models it imports parts of torch.onnx that newer torch has moved. This is not used here:
# empty modules replace them.
for absent, name in (
    ("torch.onnx._internal.registration", "registry"),
    ("torch.onnx.symbolic_helper", ""),
    ("torch.onnx.utils", ""),
):
    try:
        __import__(absent)
    except ImportError:
        sys.modules[absent] = types.ModuleType(absent)
        if name:
            setattr(sys.modules[absent], name, None)
if not hasattr(torch.onnx, "OperatorExportTypes"):
    torch.onnx.OperatorExportTypes = types.SimpleNamespace(ONNX=0, ONNX_ATEN_FALLBACK=1)

import crypten  # noqa: E402
import crypten.communicator as comm  # noqa: E402
import crypten.mpc as mpc  # noqa: E402


def timed(work, best_of: int = 3) -> dict[str, float]:
    best = float("inf")
    for _ in range(best_of):
        comm.get().reset_communication_stats()
        comm.get().barrier()
        cpu = time.process_time()
        work()
        best = min(best, time.process_time() - cpu)
    stats = comm.get().get_communication_stats()  # bytes sent and received by one of two parties: all bytes
    return {"cpu": best, "mb": stats["bytes"] / 1e6, "rounds": stats["rounds"]}


def layers(x, weights: list[Tensor], conv: int):
    for i, w in enumerate(weights):
        if i < conv:
            x = x.conv2d(w).relu().max_pool2d(2)
        else:
            x = x.flatten(1) if x.dim() == 4 else x
            x = x.matmul(w)
            x = x.relu() if i < len(weights) - 1 else x
    return x


@mpc.run_multiprocess(world_size=2)
def run():
    torch.set_num_threads(1)
    crypten.cfg.communicator.verbose = True  # count bytes and rounds
    million, side = crypten.cryptensor(torch.randn(1_000_000)), crypten.cryptensor(torch.randn(512, 512))
    logits = crypten.cryptensor(torch.randn(1000, 10))
    figures = {
        "ReLU 1e6": timed(million.relu),
        "mul 1e6": timed(lambda: million * million),
        "matmul 512": timed(lambda: side.matmul(side)),
        "softmax 1000×10": timed(lambda: logits.softmax(-1)),
    }
    nets = {
        "MLP": ([(784, 128), (128, 64), (64, 10)], 0),
        "CNN": ([(16, 1, 5, 5), (16, 16, 5, 5), (256, 100), (100, 10)], 2),
    }
    for name, (shapes, conv) in nets.items():
        weights = [crypten.cryptensor(0.05 * torch.randn(s)) for s in shapes]
        for n in (1, 64):
            x = crypten.cryptensor(torch.randn((n, 1, 28, 28) if conv else (n, 784)))
            figures[f"{name} batch {n}"] = timed(lambda x=x, w=weights, c=conv: layers(x, w, c), 2)
    return figures


if __name__ == "__main__":
    results = run()
    both = [r if isinstance(r, dict) else json.loads(r) for r in results]
    print(
        json.dumps(
            {
                k: {
                    "cpu": max(r[k]["cpu"] for r in both),
                    "mb": both[0][k]["mb"],
                    "rounds": both[0][k]["rounds"],
                }
                for k in both[0]
            }
        )
    )

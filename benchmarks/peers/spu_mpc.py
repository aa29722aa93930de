"""SPU's side of benchmarks/mpc.py, in its own environment: SEMI2K on 64 bits, two processes over its own sockets,
figures as JSON on the last line.

Bytes are those on the loopback interface, headers included, in a separate network namespace if the system allows
it (`unshare -n`, as root); otherwise null. SEMI2K generates its triples at a trusted first party (its default),
and no byte is counted for them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time

from spu_psi import carried

BEST_OF = 3


def works():
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    rng = np.random.default_rng(0)
    million, side = (
        rng.standard_normal(1_000_000).astype(np.float32),
        rng.standard_normal((512, 512)).astype(np.float32),
    )
    logits = rng.standard_normal((1000, 10)).astype(np.float32)

    def softmax(x):
        e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
        return e / jnp.sum(e, -1, keepdims=True)

    def mlp(x, *w):
        for i in range(0, 4, 2):
            x = jnp.maximum(x @ w[i] + w[i + 1], 0)
        return x @ w[4] + w[5]

    def pooled(x):  # before ReLU, which commutes with it: fewer comparisons, as in tacit
        n, c, h, w = x.shape
        return jnp.maximum(jnp.max(x.reshape(n, c, h // 2, 2, w // 2, 2), (3, 5)), 0)

    def cnn(x, *w):
        for i in range(0, 4, 2):
            x = pooled(
                lax.conv_general_dilated(x, w[i], (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
                + w[i + 1].reshape(1, -1, 1, 1)
            )
        x = jnp.maximum(x.reshape(len(x), -1) @ w[4] + w[5], 0)
        return x @ w[6] + w[7]

    def weights(*shapes):
        return [0.1 * rng.standard_normal(s).astype(np.float32) for s in shapes]

    made = {
        "ReLU 1e6": (lambda x: jnp.maximum(x, 0), [million]),
        "mul 1e6": (lambda x, y: x * y, [million, million]),
        "matmul 512": (lambda x, y: x @ y, [side, side]),
        "softmax 1000×10": (softmax, [logits]),
    }
    dense = weights((784, 128), (128,), (128, 64), (64,), (64, 10), (10,))
    conv = weights((16, 1, 5, 5), (16,), (16, 16, 5, 5), (16,), (256, 100), (100,), (100, 10), (10,))
    for n in (1, 64):
        made[f"MLP batch {n}"] = (mlp, [rng.random((n, 784)).astype(np.float32), *dense])
        made[f"CNN batch {n}"] = (cnn, [rng.random((n, 1, 28, 28)).astype(np.float32), *conv])
    return made


def role(rank: int, ports: list[str]) -> None:
    """Each party creates the shares by itself and uses its own: they do not add up, which does not change the cost."""
    import spu.api as api
    import spu.libspu as libspu
    from spu.utils import frontend

    desc = libspu.link.Desc()
    for k, port in enumerate(ports):
        desc.add_party(f"p{k}", f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(desc, rank)
    config = libspu.RuntimeConfig(protocol=libspu.ProtocolKind.SEMI2K, field=libspu.FieldType.FM64)
    runtime, io, made = api.Runtime(link, config), api.Io(2, config), {}
    for name, (function, operands) in works().items():
        names = [f"in{i}" for i in range(len(operands))]
        executable, _ = frontend.compile(
            frontend.Kind.JAX,
            function,
            operands,
            {},
            names,
            [libspu.Visibility.VIS_SECRET] * len(operands),
            lambda out: [f"out{i}" for i in range(len(out))],
        )
        for key, x in zip(names, operands):
            runtime.set_var(key, io.make_shares(x, libspu.Visibility.VIS_SECRET)[rank])
        best, bytes_ = float("inf"), 0
        for _ in range(BEST_OF):
            link.barrier()
            begun, before = time.process_time(), carried()
            runtime.run(executable)
            best = min(best, time.process_time() - begun)
            link.barrier()
            bytes_ = carried() - before
        made[name] = {"cpu": best, "bytes": bytes_}
    print("done", json.dumps(made), flush=True)


def main() -> None:
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip") and "alone" not in sys.argv:
        os.execvp(
            "unshare",
            [
                "unshare",
                "-n",
                "sh",
                "-c",
                'ip link set lo up && exec "$@"',
                "sh",
                sys.executable,
                *sys.argv,
                "alone",
            ],
        )
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    roles = [
        subprocess.Popen(
            [sys.executable, __file__, "role", str(rank), *ports], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    told = [
        json.loads(next(line for line in out.splitlines() if line.startswith("done"))[5:])
        for out in (r.communicate()[0] for r in roles)
    ]
    counted = "alone" in sys.argv
    print(
        json.dumps(
            {
                name: {
                    "cpu": max(t[name]["cpu"] for t in told),
                    "mb": told[0][name]["bytes"] / 1e6 if counted else None,
                }
                for name in told[0]
            }
        )
    )


if __name__ == "__main__":
    if "role" in sys.argv:
        role(int(sys.argv[2]), sys.argv[3:5])
    else:
        main()

"""The stage functions of Flower's SecAgg+ for one round, called as its mod and its workflow call them: no Ray, no
gRPC, only the protocol.

One client runs each stage; the others advertise keys and send shares, so that it has its inputs. The server's
last stage runs the lines of its workflow that recover secrets and remove masks, on secrets shared with Flower's
own functions.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0"}
warnings.filterwarnings("ignore")

import flwr.client.mod.secure_aggregation.secaggplus_mod  # noqa: E402, F401
import numpy as np  # noqa: E402
from flwr.common import ndarrays_to_parameters  # noqa: E402
from flwr.common.secure_aggregation.crypto.shamir import combine_shares  # noqa: E402
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, generate_shared_key  # noqa: E402
from flwr.common.secure_aggregation.ndarrays_arithmetic import (  # noqa: E402
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key  # noqa: E402
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_separate  # noqa: E402
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key  # noqa: E402

mod: Any = sys.modules[
    "flwr.client.mod.secure_aggregation.secaggplus_mod"
]  # its package uses the name for a function
MODULUS = 1 << 32


def settings(n: int, shares: int) -> dict[str, Any]:
    return {
        Key.SAMPLE_NUMBER: n,
        Key.SHARE_NUMBER: shares,
        Key.THRESHOLD: max(2, round(0.6 * shares)),
        Key.CLIPPING_RANGE: 8.0,
        Key.TARGET_RANGE: 1 << 22,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1000.0,
    }


def round_of(n: int, shares: int, length: int, dropped: int) -> dict[str, Any]:
    states = {i: mod.SecAggPlusState(nid=i) for i in range(n)}
    around = {
        i: sorted((i + step) % n for step in range(-(shares // 2), shares // 2 + 1))
        if shares < n
        else list(range(n))
        for i in range(n)
    }
    clock: dict[str, float] = {}

    def timed(name: str, call: Any, *given: Any) -> Any:
        begun = time.process_time()
        out = call(*given)
        clock[name] = clock.get(name, 0.0) + time.process_time() - begun
        return out

    me = n - 1
    keys = {}
    for i, state in states.items():
        got = timed("client" if i == me else "others", mod._setup, state, settings(n, shares))
        keys[i] = got[Key.PUBLIC_KEY_1], got[Key.PUBLIC_KEY_2]
    sent = {}
    for i, state in states.items():
        sent[i] = timed(
            "client" if i == me else "others", mod._share_keys, state, {str(v): keys[v] for v in around[i]}
        )
    forward: dict[int, tuple[list[int], list[bytes]]] = {i: ([], []) for i in range(n)}
    for i, got in sent.items():
        for to, text in zip(got[Key.DESTINATION_LIST], got[Key.CIPHERTEXT_LIST]):
            forward[to][0].append(i)
            forward[to][1].append(text)
    vector = ndarrays_to_parameters([np.random.default_rng(0).normal(size=length).astype(np.float32)])
    told = {Key.SOURCE_LIST: forward[me][0], Key.CIPHERTEXT_LIST: forward[me][1]}
    up = timed("client", mod._collect_masked_vectors, states[me], told, 100, vector)
    bytes_up = sum(map(len, up[Key.MASKED_PARAMETERS]))

    # the server: the shares of all clients after the stage above
    one = [np.load(io.BytesIO(b), allow_pickle=False) for b in up[Key.MASKED_PARAMETERS]]
    dead = set(range(dropped))
    collected: dict[int, list[bytes]] = {i: [] for i in range(n)}
    for i, state in states.items():
        if i == me:
            continue
        for src, text in zip(*forward[i]):
            _, _, seed, private = share_keys_plaintext_separate(decrypt(state.ss2_dict[src], text))
            state.rd_seed_share_dict[src], state.sk1_share_dict[src] = seed, private
    for i in set(range(n)) - dead:
        for v in around[i]:
            collected[v].append((states[i].sk1_share_dict if v in dead else states[i].rd_seed_share_dict)[v])

    def add_up() -> Any:
        total = [np.zeros_like(a) for a in one]
        for _ in range(n - dropped):
            total = parameters_addition(total, one)
        return parameters_mod(total, MODULUS)

    def unmask(total: Any) -> Any:
        for i, shared in collected.items():
            secret = combine_shares(shared)
            if i not in dead:
                total = parameters_subtraction(
                    total, pseudo_rand_gen(secret, MODULUS, get_parameters_shape(total))
                )
                continue
            for v in set(around[i]) - {i} - dead:
                key = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(keys[v][0]))
                mask = pseudo_rand_gen(key, MODULUS, get_parameters_shape(total))
                total = parameters_addition(total, mask) if i > v else parameters_subtraction(total, mask)
        return parameters_mod(total, MODULUS)

    total = timed("server", add_up)
    timed("server", unmask, total)
    return {
        "client_cpu_s": clock["client"],
        "server_cpu_s": clock["server"],
        "bytes_up": bytes_up,
        "version": version("flwr"),
    }


if __name__ == "__main__":
    parties, around, numbers, gone = map(int, sys.argv[1:5])
    print("RESULT " + json.dumps(round_of(parties, around, numbers, gone)))

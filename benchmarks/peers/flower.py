"""The same job in Flower's simulation: a ClientApp, a ServerApp with its FedAvg, and its Ray backend with one actor
per core.

Configured for speed within its documentation: actors keep the model and map the data once, clients use a
written-out step instead of a DataLoader and an optimizer, logging and telemetry are off, and there is no
evaluation in the measured rounds.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import work as benchmark  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from work import Laps, arguments, load, model, print_figures, score  # noqa: E402

if __name__ == "__main__":
    WORK, ARGS = arguments()
    os.environ["BENCHMARK_WORK"], os.environ["BENCHMARK_DATA"] = (
        WORK.name,
        str(ARGS.data.resolve()),
    )  # inherited by the actors


def client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work = benchmark.WORKS[os.environ["BENCHMARK_WORK"]]
        state = benchmark.__dict__.setdefault(
            "_kept", {}
        )  # an actor's state across clients is in the imported module
        if not state:
            torch.set_num_threads(1)
            state["x"], state["y"], _, _ = load(work, Path(os.environ["BENCHMARK_DATA"]))
            state["net"] = model(work)
        net = state["net"]
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        parameters = list(net.parameters())
        party = int(context.node_config["partition-id"])
        mine = slice(party * work.samples, (party + 1) * work.samples)
        order = torch.randperm(work.samples)
        x, y = state["x"][mine][order], state["y"][mine][order]
        for xb, yb in zip(x.split(work.batch), y.split(work.batch)):
            gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(net(xb), yb), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-work.lr)
        content = RecordDict(
            {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
        )
        return Message(content=content, reply_to=message)

    return app


def main() -> None:
    laps, final = Laps(WORK), {}

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            done = super().aggregate_train(server_round, replies)
            laps.lap()
            return done

    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = Timed(
            fraction_train=WORK.per_round / WORK.parties,
            fraction_evaluate=0.0,
            min_available_nodes=WORK.parties,
        )
        result = strategy.start(
            grid=grid, initial_arrays=ArrayRecord(model(WORK).state_dict()), num_rounds=ARGS.rounds
        )
        final["timing"] = laps.close()
        final["state"] = result.arrays.to_torch_state_dict()

    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    run_simulation(
        server,
        client(),
        WORK.parties,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "logging_level": "error"},
        },
    )
    net = model(WORK)
    net.load_state_dict(final["state"])
    print_figures(
        peer="Flower",
        version=version("flwr"),
        work=WORK.name,
        mode=f"{os.cpu_count()} actors",
        **final["timing"],
        **score(net, *load(WORK, ARGS.data)[2:]),
    )


if __name__ == "__main__":
    main()
    sys.stdout.flush()

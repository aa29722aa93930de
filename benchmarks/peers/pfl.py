"""The same job in pfl-research: FederatedAveraging on its SimulatedBackend, in one process (its parallel mode needs
Horovod).

Modes: `one` and `two` are torch's threads. It always evaluates each client of its first round before and after
training; that is part of the warm-up.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

# This file has the name of the package it measures: exclude its folder while importing the package.
HERE = str(Path(__file__).resolve().parent)
sys.path = [entry for entry in sys.path if entry and str(Path(entry).resolve()) != HERE]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from torch import Tensor, nn  # noqa: E402

sys.path.append(HERE)
from work import Laps, arguments, load, model, print_figures, score  # noqa: E402


class Net(nn.Module):
    """A network with the two methods that pfl requires."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


def main() -> None:
    work, args = arguments(["one", "two"])
    torch.set_num_threads(2 if args.mode == "two" else 1)
    np.random.seed(0)  # it samples its users with the global generator
    x, y, xt, yt = load(work, args.data)

    def party(k: int) -> PyTorchTensorDataset:
        mine = slice(k * work.samples, (k + 1) * work.samples)
        return PyTorchTensorDataset((x[mine], y[mine]), user_id=str(k))

    data = FederatedDataset(party, get_user_sampler("random", range(work.parties)))
    net = Net(model(work))
    wrapped = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    laps = Laps(work)

    class Timed(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            laps.lap()
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=args.rounds + 1,
            train_cohort_size=work.per_round,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        wrapped,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Timed()],
        send_metrics_to_platform=False,
    )
    print_figures(
        peer="pfl-research",
        version=version("pfl"),
        work=work.name,
        mode=args.mode,
        **laps.close(),
        **score(net.net, xt, yt),
    )


if __name__ == "__main__":
    main()

"""An optimized FedAvg loop in plain PyTorch, one client at a time, without a framework.

Modes: `one` and `two` are torch's threads; `processes` distributes the round's clients to two forked workers of
one thread that keep the model and share the weights in memory. `one-sgd` steps with torch.optim.SGD, created
before the clock starts, instead of one fused in-place update; `usual` is the loop as in tutorials.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from work import Laps, Work, arguments, load, model, print_figures, score


class Client:
    """One model, reused for all clients; `w` is the shared global vector, viewed in the shapes of the parameters."""

    def __init__(self, work: Work, x: Tensor, y: Tensor, sgd: bool = False) -> None:
        self.work, self.x, self.y = work, x, y
        self.net = model(work)
        self.parameters = list(self.net.parameters())
        self.w = [p.detach().clone().share_memory_() for p in self.parameters]
        self.optimizer = torch.optim.SGD(self.parameters, lr=work.lr) if sgd else None

    @torch.no_grad()
    def train(self, party: int, seed: int, total: list[Tensor]) -> None:
        """Start from the global weights, train one epoch, add the result to `total`."""
        work = self.work
        torch._foreach_copy_(self.parameters, self.w)
        mine = slice(party * work.samples, (party + 1) * work.samples)
        order = torch.randperm(work.samples, generator=torch.Generator().manual_seed(seed))
        x, y = self.x[mine][order], self.y[mine][order]
        for xb, yb in zip(x.split(work.batch), y.split(work.batch)):
            with torch.enable_grad():
                loss = cross_entropy(self.net(xb), yb)
            if self.optimizer is None:
                torch._foreach_add_(
                    self.parameters, torch.autograd.grad(loss, self.parameters), alpha=-work.lr
                )
            else:
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
        torch._foreach_add_(total, self.parameters)


class Usual(Client):
    """The loop as in tutorials: state_dict in and out, and one optimizer per client."""

    def train(self, party: int, seed: int, total: list[Tensor]) -> None:
        work = self.work
        self.net.load_state_dict(dict(zip(self.net.state_dict(), self.w)))
        optimizer = torch.optim.SGD(self.net.parameters(), lr=work.lr)
        mine = slice(party * work.samples, (party + 1) * work.samples)
        order = torch.randperm(work.samples, generator=torch.Generator().manual_seed(seed))
        x, y = self.x[mine], self.y[mine]
        self.net.train()
        for rows in order.split(work.batch):
            optimizer.zero_grad()
            cross_entropy(self.net(x[rows]), y[rows]).backward()
            optimizer.step()
        for mean, value in zip(total, self.net.state_dict().values()):
            mean += value


def serve(pipe: Connection, client: Client, out: list[Tensor]) -> None:
    torch.set_num_threads(1)
    while (clients := pipe.recv()) is not None:
        torch._foreach_zero_(out)
        for party, seed in clients:
            client.train(party, seed, out)
        pipe.send(None)


def main() -> None:
    work, args = arguments(["one", "one-sgd", "usual", "two", "processes"])
    torch.set_num_threads(2 if args.mode == "two" else 1)
    x, y, xt, yt = load(work, args.data)
    client = Usual(work, x, y) if args.mode == "usual" else Client(work, x, y, sgd=args.mode == "one-sgd")
    workers: list[tuple[Any, Connection, list[Tensor]]] = []
    if args.mode == "processes":
        fork = multiprocessing.get_context("fork")
        for _ in range(2):
            here, there = fork.Pipe()
            out = [torch.zeros_like(w).share_memory_() for w in client.w]
            worker = fork.Process(target=serve, args=(there, client, out), daemon=True)
            worker.start()
            workers.append((worker, here, out))

    rng = np.random.default_rng(0)
    laps = Laps(work)
    for _ in range(args.rounds):
        cohort = [
            (int(k), int(rng.integers(2**31)))
            for k in rng.choice(work.parties, work.per_round, replace=False)
        ]
        total = [torch.zeros_like(w) for w in client.w]
        for i, (_, pipe, _) in enumerate(workers):
            pipe.send(cohort[i :: len(workers)])
        for _, pipe, out in workers:
            pipe.recv()
            torch._foreach_add_(total, out)
        if not workers:
            for party, seed in cohort:
                client.train(party, seed, total)
        torch._foreach_div_(
            total, len(cohort)
        )  # all parties have the same number of rows: the weighted mean is the mean
        torch._foreach_copy_(client.w, total)
        laps.lap()
    timing = laps.close()
    for worker, pipe, _ in workers:
        pipe.send(None)
        worker.join()
    client.net.load_state_dict(dict(zip(client.net.state_dict(), client.w)))
    print_figures(peer="bare loop", work=work.name, mode=args.mode, **timing, **score(client.net, xt, yt))


if __name__ == "__main__":
    main()

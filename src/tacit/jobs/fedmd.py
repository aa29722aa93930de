"""`tacit.fedmd`: parties with different architectures learn from each other's predictions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

from .. import models as kinds
from ..data.federation import Federation, check_one_label
from ..errors import BadData, BadParameter
from ..files import write_atomic
from ..parameters import bad
from ..parties.ledger import Ledger
from ..protocols import fedmd as protocol
from ..results import JobResult
from ..runs import check_empty, encode_model
from .vertical.split import folder_of

if TYPE_CHECKING:
    import pandas

SERVER = "server"


@dataclass
class FedMDResult(JobResult):
    """Every party's model, and the accuracy after each round."""

    title = "Federated distillation"
    facts = ("metrics", "history")

    models: dict[str, nn.Module]
    history: list[dict[str, Any]]
    ledger: Ledger
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> dict[str, nn.Module]:
        return self.models

    def save(self, path: str | Path) -> Path:
        """Write each party's model to a new directory, as safetensors, and `to_dict` as result.json."""
        directory = check_empty(path)
        directory.mkdir(parents=True, exist_ok=True)
        for k, (name, model) in enumerate(self.models.items()):
            write_atomic(directory / f"{folder_of(name, k)}.safetensors", encode_model(model))
        write_atomic(directory / "result.json", json.dumps(self.to_dict(), indent=1))
        return directory

    def table(self) -> pandas.DataFrame:
        """Return one row per party: its accuracy alone, and after federated distillation."""
        import pandas

        first, last = self.history[0]["accuracy"], self.history[-1]["accuracy"]
        return pandas.DataFrame(
            {"alone": first, "taught": last, "gain": [b - a for a, b in zip(first, last)]},
            index=list(self.models),
        )


def fedmd(
    fed: Federation,
    *,
    models: Any,
    public: Tensor,
    rounds: int = 10,
    first_epochs: int = 10,
    digest_epochs: int = 1,
    revisit_epochs: int = 1,
    lr: float = 0.05,
    temperature: float = 1.0,
    batch_size: int = 32,
    seed: int = 0,
) -> FedMDResult:
    """Distill between different architectures.

    `models` has one model for each party (a list, or by name), `public` are unlabeled rows that all parties
    have. Each party first trains alone. Then, in each round, all predict the public rows, learn the mean of
    the predictions (digest), and train on their own rows again (revisit). Only scores are sent. Programs run
    over messages, in one process.
    """
    if not isinstance(fed, Federation) or fed.classes is None:
        raise bad(
            "fedmd",
            "fed",
            fed.name if isinstance(fed, Federation) else type(fed).__name__,
            "a federation with a classification task",
        )
    check_one_label("fedmd", fed)
    if not len(fed.test.y):
        raise BadData(f"{fed.name} has no test rows, so the gain cannot be measured. Split off a test set.")
    if SERVER in fed.parties:
        raise BadData(
            f"{fed.name}: a party is named 'server', which is the name of the server. Rename the party."
        )
    x = fed.rows.matrix("fedmd")
    if (
        not isinstance(public, Tensor)
        or public.shape[1:] != x.shape[1:]
        or not len(public)
        or public.dtype != x.dtype
    ):
        raise bad(
            "fedmd",
            "public",
            tuple(public.shape) if isinstance(public, Tensor) else type(public).__name__,
            f"a tensor of at least one row of the shape {tuple(x.shape[1:])}, of {x.dtype}",
        )
    for name, value, least in (
        ("rounds", rounds, 1),
        ("first_epochs", first_epochs, 0),
        ("digest_epochs", digest_epochs, 1),
        ("revisit_epochs", revisit_epochs, 0),
        ("batch_size", batch_size, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise bad("fedmd", name, value, f"a whole number of at least {least}")
    for name, number in (("lr", lr), ("temperature", temperature)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
            raise bad("fedmd", name, number, "a number above 0")
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.default_generator.manual_seed(seed)
        parties = [
            FedMDParty(fed.party(k), m, public, lr, temperature, batch_size, seed, k)
            for k, m in enumerate(_build_models(fed, models, seed))
        ]
        history: list[dict[str, Any]] = []
        for party in parties:
            party.train_on_own_rows(first_epochs)

        def evaluate(r: int) -> None:
            each = [party.score(fed.test.matrix("fedmd"), fed.test.y) for party in parties]
            history.append({"round": r, "accuracy": each, "mean_accuracy": float(np.mean(each))})

        evaluate(0)
        done = [0] * rounds

        def learn(party: FedMDParty) -> Any:
            def step(r: int, scores: Tensor) -> None:
                party.digest(scores, digest_epochs)
                party.train_on_own_rows(revisit_epochs)
                done[r] += 1
                if done[r] == len(parties):
                    evaluate(r + 1)

            return step

        ledger = _exchange(fed, parties, learn, rounds, len(public), seed)
    metrics = {"accuracy": history[-1]["mean_accuracy"], "alone": history[0]["mean_accuracy"]}
    return FedMDResult(
        {name: p.model.eval() for name, p in zip(fed.parties, parties)}, history, ledger, metrics
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread inside the block: small models on a CPU gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _exchange(
    fed: Federation, parties: Sequence[FedMDParty], learn: Any, rounds: int, rows: int, seed: int
) -> Ledger:
    from ..runtimes.inprocess import InProcess

    assert fed.classes is not None
    ledger, classes = Ledger(), fed.classes
    programs: dict[str, Any] = {SERVER: lambda me: protocol.server(me, fed.parties, rounds, rows, classes)}
    for name, party in zip(fed.parties, parties):
        programs[name] = lambda me, party=party: protocol.party(me, rounds, party.answers, learn(party))
    InProcess(seed=seed).run_sync(programs, ledger=ledger)
    return ledger


def _build_models(fed: Federation, models: Any, seed: int) -> list[nn.Module]:
    if isinstance(models, Mapping):
        unknown, absent = (
            [n for n in models if n not in fed.parties],
            [n for n in fed.parties if n not in models],
        )
        if unknown or absent:
            raise BadParameter(
                "fedmd: models has "
                f"{'an unknown party ' + repr(unknown[0]) if unknown else 'none for ' + repr(absent[0])}. "
                "Give one for each "
                "party."
            )
        listed = [models[name] for name in fed.parties]
    elif isinstance(models, Sequence) and not isinstance(models, str) and len(models) == len(fed):
        listed = list(models)
    else:
        raise bad(
            "fedmd",
            "models",
            models if isinstance(models, str) else type(models).__name__,
            f"a model for each of the {len(fed)} parties, by name or in order",
        )
    assert fed.classes is not None
    return [kinds.build(m, tuple(fed.rows.x.shape[1:]), fed.classes, seed) for m in listed]


class FedMDParty:
    """One party: its model, its rows and the public rows."""

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        public: Tensor,
        lr: float,
        temperature: float,
        batch_size: int,
        seed: int,
        k: int,
    ):
        rows = fed.train.of(0)
        self.x, self.y, self.public = fed.rows.matrix("fedmd")[rows], fed.rows.y[rows], public
        self.model, self.temperature, self.batch_size = model.train(), temperature, batch_size
        self.optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9
        )
        self.rng = np.random.default_rng([seed, k])

    def _batches(self, n: int, epochs: int) -> Any:
        for _ in range(epochs):
            yield from torch.from_numpy(self.rng.permutation(n)).split(self.batch_size)

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def train_on_own_rows(self, epochs: int) -> None:
        self.model.train()
        for i in self._batches(len(self.y), epochs):
            self._step(cross_entropy(self.model(self.x[i]), self.y[i]))

    def digest(self, scores: Tensor, epochs: int) -> None:
        """Train towards the common scores: KL divergence at the temperature, times its square."""
        self.model.train()
        t, targets = self.temperature, softmax(scores / self.temperature, -1)
        for i in self._batches(len(self.public), epochs):
            self._step(
                t
                * t
                * kl_div(log_softmax(self.model(self.public[i]) / t, -1), targets[i], reduction="batchmean")
            )

    @torch.no_grad()
    def answers(self) -> Tensor:
        self.model.eval()
        return torch.cat([self.model(part).float() for part in self.public.split(1024)])

    @torch.no_grad()
    def score(self, x: Tensor, y: Tensor) -> float:
        self.model.eval()
        return float(
            (torch.cat([self.model(part) for part in x.split(1024)]).argmax(-1) == y).double().mean()
        )


def split_public_rows(fed: Federation, rows: int, seed: int = 0) -> tuple[Federation, Tensor]:
    """Split off some of the global test rows, without labels, as public rows."""
    if not 0 < rows < len(fed.test.y):
        raise bad(
            "split_public_rows",
            "rows",
            rows,
            f"between 1 and {len(fed.test.y) - 1}, of the {len(fed.test.y)} test rows",
        )
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(fed.test.y)))
    public = fed.test.matrix("split_public_rows")[order[:rows]]
    return dataclasses.replace(fed, test=fed.test.take(order[rows:])), public

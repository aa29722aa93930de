"""Training with all clients in one tensor program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import algorithms, selection
from ...algorithms.types import Algorithm, State
from ...engine import evaluation
from ...engine.metrics import count
from ...engine.task import LOSSES, Task
from ...guard import Guard, Noise
from ...parties.ledger import Ledger
from ...runs import Event
from ...runtimes.cohort import Cohort
from ...selection import PartyInfo
from .guards import fit, reveals
from .plan import Plan, seconds_of

# under private.DPSGD
NOISY = (
    "one party's model update, made of clipped gradients with that party's own noise; every party "
    "weighs the same"
)
# where each is looked at
SORTED = (
    "one party's model update and its weight (its number of rows), in the clear; beside the others', "
    "which parties are alike"
)


class Simulated:
    """Clients as one tensor program; several runs side by side."""

    durable = False  # what lies between two saved rounds is computed again

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        self.plans = plans
        self.guards = [guard for p, start in zip(plans, starts) if (guard := fit(p, task, start)) is not None]
        self.cohort = Cohort(
            task,
            starts,
            [p.run() for p in plans],
            plans[0].engine,
            guards=self.guards,
            rule=fitted(plans, task),
        )
        for i, p in enumerate(plans):
            if p.select is not None:
                self.cohort.runs[i] = dataclasses.replace(
                    self.cohort.runs[i], choose=partial(self._choose, i)
                )
        self.begin: Callable[[int], None] = lambda r: None  # called before anything of round r is computed
        if all(s is not None for s in saved):
            self.cohort.load([s for s in saved if s is not None])
        self.task, self.notes = self.cohort.task, self.cohort.notes
        self.name = f"cohort, clients {'stacked' if self.cohort.engine == 'stack' else 'one by one'}"
        self._wire: tuple[State, State] | None = None
        self.seconds = [seconds_of(p) for p in plans]
        self.clocks = [0.0] * len(plans)  # what the virtual clock of each shows, where there is a speed
        self.told: list[dict[str, Any]] = [{} for _ in plans]  # what a round's event says besides
        self.looks = 0, 0  # bytes of one Look and one Loss, where losses decide who is asked

    @property
    def w(self) -> Tensor:
        return self.cohort.w

    @property
    def buffers(self) -> Tensor | None:
        return self.cohort.buffers

    def run(self, rounds: range, due: Callable[[int], bool], after: Callable[..., None]) -> None:
        if rounds.start == 0 and due(0):
            after(0, [[]] * len(self.plans), self.evaluate(0))
        for r in rounds:
            self.begin(r)
            self.told = [{} for _ in self.plans]
            for i, p in enumerate(self.plans):
                if p.picks:
                    self.cohort.memories[i] = {}  # who was best is of one round
            chosen = self.step(r)
            for i, p in enumerate(self.plans):
                if p.picks and p.talks and len(chosen[i]):
                    self.told[i] |= {
                        "scored": len(chosen[i]),
                        "uploaded": 1,
                        **{k: p.fed.parties[int(v)] for k, v in self.cohort.memories[i].items()},
                    }
            for i, (takes, who) in enumerate(zip(self.seconds, chosen)):
                if takes is not None:  # a synchronous round takes as long as its slowest party
                    self.clocks[i] += float(takes(who, np.full(len(who), r)).max(initial=0.0))
                    self.told[i]["clock"] = self.clocks[i]
            after(r + 1, chosen, self.evaluate(r + 1) if due(r + 1) else [{}] * len(self.plans))

    def step(self, r: int) -> list[np.ndarray]:
        """One round of every run; who took part in each."""
        return self.cohort.round(r)

    def personal(self, i: int) -> list[State]:
        """The model each party of run i uses for itself."""
        shared = {} if self.buffers is None else {"buffers": self.buffers[i]}
        return [shared | mine for mine in self.cohort.personal(i)]

    def _model(self, i: int) -> State:
        return {k: v[i] for k, v in self.cohort.down(0.0).items() if k in ("w", "buffers")}

    def _choose(self, i: int, number: int) -> np.ndarray:
        """Who is asked in this round, by the plan's rule and the model as it stands."""
        p, takes = self.plans[i], self.seconds[i]
        members = np.arange(len(p.fed)) if p.members is None else np.array(p.members)
        known = PartyInfo(
            p.sizes[members],
            lambda who: self._losses(i, members[who], number),
            None if takes is None else takes(members, np.full(len(members), number)),
        )
        return members[selection.select(p.select, p.seed, number, known, p.per_round)]

    def _losses(self, i: int, who: np.ndarray, number: int) -> np.ndarray:
        self.told[i]["looked"] = self.told[i].get("looked", 0) + len(who)
        self.looks = look_bytes(self._model(i))
        rows, fed = self.plans[i].fed.at(number + 1), self.plans[i].fed
        held = [fed.train.of(int(k)) for k in who]
        index = torch.cat(held)
        out = self.task.predict(
            self.w[i], rows.x[index].to(self.w.device), None if self.buffers is None else self.buffers[i]
        ).cpu()
        losses = LOSSES[self.task.loss_name](out, rows.y[index])
        return np.array([float(part.mean()) for part in losses.split([len(h) for h in held])])

    def evaluate(self, r: int) -> list[dict[str, Any]]:
        tests = [p.fed.test_at(r) for p in self.plans]
        parties = {
            (id(p.fed), p.min_rows, p.sums_only): p for p in self.plans
        }  # once for the runs that share a federation
        made = {
            key: evaluation.of_parties(p.fed, p.fed.at(r), p.min_rows, p.sums_only)
            for key, p in parties.items()
        }
        held = [made[id(p.fed), p.min_rows, p.sums_only] for p in self.plans]
        found = evaluation.evaluate(
            self.task,
            self.w,
            self.buffers,
            tests,
            held,
            [p.fed.classes for p in self.plans],
            stacked=self.cohort.engine == "stack" and self.w.device.type == "cuda",
        )
        for i, p in enumerate(self.plans):
            if p.algorithm.personalizes and len(held[i].rows.y):
                found[i] |= self._personal(i, held[i])
            if p.adversaries is not None and (wanted := p.adversaries.wanted(tests[i])) is not None:
                answers = (
                    self.task.predict(
                        self.w[i],
                        wanted.x.to(self.w.device),
                        None if self.buffers is None else self.buffers[i],
                    )
                    .argmax(-1)
                    .cpu()
                )
                found[i]["attack_success"] = float((answers == wanted.y).double().mean())
        return found

    def _personal(self, i: int, held: evaluation.Held) -> dict[str, Any]:
        """Each party's own model on its own held-out rows, which takes the place of the server's there."""
        outs = []
        for k, model in enumerate(self.personal(i)):
            x = held.rows.x[held.owner == k].to(self.w.device)
            outs.append(self.task.predict(model["w"], x, model.get("buffers")).cpu())
        return evaluation.of_own_models(
            torch.cat(outs), held, self.plans[i].fed.classes
        )  # rows stand owner by owner

    def save(self, i: int) -> State:
        return self.cohort.save(i)

    def beside(self) -> dict[str, Any]:
        """What is saved with the state; the ledger follows from the rounds."""
        return (
            {} if self.seconds[0] is None else {"clock": self.clocks[0]}
        )  # runs side by side are not resumed

    def proceed(self, beside: dict[str, Any]) -> None:
        """Go on from what was saved beside the state."""
        self.clocks = [beside.get("clock", 0.0)]

    def bytes(self, r: int) -> tuple[int, int]:
        """Bytes of one Down and of one Upload of round r, as they would be on the wire."""
        if not self.cohort.upload_shapes:
            return 0, 0
        if self._wire is None:
            shapes = {k: v.shape[1:] for k, v in self.cohort.down(0.0).items()}
            up = {k: torch.zeros(s) for k, s in self.cohort.upload_shapes.items()}
            if self.guards:  # what its guard lets out, in as many bits as that takes
                up = self.guards[0].blank()
            self._wire = (
                {k: torch.zeros(s) for k, s in shapes.items()}
                | (self.guards[0].sent() if self.guards else {}),
                up,
            )
        return sizes(self.plans[0], self.guards[0] if self.guards else None, r, *self._wire)

    def landscape(self, i: int) -> dict[str, Any]:
        """Where each party would walk from here, alone, in one more round."""
        from ...engine.landscape import PARTIES, landscape

        p = self.plans[i]
        start = {"w": self.w[i]} | ({} if self.buffers is None else {"buffers": self.buffers[i]})
        by_itself = dataclasses.replace(
            p, per_round=1, algorithm=plain(p.algorithm), guard=(), sampling="fixed"
        )
        alone = [dataclasses.replace(by_itself, members=(k,)) for k in range(min(len(p.fed), 3 * PARTIES))]
        more = Cohort(self.task, [start] * len(alone), [a.run() for a in alone], p.engine)
        more.round(p.rounds)
        test = p.fed.test_at(p.rounds) if len(p.fed.test.y) else p.fed.at(p.rounds)
        some = slice(
            None, None, -(-len(test.y) // 512)
        )  # rows enough for a picture, from all over the test set
        optima = dict(zip(p.fed.parties, more.w))
        return landscape(
            self.task,
            self.w[i],
            optima,
            test.x[some].to(self.w.device),
            test.y[some].to(self.w.device),
            start.get("buffers"),
        )

    def ledger(self, i: int, rounds: list[Event]) -> Ledger:
        """The messages that real parties would have exchanged, one line a kind; a baseline exchanges none."""
        from ...protocols.picking import Pick, Score
        from ...protocols.rounds import Down, Look, Loss, Test, Tested, Upload

        ledger, p = Ledger(), self.plans[i]
        if p.pooled:
            ledger.record(
                "whoever trains the central model",
                "every party",
                "Rows",
                "every row of every party, in the clear",
                how="ideal",
            )
        if not p.talks:
            return ledger
        everyone = f"{len(p.fed)} parties, together" if len(p.fed) > 1 else p.fed.parties[0]
        steps, tests = sum(e["sampled"] for e in rounds), sum(e["tested"] for e in rounds)
        test, tested = test_bytes(self._model(i), p.fed.classes)
        said = upload_reveals(p, self.guards[i] if self.guards else None)
        looked, (ask, answer) = sum(e.get("looked", 0) for e in rounds), look_bytes(self._model(i))
        scored, picked, scores = scores_of(rounds)
        models = sum(e["uploaded"] if "uploaded" in e else e["sampled"] for e in rounds)
        ledger.record(
            "server",
            everyone,
            Upload,
            said,
            count=models,
            bytes=sum(e["bytes_up"] for e in rounds) - looked * answer - scores,
            how="ideal",
        )
        if scored:
            ledger.record("server", everyone, Score, count=scored, bytes=scores, how="ideal")
        if looked:
            ledger.record("server", everyone, Loss, count=looked, bytes=looked * answer, how="ideal")
        ledger.record(
            "server",
            everyone,
            Tested,
            of_tested(p),
            count=tests,
            bytes=tests_bytes(rounds, tested),
            how="ideal",
        )
        ledger.record(
            everyone,
            "server",
            Down,
            count=steps,
            bytes=sum(e["bytes_down"] for e in rounds) - looked * ask - picked,
            how="ideal",
        )
        if scored:
            ledger.record(everyone, "server", Pick, count=scored, bytes=picked, how="ideal")
        if looked:
            ledger.record(everyone, "server", Look, count=looked, bytes=looked * ask, how="ideal")
        ledger.record(everyone, "server", Test, count=tests, bytes=tests * test, how="ideal")
        return ledger


def upload_reveals(p: Plan, guard: Guard | None) -> str | None:
    """What the server learns from one upload, for the ledger; None: what the message itself says."""
    if guard is not None:
        return reveals(guard, weighted=p.private is None)
    if p.private is not None and p.private.private:
        return NOISY
    return SORTED if p.algorithm.sees_each else None


def fitted(plans: list[Plan], task: Task) -> Any:
    """The rule of runs side by side; one that goes layer by layer is told the layers, one that looks at
    models the task.
    """
    rule = plans[0].aggregate
    rule = rule.with_layers(tuple(s.stop - s.start for s in task.parameters))
    return rule.with_task(task, [p.fed.test.x for p in plans])


def plain(algorithm: Algorithm) -> Algorithm:
    """FedAvg with this algorithm's learning rate and solver: what a party does that is left alone."""
    return algorithms.FedAvg(lr=algorithm.lr, solver=algorithm.solver or algorithms.SGD())


def test_bytes(model: State, classes: int | None) -> tuple[int, int]:
    """What one Test and one Tested take on the wire; 0 where msgpack is missing, as on a bare GPU machine."""
    try:
        from ...parties.codec import encode_parts
        from ...protocols.rounds import Test, Tested
    except ImportError:
        return 0, 0
    counts = count(
        torch.zeros(0, classes or 1), torch.zeros(0, dtype=torch.int64 if classes else torch.float32), classes
    )._asdict()
    return sum(map(len, encode_parts(Test(0, {k: v.cpu() for k, v in model.items()})))), sum(
        map(len, encode_parts(Tested(counts)))
    )


def tests_bytes(rounds: list[Event], tested: int) -> int:
    """What all Tested of these rounds take on the wire, if one with counts takes `tested`: a party with too
    few held-out rows sends one without.
    """
    left_out = sum(e.get("untested", 0) for e in rounds)
    return (sum(e["tested"] for e in rounds) - left_out) * tested + left_out * _no_counts()


def _no_counts() -> int:
    """Bytes of a Tested without counts; 0 where msgpack is missing."""
    try:
        from ...parties.codec import encode_parts
        from ...protocols.rounds import Tested
    except ImportError:
        return 0
    return sum(map(len, encode_parts(Tested({}))))


def of_tested(p: Plan) -> str:
    """What the server learns of the parties' held-out rows."""
    if p.noisy_figures:
        noise = next(s for s in p.guard if isinstance(s, Noise))
        whose = "the sum of all parties' figures" if p.sums_only else "one party's figures"
        how = {
            "central": "to which it adds noise",
            "local": "with noise of the party's own",
            "distributed": "with noise of the parties' own",
        }
        return (
            f"{whose} on held-out rows, {how[noise.placement]}: accuracy, clipped mean loss, whether "
            f"there are at least {p.min_rows} rows"
        )
    whose = (
        "the sum of all parties' counts on their held-out rows"
        if p.sums_only
        else f"one party's counts on at least {p.min_rows} held-out rows"
    )
    return f"{whose}: confusion matrix, summed loss, score histograms"


def look_bytes(model: State) -> tuple[int, int]:
    """What one Look and one Loss take on the wire; without msgpack the numbers alone are counted."""
    try:
        from ...parties.codec import encode_parts
        from ...protocols.rounds import Look, Loss
    except ImportError:
        return sum(4 * v.numel() for v in model.values()), 8
    return sum(map(len, encode_parts(Look(0, 0, {k: v.cpu() for k, v in model.items()})))), sum(
        map(len, encode_parts(Loss(0.0)))
    )


def score_bytes(r: int) -> tuple[int, int]:
    """What one Pick and one Score of round r (counted from 1) take on the wire; without msgpack the numbers
    alone are counted.
    """
    try:
        from ...parties.codec import encode_parts
        from ...protocols.picking import Pick, Score
    except ImportError:
        return 9, 8
    return sum(map(len, encode_parts(Pick(r - 1, 0, True)))), sum(map(len, encode_parts(Score(0.0))))


def scores_of(rounds: list[Event]) -> tuple[int, int, int]:
    """(how many scores were stated, bytes of all Picks, bytes of all Scores) in these rounds: everyone who
    states one is told whether its model is wanted.
    """
    each = [(int(e["scored"]), *score_bytes(e["round"])) for e in rounds if "scored" in e]
    return (
        sum(n for n, _, _ in each),
        sum(n * pick for n, pick, _ in each),
        sum(n * score for n, _, score in each),
    )


def sizes(p: Plan, guard: Guard | None, r: int, down: State, up: State) -> tuple[int, int]:
    """What a client hears and sends in round r (counted from 1). Where its updates are hidden, that is more
    than Down and Upload: keys and shares, too.
    """
    if guard is not None and guard.hiding is not None:
        try:
            from .hidden_sums import bytes_of
        except ImportError:  # no msgpack, as on a bare GPU machine
            return wire_bytes(r, down, up)
        return bytes_of(p, guard, r, down)
    return wire_bytes(r, down, up)


def silence() -> int:
    """What an Upload takes whose party has nothing new to say: its weight, and no numbers."""
    return wire_bytes(1, {}, {})[1]


def wire_bytes(r: int, down: State, up: State) -> tuple[int, int]:
    """What one Down and one Upload of round r (counted from 1) take on the wire. Without msgpack (a bare GPU
    machine) the numbers alone are counted.
    """
    try:
        from ...parties.codec import encode_parts
        from ...protocols.rounds import Down, Upload
    except ImportError:
        return sum(4 * v.numel() for v in down.values()), sum(4 * v.numel() for v in up.values())
    return sum(map(len, encode_parts(Down(r - 1, down)))), sum(map(len, encode_parts(Upload(1.0, up))))

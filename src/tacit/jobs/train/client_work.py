"""What a client computes, and which requests of a server it answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import models
from ...accounting import Account
from ...algorithms.types import State
from ...crypto.digest import Digests
from ...data.federation import Federation
from ...data.pipeline import Pipeline
from ...data.private_preparation import PrivatePreparation
from ...data.table_files import reading_in
from ...engine.task import Task
from ...errors import BadData, BadJob, BadRun, BudgetSpent, ProtocolError, TacitError
from ...files import write_atomic
from ...guard import ALL
from ...parties.ledger import Ledger
from ...protocols import joining, rounds
from ...protocols.consent import Commitment
from ...protocols.sum_program import SumRules
from ...release.release import Release, reading_of, write_release
from ...runtimes.nursery import find_program
from ..devices import placed
from ..owner import Owner, check_rows, digest_of
from ..stats.answers import AnswerFile
from . import guards, preparing
from .client_memory import Memory
from .contract import AGREE, Agreement, Contract, Limits, NotAgreed
from .contract_request import request_of
from .counts import blank_tally
from .elsewhere import only_party
from .figures import add_noise, fit_figures
from .from_job import read_code
from .hidden_sums import HiddenCounts, HiddenSum
from .local import Member
from .objective import balance_classes, outputs_of
from .own_loop import Exchange, LoopMember
from .party_rows import PartyTable, load_rows, read_party_table
from .plan import Plan, digest_constants
from .preparation_account import PaidAnswers
from .preparing import PartyPreparation
from .record import STATISTICS, Record
from .row_privacy import RowPrivacy
from .table_defaults import party_l2

log = logging.getLogger("tacit.party")
ACCEPTED = "accepted.jsonl"  # the contracts this party accepted, in its folder
MOST_OFFERS = 1000  # of a server to one process: each is an entry of the owner's log


class ClientWork:
    """What a client computes under the contract that its server offers and its owner agreed to.

    It is also the client's `Consent` (protocols/consent.py).
    """

    def __init__(
        self,
        name: str,
        data: Mapping[str, str],
        state: Path,
        model: str,
        agreement: Agreement | None = None,
        device: str = "cpu",
        again: bool = False,
        watch: Callable[[dict[str, Any]], None] = lambda event: None,
        code: str = "",
        loop: Exchange | None = None,
        owner: Owner | None = None,
    ):
        self.watch, self.code, self.loop, self.owner = watch, code, loop, owner
        self.offers = 0  # that the server made to this process
        self.last_request = ""  # for the display
        self.evaluations = 0  # answered by this process
        self.name, self.data, self.state, self.model, self.agreement, self.device, self.again = (
            name,
            data,
            state,
            model,
            agreement,
            device,
            again,
        )
        self.offer: joining.Work | None = None
        self.contract: Contract | None = None
        self.prepared = asyncio.Event()  # the contract is accepted, and rows are read
        self.table: PartyTable | None = None
        self.program: PartyPreparation | None = None  # of the federated preparation of this table
        self.answers: AnswerFile | None = None  # that this party gave to it
        self.rules: SumRules | None = None
        self.pipeline: Pipeline | None = None  # its result, or what this party fitted alone
        self.fitted = asyncio.Event()
        self.mine: Member | None = None
        self.hidden: HiddenSum | None = None
        self.counted: HiddenCounts | HiddenSum | None = None
        self.account: Account | None = None
        self.statistics = ""  # the text of the preparation's result
        self.run = ""
        self.metrics: dict[str, float] = {}  # that the server sent at the end
        self.folder: Path | None = None  # where the final model is
        self.rows: RowPrivacy | None = None
        self.content = b""  # the digest of what the last update was asked on
        # one thread, so that canceled work is over before the next begins
        self.aside = ThreadPoolExecutor(1, "tacit-work")

    async def ask_owner(self, offer: joining.Work) -> None:
        """Return when the owner allows the server's job; nothing is read before."""
        assert self.owner is not None
        assert self.agreement is not None
        if offer == self.offer:
            return
        self.offers += 1
        if self.offers > MOST_OFFERS:
            raise ProtocolError(f"the server offers {self.name!r} more than {MOST_OFFERS} jobs, one by one.")
        try:
            contract = Contract.read(offer.contract)
            p = self.agreement.check_offer(contract, self._accepted())
            await self.owner.admit(request_of(contract, p, self.agreement.read_template))
        except TacitError as error:
            self.owner.refuse(digest_of(offer.contract), str(error))
            raise

    def prepare(self, offer: joining.Work) -> joining.Ready:
        """Accept a contract: compare it first, then read the rows, then build the model."""
        if offer != self.offer or self.mine is None:
            try:
                self._accept(offer)
                if offer.prepared:
                    self.take_statistics(offer.prepared)
            except TacitError as error:
                if self.owner is not None:
                    self.owner.refuse(digest_of(offer.contract), str(error))
                if self.agreement is not None and self.agreement.agreed is None:
                    # nobody agreed to these columns: not even that they are missing is reported
                    error.outside = TacitError.outside
                raise
            self.offer = offer
            self.watch({"kind": "accepted", "rounds": self.plan.rounds})
            self.prepared.set()
        assert self.mine is not None
        fed = self.mine.fed
        rows, held = int(fed.train.sizes[0]), int(fed.held.sizes[0])
        if self.loop is None and self.plan.hides_sizes:
            rows, held = joining.WITHHELD, joining.WITHHELD
        elif self.is_small:  # it contributes no row, and so its number is nobody's business
            rows, held = joining.TOO_FEW, 0
        shape, task = list(fed.rows.x.shape[1:]), self.mine.task
        # the frozen part of a model is the business of a party's own loop
        frozen = digest_constants(task) if self.loop is None else ""
        return joining.Ready(rows, held, shape, fed.classes or 0, task.dim, frozen)

    @property
    def is_small(self) -> bool:
        """Whether this party has fewer rows than agreed, and contributes none of them."""
        return self.table is not None and self.table.is_small

    def _accept(self, offer: joining.Work) -> None:
        contract = Contract.read(offer.contract)
        own_model = find_program(json.loads(self.model)) if self.model else None
        if self.agreement is None:
            p = replace(contract.plan(own_model, read_code(self.code)), runtime="processes")
        else:
            p = self.agreement.check_offer(contract, self._accepted())
            self._show(contract)
        if (p.client is None) != (self.loop is None):
            raise BadJob(
                "the server's job is for parties with training scripts of their own: start this party with "
                "`tacit party --script script.py`, or with tacit.client."
                if self.loop is None
                else "this party has a training script of its own, and the server's job has no [client] "
                "table: its parties train by tacit's own steps. Start this party with `tacit party --data`."
            )
        if "table" in self.data:
            self._read_table(p, contract)
        self.contract, self.run = contract, offer.run
        self._build(p, contract, offer.run)

    def _read_table(self, p: Plan, contract: Contract) -> None:
        """Read this party's file, and the statistics of an earlier preparation if there was one."""
        layout = contract.tables["data"]
        program = preparing.program_of(p, layout)
        is_new = self.contract is not None and self.contract.digest != contract.digest
        if is_new and (program is not None or self.program is not None):
            raise ProtocolError(
                f"the server offers {self.name!r} another job than the one it began to prepare its table "
                "for. Nothing was sent in answer."
            )
        self.program, self.pipeline, self.statistics = program, None, ""
        self.table = read_party_table(
            self.name, self.data["table"], layout, p.seed, p.private is not None, p.subgroups, self.data
        )
        if self.is_small:
            log.warning(
                "party %r has fewer rows than the %d that the parties agreed on (min_rows, small = 'drop'): "
                "it contributes none of them, takes part in no round, and receives the final model",
                self.name,
                self.table.agreed.min_rows,
            )
        if self.program is None:
            self.pipeline = self.table.fit_alone()
            return
        self.rules = preparing.rules_of(contract.digest, tuple(p.fed.parties))
        self.answers = (
            PaidAnswers(self.state, self.name, contract.digest, program)
            if isinstance(program, PrivatePreparation)
            else AnswerFile(self.state, self.name, contract.digest)
        )
        file = preparing.result_file(self.state, contract.digest)
        bound = Record(self.state, self.name, contract.digest).bound.get(STATISTICS)
        if bound is not None and file.exists():
            text = file.read_text()
            if preparing.digest_of(text) != bound:
                raise BadRun(f"{file} was modified. It holds the statistics of this job: restore it.")
            pipeline = preparing.check_result(text, self.program.pipeline, self.program)
            preparing.check_label_counts(pipeline, self.program, self.table)
            self.pipeline, self.statistics = pipeline, text
            self.fitted.set()

    def take_statistics(self, text: str) -> None:
        """Accept the result of the preparation: once, for ever."""
        if self.program is None or self.contract is None or self.table is None:
            raise ProtocolError(
                f"the server sends {self.name!r} statistics, and the agreed job has no preparation. Nothing "
                "was sent in answer."
            )
        pipeline = preparing.check_result(text, self.program.pipeline, self.program)
        preparing.check_label_counts(pipeline, self.program, self.table)
        if STATISTICS not in self.record.bound:
            preparing.check_rows(self.table, pipeline)
        # before it is bound: what is bound must be there after a crash
        if STATISTICS not in self.record.bound:
            write_atomic(preparing.result_file(self.state, self.contract.digest), text)
        self.record.bind(STATISTICS, bytes.fromhex(preparing.digest_of(text)))
        if self.pipeline is None:
            self.pipeline, self.statistics = pipeline, text
            self._build(self.plan, self.contract, self.run)
            self.fitted.set()

    def _build(self, p: Plan, contract: Contract, run: str) -> None:
        terms = contract.tables
        # without its statistics a table is encoded by its own: that shows what does not fit, and no more
        fed: Federation
        if self.loop is not None:  # its rows are the business of its owner's loop
            fed = only_party(p.fed, self.name)
        elif self.table is None:
            fed = load_rows(Path(self.data["folder"]))
        else:
            fed = self.table.encode(self.pipeline)
        p = balance_classes(p, self.pipeline)
        if p.l2 is None:  # it follows from the number of rows
            p = replace(p, l2=party_l2(int(fed.train.sizes[0]), len(p.fed.parties)))
        binding = preparing.bind_statistics(contract.digest, self.statistics)
        shape, classes = list(fed.rows.x.shape[1:]), fed.classes or 0
        if shape != terms["features"] or classes != terms["classes"]:
            why = (
                f"the rows of {self.name!r} have the shape {shape} and {classes} classes; the job is for "
                f"{terms['features']} and {terms['classes']}. "
                "Agree on the columns and labels with the server's operator."
            )
            raise BadData(why, outside=why)
        limits = (
            None if self.agreement is None or self.agreement.agreed is not None else self.agreement.limits
        )
        if limits is not None and self.loop is not None:
            raise NotAgreed(f"the server's job is for training scripts of the parties' own. {AGREE}")
        if limits is not None and int(fed.train.sizes[0]) < limits.batch_size:
            raise NotAgreed(
                f"with the server's job {self.name!r} would train on {int(fed.train.sizes[0])} rows; "
                "without an agreed job at least "
                f"{limits.batch_size} are required, because an update from few rows reveals them."
            )
        if self.name not in p.fed.parties:
            raise BadJob(f"{self.name!r} is not among the parties of the server's job.")
        if self.owner is not None and self.loop is None:
            check_rows(self.owner.policy, int(fed.train.sizes[0]))

        def build_task() -> Task:
            module = models.build(p.model, tuple(shape), outputs_of(fed), p.seed).to(self.device)
            x, y = fed.at(0).to(self.device)
            task = Task(module, x, y, p.objective, p.precision)
            return task if self.rows is None else self.rows.task(task)

        self.state.mkdir(parents=True, exist_ok=True)
        self.record = Record(self.state, self.name, contract.digest)
        lifetime = None if self.agreement is None else self.agreement.lifetime
        self.rows = (
            None
            if p.private is None
            else RowPrivacy(p, self.name, fed, self.state, contract.digest, self.record, lifetime)
        )
        task = build_task()
        guard = guards.fit(p, task, task.initial())
        if guard is not None:
            guard.insecure_seed = None  # a party's secrets are its own
        self.plan, self.paced, self.scores = p, p.pace is not None, p.picks
        if self.again:
            if self.record.uploads:
                log.warning(
                    "party %r: --again does not apply: hidden sums of this contract stay spent. Change the "
                    "job's seed to start over",
                    self.name,
                )
            self.record.allow_again()
            self.again = False
        if "table" in self.data:
            self._bind_data(Path(self.data["table"]))
        if self.loop is None and int(fed.train.sizes[0]) < Limits().batch_size:
            log.warning(
                "party %r trains on %d rows: an update from so few rows can show them",
                self.name,
                int(fed.train.sizes[0]),
            )
        self.figures = fit_figures(p, guard)
        self.evaluation_release = None if guard is None else guards.evaluation_release(p, guard)
        self.account = guards.own_account(p, guard, self.state, contract.digest, lifetime)
        self.hidden = self.counted = None
        if guard is not None and guard.hiding is not None:
            self.hidden = HiddenSum(guard, binding)
        if self.hidden is not None and guard is not None and self.loop is None:
            self.counted = (
                HiddenCounts(guard, len(p.fed), blank_tally(replace(p, fed=fed)), binding)
                if self.figures is None
                else HiddenSum(self.figures, binding)
            )
        settings = (
            p.algorithm,
            p.seed,
            p.local_epochs[p.fed.parties.index(self.name)],
            p.batch_size,
            p.local_steps,
            guard,
            p.party_rules,
        )
        self.mine = (
            Member(self.name, fed, task, *settings)
            if self.loop is None
            else LoopMember(self.loop, p, self.name, fed, task, *settings)
        )
        # a paced client tests while it trains: two threads must not share a module
        self.tester = Member(self.name, fed, build_task(), *settings) if self.paced else self.mine
        self.memory = Memory(self.state, run, self.mine.fresh_state())

    def _bind_data(self, file: Path) -> None:
        """One file, read in one way, for one contract: answers on two files that differ by a row show it."""
        with open(file, "rb") as data:
            digest = hashlib.file_digest(data, "sha256").digest()
        if own := reading_in(self.data):  # read by other options, the same bytes are other rows
            digest = hashlib.sha256(digest + json.dumps(own, sort_keys=True).encode()).digest()
        if self.record.bound.get("data", digest.hex()) != digest.hex():
            raise BadRun(
                f"{file} is not the file that {self.name!r} answered this job with before, or it is read by "
                "other options (separator, decimal, encoding): answers on both would show the difference. "
                "Put the old one back, restart the party with --again, or, with hidden sums, change the "
                "job's seed."
            )
        self.record.bind("data", digest)

    # --- what the owner is shown ----------------------------------------------------------------------------

    def _accepted(self) -> list[dict[str, Any]]:
        """The contracts this party accepted before."""
        file = self.state / ACCEPTED
        return (
            [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
            if file.exists()
            else []
        )

    def _show(self, contract: Contract) -> None:
        """Keep what was accepted, and say it in the log."""
        assert self.agreement is not None
        hiding = next((stage for stage in contract.tables["guard"] if ALL[stage["name"]].hides), None)
        how = (
            f"as agreed in {self.agreement.source}"
            if self.agreement.agreed is not None
            else "by default limits: no job file was given"
        )
        log.info("party %r accepted %s (%s)", self.name, contract.describe(), how)
        self.state.mkdir(parents=True, exist_ok=True)
        write_atomic(
            self.state / f"contract-{contract.digest[:12]}.json", json.dumps(contract.tables, indent=1)
        )
        file = self.state / ACCEPTED
        lines = file.read_text() if file.exists() else ""
        if contract.digest not in lines:
            write_atomic(
                file,
                lines
                + json.dumps({"contract": contract.digest, "hiding": hiding, "agreed": self.agreement.source})
                + "\n",
            )

    def record_end(self, reason: str) -> None:
        """Record that the run ended for this party; `reason` is the error, or ""."""
        if self.owner is not None and self.contract is not None:
            self.owner.end(self.contract.digest, reason)

    def allow_step(self, step: int, steps: int) -> None:
        """Raise if the owner no longer allows the job; else record the sum that is about to be answered."""
        if self.owner is not None and self.contract is not None:
            what = f"preparation, step {step + 1} of {steps}"
            try:
                self.owner.check_running(self.contract.digest)
            except TacitError as error:
                self.owner.refuse(self.contract.digest, f"{what}: {error}")
                raise
            self.owner.answer(self.contract.digest, what)

    def report_step(self, step: int, steps: int) -> None:
        self.watch({"kind": "prepared", "step": step + 1, "steps": steps})

    def report(self) -> None:
        """Tell the display what was answered last."""
        if self.mine is not None:
            self.watch(
                {
                    "kind": "answered",
                    "request": self.last_request,
                    "round": self.rounds_answered,
                    "rounds": self.plan.rounds,
                }
            )

    @property
    def rounds_answered(self) -> int:
        """How many updates this party has sent or masked under this contract, also in earlier processes."""
        what = "order " if self.paced else "content "
        return sum(key.startswith(what) for key in self.record.bound)

    def summary(self) -> dict[str, Any]:
        """Return what this party contributed to the run."""
        account = self.account if self.rows is None else self.rows.account
        if self.mine is None:
            return {
                "rounds_answered": 0,
                "rounds": 0,
                "small": False,
                "evaluations": 0,
                "epsilon": None,
                "preparation_epsilon": None,
                "metric": None,
                "metrics": {},
                "model": None,
            }
        return {
            "rounds_answered": self.rounds_answered,
            "rounds": self.plan.rounds,
            "small": self.is_small,
            "evaluations": self.evaluations,
            "epsilon": None if account is None else account.epsilon(),
            "preparation_epsilon": self.answers.account.epsilon()
            if isinstance(self.answers, PaidAnswers) and self.answers.account.spent
            else None,
            "metric": self.plan.metric,
            "metrics": self.metrics,
            "model": None if self.folder is None else str(self.folder),
        }

    def finish(self, final: joining.Final) -> None:
        """Write the final model, with all that is needed to use it, into this party's folder."""
        mine, p = self._ready(), self.plan
        assert self.contract is not None
        if final.run != self.run:
            raise ProtocolError(
                f"the server sends {self.name!r} the model of another run. It was not written."
            )
        vectors = dict(final.vectors)
        self._check_vectors(p.rounds - 1, vectors, mine)
        if not torch.isfinite(vectors["w"]).all():
            log.warning("party %r: the final model is not finite: the run diverged", self.name)
        self.metrics = {
            str(k)[:60]: v for k, v in list(final.metrics.items())[:100] if isinstance(v, int | float)
        }
        release = Release.of(
            p.model,
            mine.fed,
            self.pipeline,
            p.threshold,
            party=self.name,
            contract=self.contract.digest,
            run=self.run,
            # its own file's options stay here: they are in no message
            **reading_of({**self.contract.tables["data"], **reading_in(self.data)}),
        )
        model: State = {k: v for k, v in vectors.items() if k in ("w", "buffers")}
        self.folder = write_release(
            self.state / "model", release, mine.task.module_at(model["w"], model.get("buffers"))
        )
        memory = None if self.paced else self.memory.now
        if memory and mine.algorithm.personalizes:
            own: State = dict(model)
            own.update(mine.algorithm.personal(mine.task, placed(mine.task.x.device, vectors), memory))
            write_release(
                self.state / "own-model", release, mine.task.module_at(own["w"], own.get("buffers"))
            )

    # --- consent: which requests are answered ---------------------------------------------------------------

    def admit(self, kind: str, r: int, sent: Digests) -> bool:
        """Check a request against the contract and the owner, before anything is computed for it.

        What is going to be answered is in the owner's log before it is computed.
        """
        if self.owner is None or self.contract is None:
            return self._admit(kind, r, sent)
        digest, what = self.contract.digest, f"{kind} of round {r + 1}"
        try:
            self.owner.check_running(digest)
            admitted = self._admit(kind, r, sent)
        except TacitError as error:
            self.owner.refuse(digest, f"{what}: {error}")
            raise
        if admitted:
            self.owner.answer(digest, what)
        else:
            self.owner.refuse(digest, f"{what}: it was answered before")
        return admitted

    def _admit(self, kind: str, r: int, sent: Digests) -> bool:
        mine, p = self._ready(), self.plan
        if self.is_small:
            raise ProtocolError(
                f"the server asks {self.name!r} for a {kind} of round {r + 1}; it has fewer rows than agreed "
                "(min_rows) and contributes none. Nothing was sent."
            )
        self.last_request = kind
        last = p.rounds - (kind != "test")  # a test of round r is one of the model after it
        allowed = {
            "update": 0 <= r <= last,
            "loss": p.asks_losses and 0 <= r <= last,
            "test": (self.agreement is None or p.reports)
            and ((-1 <= r < p.rounds and p.evaluates(r + 1)) or (r == p.rounds and p.stops_members)),
        }
        if not allowed[kind]:
            raise ProtocolError(
                f"the server asks {self.name!r} for a {kind} of round {r + 1}, which is not part of the "
                f"contract ({p.rounds} rounds, losses "
                f"{'requested' if p.asks_losses else 'not requested'}, evaluation every "
                f"{p.evaluate_every or p.rounds} rounds{', and once at the end' * p.stops_members}). Nothing "
                "was sent."
            )
        self._check_vectors(r, {k: v for k, v in sent.vectors.items() if k != rounds.SESSION}, mine)
        hides = self.hidden is not None and kind != "loss"
        if hides and self.record.spent(kind, r):
            log.warning(
                "party %r is asked for round %d (%s) again, and took part in a sum of it; it does not take "
                "part in another",
                self.name,
                r + 1,
                kind,
            )
            return False
        if kind == "test" and hides and self.figures is None and not int(mine.fed.held.sizes[0]):
            return False  # it would add nothing, and yet count towards the threshold
        model = sent.of(("w", "buffers"))
        self.record.bind(f"model {r + (kind == 'test')}", model)
        # counts over other participants could be subtracted
        if kind == "test" and hides and self.record.earlier("test", r, "model", model, shift=1):
            log.warning(
                "party %r already reported counts of this model, and does not report them again", self.name
            )
            return False
        if kind == "update":
            content = sent.of(k for k in sent.vectors if k not in ("round", rounds.SESSION))
            self.record.bind(f"content {r}", content)
            self.content = content
            if hides and self._whole_batches and self.record.earlier("update", r, "content", content):
                log.warning(
                    "party %r is asked in round %d for the update on a model that it has answered; with "
                    "whole batches it would be the same update, so "
                    "it does not take part",
                    self.name,
                    r + 1,
                )
                return False
        return True

    @property
    def _whole_batches(self) -> bool:
        """Whether every local step takes all rows, so that the same model gives the same update."""
        rows = int(self._ready().fed.train.sizes[0])
        return self.plan.batch_size is None or rows <= self.plan.batch_size

    def commit(self, kind: str, r: int) -> Commitment:
        def pay() -> None:
            if kind == "update":
                self._pay(r)
                if self.rows is not None:
                    self.rows.pay(r)  # once: of a hidden round at most one sum is opened
            else:
                self._pay_test(r)

        return self.record.commit(kind, r, pay)

    # --- what is computed -----------------------------------------------------------------------------------

    async def local_in_thread(self, number: int, version: int, down: State) -> tuple[float, State]:
        """Train on a thread of its own: meanwhile the server may send a model to test, or a new order."""
        # one party may do all the work of a run
        most = self.plan.rounds * max(len(self.plan.fed), self.plan.pace.buffer)
        if not 0 <= number < most:
            raise ProtocolError(
                f"the server asks {self.name!r} for its piece of work number {number + 1}; the contract has "
                f"{most}. Nothing was sent."
            )
        self.record.bind(f"order {number}", Digests(down).of(None, str(version)))
        return await asyncio.get_running_loop().run_in_executor(self.aside, self.local, version, down, number)

    async def local_in_loop(self, r: int, down: State) -> tuple[float, State]:
        """Train by the owner's loop, in its own thread: it may take hours, and messages still arrive."""
        return await asyncio.get_running_loop().run_in_executor(self.aside, self.local, r, down)

    def local(self, r: int, down: State, work: int | None = None) -> tuple[float, State]:
        mine = self._ready()
        rows = None if self.hidden is not None else self.rows  # a hidden update is paid for when it is sent
        if rows is not None and (stored := rows.stored(r, self.content)) is not None:
            return stored
        before = {} if self.paced else self.memory.before(r)
        if self.hidden is None:
            self._pay(r)
        weight, vectors, after = mine.local(r, down, before, work)
        # once in 10²² draws; never silently
        if mine.guard is not None and (lost := mine.guard.events.pop("out of range", 0)):
            log.warning(
                "party %r: %d numbers of round %d did not fit the range agreed with their noise, and were "
                "cut off at its ends",
                self.name,
                lost,
                r + 1,
            )
        for key, value in vectors.items():
            if not torch.isfinite(value).all():
                raise BadData(
                    f"the update of {self.name!r} in round {r + 1} holds NaN or infinity ({key}), so it is "
                    "not sent. The learning rate is too large "
                    "for these rows, or a number among them is out of all proportion."
                )
        if not self.paced:  # paced algorithms have no client state
            self.memory.keep(r, before, after)  # before it is sent: a server with our update may rely on it
        if rows is not None:
            rows.release(r, self.content, weight, vectors)
        return weight, vectors

    def _pay(self, r: int) -> None:
        """Charge the account before every answer: a repeated one has other noise, and is another release.

        Of a hidden round at most one sum is opened.
        """
        if self.account is None:
            return
        updates = self.account.spent - self.record.evaluations  # in doubt, an answer counts as an update
        if updates >= self.plan.rounds or not self.account.may_spend():
            cost = (
                f" and once more would cost ε = {self.account.epsilon(self.account.spent + 1):.4g} of "
                f"{self.account.budget:g}"
                if self.account.budget
                else ""
            )
            raise BudgetSpent(
                f"the server asks for round {r + 1}, and {self.name!r} has answered {updates} of the "
                f"{self.plan.rounds} times it "
                f"agreed to{cost}. Nothing more was sent."
            )
        self.account.spend(r + 1)

    def record_spending(self, ledger: Ledger) -> None:
        """Write what this party's account has into its own ledger."""
        if (
            self.agreement is not None
            and self.account is not None
            and self.account.spent
            and self.mine is not None
            and self.mine.guard is not None
        ):
            ledger.spend(guards.own_spend(self.plan, self.mine.guard, self.account, self.record.evaluations))
        if isinstance(self.answers, PaidAnswers):
            if self.answers.account.spent:
                ledger.spend(self.answers.spending())
        elif self.agreement is not None and self.statistics and len(self.plan.fed) == 2:
            ledger.stamp(preparing.TWO)
        if self.contract is not None and self.statistics and self.plan.label_counts is not None:
            preparing.record_label_counts(ledger, self.name, self.contract.tables["server"])
        if self.agreement is not None and self.rows is not None and self.rows.account.spent:
            ledger.spend(self.rows.spending())

    def _pay_test(self, r: int) -> None:
        if self.account is not None and self.evaluation_release is not None:
            self.account.spend(r + 1, self.evaluation_release)

    def look(self, r: int, down: State) -> float:
        return self._ready().loss(r, down)

    def test(self, r: int, down: State) -> State:
        mine = self._ready()
        self.evaluations += 1
        memory = None if self.paced else self.memory.now
        if self.figures is None:
            return self.tester.test(r, down, memory, summed=self.counted is not None)
        if r in self.record.figures:
            return self._pack_figures(r)  # the same numbers reveal nothing more
        assert mine.fed.classes is not None
        tally = self.tester.tally(r, down, memory)
        counts = {} if tally is None else tally.total._asdict()
        sent = add_noise(self.figures, self.name, r, counts, mine.fed.classes)
        if self.counted is not None or self.account is None:
            return sent  # a hidden answer is paid for when it is sent; the server pays for noise of its own
        self._pay_test(r)
        self.record.keep_figures(r, self.figures.unpack(sent, r).tolist())
        return self._pack_figures(r)

    def _pack_figures(self, r: int) -> State:
        assert self.figures is not None
        return self.figures.pack(torch.tensor(self.record.figures[r], dtype=torch.int64), r)

    def _ready(self) -> Member:
        if self.mine is None:
            raise ProtocolError("the server sends a round before a job. Is it the same version of tacit?")
        if self.program is not None and self.pipeline is None:
            raise ProtocolError(
                f"the server asks {self.name!r} for a round before the statistics of the tables are "
                "computed. Nothing was sent."
            )
        return self.mine

    def _check_vectors(self, r: int, down: Mapping[str, Tensor], mine: Member) -> None:
        """Check that the model has this job's shape, and that every vector is one that the job reads."""
        w = down.get("w")
        if w is None or w.shape != (mine.task.dim,) or w.dtype != torch.float32:
            what = "no model" if w is None else f"a model of shape {tuple(w.shape)} and {w.dtype}"
            raise ProtocolError(
                f"the server sends {what} in round {r + 1}; {mine.name!r} has one of {mine.task.dim} "
                "float32 numbers. "
                "Do both run the same job?"
            )
        if "round" in down and (down["round"].numel() != 1 or float(down["round"]) != r):
            raise ProtocolError(
                f"the server sends the number of another round with round {r + 1}. Do both run the same "
                "version of tacit?"
            )
        state = {**mine.algorithm.server_state(w), **mine.task.initial()}
        for key in ("buffers", *mine.algorithm.sends):
            value, like = down.get(key), state.get(key)
            if value is not None and (
                like is None
                or value.shape != like.shape
                or value.dtype != like.dtype
                or not torch.isfinite(value.float()).all()
            ):
                raise ProtocolError(
                    f"the server sends {key!r} in round {r + 1} in another form than this job has it, or "
                    "with NaN or infinity in it."
                )
        unknown = [
            k
            for k in down
            if k not in ("w", "buffers", "round", *mine.algorithm.sends)
            and not (mine.guard is not None and k.startswith("guard."))
        ]
        if unknown:
            raise ProtocolError(
                f"the server sends {unknown[0]!r:.40} in round {r + 1}, which nothing in this job reads. Do "
                "both run the same version of tacit?"
            )

"""DP-SGD at a real party: its public number of rows, its own account, and the answers it gave.

The server has no part in the noise and no say in the account. A party charges a round's local steps to its
account before the update leaves, in a file of its own that is keyed by the contract. An update that is asked
for again is the stored one, bit for bit: it reveals nothing more and costs nothing more.

If the contract declares no `public_size`, the party draws a noisy number of its rows once, charges it, and
keeps it. It is not sent.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...accounting import Account
from ...accounting.account import FILE
from ...algorithms.types import State
from ...data.federation import Federation
from ...engine.task import Task
from ...errors import BadRun, BudgetSpent
from ...files import write_atomic
from ...guard.stage import source
from ...parties.ledger import Spend
from ...private.session import spend
from ...private.size import count_release, noisy_count
from .local_dp import PLURAL, SERVER, PrivateTask, count_units, describe_size, settings_of, terms, unit_of

if TYPE_CHECKING:
    from .plan import Plan
    from .record import Record

ANSWER = "answer.safetensors"  # the last update, in the party's folder


class RowPrivacy:
    """One party's DP-SGD under one contract."""

    def __init__(
        self,
        p: Plan,
        name: str,
        fed: Federation,
        folder: Path,
        contract: str,
        record: Record,
        lifetime: float | None = None,
    ):
        self.name, self.folder, self.contract, self.record = name, folder, contract, record
        self.settings = settings_of(p)
        self.rounds = p.rounds
        count = None if self.settings.public_size is not None else count_release(self.settings)
        size = self.settings.public_size if count is None else record.count
        drawn = size is None
        if size is None:
            assert count is not None
            size = noisy_count(count_units(fed, 0), count, source(None, "number of rows", name))
        epochs = p.local_epochs[p.fed.parties.index(name)]
        self.terms = terms(p, size, epochs)
        assert self.terms.release is not None  # config/conflicts: real parties add noise
        limit = self.terms.steps * p.rounds + (count is not None)
        self.account = Account(
            self.terms.release,
            self.settings.delta,
            self.settings.epsilon,
            limit,
            folder / FILE,
            limit=limit,
            key=f"{contract} rows",  # beside the releases of a guard's noise
            total=lifetime,
        )
        if drawn:
            assert count is not None
            self.account.spend(0, count)
            size = record.keep_count(size)
        self.size = size
        self.plan = replace(p, fed=fed, public_sizes=(size,), local_epochs=(epochs,))

    def task(self, task: Task) -> PrivateTask:
        """Return the task whose gradients are clipped and noisy."""
        return PrivateTask.of(task, self.plan)

    def pay(self, r: int) -> None:
        """Charge the local steps of one update, or raise BudgetSpent."""
        try:
            self.account.spend(r + 1, times=self.terms.steps)
        except BudgetSpent as error:
            raise BudgetSpent(
                f"the server asks {self.name!r} for round {r + 1}, which its account does not cover: {error}"
            ) from None

    # --- answers --------------------------------------------------------------------------------------------

    def stored(self, r: int, content: bytes) -> tuple[float, State] | None:
        """Return the update that this party computed on this content in round r; None if it has none."""
        from safetensors import SafetensorError, safe_open

        file = self.folder / ANSWER
        if not file.exists():
            return None
        try:
            with safe_open(file, "pt") as f:
                metadata = f.metadata() or {}
                wanted = {"contract": self.contract, "round": str(r), "content": content.hex()}
                if any(metadata.get(key) != value for key, value in wanted.items()):
                    return None
                weight, answer = float(metadata["weight"]), metadata["answer"]
                vectors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118  # not a dict
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise BadRun(
                f"{file} cannot be read: {error}. It is the last update of this party. Restore it from a "
                "copy, or remove it: the round is then charged again."
            ) from None
        self.settle(r, answer)  # a crash may have come between the two
        return weight, vectors

    def release(self, r: int, content: bytes, weight: float, vectors: State) -> None:
        """Keep an update, then pay for it: when this returns it may be sent, also again."""
        from safetensors.torch import save

        answer = secrets.token_hex(8)
        metadata = {
            "answer": answer,
            "contract": self.contract,
            "round": str(r),
            "content": content.hex(),
            "weight": repr(weight),
        }
        write_atomic(
            self.folder / ANSWER, save({k: v.contiguous() for k, v in vectors.items()}, metadata), 0o600
        )
        self.settle(r, answer)

    def settle(self, r: int, answer: str) -> None:
        """Pay for an update of round r, unless this very one was paid for."""
        if answer not in self.record.paid:
            self.pay(r)
            self.record.keep_paid(answer)

    def spending(self) -> Spend:
        """Return the line of this party's own ledger: what its account has for this contract."""
        s = self.settings
        unit, known = unit_of(self.plan), describe_size(self.plan)
        who = f"{unit} of {self.name}"
        return spend(s, self.account, self.terms.width, self.size, who, SERVER, known, PLURAL[unit])

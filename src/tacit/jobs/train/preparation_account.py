"""A party's own account of a noisy preparation (`fit_epsilon`): paid once, before its answer leaves.

The charge is a line of the party's account file, beside those of training and of statistics, so that its
lifetime ε covers all of them. The vector that answers the sum, noise included, is kept on disk and sent
again if the server asks again: a repeated answer costs nothing more and reveals nothing more.

    1  the file of answers says that a charge follows     killed after 1: the restarted party charges
    2  the account is charged                             killed after 2: nothing was sent; it draws again
    3  the vector is kept, and may be sent                killed after 3: the same vector is sent again

An account that was charged while the file of answers does not know of it was charged for an answer that is
lost, and may have been sent: then nothing is sent any more.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ...accounting import Account, Release, discrete
from ...accounting.account import FILE
from ...data.private_preparation import PrivatePreparation
from ...errors import BudgetSpent
from ...parties.ledger import Spend
from ..stats.answers import AnswerFile


def release_of(program: PrivatePreparation) -> Release:
    """Return the whole sum as an account charges it."""
    rho = discrete.rho_of(program.epsilon, program.delta)
    return Release(math.sqrt(1 / (2 * rho)), accountant="zcdp")


class PaidAnswers(AnswerFile):
    """The answers of a noisy preparation under one contract."""

    def __init__(self, folder: Path, party: str, contract: str, program: PrivatePreparation):
        super().__init__(folder, party, contract)
        self.program = program
        self.account = Account(
            release_of(program),
            program.delta,
            program.epsilon,
            1,
            folder / FILE,
            limit=1,
            key=f"{contract} preparation",  # beside the releases of training
        )

    def keep(self, step: int, sent: bytes, vector: np.ndarray) -> None:
        """Pay for an answer, then keep it: when this returns it may be sent, also again."""
        may_pay = self.account.may_spend()  # reads the file
        if not may_pay and not self.charged:
            raise BudgetSpent(
                f"the server asks {self.party!r} for the noisy sum of the preparation. Its account was "
                f"charged for it before, and {self.file} does not have what it answered: another answer "
                f"would be a second release. Restore that file from a copy, or agree on another job. "
                "Nothing was sent."
            )
        if not self.charged:
            self.record_charge()
        if may_pay:
            self.account.spend(0)
        super().keep(step, sent, vector)

    def spending(self) -> Spend:
        """Return the line of this party's own ledger."""
        return Spend(**self.program.spend)

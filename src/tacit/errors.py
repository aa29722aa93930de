"""Every error a user can cause, as one small tree.

TacitError
├── BadParameter     a parameter has a value it may not have          (also a ValueError)
├── BadData          rows, columns or labels that cannot be used      (also a ValueError)
├── MissingFiles     a data set's files are not where they should be  (also a FileNotFoundError)
├── MissingExtra     an optional dependency is not installed          (also an ImportError)
├── BadJob           a job file cannot be understood                  (also a ValueError)
├── BadRun           a run directory cannot be read, resumed or written
├── ProtocolError    a party said something the protocol does not allow
│   ├── BadFrame     bytes that are no message                        (also a ValueError)
│   ├── SumAborted   too few parties stayed for a secure sum; nothing was opened
│   └── SealBroken   what came was changed on its way, or is not from whom it should be
├── BudgetSpent      a step that the privacy budget does not cover
├── QueryRefused     a query that the data holder's policy does not allow
├── BadKit           a start kit or a certificate cannot be used
├── NoHub            the hub cannot be reached, or does not let this party in
└── PartyFailed      a party's program stopped with an error; it names the party

Each message says what happened, why, and what to do next.
"""

from __future__ import annotations


class TacitError(Exception):
    """The root: `except tacit.TacitError` catches everything tacit says about your input. `outside` is what
    other parties are told instead of the message, which may name local files and values.
    """

    outside: str = "it declined; its own log says why"


class BadParameter(TacitError, ValueError):
    pass


class BadData(TacitError, ValueError):
    """Something is wrong with rows, and the sentence may quote them: it is for who holds them. `outside` is
    what other parties are told instead.
    """

    def __init__(
        self,
        *said: object,
        outside: str = "its data do not fit the job. What is wrong with them, only the party itself is told",
    ):
        super().__init__(*said)
        self.outside = outside


class MissingFiles(TacitError, FileNotFoundError):
    outside = "its data are not where it said. Where that is, only the party itself is told"


class MissingExtra(TacitError, ImportError):
    def __init__(self, what: str, extra: str, package: str):
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed. Install it with: pip install "
            f"'tacit[{extra}]'"
        )


class BadJob(TacitError, ValueError):
    pass


class BadRun(TacitError):
    pass


class ProtocolError(TacitError):
    pass


class BadFrame(ProtocolError, ValueError):
    pass


class SumAborted(ProtocolError):
    """`spent`: parties took part in an earlier sum of the round, and do not take part in another. The round
    is lost.
    """

    def __init__(self, *args: object, spent: bool = False):
        super().__init__(*args)
        self.spent = spent


class SealBroken(ProtocolError):
    pass


class BudgetSpent(TacitError):
    pass


class QueryRefused(TacitError):
    pass


class BadKit(TacitError):
    pass


class NoHub(TacitError):
    pass


class PartyFailed(TacitError):
    def __init__(self, party: str, error: BaseException):
        super().__init__(f"party {party!r} failed: {type(error).__name__}: {error}")
        self.party = party
        self.error = error

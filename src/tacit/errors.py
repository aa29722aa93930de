"""The exceptions that tacit raises for bad input.

TacitError
├── BadParameter     a parameter has an invalid value                 (also a ValueError)
├── BadData          rows, columns or labels that cannot be used      (also a ValueError)
├── MissingFiles     the files of a data set are missing              (also a FileNotFoundError)
├── MissingExtra     an optional dependency is not installed          (also an ImportError)
├── BadJob           a job file is invalid                            (also a ValueError)
├── BadRun           a run directory cannot be read, resumed or written
├── ProtocolError    a party sent something that the protocol does not allow
│   ├── BadFrame     bytes that are not a message                     (also a ValueError)
│   ├── SumAborted   too few parties were left for a secure sum; nothing was opened
│   ├── SealBroken   a message was modified, or has another sender than it claims
│   └── PartyStopped another party of the run stopped with an error, and said so
├── BudgetSpent      the privacy budget does not cover a step
├── ReleaseRefused   an attack on a synthetic table exceeds a limit; nothing was written
├── QueryRefused     the data holder's policy does not allow a query
├── BadKit           a start kit or a certificate cannot be used
├── NoHub            the hub cannot be reached, or does not admit this party
├── RankLost         a process of a simulation over several ranks stopped; it names the rank
└── PartyFailed      a party's program stopped with an error; it names the party

Each message says what happened, what is allowed, and what to do.
"""

from __future__ import annotations


class TacitError(Exception):
    """The base class of all errors of tacit.

    `outside` is the text that other parties get instead of the message, which may contain local file names
    and values.
    """

    outside: str = "it declined; its own log says why"


class BadParameter(TacitError, ValueError):
    pass


class BadData(TacitError, ValueError):
    """Unusable rows, columns or labels. The message may quote values; other parties get `outside`."""

    def __init__(
        self,
        *args: object,
        outside: str = "its data do not fit the job. What is wrong with them, only the party itself is told",
    ):
        super().__init__(*args)
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
    """A secure sum failed.

    `spent`: parties contributed to an earlier sum of the round and contribute to no other. The round is lost.
    """

    def __init__(self, *args: object, spent: bool = False):
        super().__init__(*args)
        self.spent = spent


class SealBroken(ProtocolError):
    pass


class PartyStopped(ProtocolError):
    pass


class BudgetSpent(TacitError):
    pass


class ReleaseRefused(TacitError):
    pass


class QueryRefused(TacitError):
    pass


class BadKit(TacitError):
    pass


class NoHub(TacitError):
    pass


class RankLost(TacitError):
    pass


class PartyFailed(TacitError):
    def __init__(self, party: str, error: BaseException):
        super().__init__(f"party {party!r} failed: {type(error).__name__}: {error}")
        self.party = party
        self.error = error

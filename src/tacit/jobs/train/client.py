"""tacit.client: a training script of your own as one party of a federation.

    with tacit.client() as c:
        for task in c:
            model.load_state_dict(task.weights)
            ...                                   # your own training
            c.send(model.state_dict(), rows=n)

The script is started by `tacit.train(…, client="script.py")`, once for each party, or by `tacit party --kit
KIT --script script.py job.toml`; or it names its kit itself: `tacit.client(kit="kits/a", job="job.toml")`.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from ...data.inputs import Inputs
from ...errors import BadParameter, TacitError
from ...parties.ledger import Ledger
from .member import member
from .own_loop import Exchange, LoopTask
from .party_rows import load_rows

Run = Callable[[Exchange], dict[str, Any]]  # a party's program, to its end


class Client:
    """The party that a script trains for; iterate over it to get its tasks."""

    def __init__(self, party: str, run: Run, folder: str = ""):
        self.party = party
        self.result: dict[str, Any] = {}  # what the party contributed, once the run has ended
        self._run, self._folder, self._exchange = run, folder, Exchange(party)
        self._thread = threading.Thread(target=self._work, name="tacit-client", daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[LoopTask]:
        return self

    def __next__(self) -> LoopTask:
        if not self._thread.ident:
            raise BadParameter(
                "client: it is not connected. Write: with tacit.client() as c: for task in c: …"
            )
        task = self._exchange.next()
        if task is None:
            raise StopIteration
        return task

    def send(
        self, weights: Mapping[str, Any], *, rows: int, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Answer the current task: trained weights, and on how many rows.

        `weights` are tensors or arrays by name; those that are not trained in this job stay here. Of
        `metrics` only those that the job names are sent.
        """
        self._exchange.send(weights, rows, metrics)

    def rows(self) -> tuple[Any, Tensor]:
        """Return this party's training rows, x and y, where a simulation has them.

        x is a tensor, or a dictionary or a tuple of tensors, as the federation was made of.
        """
        if not self._folder:
            raise BadParameter(
                "client: there are no rows here. tacit.train(fed, client=…) has them if it is given a "
                "federation; between real parties read your own file."
            )
        fed = load_rows(Path(self._folder))
        x, y = fed.at(0).take(fed.train.index)
        return x.values() if isinstance(x, Inputs) else x, y

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        exchange, early = self._exchange, None
        if error is not None and error is not exchange.error:
            failed = TacitError(f"the training loop of {self.party!r} ended with {kind.__name__}: {error}")  # type: ignore[union-attr]
            failed.outside = f"its own training loop ended with an error ({kind.__name__})"  # type: ignore[union-attr]
            exchange.abort(failed)
        elif error is None and not self._has_answered_all():
            last = exchange.last.round if exchange.last is not None else 0
            early = BadParameter(
                f"client: the training loop ended after round {last}, before the run did. Iterate over all "
                "tasks, and call send for each."
            )
            early.outside = "its own training loop ended before the run did"
            exchange.abort(early)
        self._thread.join()
        if early is not None:
            raise early
        if error is None and exchange.error is not None:
            raise exchange.error

    def check_ended(self) -> None:
        """Raise the error with which the run ended for this party, or one if it never took part.

        A script may hide it: `sys.exit()` inside of the loop, or `except Exception: …` around it. The other
        parties would then wait for a party that counts as done.
        """
        if self._exchange.error is not None:
            raise self._exchange.error
        if not self._exchange.is_over:
            raise BadParameter(
                f"client: the script of {self.party!r} ended before the run did. Write: with tacit.client() "
                "as c: for task in c: …"
            )

    def _has_answered_all(self) -> bool:
        exchange = self._exchange
        if exchange.is_over:
            return True
        return (
            exchange.open is None
            and exchange.last is not None
            and exchange.last.round == exchange.last.rounds
        )

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            self.result = self._run(self._exchange)
        except BaseException as found:
            error = found
        self._exchange.close(error)


_pending: list[Client] = []  # of the script that this process runs


def client(
    kit: str | Path | None = None,
    job: str | Path | None = None,
    *,
    state: str | Path | None = None,
    patience: float = 300.0,
) -> Client:
    """Return this script's party; use it as `with tacit.client() as c: for task in c: …`.

    `kit` is a party's start kit and `job` the job file that its owner agreed to. Both are left out in a
    script that `tacit.train(…, client=…)` or `tacit party --script …` starts.
    """
    if _pending:
        return _pending.pop()
    if kit is None or job is None:
        raise BadParameter(
            "client: this script was not started by tacit. Start it with tacit.train(…, client='script.py') "
            "or `tacit party --kit KIT --script script.py job.toml`, or give kit= and job=."
        )
    from ...runtimes import kits
    from .deployed import take_part

    here = kits.load(kit)
    return Client(here.name, lambda exchange: take_part(here, None, state, patience, job, loop=exchange))


def run_script(path: str | Path, arguments: Sequence[str], party: Client) -> dict[str, Any]:
    """Run a user's script as the main program of this process; return what its party contributed."""
    file = Path(path).resolve()
    if not file.is_file():
        raise BadParameter(f"client: there is no script {path}. Give the path of a Python file.")
    _pending.append(party)
    before = sys.argv, list(sys.path)
    sys.argv = [str(file), *(text.replace("{party}", party.party) for text in arguments)]
    sys.path.insert(0, str(file.parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise BadParameter(f"client: the script {file.name} ended with the code {error.code}.") from None
    finally:
        sys.argv, sys.path[:] = before
    if _pending:
        _pending.clear()
        raise BadParameter(
            f"client: the script {file.name} ended without a tacit.client. Write: with tacit.client() as c: "
            "for task in c: …"
        )
    party.check_ended()
    return party.result


def run_simulated(
    kit: Any, link: Mapping[str, Any], ledger: Ledger, script: str, arguments: Sequence[str], **program: Any
) -> dict[str, Any]:
    """Run a script as a party of a simulation, in a process that `Processes` started."""
    from ...runtimes.link import Link

    async def connected(exchange: Exchange) -> dict[str, Any]:
        async with Link(kit, **link) as connection:
            try:
                return await connection.run(lambda me: member(me, **program, loop=exchange))  # type: ignore[no-any-return]
            finally:
                ledger.merge(connection.mailbox.ledger)

    party = Client(
        kit.name, lambda exchange: asyncio.run(connected(exchange)), program["data"].get("folder", "")
    )
    return run_script(script, arguments, party)

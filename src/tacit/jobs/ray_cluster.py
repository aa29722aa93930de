"""Work shared among the processes of a Ray cluster, each of which may die at any moment.

    driver → worker    begin(work, arguments); then take(), which returns what the work emitted since
    worker → driver    ("emit", value)…, and at last ("done", "") or ("refused", text)

A worker is a Ray actor with its part of CPUs and GPUs. One that dies (a kill, too little memory, a machine
that is switched off) is replaced, and its piece begins again with what the driver has received of it.

Ray moves objects by pickle, and whoever can connect to a cluster can run code on it. So a cluster belongs to
the user, as this machine does, and only simulations run there: never a party's program. A local cluster can
be reached from the network; it asks for the token that Ray keeps in the user's home (RAY_AUTH_MODE).
"""

from __future__ import annotations

import os
import platform
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from .. import __version__
from ..errors import BadParameter, BadRun, MissingExtra, TacitError
from ..parameters import bad

TRIES = 3  # work that kills its worker three times will kill the next one, too
FORMS = "'ray' (the cluster of this machine, or a local one) or the address of a cluster, 'ray://HOST:10001'"
Emit = Callable[[Any], None]
Work = Callable[..., None]


class ClusterWorker:
    """The actor: runs one piece of work at a time in a thread, and hands out what it emits."""

    def __init__(self, version: str, uses_gpu: bool):
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._is_other = version != __version__
        if not uses_gpu:  # newer Rays no longer hide the GPUs from work that asked for none
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def where(self) -> tuple[str, int, str]:
        """Return the host, the process and the version of tacit."""
        return platform.node(), os.getpid(), __version__

    def begin(self, work: Work, *arguments: Any) -> None:
        threading.Thread(target=self._run, args=(work, arguments), daemon=True).start()

    def _run(self, work: Work, arguments: tuple[Any, ...]) -> None:
        try:
            work(*arguments, lambda value: self._events.put(("emit", value)))
        except TacitError as error:
            self._events.put(("refused", str(error)))
        except Exception:
            self._events.put(("refused", f"on {platform.node()}: {traceback.format_exc()}"))
        else:
            self._events.put(("done", ""))

    def take(self) -> list[tuple[str, Any]]:
        """Wait for the next event; return it, and those that came with it."""
        found = [self._events.get()]
        while not self._events.empty():
            found.append(self._events.get())
        return found


class RayCluster:
    """A connection to a cluster: `with RayCluster("ray") as cluster: cluster.run(…)`.

    Every worker has `cpus` cores and `gpus` GPUs (a fraction shares one; None: one if the cluster has any).
    There are as many as fit, at most `workers`. A local cluster is started if none runs here; it ends with
    the connection.
    """

    def __init__(self, on: str, *, cpus: float = 1, gpus: float | None = 0, workers: int | None = None):
        if not isinstance(on, str) or (on != "ray" and not on.startswith("ray://")) or on == "ray://":
            raise BadParameter(str(bad("cluster", "on", on, FORMS)))
        if not isinstance(cpus, int | float) or not cpus > 0:
            raise BadParameter(str(bad("cluster", "cpus", cpus, "more than 0 cores for each worker")))
        given = 0 if gpus is None else gpus
        if not isinstance(given, int | float) or not given >= 0 or (given > 1 and given != int(given)):
            must_be = "0, a fraction of a GPU such as 0.25, or a whole number of GPUs for each worker"
            raise BadParameter(str(bad("cluster", "gpus", gpus, must_be)))
        if workers is not None and workers < 1:
            raise BadParameter(
                str(bad("cluster", "workers", workers, "at least 1, or None for all that fit"))
            )
        self.on, self.cpus, self.workers = on, cpus, workers
        self._asked, self.gpus = gpus, 0.0 if gpus is None else gpus
        self._ray: Any = None
        self._connected_here = False

    def __enter__(self) -> RayCluster:
        # usage statistics are off unless the user turned them on: they would be sent to Ray's makers
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
        except ImportError:
            raise MissingExtra("on='ray'", "ray", "ray") from None
        self._ray = ray
        if not ray.is_initialized():
            self._connect()
            self._connected_here = True
        if self._asked is None:
            self.gpus = 1.0 if self._ray.cluster_resources().get("GPU") else 0.0
        if not self.slots:
            asked = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            self.__exit__(None, None, None)
            raise BadRun(f"no machine of the cluster {self.on} has {asked}, which one worker needs.")
        return self

    def _connect(self) -> None:
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if self.on != "ray":
                self._ray.init(address=self.on, **options)
                return
            try:
                self._ray.init(address="auto", **options)  # RAY_ADDRESS, or a cluster that runs here
            except ConnectionError:
                if os.environ.get("RAY_ADDRESS"):
                    raise
                self._ray.init(address="local", include_dashboard=False, **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise BadRun(
                f"the Ray cluster {self.on} cannot be used: {text}. Check its address and that it runs (`ray "
                "status` there), or give on='ray' for a local one."
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connected_here:
            self._ray.shutdown()
            self._connected_here = False

    @property
    def slots(self) -> int:
        """How many workers run at the same time."""
        fit = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                by_gpu = has.get("GPU", 0) / self.gpus if self.gpus else float("inf")
                fit += int(min(has.get("CPU", 0) / self.cpus, by_gpu) + 1e-9)
        return fit if self.workers is None else min(fit, self.workers)

    def share(self, value: Any) -> Any:
        """Put a value into the cluster once; workers get it where this is among the arguments of a piece."""
        return self._ray.put(value)

    def run(
        self,
        pieces: Sequence[Any],
        prepare: Callable[[Any], tuple[Any, ...]],
        receive: Callable[[Any, Any], None],
        say: Callable[[str], None],
    ) -> None:
        """Run all pieces: `prepare(piece)` is (work, arguments…), `receive` gets what the work emits.

        A piece that begins again is prepared again.
        """
        actor = self._ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0)(ClusterWorker)
        left, tries = deque(range(len(pieces))), [0] * len(pieces)
        at: dict[Any, tuple[Any, int, str]] = {}  # what a worker is asked for: (worker, its piece, where)
        workers = []

        def start(i: int, worker: Any = None) -> None:
            if worker is None:
                worker = actor.remote(__version__, self.gpus > 0)
                workers.append(worker)
            at[worker.where.remote()] = worker, i, ""

        try:
            for _ in range(min(self.slots, len(pieces))):
                start(left.popleft())
            while at:
                (ready,), _ = self._ray.wait(list(at), num_returns=1)
                worker, i, where = at.pop(ready)
                try:
                    answer = self._ray.get(ready)
                except self._ray.exceptions.RayError as error:
                    tries[i] += 1
                    self._count_loss(error, where, tries[i], say)
                    start(i)
                    continue
                if not where:
                    where = self._check(answer)
                    at[worker.begin.remote(*prepare(pieces[i]))] = worker, i, where
                    continue
                is_done = False
                for kind, value in answer or ():  # None: it has begun
                    if kind == "refused":
                        raise BadRun(value)
                    if kind == "emit":
                        receive(pieces[i], value)
                    is_done = kind == "done"
                if not is_done:
                    at[worker.take.remote()] = worker, i, where
                elif left:
                    start(left.popleft(), worker)
        finally:
            if self._ray.is_initialized():
                for worker in workers:
                    self._ray.kill(worker)

    def _check(self, answer: tuple[str, int, str]) -> str:
        host, process, version = answer
        if version != __version__:
            raise BadRun(
                f"{host} has tacit {version}, and this machine {__version__}. Install the same version on "
                "all machines of the cluster."
            )
        return f"process {process} on {host}"

    def _count_loss(self, error: BaseException, where: str, tries: int, say: Callable[[str], None]) -> None:
        what = f"a worker ({where})" if where else "a worker that was to start"
        if isinstance(error, self._ray.exceptions.RayTaskError):  # it cannot import tacit, or read its work
            raise BadRun(f"{what} failed: {error.cause}. Is tacit installed on all machines of the cluster?")
        if tries == TRIES:
            why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise BadRun(
                f"a worker ended {TRIES} times with the same piece: {why}. Often memory is too small: "
                "give each worker more cores (cpus), so that fewer run. What is finished is kept; the same "
                "command resumes."
            )
        say(f"{what} ended; what it ran begins again where it was saved")

"""The ranks of one simulation: the processes that `torchrun` or Slurm's `srun` starts, and their links.

Rank 0 leads: it decides, sends orders, and receives answers. The others follow. All frames pass between
rank 0 and one follower, over torch.distributed's gloo backend:

    rank 0                               rank q
      │ <───────── hello ──────────────────│   what it is about to run, as digests
      │ ────────── round ─────────────────>│   clients, their model, their kept state
      │ <───────── part … ─────────────────│   updates, or sums of them
      │ ────────── fetch ─────────────────>│   whose kept state to return
      │ <───────── states ─────────────────│
      │ ────────── end or stop ───────────>│   the result, or why there is none
      │ <───────── bye ────────────────────│

A frame is a JSON header and tensors; nothing that is received is executed (no pickle). The network between
ranks is trusted, as it is for torch.distributed: anyone who can connect to it can send frames.

A rank that dies closes its connections, which its peers see at once. A machine that vanishes does not, so
every rank also counts up a key in the store that the ranks met at, and is lost if it stops counting.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import BadFrame, BadParameter, RankLost

BEAT = 2.0  # seconds between two heartbeats
LOST_AFTER = 60.0  # seconds without a heartbeat: 30 missed ones, which a busy machine does not miss
MEET = timedelta(seconds=300)  # to wait for all ranks to start: the slowest may still be reading its data
# to wait until peers have read why this rank stops: closing a connection drops what was not read yet
STOP_READ_WITHIN = 30.0
FOREVER = timedelta(days=365)  # of one receive: a leader may evaluate for hours, and heartbeats notice deaths
ALIGN = 16  # bytes: the start of every tensor in a frame

State = dict[str, Tensor]


@dataclass(frozen=True)
class Launch:
    """One process among those that a launcher started."""

    rank: int
    size: int
    local_rank: int  # among the ranks of this machine
    local_size: int
    address: str  # of the store at which the ranks meet
    port: int
    hosts_store: bool  # whether rank 0 itself is that store; torchrun has one of its own
    attempt: str = "0"  # torchrun starts all ranks again after a failure


def find_launch(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return this process's place among the ranks that torchrun or srun started; None: it is alone."""
    e = os.environ if environment is None else environment
    if "RANK" in e and "WORLD_SIZE" in e:
        if _number(e, "WORLD_SIZE") < 2:
            return None
        return Launch(
            _number(e, "RANK"),
            _number(e, "WORLD_SIZE"),
            _number(e, "LOCAL_RANK"),
            _number(e, "LOCAL_WORLD_SIZE"),
            _text(e, "MASTER_ADDR"),
            _number(e, "MASTER_PORT"),
            e.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            e.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    # only a step that srun started has these; the body of a batch script has SLURM_NTASKS too
    if "SLURM_STEP_NUM_TASKS" in e and "SLURM_STEP_NODELIST" in e and "SLURM_PROCID" in e:
        if _number(e, "SLURM_STEP_NUM_TASKS") < 2:
            return None
        tasks, node = e.get("SLURM_STEP_TASKS_PER_NODE", "1"), int(e.get("SLURM_NODEID", "0"))
        job, step = _number(e, "SLURM_JOB_ID"), int(e.get("SLURM_STEP_ID", "0"))
        return Launch(
            _number(e, "SLURM_PROCID"),
            _number(e, "SLURM_STEP_NUM_TASKS"),
            _number(e, "SLURM_LOCALID"),
            tasks_per_node(tasks)[node],
            e.get("MASTER_ADDR") or first_host(e["SLURM_STEP_NODELIST"]),
            # all tasks must choose the same port without talking: one of the upper 4096, by job and step
            int(e.get("MASTER_PORT") or 61440 + (31 * job + step) % 4096),
            True,
            e.get("SLURM_RESTART_COUNT", "0"),
        )
    return None


def _text(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise BadParameter(
            f"WORLD_SIZE is {environment.get('WORLD_SIZE')} and {name} is not set. Start the ranks with "
            "torchrun or srun, or run one process: ranks='off', or unset WORLD_SIZE."
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _text(environment, name)
    if not text.isdecimal():
        raise BadParameter(f"the environment variable {name} is {text!r}, which must be a whole number.")
    return int(text)


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm list: 'gpu[003-007,9],login' → 'gpu003'."""
    head, bracket, rest = nodes.partition("[")
    if "," in head or not bracket:
        return nodes.partition(",")[0]
    first = rest.partition("]")[0].partition(",")[0].partition("-")[0]
    tail = rest.partition("]")[2].partition(",")[0]
    return head + first + tail


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node: '2(x3),1' → [2, 2, 2, 1]."""
    found: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def is_follower(option: str = "auto") -> bool:
    """Whether this process is a rank other than 0, which writes and prints nothing."""
    launch = find_launch() if option == "auto" else None
    return launch is not None and launch.rank > 0


# frames -----------------------------------------------------------------------------------------------------

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


def encode_frame(kind: str, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a frame as bytes: the length of the header, the header, the tensors."""
    parts, layout, at = [], [], 0
    for name, t in tensors.items():
        flat = t.detach().cpu().contiguous()
        data = flat.reshape(-1).view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
        layout.append([name, str(t.dtype).removeprefix("torch."), list(t.shape), at])
        parts.append((at, data))
        at += -(-len(data) // ALIGN) * ALIGN
    head = json.dumps({"kind": kind, "values": values, "tensors": layout}).encode()
    begin = -(-(len(head) + 8) // ALIGN) * ALIGN
    frame = torch.zeros(begin + at, dtype=torch.uint8)
    frame[:8] = torch.tensor([len(head)]).view(torch.uint8)
    frame[8 : 8 + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for offset, data in parts:
        frame[begin + offset : begin + offset + len(data)] = data
    return frame


@dataclass(frozen=True)
class Frame:
    kind: str
    values: dict[str, Any]
    tensors: State


def decode_frame(data: Tensor) -> Frame:
    """Return a frame from its bytes; its tensors share their memory. Raise BadFrame if it is malformed."""
    try:
        length = int(data[:8].clone().view(torch.int64)[0])
        if not 0 < length <= len(data) - 8:
            raise ValueError(f"its header has {length} of {len(data)} bytes")
        head = json.loads(bytes(data[8 : 8 + length].numpy()))
        begin, tensors = -(-(length + 8) // ALIGN) * ALIGN, State()
        for name, dtype, shape, at in head["tensors"]:
            kind = DTYPES[dtype]
            size = math.prod(shape) * kind.itemsize
            if min([at, *shape]) < 0 or at % ALIGN or begin + at + size > max(begin, len(data)):
                raise ValueError(f"{name!r} lies outside of it")
            raw = data[begin + at : begin + at + size]
            tensors[name] = raw.view(kind).view(shape) if size else torch.empty(shape, dtype=kind)
        return Frame(str(head["kind"]), dict(head["values"]), tensors)
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise BadFrame(f"a frame between ranks is malformed: {type(error).__name__}: {error}") from None


# the group --------------------------------------------------------------------------------------------------


class Heartbeats:
    """Which ranks are alive, by counters in the store; `clock` is this process's own."""

    def __init__(self, size: int, read: Callable[[int], int], clock: Callable[[], float] = time.monotonic):
        self.read, self.clock = read, clock
        self.seen = {q: (-1, clock()) for q in range(size)}  # the last count, and when it was first seen

    def find_lost(self, among: list[int], after: float = LOST_AFTER) -> int | None:
        """Return a rank whose count has not changed for `after` seconds."""
        now = self.clock()
        for q in among:
            count = self.read(q)
            if count != self.seen[q][0]:
                self.seen[q] = count, now
            elif now - self.seen[q][1] > after:
                return q
        return None


def _connect(launch: Launch) -> Any:
    tcp = dist.TCPStore(
        launch.address,
        launch.port,
        launch.size,
        is_master=launch.hosts_store and launch.rank == 0,
        timeout=MEET,
        wait_for_workers=False,
        multi_tenant=True,  # the store of this process, if it is the second to ask
    )
    return dist.PrefixStore(f"tacit/{launch.attempt}", tcp)


class RankGroup:
    """The ranks of a job, connected. `open` and `close` begin and end a job; a script may run several."""

    def __init__(self, launch: Launch):
        self.rank, self.size = launch.rank, launch.size
        self.local_rank, self.local_size = launch.local_rank, launch.local_size
        self.store = _connect(launch)
        beats = _connect(launch)  # a connection of its own: a wait blocks the other
        me = {"host": platform.node(), "pid": os.getpid(), "cores": sorted(_affinity())}
        self.store.set(f"who/{self.rank}", json.dumps(me))
        keys = [f"who/{q}" for q in range(self.size)]
        try:
            self.store.wait(keys, MEET)
        except RuntimeError:
            late = [q for q, key in enumerate(keys) if not self.store.check([key])]
            raise RankLost(
                f"rank {self.rank} waited {MEET.total_seconds():.0f} s for rank {late[0] if late else '?'} "
                f"of {self.size}, which did not reach training. Look for its error in the launcher's output."
            ) from None
        self.who: list[dict[str, Any]] = [json.loads(self.store.get(key)) for key in keys]
        self.shares = [self._share_of_cores(q) for q in range(self.size)]
        self.cores = self.shares[self.rank]
        if dist.is_initialized():  # by the user's script
            self.group: Any = dist.new_group(backend="gloo", timeout=FOREVER)
        else:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("gloo", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=FOREVER,
            )
            self.group = None
            atexit.register(_leave)
        self.beats = Heartbeats(self.size, lambda q: int(self.store.add(f"beat/{q}", 0)))
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(beats,), daemon=True, name="tacit-heartbeat").start()
        atexit.register(self._ended.set)
        self.shared_jobs = 0  # whose rows were shared (shared_rows.py)
        self.inbox: dict[int, queue.Queue[Frame | BaseException]] = {}
        self.receivers: list[threading.Thread] = []

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def peers(self) -> list[int]:
        """The ranks this one exchanges frames with."""
        return list(range(1, self.size)) if self.leads else [0]

    def name(self, q: int) -> str:
        return f"rank {q} of {self.size} (process {self.who[q]['pid']} on {self.who[q]['host']})"

    @property
    def on_gpu(self) -> int:
        """How many ranks of this machine share a GPU."""
        return -(-self.local_size // max(1, torch.cuda.device_count()))

    @property
    def first_on_gpu(self) -> list[int]:
        """One rank of each GPU; every machine has as many ranks and GPUs as this one."""
        gpus = max(1, torch.cuda.device_count())
        return [q for q in range(self.size) if q % self.local_size < gpus]

    def _share_of_cores(self, q: int) -> int:
        """Cores for rank q: those it may use, divided by the ranks of its machine that use the same."""
        me = self.who[q]
        same = sum(w["host"] == me["host"] and w["cores"] == me["cores"] for w in self.who)
        return max(1, len(me["cores"]) // int(same))

    def _beat(self, store: Any) -> None:
        try:
            while not self._ended.is_set():
                store.add(f"beat/{self.rank}", 1)
                self._ended.wait(BEAT)
        except RuntimeError:
            return  # the store is gone, and with it rank 0 or torchrun; the next receive fails

    # a job --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to receive the frames of a job."""
        self.inbox = {q: queue.Queue() for q in self.peers}
        self.receivers = [
            threading.Thread(target=self._receive, args=(q,), daemon=True, name=f"tacit-from-{q}")
            for q in self.peers
        ]
        for thread in self.receivers:
            thread.start()

    def _receive(self, q: int) -> None:
        try:
            kind = ""
            while kind not in ("end", "stop", "bye", "error"):
                length = torch.zeros(1, dtype=torch.int64)
                dist.recv(length, q, group=self.group)
                data = torch.empty(int(length), dtype=torch.uint8)
                dist.recv(data, q, group=self.group)
                frame = decode_frame(data)
                kind = frame.kind
                self.inbox[q].put(frame)
            if kind in ("stop", "error"):
                self.store.set(f"read/{q}/{self.rank}", "1")
        except BaseException as error:  # told to whoever waits
            self.inbox[q].put(error)

    def send(
        self, q: int, kind: str, values: Mapping[str, Any] | None = None, tensors: State | None = None
    ) -> None:
        frame = encode_frame(kind, values or {}, tensors or {})
        try:
            dist.send(torch.tensor([len(frame)]), q, group=self.group)
            dist.send(frame, q, group=self.group)
        except RuntimeError as error:
            raise self.lost(q, error) from None

    def receive(self, q: int) -> Frame:
        """Return the next frame of rank q, or raise RankLost."""
        while True:
            try:
                frame = self.inbox[q].get(timeout=BEAT)
                break
            except queue.Empty:
                try:
                    gone = self.beats.find_lost(self.peers)
                except RuntimeError as error:
                    raise self.lost(0, error) from None
                if gone is not None:
                    raise RankLost(
                        f"{self.name(gone)} has sent no sign of life for {LOST_AFTER:.0f} s."
                    ) from None
        if isinstance(frame, BaseException):
            raise self.lost(q, frame) from None
        if frame.kind in ("error", "stop"):
            raise RankLost(frame.values["text"])
        return frame

    def lost(self, q: int, error: BaseException) -> RankLost:
        if isinstance(error, BadFrame):
            return RankLost(f"{self.name(q)} cannot be understood: {error}")
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return RankLost(f"{self.name(q)} stopped: its connection was closed ({why:.120}).")

    def stop(self, error: BaseException) -> None:
        """Tell all peers why this rank stops, and wait until they have read it; some may be gone."""
        text = str(error) if isinstance(error, RankLost) else f"{self.name(self.rank)} stopped: "
        if not isinstance(error, RankLost):
            text += f"{type(error).__name__}: {error}"
        unread = []
        for q in self.peers:
            try:
                self.send(q, "stop" if self.leads else "error", {"text": text})
                unread.append(f"read/{self.rank}/{q}")
            except RankLost:
                continue
        until = time.monotonic() + STOP_READ_WITHIN
        try:
            while unread and time.monotonic() < until:
                unread = [key for key in unread if not self.store.check([key])]
                time.sleep(0.01)
        except RuntimeError:
            return  # the store ended with rank 0

    def close(self) -> None:
        """End a job after the last frame of every peer."""
        for thread in self.receivers:
            thread.join()


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


_group: RankGroup | None = None


def join_group() -> RankGroup | None:
    """Return the group of ranks this process belongs to; None: it is alone. The first call connects it."""
    global _group
    if _group is None and (launch := find_launch()) is not None:
        _group = RankGroup(launch)
    return _group

"""Coverage-guided fuzzing of everything that reads bytes from outside: messages, envelopes, records and handshakes, values, jobs.

    make fuzz                      # three million inputs to each reader; a tenth to those that reckon signatures
    python fuzz/decoder.py --runs 100000 --only message

Each reader may refuse (its own errors) or give something well formed; anything else is a finding: another exception, an object that does not encode back to
something that decodes the same, or memory beyond what the input can account for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["tacit.parties", "tacit.runtimes", "tacit.jobs.train.contract", "tacit.protocols"]):
    import torch

    from tacit.errors import TacitError
    from tacit.jobs.train.contract import Contract
    from tacit.parties.codec import decode, encode, kind_of
    from tacit.parties.message import Message
    from tacit.protocols import buffered, joining, rounds
    from tacit.runtimes.channel import Channel, new_life
    from tacit.runtimes.envelope import unpack
    from tacit.runtimes.kits import temporary

PER_BYTE = 80  # bytes of memory a reader may take for a byte of input: codec.py says where the worst case comes from
SLACK = 64 << 10


def bounded(read: Callable[[bytes], Any], data: bytes, peek: list[int]) -> None:
    """The reader's memory is looked at now and then: tracing costs more than reading."""
    peek[0] += 1
    if peek[0] % 1000:
        survives(read(data))
        return
    tracemalloc.start()
    try:
        read(data)
        top = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if top > SLACK + PER_BYTE * len(data):
        raise MemoryError(f"{top} bytes for an input of {len(data)}")


def message(data: bytes) -> Message | None:
    try:
        kind_of(data)
        return decode(data)
    except TacitError:
        return None


def survives(got: Any) -> None:
    if isinstance(got, Message) and decode(encode(got)) != got:
        raise AssertionError(f"{got} does not survive its own wire format")


def envelope(data: bytes) -> None:
    try:
        unpack(data)
    except TacitError:
        return


_, KITS = temporary("fuzz", ("alice", "bob"))


class Ends:
    """A conversation that has begun, so that records are opened and not only refused for want of a session."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.a = Channel(KITS["alice"], new_life(), "bob", lambda s, f: None, lambda text: None, 1 << 20)
        self.b = Channel(KITS["bob"], new_life(), "alice", lambda s, f: self.got.append(bytes(f)), lambda text: None, 1 << 20)
        self.a.send("", b"hello")
        for _ in range(8):
            for source, target in ((self.a, self.b), (self.b, self.a)):
                while (payload := source.pull()) is not None:
                    target.receive(memoryview(payload))
        assert self.got == [b"hello"]


ENDS = [Ends()]


def record(data: bytes) -> None:
    ends = ENDS[0]
    assert ends.b.seal is not None
    ends.b.receive(memoryview(data))
    ends.b.receive(memoryview(b"R" + ends.b.seal.session + data))
    ends.b.control.clear()
    ends.b.greetings.clear()
    if ends.got != [b"hello"]:
        raise AssertionError("bytes nobody sealed were delivered")
    if ends.b.failure is not None:
        ENDS[0] = Ends()


def job(data: bytes) -> None:
    try:
        Contract.read(data.decode(errors="replace"))
    except TacitError:
        return


READERS = {"message": message, "envelope": envelope, "record": record, "job": job}
SEEDS = {"message": [encode(rounds.Down(1, {"w": torch.zeros(3)})), encode(rounds.Stop()),
                     encode(buffered.Order(0, 1, {"w": torch.zeros(3)})), encode(buffered.Answer(0, 2.0, {"delta": torch.zeros(3)})),
                     encode(joining.Ready(1, 2, [3], 4, 5)), encode(joining.Join("1", "2"))],
         "envelope": [b"\x00\x01\x01abpayload"], "record": [b"H" + bytes(60), b"W" + bytes(120), b"\x00\x00" + bytes(30)], "job": [b'{"run": "x"}']}


def run(name: str, runs: int) -> None:
    """In a process of its own: the fuzzer ends it when it is done."""
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            sys.exit(f"{name}: a finding; the input is in the file the fuzzer named above")
        return
    with tempfile.TemporaryDirectory() as folder:
        for i, seed in enumerate(SEEDS[name]):
            (Path(folder) / str(i)).write_bytes(seed)
        peek = [0]
        atheris.Setup([sys.argv[0], f"-runs={runs}", "-max_len=4096", "-verbosity=1", "-print_final_stats=1", folder],
                      lambda data: bounded(READERS[name], data, peek))
        atheris.Fuzz()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3_000_000)
    parser.add_argument("--only", choices=READERS)
    args = parser.parse_args()
    for reader in [args.only] if args.only else READERS:
        began = time.perf_counter()
        runs = args.runs // 10 if reader == "record" else args.runs
        run(reader, runs)
        print(f"{reader}: {runs} inputs in {time.perf_counter() - began:.0f} s, no finding", flush=True)

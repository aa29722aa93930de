"""Run directories as a real run would write them, from a small deterministic function: no training, no
randomness from outside.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

HEIGHT = {
    "FedAvg": 0.90,
    "FedProx": 0.905,
    "SCAFFOLD": 0.925,
    "FedNova": 0.93,
    "FedSGD": 0.80,
    "central": 0.955,
    "local only": 0.70,
}
HARD = {
    "IID()": 0.0,
    "Dirichlet(alpha=0.5)": 0.03,
    "LabelsPerParty(n=2)": 0.09,
    "FeatureNoise(sigma=1.0)": 0.05,
}
JOB = """# resolved by tacit
[federation]
name = "digits"
parties = {n}
seed = {seed}

[algorithm]
name = "{label}"
lr = 0.1

[train]
rounds = {rounds}
local_epochs = 1
"""


def federation(
    parties: int,
    labels: int = 10,
    names: list[str] | None = None,
    skew: str = "Dirichlet(alpha=0.5)",
    seed: int = 0,
) -> dict[str, Any]:
    rng = random.Random(f"{skew}{seed}{parties}")
    alpha = {"IID()": 100.0, "FeatureNoise(sigma=1.0)": 100.0, "Dirichlet(alpha=0.5)": 0.5}.get(skew, 0.12)
    weights = [[rng.gammavariate(alpha, 1.0) + 1e-9 for _ in range(labels)] for _ in range(parties)]
    counts = [[round(w / sum(row) * rng.randint(90, 180)) for w in row] for row in weights]
    return {
        "name": "digits",
        "parties": names or [f"p{k}" for k in range(parties)],
        "sizes": [sum(c) for c in counts],
        "labels": [str(k) for k in range(labels)],
        "counts": counts,
        "shift": [round(rng.uniform(0.05, 0.4), 3) for _ in range(parties)],
    }


def landscape(parties: int, names: list[str]) -> dict[str, Any]:
    t = [round(-0.5 + 0.1 * k, 2) for k in range(26)]
    near = [(math.cos(k * 2.4) * 0.7, math.sin(k * 2.4) * 0.6) for k in range(parties)]
    line = {
        "t": t,
        "loss": [[0.3 + 0.15 * (k % 4) * (v - 1) ** 2 + 0.05 * k % 0.3 for v in t] for k in range(parties)],
        "global": [0.35 + 0.5 * v * v for v in t],
        "names": names,
    }
    axis = [round(-1.2 + 0.12 * k, 2) for k in range(21)]
    loss = [
        [0.2 + 1.5 * (a * a + 0.6 * b * b) + 0.3 * math.sin(3 * a) * math.cos(2 * b) ** 2 + 0.3 for a in axis]
        for b in axis
    ]
    points = [{"name": "global", "a": 0.0, "b": 0.0}] + [
        {"name": n, "a": a, "b": b} for n, (a, b) in zip(names, near)
    ]
    return {
        "kind": "landscape",
        "line": line,
        "plane": {"a": axis, "b": axis, "loss": loss, "points": points},
    }


def events(
    label: str = "FedAvg",
    skew: str = "Dirichlet(alpha=0.5)",
    seed: int = 0,
    rounds: int = 20,
    parties: int = 10,
    names: list[str] | None = None,
    explode: int | None = None,
    done: int | None = None,
    with_landscape: bool = False,
) -> list[dict[str, Any]]:
    """`explode`: the round after which losses are NaN; `done`: how many rounds were reached before the run
    stopped.
    """
    fed = federation(parties, names=names, skew=skew, seed=seed)
    rng = random.Random(f"{label}{skew}{seed}")
    suffers = {"central": 0.0, "FedNova": 0.4, "SCAFFOLD": 0.4}.get(label, 1.0)
    top = HEIGHT[label] - HARD.get(skew, 0.02) * suffers + rng.gauss(0, 0.004)
    speed = {"FedSGD": 0.08, "SCAFFOLD": 0.3}.get(label, 0.22)
    out: list[dict[str, Any]] = [
        {
            "kind": "start",
            "time": "2025-11-14T09:30:00+00:00",
            "tacit": "0.1.0",
            "label": label,
            "skew": skew,
            "seed": seed,
            "runtime": "cohort",
            "device": "cpu",
            "rounds": rounds,
            "effective_update": 12.5,
            "model": {"name": "mlp", "parameters": 9034},
            "federation": fed,
        }
    ]
    best = (0.0, 0)
    for r in range((rounds if done is None else done) + 1):
        accuracy = 0.1 + (top - 0.1) * (1 - math.exp(-speed * r)) + (rng.gauss(0, 0.006) if r else 0)
        loss = 2.3 * math.exp(-speed * r) + (1 - top) * 3 + abs(rng.gauss(0, 0.01))
        if explode is not None and r > explode:
            accuracy, loss = 0.1, math.nan if r > explode + 1 else math.inf
        best = max(best, (accuracy, r))
        own = [
            min(1.0, max(0.0, accuracy + 0.12 * math.sin(k * 1.7 + len(label)) - (0.15 if k % 9 == 7 else 0)))
            for k in range(parties)
        ]
        up = (
            0
            if r == 0 or label in ("central", "local only")
            else 9034 * 4 * parties * (2 if label == "SCAFFOLD" else 1)
        )
        out.append(
            {
                "kind": "round",
                "round": r,
                "loss": loss,
                "accuracy": accuracy,
                "f1": accuracy - 0.01,
                "train_loss": loss * 0.9,
                "parties": {"accuracy": own},
                "sampled": parties,
                "bytes_up": up,
                "bytes_down": up,
                "seconds": 0.12,
            }
        )
    if with_landscape:
        out.append(landscape(parties, fed["parties"]))
    if done is None:
        out.append(
            {
                "kind": "end",
                "metrics": {
                    "accuracy": accuracy,
                    "loss": loss,
                    "best_accuracy": best[0],
                    "best_round": best[1],
                },
                "seconds": 0.12 * rounds,
            }
        )
    return out


def ledger(names: list[str], rounds: int = 20, how: str = "executed", **more: Any) -> dict[str, Any]:
    down = [
        {
            "party": n,
            "sender": "server",
            "kind": "Down",
            "reveals": "the global model",
            "count": rounds,
            "bytes": 36136 * rounds,
            "how": how,
        }
        for n in names
    ]
    up = [
        {
            "party": "server",
            "sender": n,
            "kind": "Upload",
            "reveals": "the party's own update, from which rows can be guessed",
            "count": rounds,
            "bytes": 36136 * rounds,
            "how": how,
        }
        for n in names
    ]
    return {"seen": up + down, "spent": [], "stamps": []} | more


def run(directory: Path, *, book: dict[str, Any] | None = None, **how: Any) -> Path:
    """A run directory."""
    directory.mkdir(parents=True)
    lines = events(**how)
    names, start = lines[0]["federation"]["parties"], lines[0]
    if lines[-1]["kind"] == "end":
        quiet = start["label"] in ("central", "local only")
        book = book or ({"seen": [], "spent": [], "stamps": []} if quiet else ledger(names, start["rounds"]))
        (directory / "ledger.json").write_text(json.dumps(book))
    text = "".join(json.dumps(e) + "\n" for e in lines)
    (directory / "events.jsonl").write_text(
        text.replace(": NaN", ': "nan"').replace(": Infinity", ': "inf"')
    )  # as the journal writes them
    (directory / "job.toml").write_text(
        JOB.format(n=len(names), seed=start["seed"], label=start["label"], rounds=start["rounds"])
    )
    return directory


def comparison(
    directory: Path,
    labels: tuple[str, ...] = ("FedAvg", "FedProx", "SCAFFOLD", "FedNova", "central", "local only"),
    skews: tuple[str, ...] = tuple(HARD),
    seeds: int = 3,
    parties: int = 10,
) -> Path:
    """A comparison directory: its runs, and compare.json as jobs.compare would write it."""
    from tacit.report import read_run, tabulate

    runs = [
        run(
            directory / "runs" / f"{k:02d}-{label.lower().replace(' ', '-')}-{seed}",
            label=label,
            skew=skew,
            seed=seed,
            parties=parties,
            with_landscape=seed == 0 and label == "FedAvg",
        )
        for k, (label, skew, seed) in enumerate(
            (a, b, c) for b in skews for a in labels for c in range(seeds)
        )
    ]
    data = tabulate([read_run(r) for r in runs])
    names = [f"p{k}" for k in range(parties)]
    data["gain"] = [
        {
            "label": a,
            "skew": b,
            "parties": names,
            "local": [0.62 + 0.3 * (k / parties) for k in range(parties)],
            "federated": [HEIGHT[a] - HARD[b] - 0.02 * math.cos(k * 1.3) for k in range(parties)],
        }
        for b in skews
        for a in labels
        if a not in ("central", "local only")
    ]
    (directory / "compare.json").write_text(json.dumps(data))
    (directory / "job.toml").write_text('[compare]\nalgorithms = ["FedAvg", "FedProx"]\nseeds = 3\n')
    return directory

"""The same job in tacit, called from Python.

A short and a long run after the first give the mean wall and CPU seconds a round as their difference: what
`history` might leave out is in it, and what only the first run pays is not.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from work import Work, arguments, cpu_seconds, load, model, score, since_launch, tell

import tacit
from tacit import algorithms, data


def federation(work: Work, folder: Path) -> data.Federation:
    x, y, xt, yt = load(work, folder)
    # held_fraction=0: the peers train on every row they hold, so we do
    return data.from_arrays(x, y, test=(xt, yt)).split(work.parties, skew=data.IID(), seed=0, held_fraction=0)


def main() -> None:
    work, args = arguments()
    fed = federation(work, args.data)

    def train(rounds: int) -> tuple[tacit.Result, list[float], float, float]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        result = tacit.train(
            fed,
            model=model(work),
            algorithm=algorithms.FedAvg(lr=work.lr),
            rounds=rounds,
            per_round=work.per_round,
            local_epochs=1,
            batch_size=work.batch,
            seed=0,
            device="cpu",
            evaluate_every=0,
        )
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        return result, [row["seconds"] for row in result.history if row["round"] > 0], wall, cpu

    started = since_launch()
    result, seconds, wall, cpu = train(args.rounds)
    first = (
        started + wall - sum(seconds[1:])
    )  # all that is not a later round: start-up, the first round, handing over the model
    extra = (
        args.rounds if work.name == "cnn" else 10 * args.rounds
    )  # short rounds need many to stand out of the noise
    _, _, wall, cpu = train(work.warm)
    _, more, longer_wall, longer_cpu = train(work.warm + extra)
    steady = seconds[work.warm :] + more[work.warm :]
    tell(
        peer="tacit",
        version=tacit.__version__,
        work=work.name,
        mode="",
        first=first,
        seconds=seconds,
        median=median(steady),
        min=min(steady),
        mean=(longer_wall - wall) / extra,
        cpu=(longer_cpu - cpu) / extra,
        **score(result.model.eval(), *fed.test),
    )


if __name__ == "__main__":
    main()

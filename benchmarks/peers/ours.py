"""The same job in tacit, called from Python.

After the first run, the difference of a short and a long run gives the mean wall and CPU seconds per round: it
includes what `history` might omit, and excludes what only the first run costs.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from work import Work, arguments, cpu_seconds, load, model, print_figures, score, since_launch

import tacit
from tacit import algorithms, data


def federation(work: Work, folder: Path) -> data.Federation:
    x, y, xt, yt = load(work, folder)
    # held_fraction=0: the peers train on all their rows, so tacit does
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
    )  # everything except later rounds: startup, the first round, returning the model
    extra = (
        args.rounds if work.name == "cnn" else 10 * args.rounds
    )  # short rounds: many are needed to exceed the noise
    _, _, wall, cpu = train(work.warm)
    _, more, longer_wall, longer_cpu = train(work.warm + extra)
    steady = seconds[work.warm :] + more[work.warm :]
    print_figures(
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

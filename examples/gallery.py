"""Write one report of each kind for the gallery of the documentation site: `make docs` runs it.

    python examples/gallery.py [DIRECTORY]        default: build/gallery

Each report is one HTML file. index.md lists them, with the code that wrote each.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import tacit
from tacit import algorithms, data, guard, synth


def patients(rows: int = 1200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 91, rows), rng.choice(["f", "m"], rows)
    pressure = (100 + 0.5 * age + np.where(sex == "m", 6, 0) + rng.normal(0, 8, rows)).round(1)
    ill = rng.random(rows) < 1 / (1 + np.exp(-(pressure - 130) / 8))
    return pd.DataFrame({"age": age, "sex": sex, "pressure": pressure, "ill": np.where(ill, "yes", "no")})


def train(path: Path) -> None:
    """Training: ten parties with different label shares, federated averaging."""
    fed = data.digits().split(10, skew=data.Dirichlet(0.5), seed=0)
    tacit.train(fed, model="mlp", algorithm=algorithms.FedAvg(lr=0.3), rounds=10, local_epochs=2).report(path)


def train_hidden(path: Path) -> None:
    """Training with noise for an ε and secure aggregation: the server opens sums only."""
    fed = data.digits().split(20, seed=0)
    stages = [guard.Clip(1.0), guard.Noise(epsilon=8.0, delta=1e-3), guard.Quantize(bits=16), guard.SecAgg()]
    tacit.train(fed, model="logistic", rounds=10, guard=stages).report(path)


def compare(path: Path) -> None:
    """A comparison: three algorithms under two skews, with baselines."""
    digits = data.digits()
    feds = [digits.split(8, skew=skew, seed=0) for skew in (data.IID(), data.Dirichlet(0.3))]
    rules = [algorithms.FedAvg(lr=0.3), algorithms.FedProx(lr=0.3, mu=0.01), algorithms.Scaffold(lr=0.2)]
    tacit.compare(feds, algorithms=rules, model="mlp", rounds=10).report(path)


def anonymize(path: Path) -> None:
    """An anonymized table: information loss beside the remaining risk."""
    tacit.anonymize(patients(), quasi=["age", "sex"], sensitive=["ill"], k=5, max_suppressed=0.05).report(
        path
    )


def synthesize(path: Path) -> None:
    """A synthetic table: fidelity, utility and attacks."""
    frame = patients(2000)
    rows = synth.Cart(seed=0).fit(frame[:1500]).sample(1500, seed=1)
    synth.evaluate(frame[:1500], rows, holdout=frame[1500:]).report(path)


def regression(path: Path) -> None:
    """Logistic regression across three hospitals: odds ratios with intervals, from sums alone."""
    frame = patients()
    frame["ill"] = (frame.ill == "yes").astype(int)
    fed = {name: frame.iloc[i::3] for i, name in enumerate(("north", "south", "west"))}
    tacit.stats.glm(fed, "ill ~ age + sex + pressure", family="binomial").report(path)


def trees(path: Path) -> None:
    """Boosted trees across three hospitals."""
    frame = patients()
    fed = {name: frame.iloc[i::3] for i, name in enumerate(("north", "south", "west"))}
    tacit.boost.train(fed, label="ill", trees=20, depth=3).report(path)


REPORTS: tuple[Callable[[Path], None], ...] = (
    *(train, train_hidden, compare, regression, trees, anonymize, synthesize),
)


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Gallery of reports",
        "",
        "Every result has `.report(path)`: one HTML file that makes no request.",
        "",
    ]
    for write in REPORTS:
        name = write.__name__.replace("_", "-")
        print(name, flush=True)
        write(directory / f"{name}.html")
        code = "".join(inspect.getsource(write).splitlines(keepends=True)[2:])
        lines += [f"## {write.__doc__}", "", f"[Open the report](gallery/{name}.html)", ""]
        lines += ["```python", inspect.cleandoc(f"\n{code}"), "```", ""]
    (directory / "index.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery"))

"""A party's own script between real parties: a table of its own, and numpy only."""

import csv
import sys

import numpy as np

import tacit


def rows_of(file: str) -> tuple[np.ndarray, np.ndarray]:
    with open(file) as table:
        rows = list(csv.DictReader(table))
    x = np.array([[float(r["age"]) / 50 - 1, float(r["chol"]) / 200 - 1] for r in rows])
    return x, np.array([r["sick"] == "yes" for r in rows], dtype=float)


def fit(arrays: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Ten steps of gradient descent on the logistic loss."""
    w, b = arrays["w"].astype(float), arrays["b"].astype(float)
    for _ in range(10):
        error = 1 / (1 + np.exp(-(x @ w + b))) - y
        w, b = w - 0.5 * x.T @ error / len(y), b - 0.5 * error.mean(keepdims=True)
    return {"w": w, "b": b}


if __name__ == "__main__":
    file, *rest = sys.argv[1:]
    x, y = rows_of(file)
    # with a kit and a job the script is started by itself, otherwise by `tacit party --script`
    with tacit.client(*rest[:2]) as c:
        for task in c:
            if "fail" in rest:
                raise ZeroDivisionError("patient 17")
            c.send(fit(task.arrays, x, y), rows=len(y))

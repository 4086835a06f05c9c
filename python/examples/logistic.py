"""Logistic regression by Newton's method: each step solves H·d = −g by conjugate gradients, with H only as products H·v.

    python logistic.py [--penalty 1.0]

Data: breast cancer diagnoses (569 × 30), `crates/bilin/examples/data`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import pathlib

import numpy as np

import bilin as bl

DATA = pathlib.Path(__file__).parents[2] / "crates/bilin/examples/data/breast_cancer.csv.gz"


def read() -> tuple[bl.Tensor, bl.Tensor]:
    """Standardised measurements with a column of ones, and the diagnoses: 1 is malignant."""
    with gzip.open(DATA, "rt") as file:
        rows = np.array([[float(cell) for cell in row] for row in list(csv.reader(file))[1:]])
    x, y = rows[:, :-1], 1 - rows[:, -1]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return bl.asarray(np.hstack([x, np.ones((len(x), 1))])), bl.asarray(y)


def conjugate_gradients(product: object, g: bl.Tensor, tolerance: float) -> tuple[bl.Tensor, int]:
    """d with H·d = −g, where `product` gives H·v."""
    assert callable(product)
    d, r = bl.zeros_like(g), -g
    p, rr = r, float(bl.dot(r, r))
    steps = 0
    while rr > tolerance**2 and steps < 10 * g.size:
        hp = product(p)
        alpha = rr / float(bl.dot(p, hp))
        d, r = d + alpha * p, r - alpha * hp
        rr, before = float(bl.dot(r, r)), rr
        p, steps = r + (rr / before) * p, steps + 1
    return d, steps


def train(x: bl.Tensor, y: bl.Tensor, penalty: float) -> tuple[bl.Tensor, list[float]]:
    """The weights, and the norm of the gradient after each step."""

    def loss(w: bl.Tensor) -> bl.Tensor:
        z = x @ w
        # log(e^0 + e^z), smooth and without overflow.
        softplus = bl.logsumexp(bl.stack([bl.zeros_like(z), z]), axis=0)
        return (softplus - y * z).sum() + 0.5 * penalty * bl.dot(w, w)

    w, norms = bl.zeros(x.shape[1], dtype=bl.float64), []
    for step in range(50):
        value, g = bl.func.value_and_grad(loss)(w)
        norms.append(float(bl.dot(g, g)) ** 0.5)
        if norms[-1] < 1e-9:
            break
        # A looser solution far away; tight near the end, for quadratic convergence.
        d, inner = conjugate_gradients(lambda v: bl.func.hvp(loss, (w,), (v,)), g, norms[-1] * min(0.1, norms[-1]))
        length, slope = 1.0, float(bl.dot(g, d))
        while float(loss(w + length * d)) > float(value) + 1e-4 * length * slope and length > 1e-10:
            length /= 2
        w = w + length * d
        print(f"step {step:2}  loss {float(value):10.6f}  |g| {norms[-1]:.2e}  cg {inner:3}  length {length:g}")
    return w, norms


def main(arguments: list[str] | None = None) -> float:
    """Trains, and gives the share that is right on the training set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--penalty", type=float, default=1.0)
    options = parser.parse_args(arguments)
    x, y = read()
    w, norms = train(x, y, options.penalty)
    right = float(bl.mean(((x @ w > 0.0) == (y > 0.5)).astype(bl.float64)))
    print(f"|g| {norms[-1]:.1e} after {len(norms) - 1} steps, {100 * right:.2f} % right")
    return right


if __name__ == "__main__":
    main()

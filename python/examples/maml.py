"""Learns to learn: weights from which one gradient step fits a new sine (MAML). The gradient flows through the gradient step.

    python maml.py [--steps 300] [--seed 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import bilin as bl

Weights = list[bl.Tensor]
Points = tuple[bl.Tensor, bl.Tensor]
Model = Callable[[Weights, bl.Tensor], bl.Tensor]
HIDDEN, INNER, BATCH, JUDGES = 40, 0.01, 16, 200


def weights(rng: bl.Rng) -> Weights:
    """Random weights of one network: matrices and rows of offsets."""
    out: Weights = []
    for rows, columns in ((1, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)):
        out += [rng.randn((rows, columns), dtype=bl.float64) / rows**0.5, bl.zeros((1, columns), dtype=bl.float64)]
    return out


def network(w: Weights, x: bl.Tensor) -> bl.Tensor:
    """Answers of shape (tasks, points, 1); weights of one network, or of one for each task."""
    hidden = bl.tanh(x @ w[0] + w[1])
    return bl.tanh(hidden @ w[2] + w[3]) @ w[4] + w[5]


def tasks(count: int, rng: bl.Rng) -> tuple[Points, Points]:
    """Sines of random height and shift: ten points to adapt by and ten to judge by."""
    height = 0.1 + 4.9 * rng.rand((count, 1, 1), dtype=bl.float64)
    shift = bl.pi * rng.rand((count, 1, 1), dtype=bl.float64)

    def part() -> Points:
        x = 10.0 * rng.rand((count, 10, 1), dtype=bl.float64) - 5.0
        return x, height * bl.sin(x - shift)

    return part(), part()


def error(model: Model, w: Weights, points: Points) -> bl.Tensor:
    """The sum over tasks of the mean square error: each task's weights get the gradient of their own error."""
    x, y = points
    return ((model(w, x) - y) ** 2.0).mean(axis=(1, 2)).sum()


def adapt(model: Model, w: Weights, given: Points, rate: float) -> Weights:
    """Weights for each task, made of `w` by one gradient step on its points; differentiable through the step."""
    count = given[0].shape[0]
    own = [p.broadcast_to(count, *p.shape) if p.ndim == 2 else p for p in w]
    slopes = bl.func.grad(lambda w: error(model, w, given))(own)
    return [p - rate * g for p, g in zip(own, slopes)]


def error_after(model: Model, w: Weights, given: Points, asked: Points, rate: float = INNER) -> bl.Tensor:
    """The mean error of adapted weights on points they haven't seen, as a function of the weights before."""
    return error(model, adapt(model, w, given, rate), asked) / float(given[0].shape[0])


def errors(w: Weights, given: Points, asked: Points, steps: int = 5) -> list[float]:
    """Mean errors on new sines after 0, 1, … gradient steps."""
    count, w = given[0].shape[0], [p.detach() for p in w]
    out = [float(error(network, w, asked)) / count]
    for _ in range(steps):
        w = adapt(network, w, given, INNER)
        out.append(float(error(network, w, asked)) / count)
    return out


def main(arguments: list[str] | None = None) -> tuple[list[float], list[float]]:
    """Learns, and gives the errors on new sines by gradient steps from learned and from random weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args(arguments)
    rng = bl.Rng(options.seed)
    judges = tasks(JUDGES, rng)
    w = weights(rng)
    random = errors(w, *judges)
    adam = bl.optim.AdamW([p.requires_grad_() for p in w], lr=0.002, weight_decay=0.0)
    for step in range(options.steps):
        if step % 50 == 0:
            before, after = errors(w, *judges, steps=1)
            print(f"step {step:4}  error before adapting {before:.4f}, after one step {after:.4f}")
        adam.zero_grad()
        error_after(network, w, *tasks(BATCH, rng)).backward()
        adam.step()
    learned = errors(w, *judges)
    for name, all in (("learned", learned), ("random", random)):
        print(f"{name:>8} weights after 0, 1, … gradient steps: {' '.join(f'{e:.4f}' for e in all)}")
    return learned, random


if __name__ == "__main__":
    main()

"""Gradients of a fixed point z = tanh(W·z + U·x + b) by the implicit function theorem: nothing of the iteration is kept.

    python equilibrium.py [--states 32] [--seed 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import bilin as bl

Step = Callable[..., bl.Tensor]
SHORT, MOST_STEPS = 1e-15, 2000


def length(x: bl.Tensor) -> float:
    """The Euclidean norm of all elements."""
    return float(bl.sqrt((x * x).sum()))


class FixedPoint(bl.autograd.Function):
    """The state z = step(z, *parameters) at which the iteration from `start` rests."""

    @staticmethod
    def forward(ctx: Any, step: Step, start: bl.Tensor, *parameters: bl.Tensor) -> bl.Tensor:
        z = start
        for _ in range(MOST_STEPS):
            z, before = step(z, *parameters), z
            if length(z - before) <= SHORT * max(length(z), 1.0):
                break
        else:
            raise ValueError(f"no rest after {MOST_STEPS} steps; want a contraction")
        ctx.step = step
        ctx.save_for_backward(z, *parameters)
        return z

    @staticmethod
    def backward(ctx: Any, g: bl.Tensor) -> tuple[bl.Tensor | None, ...]:
        """With J = ∂step/∂z at the fixed point, u = Jᵀu + g, and the gradients are those of ⟨u, step⟩ by the parameters.

        The equation for u is a fixed point of (z, g, parameters), differentiable again by this very rule.
        """
        z, *parameters = ctx.saved_tensors
        step: Step = ctx.step

        def adjoint(u: bl.Tensor, z: bl.Tensor, g: bl.Tensor, *parameters: bl.Tensor) -> bl.Tensor:
            pulled: bl.Tensor = bl.func.vjp(lambda z: step(z, *parameters), z)[1](u)[0]
            return pulled + g

        u = fixed_point(adjoint, bl.zeros_like(g), z, g, *parameters)
        grads = bl.func.vjp(lambda *p: step(z, *p), *parameters)[1](u)
        return (None, None, *grads)


def fixed_point(step: Step, start: bl.Tensor, *parameters: bl.Tensor) -> bl.Tensor:
    """Differentiable by the parameters, of any order; `step` must be a contraction."""
    z: bl.Tensor = FixedPoint.apply(step, start, *parameters)
    return z


def layer(z: bl.Tensor, w: bl.Tensor, u: bl.Tensor, x: bl.Tensor, b: bl.Tensor) -> bl.Tensor:
    """One step of the state."""
    return bl.tanh(w @ z + u @ x + b)


def loss(*parameters: bl.Tensor) -> bl.Tensor:
    """½|z|² at the fixed point."""
    z = fixed_point(layer, bl.zeros_like(parameters[3].detach()), *parameters)
    return 0.5 * bl.dot(z, z)


def unrolled(steps: int) -> Callable[..., bl.Tensor]:
    """½|z|² after so many steps, each of them recorded."""

    def loss(*parameters: bl.Tensor) -> bl.Tensor:
        z = bl.zeros_like(parameters[3].detach())
        for _ in range(steps):
            z = layer(z, *parameters)
        return 0.5 * bl.dot(z, z)

    return loss


def draw(states: int, seed: int) -> tuple[bl.Tensor, ...]:
    """W, U, x and b; W has a spectral radius of about 0.8."""
    rng = bl.Rng(seed)
    w, *others = (rng.randn(s, dtype=bl.float64) for s in ((states, states), (states, 8), (8,), (states,)))
    return w * (0.8 / states**0.5), *others


def closed_form(*parameters: bl.Tensor) -> list[np.ndarray[Any, Any]]:
    """The same gradients without the engine: (I − Wᵀ·D)·v = z with D = diag(1 − z²), and r = D·v."""
    w, u, x, b = (p.numpy() for p in parameters)
    z = np.zeros_like(b)
    for _ in range(5000):
        z = np.tanh(w @ z + u @ x + b)
    slope = 1 - z * z
    r = slope * np.linalg.solve(np.eye(len(z)) - w.T * slope, z)
    return [np.outer(r, z), np.outer(r, x), u.T @ r, r]


def apart(found: tuple[bl.Tensor, ...], want: list[np.ndarray[Any, Any]]) -> float:
    """Relative distance."""
    a, b = (np.concatenate([np.ravel(np.asarray(p)) for p in parts]) for parts in (found, want))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main(arguments: list[str] | None = None) -> float:
    """Prints both ways beside the closed form, and gives the distance of the implicit gradients from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--states", type=int, default=32)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args(arguments)
    parameters = draw(options.states, options.seed)
    want = closed_form(*parameters)
    for steps in (5, 20, 80, 320):
        found = bl.func.grad(unrolled(steps), argnums=(0, 1, 2, 3))(*parameters)
        print(f"through {steps:3} steps   {apart(found, want):.1e} from the closed form")
    implicit = apart(bl.func.grad(loss, argnums=(0, 1, 2, 3))(*parameters), want)
    print(f"implicitly          {implicit:.1e}")
    return implicit


if __name__ == "__main__":
    main()

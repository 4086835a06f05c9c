"""Gradients in PyTorch's style."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from . import _bilin
from ._bilin import Tensor, grad

__all__ = ["grad", "gradcheck", "gradgradcheck"]


def _tensors(inputs: Any, name: str) -> list[Tensor]:
    inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    for x in inputs:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: inputs are of type {type(x).__name__}; want tensors")
    return inputs


def gradcheck(
    f: Callable[..., Any], inputs: Any, *, step: float = 1e-5, tolerance: float = 1e-6, seed: int = 1
) -> bool:
    """True where the gradients of ``f`` agree with finite differences; else ``InvalidArgument`` naming both numbers."""
    if not callable(f):
        raise TypeError(f"gradcheck: f is {f!r}; want a function of tensors")
    _bilin._gradcheck(f, _tensors(inputs, "gradcheck"), False, step, tolerance, seed)
    return True


def gradgradcheck(
    f: Callable[..., Any], inputs: Any, *, step: float = 1e-5, tolerance: float = 1e-6, seed: int = 1
) -> bool:
    """``gradcheck`` of the gradients."""
    if not callable(f):
        raise TypeError(f"gradgradcheck: f is {f!r}; want a function of tensors")
    _bilin._gradcheck(f, _tensors(inputs, "gradgradcheck"), True, step, tolerance, seed)
    return True

"""Gradients in PyTorch's style."""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence, TypeVar

from . import _bilin, errors
from ._bilin import HookHandle, Node, Picture, Rng, Tensor, backward, grad, is_detecting_anomaly, is_grad_enabled
from ._modes import _GradScope
from ._named import name_all as _name_all

__all__ = [
    "Function",
    "FunctionCtx",
    "HookHandle",
    "Node",
    "Picture",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_detecting_anomaly",
    "once_differentiable",
]

R = TypeVar("R")


class FunctionCtx:
    """What one call of a ``Function`` keeps between forward and backward; other attributes may be set freely."""

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[Tensor, ...] = ()
    constants: tuple[Tensor, ...] = ()

    def __init__(self, call: _Call) -> None:
        object.__setattr__(self, "_call", call)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._call.attributes[name]
        except KeyError:
            raise AttributeError(f"{self._call.name}: ctx has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("needs_input_grad", "saved_tensors", "constants"):
            object.__setattr__(self, name, value)
        else:
            self._call.attributes[name] = value

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keeps arguments and results, each with its version. Other tensors may be kept, but have no second derivative."""
        self.saved_tensors = tuple(_tensors(tensors, f"{self._call.name}.save_for_backward"))

    def save_constants(self, *tensors: Tensor) -> None:
        """Keeps tensors that don't move with the arguments, such as a random mask."""
        self.constants = tuple(_tensors(tensors, f"{self._call.name}.save_constants"))

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """No gradient flows through these results."""
        self._call.fixed = list(_tensors(outputs, f"{self._call.name}.mark_non_differentiable"))

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Not here: a function gives new tensors."""
        raise errors.Unsupported(f"{self._call.name}: mark_dirty isn't supported; return a new tensor")

    def set_materialize_grads(self, value: bool) -> None:
        """False: ``backward`` sees None for a result that nobody used, instead of zeros."""
        self._call.materialize = bool(value)


def _pieces(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


class _Call:
    """One call of a function: what it was given beside tensors, and the shape of its results."""

    def __init__(self, cls: type[Function], args: tuple[Any, ...]) -> None:
        self.cls, self.name = cls, cls.__name__
        self.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        # Tensors aren't kept here: what backward reads of them is saved with its version.
        self.rest = [None if isinstance(a, Tensor) else a for a in args]
        self.attributes: dict[str, Any] = {}
        self.fixed: list[Tensor] = []
        self.materialize = True
        self.roles: list[tuple[str, Any]] = []
        self.outputs: list[Any] = []
        self.is_tuple = False

    def whole(self, tensors: Sequence[Any]) -> list[Any]:
        args = list(self.rest)
        for i, t in zip(self.places, tensors):
            args[i] = t
        return args

    def flags(self, needs: Sequence[bool]) -> tuple[bool, ...]:
        flags = [False] * len(self.rest)
        for i, need in zip(self.places, needs):
            flags[i] = need
        return tuple(flags)

    def forward(self, tensors: list[Tensor], needs: Sequence[bool]) -> tuple[list[Tensor], ...]:
        ctx = FunctionCtx(self)
        ctx.needs_input_grad = self.flags(needs)
        args = self.whole(tensors)
        if self.cls.setup_context is Function.setup_context:
            out = self.cls.forward(ctx, *args)
        else:
            out = self.cls.forward(*args)
            self.cls.setup_context(ctx, tuple(args), out)
        self.is_tuple, pieces = isinstance(out, tuple), _pieces(out)
        results = [p for p in pieces if isinstance(p, Tensor)]
        if not results:
            raise TypeError(f"{self.name}.forward: the result is of type {type(out).__name__}; want a tensor or a tuple with one")
        self.outputs = [None if isinstance(p, Tensor) else p for p in pieces]
        self.slots = [i for i, p in enumerate(pieces) if isinstance(p, Tensor)]
        self.roles = [_role(t, tensors, results) for t in ctx.saved_tensors] if self.has_jvp() else []
        return results, list(ctx.saved_tensors), list(ctx.constants), self.fixed

    def has_jvp(self) -> bool:
        return self.cls.jvp is not Function.jvp

    def answers(self, name: str, found: Any, want: int) -> list[Any]:
        given = _pieces(found)
        if len(given) != want:
            raise errors.InvalidArgument(f"{self.name}.{name}: gradients are {len(given)} in number; want {want}")
        for i, g in enumerate(given):
            if g is not None and not isinstance(g, Tensor):
                raise TypeError(f"{self.name}.{name}: gradient {i} is of type {type(g).__name__}; want a tensor or None")
        return given

    def backward(
        self, saved: list[Tensor], constants: list[Tensor], needs: Sequence[bool], arrived: Sequence[bool], g: list[Tensor]
    ) -> list[Tensor | None]:
        ctx = FunctionCtx(self)
        ctx.needs_input_grad, ctx.saved_tensors, ctx.constants = self.flags(needs), tuple(saved), tuple(constants)
        grads: list[Any] = [None] * len(self.outputs)
        for i, came, x in zip(self.slots, arrived, g):
            grads[i] = x if came or self.materialize else None
        found = self.answers("backward", self.cls.backward(ctx, *grads), len(self.rest))
        for i, x in enumerate(found):
            if x is not None and i not in self.places:
                raise errors.InvalidArgument(f"{self.name}.backward: gradient {i} is a tensor; argument {i} is none, want None")
        return [found[i] for i in self.places]

    def jvp(self, inputs: list[Tensor], outputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor | None]:
        ctx = FunctionCtx(self)
        saved: list[Tensor] = []
        for kind, at in self.roles:
            if kind == "other":
                text = f"{self.name}.jvp: a saved tensor is neither argument nor result; save only those"
                raise errors.NotDifferentiable(text)
            saved.append(inputs[at] if kind == "argument" else outputs[at])
        ctx.saved_tensors = tuple(saved)
        found = self.answers("jvp", self.cls.jvp(ctx, *self.whole_tangents(tangents)), len(self.outputs))
        return [found[i] for i in self.slots]

    def whole_tangents(self, tangents: list[Tensor]) -> list[Any]:
        all: list[Any] = [None] * len(self.rest)
        for i, t in zip(self.places, tangents):
            all[i] = t
        return all


def _role(t: Tensor, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[str, Any]:
    for kind, group in (("argument", inputs), ("result", outputs)):
        for i, x in enumerate(group):
            if x is t:
                return kind, i
    return "other", None


class Function:
    """A function whose gradient is written by hand. Written in ops, it is differentiable again.

    >>> import bilin as bl
    >>> class Cube(bl.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return g * 3 * x * x
    >>> x = bl.asarray(2.0).requires_grad_()
    >>> y = Cube.apply(x)
    >>> y.backward()
    >>> y.grad_fn.name(), x.grad.item()
    ('CubeBackward', 12.0)
    """

    def __init__(self, *_: Any) -> None:
        raise TypeError(f"{type(self).__name__}: a Function isn't instantiated; call {type(self).__name__}.apply")

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """``forward(ctx, *args)``, or ``forward(*args)`` with a ``setup_context``: the result, or a tuple of them."""
        raise errors.Unsupported("Function: forward isn't written; give the class a static method forward(ctx, *args)")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves what backward reads, where ``forward`` takes no ctx."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """One gradient an argument of ``forward``, None for those that are no tensors or not needed."""
        raise errors.Unsupported("Function: backward isn't written; give the class a static method backward(ctx, *grads)")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Forward mode, where it is wanted: one tangent a result for one a tensor argument."""
        raise errors.Unsupported("Function: jvp isn't written; give the class a static method jvp(ctx, *tangents)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the function: ``forward`` now, ``backward`` when a gradient arrives."""
        call = _Call(cls, args)
        tensors = [args[i] for i in call.places]
        jvp = call.jvp if call.has_jvp() else None
        results = _bilin._apply_function(cls.__name__, call.forward, call.backward, jvp, tensors)
        pieces = list(call.outputs)
        for i, t in zip(call.slots, results):
            pieces[i] = t
        return tuple(pieces) if call.is_tuple else pieces[0]


def once_differentiable(backward: Callable[..., R]) -> Callable[..., R]:
    """Decorates a ``backward`` that isn't written in ops: a second derivative through it is an error, never silently zero."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> R:
        if is_grad_enabled():
            raise errors.NotDifferentiable("once_differentiable: a second derivative was asked for; write backward in ops")
        return backward(ctx, *grads)

    return once


def checkpoint(function: Callable[..., R], *args: Any, rng: Rng | None = None, **kwargs: Any) -> R:
    """``function(*args, **kwargs)``, keeping its tensor arguments alone: the rest is computed again in backward.

    ``rng`` is the stream that the function draws from, if it draws: it gives the same numbers again.
    """
    if not callable(function):
        raise TypeError(f"checkpoint: function is of type {type(function).__name__}; want a function")
    if rng is not None and not isinstance(rng, Rng):
        raise TypeError(f"checkpoint: rng is of type {type(rng).__name__}; want a bilin.Rng")
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    rest = [None if isinstance(a, Tensor) else a for a in args]
    shape: list[bool] = []

    def run(tensors: list[Tensor]) -> list[Tensor]:
        whole: list[Any] = list(rest)
        for i, t in zip(places, tensors):
            whole[i] = t
        out = function(*whole, **kwargs)
        pieces = list(out) if isinstance(out, (tuple, list)) else [out]
        shape[:] = [isinstance(out, (tuple, list))]
        return _tensors(pieces, "checkpoint", "the function's results")

    results = _bilin._checkpoint(run, [args[i] for i in places], rng)
    return tuple(results) if shape[0] else results[0]  # type: ignore[return-value]


class detect_anomaly(_GradScope):
    """Searches every gradient inside for NaN: backward stops at the op that made the first, with ``NanGradient``."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        if not isinstance(mode, bool):
            raise TypeError(f"detect_anomaly: mode is of type {type(mode).__name__}; want True or False")
        self._on = mode

    def _again(self) -> detect_anomaly:
        return detect_anomaly(self._on)

    def _set(self) -> bool:
        before: bool = _bilin._set_detect_anomaly(self._on)
        return before

    def _restore(self, before: bool) -> None:
        _bilin._set_detect_anomaly(before)


def _tensors(inputs: Any, name: str, what: str = "inputs") -> list[Tensor]:
    all: list[Any] = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    for x in all:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {what} are of type {type(x).__name__}; want tensors")
    return all


def _check(
    name: str, second: bool, f: Any, inputs: Any, eps: float, tolerance: float, seed: int, raise_exception: bool
) -> bool:
    if not callable(f):
        raise TypeError(f"{name}: func is of type {type(f).__name__}; want a function of tensors")
    for arg, number in (("eps", eps), ("tolerance", tolerance)):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError(f"{name}: {arg} is of type {type(number).__name__}; want a number")
        if not number > 0:
            raise errors.InvalidArgument(f"{name}: {arg} is {number}; want a number above 0")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"{name}: seed is of type {type(seed).__name__}; want a whole number from 0")
    if not 0 <= seed < 2**63:
        raise errors.InvalidArgument(f"{name}: seed is {seed}; want a whole number from 0, below 2**63")
    x = _tensors(inputs, name)
    count = [1]

    def result(which: int) -> Callable[..., Any]:
        def one(*args: Tensor) -> Any:
            out = f(*args)
            if not isinstance(out, (tuple, list)):
                return out
            count[0] = len(out)
            return out[which]

        return one

    which = 0
    try:
        while which < count[0]:
            _bilin._gradcheck(result(which), x, second, float(eps), float(tolerance), seed)
            which += 1
    except errors.InvalidArgument as error:
        if raise_exception:
            error.args = (str(error).replace(f"{name}: input is ", f"{name}: inputs: number ", 1),)
            raise
        return False
    return True


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-5,
    tolerance: float = 1e-6,
    seed: int = 1,
    raise_exception: bool = True,
) -> bool:
    """True where the gradients of ``func`` agree with finite differences; else ``InvalidArgument`` naming both numbers.

    Inputs of float64 and complex128 are checked, along random directions; each result of a tuple in turn.
    """
    return _check("gradcheck", False, func, inputs, eps, tolerance, seed, raise_exception)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-5,
    tolerance: float = 1e-6,
    seed: int = 1,
    raise_exception: bool = True,
) -> bool:
    """``gradcheck`` of the gradients."""
    return _check("gradgradcheck", True, func, inputs, eps, tolerance, seed, raise_exception)


_name_all(globals())

"""Scopes of a thread's modes, as context managers and decorators."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from . import _bilin

F = TypeVar("F", bound=Callable[..., Any])


class _Scope:
    """Sets a mode on entry and puts it back on exit; one object may be entered again while it is open."""

    def __init__(self) -> None:
        self._before: list[Any] = []

    def _set(self) -> Any:
        raise NotImplementedError

    def _restore(self, before: Any) -> None:
        raise NotImplementedError

    def _again(self) -> "_Scope":
        return type(self)()

    def __enter__(self) -> "_Scope":
        self._before.append(self._set())
        return self

    def __exit__(self, *_: object) -> None:
        self._restore(self._before.pop())

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise TypeError(f"{type(self).__name__}: function is of type {type(function).__name__}; want a function to decorate")

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


class _GradScope(_Scope):
    _on = True

    def _set(self) -> bool:
        before: bool = _bilin._set_grad_enabled(self._on)
        return before

    def _restore(self, before: bool) -> None:
        _bilin._set_grad_enabled(before)


class no_grad(_GradScope):
    """Nothing is recorded inside. A context manager and a decorator."""

    _on = False

    def __new__(cls, function: Any = None) -> Any:
        scope = super().__new__(cls)
        if function is None:
            return scope
        scope.__init__()  # type: ignore[misc]
        return scope(function)

    def __init__(self, function: Any = None) -> None:
        super().__init__()


class enable_grad(no_grad):
    """Ops are recorded inside, also within ``no_grad``. A context manager and a decorator."""

    _on = True

    def __new__(cls, function: Any = None) -> Any:
        return super().__new__(cls, function)


class set_grad_enabled(_GradScope):
    """Turns recording on or off at once; as a context manager, until the scope ends."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        if not isinstance(mode, bool):
            raise TypeError(f"set_grad_enabled: mode is of type {type(mode).__name__}; want True or False")
        self._on = mode
        self._outer = _bilin._set_grad_enabled(mode)

    def __enter__(self) -> "set_grad_enabled":
        _bilin._set_grad_enabled(self._on)
        self._before.append(self._outer)
        return self

    def _again(self) -> "_Scope":
        return set_grad_enabled(self._on)

    def __call__(self, function: F) -> F:
        _bilin._set_grad_enabled(self._outer)
        return super().__call__(function)

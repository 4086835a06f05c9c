"""Errors of functions written in Python name the function that was called and its arguments, from its signature."""

from __future__ import annotations

import functools
import os
import re
from types import FunctionType
from typing import Any, Callable, TypeVar

from .errors import BilinError

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = os.path.dirname(__file__)
_VARARGS = 4


def named(function: F) -> F:
    """The same function. An error of this package that it passes on from a part names the function and its arguments too."""
    code, name = function.__code__, function.__name__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)
    arguments = code.co_varnames[:count]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (BilinError, TypeError, ValueError, OverflowError, BufferError) as error:
            if _is_ours(error):
                _amend(error, name, arguments)
            raise

    return call  # type: ignore[return-value]


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised here, or by what is called from here; not by a function of the user's, nor by the call itself."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    if trace is None:
        return False
    while trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _amend(error: BaseException, name: str, arguments: tuple[str, ...]) -> None:
    text = str(error)
    words = set(re.findall(r"\w+", text))
    if name not in words:
        text = f"{name}: {text}"
    if arguments and words.isdisjoint(arguments):
        text = f"{name}: {', '.join(arguments)}: {text.removeprefix(f'{name}: ')}"
    error.args = (text,)


def name_all(module: dict[str, Any]) -> None:
    """Does so for every public function of a module."""
    for name, thing in list(module.items()):
        if not name.startswith("_") and isinstance(thing, FunctionType) and thing.__module__ == module["__name__"]:
            module[name] = named(thing)

"""What ran, for how long, with how many FLOPs and bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _bilin, errors
from ._bilin import DType
from ._modes import _Scope

__all__ = ["Event", "KeyAverage", "KeyAverages", "profile", "record_function"]


class Event(NamedTuple):
    """One kernel, or one scope."""

    name: str
    node: str
    direction: str
    sequence: int
    thread: int
    depth: int
    device: str
    dtype: DType | None
    operand_dtype: DType | None
    shapes: tuple[tuple[int, ...], ...]
    flops: int
    bytes: int
    start_ns: int
    duration_ns: int
    memory_change_bytes: int
    memory_bytes: int


class KeyAverage(NamedTuple):
    """Events of one name, node and device, added up."""

    name: str
    node: str
    calls: int
    total_ns: int
    flops: int
    bytes: int
    device: str


class KeyAverages(list[KeyAverage]):
    """Sums by name, node and device, the longest first."""

    def __init__(self, all: list[KeyAverage], table: Callable[[], str]) -> None:
        super().__init__(all)
        self._table = table

    def table(self) -> str:
        """By total time, with GFLOP/s, GB/s and the share of the peak; the first call for a dtype measures its peak."""
        return self._table()

    def __str__(self) -> str:
        return self.table()


class profile(_Scope):
    """Collects the events of this thread inside a ``with``, or inside calls of a function that it decorates.

    >>> import bilin as bl
    >>> with bl.profiler.profile() as p:
    ...     y = bl.ones((2, 3)) @ bl.ones((3, 4))
    >>> [(e.name, e.flops) for e in p.events if e.name == "matmul"]
    [('matmul', 48)]
    """

    def __init__(self) -> None:
        super().__init__()
        self._collected: Any = None

    def _set(self) -> None:
        _bilin._profile_begin()

    def _restore(self, before: Any) -> None:
        self._collected = _bilin._profile_end()

    def _again(self) -> profile:
        return self

    def _done(self, name: str) -> Any:
        if self._collected is None:
            raise errors.InvalidArgument(f"{name}: profile is still open; call it after the with")
        return self._collected

    @property
    def events(self) -> list[Event]:
        """The events, in the order in which they ended."""
        return [Event(*e) for e in self._done("events").events()]

    def key_averages(self) -> KeyAverages:
        """Sums by name, node and device."""
        done = self._done("key_averages")
        return KeyAverages([KeyAverage(*k) for k in done.key_averages()], done.table)

    def table(self) -> str:
        """By total time, with GFLOP/s, GB/s and the share of the peak."""
        table: str = self._done("table").table()
        return table

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto opens."""
        text = self._done("export_chrome_trace").export_chrome_trace()
        try:
            place = os.fspath(path)
        except TypeError:
            raise TypeError(f"export_chrome_trace: path is of type {type(path).__name__}; want a path") from None
        with open(place, "w", encoding="utf-8") as file:
            file.write(text)


class record_function(_Scope):
    """A named scope of the profile: a context manager and a decorator."""

    def __init__(self, name: str) -> None:
        super().__init__()
        if not isinstance(name, str):
            raise TypeError(f"record_function: name is of type {type(name).__name__}; want text")
        self._name = name

    def _again(self) -> record_function:
        return record_function(self._name)

    def _set(self) -> None:
        _bilin._scope_begin(self._name)

    def _restore(self, before: Any) -> None:
        _bilin._scope_end()

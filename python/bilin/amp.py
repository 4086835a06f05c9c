"""Mixed precision: scopes in which ops cast their operands by the policy of their schema."""

from __future__ import annotations

from typing import Any

from . import _bilin
from ._bilin import GradScaler, autocast_dtype, is_autocast_enabled
from ._modes import _Scope

__all__ = ["GradScaler", "autocast", "autocast_dtype", "is_autocast_enabled"]


class autocast(_Scope):
    """Products run in ``dtype`` inside; ``enabled=False`` is a scope without casts. A context manager and a decorator."""

    def __init__(self, dtype: Any = "bfloat16", *, enabled: bool = True) -> None:
        super().__init__()
        if not isinstance(enabled, bool):
            raise TypeError(f"autocast: enabled is of type {type(enabled).__name__}; want True or False")
        self._dtype = _bilin._dtype(dtype, "autocast", "dtype")
        if self._dtype not in (_bilin.float16, _bilin.bfloat16, _bilin.float32):
            raise TypeError(f"autocast: dtype is {self._dtype}; want float16, bfloat16 or float32")
        self._enabled = enabled

    def _again(self) -> "autocast":
        return autocast(self._dtype, enabled=self._enabled)

    def _set(self) -> Any:
        return _bilin._set_autocast(self._dtype if self._enabled else None)

    def _restore(self, before: Any) -> None:
        _bilin._set_autocast(before)

"""Exceptions: each carries the engine's text, and is also the built-in exception that users would catch."""


class BilinError(Exception):
    """Every error of the engine."""


class ShapeMismatch(BilinError, ValueError):
    """Ranks or lengths don't fit."""


class DtypeMismatch(BilinError, TypeError):
    """Dtypes don't fit together, or the op isn't defined for them."""


class DeviceMismatch(BilinError, RuntimeError):
    """Operands live on different devices."""


class VersionMismatch(BilinError, RuntimeError):
    """A saved operand was changed in place before its gradient was taken."""


class GraphFreed(BilinError, RuntimeError):
    """Backward went through this graph before and its values are released."""


class NonDeterministic(BilinError, RuntimeError):
    """The op can't keep the promise of equal bits that was asked for."""


class OutOfMemory(BilinError, MemoryError):
    """An allocation failed or would pass the limit, which is None where there is none."""

    device: str
    requested_bytes: int
    current_bytes: int
    peak_bytes: int
    limit_bytes: int | None


class TooLarge(BilinError, ValueError):
    """A size overflows 64-bit arithmetic."""


class Unsupported(BilinError, NotImplementedError):
    """The device, the op or the file format doesn't have this."""


class InvalidArgument(BilinError, ValueError):
    """An argument is outside its domain."""


class PositionError(InvalidArgument, IndexError):
    """A position is out of range."""


class KernelNotFound(BilinError, RuntimeError):
    """No kernel of this name."""


class ShaderCompilation(BilinError, RuntimeError):
    """A shader didn't compile."""


class DeviceLost(BilinError, RuntimeError):
    """The device went away."""


class Io(BilinError, OSError):
    """A file couldn't be read or written."""


class Format(BilinError, ValueError):
    """A file isn't what its name or header says."""


class NotDifferentiable(BilinError, RuntimeError):
    """A derivative was asked for that the op doesn't have."""


class NanGradient(BilinError, ArithmeticError):
    """A gradient that isn't a number, under ``detect_anomaly``."""

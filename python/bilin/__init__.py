"""Differentiable matrix products: NumPy's and the array API's names, gradients of every order."""

from __future__ import annotations

import os as _os
from typing import Any as _Any
from typing import NamedTuple as _NamedTuple

from . import _bilin, errors
from ._bilin import (
    DType,
    HookHandle,
    Node,
    OpSchema,
    Rng,
    Tensor,
    __version__,
    _dtype,
    _rebuild,
    are_deterministic_algorithms_enabled,
    asarray,
    bfloat16,
    bool,
    complex64,
    complex128,
    devices,
    dot,
    einsum,
    float16,
    float32,
    float64,
    get_num_threads,
    inner,
    int8,
    int16,
    int32,
    int64,
    is_grad_enabled,
    load,
    matmul,
    matvec,
    memory_stats,
    op_lookup,
    op_registry_all,
    outer,
    reset_peak_memory_stats,
    result_type,
    save,
    schema_hash,
    set_memory_limit,
    set_num_threads,
    stack,
    tensordot,
    uint8,
    use_deterministic_algorithms,
    vdot,
    vecdot,
    vecmat,
    where,
)
from ._modes import enable_grad, no_grad, set_grad_enabled
from ._named import name_all as _name_all
from ._named import named as _named
from .errors import *  # noqa: F403

__builtins_min = __import__("builtins").min
_bool = __builtins__["bool"] if isinstance(__builtins__, dict) else __builtins__.bool
__array_api_version__ = "2024.12"
e, inf, nan, pi, newaxis = 2.718281828459045, float("inf"), float("nan"), 3.141592653589793, None


class _Ops:
    """Every op of the registry in the engine's strict form: tensors of one dtype, attributes by name."""

    def __init__(self) -> None:
        for op in _bilin._ops(True):
            setattr(self, op.__name__, op)


ops = _Ops()

# Every op of the registry as a function and a method, where the array API has no form of its own for the name.
for _op in _bilin._ops(False):
    globals().setdefault(_op.__name__, _op)
    if not hasattr(Tensor, _op.__name__):
        setattr(Tensor, _op.__name__, _op)


class EinsumPath(_NamedTuple):
    """The order in which an einsum takes its operands, and what it costs."""

    steps: list[tuple[int, int]]
    flops: int
    peak_elements: int


def einsum_path(*operands: _Any) -> EinsumPath:
    """The path that ``einsum`` takes for the same operands."""
    return EinsumPath(*_bilin._einsum_path(*operands))


def from_dlpack(x: _Any, /, *, device: _Any = None, copy: _bool | None = None) -> Tensor:
    """A tensor of another library's array, through DLPack. A copy, unless ``copy=False`` asks for shared memory."""
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not callable(getattr(type(x), "__dlpack__", None)):
        raise TypeError(f"from_dlpack: x is of type {type(x).__name__}; want an object with __dlpack__")
    import numpy as np

    source = _Producer(x)
    try:
        array = np.from_dlpack(source)
    except Exception as error:
        raise BufferError(f"from_dlpack: x can't be shared: {error}") from error
    return _bilin._from_bits(array, device, copy) if source.is_bfloat16 else asarray(array, device=device, copy=copy)


class _Producer:
    """Another library's array as NumPy takes it: bfloat16, which NumPy's DLPack lacks, travels as uint16."""

    def __init__(self, x: _Any) -> None:
        self.x, self.is_bfloat16 = x, False
        if getattr(getattr(x, "dtype", None), "name", "") == "bfloat16" and hasattr(x, "__array_interface__"):
            self.x, self.is_bfloat16 = x.view("uint16"), True

    def __dlpack__(self, **options: _Any) -> _Any:
        capsule = self.x.__dlpack__(**options)
        self.is_bfloat16 = _bilin._relabel(capsule, True) or self.is_bfloat16
        return capsule

    def __dlpack_device__(self) -> _Any:
        return self.x.__dlpack_device__()


def _dlpack(self: Tensor, **options: _Any) -> _Any:
    """A capsule over this memory: read-only in the versioned protocol, a copy in the legacy one, which can't say so.

    Negative strides are a copy too, unless ``copy=False`` is asked for.
    """
    version = options.get("max_version")
    legacy = version is None or version[0] < 1
    if options.get("stream") is not None:
        raise errors.InvalidArgument("__dlpack__: stream is given; the CPU has none, want None")
    if legacy and options.get("copy") is False:
        raise BufferError("__dlpack__: copy is False; memory is read-only, which takes max_version=(1, 0)")
    # NumPy takes negative strides, PyTorch doesn't.
    turned = options.get("copy") is None and __builtins_min(self.strides, default=0) < 0
    array = self._carried(legacy or turned or options.get("copy") is True)
    if turned and not legacy:
        array.flags.writeable = False
    capsule = array.__dlpack__(**options)
    if self.dtype == bfloat16:
        _bilin._relabel(capsule, False)
    return capsule


Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
Tensor.__dlpack_device__ = lambda self: (1, 0)  # type: ignore[method-assign]


def from_numpy(array: _Any, /) -> Tensor:
    """A tensor over the array's memory, as ``asarray(array, copy=False)``."""
    import numpy as np

    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: array is of type {type(array).__name__}; want a NumPy array")
    return asarray(array, copy=False)


def _flag(value: _Any, func: str, arg: str) -> _bool:
    if not isinstance(value, _bool):
        raise TypeError(f"{func}: {arg} is of type {type(value).__name__}; want True or False")
    return value


def _whole(value: _Any, func: str, arg: str) -> int:
    if isinstance(value, _bool) or not isinstance(value, int):
        raise TypeError(f"{func}: {arg} is of type {type(value).__name__}; want a whole number")
    if not -(2**62) < value < 2**62:
        raise errors.InvalidArgument(f"{func}: {arg} is {value}; want a whole number of at most 62 bits")
    return value


def tensor(obj: _Any, *, dtype: _Any = None, device: _Any = None, requires_grad: _bool = False) -> Tensor:
    """A new tensor of ``obj``'s values."""
    out = Tensor(obj, dtype=dtype, device=device)
    return out.requires_grad_() if _flag(requires_grad, "tensor", "requires_grad") else out


def zeros(shape: _Any, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """Zeros, float32 where no dtype is named."""
    return _bilin._full("zeros", shape, 0, float32 if dtype is None else dtype, device)


def ones(shape: _Any, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """Ones, float32 where no dtype is named."""
    return _bilin._full("ones", shape, 1, float32 if dtype is None else dtype, device)


def empty(shape: _Any, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """A tensor to be filled; it holds zeros."""
    return _bilin._full("empty", shape, 0, float32 if dtype is None else dtype, device)


def full(shape: _Any, fill_value: _Any, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """One value everywhere."""
    return _bilin._full("full", shape, fill_value, dtype, device)


def _like(x: _Any, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x is of type {type(x).__name__}; want a tensor")
    return x


def _own(given: _Any, own: _Any) -> _Any:
    return own if given is None else given


def zeros_like(x: Tensor, /, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """Zeros of this shape."""
    x = _like(x, "zeros_like")
    return _bilin._full("zeros_like", x.shape, 0, _own(dtype, x.dtype), _own(device, x.device))


def ones_like(x: Tensor, /, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """Ones of this shape."""
    x = _like(x, "ones_like")
    return _bilin._full("ones_like", x.shape, 1, _own(dtype, x.dtype), _own(device, x.device))


def empty_like(x: Tensor, /, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """A tensor of this shape to be filled."""
    x = _like(x, "empty_like")
    return _bilin._full("empty_like", x.shape, 0, _own(dtype, x.dtype), _own(device, x.device))


def full_like(x: Tensor, /, fill_value: _Any, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """One value in this shape."""
    x = _like(x, "full_like")
    return _bilin._full("full_like", x.shape, fill_value, _own(dtype, x.dtype), _own(device, x.device))


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: _Any = None, device: _Any = None) -> Tensor:
    """Ones on diagonal ``k``, zeros elsewhere."""
    rows = _whole(n_rows, "eye", "n_rows")
    columns, k = rows if n_cols is None else _whole(n_cols, "eye", "n_cols"), _whole(k, "eye", "k")
    if columns == rows and k == 0:
        return _bilin._eye(rows, dtype, device)
    out = _bilin._full("eye", (rows, columns), 0, float32 if dtype is None else dtype, device)
    top, left = (0, k) if k > 0 else (-k, 0)
    count = __builtins_min(rows - top, columns - left)
    if count > 0:
        diagonal(out[top : top + count, left : left + count]).fill_(1)  # noqa: F821
    return out


def _number(value: _Any, func: str, arg: str) -> _Any:
    if isinstance(value, _bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{func}: {arg} is of type {type(value).__name__}; want a number")
    if isinstance(value, int):
        return _whole(value, func, arg)
    if value - value != 0:
        raise errors.InvalidArgument(f"{func}: {arg} is {value}; want a finite number")
    return value


def arange(start: float, /, stop: float | None = None, step: float = 1, *, dtype: _Any = None, device: _Any = None) -> Tensor:
    """start, start + step, … before stop; int64 for whole numbers, else float32."""
    start, step = _number(start, "arange", "start"), _number(step, "arange", "step")
    start, stop = (0, start) if stop is None else (start, _number(stop, "arange", "stop"))
    if dtype is None:
        dtype = int64 if _all_ints(start, stop, step) else float32
    return _bilin._sequence("arange", float(start), float(stop), float(step), dtype, device)


def _all_ints(*numbers: float) -> _bool:
    """Whether no number is a float."""
    for n in numbers:
        if isinstance(n, float):
            return False
    return True


def linspace(start: float, stop: float, /, num: int, *, dtype: _Any = None, device: _Any = None, endpoint: _bool = True) -> Tensor:
    """``num`` numbers from start to stop."""
    start, stop, num = _number(start, "linspace", "start"), _number(stop, "linspace", "stop"), _whole(num, "linspace", "num")
    if not _flag(endpoint, "linspace", "endpoint") and num > 0:
        stop = start + (stop - start) * (num - 1) / num
    return _bilin._sequence("linspace", float(start), float(stop), float(num), float32 if dtype is None else dtype, device)


def _reduction(name: str) -> _Any:
    op = globals()[name]

    def reduce(x: _Any, /, axis: _Any = None, *, dtype: _Any = None, keepdims: _bool = False) -> Tensor:
        if dtype is None:
            return op(x, axis=axis, keepdims=keepdims)
        wanted = _dtype(dtype, name, "dtype")
        # A sum of narrow integers is an int64, exact before it wraps.
        return op(_bilin._tensor(x, name, "x").astype(wanted), axis=axis, keepdims=keepdims).astype(wanted)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"``{name}`` over ``axis``, an axis, a tuple of them, or None for all."
    return reduce


sum, mean, max, min, argmax, argmin = map(_reduction, ("sum", "mean", "max", "min", "argmax", "argmin"))


def _method(function: _Any) -> _Any:
    # NumPy's functions hand on `out`, PyTorch says `dim` and `keepdim`.
    def method(
        self: Tensor, axis: _Any = None, dtype: _Any = None, out: None = None, keepdims: _bool = False, *, dim: _Any = None, keepdim: _bool = False
    ) -> Tensor:
        if out is not None:
            raise TypeError(f"{function.__name__}: out is of type {type(out).__name__}; want None: results are new tensors")
        keeps = [_flag(k, function.__name__, "keepdims") for k in (keepdims, keepdim)]
        given = {} if dtype is None else {"dtype": dtype}
        return function(self, axis=dim if axis is None else axis, keepdims=True in keeps, **given)

    method.__qualname__ = function.__name__
    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return _named(method)


def all(x: _Any, /, axis: _Any = None, *, keepdims: _bool = False) -> Tensor:
    """Whether every element is true."""
    return logical_not(any(logical_not(_bilin._tensor(x, "all", "x")), axis=axis, keepdims=keepdims))


def any(x: _Any, /, axis: _Any = None, *, keepdims: _bool = False) -> Tensor:
    """Whether some element is true."""
    return sum(_bilin._tensor(x, "any", "x").astype(bool), axis=axis, keepdims=keepdims) != 0


for _f in (sum, mean, max, min, argmax, argmin, all, any):
    setattr(Tensor, _f.__name__, _method(_f))


def reshape(x: _Any, /, shape: _Any, *, copy: _bool | None = None) -> Tensor:
    """The same elements under another shape; one length may be -1."""
    out = _bilin._tensor(x, "reshape", "x").reshape(shape)
    return out.clone() if copy is not None and _flag(copy, "reshape", "copy") else out


def permute_dims(x: _Any, /, axes: _Any) -> Tensor:
    """Axes in another order."""
    return permute(x, axes=axes)  # noqa: F821


def matrix_transpose(x: _Any, /) -> Tensor:
    """The last two axes exchanged."""
    return _bilin._tensor(x, "matrix_transpose", "x").mT


def expand_dims(x: _Any, /, *, axis: int = 0) -> Tensor:
    """With a new axis of length 1."""
    return unsqueeze(x, axis=axis)  # noqa: F821


def astype(x: _Any, dtype: _Any, /, *, copy: _bool = True, device: _Any = None) -> Tensor:
    """The same values in another dtype."""
    out = _bilin._tensor(x, "astype", "x").astype(dtype, device=device)
    return out.clone() if _flag(copy, "astype", "copy") and out is x else out


def concat(tensors: _Any, /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along ``axis``."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"concat: tensors is of type {type(tensors).__name__}; want a list or tuple")
    if axis is None:
        tensors, axis = [_bilin._tensor(t, "concat", "tensors").reshape(-1) for t in tensors], 0
    if not tensors:
        raise errors.InvalidArgument("concat: tensors is an empty list; want at least one")
    return _concat(*tensors, axis=axis)


_concat = next(op for op in _bilin._ops(False) if op.__name__ == "concat")


def take(x: _Any, indices: _Any, /, *, axis: int = 0) -> Tensor:
    """Positions along ``axis``."""
    x, axis = _bilin._tensor(x, "take", "x"), _whole(axis, "take", "axis")
    if not -x.ndim <= axis < x.ndim:
        raise errors.InvalidArgument(f"take: axis is {axis}; want an axis from {-x.ndim} to {x.ndim - 1}")
    return x[(slice(None),) * (axis % x.ndim) + (_bilin._tensor(indices, "take", "indices"),)]


def isnan(x: _Any, /) -> Tensor:
    """Where an element isn't a number."""
    x = _bilin._tensor(x, "isnan", "x")
    return x != x


def isfinite(x: _Any, /) -> Tensor:
    """Where an element is neither infinite nor NaN."""
    x = _bilin._tensor(x, "isfinite", "x")
    return (x - x) == (x - x) if x.dtype.kind in ("float", "complex") else x == x


def isinf(x: _Any, /) -> Tensor:
    """Where an element is infinite."""
    x = _bilin._tensor(x, "isinf", "x")
    return logical_and(logical_not(isfinite(x)), logical_not(isnan(abs(x) if x.dtype.kind == "complex" else x)))


def _truth(x: _Any, func: str, arg: str) -> Tensor:
    return _bilin._tensor(x, func, arg).astype(bool)


def logical_and(x: _Any, y: _Any, /) -> Tensor:
    """Both true."""
    return _truth(x, "logical_and", "x") & _truth(y, "logical_and", "y")


def logical_or(x: _Any, y: _Any, /) -> Tensor:
    """One or both true."""
    return _truth(x, "logical_or", "x") | _truth(y, "logical_or", "y")


def logical_not(x: _Any, /) -> Tensor:
    """Not true."""
    return _truth(x, "logical_not", "x") == False  # noqa: E712


def logical_xor(x: _Any, y: _Any, /) -> Tensor:
    """One true, the other not."""
    return _truth(x, "logical_xor", "x") != _truth(y, "logical_xor", "y")


def _bits(name: str, choose: _Any) -> _Any:
    def operator(self: Tensor, other: _Any) -> Tensor:
        if not isinstance(other, (Tensor, __import__("builtins").bool)):
            return NotImplemented
        other = asarray(other)
        if self.dtype != bool or other.dtype != bool:
            raise errors.DtypeMismatch(f"{name}: dtypes ({self.dtype}, {other.dtype}) don't fit; want bool")
        return choose(self, other)

    return operator


Tensor.__and__ = Tensor.__rand__ = _bits("and", lambda a, b: where(a, b, a))  # type: ignore
Tensor.__or__ = Tensor.__ror__ = _bits("or", lambda a, b: where(a, a, b))  # type: ignore
Tensor.__xor__ = Tensor.__rxor__ = _bits("xor", lambda a, b: a != b)  # type: ignore
Tensor.__invert__ = logical_not  # type: ignore

# What the array API calls ops of the registry.
_ALIASES = {
    "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg", "power": "pow", "equal": "eq", "not_equal": "ne",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
for _alias, _own_name in _ALIASES.items():
    globals()[_alias] = globals()[_own_name]._named(_alias)


def clone(x: Tensor, /) -> Tensor:
    """A copy in memory of its own; the gradient flows through it."""
    return _like(x, "clone").clone()


def isdtype(dtype: DType, kind: _Any) -> _bool:
    """Whether a dtype is of a kind of the array API."""
    if not isinstance(dtype, DType):
        raise TypeError(f"isdtype: dtype is of type {type(dtype).__name__}; want a dtype such as bilin.float32")
    if isinstance(kind, tuple):
        return True in [isdtype(dtype, k) for k in kind]
    if isinstance(kind, DType):
        return dtype == kind
    kinds = {
        "bool": dtype.kind == "bool",
        "signed integer": dtype.kind == "int" and dtype != uint8,
        "unsigned integer": dtype == uint8,
        "integral": dtype.kind == "int",
        "real floating": dtype.kind == "float",
        "complex floating": dtype.kind == "complex",
        "numeric": dtype.kind != "bool",
    }
    if not isinstance(kind, str) or kind not in kinds:
        raise errors.InvalidArgument(f"isdtype: kind is {kind if isinstance(kind, str) else f'of type {type(kind).__name__}'}; want one of {', '.join(kinds)}, a dtype or a tuple")
    return kinds[kind]


def can_cast(from_: _Any, to: _Any, /) -> _bool:
    """Whether promotion leads from one dtype to the other."""
    source = from_.dtype if isinstance(from_, Tensor) else _dtype(from_, "can_cast", "from_")
    target = _dtype(to, "can_cast", "to")
    try:
        return result_type(source, target) == target
    except TypeError:
        return False


def finfo(type: _Any, /) -> _Any:
    """Limits of a floating dtype."""
    dtype = type.dtype if isinstance(type, Tensor) else _dtype(type, "finfo", "type")
    if dtype.kind not in ("float", "complex"):
        raise errors.DtypeMismatch(f"finfo: type is {dtype}; want a floating dtype")
    if dtype == bfloat16:
        import ml_dtypes

        return ml_dtypes.finfo(ml_dtypes.bfloat16)
    import numpy as np

    return np.finfo(dtype.name)


def iinfo(type: _Any, /) -> _Any:
    """Limits of an integer dtype."""
    dtype = type.dtype if isinstance(type, Tensor) else _dtype(type, "iinfo", "type")
    if dtype.kind != "int":
        raise errors.DtypeMismatch(f"iinfo: type is {dtype}; want an integer dtype")
    import numpy as np

    return np.iinfo(dtype.name)


def broadcast_arrays(*tensors: Tensor) -> list[Tensor]:
    """Each tensor in the shape that all broadcast to."""
    import numpy as np

    found = [_bilin._tensor(t, "broadcast_arrays", "tensors") for t in tensors]
    try:
        shape = np.broadcast_shapes(*[t.shape for t in found])
    except ValueError as error:
        raise errors.ShapeMismatch(f"broadcast_arrays: shapes {[t.shape for t in found]} don't broadcast") from error
    return [t.broadcast_to(shape) for t in found]


class _Info:
    """What ``__array_namespace_info__`` gives."""

    def capabilities(self) -> dict[str, _Any]:
        return {"boolean indexing": True, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> list[str]:
        return [d["name"] for d in devices() if d["absent"] is None]

    def default_dtypes(self, *, device: _Any = None) -> dict[str, DType]:
        return {"real floating": float32, "complex floating": complex64, "integral": int64, "indexing": int64}

    def dtypes(self, *, device: _Any = None, kind: _Any = None) -> dict[str, DType]:
        found = [bool, uint8, int8, int16, int32, int64, float32, float64, complex64, complex128]
        return {d.name: d for d in found if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> _Info:
    """Facts that the array API asks for."""
    return _Info()


def _namespace(self: Tensor, /, *, api_version: str | None = None) -> _Any:
    import sys

    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise errors.InvalidArgument(f"__array_namespace__: api_version is {api_version if isinstance(api_version, str) else f'of type {type(api_version).__name__}'}; want '2024.12' or earlier")
    return sys.modules["bilin"]


Tensor.__array_namespace__ = _namespace  # type: ignore[method-assign]

_name_all(globals())

from . import amp, autograd, func, linalg, optim, profiler  # noqa: E402

# A child of fork has none of the parent's threads: it starts with one of its own, until set_num_threads says otherwise.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=lambda: set_num_threads(1))

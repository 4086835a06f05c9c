"""Written by generate_stubs.py."""

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType, ModuleType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

# `bool` is a dtype here.
_Truth: TypeAlias = builtins.bool

from . import amp, autograd, errors, func, linalg, optim, profiler
from ._bilin import (
    ArrayLike as ArrayLike,
    Axes as Axes,
    DTypeLike as DTypeLike,
    DType as DType,
    HookHandle as HookHandle,
    Node as Node,
    OpSchema as OpSchema,
    Rng as Rng,
    Tensor as Tensor,
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    asarray as asarray,
    bfloat16 as bfloat16,
    bool as bool,
    complex128 as complex128,
    complex64 as complex64,
    devices as devices,
    dot as dot,
    einsum as einsum,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    get_num_threads as get_num_threads,
    inner as inner,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    int8 as int8,
    is_grad_enabled as is_grad_enabled,
    load as load,
    matmul as matmul,
    matvec as matvec,
    memory_stats as memory_stats,
    op_lookup as op_lookup,
    op_registry_all as op_registry_all,
    outer as outer,
    reset_peak_memory_stats as reset_peak_memory_stats,
    result_type as result_type,
    save as save,
    schema_hash as schema_hash,
    set_memory_limit as set_memory_limit,
    set_num_threads as set_num_threads,
    stack as stack,
    tensordot as tensordot,
    uint8 as uint8,
    use_deterministic_algorithms as use_deterministic_algorithms,
    vdot as vdot,
    vecdot as vecdot,
    vecmat as vecmat,
    where as where,
)
from ._modes import enable_grad as enable_grad, no_grad as no_grad, set_grad_enabled as set_grad_enabled
from .errors import *

__version__: str
__array_api_version__: str
e: float
inf: float
nan: float
pi: float
newaxis: None
ops: Any

class EinsumPath(NamedTuple):
    steps: list[tuple[int, int]]
    flops: int
    peak_elements: int

def abs(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def add(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def all(x: ArrayLike, /, axis: Axes = ..., *, keepdims: _Truth = ...) -> Tensor:
    """Whether every element is true."""
def any(x: ArrayLike, /, axis: Axes = ..., *, keepdims: _Truth = ...) -> Tensor:
    """Whether some element is true."""
def arange(start: float, /, stop: float = ..., step: float = ..., *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """start, start + step, … before stop; int64 for whole numbers, else float32."""
def argmax(x: ArrayLike, /, axis: int | None = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``argmax`` over ``axis``, an axis, a tuple of them, or None for all."""
def argmin(x: ArrayLike, /, axis: int | None = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``argmin`` over ``axis``, an axis, a tuple of them, or None for all."""
def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: _Truth | None = ..., device: str | None = ...) -> Tensor:
    """The same values in another dtype."""
def broadcast_arrays(*tensors: Any) -> list[Tensor]:
    """Each tensor in the shape that all broadcast to."""
def broadcast_to(x: ArrayLike, /, shape: int | Sequence[int] = ...) -> Tensor:
    """An op of the registry."""
def can_cast(from_: Any, to: Any, /) -> _Truth:
    """Whether promotion leads from one dtype to the other."""
def clone(x: ArrayLike, /) -> Tensor:
    """A copy in memory of its own; the gradient flows through it."""
def concat(tensors: Sequence[ArrayLike], /, *, axis: int | None = ...) -> Tensor:
    """Tensors one after the other along ``axis``."""
def conj(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def contiguous(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def cos(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def cross_entropy(x: ArrayLike, index: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def diagonal(x: ArrayLike, /, axis1: int = ..., axis2: int = ...) -> Tensor:
    """An op of the registry."""
def div(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def divide(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def einsum_path(*operands: Any) -> EinsumPath:
    """The path that ``einsum`` takes for the same operands."""
def embed(x: ArrayLike, /, axis: int | None = ..., start: int = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def empty(shape: int | Sequence[int], *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """A tensor to be filled; it holds zeros."""
def empty_like(x: ArrayLike, /, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """A tensor of this shape to be filled."""
def eq(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def equal(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def erf(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def erfc(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def exp(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def expand_dims(x: ArrayLike, /, *, axis: int | None = ...) -> Tensor:
    """With a new axis of length 1."""
def expm1(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def eye(n_rows: int, n_cols: int | None = ..., /, *, k: int = ..., dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """Ones on diagonal ``k``, zeros elsewhere."""
def finfo(type: Any, /) -> Any:
    """Limits of a floating dtype."""
def flip(x: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def floor(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def from_dlpack(x: ArrayLike, /, *, device: str | None = ..., copy: _Truth | None = ...) -> Tensor:
    """A tensor of another library's array, through DLPack. A copy, unless ``copy=False`` asks for shared memory."""
def from_numpy(array: ArrayLike, /) -> Tensor:
    """A tensor over the array's memory, as ``asarray(array, copy=False)``."""
def full(shape: int | Sequence[int], fill_value: complex, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """One value everywhere."""
def full_like(x: ArrayLike, /, fill_value: complex, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """One value in this shape."""
def gather(x: ArrayLike, index: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def ge(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def gelu(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def greater(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def greater_equal(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def gt(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def iinfo(type: Any, /) -> Any:
    """Limits of an integer dtype."""
def imag(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def isdtype(dtype: DTypeLike, kind: Any) -> _Truth:
    """Whether a dtype is of a kind of the array API."""
def isfinite(x: ArrayLike, /) -> Tensor:
    """Where an element is neither infinite nor NaN."""
def isinf(x: ArrayLike, /) -> Tensor:
    """Where an element is infinite."""
def isnan(x: ArrayLike, /) -> Tensor:
    """Where an element isn't a number."""
def layer_norm(*operands: ArrayLike, normalized_shape: Any = ..., eps: float | None = ...) -> Tensor:
    """An op of the registry."""
def le(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def less(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def less_equal(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def linspace(start: float, stop: float, /, num: int, *, dtype: DTypeLike | None = ..., device: str | None = ..., endpoint: _Truth = ...) -> Tensor:
    """``num`` numbers from start to stop."""
def log(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def log1p(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def log_softmax(x: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def logical_and(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Both true."""
def logical_not(x: ArrayLike, /) -> Tensor:
    """Not true."""
def logical_or(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """One or both true."""
def logical_xor(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """One true, the other not."""
def logsumexp(x: ArrayLike, /, axis: int | None = ..., keepdim: _Truth = ..., *, dim: Axes = ..., keepdims: _Truth = ...) -> Tensor:
    """An op of the registry."""
def lt(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """The last two axes exchanged."""
def max(x: ArrayLike, /, axis: Axes = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``max`` over ``axis``, an axis, a tuple of them, or None for all."""
def maximum(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def mean(x: ArrayLike, /, axis: Axes = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``mean`` over ``axis``, an axis, a tuple of them, or None for all."""
def min(x: ArrayLike, /, axis: Axes = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``min`` over ``axis``, an axis, a tuple of them, or None for all."""
def minimum(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def mul(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def multiply(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def narrow(x: ArrayLike, /, axis: int | None = ..., start: int = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def ne(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def neg(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def negative(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def not_equal(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """Ones, float32 where no dtype is named."""
def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """Ones of this shape."""
def permute(x: ArrayLike, /, axes: Axes = ..., *more: int, axis: Axes = ..., dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def permute_dims(x: ArrayLike, /, axes: Axes) -> Tensor:
    """Axes in another order."""
def pow(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def power(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def real(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def relu(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def reshape(x: ArrayLike, /, shape: int | Sequence[int], *, copy: _Truth | None = ...) -> Tensor:
    """The same elements under another shape; one length may be -1."""
def scatter_add(x: ArrayLike, index: ArrayLike, /, axis: int | None = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def sigmoid(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def sign(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def sin(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def softmax(x: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def sqrt(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def squeeze(x: ArrayLike, /, axes: Axes = ..., *more: int, axis: Axes = ..., dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def sub(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def subtract(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def sum(x: ArrayLike, /, axis: Axes = ..., *, dtype: DTypeLike | None = ..., keepdims: _Truth = ...) -> Tensor:
    """``sum`` over ``axis``, an axis, a tuple of them, or None for all."""
def take(x: ArrayLike, indices: ArrayLike, /, *, axis: int | None = ...) -> Tensor:
    """Positions along ``axis``."""
def tanh(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def tensor(obj: ArrayLike, *, dtype: DTypeLike | None = ..., device: str | None = ..., requires_grad: _Truth = ...) -> Tensor:
    """A new tensor of ``obj``'s values."""
def times_i(x: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def times_slope(*operands: ArrayLike) -> Tensor:
    """An op of the registry."""
def unsqueeze(x: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
    """An op of the registry."""
def where_(mask: ArrayLike, a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """An op of the registry."""
def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """Zeros, float32 where no dtype is named."""
def zeros_like(x: ArrayLike, /, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
    """Zeros of this shape."""

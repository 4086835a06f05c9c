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

ArrayLike: TypeAlias = Tensor | npt.ArrayLike
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
Axes: TypeAlias = int | Sequence[int] | None
Key: TypeAlias = int | slice | EllipsisType | None | ArrayLike | tuple[int | slice | EllipsisType | None | ArrayLike, ...]
Params: TypeAlias = Tensor | Iterable[Tensor]

class AdamW:
    """Adam with decoupled weight decay."""
    def __init__(self, params: Params, lr: float | None = ..., *, betas: tuple[float, float] | None = ..., eps: float | None = ..., weight_decay: float | None = ...) -> None: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Takes up a state."""
    @property
    def lr(self) -> float:
        """Step size."""
    @lr.setter
    def lr(self, value: float) -> None: ...
    @property
    def params(self) -> list[Tensor]:
        """What it changes."""
    def state_dict(self) -> dict[str, Tensor]:
        """Named tensors that continue the run."""
    def step(self) -> None:
        """One step; parameters without a gradient stay."""
    def zero_grad(self) -> None:
        """Forgets the gradients."""

class DType:
    """The element type of a tensor; `bilin.float32` and its siblings are the only instances."""
    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 needs the package `ml_dtypes`."""
    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
    @property
    def kind(self) -> str:
        """`bool`, `int`, `float` or `complex`."""
    @property
    def name(self) -> str:
        """NumPy's name of it."""

class GradScaler:
    """Scales a loss so that gradients in float16 don't vanish, and undoes it before the step."""
    def __init__(self, init_scale: float | None = ..., growth_factor: float | None = ..., backoff_factor: float | None = ..., growth_interval: int | None = ..., enabled: _Truth | None = ...) -> None: ...
    def get_growth_tracker(self) -> int:
        """Good steps in a row so far."""
    def get_scale(self) -> float:
        """The scale now."""
    def is_enabled(self) -> _Truth:
        """Whether it scales."""
    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Takes up a state."""
    def scale(self, outputs: Tensor | Sequence[Tensor], /) -> Any:
        """A loss times the scale, differentiable; or each of a list or tuple."""
    def state_dict(self) -> dict[str, Tensor]:
        """Named 0-d tensors that continue the run."""
    def step(self, optimizer: Any, /) -> _Truth:
        """The optimiser's step where every gradient is finite. True where it was taken, False where it was skipped."""
    def unscale_(self, optimizer: Any, /) -> None:
        """Divides the gradients of the optimiser's parameters by the scale, once a step, so that they can be clipped."""
    def update(self, new_scale: float | None = ...) -> None:
        """Moves the scale after the steps of all optimisers, or sets it."""

class HookHandle:
    """Takes a hook off again."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...
    def remove(self) -> None:
        """The hook won't run any more."""

class Node:
    """A recorded op."""
    def apply(self, g: ArrayLike, /) -> list[Tensor | None]:
        """Gradients of the operands for the cotangent `g`; nothing is released."""
    def apply_for_graph(self, g: ArrayLike, /) -> list[Tensor | None]:
        """The same, recorded."""
    def inputs(self) -> list[Node | str | None]:
        """Where each operand came from: a node, "leaf", or None where no gradient goes."""
    def name(self) -> str:
        """`MatmulBackward`, …."""
    def schema(self) -> OpSchema:
        """The declaration of its op."""

class Op:
    """An op of the registry."""
    @property
    def operands(self) -> Tensor:
        """Names of the operands."""
    @property
    def params(self) -> list[str]:
        """Names of the attributes."""
    @property
    def schema(self) -> OpSchema:
        """Its declaration."""

class OpSchema:
    """The declaration of an op."""
    @property
    def amp_policy(self) -> str:
        """What autocast does with its operands."""
    @property
    def arity(self) -> str:
        """Number of operands, "2", or the least number of them, "1 or more"."""
    @property
    def determinism_note(self) -> str:
        """Why not, or under what terms."""
    @property
    def deterministic(self) -> _Truth:
        """Whether equal bits are promised."""
    @property
    def hash(self) -> int:
        """FNV-1a-64, as `schema_hash` gives it."""
    @property
    def name(self) -> str:
        """Unique name."""
    @property
    def version(self) -> int:
        """Raised when the meaning changes."""

class Picture:
    """A recorded graph, to draw."""
    def __init__(self, *outputs: Any) -> None: ...
    def to_dot(self) -> str:
        """In Graphviz's language."""
    def to_svg(self) -> str:
        """As an SVG picture."""

class Rng:
    """Random numbers of a seeded stream."""
    def __init__(self, seed: int, /) -> None: ...
    def permutation(self, n: int, /) -> Tensor:
        """0 … n − 1 in random order."""
    def rand(self, shape: int | Sequence[int], /, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
        """Uniform numbers in [0, 1)."""
    def randn(self, shape: int | Sequence[int], /, *, dtype: DTypeLike | None = ..., device: str | None = ...) -> Tensor:
        """Standard normal numbers."""

class SGD:
    """Stochastic gradient descent: v ← momentum·v + g + weight_decay·p; p ← p − lr·v."""
    def __init__(self, params: Params, lr: float | None, *, momentum: float | None = ..., weight_decay: float | None = ...) -> None: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Takes up a state."""
    @property
    def lr(self) -> float:
        """Step size."""
    @lr.setter
    def lr(self, value: float) -> None: ...
    @property
    def params(self) -> list[Tensor]:
        """What it changes."""
    def state_dict(self) -> dict[str, Tensor]:
        """Named tensors that continue the run."""
    def step(self) -> None:
        """One step; parameters without a gradient stay."""
    def zero_grad(self) -> None:
        """Forgets the gradients."""

class Tensor:
    """A strided array on a device, with gradients."""
    def __init__(self, obj: ArrayLike, dtype: DTypeLike | None = None, device: str | None = None) -> None: ...
    def __getitem__(self, key: Key) -> Tensor: ...
    def __setitem__(self, key: Key, value: ArrayLike) -> None: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> _Truth: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __format__(self, spec: str, /) -> str: ...
    def __array__(self, dtype: Any = None, copy: _Truth | None = None) -> npt.NDArray[Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType: ...
    __array_ufunc__: None
    def __matmul__(self, other: ArrayLike) -> Tensor: ...
    def __rmatmul__(self, other: ArrayLike) -> Tensor: ...
    def __add__(self, other: ArrayLike) -> Tensor: ...
    def __radd__(self, other: ArrayLike) -> Tensor: ...
    def __sub__(self, other: ArrayLike) -> Tensor: ...
    def __rsub__(self, other: ArrayLike) -> Tensor: ...
    def __mul__(self, other: ArrayLike) -> Tensor: ...
    def __rmul__(self, other: ArrayLike) -> Tensor: ...
    def __truediv__(self, other: ArrayLike) -> Tensor: ...
    def __rtruediv__(self, other: ArrayLike) -> Tensor: ...
    def __pow__(self, other: ArrayLike) -> Tensor: ...
    def __rpow__(self, other: ArrayLike) -> Tensor: ...
    def __and__(self, other: ArrayLike) -> Tensor: ...
    def __rand__(self, other: ArrayLike) -> Tensor: ...
    def __or__(self, other: ArrayLike) -> Tensor: ...
    def __ror__(self, other: ArrayLike) -> Tensor: ...
    def __xor__(self, other: ArrayLike) -> Tensor: ...
    def __rxor__(self, other: ArrayLike) -> Tensor: ...
    def __imatmul__(self, other: ArrayLike) -> Self: ...
    def __iadd__(self, other: ArrayLike) -> Self: ...
    def __isub__(self, other: ArrayLike) -> Self: ...
    def __imul__(self, other: ArrayLike) -> Self: ...
    def __itruediv__(self, other: ArrayLike) -> Self: ...
    def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: ArrayLike) -> Tensor: ...
    def __le__(self, other: ArrayLike) -> Tensor: ...
    def __gt__(self, other: ArrayLike) -> Tensor: ...
    def __ge__(self, other: ArrayLike) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    @property
    def T(self) -> Tensor:
        """All axes in reverse order."""
    @property
    def _version(self) -> int:
        """How often the memory was changed in place."""
    def abs(self) -> Tensor:
        """An op of the registry."""
    def add(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def all(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """Whether every element is true."""
    def any(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """Whether some element is true."""
    def argmax(self, axis: int | None = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``argmax`` over ``axis``, an axis, a tuple of them, or None for all."""
    def argmin(self, axis: int | None = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``argmin`` over ``axis``, an axis, a tuple of them, or None for all."""
    def astype(self, dtype: DTypeLike, /, *, copy: _Truth | None = ..., device: str | None = ...) -> Tensor:
        """The same values in another dtype; differentiable between floating and complex dtypes."""
    def backward(self, gradient: ArrayLike | None = ..., retain_graph: _Truth | None = ..., create_graph: _Truth | None = ...) -> None:
        """Adds the gradient of this scalar to the `.grad` of the leaves it depends on."""
    def broadcast_to(self, *shape: int | Sequence[int]) -> Tensor:
        """Length-1 and new leading axes repeated to `shape`; a view."""
    def clone(self) -> Tensor:
        """A copy in memory of its own; the gradient flows through it."""
    def concat(self, *operands: ArrayLike, axis: int | None = ..., dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def conj(self) -> Tensor:
        """An op of the registry."""
    def contiguous(self) -> Tensor:
        """An op of the registry."""
    def copy_(self, source: ArrayLike, /) -> Self:
        """Copies `source`, which broadcasts, into this memory."""
    def cos(self) -> Tensor:
        """An op of the registry."""
    def cross_entropy(self, index: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def detach(self) -> Tensor:
        """The same memory without history."""
    @property
    def device(self) -> str:
        """Name of the device."""
    def diagonal(self, axis1: int = ..., axis2: int = ...) -> Tensor:
        """An op of the registry."""
    def div(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def dot(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    @property
    def dtype(self) -> DType:
        """Element type."""
    def einsum(self, *operands: ArrayLike, subscripts: Any = ...) -> Tensor:
        """An op of the registry."""
    def embed(self, axis: int | None = ..., start: int = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def eq(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def erf(self) -> Tensor:
        """An op of the registry."""
    def erfc(self) -> Tensor:
        """An op of the registry."""
    def exp(self) -> Tensor:
        """An op of the registry."""
    def expm1(self) -> Tensor:
        """An op of the registry."""
    def fill_(self, value: ArrayLike, /) -> Self:
        """Every element becomes `value`."""
    def flip(self, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def floor(self) -> Tensor:
        """An op of the registry."""
    def gather(self, index: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def ge(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def gelu(self) -> Tensor:
        """An op of the registry."""
    @property
    def grad(self) -> Any:
        """The gradient accumulated so far."""
    @grad.setter
    def grad(self, value: ArrayLike | None) -> None: ...
    @property
    def grad_dtype(self) -> DType:
        """The dtype in which the gradient is kept: its own, or float32 for a half leaf."""
    @grad_dtype.setter
    def grad_dtype(self, value: DTypeLike) -> None: ...
    @property
    def grad_fn(self) -> Node | None:
        """The recorded op that made it."""
    def gt(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def imag(self) -> Tensor:
        """An op of the registry."""
    def inner(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    def is_contiguous(self) -> _Truth:
        """Whether the elements stand in row-major order."""
    @property
    def is_leaf(self) -> _Truth:
        """Whether no recorded op made it."""
    def item(self) -> Any:
        """The only element as a number of Python."""
    def layer_norm(self, *operands: ArrayLike, normalized_shape: Any = ..., eps: float | None = ...) -> Tensor:
        """An op of the registry."""
    def le(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def log(self) -> Tensor:
        """An op of the registry."""
    def log1p(self) -> Tensor:
        """An op of the registry."""
    def log_softmax(self, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def logsumexp(self, axis: int | None = ..., keepdim: _Truth = ..., *, dim: Axes = ..., keepdims: _Truth = ...) -> Tensor:
        """An op of the registry."""
    def lt(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
    def matmul(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    def matvec(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    def max(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``max`` over ``axis``, an axis, a tuple of them, or None for all."""
    def maximum(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def mean(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``mean`` over ``axis``, an axis, a tuple of them, or None for all."""
    def min(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``min`` over ``axis``, an axis, a tuple of them, or None for all."""
    def minimum(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def mul(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def narrow(self, axis: int | None = ..., start: int = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
    @property
    def ndim(self) -> int:
        """Number of axes."""
    def ne(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def neg(self) -> Tensor:
        """An op of the registry."""
    def numpy(self, *, copy: _Truth | None = ...) -> npt.NDArray[Any]:
        """A read-only array over this memory, or with `copy=True` a writable copy."""
    def outer(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    def permute(self, axes: Axes = ..., *more: int, axis: Axes = ..., dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def pow(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def real(self) -> Tensor:
        """An op of the registry."""
    def register_hook(self, hook: Callable[[Tensor], Any], /) -> HookHandle:
        """Shows every gradient that flows through this tensor to `hook`; a tensor that comes back takes its place."""
    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], Any], /) -> HookHandle:
        """Calls `hook` with this leaf each time a backward has added to its `.grad`."""
    def relu(self) -> Tensor:
        """An op of the registry."""
    @property
    def requires_grad(self) -> _Truth:
        """Whether a gradient flows to or through this tensor."""
    @requires_grad.setter
    def requires_grad(self, value: _Truth) -> None: ...
    def requires_grad_(self, requires_grad: _Truth | None = ...) -> Self:
        """Says that this leaf wants a gradient, or not; returns it."""
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements under another shape; one length may be −1."""
    def retain_grad(self) -> None:
        """Keeps the gradient of this interior tensor."""
    def scatter_add(self, index: ArrayLike, /, axis: int | None = ..., len: int = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
    def sigmoid(self) -> Tensor:
        """An op of the registry."""
    def sign(self) -> Tensor:
        """An op of the registry."""
    def sin(self) -> Tensor:
        """An op of the registry."""
    @property
    def size(self) -> int:
        """Number of elements."""
    def softmax(self, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def sqrt(self) -> Tensor:
        """An op of the registry."""
    def squeeze(self, axes: Axes = ..., *more: int, axis: Axes = ..., dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
    def sub(self, rhs: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def sum(self, axis: Axes = ..., dtype: DTypeLike | None = ..., out: ArrayLike | None = ..., keepdims: _Truth = ..., *, dim: ArrayLike | None = ..., keepdim: _Truth = ...) -> Tensor:
        """``sum`` over ``axis``, an axis, a tuple of them, or None for all."""
    def tanh(self) -> Tensor:
        """An op of the registry."""
    def tensordot(self, b: ArrayLike, /, axes: Axes = ..., lhs: Any = ..., rhs: Any = ..., out_dtype: DTypeLike | None = ..., *, axis: Axes = ..., dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def times_i(self) -> Tensor:
        """An op of the registry."""
    def times_slope(self, *operands: ArrayLike) -> Tensor:
        """An op of the registry."""
    def to_device(self, device: str | None, /, *, stream: None = ...) -> Tensor:
        """The same values on another device, without history."""
    def tolist(self) -> Any:
        """Nested lists of numbers of Python."""
    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Axes in another order; without arguments reversed."""
    def unsqueeze(self, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def vecdot(self, rhs: ArrayLike, /, axis: int | None = ..., *, dim: Axes = ...) -> Tensor:
        """An op of the registry."""
    def vecmat(self, rhs: ArrayLike, /, out_dtype: DTypeLike | None = ...) -> Tensor:
        """An op of the registry."""
    def where_(self, a: ArrayLike, b: ArrayLike, /) -> Tensor:
        """An op of the registry."""
    def zero_(self) -> Self:
        """Every element becomes 0."""
    def zero_grad(self) -> None:
        """Forgets the gradient."""

def _apply_function(*args: Any, **kwargs: Any) -> Any:
    """Calls a function by its closures: `forward(tensors, needs)` gives results, what is saved, constants, and results without"""
def _checkpoint(*args: Any, **kwargs: Any) -> Any:
    """`f`, a function of a list of tensors that gives a list of tensors, run again in backward. `rng` draws the same numbers again."""
def _depends_on_others(*args: Any, **kwargs: Any) -> Any:
    """Whether outputs depend on more than `variables`."""
def _dtype(*args: Any, **kwargs: Any) -> Any:
    """The dtype of a name, for a function of Python that errors shall name."""
def _einsum_path(*args: Any, **kwargs: Any) -> Any:
    """Steps, FLOPs and peak elements of the path that `einsum` takes."""
def _eye(*args: Any, **kwargs: Any) -> Any:
    """The n×n identity."""
def _from_bits(*args: Any, **kwargs: Any) -> Any:
    """`from_dlpack` of bfloat16 elements that NumPy carried as uint16."""
def _full(*args: Any, **kwargs: Any) -> Any:
    """Zeros, ones or one value."""
def _gradcheck(*args: Any, **kwargs: Any) -> Any:
    """Numeric against analytic gradients of `f`, which takes and gives tensors."""
def _jvp(*args: Any, **kwargs: Any) -> Any:
    """Values and derivatives along `v` of `f`, a function of a list of tensors that gives a list of tensors."""
def _ops(*args: Any, **kwargs: Any) -> Any:
    """Every built-in op, strict or not."""
def _profile_begin(*args: Any, **kwargs: Any) -> Any:
    """Opens a profile of this thread."""
def _profile_end(*args: Any, **kwargs: Any) -> Any:
    """Closes the innermost scope of this thread, which must be a profile."""
def _rebuild(*args: Any, **kwargs: Any) -> Any:
    """A tensor from its pickled parts."""
def _relabel(*args: Any, **kwargs: Any) -> Any:
    """Calls a capsule's bfloat16 elements uint16, or the other way round; whether it held such."""
def _scope_begin(*args: Any, **kwargs: Any) -> Any:
    """Opens a named scope on this thread."""
def _scope_end(*args: Any, **kwargs: Any) -> Any:
    """Closes the innermost scope of this thread, which must be a named one."""
def _sequence(*args: Any, **kwargs: Any) -> Any:
    """`arange` and `linspace` in float64 steps."""
def _set_autocast(*args: Any, **kwargs: Any) -> Any:
    """Opens an autocast scope by dtype, or one without casts, and gives the dtype of the one outside."""
def _set_detect_anomaly(*args: Any, **kwargs: Any) -> Any:
    """Searches gradients of this thread for NaN from now on, or not, and says what it did."""
def _set_grad_enabled(*args: Any, **kwargs: Any) -> Any:
    """Turns recording on this thread on or off and says what it was."""
def _tensor(*args: Any, **kwargs: Any) -> Any:
    """Anything array-like as a tensor, for a function of Python that errors shall name."""
def _variable(*args: Any, **kwargs: Any) -> Any:
    """A place of its own for the value of `x`, connected to its history."""
def _without_history(*args: Any, **kwargs: Any) -> Any:
    """The value with the tangents of open levels, but without history."""
def are_deterministic_algorithms_enabled() -> _Truth:
    """Whether this thread refuses them."""
def asarray(obj: ArrayLike, /, *, dtype: DTypeLike | None = ..., device: str | None = ..., copy: _Truth | None = ...) -> Tensor:
    """Anything array-like as a tensor."""
def autocast_dtype() -> DType | None:
    """The dtype of the innermost autocast scope of this thread, or None."""
def backward(tensors: Tensor | Sequence[Tensor], grad_tensors: ArrayLike | Sequence[ArrayLike | None] | None = ..., retain_graph: _Truth | None = ..., create_graph: _Truth | None = ...) -> None:
    """Adds the gradient of the sum of several tensors to the `.grad` of the leaves they depend on, in one pass."""
bfloat16: DType
bool: DType
def clip_grad_norm(params: Params, max_norm: float, norm_type: float | None = ..., error_if_nonfinite: _Truth | None = ...) -> Tensor:
    """Scales gradients in place so that their common norm is at most `max_norm`; the norm that they had."""
complex128: DType
complex64: DType
def devices() -> list[dict[str, Any]]:
    """Every device of this build: name, backend, dtypes, kernels, and why it is absent."""
def dot(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """NumPy's `dot`: vectors and matrices as expected, numbers multiply, else the last axis of lhs with the second-last of rhs."""
def einsum(*operands: Any, out_dtype: DTypeLike | None = ..., precision: str | None = ..., optimize: object | None = ...) -> Tensor:
    """Sums of products by subscripts; the order of contraction is always the cheapest that is found, whatever `optimize` says."""
float16: DType
float32: DType
float64: DType
def get_num_threads() -> int:
    """Threads of the engine."""
def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor], grad_outputs: ArrayLike | Sequence[ArrayLike | None] | None = ..., retain_graph: _Truth | None = ..., create_graph: _Truth | None = ..., allow_unused: _Truth | None = ...) -> tuple[Tensor, ...]:
    """Gradients of the sum of outputs by inputs, without touching `.grad`."""
def inner(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """Sum over the last axes; numbers multiply."""
int16: DType
int32: DType
int64: DType
int8: DType
def is_autocast_enabled() -> _Truth:
    """Whether an autocast scope with casts is open on this thread."""
def is_detecting_anomaly() -> _Truth:
    """Whether gradients of this thread are searched for NaN."""
def is_grad_enabled() -> _Truth:
    """Whether ops of this thread are recorded."""
def load(path: str | os.PathLike[str], /, *, device: str | None = ...) -> Any:
    """Tensors of a file by its extension: one, or a dict of them."""
def matmul(lhs: ArrayLike, rhs: ArrayLike, /, *, out_dtype: DTypeLike | None = ..., precision: str | None = ...) -> Tensor:
    """Matrix product of the last two axes over a batch that broadcasts; a vector is a row on the left and a column on the right."""
def matvec(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """(…,M,K)·(…,K) → (…,M)."""
def memory_stats(device: str | None = ...) -> dict[str, int]:
    """Bytes and counts of what lives on a device."""
def op_lookup(name: str, /) -> OpSchema | None:
    """The schema of an op by name, or None."""
def op_registry_all() -> list[OpSchema]:
    """All schemas by name."""
def outer(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """`lhs[i]·rhs[j]` of the flattened operands."""
def reset_peak_memory_stats(device: str | None = ...) -> None:
    """Lets a device's peak start again."""
def result_type(*operands: Any) -> DType:
    """The dtype that the operands of a product share."""
def save(path: str | os.PathLike[str], tensors: Tensor | Sequence[Tensor], /) -> None:
    """Writes a tensor, or a dict of them, by the path's extension, whole or not at all."""
def schema_hash(schema: OpSchema, /) -> int:
    """FNV-1a-64 of a schema."""
def set_memory_limit(limit_bytes: int | None, device: str | None = ...) -> None:
    """Refuses allocations past so many bytes; None lifts it."""
def set_num_threads(n: int, /) -> None:
    """Threads of the engine; results don't depend on them."""
def stack(tensors: Tensor | Sequence[Tensor], /, *, axis: int | None = ...) -> Tensor:
    """Joined along an axis."""
def tensordot(lhs: ArrayLike, rhs: ArrayLike, /, axes: Axes | None = ..., *, out_dtype: DTypeLike | None = ..., precision: str | None = ...) -> Tensor:
    """Sum over a count of axes, or over pairs of axes."""
uint8: DType
def use_deterministic_algorithms(on: _Truth, /) -> None:
    """Refuses ops of this thread that can't promise equal bits."""
def vdot(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """Sum of products of the flattened operands, lhs conjugated."""
def vecdot(lhs: ArrayLike, rhs: ArrayLike, /, *, axis: int | None = ...) -> Tensor:
    """Sum over `axis`, lhs conjugated, over a batch that broadcasts."""
def vecmat(lhs: ArrayLike, rhs: ArrayLike, /) -> Tensor:
    """(…,K)·(…,K,N) → (…,N), lhs conjugated."""
def where(mask: ArrayLike, a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """`where(mask, a, b)`."""

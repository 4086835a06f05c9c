"""Any object passed anywhere gives a Python exception that names the function; nothing aborts, nothing panics."""

import inspect
import itertools
import random
import re

import numpy as np
import pytest

import bilin as bl


class Odd:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("odd")

    def __index__(self):
        raise RuntimeError("odd")

    def __iter__(self):
        raise RuntimeError("odd")

    def __float__(self):
        raise RuntimeError("odd")

    def __repr__(self):
        return "Odd()"


class Liar:
    """Says that it has what others look for."""

    __dlpack__ = 3
    __array_interface__ = {"shape": (10**12,), "typestr": "<f8", "version": 3}
    shape = "shape"
    dtype = 5


def objects():
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    return [
        None, True, 0, -1, 3, 10**30, 2.5, float("nan"), 1j, "text", "float32", "ij,jk->ik", b"bytes", (), (1, 2), [1, 2], [[1], [1, 2]],
        ["a"], {}, {"a": 1}, {1, 2}, object(), Odd(), Liar(), Odd, float, print, lambda *a: a, ..., slice(None), range(3), iter([1]),
        np.array(["a"]), np.array([None]), np.zeros((2, 2)), np.float64(2), np.int8(2), np.zeros(3, "V4"), np.datetime64("2020"), read_only,
        bl.ones((2, 2)), bl.asarray(3), bl.asarray([True, False]), bl.float32, bl.op_lookup("matmul"), bl.Rng(1), memoryview(b"abcd"),
        Exception("e"), "\ud800", bl,
    ]  # fmt: skip


SKIPPED = {"set_num_threads", "set_memory_limit", "save", "load", "use_deterministic_algorithms", "record", "set_grad_enabled"}


def functions():
    modules = [bl, bl.linalg, bl.func, bl.autograd, bl.amp, bl.optim, bl.ops, bl.profiler]
    seen = set()
    for module in modules:
        for name in sorted(vars(module)):
            f = getattr(module, name)
            if name.startswith("_") or not callable(f) or name in SKIPPED or isinstance(f, bl.DType):
                continue
            if inspect.isclass(f) and (issubclass(f, (BaseException, tuple, list)) or f in (bl.autograd.FunctionCtx,)):
                continue
            if getattr(f, "__module__", "bilin") in ("typing", "builtins") and not hasattr(f, "__self__"):
                continue
            if id(f) not in seen:
                seen.add(id(f))
                yield f"{module.__name__ if hasattr(module, '__name__') else 'ops'}.{name}", f
    for name in sorted(dir(bl.Tensor)):
        if not name.startswith("_") and callable(getattr(bl.Tensor, name)) and name not in SKIPPED:
            yield f"Tensor.{name}", getattr(bl.Tensor, name)


def arguments(name, seed):
    """One argument at a time in every place beside good ones, and some at random."""
    rng = random.Random(seed)
    x = bl.asarray([[1.0, 2.0], [3.0, 4.0]])
    first = [x] if name.startswith("Tensor.") else []
    for value in objects():
        yield [*first, value]
        yield [*first, value, x]
        yield [*first, x, value]
    for count in (2, 3):
        for _ in range(40):
            yield first + rng.choices(objects(), k=count)
    yield first


ALL = list(functions())


# Functions made of others: the error may name the part.
PARTS = {
    "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg", "power": "pow", "equal": "eq", "not_equal": "ne",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "expand_dims": "unsqueeze", "take": "index",
    "permute_dims": "permute", "transpose": "permute", "fill_": "copy_", "dot": "tensordot|mul", "vdot": "vecdot", "inner": "mul",
    "stack": "concat|unsqueeze", "all": "sum", "any": "sum", "SGD": "optim", "AdamW": "optim", "einsum_path": "einsum",
    "Tensor": "asarray", "tensor": "Tensor", "from_dlpack": "asarray", "from_numpy": "asarray", "logical_xor": "ne",
    "linspace": "zeros", "clone": "copy", "isfinite": "sub|abs", "isinf": "sub|abs", "zero_": "fill_", "apply": "Function",
    "matrix_transpose": "mt|permute", "logical_and": "where_", "logical_or": "where_", "reshape": "shape", "where": "where_", "eye": "zeros", "enable_grad": "no_grad",
}  # fmt: skip


def check(name, f, args, kwargs=None):
    own = name.rsplit(".", 1)[1]
    try:
        f(*args, **(kwargs or {}))
    except Exception as error:
        text, kinds = str(error), (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError, MemoryError, OSError, BufferError)
        assert isinstance(error, kinds), (name, args, error)
        if any(map(callable, args)) and name.startswith(("bilin.func", "bilin.autograd")):
            return  # What the function given raises is its own.
        names = "|".join([own.rstrip("_"), own, *filter(None, [PARTS.get(own)])])
        assert re.search(rf"\b({names})(_|\b)", text), f"{name}{tuple(map(type, args))} {kwargs}: {type(error).__name__}: {text}"


def test_there_is_much_to_try():
    assert len(ALL) > 150


@pytest.mark.parametrize("name, f", ALL, ids=[name for name, _ in ALL])
def test_any_object_in_any_place(name, f):
    for args in arguments(name, len(name)):
        check(name, f, args)


@pytest.mark.parametrize("name, f", ALL, ids=[name for name, _ in ALL])
def test_any_object_by_name(name, f):
    try:
        parameters = [p for p in inspect.signature(f).parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        return
    x = bl.asarray([[1.0, 2.0], [3.0, 4.0]])
    required = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for p, value in itertools.product(parameters, objects()):
        if p in required or p.name == "self":
            continue
        check(name, f, [x] * len(required), {p.name: value})

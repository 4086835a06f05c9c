"""Any object passed anywhere gives a Python exception that names the function and the argument; nothing aborts or panics.

The names of the arguments are those of the signature, so that a function added later is held to the same."""

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


class Mute:
    """Has no text."""

    def __repr__(self):
        raise RuntimeError("odd")

    __str__ = __len__ = __bool__ = __hash__ = __eq__ = __repr__


class Number(int):
    def __index__(self):
        raise RuntimeError("odd")

    __int__ = __str__ = __index__


class Liar:
    """Says that it has what others look for."""

    __dlpack__ = 3
    __array_interface__ = {"shape": (10**12,), "typestr": "<f8", "version": 3}
    shape = "shape"
    dtype = 5


def objects():
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    endless, dictionary = [], {}
    endless.append(endless)
    dictionary["a"] = dictionary
    deep = [1.0]
    for _ in range(1000):
        deep = [deep]
    return [
        None, True, 0, -1, 3, 10**30, 2.5, float("nan"), 1j, "text", "float32", "ij,jk->ik", b"bytes", (), (1, 2), [1, 2], [[1], [1, 2]],
        ["a"], {}, {"a": 1}, {1, 2}, object(), Odd(), Liar(), Odd, float, print, lambda *a: a, ..., slice(None), range(3), iter([1]),
        np.array(["a"]), np.array([None]), np.zeros((2, 2)), np.float64(2), np.int8(2), np.zeros(3, "V4"), np.datetime64("2020"), read_only,
        bl.ones((2, 2)), bl.asarray(3), bl.asarray([True, False]), bl.float32, bl.op_lookup("matmul"), bl.Rng(1), memoryview(b"abcd"),
        Exception("e"), "\ud800", bl, Mute(), Number(3), endless, dictionary, deep, (x for x in [1, 2]), map(str, [1]), "nan", "1e400",
        2**63, -(2**63) - 1, 2**64, 10**400, float("inf"), np.zeros(2, "u8"), np.zeros((2, 2), "c16"), np.zeros((2, 3), "i1"),
        np.zeros((2, 2), "f2")[::-1, ::-2], np.ma.masked_array([1.0, 2.0], [0, 1]), np.array(["nan"], dtype=object), [float("nan"), "a"],
        [None], [[1.0], None], bytearray(b"ab"), frozenset((1,)), complex("nan"), type, NotImplemented, bl.ones((0, 3)), bl.ones((2, 2, 2)),
        bl.ones((2, 2), dtype="complex64"), bl.ones((2, 2), device="reference"), bl.ones((2, 2)).requires_grad_(),
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
            if getattr(f, "__module__", "bilin") in ("typing", "builtins", "collections.abc") and not hasattr(f, "__self__"):
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
        yield [*first, value], len(first)
        yield [*first, value, x], len(first)
        yield [*first, x, value], len(first) + 1
    pool = objects()
    for count in (2, 3):
        for _ in range(40):
            yield first + rng.choices(pool, k=count), None
    yield first, None


ALL = list(functions())

# What Python says of a call that doesn't fit the signature: it names the function, and the argument where one is at fault.
CALLING = re.compile(r"takes .*arguments?|missing \d+ required|unexpected keyword|multiple values|positional-only|are \d+ in number|cannot create|isn't instantiated")
# What stands among *operands.
WITHIN = {"einsum": ["subscripts"], "einsum_path": ["subscripts"]}


def arguments_of(name, f):
    """Names of the arguments by position, the last of them for the rest, and all names."""
    parameters = list(inspect.signature(f).parameters.values())
    names = [p.name for p in parameters]
    if name.startswith("Tensor."):
        # The methods of ops take the tensor as their first operand.
        names[0] = f"self|{names[0]}"
    placed = [n for n, p in zip(names, parameters) if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    return placed, names + WITHIN.get(name.rsplit(".", 1)[1], [])


def check(name, f, args, kwargs=None, at=None):
    """Calls it. `at` is the name or the place of the argument that may be at fault, where it is one."""
    own = name.rsplit(".", 1)[1]
    try:
        f(*args, **(kwargs or {}))
    except Exception as error:
        try:
            text = str(error)
        except RuntimeError:
            text = "odd"
        kinds = (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError, MemoryError, OSError, BufferError)
        assert isinstance(error, kinds), (name, own, error)
        if text == "odd" or (any(map(callable, args)) and name.startswith(("bilin.func", "bilin.autograd"))):
            return  # What an object or a function of the user's raises is its own.
        told = f"{name}{tuple(map(type, args))} {kwargs and list(kwargs)}: {type(error).__name__}: {text}"
        assert re.search(rf"\b({own.rstrip('_')}|{own})(_|\b)", text), told
        if CALLING.search(text) or isinstance(error, MemoryError):
            return
        placed, names = arguments_of(name, f)
        if isinstance(at, int):
            at = placed[min(at, len(placed) - 1)] if placed else None
        # A wrong type is that of the odd argument; of shapes and dtypes several may be meant.
        if at is not None and len(args) <= 1 and "is of type" in text and own not in WITHIN:
            assert re.search(rf"\b({at}) is of type", text), told
        assert any(re.search(rf"\b({n})\b", text) for n in names), told


def test_there_is_much_to_try():
    assert len(ALL) > 150


@pytest.mark.parametrize("name, f", ALL, ids=[name for name, _ in ALL])
def test_any_object_in_any_place(name, f):
    for args, at in arguments(name, len(name)):
        check(name, f, args, at=at)


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
        check(name, f, [x] * len(required), {p.name: value}, None if required else p.name)

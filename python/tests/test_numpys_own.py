"""The tests of products that ship in NumPy's wheel, run against bilin through a stand-in for the module `numpy`.

`expected_failures.toml` lists those that can't pass, each with its reason; one that passes after all fails the run.
"""

import importlib.util
import operator
import os
import types

# A test of vectors of 2³⁰ elements would need 35 GB here.
os.environ["NPY_AVAILABLE_MEM"] = "2 GB"

import numpy as np

import bilin as bl


def converted(x):
    """NumPy's defaults for lists and numbers, which aren't bilin's: that isn't what is tested here."""
    if isinstance(x, (list, tuple, int, float, complex)) and not isinstance(x, bool):
        return np.asarray(x)
    return x


def operands(name, args):
    """Where the arguments of a function are operands."""
    if name == "tensordot":
        return range(2)
    if name.startswith("einsum"):
        return range(1, len(args)) if isinstance(args[0], str) else range(0, len(args) - len(args) % 2, 2)
    return range(len(args))


def given_back(t):
    if not isinstance(t, bl.Tensor):
        return t
    array = t.numpy(copy=True)
    return array[()] if array.ndim == 0 else array


def stand_in(function):
    """The function with NumPy's arguments that are easily given: `out`, `dtype` with its `casting`, and `order`."""

    def call(*args, out=None, dtype=None, casting="same_kind", order="K", **kwargs):
        if casting == "same_value" or order not in "CFAKcfak":
            raise ValueError(f"{function.__name__}: casting is {casting}, order {order}")
        np.can_cast(float, float, casting)  # Knows the other names.
        args = list(args)
        places = operands(function.__name__, args)
        # Beside an array a number takes its dtype, as with NumPy.
        is_weak = any(isinstance(args[i], (np.ndarray, np.generic)) for i in places)
        for i in places:
            args[i] = args[i] if is_weak and isinstance(args[i], (int, float)) else converted(args[i])
            if dtype is not None:
                args[i] = np.asarray(args[i]).astype(dtype, casting=casting)
        result = given_back(function(*args, **kwargs))
        if out is None:
            return result if order in "Kk" else np.asarray(result, order=order)
        np.copyto(out, result, casting=casting)
        return out

    call.__name__ = function.__name__
    return call


NAMES = ["matmul", "dot", "vdot", "inner", "tensordot", "einsum", "einsum_path", "vecdot", "matvec", "vecmat", "outer"]
PROXY = types.ModuleType("numpy")
PROXY.__dict__.update({k: v for k, v in np.__dict__.items() if not k.startswith("__")})
PROXY.__dict__.update({name: stand_in(getattr(bl, name)) for name in NAMES})
# Dtypes that bilin has not: unsigned ones of more than 8 bits, extended precision.
PROXY.typecodes = {kind: "".join(c for c in codes if c not in "HILQNPgG") for kind, codes in np.typecodes.items()}
PROXY.__getattr__ = lambda name: getattr(np, name)


def loaded(name):
    found = importlib.util.find_spec(f"numpy._core.tests.{name}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.np = PROXY
    if hasattr(module, "dot"):
        module.dot = PROXY.dot
    return module


def class_of(module, name):
    cls = getattr(module, name)
    cls.__module__ = __name__
    return cls


_multiarray, _einsum, _numeric = loaded("test_multiarray"), loaded("test_einsum"), loaded("test_numeric")
TestMatmul, TestMatmulOperator, TestDot, TestVdot, TestInner = (
    class_of(_multiarray, n) for n in ("TestMatmul", "TestMatmulOperator", "TestDot", "TestVdot", "TestInner")
)
TestEinsum, TestEinsumPath = class_of(_einsum, "TestEinsum"), class_of(_einsum, "TestEinsumPath")
TestTensordot = class_of(_numeric, "TestTensordot")
TestMatmul.types = TestMatmulOperator.types = "?bhilBefdFD"
TestMatmul.matmul = staticmethod(PROXY.matmul)


def at(a, b):
    """`@`, with a tensor on one side."""
    return given_back(operator.matmul(bl.asarray(converted(a)), converted(b)))


TestMatmulOperator.matmul = staticmethod(at)

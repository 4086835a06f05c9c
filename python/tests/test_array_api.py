"""The array API by hypothesis, with array-api-strict as the oracle."""

import array_api_strict as xp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bilin as bl

settings.register_profile("here", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("here")

INTS, FLOATS, COMPLEX = ["int8", "int16", "int32", "int64", "uint8"], ["float32", "float64"], ["complex64", "complex128"]
NUMERIC = INTS + FLOATS + COMPLEX
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def small(dtype):
    """Small whole values: exact in every dtype, and few ways to overflow differently."""
    whole = st.integers(0 if dtype == "uint8" else -4, 4)
    if "complex" in dtype:
        return st.builds(complex, whole, whole)
    return st.booleans() if dtype == "bool" else whole if "int" in dtype else whole.map(float)


def array(dtype, shape):
    return hnp.arrays(dtype, shape, elements=small(dtype))


@st.composite
def arrays(draw, dtypes=NUMERIC, shapes=SHAPES):
    dtype = draw(st.sampled_from(dtypes))
    return draw(array(dtype, draw(shapes)))


@st.composite
def pairs(draw, shapes, dtypes=NUMERIC):
    """Two arrays whose dtypes promote; each perhaps a view with other strides."""
    kind = draw(st.sampled_from([[d for d in group if d in dtypes] for group in (INTS, FLOATS + COMPLEX) if set(group) & set(dtypes)]))
    left, right = draw(shapes)
    a, b = draw(array(draw(st.sampled_from(kind)), left)), draw(array(draw(st.sampled_from(kind)), right))
    if draw(st.booleans()) and a.ndim:
        a = np.asfortranarray(a)[::-1]
    return a, b


@st.composite
def matmul_shapes(draw):
    k, m, n = (draw(st.integers(0, 4)) for _ in range(3))
    batch = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3)).input_shapes
    left = (k,) if draw(st.booleans()) else (*batch[0], m, k)
    right = (k,) if draw(st.booleans()) else (*batch[1], k, n)
    return left, right


@st.composite
def vecdot_shapes(draw):
    k = draw(st.integers(0, 4))
    batch = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, min_side=0, max_side=3)).input_shapes
    return (*batch[0], k), (*batch[1], k)


@st.composite
def tensordot_shapes(draw):
    shared = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    return tuple(draw(st.lists(st.integers(0, 3), max_size=2))) + shared, shared + tuple(draw(st.lists(st.integers(0, 3), max_size=2))), len(shared)


BROADCAST = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3).map(lambda s: s.input_shapes)


def strict(a):
    return xp.asarray(np.ascontiguousarray(a).reshape(a.shape))


def same(got, want):
    assert isinstance(got, bl.Tensor)
    want = np.asarray(want)
    assert (got.shape, got.dtype.name) == (want.shape, want.dtype.name)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, equal_nan=True)


NAMESPACES = [(bl, xp), (bl.linalg, xp.linalg)]


@pytest.mark.parametrize("ours, theirs", NAMESPACES, ids=["top", "linalg"])
@given(ab=pairs(matmul_shapes()))
def test_matmul(ours, theirs, ab):
    a, b = ab
    same(ours.matmul(bl.asarray(a), bl.asarray(b)), theirs.matmul(strict(a), strict(b)))
    same(bl.asarray(a) @ bl.asarray(b), strict(a) @ strict(b))


@pytest.mark.parametrize("ours, theirs", NAMESPACES, ids=["top", "linalg"])
@given(a=arrays(shapes=hnp.array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=3)))
def test_matrix_transpose(ours, theirs, a):
    same(ours.matrix_transpose(bl.asarray(a)), theirs.matrix_transpose(strict(a)))
    same(bl.asarray(a).mT, strict(a).mT)


@given(ab=pairs(st.tuples(st.tuples(st.integers(0, 4)), st.tuples(st.integers(0, 4)))))
def test_outer(ab):
    same(bl.linalg.outer(*map(bl.asarray, ab)), xp.linalg.outer(*map(strict, ab)))


@pytest.mark.parametrize("ours, theirs", NAMESPACES, ids=["top", "linalg"])
@given(data=st.data(), shapes=tensordot_shapes())
def test_tensordot(ours, theirs, data, shapes):
    left, right, count = shapes
    a, b = data.draw(pairs(st.just((left, right))))
    axes = count
    if count and data.draw(st.booleans()):
        order = data.draw(st.permutations(range(count)))
        axes = ([len(left) - count + i for i in order], [i - len(right) for i in order])
    same(ours.tensordot(bl.asarray(a), bl.asarray(b), axes=axes), theirs.tensordot(strict(a), strict(b), axes=axes))


@pytest.mark.parametrize("ours, theirs", NAMESPACES, ids=["top", "linalg"])
@given(ab=pairs(vecdot_shapes()))
def test_vecdot(ours, theirs, ab):
    same(ours.vecdot(*map(bl.asarray, ab)), theirs.vecdot(*map(strict, ab)))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "maximum", "minimum"])
@given(data=st.data())
def test_elementwise_of_two(name, data):
    real = name in ("less", "less_equal", "greater", "greater_equal", "maximum", "minimum")
    a, b = data.draw(pairs(BROADCAST, INTS + FLOATS if real else NUMERIC))
    same(getattr(bl, name)(bl.asarray(a), bl.asarray(b)), getattr(xp, name)(strict(a), strict(b)))


@given(ab=pairs(BROADCAST, FLOATS + COMPLEX))
def test_divide(ab):
    a, b = ab
    b = np.where(b == 0, np.ones_like(b), b)
    same(bl.divide(bl.asarray(a), bl.asarray(b)), xp.divide(strict(a), strict(b)))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@given(data=st.data())
def test_logic(name, data):
    left, right = data.draw(BROADCAST)
    a, b = data.draw(array("bool", left)), data.draw(array("bool", right))
    same(getattr(bl, name)(bl.asarray(a), bl.asarray(b)), getattr(xp, name)(strict(a), strict(b)))


@pytest.mark.parametrize("name, dtypes", [
    ("negative", ["int8", "int16", "int32", "int64"] + FLOATS + COMPLEX), ("abs", INTS + FLOATS + COMPLEX), ("conj", COMPLEX), ("real", COMPLEX), ("imag", COMPLEX),
    ("exp", FLOATS), ("tanh", FLOATS), ("sin", FLOATS), ("cos", FLOATS), ("isnan", NUMERIC), ("isfinite", NUMERIC), ("isinf", NUMERIC), ("logical_not", ["bool"]),
])  # fmt: skip
@given(data=st.data())
def test_elementwise_of_one(name, dtypes, data):
    a = data.draw(arrays(dtypes=dtypes))
    if a.dtype.kind == "f" and name.startswith("is") and a.size:
        a = a.copy()
        a.flat[0] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    same(getattr(bl, name)(bl.asarray(a)), getattr(xp, name)(strict(a)))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "all", "any"])
@given(data=st.data())
def test_reductions(name, data):
    least = 1 if name in ("mean", "max", "min") else 0
    dtypes = {"mean": FLOATS, "sum": [d for d in NUMERIC if d != "uint8"], "all": ["bool"], "any": ["bool"]}.get(name, INTS + FLOATS)
    a = data.draw(arrays(dtypes=dtypes, shapes=hnp.array_shapes(min_dims=1, max_dims=3, min_side=least, max_side=4)))
    axis = data.draw(st.none() | st.integers(-a.ndim, a.ndim - 1) | hnp.valid_tuple_axes(a.ndim))
    keepdims = data.draw(st.booleans())
    same(getattr(bl, name)(bl.asarray(a), axis=axis, keepdims=keepdims), getattr(xp, name)(strict(a), axis=axis, keepdims=keepdims))


@given(a=arrays(dtypes=INTS + FLOATS), dtype=st.sampled_from(INTS + FLOATS))
def test_sums_in_another_dtype(a, dtype):
    if (a.dtype.kind == "f") == ("float" in dtype):
        same(bl.sum(bl.asarray(a), dtype=getattr(bl, dtype)), xp.sum(strict(a), dtype=getattr(xp, dtype)))


@given(data=st.data())
def test_shapes_and_making(data):
    a = data.draw(arrays())
    t, s = bl.asarray(a), strict(a)
    same(bl.reshape(t, (-1,) if a.size else (0,)), xp.reshape(s, (-1,) if a.size else (0,)))
    order = data.draw(st.permutations(range(a.ndim)))
    same(bl.permute_dims(t, tuple(order)), xp.permute_dims(s, tuple(order)))
    for name in ("zeros", "ones"):
        same(getattr(bl, name)(a.shape, dtype=t.dtype), getattr(xp, name)(a.shape, dtype=s.dtype))
        same(getattr(bl, name + "_like")(t), getattr(xp, name + "_like")(s))
    same(bl.full(a.shape, 3, dtype=t.dtype), xp.full(a.shape, 3, dtype=s.dtype))
    assert bl.empty(a.shape).shape == a.shape and bl.asarray(t).dtype == t.dtype
    same(bl.concat([t, t], axis=0) if a.ndim else t, xp.concat([s, s], axis=0) if a.ndim else s)
    same(bl.stack([t, t]), xp.stack([s, s]))
    same(bl.expand_dims(t, axis=0), xp.expand_dims(s, axis=0))
    rows, columns, k = (data.draw(st.integers(*r)) for r in ((0, 4), (0, 4), (-4, 4)))
    same(bl.eye(rows, columns, k=k, dtype=bl.float64), xp.eye(rows, columns, k=k, dtype=xp.float64))


@given(left=st.sampled_from(NUMERIC), right=st.sampled_from(NUMERIC))
def test_promotion(left, right):
    try:
        want = xp.result_type(getattr(xp, left), getattr(xp, right))
    except TypeError:
        with pytest.raises(bl.DtypeMismatch):
            bl.result_type(getattr(bl, left), getattr(bl, right))
        return
    assert bl.result_type(getattr(bl, left), getattr(bl, right)).name == str(want).rpartition(".")[2]


def test_facts():
    x = bl.ones((2, 2))
    assert x.__array_namespace__() is bl and x.__array_namespace__(api_version="2024.12") is bl and bl.__array_api_version__ == "2024.12"
    with pytest.raises(bl.InvalidArgument, match="__array_namespace__: api_version"):
        x.__array_namespace__(api_version="1999")
    info = bl.__array_namespace_info__()
    assert info.default_device() == "cpu" and "cpu" in info.devices() and set(info.capabilities()) >= {"boolean indexing", "data-dependent shapes"}
    assert info.dtypes(kind="real floating") == {"float32": bl.float32, "float64": bl.float64}
    for d in FLOATS:
        assert bl.finfo(getattr(bl, d)).eps == np.finfo(d).eps and bl.finfo(getattr(bl, d)).bits == np.finfo(d).bits
    for d in INTS:
        assert (bl.iinfo(getattr(bl, d)).min, bl.iinfo(getattr(bl, d)).max) == (np.iinfo(d).min, np.iinfo(d).max)
    assert bl.isdtype(bl.float32, ("integral", "real floating")) and not bl.isdtype(bl.uint8, "signed integer")
    assert bl.can_cast(bl.int8, bl.int64) and not bl.can_cast(bl.float64, bl.float32)

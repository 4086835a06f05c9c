"""`bl.func` against JAX, where that is installed: the same calls on the same nested arguments. ./test doesn't install it; docs/python.md says
how it is run."""

import numpy as np
import pytest

import bilin as bl

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jnp = jax.numpy

RNG = np.random.default_rng(11)
PARAMS = {"layers": [(RNG.standard_normal((3, 4)), RNG.standard_normal(4)), (RNG.standard_normal((4, 2)), RNG.standard_normal(2))], "scale": RNG.standard_normal(())}
OTHER = {"layers": [(RNG.standard_normal((3, 4)), RNG.standard_normal(4)), (RNG.standard_normal((4, 2)), RNG.standard_normal(2))], "scale": RNG.standard_normal(())}
X = RNG.standard_normal((2, 3))


def model(np_):
    """A small network that both libraries run, with nested results."""

    def run(p, x):
        for w, b in p["layers"]:
            x = np_.tanh(x @ w + b)
        return {"out": p["scale"] * x, "square": [(x * x).sum()]}

    return run


def loss(np_):
    return lambda p, x: (model(np_)(p, x)["out"] ** 2.0).sum()


def vector(np_):
    return lambda pair, y: (np_.sin(pair[0] * y["a"]), {"b": [pair[1] * pair[0].sum() * y["a"]]})


def same(ours, theirs):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return [same(ours[key], theirs[key]) for key in ours]
    if isinstance(ours, (tuple, list)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        return [same(a, b) for a, b in zip(ours, theirs)]
    assert isinstance(ours, bl.Tensor) and ours.shape == theirs.shape and ours.dtype.name == str(theirs.dtype)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-11, atol=1e-12)


PAIR = ((RNG.standard_normal(3), RNG.standard_normal(3)), {"a": RNG.standard_normal(3)})


@pytest.mark.parametrize(
    "call",
    [
        lambda f, np_: f.grad(loss(np_))(PARAMS, X),
        lambda f, np_: f.grad(loss(np_), argnums=(1, 0))(PARAMS, X),
        lambda f, np_: f.value_and_grad(loss(np_))(PARAMS, X),
        lambda f, np_: f.value_and_grad(lambda p, x: (loss(np_)(p, x), model(np_)(p, x)["square"]), argnums=-1, has_aux=True)(PARAMS, X)[1],
        lambda f, np_: f.jvp(model(np_), (PARAMS, X), (OTHER, X)),
        lambda f, np_: f.jacrev(vector(np_))(*PAIR),
        lambda f, np_: f.jacfwd(vector(np_))(*PAIR),
        lambda f, np_: f.jacrev(vector(np_), argnums=(0, 1))(*PAIR),
        lambda f, np_: f.jacfwd(vector(np_), argnums=(1,))(*PAIR),
        lambda f, np_: f.hessian(lambda *a: vector(np_)(*a)[0].sum(), argnums=(0, 1))(*PAIR),
        lambda f, np_: f.hessian(loss(np_))(PARAMS, X),
        lambda f, np_: f.grad(lambda p: (f.grad(loss(np_))(p, X)["scale"] ** 2.0).sum())(PARAMS),
    ],
)
def test_the_same_call_gives_the_same_tree(call):
    same(call(bl.func, bl), call(jax, jnp))


def test_vjp_and_hvp():
    ours, pull = bl.func.vjp(model(bl), PARAMS, X)
    theirs, want = jax.vjp(model(jnp), PARAMS, X)
    same(ours, theirs)
    cotangent = {"out": RNG.standard_normal((2, 2)), "square": [np.float64(0.5)]}
    same(pull(cotangent), want(jax.tree.map(jnp.asarray, cotangent)))
    product = jax.jvp(jax.grad(lambda p: loss(jnp)(p, X)), (PARAMS,), (OTHER,))[1]
    same(bl.func.hvp(lambda p: loss(bl)(p, X), (PARAMS,), (OTHER,)), product)

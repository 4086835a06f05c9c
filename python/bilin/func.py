"""Derivatives of functions in JAX's style, over nested tuples, lists and dicts. They nest.

>>> import bilin as bl
>>> params = {"w": bl.asarray([[1.0], [2.0]]), "layers": [(bl.asarray(3.0), bl.asarray(4.0))]}
>>> def model(p, x):
...     (scale, shift), = p["layers"]
...     return (scale * (x @ p["w"]) + shift).sum()
>>> bl.func.grad(model)(params, [[1.0, 1.0]])
{'w': Tensor([[3.],
        [3.]], dtype=float32), 'layers': [(Tensor(3., dtype=float32), Tensor(1., dtype=float32))]}
>>> cube = lambda x: x * x * x
>>> bl.func.grad(bl.func.grad(cube))(2.0).item()
12.0
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from . import _bilin
from ._bilin import Tensor, asarray, stack
from ._modes import enable_grad
from ._named import name_all as _name_all

__all__ = ["grad", "value_and_grad", "vjp", "jvp", "hvp", "jacrev", "jacfwd", "hessian"]


def _flatten(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _flatten(tree[key], leaves) for key in tree}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[_flatten(t, leaves) for t in tree])
    if isinstance(tree, (tuple, list)):
        return type(tree)(_flatten(t, leaves) for t in tree)
    leaves.append(tree)
    return len(leaves) - 1


def _map(spec: Any, f: Callable[[int], Any]) -> Any:
    if isinstance(spec, dict):
        return {key: _map(s, f) for key, s in spec.items()}
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        return type(spec)(*[_map(s, f) for s in spec])
    if isinstance(spec, (tuple, list)):
        return type(spec)(_map(s, f) for s in spec)
    return f(spec)


def _flat(tree: Any, name: str, what: str) -> tuple[list[Any], Any]:
    found: list[Any] = []
    try:
        return found, _flatten(tree, found)
    except RecursionError:
        raise _error("InvalidArgument", f"{name}: {what} is nested without end; want a tree of tensors") from None


def _leaves(tree: Any, name: str, arg: str) -> tuple[list[Tensor], Any]:
    found, spec = _flat(tree, name, arg)
    leaves = []
    for x in found:
        try:
            leaves.append(x if isinstance(x, Tensor) else asarray(x))
        except TypeError as error:
            raise TypeError(f"{name}: {arg} holds a {type(x).__name__}; want tensors, arrays or numbers") from error
    return leaves, spec


def _results(tree: Any, name: str) -> tuple[list[Tensor], Any]:
    found, spec = _flat(tree, name, "the function's result")
    for x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: the function gave a {type(x).__name__}; want tensors")
    return found, spec


def _pair(out: Any, name: str) -> tuple[Any, Any]:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(f"{name}: the function gave no pair; with has_aux want (value, aux)")
    return out


def _fitted(given: Sequence[Tensor], like: Sequence[Tensor], name: str, arg: str) -> list[Tensor]:
    """Each in the dtype of its counterpart, whose shape it must have."""
    for g, x in zip(given, like):
        if g.shape != x.shape:
            raise _error("ShapeMismatch", f"{name}: {arg} holds shape {g.shape}; want {x.shape}")
        if g.dtype.kind == "complex" and x.dtype.kind != "complex":
            raise _error("DtypeMismatch", f"{name}: {arg} holds {g.dtype}; want {x.dtype}")
    return [g if g.dtype == x.dtype else g.astype(x.dtype) for g, x in zip(given, like)]


def _function(f: Any, name: str) -> None:
    if not callable(f):
        raise TypeError(f"{name}: f is of type {type(f).__name__}; want a function")


class _Pull:
    """A function run at variables of its own, and its gradients for cotangents."""

    def __init__(self, f: Callable[..., Any], args: Sequence[Any], name: str, has_aux: bool) -> None:
        self.name = name
        leaves, self.spec = _leaves(tuple(args), name, "an input")
        self.inputs = leaves
        for x in leaves:
            if x.dtype.kind not in ("float", "complex"):
                raise TypeError(f"{name}: an input has dtype {x.dtype}; only floating and complex tensors have gradients; convert it with astype")
        with enable_grad():
            self.variables = [_bilin._variable(x) for x in leaves]
            out = f(*_map(self.spec, lambda i: self.variables[i]))
        self.aux = None
        if has_aux:
            out, self.aux = _pair(out, name)
        self.outs, self.out_spec = _results(out, name)
        # Others who differentiate through here need a record, nobody else does.
        self.recorded = _bilin.is_grad_enabled() and _bilin._depends_on_others(self.outs, self.variables)
        self._want(False)

    def _want(self, on: bool) -> None:
        """Variables want gradients only while they are asked for: a transform around this one doesn't see them."""
        for v in self.variables:
            if v.is_leaf:
                v.requires_grad_(on)

    def value(self) -> Any:
        return _map(self.out_spec, lambda i: self.outs[i] if self.recorded else _shown(self.outs[i]))

    def gradients(self, cotangents: Sequence[Tensor], keep: bool) -> Any:
        self._want(True)
        live = [(o, g) for o, g in zip(self.outs, cotangents) if o.requires_grad]
        found: list[Any] = [None] * len(self.variables)
        if live:
            found[:] = _bilin.grad(
                [o for o, _ in live],
                self.variables,
                [g for _, g in live],
                retain_graph=keep or self.recorded,
                create_graph=self.recorded,
                allow_unused=True,
            )
        self._want(False)
        full = [g if g is not None else _zeros(x) for g, x in zip(found, self.inputs)]
        return _map(self.spec, lambda i: full[i])


def _shown(x: Tensor) -> Tensor:
    made: Tensor = _bilin._without_history(x)
    return made


def _zeros(x: Tensor) -> Tensor:
    made: Tensor = _bilin._full("zeros", x.shape, 0, x.dtype, x.device)
    return made


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    made: Tensor = _bilin._full("zeros", shape, 0, like.dtype, like.device)
    return made


def _ones(x: Tensor) -> Tensor:
    made: Tensor = _bilin._full("ones", x.shape, 1, x.dtype, x.device)
    return made


def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the value of the real scalar ``f`` and its gradient by the arguments in ``argnums``.

    With ``has_aux`` ``f`` gives a pair, whose second part is handed on.

    >>> def loss(pair, target):
    ...     a, b = pair
    ...     error = a * b - target
    ...     return error * error, {"error": error.item()}
    >>> (value, aux), (by_a, by_b) = value_and_grad(loss, has_aux=True)((3.0, 5.0), 14.0)
    >>> value.item(), aux, by_a.item(), by_b.item()
    (1.0, {'error': 1.0}, 10.0, 6.0)
    """
    return _value_and_grad(f, argnums, has_aux, "value_and_grad")


def _value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, name: str) -> Callable[..., Any]:
    _function(f, name)
    single = isinstance(argnums, int)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        places = _places(argnums, args, name)
        pull = _Pull(lambda *picked: f(*_with(args, places, picked), **kwargs), [args[n] for n in places], name, has_aux)
        if len(pull.outs) != 1 or pull.outs[0].shape != () or pull.outs[0].dtype.kind != "float":
            got = ", ".join(f"{o.shape} of {o.dtype}" for o in pull.outs)
            raise _error("InvalidArgument", f"{name}: the function's result is {got}; want one real scalar")
        grads = pull.gradients([_ones(pull.outs[0])], keep=False)
        value = pull.value()
        return ((value, pull.aux) if has_aux else value), (grads[0] if single else grads)

    return wrapped


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of the real scalar ``f`` by the arguments in ``argnums``.

    >>> import bilin as bl
    >>> by_x, by_y = grad(lambda x, y: (x["a"] * y[0]).sum(), argnums=(0, 1))({"a": bl.ones(2)}, [bl.asarray([3.0, 4.0])])
    >>> by_x["a"].tolist(), by_y[0].tolist()
    ([3.0, 4.0], [1.0, 1.0])
    """
    both = _value_and_grad(f, argnums, has_aux, "grad")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def _error(kind: str, text: str) -> Exception:
    from . import errors

    error: Exception = getattr(errors, kind)(text)
    return error


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``f`` and a function from a cotangent to the gradients of the primals; it may be called again.

    >>> value, pull = vjp(lambda x, y: {"product": x * y, "sum": x + y}, 3.0, 5.0)
    >>> value["product"].item(), [g.item() for g in pull({"product": 1.0, "sum": 0.0})]
    (15.0, [5.0, 3.0])
    >>> [g.item() for g in pull({"product": 0.0, "sum": 2.0})]
    [2.0, 2.0]
    """
    _function(f, "vjp")
    pull = _Pull(f, primals, "vjp", has_aux)

    def pullback(cotangent: Any) -> Any:
        cotangents, spec = _leaves(cotangent, "vjp", "the cotangent")
        if spec != pull.out_spec:
            raise _error("InvalidArgument", "vjp: the cotangent is nested otherwise than the result; want the same nesting")
        return pull.gradients(_fitted(cotangents, pull.outs, "vjp", "the cotangent"), keep=True)

    return (pull.value(), pullback, pull.aux) if has_aux else (pull.value(), pullback)


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of ``f`` at ``primals`` and its derivative along ``tangents``, in one pass.

    With ``has_aux`` ``f`` gives a pair, whose second part is handed on as a third result.

    >>> value, slope = jvp(lambda p: (p["x"] ** 2.0, [3.0 * p["x"]]), ({"x": 4.0},), ({"x": 1.0},))
    >>> value[0].item(), slope[0].item(), slope[1][0].item()
    (16.0, 8.0, 3.0)
    """
    _function(f, "jvp")
    value, tangent, aux = _jvp(f, primals, tangents, "jvp", has_aux)
    return (value, tangent, aux) if has_aux else (value, tangent)


def _jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], name: str, has_aux: bool = False) -> tuple[Any, Any, Any]:
    for arg, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"{name}: {arg} is of type {type(given).__name__}; want a tuple of arguments")
    x, spec = _leaves(tuple(primals), name, "primals")
    v, other = _leaves(tuple(tangents), name, "tangents")
    if spec != other:
        raise _error("InvalidArgument", f"{name}: tangents are nested otherwise than primals; want the same nesting")
    v = _fitted(v, x, name, "tangents")
    found: list[Any] = []

    def run(duals: list[Tensor]) -> list[Tensor]:
        out, aux = f(*_map(spec, lambda i: duals[i])), None
        if has_aux:
            out, aux = _pair(out, name)
        outs, out_spec = _results(out, name)
        found.extend((out_spec, aux))
        return outs

    pairs = _bilin._jvp(run, x, v)
    out_spec, aux = found
    return _map(out_spec, lambda i: pairs[i][0]), _map(out_spec, lambda i: pairs[i][1]), aux


def hvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The product of the Hessian of the real scalar ``f`` at ``primals`` with ``tangents``, forward over reverse.

    >>> f = lambda p: p["a"] ** 2.0 * p["b"][0]
    >>> product = hvp(f, ({"a": 3.0, "b": [5.0]},), ({"a": 1.0, "b": [0.0]},))
    >>> product["a"].item(), product["b"][0].item()
    (10.0, 6.0)
    """
    _function(f, "hvp")
    if not isinstance(primals, (tuple, list)):
        raise TypeError(f"hvp: primals is of type {type(primals).__name__}; want a tuple of arguments")
    gradient = _value_and_grad(f, tuple(range(len(primals))), False, "hvp")
    products = _jvp(lambda *x: gradient(*x)[1], primals, tangents, "hvp")[1]
    return products[0] if len(primals) == 1 else products


def _basis(x: Tensor) -> list[Tensor]:
    rows = _bilin._eye(x.size, x.dtype, x.device)
    return [rows[i].reshape(x.shape) for i in range(x.size)]


def _places(argnums: int | Sequence[int], args: tuple[Any, ...], name: str) -> list[int]:
    """The arguments that are meant, counted from the front."""
    try:
        return [range(len(args))[n] for n in ([argnums] if isinstance(argnums, int) else argnums)]
    except (IndexError, TypeError):
        raise _error("InvalidArgument", f"{name}: argnums is {argnums}; the function got {len(args)} arguments") from None


def _with(args: tuple[Any, ...], places: list[int], picked: Sequence[Any]) -> list[Any]:
    whole = list(args)
    for place, x in zip(places, picked):
        whole[place] = x
    return whole


def _one_argument(
    f: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[Callable[..., Any], Any]:
    """``f`` as a function of the chosen argument, or of a tuple of those chosen."""
    places = _places(argnums, args, name)
    if isinstance(argnums, int):
        return (lambda x: f(*_with(args, places, [x]), **kwargs)), args[places[0]]
    return (lambda xs: f(*_with(args, places, xs), **kwargs)), tuple(args[n] for n in places)


def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the Jacobian of ``f`` by rows: shape f(x).shape + x.shape for each result and input.

    With several ``argnums`` there is a tuple of them in place of one; with ``has_aux`` ``f`` gives a pair, whose second part
    is handed on.

    >>> import bilin as bl
    >>> jacrev(lambda p: {"y": p["m"] @ p["v"]})({"m": bl.ones((2, 3)), "v": bl.ones(3)})["y"]["m"].shape
    (2, 2, 3)
    """
    _function(f, "jacrev")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        single, x = _one_argument(f, argnums, args, kwargs, "jacrev")
        pull = _Pull(single, [x], "jacrev", has_aux)

        def of(which: int) -> Any:
            out = pull.outs[which]
            rows = []
            for g in _basis(out):
                cotangents = [g if i == which else _zeros(o) for i, o in enumerate(pull.outs)]
                rows.append([_conj(r) for r in _results(pull.gradients(cotangents, keep=True)[0], "jacrev")[0]])
            spec = _map(pull.spec[0], lambda i: i)

            def join(i: int) -> Tensor:
                x = pull.inputs[i]
                if not rows:
                    return _empty(out.shape + x.shape, x)
                return stack([r[i] for r in rows]).reshape(out.shape + x.shape)

            return _map(spec, join)

        jacobian = _map(pull.out_spec, of)
        return (jacobian, pull.aux) if has_aux else jacobian

    return wrapped


def _conj(x: Tensor) -> Tensor:
    return x.conj() if x.dtype.kind == "complex" else x


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """``jacrev`` by columns, in forward mode.

    >>> import bilin as bl
    >>> by_m, by_v = jacfwd(lambda pair: pair[0] @ pair[1])((bl.ones((2, 3)), bl.asarray([1.0, 2.0, 3.0])))
    >>> by_m.shape, by_v.tolist()
    ((2, 2, 3), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    _function(f, "jacfwd")

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        single, x = _one_argument(f, argnums, args, kwargs, "jacfwd")
        inputs, spec = _leaves(x, "jacfwd", "an input")
        columns: list[list[list[Tensor]]] = []
        out_spec: Any = None
        values: list[Tensor] = []
        aux: Any = None
        for i, leaf in enumerate(inputs):
            columns.append([])
            for v in _basis(leaf):
                tangent = _map(spec, lambda j: v if j == i else _zeros(inputs[j]))
                value, out, aux = _jvp(single, (_map(spec, lambda j: inputs[j]),), (tangent,), "jacfwd", has_aux)
                values, out_spec = _results(value, "jacfwd")
                columns[i].append(_results(out, "jacfwd")[0])
        if out_spec is None:
            value = single(x)
            if has_aux:
                value, aux = _pair(value, "jacfwd")
            values, out_spec = _results(value, "jacfwd")

        def of(which: int) -> Any:
            def join(i: int) -> Tensor:
                shape = values[which].shape + inputs[i].shape
                if not columns[i]:
                    return _empty(shape, values[which])
                return stack([c[which] for c in columns[i]], axis=-1).reshape(shape)

            return _map(spec, join)

        jacobian = _map(out_spec, of)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The second derivative of the real scalar ``f``: forward over reverse.

    For a nested argument it is nested twice: ``hessian(f)(p)["a"]["b"]`` has shape p["a"].shape + p["b"].shape.

    >>> h = hessian(lambda p: p["a"] * p["a"] * p["b"][0])({"a": 3.0, "b": [5.0]})
    >>> h["a"]["a"].item(), h["a"]["b"][0].item(), h["b"][0]["a"].item(), h["b"][0]["b"][0].item()
    (10.0, 6.0, 6.0, 0.0)
    """
    _function(f, "hessian")
    return jacfwd(jacrev(f, argnums, has_aux), argnums, has_aux)


_name_all(globals())

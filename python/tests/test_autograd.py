"""Functions, hooks, checkpoints, checks and pictures in PyTorch's style, against closed forms."""

import gc
import threading
import weakref

import numpy as np
import pytest

import bilin as bl
from bilin.autograd import Function, checkpoint, gradcheck, gradgradcheck

RNG = np.random.default_rng(3)


def leaf(*shape):
    return bl.asarray(RNG.standard_normal(shape)).requires_grad_()


class Linear(Function):
    """x @ w + b, times a number that is no tensor."""

    @staticmethod
    def forward(ctx, x, w, b, factor):
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return (x @ w + b) * factor

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        need = ctx.needs_input_grad
        g = g * ctx.factor
        return g @ w.mT if need[0] else None, x.mT @ g if need[1] else None, g.sum(axis=0) if need[2] else None, None

    @staticmethod
    def jvp(ctx, dx, dw, db, _):
        x, w = ctx.saved_tensors
        return (dx @ w + x @ dw + db) * ctx.factor


class Powers(Function):
    """x², x³ and a note; written with setup_context."""

    seen = []

    @staticmethod
    def forward(x):
        return x * x, x * x * x, "note"

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g2, g3, note):
        (x,) = ctx.saved_tensors
        Powers.seen.append((g2 is None, g3 is None, note))
        total = bl.zeros_like(x)
        if g2 is not None:
            total = total + 2 * x * g2
        if g3 is not None:
            total = total + 3 * x * x * g3
        return total


def test_functions_of_tensors_and_other_arguments():
    x, w, b = leaf(4, 3), leaf(3, 2), leaf(2)
    y = Linear.apply(x, w, b, 3.0)
    assert y.grad_fn.name() == "LinearBackward" and y.grad_fn.inputs() == ["leaf"] * 3
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 3 * x.detach().numpy().T @ np.ones((4, 2)))
    np.testing.assert_allclose(b.grad.numpy(), np.full(2, 12.0))
    assert gradcheck(lambda *a: Linear.apply(*a, 0.5), [x, w, b]) and gradgradcheck(lambda *a: Linear.apply(*a, 0.5), [x, w, b])
    only = Linear.apply(x.detach(), w.detach(), b, 1.0)
    assert [g is None for g in only.grad_fn.apply(bl.ones((4, 2), dtype="float64"))] == [True, True, False]
    tangents = tuple(bl.ones_like(t) for t in (x, w, b))
    forward = bl.func.jvp(lambda *a: Linear.apply(*a, 0.5), (x, w, b), tangents)[1]
    plain = bl.func.jvp(lambda x, w, b: (x @ w + b) * 0.5, (x, w, b), tangents)[1]
    np.testing.assert_allclose(forward.detach().numpy(), plain.detach().numpy())
    primals = tuple(t.detach() for t in (x, w, b))
    products = bl.func.hvp(lambda *a: (Linear.apply(*a, 0.5) ** 2.0).sum(), primals, tangents)
    wanted = bl.func.hvp(lambda x, w, b: (((x @ w + b) * 0.5) ** 2.0).sum(), primals, tangents)
    for p, q in zip(products, wanted):
        np.testing.assert_allclose(p.numpy(), q.numpy())


def test_functions_of_several_results():
    x = leaf(5)
    square, cube, note = Powers.apply(x)
    assert note == "note" and square.grad_fn == cube.grad_fn
    cube.sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.detach().numpy() ** 2)
    (square.sum() + cube.sum()).backward()
    assert Powers.seen == [(True, False, None), (False, False, None)]
    assert gradgradcheck(lambda x: Powers.apply(x)[:2], [x])
    value = bl.func.grad(lambda x: Powers.apply(x)[1].sum())(x.detach())
    np.testing.assert_allclose(value.numpy(), 3 * x.detach().numpy() ** 2)


def made(backward, forward=lambda ctx, x: x * 2):
    return type("Made", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


@pytest.mark.parametrize(
    "backward, error, text",
    [
        (lambda ctx, g: (g, g), bl.InvalidArgument, "Made.backward: gradients are 2 in number; want 1"),
        (lambda ctx, g: "g", TypeError, "Made.backward: gradient 0 is of type str"),
        (lambda ctx, g: g[0], bl.InvalidArgument, "Made"),
        (lambda ctx, g: g * 1j, bl.DtypeMismatch, "Made"),
        (lambda ctx, g: 1 / 0, ZeroDivisionError, "division"),
        (lambda ctx, g: ctx.nothing, AttributeError, "Made: ctx has no attribute 'nothing'"),
    ],
)
def test_a_wrong_gradient_is_refused(backward, error, text):
    with pytest.raises(error, match=text):
        made(backward).apply(leaf(3)).sum().backward()


def test_what_functions_refuse():
    x = leaf(3)
    with pytest.raises(TypeError, match="Made: a Function isn't instantiated"):
        made(None)()
    with pytest.raises(TypeError, match="Made.forward: the result is of type int"):
        made(None, lambda ctx, x: 3).apply(x)
    with pytest.raises(bl.Unsupported, match="forward isn't written"):
        Function.apply(x)
    with pytest.raises(bl.NotDifferentiable, match="once_differentiable"):
        y = made(bl.autograd.once_differentiable(lambda ctx, g: 2 * g)).apply(x).sum()
        bl.autograd.grad(y, x, create_graph=True)
    with pytest.raises(TypeError, match="Made.save_for_backward: inputs are of type int"):
        made(None, lambda ctx, x: ctx.save_for_backward(3)).apply(x)

    def saves(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    y = made(lambda ctx, g: g * ctx.saved_tensors[0], saves).apply(x)
    with bl.no_grad():
        x += 1
    with pytest.raises(bl.VersionMismatch, match="Made: operand 0"):
        y.sum().backward()
    with pytest.raises(bl.NotDifferentiable, match="jvp"):
        bl.func.jvp(made(None, saves).apply, (x,), (x,))


def test_a_deep_chain_of_functions_with_attributes_is_let_go():
    class Holds(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x + 1

        @staticmethod
        def backward(ctx, g):
            return g

    x = leaf()
    y = x
    for _ in range(20_000):
        y = Holds.apply(y)
    y.backward()
    assert x.grad.item() == 1
    alive = weakref.ref(y)
    del y
    gc.collect()
    assert alive() is None


def test_hooks_and_their_order():
    x, order = leaf(3), []
    with x.register_hook(lambda g: order.append("before")):
        after = x.register_post_accumulate_grad_hook(lambda t: order.append(t.grad is not None))
        (x * 2).sum().backward()
        bl.autograd.grad((x * 2).sum(), x)
    (x * 2).sum().backward()
    after.remove()
    (x * 2).sum().backward()
    assert order == ["before", True, "before", True]
    with pytest.raises(TypeError, match="register_hook: hook"):
        x.register_hook(3)
    with pytest.raises(bl.InvalidArgument, match="register_post_accumulate_grad_hook: self"):
        (x * 2).register_post_accumulate_grad_hook(print)
    half = bl.ones(3, dtype="bfloat16").requires_grad_()
    half.grad_dtype = bl.float32
    (half * half).sum().backward()
    assert half.grad.dtype == bl.float32


def test_several_roots_in_one_pass():
    x = leaf(3)
    bl.autograd.backward([(x * 2).sum(), x * x], [None, np.ones(3)])
    np.testing.assert_allclose(x.grad.numpy(), 2 + 2 * x.detach().numpy())
    with pytest.raises(bl.InvalidArgument, match="backward: tensors: gradients"):
        bl.autograd.backward([(x * 2).sum()], [None, None])


def test_checkpoints_compute_again_with_the_same_numbers():
    x, w, runs, rng = leaf(4), leaf(4), [], bl.Rng(5)

    def f(x, factor, *, shift):
        runs.append(1)
        mask = rng.rand((4,), dtype="float64") > 0.5
        return bl.where(mask, (x * w).exp() * factor, x) + shift, x * 2

    y, z = checkpoint(f, x, 3.0, rng=rng, shift=1.0)
    after = rng.rand((2,)).tolist()
    (y.sum() + z.sum()).backward()
    assert len(runs) == 2
    other, kept = bl.Rng(5), (x.grad.numpy(), w.grad.numpy())
    x.zero_grad(), w.zero_grad()
    mask = other.rand((4,), dtype="float64") > 0.5
    (bl.where(mask, (x * w).exp() * 3.0, x).sum() + (x * 2).sum()).backward()
    np.testing.assert_allclose(kept[0], x.grad.numpy())
    np.testing.assert_allclose(kept[1], w.grad.numpy())
    assert other.rand((2,)).tolist() == after
    with bl.amp.autocast("bfloat16"):
        y = checkpoint(lambda a, b: a @ b, bl.ones((2, 2)).requires_grad_(), bl.ones((2, 2)))
    assert y.dtype == bl.bfloat16
    y.sum().backward()
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda x: 1 / 0, x)
    with pytest.raises(TypeError, match="checkpoint: the function's results"):
        checkpoint(lambda x: 3, x)
    assert gradgradcheck(lambda x: checkpoint(lambda x: x.exp() * x, x), [x])


def test_anomalies_are_found_where_they_begin():
    x = bl.asarray(0.0).requires_grad_()
    with bl.autograd.detect_anomaly():
        assert bl.autograd.is_detecting_anomaly()
        with pytest.raises(bl.NanGradient, match="sqrt"):
            (bl.sqrt(x) * x).backward()
        with bl.autograd.detect_anomaly(False):
            (bl.sqrt(x) * x).backward()
    assert not bl.autograd.is_detecting_anomaly()
    bl.autograd.detect_anomaly()(lambda: (x * x).backward())()


def test_wrong_gradients_are_found():
    wrong = made(lambda ctx, g: g * 3)
    with pytest.raises(bl.InvalidArgument, match="gradcheck: inputs: number 0 of"):
        gradcheck(wrong.apply, leaf(3))
    assert not gradcheck(wrong.apply, leaf(3), raise_exception=False)
    with pytest.raises(bl.InvalidArgument, match="gradcheck"):
        gradcheck(lambda x: (x * 1.0, wrong.apply(x)), leaf(3))


def test_pictures():
    x = leaf(2, 2)
    picture = bl.autograd.Picture((x @ x).sum())
    assert "MatmulBackward" in picture.to_dot() and picture._repr_svg_() == picture.to_svg() and "<svg" in picture.to_svg()
    with pytest.raises(TypeError, match="Picture: outputs"):
        bl.autograd.Picture(3)


def test_profiles(tmp_path):
    import json

    x = leaf(8, 8)
    with bl.profiler.profile() as p:
        with bl.profiler.record_function("step"):
            (x @ x).sum().backward()
        with pytest.raises(bl.InvalidArgument, match="table: profile is still open"):
            p.table()
    events = p.events
    products = [e for e in events if e.name == "matmul"]
    assert [(e.direction, e.node) for e in products] == [("forward", "")] or products[0].flops == 1024
    backward = [e for e in events if e.node == "MatmulBackward"]
    assert len(backward) >= 2 and all(e.direction == "backward" and e.duration_ns > 0 and e.dtype == bl.float64 for e in backward)
    (step,) = [e for e in events if e.direction == "scope"]
    assert step.name == "step" and step.duration_ns >= sum(e.duration_ns for e in products)
    sums = p.key_averages()
    assert sum(k.calls for k in sums) == len(events) and "MatmulBackward" in sums.table() == p.table()
    p.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {"X", "s", "f"} <= {e["ph"] for e in trace["traceEvents"]}
    entered = bl.profiler.profile().__enter__()
    thread_errors = []

    def leave():
        try:
            entered.__exit__(None, None, None)
        except bl.InvalidArgument as error:
            thread_errors.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start(), thread.join()
    assert len(thread_errors) == 1 and "profile: exit" in thread_errors[0]
    bl._bilin._profile_end()
    bl.profiler.record_function("a")(lambda: 3)()


def test_memory_is_counted_and_limited():
    bl.reset_peak_memory_stats()
    before = bl.memory_stats()
    x = bl.zeros((100, 100))
    stats = bl.memory_stats("cpu")
    assert stats["current_bytes"] >= before["current_bytes"] + x.nbytes and stats["peak_bytes"] >= stats["current_bytes"]
    bl.set_memory_limit(stats["current_bytes"] + 1000)
    try:
        with pytest.raises(bl.OutOfMemory, match="limit") as caught:
            x @ x
        assert isinstance(caught.value, MemoryError)
    finally:
        bl.set_memory_limit(None)
    assert (x @ x).shape == (100, 100)


def test_a_scaled_step_with_clipping():
    w = bl.ones((3, 2)).requires_grad_()
    scaler, optimizer = bl.amp.GradScaler(init_scale=1024.0, growth_interval=2), bl.optim.SGD([w], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale((bl.ones((1, 3)) @ w).sum()).backward()
        scaler.unscale_(optimizer)
        norm = bl.optim.clip_grad_norm(optimizer.params, 1.0)
        assert norm.item() == pytest.approx(6**0.5) and float((w.grad * w.grad).sum()) == pytest.approx(1, rel=1e-4)
        assert scaler.step(optimizer) is True
        scaler.update()
    assert scaler.get_scale() == 2048 and scaler.get_growth_tracker() == 0
    before = w.detach().numpy(copy=True)
    w.grad = bl.full((3, 2), float("inf"))
    assert scaler.step(optimizer) is False
    with pytest.raises(bl.InvalidArgument, match="step"):
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1024 and w.detach().numpy().tobytes() == before.tobytes()
    fresh = bl.amp.GradScaler()
    fresh.load_state_dict(scaler.state_dict())
    fresh.load_state_dict({"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "growth_tracker": 1})
    assert fresh.get_scale() == 8 and fresh.get_growth_tracker() == 1

    class Own:
        params = [w]
        steps = 0

        def step(self):
            self.steps += 1

    own = Own()
    w.grad = bl.ones((3, 2))
    assert fresh.step(own) and own.steps == 1
    assert not bl.amp.GradScaler(enabled=False).is_enabled()
    for bad in (3, [w], None):
        with pytest.raises(TypeError, match="step: optimizer"):
            fresh.step(bad)
    adam = bl.optim.AdamW(w, betas=(0.5, 0.9))
    w.grad = bl.ones((3, 2))
    adam.step()
    with pytest.raises(bl.InvalidArgument, match="AdamW: betas"):
        bl.optim.AdamW(w, betas=(0.5, 2.0))
    for settings in ({"lr": float("nan")}, {"lr": -1.0}, {"lr": 0.1, "weight_decay": -1.0}):
        with pytest.raises(bl.InvalidArgument, match="SGD: (lr|weight_decay)"):
            bl.optim.SGD(w, **settings)


def test_autocast_is_restored_across_errors():
    @bl.amp.autocast("bfloat16")
    def fails():
        assert bl.amp.autocast_dtype() == bl.bfloat16
        raise KeyError

    scope = bl.amp.autocast("bfloat16")
    with scope, scope:
        with pytest.raises(KeyError):
            fails()
        assert bl.amp.is_autocast_enabled()
    assert bl.amp.autocast_dtype() is None
    x = bl.ones((2, 2)).requires_grad_()
    with scope:
        y = (x @ x).sum()
    y.backward()
    assert x.grad.dtype == bl.float32


def test_schemas():
    s = bl.op_lookup("matmul")
    assert (s.name, s.version, s.amp_policy, s.deterministic, s.arity) == ("matmul", 1, "Promote", True, "2")
    assert s.hash == bl.schema_hash(s) == (bl.ones((1, 1)).requires_grad_() @ bl.ones((1, 1))).grad_fn.schema().hash


def test_retained_gradients_add_up_and_may_be_set():
    x = bl.asarray([1.0, 2.0, 3.0], dtype="float64").requires_grad_()
    y = x * 2
    y.retain_grad()
    loss = (y * 3).sum() + (y * y).sum() + y[1]
    loss.backward(retain_graph=True)
    held = y.grad
    loss.backward()
    assert (held.tolist(), y.grad.tolist(), x.grad.tolist()) == ([7, 12, 15], [14, 24, 30], [28, 48, 60])
    y.zero_grad()
    assert y.grad is None
    y.grad = bl.ones(3, dtype="float64")
    assert y.grad.tolist() == [1, 1, 1]
    # In `grad`, hooks run on the way to what is asked for; .grad is nobody's.
    seen = []
    z = x * x
    z.register_hook(lambda g: seen.append("z") or 2 * g)
    x.register_hook(lambda g: seen.append("x"))
    w = bl.asarray([1.0, 1.0, 1.0], dtype="float64").requires_grad_()
    w.register_hook(lambda g: seen.append("w"))
    x.zero_grad()
    first, second, again = bl.autograd.grad((z * w).sum(), [x, z, x])
    assert (seen, first.tolist(), second.tolist(), again.tolist()) == (["z", "x"], [4, 8, 12], [2, 2, 2], [4, 8, 12])
    assert x.grad is None and z.grad is None


def test_what_nobody_used_arrives_as_zeros():
    class Two(Function):
        seen = []

        @staticmethod
        def forward(ctx, x, scale):
            return x * scale, (x * x).sum(), 3

        @staticmethod
        def backward(ctx, g, h, note):
            Two.seen.append((g.tolist(), h.tolist(), note, ctx.needs_input_grad))
            return g * 2 + h, None

    x = bl.asarray([1.0, 2.0]).requires_grad_()
    scaled, square, note = Two.apply(x, 2.0)
    square.backward(retain_graph=True)
    scaled.sum().backward()
    assert note == 3 and Two.seen == [([0, 0], 1, None, (True, False)), ([1, 1], 0, None, (True, False))]


def test_perturbations_of_nested_transforms_do_not_mix():
    # d/dx [x · d/dy (x + y)] is 1, whatever the modes.
    one = bl.asarray(1.0)
    forward = lambda f: lambda x: bl.func.jvp(f, (x,), (one,))[1]  # noqa: E731
    for outer in (forward, bl.func.grad, bl.func.jacfwd, bl.func.jacrev):
        for inner in (forward, bl.func.grad, bl.func.jacfwd, bl.func.jacrev):
            assert outer(lambda x: x * inner(lambda y: x + y)(one))(one).item() == 1


def test_modes_belong_to_a_thread_and_backward_to_no_scope():
    x = bl.asarray(RNG.standard_normal((4, 3)), dtype="float32")
    w = bl.asarray(RNG.standard_normal((3, 2)), dtype="float32").requires_grad_()

    def loss():
        with bl.amp.autocast("bfloat16"):
            return bl.tanh(x @ w).sum()

    loss().backward()
    want, found, modes = w.grad.tolist(), [], []
    scopes = (lambda: bl.amp.autocast("float16"), lambda: bl.amp.autocast(enabled=False), lambda: bl.amp.autocast("bfloat16"))

    def work(y, scope):
        modes.append((bl.amp.autocast_dtype(), bl.is_grad_enabled(), bl.are_deterministic_algorithms_enabled()))
        with scope():
            y.backward()

    bl.use_deterministic_algorithms(True)
    try:
        with bl.no_grad(), bl.amp.autocast("bfloat16"):
            assert (x @ x.mT).dtype == bl.bfloat16 and bl.are_deterministic_algorithms_enabled()
            for scope in scopes:
                with bl.enable_grad():
                    w.zero_grad()
                    thread = threading.Thread(target=work, args=(loss(), scope))
                    thread.start(), thread.join()
                    found.append(w.grad.tolist())
    finally:
        bl.use_deterministic_algorithms(False)
    assert found == [want] * 3 and w.grad.dtype == bl.float32
    assert modes == [(None, True, False)] * 3 and not bl.are_deterministic_algorithms_enabled()


def test_counters_return_to_where_they_were():
    gc.collect()
    before = bl.memory_stats()["current_bytes"]
    for last in ("drop", "backward", "create_graph", "checkpoint", "function", "hvp"):
        x, w, b = leaf(20, 30), leaf(30, 10), leaf(10)
        y = Linear.apply(x, w, b, 0.5) if last == "function" else x @ w + b
        z = checkpoint(lambda t: (t * t).tanh(), y) if last == "checkpoint" else (y * y).tanh()
        z.register_hook(lambda g: 2 * g)
        if last == "create_graph":
            (g,) = bl.autograd.grad(z.sum(), x, create_graph=True)
            assert g.requires_grad
            del g
        elif last == "hvp":
            bl.func.hvp(lambda x: (x @ w).tanh().sum(), (x.detach(),), (x.detach(),))
        elif last != "drop":
            z.sum().backward()
        assert bl.memory_stats()["current_bytes"] > before
        del x, w, b, y, z
        gc.collect()
        assert bl.memory_stats()["current_bytes"] == before, last

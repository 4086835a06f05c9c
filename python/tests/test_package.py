"""The package as a whole: stubs, examples, doctests, threads, interrupts."""

import doctest
import importlib
import os
import pathlib
import pkgutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import bilin as bl

HERE = pathlib.Path(__file__).parents[1]
# Not the sources in the working directory, which have no extension module.
PYTHON = [sys.executable, "-P"]


def test_stubs_are_those_of_the_module():
    run = subprocess.run([sys.executable, HERE / "scripts/generate_stubs.py", "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (pathlib.Path(bl.__file__).parent / "py.typed").exists()


def test_types_hold(tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, HERE / "bilin", HERE / "examples"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert run.returncode == 0, run.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import bilin as bl\nx: int = bl.ones((2, 2)) @ bl.ones((2, 2))\nbl.matmul(bl.ones(2))\nbl.nothing()\n")
    run = subprocess.run([*command[:-2], wrong], capture_output=True, text=True, cwd=HERE)
    assert run.stdout.count("error:") == 3, run.stdout


MODULES = ["bilin", *(f"bilin.{m.name}" for m in pkgutil.iter_modules(bl.__path__) if m.name != "_bilin")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("path", ["docs/python.md", "docs/mixed-precision.md", "docs/profiling.md", "python/README.md"])
def test_examples_in_documents(path, tmp_path, monkeypatch):
    # Pages write files where they are run.
    monkeypatch.chdir(tmp_path)
    text = (HERE.parent / path).read_text()
    run = doctest.testfile(str(HERE.parent / path), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert run.failed == 0 and run.attempted > (3 if ">>>" in text else -1)


def example(name):
    sys.path.insert(0, str(HERE / "examples"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_digits_reads_as_well_as_the_rust_example(tmp_path):
    digits = example("digits")
    # The same stream of random numbers, model and steps: the bound of crates/bilin/tests/examples.rs.
    assert digits.main(["--plot", str(tmp_path / "digits.png")]) >= 0.965
    assert (tmp_path / "digits.png").read_bytes()[:4] == b"\x89PNG"
    model, history, _ = digits.train(1, 7, 0.004, None)
    again = digits.train(1, 7, 0.004, None)
    assert history == again[1] and all(np.array_equal(a.detach(), b.detach()) for a, b in zip(*[[p for p in m.parameters()] for m in (model, again[0])]))


def test_newtons_method_ends_at_the_minimum():
    logistic = example("logistic")
    x, y = logistic.read()
    w, norms = logistic.train(x, y, 1.0)
    assert norms[-1] < 1e-9 and len(norms) < 15
    # At the minimum the gradient is zero, in closed form: Xᵀ(σ(Xw) − y) + w.
    a, b, w = x.numpy(), y.numpy(), w.numpy()
    np.testing.assert_allclose(a.T @ (1 / (1 + np.exp(-(a @ w))) - b) + w, 0, atol=1e-8)
    assert logistic.main([]) > 0.98


def test_gradients_of_a_fixed_point_are_those_of_the_closed_form():
    equilibrium = example("equilibrium")
    assert equilibrium.main(["--states", "12"]) < 1e-10
    parameters = equilibrium.draw(6, 2)
    bent = bl.func.grad(equilibrium.unrolled(5), argnums=(0, 1, 2, 3))(*parameters)
    assert equilibrium.apart(bent, equilibrium.closed_form(*parameters)) > 1e-4
    # Of the second order, and in PyTorch's style.
    leaves = [p.requires_grad_() for p in parameters]
    assert bl.autograd.gradcheck(equilibrium.loss, leaves) and bl.autograd.gradgradcheck(equilibrium.loss, leaves)
    with pytest.raises(ValueError, match="want a contraction"):
        equilibrium.fixed_point(lambda z, p: z + p, bl.asarray([1.0]), bl.asarray([1.0]))


def test_a_gradient_flows_through_a_gradient_step():
    maml = example("maml")
    rng = np.random.default_rng(4)
    (x, y), (a, b) = [(rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 4, 1))) for _ in range(2)]
    given, asked = (bl.asarray(x), bl.asarray(y)), (bl.asarray(a), bl.asarray(b))
    w = rng.standard_normal((3, 1))

    def linear(w, x):
        return x @ w[0]

    found = bl.func.grad(lambda w: maml.error_after(linear, [w], given, asked, 0.05))(bl.asarray(w)).numpy()
    # With H = 2/n·XᵀX and w′ = w − rate·(H·w − 2/n·Xᵀy): the mean over tasks of (I − rate·H)·2/m·Aᵀ(A·w′ − b).
    want = 0
    for t in range(2):
        moved = w - 0.05 * 2 / 4 * x[t].T @ (x[t] @ w - y[t])
        g = 2 / 4 * a[t].T @ (a[t] @ moved - b[t])
        want = want + (g - 0.05 * 2 / 4 * x[t].T @ (x[t] @ g)) / 2
    np.testing.assert_allclose(found, want, rtol=1e-12)
    draws = bl.Rng(1)
    points, leaves = maml.tasks(3, draws), [p.requires_grad_() for p in maml.weights(draws)]
    assert bl.autograd.gradcheck(lambda *w: maml.error_after(maml.network, list(w), *points, 0.05), leaves)
    learned, random = maml.main(["--steps", "60"])
    # Learned weights gain more by one step than random ones do.
    assert learned[0] - learned[1] > 2 * (random[0] - random[1]) > 0 and learned[1] < random[1]


def test_the_package_is_small_and_comes_in_fast():
    files = [f for f in pathlib.Path(bl.__file__).parent.rglob("*") if f.is_file() and f.suffix != ".pyc"]
    assert sum(f.stat().st_size for f in files) < 10e6
    # Time of the processor, which other work on the machine doesn't count towards.
    code = "import time, numpy; t = time.process_time(); import bilin; print(time.process_time() - t)"
    times = [float(subprocess.run([*PYTHON, "-c", code], capture_output=True, text=True).stdout) for _ in range(3)]
    assert min(times) < 0.1
    unwanted = "import sys, numpy; before = set(sys.modules); import bilin; print(*sorted(set(sys.modules) - before))"
    brought = subprocess.run([*PYTHON, "-c", unwanted], capture_output=True, text=True).stdout.split()
    assert not {m for m in brought if m.split(".")[0] in ("ml_dtypes", "inspect", "matplotlib", "torch")}, brought


def counted(work):
    """How far another thread of Python comes while `work` runs."""
    begun, done, count = threading.Event(), threading.Event(), 0

    def run():
        begun.set()
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    while not done.is_set():
        count += 1
    thread.join()
    return count


def test_other_threads_run_while_a_kernel_does():
    x = bl.ones((1200, 1200)).requires_grad_()
    held = counted(lambda: sum(range(10)))
    loss = (x @ x).sum()
    for work in (lambda: bl.matmul(x, x), loss.backward, lambda: bl.einsum("ij,jk->ik", x.detach(), x.detach())):
        assert counted(work) > held + 200


def test_threads_share_tensors_graphs_and_modes():
    x = bl.asarray(np.random.default_rng(1).standard_normal((60, 60))).requires_grad_()
    shared = x @ x
    want = bl.autograd.grad(shared.sum(), x, retain_graph=True)[0].numpy().tobytes()
    wrong = []

    def work(i):
        for _ in range(20):
            with bl.no_grad() if i % 2 else bl.enable_grad():
                if (x * 2).requires_grad != (i % 2 == 0):
                    wrong.append("mode")
            if bl.autograd.grad(shared.sum(), x, retain_graph=True)[0].numpy().tobytes() != want:
                wrong.append("bits")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


INTERRUPTED = """
import os, signal, threading, bilin as bl
# A shell starts what it runs in the background with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
x = bl.ones((50, 50)).requires_grad_()
try:
    {loop}
except KeyboardInterrupt:
    y = (x @ x).sum()
    y.backward()
    print("interrupted", x.grad.shape)
"""


@pytest.mark.parametrize("loop", ["while True: (x @ x).sum().backward()", "x.register_hook(lambda g: None)\n    while True: (x @ x).sum().backward()"])
def test_interrupts_come_between_ops(loop):
    run = subprocess.run([*PYTHON, "-c", INTERRUPTED.format(loop=loop)], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip().startswith("interrupted (50, 50)"), run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_of_fork_computes():
    x = bl.ones((300, 300))
    want = (x @ x)[0, 0].item()
    code = f"import os, bilin as bl\nx = bl.ones((300, 300))\nx @ x\npid = os.fork()\nif pid == 0: os._exit(0 if (x @ x)[0, 0].item() == {want} else 1)\nraise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    assert subprocess.run([*PYTHON, "-W", "ignore", "-c", code], timeout=60).returncode == 0

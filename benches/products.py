"""Products beside NumPy, PyTorch, JAX, MKL and Rust crates, in one run: ``python3 benches/products.py [words of case names]``.

Makes a virtual environment under target/peers (or where BILIN_PEERS says) with numpy, torch, jax and mkl, builds the release
program of the cases, and runs each case in every contender in turn, round by round. A ratio is the median over rounds of the
peer's time / ours: above 1 we are faster. Everything that a peer is called for is a call of its public API on arrays that it
holds; results are allocated by the call, as ours are, but for NumPy's ``out=`` in outer products and MKL, which writes into memory
that it is given.

``--threads 2`` measures wall time; with one thread, the default, times are the processor's, so that neighbours on the machine
count less. ``--roof`` prints the machine's limits alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("BILIN_PEERS", ROOT / "target" / "peers"))
CASES = json.loads((ROOT / "benches" / "cases.json").read_text())
ROUNDS = 7
SLICE = 0.03
Run = Callable[[int], float]


def environment(threads: int) -> None:
    """Goes on in an environment with the peers, whose threads are set before they are loaded."""
    settings = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "BILIN_NUM_THREADS": threads,
                "RAYON_NUM_THREADS": threads}
    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() == VENV.resolve() and os.environ.get("BILIN_NUM_THREADS") == str(threads):
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if subprocess.run([python, "-c", "import torch, jax, numpy, ml_dtypes"], stderr=subprocess.DEVNULL).returncode != 0:
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        cpu = subprocess.run([*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cpu"]).returncode == 0
        subprocess.run([*pip, *([] if cpu else ["torch"]), "jax", "numpy"], check=True)
    if not list((VENV / "lib").glob("libmkl_rt.so*")):
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "mkl"])
    if threads == 1:
        settings["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.execve(python, [str(python), __file__, *sys.argv[1:]], {**os.environ, **{k: str(v) for k, v in settings.items()}})


class Serving:
    """A release program, fed over a pipe."""

    def __init__(self, build: list[str], program: list[str], threads: int) -> None:
        subprocess.run(["cargo", "build", "-q", "--release", *build], cwd=ROOT, check=True)
        self.child = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.by_processor = threads == 1

    def processor_seconds(self) -> float:
        """What the child's threads have run; exact, since it waits for its next line."""
        total = 0
        for task in Path(f"/proc/{self.child.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total * 1e-9

    def ask(self, who: str, case: str, calls: int) -> float | None:
        assert self.child.stdin and self.child.stdout
        before = self.processor_seconds()
        self.child.stdin.write(f"{who}\t{case}\t{calls}\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().strip()
        if answer in ("", "-"):
            return None
        return (self.processor_seconds() - before) / calls if self.by_processor else float(answer)

    def contender(self, who: str, case: dict[str, Any]) -> Run | None:
        # The first call makes the operands.
        if self.ask(who, case["name"], 1) is None:
            return None
        return lambda calls: self.ask(who, case["name"], calls) or float("nan")


def stored(case: dict[str, Any], side: str) -> tuple[list[int], str]:
    view = case.get("views", ["", ""])[0 if side == "lhs" else 1]
    shape = list(case[side])
    if view == "T":
        shape.reverse()
    if view == "half":
        shape[0] *= 2
    return shape, view


def viewed(x: Any, view: str) -> Any:
    return {"T": lambda: x.swapaxes(-1, -2), "flip": lambda: x[::-1], "half": lambda: x[::2], "": lambda: x}[view]()


def timed(call: Callable[[], Any], clock: Callable[[], float]) -> Run:
    def run(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls

    return run


def numpy_run(case: dict[str, Any], clock: Callable[[], float]) -> Run | None:
    import numpy as np

    if case.get("mode") or case["dtype"] == "bfloat16":
        return None
    if case["dtype"] not in ("float32", "float64", "complex64", "complex128") and flops(case) > 3e8:
        return None  # Without BLAS it takes seconds to minutes.
    random = np.random.default_rng(1)
    a, b = (viewed((random.random(shape) * 9).astype(case["dtype"]), view) for shape, view in (stored(case, s) for s in ("lhs", "rhs")))
    if case["op"] == "outer":
        out = np.empty((a.size, b.size), a.dtype)
        return timed(lambda: np.outer(a, b, out=out), clock)
    return timed(lambda: np.matmul(a, b), clock)


def torch_run(case: dict[str, Any], clock: Callable[[], float]) -> Run | None:
    import torch

    dtype = getattr(torch, case["dtype"])
    if any(view == "flip" for _, view in (stored(case, s) for s in ("lhs", "rhs"))):
        return None  # It has no negative strides.
    if case["dtype"] == "float16" and flops(case) > 3e9:
        return None  # Without its own instructions it takes twenty seconds a call.
    a, b = (viewed((torch.rand(shape) * 9).to(dtype), view) for shape, view in (stored(case, s) for s in ("lhs", "rhs")))
    product = torch.outer if case["op"] == "outer" else torch.matmul
    try:
        product(a, b)
    except RuntimeError:
        return None
    if not case.get("mode"):
        return timed(lambda: product(a, b), clock)
    a, b = a.requires_grad_(), b.requires_grad_()
    c = product(a, b)
    cotangent = torch.ones_like(c)
    if case["mode"] == "backward":
        return timed(lambda: torch.autograd.grad(c, (a, b), cotangent, retain_graph=True), clock)
    return timed(lambda: torch.autograd.grad(product(a, b), (a, b), cotangent), clock)


def jax_run(case: dict[str, Any], clock: Callable[[], float]) -> Run | None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    if any(view not in ("", "T") for _, view in (stored(case, s) for s in ("lhs", "rhs"))):
        return None  # A view is a copy there.
    key = jax.random.PRNGKey(1)
    views = [stored(case, s)[1] for s in ("lhs", "rhs")]
    a, b = ((jax.random.uniform(key, stored(case, s)[0]) * 9).astype(case["dtype"]) for s in ("lhs", "rhs"))
    inner = jnp.outer if case["op"] == "outer" else jnp.matmul

    def product(a: Any, b: Any) -> Any:
        return inner(viewed(a, views[0]), viewed(b, views[1]))

    cotangent = jnp.ones_like(product(a, b))
    if case.get("mode") == "both":
        call = jax.jit(lambda a, b, g: (lambda c, back: (c, back(g)))(*jax.vjp(product, a, b)))
    elif case.get("mode") == "backward":
        call = jax.jit(lambda a, b, g: jax.vjp(product, a, b)[1](g))
    else:
        return timed(lambda f=jax.jit(product): jax.block_until_ready(f(a, b)), clock)
    return timed(lambda: jax.block_until_ready(call(a, b, cotangent)), clock)


def mkl_run(case: dict[str, Any], clock: Callable[[], float]) -> Run | None:
    import numpy as np

    letter = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}.get(case["dtype"])
    views = [stored(case, s)[1] for s in ("lhs", "rhs")]
    if letter is None or case.get("mode") or case["op"] != "matmul" or not set(views) <= {"", "T"}:
        return None
    if len(case["lhs"]) != 2 or len(case["rhs"]) != 2:
        return None
    found = sorted((VENV / "lib").glob("libmkl_rt.so*"))
    if not found:
        return None
    gemm = getattr(ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL), f"cblas_{letter}gemm")
    random = np.random.default_rng(1)
    a, b = ((random.random(stored(case, s)[0]) * 9).astype(case["dtype"]) for s in ("lhs", "rhs"))
    (m, k), n = case["lhs"], case["rhs"][1]
    c = np.empty((m, n), a.dtype)
    is_complex = letter in "cz"
    one, zero = (np.array(x, a.dtype) for x in (1, 0))
    real = {"s": ctypes.c_float, "d": ctypes.c_double}.get(letter)

    def scalar(x: Any) -> Any:
        return x.ctypes.data_as(ctypes.c_void_p) if is_complex else real(float(x))

    turned = [112 if view == "T" else 111 for view in views]
    integers = [ctypes.c_int(x) for x in (101, *turned, m, n, k)]
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c)]
    lines = [ctypes.c_int(x.shape[1]) for x in (a, b, c)]
    arguments = [*integers, scalar(one), pointers[0], lines[0], pointers[1], lines[1], scalar(zero), pointers[2], lines[2]]
    return timed(lambda keep=(a, b, c, one, zero): gemm(*arguments), clock)


PYTHON = {"NumPy": numpy_run, "PyTorch": torch_run, "JAX": jax_run, "MKL": mkl_run}
RUST = {"gemm": 0, "matrixmultiply": 0, "candle": 1, "faer": 1}  # By program.
PROGRAMS = (
    (["-p", "benches", "--bin", "benches"], ["target/release/benches", "--serve"]),
    (["--manifest-path", "benches/frameworks/Cargo.toml", "--target-dir", "target/frameworks"], ["target/frameworks/release/frameworks"]),
)


def measure(case: dict[str, Any], servings: list[Serving], clock: Callable[[], float]) -> None:
    runs: dict[str, Run | None] = {"bilin": servings[0].contender("bilin", case)}
    runs |= {who: make(case, clock) for who, make in PYTHON.items()}
    runs |= {who: servings[program].contender(who, case) for who, program in RUST.items()}
    ready = {who: run for who, run in runs.items() if run is not None}
    calls = {}
    for who, run in ready.items():
        run(1)
        once = max(run(1), 1e-7)
        calls[who] = max(1, min(100_000, round(SLICE / max(run(max(1, int(1e-3 / once))), 1e-8))))
    times: dict[str, list[float]] = {who: [] for who in ready}
    for _ in range(ROUNDS):
        for who, run in ready.items():
            times[who].append(run(calls[who]))
    ours = times.pop("bilin")
    ratios = {who: statistics.median(t / o for t, o in zip(them, ours)) for who, them in times.items()}
    own = statistics.median(ours)
    best = min(ratios.values(), default=float("nan"))
    cells = " ".join(f"{who} {ratio:.2f}" for who, ratio in ratios.items())
    print(f"| {case['name']} | {own * 1e6:,.2f} µs | {flops(case) / own / 1e9:,.1f} | {best:.2f} | {cells} |", flush=True)


def flops(case: dict[str, Any]) -> float:
    """Multiplications and additions, as the Rust program counts them."""
    import math

    a, b = case["lhs"], case["rhs"]
    passes = {None: 1, "backward": 2, "both": 3}[case.get("mode")]
    factor = 4 if case["dtype"].startswith("complex") else 1
    if case["op"] == "outer":
        return math.prod(a) * math.prod(b) * passes * factor
    rows, columns = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    rank = max(len(a), len(b)) - 2
    x, y = ([1] * (rank + 2 - len(s)) + s[:-2] if len(s) >= 2 else [1] * max(rank, 0) for s in (a, b))
    items = math.prod(max(p, q) for p, q in zip(x, y)) if rank > 0 else 1
    return 2.0 * items * rows * columns * a[-1] * passes * factor


def roofs(serving: Serving) -> None:
    work = {"fma": (32e6, "GFLOP/s, f32 multiply-adds in registers"), "tiles": (655.36e6, "GFLOP/s, bf16 tiles"),
            "read": (64 * 2**20, "GB/s read of 64 MiB"), "copy": (2 * 64 * 2**20, "GB/s copied, read and written, of 64 MiB")}
    for name, (amount, what) in work.items():
        if serving.ask("roof", name, 1) is None:
            continue
        best = min(serving.ask("roof", name, 10) or float("inf") for _ in range(9))
        print(f"- {amount / best / 1e9:,.1f} {what}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="cases whose names hold all of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--roof", action="store_true")
    arguments = parser.parse_args()
    environment(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    if arguments.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    servings = [Serving(build, program, arguments.threads) for build, program in PROGRAMS]
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    print(f"{arguments.threads} thread(s)\n")
    roofs(servings[0])
    if arguments.roof:
        return
    print("| case | ours | GFLOP/s | best peer ÷ ours | peers ÷ ours |\n|---|---|---|---|---|")
    for case in CASES:
        if all(word in case["name"] for word in arguments.words):
            measure(case, servings, clock)


if __name__ == "__main__":
    main()

"""The tape, and training, beside PyTorch and JAX, in one run: ``python3 benches/peers.py``.

Makes a virtual environment of its own under target/peers with torch and jax, builds the release program of the cases, and runs
each case in every engine in turn, round by round. A ratio is the median over rounds of the peer's time / ours, so a drift of the
machine's clock cancels: above 1 we are faster. All run on one thread, in f32.
"""

from __future__ import annotations

import gzip
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "target" / "peers"
CHAIN, WIDE, EPOCHS = 1_000_000, 100_000, 10
DIGITS = ROOT / "crates" / "bilin" / "examples" / "data" / "digits.csv.gz"
ROUNDS = 5
# Case: repeats a round, what the two times are, divisor for a time per node.
CASES = {
    "chain": (1, ("no record", "record", "backward"), CHAIN),
    "wide": (3, ("record", "backward"), WIDE),
    "hvp16": (200, ("gradient", "hvp"), 1),
    "hvp512": (2, ("gradient", "hvp"), 1),
    "digits": (2, ("epoch",), 1),
}


def environment() -> None:
    """Goes on in an environment with the peers."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    have = subprocess.run([python, "-c", "import torch, jax, numpy"], stderr=subprocess.DEVNULL).returncode == 0
    if not have:
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        cpu = subprocess.run([*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cpu"]).returncode == 0
        subprocess.run([*pip, *([] if cpu else ["torch"]), "jax", "numpy"], check=True)
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


class Ours:
    """The release program, fed over a pipe."""

    def __init__(self) -> None:
        subprocess.run(["cargo", "build", "-q", "--release", "-p", "benches", "--bin", "tape"], cwd=ROOT, check=True)
        env = {**os.environ, "BILIN_NUM_THREADS": "1"}
        self.child = subprocess.Popen([ROOT / "target/release/tape"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, case: str, repeats: int) -> list[float]:
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(f"{case} {repeats}\n")
        self.child.stdin.flush()
        return [float(x) for x in self.child.stdout.readline().split()]


class Torch:
    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch

    def __call__(self, case: str, repeats: int) -> list[float]:
        parts = [getattr(self, case)() for _ in range(repeats)]
        return [sum(p) / repeats for p in zip(*parts)]

    def leaf(self) -> Any:
        return self.torch.ones(1, requires_grad=True)

    def chain(self) -> tuple[float, ...]:
        x = self.leaf()
        start = time.perf_counter()
        y = x.detach()
        for _ in range(CHAIN):
            y = -y
        plain, start = time.perf_counter() - start, time.perf_counter()
        y = x
        for _ in range(CHAIN):
            y = -y
        loss = y.sum()
        forward, start = time.perf_counter() - start, time.perf_counter()
        del y
        loss.backward()
        del loss
        return plain, forward, time.perf_counter() - start

    def wide(self) -> tuple[float, float]:
        x = self.leaf()
        start = time.perf_counter()
        every = [-x for _ in range(WIDE)]
        loss = self.torch.cat(every).sum()
        forward, start = time.perf_counter() - start, time.perf_counter()
        del every
        loss.backward()
        del loss
        return forward, time.perf_counter() - start

    def hvp(self, size: int) -> tuple[float, float]:
        torch = self.torch
        torch.manual_seed(1)
        x, a, b, v, w = (torch.randn(size, size) * size**-0.5 for _ in range(5))

        def f(a: Any, b: Any) -> Any:
            return torch.tanh(torch.tanh(x @ a) @ b).sum()

        start = time.perf_counter()
        p = [t.clone().requires_grad_() for t in (a, b)]
        torch.autograd.grad(f(*p), p)
        gradient, start = time.perf_counter() - start, time.perf_counter()
        # Reverse over reverse, eager: what torch.autograd.functional.hvp does.
        p = [t.clone().requires_grad_() for t in (a, b)]
        grads = torch.autograd.grad(f(*p), p, create_graph=True)
        torch.autograd.grad(grads, p, [v, w])
        return gradient, time.perf_counter() - start

    def hvp16(self) -> tuple[float, float]:
        return self.hvp(16)

    def hvp512(self) -> tuple[float, float]:
        return self.hvp(512)

    def digits(self) -> tuple[float]:
        """The example's data, model, optimiser and steps; AdamW in its fastest form here."""
        torch = self.torch
        if not hasattr(self, "data"):
            with gzip.open(DIGITS, "rt") as file:
                rows = torch.tensor([[float(x) for x in line.split(",")] for line in file])
            self.data = (rows[:, :64] / 16).contiguous(), rows[:, 64].long()
        (x, y), split = self.data, len(self.data[0]) * 4 // 5
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.004)
        loss_of, start = torch.nn.functional.cross_entropy, time.perf_counter()
        for _ in range(EPOCHS):
            for rows in torch.randperm(split).split(64):
                loss = loss_of(model(x[rows]), y[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                assert loss.item() < 1e9
            with torch.no_grad():
                logits = model(x[split:])
                loss_of(logits, y[split:]).item()
                logits.argmax(-1).tolist()
        return ((time.perf_counter() - start) / EPOCHS,)


class Jax:
    """Compiled, compilation not counted; it has no tape, so only `hvp` applies."""

    def __init__(self) -> None:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        self.jax, self.made = jax, {}

    def make(self, size: int) -> Any:
        jax, np = self.jax, self.jax.numpy
        x, a, b, v, w = (jax.random.normal(k, (size, size)) * size**-0.5 for k in jax.random.split(jax.random.key(1), 5))

        def f(p: Any) -> Any:
            return np.tanh(np.tanh(x @ p[0]) @ p[1]).sum()

        gradient = jax.jit(jax.value_and_grad(f))
        product = jax.jit(lambda p, v: jax.jvp(jax.grad(f), (p,), (v,))[1])
        jax.block_until_ready((gradient((a, b)), product((a, b), (v, w))))
        return (lambda: gradient((a, b))), (lambda: product((a, b), (v, w)))

    def __call__(self, case: str, repeats: int) -> list[float] | None:
        if not case.startswith("hvp"):
            return None
        if case not in self.made:
            self.made[case] = self.make(int(case[3:]))
        out = []
        for run in self.made[case]:
            start = time.perf_counter()
            for _ in range(repeats):
                self.jax.block_until_ready(run())
            out.append((time.perf_counter() - start) / repeats)
        return out


def main() -> None:
    environment()
    engines = {"bilin": Ours(), "torch": Torch(), "jax": Jax()}
    chosen = sys.argv[1:] or list(CASES)
    print("| case | part | bilin | " + " | ".join(f"{n} ÷ bilin" for n in list(engines)[1:]) + " |\n|---|---|---|---|---|")
    for case in chosen:
        repeats, parts, nodes = CASES[case]
        times: dict[str, list[list[float]]] = {name: [] for name in engines}
        for turn in range(ROUNDS + 1):
            for name, run in engines.items():
                took = run(case, repeats)
                # The first round warms up.
                if turn and took:
                    times[name].append(took)
        for i, part in enumerate(parts):
            ours = [t[i] for t in times["bilin"]]
            unit = f"{statistics.median(ours) / nodes * 1e9:,.0f} ns a node" if nodes > 1 else f"{statistics.median(ours) * 1e6:,.1f} µs"
            ratios = [
                f"{statistics.median(t[i] / o for t, o in zip(times[name], ours)):.2f}" if times[name] else "–"
                for name in list(engines)[1:]
            ]
            print(f"| {case} | {part} | {unit} | {' | '.join(ratios)} |", flush=True)
        if case == "chain":
            # A node is one op forward and one backward; what the tape adds is the time beyond two ops without it.
            def tape(t: list[float]) -> float:
                return t[1] + t[2] - 2 * t[0]

            own = [tape(t) for t in times["bilin"]]
            ratio = statistics.median(tape(t) / o for t, o in zip(times["torch"], own))
            print(f"| {case} | tape | {statistics.median(own) / nodes * 1e9:,.0f} ns a node | {ratio:.2f} | – |", flush=True)
        if case.startswith("hvp"):
            own = [t[1] / t[0] for t in times["bilin"]]
            print(f"| {case} | hvp ÷ gradient | {statistics.median(own):.2f} | | |", flush=True)


if __name__ == "__main__":
    main()

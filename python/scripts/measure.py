"""Size of the package, times of import and of small calls, scaling over threads: python python/scripts/measure.py"""

import hashlib
import os
import pathlib
import subprocess
import sys
import threading
import time
import timeit

import numpy as np

import bilin as bl


def best(statement, number=1000, **names):
    """Microseconds of the fastest of many short rounds: on a busy machine some of them are undisturbed."""
    return min(timeit.repeat(statement, globals={"bl": bl, **names}, number=number, repeat=60)) / number * 1e6


def import_seconds():
    """What `import bilin` takes beyond `import numpy`, fastest of several processes."""
    code = "import time, numpy; t = time.perf_counter(); import bilin; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout) for _ in range(9))


def package_bytes():
    """Bytes of the installed package; the wheel is smaller, it is compressed."""
    return sum(f.stat().st_size for f in pathlib.Path(bl.__file__).parent.rglob("*") if f.suffix != ".pyc" and f.is_file())


def scaling(work, threads):
    """Work done in a second by so many threads of Python, over that of one; the best of several rounds of both."""

    def rate(count):
        done = [0] * count
        begun, until = threading.Barrier(count), time.perf_counter() + 0.4

        def run(i):
            begun.wait()
            while time.perf_counter() < until:
                work()
                done[i] += 1

        all_of_them = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        [t.start() for t in all_of_them]
        [t.join() for t in all_of_them]
        return sum(done)

    one, many = (max(rounds) for rounds in zip(*[(rate(1), rate(threads)) for _ in range(7)]))
    return many / one


def main():
    a, b = bl.asarray([[1.0, 2.0], [3.0, 4.0]]), bl.asarray([[5.0, 6.0], [7.0, 8.0]])
    x = bl.asarray([[1.0, 2.0], [3.0, 4.0]]).requires_grad_()
    n, m = np.ones((2, 2), "float32"), np.ones((2, 2), "float32")
    g = bl.ones((2, 2))

    print(f"load of the machine      {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"package                  {package_bytes() / 1e6:.1f} MB")
    print(f"import beyond NumPy      {import_seconds():.3f} s")
    print(f"2×2 bl.matmul            {best('bl.matmul(a, b)', a=a, b=b):.2f} µs")
    print(f"2×2 a @ b                {best('a @ b', a=a, b=b):.2f} µs    NumPy's {best('a @ b', a=n, b=m):.2f} µs")
    print(f"2×2 forward, backward    {best('bl.matmul(x, b).backward(g)', x=x, b=b, g=g):.2f} µs")
    big = bl.ones((1024, 1024))
    numpys = np.ones((1024, 1024), "float32")
    print(f"1024³ a @ b              {best('x @ x', 1, x=big) / 1000:.1f} ms    NumPy's {best('x @ x', 1, x=numpys) / 1000:.1f} ms")
    print(f"asarray of 4 MiB         {best('bl.asarray(x)', 1, x=numpys) / 1000:.2f} ms")

    # One thread of the engine for each of Python's.
    bl.set_num_threads(1)
    y = bl.ones((256, 256)).requires_grad_()
    loss = (y @ y).sum()
    cores = os.cpu_count() or 1
    works = {
        "products": lambda: bl.matmul(y.detach(), y.detach()),
        "backward passes": lambda: loss.backward(retain_graph=True),
        "SHA-256, what the machine gives": lambda data=bytes(1 << 22): hashlib.sha256(data),
    }
    for name, work in works.items():
        print(f"{cores} threads of Python      {scaling(work, cores):.2f} times the rate of one: {name}")


if __name__ == "__main__":
    main()

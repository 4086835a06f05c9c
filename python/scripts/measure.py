"""Times of import and of small calls: python python/scripts/measure.py"""

import subprocess
import sys
import time
import timeit

import numpy as np

import bilin as bl


def best(statement, number, **names):
    """Microseconds of the fastest of several rounds."""
    return min(timeit.repeat(statement, globals={"bl": bl, **names}, number=number, repeat=9)) / number * 1e6


def import_seconds():
    """What `import bilin` takes beyond `import numpy`, fastest of several processes."""
    code = "import time, numpy; t = time.perf_counter(); import bilin; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout) for _ in range(7))


def main():
    a, b = bl.asarray([[1.0, 2.0], [3.0, 4.0]]), bl.asarray([[5.0, 6.0], [7.0, 8.0]])
    x = bl.asarray([[1.0, 2.0], [3.0, 4.0]]).requires_grad_()
    n, m = np.ones((2, 2), "float32"), np.ones((2, 2), "float32")
    g = bl.ones((2, 2))

    print(f"import beyond NumPy      {import_seconds():.3f} s")
    print(f"2×2 bl.matmul            {best('bl.matmul(a, b)', 20000, a=a, b=b):.2f} µs")
    print(f"2×2 a @ b                {best('a @ b', 20000, a=a, b=b):.2f} µs    NumPy's {best('a @ b', 20000, a=n, b=m):.2f} µs")
    print(f"2×2 forward, backward    {best('bl.matmul(x, b).backward(g)', 5000, x=x, b=b, g=g):.2f} µs")
    big = bl.ones((1024, 1024))
    numpys = np.ones((1024, 1024), "float32")
    print(f"1024³ a @ b              {best('x @ x', 3, x=big) / 1000:.1f} ms    NumPy's {best('x @ x', 3, x=numpys) / 1000:.1f} ms")
    started = time.perf_counter()
    bl.asarray(numpys)
    print(f"asarray of 4 MiB         {(time.perf_counter() - started) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()

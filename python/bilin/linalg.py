"""The linear algebra of the array API that is products."""

from ._bilin import matmul, outer, tensordot, vecdot

__all__ = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot", "diagonal"]


def __getattr__(name: str) -> object:
    import bilin

    if name in ("matrix_transpose", "diagonal"):
        return getattr(bilin, name)
    raise AttributeError(f"module 'bilin.linalg' has no attribute '{name}'")

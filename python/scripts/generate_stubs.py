"""Writes bilin/_bilin.pyi and bilin/__init__.pyi from the module, the registry of ops and the tables below.

    python python/scripts/generate_stubs.py            writes
    python python/scripts/generate_stubs.py --check    says whether they are up to date
"""

from __future__ import annotations

import inspect
import pathlib
import re
import sys
from typing import Any

import bilin
from bilin import _bilin

HERE = pathlib.Path(__file__).parents[1] / "bilin"

HEAD = '''"""Written by generate_stubs.py."""

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType, ModuleType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

# `bool` is a dtype here.
_Truth: TypeAlias = builtins.bool
'''

ALIASES = '''
ArrayLike: TypeAlias = Tensor | npt.ArrayLike
DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]
Axes: TypeAlias = int | Sequence[int] | None
Key: TypeAlias = int | slice | EllipsisType | None | ArrayLike | tuple[int | slice | EllipsisType | None | ArrayLike, ...]
Params: TypeAlias = Tensor | Iterable[Tensor]
'''

# The type of an argument by its name; others are array-like.
ARGUMENTS = {
    "dtype": "DTypeLike", "out_dtype": "DTypeLike | None", "device": "str | None", "copy": "bool | None", "precision": "str | None",
    "optimize": "object", "axes": "Axes", "axis": "int | None", "keepdim": "bool", "keepdims": "bool", "start": "int", "len": "int",
    "shape": "int | Sequence[int]", "hook": "Callable[[Tensor], Any]", "retain_graph": "bool | None", "create_graph": "bool | None",
    "allow_unused": "bool | None", "grad_outputs": "ArrayLike | Sequence[ArrayLike | None] | None", "tensors": "Tensor | Sequence[Tensor]",
    "grad_tensors": "ArrayLike | Sequence[ArrayLike | None] | None", "outputs": "Tensor | Sequence[Tensor]", "inputs": "Tensor | Sequence[Tensor]",
    "gradient": "ArrayLike | None", "requires_grad": "bool | None", "stream": "None", "params": "Params", "max_norm": "float",
    "norm_type": "float | None", "error_if_nonfinite": "bool | None", "lr": "float | None", "momentum": "float | None",
    "weight_decay": "float | None", "betas": "tuple[float, float] | None", "eps": "float | None", "state": "Mapping[str, Any]",
    "init_scale": "float | None", "growth_factor": "float | None", "backoff_factor": "float | None", "growth_interval": "int | None",
    "enabled": "bool | None", "optimizer": "Any", "new_scale": "float | None", "seed": "int", "n": "int", "name": "str",
    "schema": "OpSchema", "limit_bytes": "int | None", "on": "bool", "path": "str | os.PathLike[str]", "value": "ArrayLike", "memo": "Any",
    "_raised": "object", "chunks": "int", "offset": "int", "axis1": "int", "axis2": "int", "before": "int", "length": "int", "step": "int",
    "scalar": "float", "indices": "ArrayLike", "targets": "ArrayLike", "conj": "bool", "lens": "Sequence[int]",
}  # fmt: skip

# The type of a result by name; others are tensors.
RESULTS = {
    "einsum_path": "EinsumPath", "result_type": "DType", "op_lookup": "OpSchema | None", "op_registry_all": "list[OpSchema]",
    "schema_hash": "int", "is_grad_enabled": "bool", "is_autocast_enabled": "bool", "is_detecting_anomaly": "bool",
    "autocast_dtype": "DType | None", "devices": "list[dict[str, Any]]", "memory_stats": "dict[str, int]",
    "reset_peak_memory_stats": "None", "set_memory_limit": "None", "set_num_threads": "None", "get_num_threads": "int",
    "use_deterministic_algorithms": "None", "are_deterministic_algorithms_enabled": "bool", "load": "Any", "save": "None",
    "backward": "None", "grad": "tuple[Tensor, ...]",
    # properties and methods of classes
    "shape": "tuple[int, ...]", "strides": "tuple[int, ...]", "ndim": "int", "size": "int", "nbytes": "int", "dtype": "DType", "device": "str",
    "is_contiguous": "bool", "_version": "int", "item": "Any", "tolist": "Any", "numpy": "npt.NDArray[Any]", "requires_grad": "bool",
    "is_leaf": "bool", "Tensor.grad": "Any", "zero_grad": "None", "retain_grad": "None", "grad_fn": "Node | None", "register_hook": "HookHandle",
    "register_post_accumulate_grad_hook": "HookHandle", "grad_dtype": "DType", "fill_": "Self", "copy_": "Self", "zero_": "Self",
    "requires_grad_": "Self", "name": "str", "itemsize": "int", "kind": "str", "DType.dtype": "np.dtype[Any]", "version": "int",
    "amp_policy": "str", "deterministic": "bool", "determinism_note": "str", "arity": "str", "hash": "int", "schema": "OpSchema",
    "inputs": "list[Node | str | None]", "apply": "list[Tensor | None]", "apply_for_graph": "list[Tensor | None]", "remove": "None",
    "to_dot": "str", "to_svg": "str", "step": "bool", "SGD.step": "None", "AdamW.step": "None", "state_dict": "dict[str, Tensor]",
    "load_state_dict": "None", "params": "list[Tensor]", "lr": "float", "scale": "Any", "unscale_": "None", "update": "None",
    "get_scale": "float", "is_enabled": "bool", "get_growth_tracker": "int", "Op.params": "list[str]",
}  # fmt: skip

OPERATORS = """    def __init__(self, obj: ArrayLike, dtype: DTypeLike | None = None, device: str | None = None) -> None: ...
    def __getitem__(self, key: Key) -> Tensor: ...
    def __setitem__(self, key: Key, value: ArrayLike) -> None: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __format__(self, spec: str, /) -> str: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType: ...
    __array_ufunc__: None
"""
for _name in ("matmul", "add", "sub", "mul", "truediv", "pow", "and", "or", "xor"):
    OPERATORS += f"    def __{_name}__(self, other: ArrayLike) -> Tensor: ...\n    def __r{_name}__(self, other: ArrayLike) -> Tensor: ...\n"
for _name in ("matmul", "add", "sub", "mul", "truediv"):
    OPERATORS += f"    def __i{_name}__(self, other: ArrayLike) -> Self: ...\n"
for _name in ("eq", "ne"):
    OPERATORS += f"    def __{_name}__(self, other: object) -> Tensor: ...  # type: ignore[override]\n"
for _name in ("lt", "le", "gt", "ge"):
    OPERATORS += f"    def __{_name}__(self, other: ArrayLike) -> Tensor: ...\n"
for _name in ("neg", "pos", "abs", "invert"):
    OPERATORS += f"    def __{_name}__(self) -> Tensor: ...\n"


def result(name: str, owner: str = "") -> str:
    return RESULTS.get(f"{owner}.{name}") or RESULTS.get(name, "Tensor")


def parameters(f: Any) -> str:
    out: list[str] = []
    positional = False
    all = list(inspect.signature(f).parameters.values())
    for i, p in enumerate(all):
        kind, text = p.kind, p.name
        if p.name in ("self", "slf", "$self"):
            continue
        if kind is p.KEYWORD_ONLY and not any("*" in o for o in out):
            out.append("*")
        annotation = ARGUMENTS.get(p.name, "ArrayLike")
        if kind is p.VAR_POSITIONAL:
            text = f"*{text}: {'Any' if p.name not in ('shape', 'axes') else 'int | Sequence[int]'}"
        elif p.default is p.empty:
            text += f": {annotation}"
        else:
            optional = annotation if "None" in annotation or p.default is not None else f"{annotation} | None"
            text += f": {optional} = ..."
        out.append(text)
        positional |= kind is p.POSITIONAL_ONLY
        if positional and (i + 1 == len(all) or all[i + 1].kind is not p.POSITIONAL_ONLY):
            out.append("/")
            positional = False
    return ", ".join(out)


def op(entry: Any) -> str:
    arity = entry.schema.arity
    operands = entry.operands
    if arity.isdigit():
        out = [f"{o}: ArrayLike" for o in operands] + ["/"]
        out += [f"{p}: {ARGUMENTS.get(p, 'Any')} = ..." for p in entry.params]
        out += ["*more: int"] if list(entry.params) == ["axes"] else []
    else:
        out = ["*operands: ArrayLike"] + [f"{p}: {ARGUMENTS.get(p, 'Any')} = ..." for p in entry.params]
    aliases = [a for a in (("axis", "dim") if "axes" in entry.params else ("dim",) if "axis" in entry.params else ())]
    aliases += ["keepdims"] if "keepdim" in entry.params else []
    if aliases:
        out += ([] if not arity.isdigit() or "*more: int" in out else ["*"]) + [f"{a}: {'bool' if a == 'keepdims' else 'Axes'} = ..." for a in aliases]
    return ", ".join(out)


def doc(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0].replace("\\", "") if inspect.getdoc(thing) else ""


def function(name: str, args: str, gives: str, text: str, indent: str = "") -> str:
    body = f'\n{indent}    """{text}"""\n' if text else " ...\n"
    return f"{indent}def {name}({args}) -> {gives}:{body}"


def class_(cls: type) -> str:
    name = cls.__name__
    out = [f"class {name}:\n" + (f'    """{doc(cls)}"""\n' if doc(cls) else "")]
    if cls is bilin.Tensor:
        out.append(OPERATORS)
    elif cls.__text_signature__ is not None and name not in ("_Profile",):
        out.append(f"    def __init__(self, {parameters(cls)}) -> None: ...\n")
    if name == "HookHandle":
        out.append("    def __enter__(self) -> Self: ...\n    def __exit__(self, *raised: object) -> None: ...\n")
    for key, value in sorted(vars(cls).items()):
        if key.startswith("__") or (key.startswith("_") and key != "_version"):
            continue
        if inspect.isgetsetdescriptor(value):
            out.append(f"    @property\n{function(key, 'self', result(key, name), doc(value), '    ')}")
            if key in ("requires_grad", "grad", "grad_dtype", "lr"):
                type_ = {"requires_grad": "bool", "grad": "ArrayLike | None", "grad_dtype": "DTypeLike", "lr": "float"}[key]
                out.append(f"    @{key}.setter\n    def {key}(self, value: {type_}) -> None: ...\n")
        elif isinstance(value, _bilin.Op):
            args = op(value).split(", ")[1:] if value.schema.arity.isdigit() else op(value).split(", ")
            args = args[1:] if args and args[0] == "/" else args
            out.append(function(key, ", ".join(["self", *(a for a in args)]), "Tensor", doc(value), "    "))
        elif inspect.isfunction(value):
            out.append(function(key, f"self, {annotated(value)}".rstrip(", "), result(key, name), doc(value), "    "))
        else:
            out.append(function(key, f"self, {parameters(value)}".rstrip(", "), result(key, name), doc(value), "    "))
    if len(out) == 1 and not doc(cls):
        out.append("    ...\n")
    return "".join(out)


def extension() -> str:
    out = [HEAD, ALIASES]
    for name, value in sorted(vars(_bilin).items()):
        if inspect.isclass(value) and name != "_Profile":
            out.append("\n" + class_(value))
    out.append("\n")
    for name, value in sorted(vars(_bilin).items()):
        if isinstance(value, bilin.DType):
            out.append(f"{name}: DType\n")
        elif inspect.isbuiltin(value):
            private = name.startswith("_")
            out.append(function(name, "*args: Any, **kwargs: Any" if private else parameters(value), "Any" if private else result(name), doc(value)))
    return truths("".join(out))


def truths(text: str) -> str:
    return re.sub(r"(?<=[:>|,] )bool\b|(?<=\[)bool\b", "_Truth", text)


MADE = {"no_grad", "enable_grad", "set_grad_enabled"}


def package() -> str:
    out = [HEAD, "\nfrom . import amp, autograd, errors, func, linalg, optim, profiler\n"]
    native = sorted(n for n in vars(bilin) if not n.startswith("_") and n in vars(_bilin) and vars(bilin)[n] is vars(_bilin)[n])
    out.append("from ._bilin import (\n" + "".join(f"    {n} as {n},\n" for n in ["ArrayLike", "Axes", "DTypeLike", *native]) + ")\n")
    out.append("from ._modes import enable_grad as enable_grad, no_grad as no_grad, set_grad_enabled as set_grad_enabled\n")
    out.append("from .errors import *\n\n")
    out.append("__version__: str\n__array_api_version__: str\ne: float\ninf: float\nnan: float\npi: float\nnewaxis: None\nops: Any\n")
    out.append("\nclass EinsumPath(NamedTuple):\n    steps: list[tuple[int, int]]\n    flops: int\n    peak_elements: int\n\n")
    for name, value in sorted(vars(bilin).items()):
        if name.startswith("_") or name in native or name in MADE or inspect.ismodule(value):
            continue
        if isinstance(value, _bilin.Op):
            out.append(function(name, op(value), "Tensor", doc(value)))
        elif inspect.isfunction(value) and value.__module__ == "bilin":
            hints = value.__annotations__
            gives = {"Tensor": "Tensor", "_bool": "bool", "list[Tensor]": "list[Tensor]", "EinsumPath": "EinsumPath"}.get(str(hints.get("return")), "Any")
            out.append(function(name, annotated(value), gives, doc(value)))
    return truths("".join(out))


def annotated(f: Any) -> str:
    """The parameters of a function of Python; names without a type of their own are array-like."""
    text = parameters(f)
    for name, type_ in {
        "start": "float", "stop": "float", "step": "float", "num": "int", "endpoint": "bool", "n_rows": "int", "n_cols": "int | None", "k": "int",
        "kind": "Any", "type": "Any", "from_": "Any", "to": "Any", "subscripts": "str", "fill_value": "complex", "requires_grad": "bool",
        "tensors": "Sequence[ArrayLike]", "axis": "Axes" if f.__name__ in ("sum", "mean", "max", "min", "all", "any") else "int | None",
    }.items():  # fmt: skip
        parts = []
        for p in text.split(", "):
            own, colon, rest = p.partition(": ")
            parts.append(f"{own}: {type_}{' = ...' if rest.endswith('= ...') else ''}" if own == name and colon else p)
        text = ", ".join(parts)
    return text


def main() -> None:
    stale = []
    for name, text in (("_bilin.pyi", extension()), ("__init__.pyi", package())):
        path = HERE / name
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    if stale:
        sys.exit(f"generate_stubs: {', '.join(stale)} differ from the module; run generate_stubs.py")


if __name__ == "__main__":
    main()

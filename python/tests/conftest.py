import pathlib
import tomllib

import pytest

NUMPYS = tomllib.loads((pathlib.Path(__file__).parent / "expected_failures.toml").read_text())


def pytest_configure(config):
    for marker in ("thread_unsafe", "slow", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{marker}: NumPy's")


def pytest_collection_modifyitems(items):
    unknown = {(name, reason) for reason, names in NUMPYS.items() for name in names}
    for item in items:
        if item.path.name == "test_numpys_own.py":
            name = item.nodeid.split("::", 1)[1]
            for entry in [e for e in unknown if e[0] == name]:
                item.add_marker(pytest.mark.xfail(strict=True, reason=entry[1]))
                unknown.remove(entry)

"""Which part of the library imports which; ARCHITECTURE.md says why."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollferry

SOURCE = Path(rollferry.__file__).parent
EVERYWHERE = {"errors", "refs", "schema", "checks", "timings"}  # importable by all
PUBLIC = "the public API"

#: Part -> the parts that it may import besides itself and those importable everywhere.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "refs": set(),
    "schema": set(),
    "schemas": {"schema"},
    "checks": set(),
    "timings": set(),
    "memory": {"_native"},
    "layouts": {"memory", "_native"},
    "engines": {"memory", "_native"},
    "bundle": {"layouts", "engines.accounts", "engines.base", "memory", "_native"},
    "explain": {"bundle", "layouts", "memory"},
    "metrics": {"engines.base"},
    "packed": {"layouts"},
    "ferry": {"bundle", "engines.base", "engines.registry", "explain", "metrics", "packed"},
    "doctor": {PUBLIC, "engines.registry", "ferry", "testing", "_native"},
    "cli": {PUBLIC, "bench", "demo", "doctor", "files"},
    "bench": {PUBLIC, "_native", "files", "testing"},
    "demo": {PUBLIC},
    "files": set(),
    "integrations": {PUBLIC},
    "_native": {"memory"},  # its types
}
OPEN = {"", "testing"}  # the package itself, which gathers names, and tools for tests


def part_of(module: str) -> str:
    """The part that a module, named without the package, belongs to."""
    return module.partition(".")[0]


def modules() -> Iterator[tuple[str, Path]]:
    """Every module, named without the package, and its file."""
    for path in [*SOURCE.rglob("*.py"), *SOURCE.glob("*.pyi")]:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> Iterator[str]:
    """What a file imports of the package, anywhere in it: modules, named without the package, or names of the API."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            whole = node.module == "rollferry"
            found = [f"rollferry.{alias.name}" for alias in node.names] if whole else [str(node.module)]
        else:
            continue
        yield from (name.removeprefix("rollferry").lstrip(".") for name in found if part_of(name) == "rollferry")


def is_allowed(own: str, name: str) -> bool:
    """Whether a part may import a module or a name of the API."""
    allowed = ALLOWED[own]
    if PUBLIC in allowed and (name == "" or name in rollferry.__all__ or name == "__version__"):
        return True
    part = part_of(name)
    return part == own or part in EVERYWHERE - {own} and own not in EVERYWHERE or part in allowed or name in allowed


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_imports_only_what_it_may(module: str, path: Path) -> None:
    own = part_of(module)
    if own not in OPEN:
        assert own in ALLOWED, f"{own} is new: say here what it may import"
        wrong = [name for name in imports(path) if not is_allowed(own, name)]
        assert wrong == [] or (own in EVERYWHERE and all(part_of(name) == "errors" for name in wrong)), wrong


def test_no_part_is_gone() -> None:
    parts = {part_of(module) for module, _ in modules()}
    assert parts - OPEN <= set(ALLOWED)
    assert {"memory", "layouts", "engines", "bundle", "ferry"} <= parts


def test_import_is_light() -> None:
    heavy = [
        "torch",
        "PIL",
        "tensordict",
        "matplotlib",
        "pandas",
        "pytest",
        "hypothesis",
        "ray",
        "mooncake",
        "typer",
        "prometheus_client",
    ]
    code = f"import sys, rollferry; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

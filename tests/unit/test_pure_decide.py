"""Issue 12.3: what `decide` reaches can neither wait, nor ask the time or the API server, nor draw a number."""

from __future__ import annotations

import ast
import functools
from collections import deque
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
FORBIDDEN = frozenset({
    "asyncio", "aiohttp", "uvloop", "muster.kube.client", "time", "random", "secrets",
    "socket", "ssl", "subprocess", "threading", "multiprocessing", "os", "tempfile", "shutil",
})  # fmt: skip
CLOCKS = frozenset({"now", "utcnow", "today"})
DECIDES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in (SOURCE / "muster").rglob("decide.py")
)


@functools.cache
def graph() -> grimp.ImportGraph:
    """Not built while tests are collected, which each test process does."""
    return grimp.build_graph(
        "muster", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )  # fmt: skip


def reached_from(start: str) -> dict[str, str]:
    """Every module that `start` imports, itself or by way of others, with the module that imports it."""
    by, waiting = {start: ""}, deque([start])
    while waiting:
        module = waiting.popleft()
        for imported in sorted(graph().find_modules_directly_imported_by(module)):
            if imported not in by:
                by[imported] = module
                if imported.startswith("muster."):
                    waiting.append(imported)
    return by


def way_to(module: str, by: dict[str, str]) -> str:
    steps = []
    while module:
        steps.append(module)
        module = by[module]
    return " <- ".join(steps)


def source_of(module: str) -> str:
    file = SOURCE.joinpath(*module.split("."))
    return (file / "__init__.py" if file.is_dir() else file.with_suffix(".py")).read_text()


def clocks_read(module: str) -> list[int]:
    """The lines that call `datetime.now()`, `date.today()` and the like."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source_of(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCKS
        and ast.unparse(node.func.value).rpartition(".")[2] in {"datetime", "date"}
    ]


def test_every_domain_is_looked_at() -> None:
    domains = {module.split(".")[-2] for module in DECIDES}
    assert domains >= {
        "scheduler", "trainingjobs", "teams", "balloons", "joins", "scaling", "preflight", "remediation"
    }  # fmt: skip


@pytest.mark.parametrize("decide", DECIDES)
def test_nothing_impure_is_reached(decide: str) -> None:
    by = reached_from(decide)
    assert [way_to(module, by) for module in sorted(FORBIDDEN & by.keys())] == []


@pytest.mark.parametrize("decide", DECIDES)
def test_no_clock_is_read(decide: str) -> None:
    ours = [module for module in reached_from(decide) if module.startswith("muster.")]
    assert [f"{module}:{line}" for module in ours for line in clocks_read(module)] == []

"""docs/upstream.md and the scenarios named after reports elsewhere say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| `[\w-]+/[\w-]+#(\d+)` \| .+ \| .+ \| `(test_\w+)` \|$", re.MULTILINE)


def scenarios() -> dict[str, str]:
    """Tests on both API servers whose name ends with a report's number: what their docstring says.

    The page is about schedulers, so those about networks are not among them.
    """
    found = {}
    for file in (ROOT / "tests/scenarios").rglob("test_*.py"):
        if "network" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and re.fullmatch(r"test_\w+_\d{3,}", node.name):
                found[node.name] = ast.get_docstring(node) or ""
    return found


@pytest.mark.slow
def test_the_page_names_every_scenario_and_no_other() -> None:
    rows = _ROW.findall((ROOT / "docs/upstream.md").read_text())
    assert {name for _, name in rows} == scenarios().keys()
    assert all(name.endswith(f"_{number}") for number, name in rows)


@pytest.mark.slow
def test_each_scenario_says_in_one_line_what_happens_there_and_here() -> None:
    wrong = {name for name, said in scenarios().items() if not re.fullmatch(r"[\w ]+: .+\. Ours: .+\.", said)}
    assert wrong == set()

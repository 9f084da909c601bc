"""Issue 12.1: folders say what is inside, the architecture page maps them, and imports form no cycle."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"muster": ROOT / "src", "fuzz": ROOT}
FOLDERS = sorted(
    file.parent
    for name, base in PACKAGES.items()
    for file in (base / name).rglob("__init__.py")
    if "__pycache__" not in file.parts
)


ROLES = ("cache", "snapshot", "decide", "plan", "executor", "controller", "config", "metrics")
DOMAINS = {
    "doctor/block": {"cache", "snapshot", "plan", "executor", "config"},
    "fleet/balloons": {"executor"},
    "fleet/joins": {"cache", "executor"},
    "fleet/preflight": {"executor"},
    "fleet/remediation": set(),
    "fleet/scaling": {"cache"},
    "network/uplink": {"executor"},
    "scheduler": {"cache", "executor"},
    "teams": {"snapshot"},
    "trainingjobs": {"config"},
}
"""Each domain with a controller, and the roles that have no file there; ARCHITECTURE says why."""


def name_of(folder: Path) -> str:
    """The folder as the map writes it: `scheduler/queue/`, `fuzz/health/`."""
    path = folder.relative_to(ROOT).as_posix()
    return path.removeprefix("src/").removeprefix("muster/") + "/"


def mapped() -> list[str]:
    """Folders that the map of the architecture page names, in its order."""
    page = (ROOT / "docs/dev/ARCHITECTURE.md").read_text()
    section = page.partition("\n## Map\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+/)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_folder_says_what_is_inside(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert said, f"{folder}/__init__.py has no docstring"


def test_map_names_every_folder_once_and_none_that_does_not_exist() -> None:
    names = mapped()
    assert len(names) == len(set(names))
    assert set(names) == {name_of(folder) for folder in FOLDERS} - {"muster/"}


def test_every_path_of_where_to_change_exists() -> None:
    page = (ROOT / "docs/dev/ARCHITECTURE.md").read_text()
    section = page.partition("\n## Where do I change ...?\n")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w./-]+/[\w./-]*)`", section)
    assert len(paths) >= 20
    bases = (ROOT / "src/muster", ROOT)
    assert [path for path in paths if not any((base / path).exists() for base in bases)] == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_role_has_the_same_file_name_in_every_domain(domain: str) -> None:
    folder = ROOT / "src/muster" / domain
    assert {role for role in ROLES if not (folder / f"{role}.py").exists()} == DOMAINS[domain]


def test_every_controller_is_in_a_domain_of_the_table() -> None:
    found = {file.parent.relative_to(ROOT / "src/muster").as_posix() for file in (ROOT / "src").rglob("decide.py")}
    # These have no controller: they decide what findings mean, for a command, or about requests.
    assert found - DOMAINS.keys() == {"fleet/health", "network/plan", "telemetry/guard"}


def on_cycles(graph: grimp.ImportGraph) -> list[str]:
    """Modules that import themselves by way of others."""
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    # What is left lies on a cycle, or imports what does.
    return sorted(module for module in left if module in reached(module, left))


def reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    """What a module imports, at first hand or by way of others."""
    found: set[str] = set()
    todo = [module]
    while todo:
        news = (imports[todo.pop()] & imports.keys()) - found
        found |= news
        todo += news
    return found


@pytest.mark.parametrize("at_run_time", [True, False])
def test_no_module_imports_itself_by_way_of_others(at_run_time: bool) -> None:
    """Neither at run time, nor with the imports for type checkers alone."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=at_run_time, cache_dir=None)
    assert on_cycles(graph) == []

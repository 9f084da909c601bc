"""How tests are handed out: named files exist, units stay together, and each process gets the units it should."""

from __future__ import annotations

from types import SimpleNamespace

from tests.conftest import ByFile
from tests.support.handingout import (
    LONG,
    ON_REAL,
    REAL,
    REAL_PROCESSES,
    TESTS,
    TOGETHER,
    handed_out_with,
    longest_first,
    next_unit,
)


def test_every_file_that_is_named_is_there() -> None:
    files = {*TOGETHER, *ON_REAL, *(name.removesuffix(REAL) for name in LONG)} - set(TOGETHER.values())
    assert [name for name in sorted(files) if not (TESTS.parent / name).is_file()] == []


def test_files_that_share_a_cluster_are_handed_out_as_one() -> None:
    installed, shadow = (f"tests/scenarios/deploy/test_{name}.py" for name in ("installed", "shadow"))
    assert handed_out_with(f"{installed}::test_a[b::c]") == handed_out_with(f"{shadow}::test_d")
    assert handed_out_with("tests/scenarios/deploy/test_pools.py::test_a") != handed_out_with(f"{shadow}::test_d")


def test_runs_on_a_real_api_server_are_a_unit_of_their_own() -> None:
    file = "tests/scenarios/fleet/test_joins.py"
    assert handed_out_with(f"{file}::test_a[embedded]") == handed_out_with(f"{file}::test_b[x-embedded]") == file
    assert handed_out_with(f"{file}::test_a[real]") == handed_out_with(f"{file}::test_b[real-x]") == file + REAL
    assert handed_out_with(f"{file}::test_a[unreal]") == file
    assert {handed_out_with(f"{file}::test_a") for file in ON_REAL} == {file + REAL for file in ON_REAL}


def test_few_processes_begin_with_units_for_the_real_api_server() -> None:
    units = ["long", f"long{REAL}", f"short{REAL}", "short", "unit"]
    got = [next_unit(process, units) for process in range(REAL_PROCESSES + 2)]
    assert got == ["unit", *[f"long{REAL}"] * REAL_PROCESSES, "long"]


def test_each_process_takes_any_unit_before_it_ends() -> None:
    assert next_unit(REAL_PROCESSES + 1, [f"long{REAL}", f"short{REAL}"]) == f"long{REAL}"
    assert next_unit(1, ["long", "unit"]) == "long"


class Worker:
    """A process of pytest-xdist, as its scheduler sees it."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.given: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [COLLECTED[index] for index in indices]


COLLECTED = [f"tests/{name}.py::test_a" for name in ("longest", "long", "short", "shortest")]


def test_one_process_begins_with_what_the_others_would_end_with() -> None:
    scheduler = ByFile(SimpleNamespace(getvalue=lambda name: ["2*popen"]))
    scheduler.workqueue.update({name.partition("::")[0]: {name: False} for name in COLLECTED})
    first, second = Worker(0), Worker(1)
    scheduler.registered_collections.update({first: COLLECTED, second: COLLECTED})
    for worker in (first, second, first, second):
        scheduler._assign_work_unit(worker)
    assert [name.partition("::")[0] for name in first.given] == ["tests/shortest.py", "tests/short.py"]
    assert [name.partition("::")[0] for name in second.given] == ["tests/longest.py", "tests/long.py"]


def test_cpu_bound_files_come_last() -> None:
    files = ("sim/test_many.py", "unit/test_docs.py", "scenarios/kube/test_client.py", "system/test_cli_demo.py")
    items = [
        SimpleNamespace(path=TESTS / name, nodeid=f"tests/{name}::test_a", get_closest_marker=lambda name: None)
        for name in files
    ]
    longest_first(items)  # type: ignore[arg-type]
    assert [item.path.parent.name for item in items] == ["system", "kube", "unit", "sim"]

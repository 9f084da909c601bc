"""Sizes of kernel tables: set from the plan, restored at the end, and never fought over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.configtext import ConfigTextError
from muster.network.agent.part import HostPaths
from muster.network.agent.parts import capabilities, make_parts
from muster.network.config import parse_config
from muster.network.tuning.changes import applied, decide
from muster.network.tuning.config import wanted
from muster.network.tuning.part import FILE, TuningPage, TuningPart
from muster.network.tuning.record import Record, write_record
from tests.support.networkparts import part_setup
from tests.support.networkproc import NetworkProc
from tests.support.waiting import until

BOOT = "boot-1"
PLAN = """
tuning:
  enabled: true
  neighbours: {ipv4: [80000, 90000, 100000], ipv6: [80000, 90000, 100000]}
  conntrack: {max: 1048576, buckets: 262144}
"""
THIRD = "ipv4/neigh/default/gc_thresh3"
MAX = "netfilter/nf_conntrack_max"


@pytest.fixture
def node(tmp_path: Path) -> NetworkProc:
    return NetworkProc(tmp_path / "proc")


def part(node: NetworkProc, tmp_path: Path, text: str = PLAN) -> TuningPart:
    """A new process of the agent on the node."""
    pages: dict[str, Callable[[], bytes]] = {}
    config = parse_config(text)
    setup = part_setup(HostPaths(proc=node.proc, state=tmp_path / "state"), pages.__setitem__)
    assert capabilities(config) == {"NET_ADMIN"}
    ((name, made),) = make_parts(setup, config)
    assert name == "tuning"
    assert isinstance(made, TuningPart)
    assert msgspec.json.decode(pages["tuning"](), type=TuningPage).node == "n1"
    return made


def values(node: NetworkProc) -> dict[str, int]:
    return {name: node.value(name) for name in wanted(parse_config(PLAN).tuning)}


def test_values_of_the_plan_are_set_and_former_ones_restored(node: NetworkProc, tmp_path: Path) -> None:
    before = values(node)
    part(node, tmp_path).set()
    assert values(node) == wanted(parse_config(PLAN).tuning)
    part(node, tmp_path).remove()
    assert values(node) == before
    part(node, tmp_path).remove()
    assert values(node) == before


def test_restart_of_the_agent_keeps_the_first_former_values(node: NetworkProc, tmp_path: Path) -> None:
    before = values(node)
    for _ in range(3):
        part(node, tmp_path).set()
    part(node, tmp_path).remove()
    assert values(node) == before


def test_larger_values_of_the_node_stay(node: NetworkProc, tmp_path: Path) -> None:
    node.sysctl(MAX, 4_000_000)
    made = part(node, tmp_path)
    made.set()
    assert node.value(MAX) == 4_000_000
    assert MAX not in [each.name for each in made.page.settings]


def test_change_of_another_program_is_reported_and_stays(node: NetworkProc, tmp_path: Path) -> None:
    """kube-proxy sets nf_conntrack_max when it starts."""
    made = part(node, tmp_path)
    made.set()
    assert made.page.foreign == ()
    node.sysctl(MAX, 131_072)
    made.set()
    (said,) = made.page.foreign
    assert said.startswith(f"{MAX} is 131072: another program changed it after the agent set 1048576")
    assert "kube-proxy" in said
    part(node, tmp_path).remove()
    assert node.value(MAX) == 131_072, "the other program's value is not ours to undo"
    assert node.value(THIRD) == 1024


def test_new_configuration_takes_over_from_another_program(node: NetworkProc, tmp_path: Path) -> None:
    part(node, tmp_path).set()
    node.sysctl(MAX, 131_072)
    part(node, tmp_path, PLAN.replace("1048576", "2097152")).set()
    assert node.value(MAX) == 2_097_152
    part(node, tmp_path).remove()
    assert node.value(MAX) == 131_072


def test_value_that_left_the_configuration_is_restored(node: NetworkProc, tmp_path: Path) -> None:
    part(node, tmp_path).set()
    part(node, tmp_path, PLAN.replace("  conntrack: {max: 1048576, buckets: 262144}\n", "")).set()
    assert node.value(MAX) == 262_144
    assert node.value(THIRD) == 100_000


def test_reboot_makes_the_record_worthless(node: NetworkProc, tmp_path: Path) -> None:
    """Values ended with the boot. Those of the new boot are the former ones."""
    part(node, tmp_path).set()
    node.write("sys/kernel/random/boot_id", "another-boot")
    node.conntrack(entries=0, limit=65536)
    for number, value in enumerate((128, 512, 2048), start=1):
        node.sysctl(f"ipv4/neigh/default/gc_thresh{number}", value)
    made = part(node, tmp_path)
    made.set()
    assert made.page.foreign == ()
    assert (node.value(THIRD), node.value(MAX)) == (100_000, 1_048_576)
    part(node, tmp_path).remove()
    assert (node.value(THIRD), node.value(MAX)) == (2048, 65536)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("writes", range(10))
def test_kill_at_any_write_of_the_record_restores_all(
    node: NetworkProc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The process dies instead of a write of its record. The next one knows all former values."""
    before = values(node)
    left = writes

    def until_killed(path: Path, record: Record) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        write_record(path, record)

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr("muster.network.tuning.part.write_record", until_killed)
        part(node, tmp_path).set()
    part(node, tmp_path).remove()
    assert values(node) == before


def test_pod_namespace_is_refused_with_the_reason_e2b_infra_3508(node: NetworkProc, tmp_path: Path) -> None:
    (node.proc / "sys/net/ipv4/neigh/default/gc_thresh1").unlink()
    made = part(node, tmp_path)
    made.set()
    assert "hostNetwork: true" in made.page.problems[0]
    assert node.value(MAX) == 262_144, "nothing is set"
    part(node, tmp_path).remove()  # nothing was set, so nothing is to be restored


def test_removal_in_a_pod_namespace_of_values_that_were_set_is_refused(node: NetworkProc, tmp_path: Path) -> None:
    part(node, tmp_path).set()
    (node.proc / "sys/net/ipv4/neigh/default/gc_thresh1").unlink()
    with pytest.raises(OSError, match="hostNetwork"):
        part(node, tmp_path).remove()


def test_refusal_of_conntrack_alone_names_the_namespace_before_the_file(node: NetworkProc, tmp_path: Path) -> None:
    (node.proc / "sys/net/ipv4/neigh/default/gc_thresh1").unlink()
    made = part(node, tmp_path, "tuning: {enabled: true, conntrack: {max: 1048576}}")
    made.set()
    (problem,) = made.page.problems
    assert problem.startswith("the agent is not in the host's network namespace")


def test_module_that_is_loaded_later_gets_its_values_then(node: NetworkProc, tmp_path: Path) -> None:
    for name in ("max", "buckets"):
        (node.proc / f"sys/net/netfilter/nf_conntrack_{name}").unlink()
    made = part(node, tmp_path)
    made.set()
    assert made.page.problems == (
        "netfilter/nf_conntrack_buckets does not exist yet",
        "netfilter/nf_conntrack_max does not exist yet",
    )
    node.conntrack(entries=0, limit=65536)
    made.set()
    assert made.page.problems == ()
    assert node.value(MAX) == 1_048_576


def test_damaged_record_changes_nothing(node: NetworkProc, tmp_path: Path) -> None:
    part(node, tmp_path).set()
    (tmp_path / "state" / FILE).write_text("{")
    with pytest.raises(OSError, match="set the values by hand and remove the file"):
        part(node, tmp_path).remove()
    made = part(node, tmp_path, PLAN.replace("1048576", "2097152"))
    made.set()
    assert "damaged" in made.page.problems[0]
    assert node.value(MAX) == 1_048_576


def test_refused_write_is_a_problem_and_others_are_written(node: NetworkProc, tmp_path: Path) -> None:
    refused = "ipv6/neigh/default/gc_thresh3"  # the first one that is written
    path = node.proc / "sys/net" / refused
    path.unlink()
    path.symlink_to("/proc/sys/kernel/ngroups_max")  # a number that not even root may write
    made = part(node, tmp_path)
    made.set()
    (problem,) = made.page.problems
    assert problem.startswith(f"{refused} could not be set to 100000: ")
    assert (node.value(THIRD), node.value(MAX)) == (100_000, 1_048_576)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tuning: {enabled: true}", "without a value"),
        ("tuning: {enabled: true, neighbours: {ipv4: [1, 2]}}", "write gc_thresh1, gc_thresh2 and gc_thresh3"),
        ("tuning: {enabled: true, neighbours: {ipv6: [3, 2, 1]}}", "does not rise"),
        ("tuning: {enabled: true, neighbours: {ipv4: [0, 1, 2]}}", "write values from 1"),
        ("tuning: {enabled: true, conntrack: {max: -1}}", "write 0 to"),
        ("tuning: {enabled: true, conntrack: {max: 1}, periodSeconds: 0}", "write 1 to 3600"),
        ("tuning: {enabled: true, conntrack: {maximum: 1}}", "maximum"),
    ],
)
def test_impossible_configuration_says_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(ConfigTextError, match=problem):
        parse_config(text)


def test_thresholds_rise_at_every_moment() -> None:
    names = [f"ipv4/neigh/default/gc_thresh{number}" for number in (1, 2, 3)]
    small, large = dict(zip(names, (128, 512, 1024), strict=True)), dict(zip(names, (8000, 9000, 10000), strict=True))
    raising = decide(large, small, Record(), BOOT)
    assert _rising(names, small, raising.writes)
    record = raising.record
    for name, value in raising.writes:
        record = applied(record, name, value)
    assert _rising(names, large, decide({}, large, record, BOOT).writes)


def _rising(names: list[str], current: Mapping[str, int], writes: tuple[tuple[str, int], ...]) -> bool:
    now, good = dict(current), True
    for name, value in writes:
        now[name] = value
        good = good and now[names[0]] <= now[names[1]] <= now[names[2]]
    return good and bool(writes)


Kernel = dict[str, int]


@given(
    former=st.integers(1, 8),
    wants=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    kills=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    rounding=st.integers(0, 1),
)
def test_kill_at_any_step_never_loses_the_former_value(
    former: int, wants: list[int], kills: list[int], rounding: int
) -> None:
    """The process dies before the record, before the write, after it, or not at all: the end restores the kernel."""
    kernel: Kernel = {"x": former}
    disk = Record()
    for want, kill in zip(wants, kills * len(wants), strict=False):
        disk = _pass(kernel, disk, {"x": want}, kill, rounding)
        assert kernel["x"] >= former
    disk = _pass(kernel, disk, {"x": wants[-1]}, 3, rounding)
    assert kernel["x"] >= wants[-1]
    disk = _pass(kernel, disk, {}, kills[0], 0)
    disk = _pass(kernel, disk, {}, 3, 0)
    assert kernel["x"] == former
    assert disk.entries == {}


def _pass(kernel: Kernel, disk: Record, want: Mapping[str, int], kill: int, rounding: int) -> Record:
    plan = decide(want, kernel, disk, BOOT)
    assert plan.foreign == ()
    if kill == 0:
        return disk
    disk = plan.record
    for name, value in plan.writes:
        if kill == 1:
            return disk
        kernel[name] = value + (rounding if want else 0)  # the kernel rounds numbers of buckets up
        if kill == 2:
            return disk
        disk = applied(disk, name, kernel[name])
    return disk


async def test_part_sets_at_once_and_marks_its_progress(node: NetworkProc, tmp_path: Path) -> None:
    made = part(node, tmp_path)
    task = asyncio.create_task(made.run())
    await until("the values are set", lambda: bool(made.page.settings))
    task.cancel()
    assert node.value(THIRD) == 100_000

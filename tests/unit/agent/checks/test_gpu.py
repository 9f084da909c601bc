"""The check `gpu` through NVML's own C interface, and through a dcgm-exporter's page."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from muster.agent.check import Host, Setup
from muster.agent.checks.gpu import GpuCheck, make
from muster.agent.checks.gpusample import CODES
from muster.fleet.health.finding import Finding
from tests.support.nvml import STATE, build_nvml, plug_gpu, tell_nvml
from tests.unit.agent.checks.conftest import write

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
POD = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Machine:
    """A node with GPUs on its bus, a driver in a file, and the check that looks at them."""

    def __init__(self, host: Host, library: Path, state: Path) -> None:
        self.host = host
        self.state = state
        self.library = library
        self.lines: dict[str, object] = {}
        self.now_s = 1_000_000.0
        write(host.proc / "2/comm", "kthreadd\n")
        write(host.proc / "self/status", "Name:\tpython\nNSpid:\t4711\n")

    def has(self, gpus: int) -> None:
        self.lines["count"] = gpus
        for index in range(gpus):
            self.plug(index)

    def plug(self, index: int, config: bytes = b"\xde\x10\x30\x23") -> None:
        plug_gpu(self.host.sys, index, config)

    def check(self, **options: object) -> GpuCheck:
        options = {"libraries": [str(self.library)], **options}
        return make(Setup(node="n", host=self.host, options=msgspec.Raw(json.dumps(options).encode())))

    async def look(self, check: GpuCheck, lines: Mapping[str, object] | None = None) -> list[Finding]:
        """Look once more, half a minute later."""
        self.lines |= lines or {}
        tell_nvml(self.state, self.lines)
        self.now_s += 30
        found = list(await check.look(self.now_s))
        assert {(each.check, each.code) for each in found if each.check != "xid"} <= CODES
        return found


def said(findings: list[Finding]) -> list[tuple[str, str, str, int]]:
    return [(each.check, each.component, each.code, each.count) for each in findings]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def machine(host: Host, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv(STATE, str(tmp_path / "nvml"))
    return Machine(host, build_nvml(libraries), tmp_path / "nvml")


@pytest.mark.parametrize(
    ("key", "code", "check"),
    [
        ("ecc.1.2", "uncorrected-dram", "ecc"),
        ("ecc.1.7", "uncorrected-sram", "ecc"),
        ("ecc.0.2", "corrected-dram", "ecc"),
        ("ecc.0.7", "corrected-sram", "ecc"),
        ("rows.corrected", "remapped", "rows"),
        ("pages.1", "retired", "rows"),
        ("link.0.0", "replay", "nvlink"),
        ("link.0.1", "recovery", "nvlink"),
        ("link.0.2", "crc", "nvlink"),
    ],
)
async def test_rising_counters_are_reported_with_their_increase(
    machine: Machine, key: str, code: str, check: str
) -> None:
    machine.has(2)
    machine.lines |= {"1.link.0": 1, "1.pages.0": 0, "1.pages.1": 0, "1.pages.pending": 0, f"1.{key}": 7}
    looker = machine.check()
    assert await machine.look(looker) == []  # earlier values are not reported
    found = await machine.look(looker, {f"1.{key}": 10})
    assert said(found) == [(check, SECOND, code, 3)]
    assert await machine.look(looker) == []
    again = await machine.look(looker, {f"1.{key}": 11})
    assert said(again) == [(check, SECOND, code, 4)]
    assert again[0].first_s == found[0].first_s


async def test_a_gpu_that_was_reset_counts_from_zero(machine: Machine) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker, {"0.ecc.1.2": 40})
    assert await machine.look(looker, {"0.ecc.1.2": 0}) == []
    assert said(await machine.look(looker, {"0.ecc.1.2": 2})) == [("ecc", FIRST, "uncorrected-dram", 2)]


@pytest.mark.parametrize(
    ("lines", "check", "code"),
    [
        ({"rows.corrected": 0, "rows.pending": 1}, "rows", "pending"),
        ({"rows.corrected": 0, "rows.failed": 1}, "rows", "failed"),
        ({"rows.none": 2}, "rows", "no-spares"),
        ({"pages.0": 1, "pages.1": 0, "pages.pending": 1}, "rows", "pending"),
        ({"sram": 1}, "ecc", "sram-threshold"),
        ({"ecc.1.2": "!15"}, "gpu", "lost"),
        ({"ecc.1.2": "!16"}, "gpu", "reset-required"),
    ],
)
async def test_a_state_that_lasts_is_one_incident(
    machine: Machine, lines: Mapping[str, object], check: str, code: str
) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker)
    found = [await machine.look(looker, {f"0.{key}": value for key, value in lines.items()})]
    found += [await machine.look(looker) for _ in range(40)]
    reported = [each for look in found for each in look if each.component]  # a lost one is also missing from the count
    assert {(each.component, each.code, each.first_s, each.count) for each in reported} == {
        (FIRST, code, reported[0].first_s, 1)
    }
    assert 3 <= len(reported) <= 10  # it is said again, so that it is known to go on, but not every time
    assert [each.last_s for each in reported] == sorted({each.last_s for each in reported})


@pytest.mark.parametrize(
    ("bits", "codes"),
    [
        (0x48, ["hw-thermal"]),
        (0x88, ["hw-power-brake"]),
        (0x08, ["hw-slowdown"]),
        (0x20, ["sw-thermal"]),
        (0x117, []),  # idle, clocks that a user set, power cap, sync boost, display
        (0xC8, ["hw-power-brake", "hw-thermal"]),
    ],
)
async def test_throttling_counts_looks(machine: Machine, bits: int, codes: list[str]) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker, {"0.throttle": bits})
    assert said(await machine.look(looker)) == [("throttle", FIRST, code, 2) for code in codes]


async def test_an_nvlink_that_goes_down(machine: Machine) -> None:
    machine.has(2)
    machine.lines |= {f"{gpu}.link.{link}": 1 for gpu in range(2) for link in range(4)}
    machine.lines["0.link.4"] = 0  # never was up: not connected
    looker = machine.check()
    assert await machine.look(looker) == []
    assert await machine.look(looker, {"1.link.2": 0}) == []
    assert said(await machine.look(looker)) == [("nvlink", SECOND, "inactive", 1)]


async def test_an_nvlink_that_all_other_gpus_have_is_missed_from_the_start(machine: Machine) -> None:
    machine.has(4)
    machine.lines |= {f"{gpu}.link.{link}": int((gpu, link) != (3, 1)) for gpu in range(4) for link in range(2)}
    looker = machine.check()
    await machine.look(looker)
    assert said(await machine.look(looker)) == [("nvlink", "0000:04:00.0", "inactive", 1)]


async def test_a_gpu_that_fell_off_the_bus(machine: Machine) -> None:
    machine.has(2)
    looker = machine.check()
    await machine.look(looker)
    machine.plug(1, b"\xff\xff\xff\xff")
    machine.lines["1.lost"] = 1
    assert said(await machine.look(looker)) == [("gpu", SECOND, "lost", 1)]
    assert said(await machine.look(looker)) == [("gpu", "", "count", 1)]


async def test_a_gpu_that_the_driver_cannot_open_is_named_by_its_place(machine: Machine) -> None:
    machine.has(3)
    looker = machine.check()
    assert said(await machine.look(looker, {"1.handle": "!15"})) == [("gpu", SECOND, "lost", 1)]


@pytest.mark.parametrize("expected", [None, 4])
async def test_fewer_gpus_than_there_should_be(machine: Machine, expected: int | None) -> None:
    machine.has(4)
    looker = machine.check(expected=expected)
    await machine.look(looker, {"count": 3})
    found = await machine.look(looker)
    assert said(found) == [("gpu", "", "count", 1)]
    assert "3 of 4 expected GPUs answer" in found[0].message


async def test_more_gpus_are_wanted_than_the_bus_ever_had(machine: Machine) -> None:
    machine.has(7)
    looker = machine.check(expected=8)
    await machine.look(looker)
    assert said(await machine.look(looker)) == [("gpu", "", "count", 1)]


async def test_a_gpu_that_is_handed_to_a_virtual_machine_is_not_missed(machine: Machine) -> None:
    machine.has(2)
    driver = machine.host.sys / "bus/pci/drivers/vfio-pci"
    driver.mkdir(parents=True)
    (machine.host.sys / "bus/pci/devices/0000:02:00.0/driver").symlink_to(driver)
    looker = machine.check()
    await machine.look(looker, {"count": 1})
    assert await machine.look(looker) == []


async def test_library_of_another_version_than_the_driver(machine: Machine) -> None:
    machine.has(2)
    looker = machine.check()
    await machine.look(looker)
    await machine.look(looker, {"init": 18})
    found = await machine.look(looker)
    assert said(found) == [("gpu", "", "driver-mismatch", 1)]
    assert "version mismatch" in found[0].message
    assert await machine.look(looker, {"init": 0}) == []


@pytest.mark.parametrize("kind", ["missing", "broken", "init fails", "not NVML"])
async def test_a_library_that_cannot_be_used_is_said_where_there_are_gpus(
    machine: Machine, kind: str, tmp_path: Path
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    if kind == "broken":
        library.write_bytes(b"\x7fELF garbage" * 100)
    if kind == "init fails":
        library, machine.lines["init"] = machine.library, 9
    if kind == "not NVML":
        library.symlink_to(_some_library())
    looker = machine.check(libraries=[str(library)])
    assert await machine.look(looker) + await machine.look(looker) == []  # no GPU, no driver: nothing is wrong
    machine.plug(0)
    found = await machine.look(looker) + await machine.look(looker)
    assert said(found) == [("gpu", "", "nvml", 1)]


def _mapped() -> str:
    return Path("/proc/self/maps").read_text()


def _some_library() -> str:
    return next(line.split()[-1] for line in _mapped().splitlines() if "/libc.so" in line or "/libc-" in line)


async def test_an_old_library_lacks_functions_and_serves_all_the_same(machine: Machine, libraries: Path) -> None:
    machine.has(1)
    looker = machine.check(libraries=["/nowhere/libnvidia-ml.so.1", str(build_nvml(libraries, "OLD"))])
    await machine.look(looker, {"0.ecc.1.2": 0})
    assert said(await machine.look(looker, {"0.ecc.1.2": 1})) == [("ecc", FIRST, "uncorrected-dram", 1)]


async def test_no_session_is_left_open(machine: Machine) -> None:
    """An open one keeps the GPU from being reset, and an old library in memory."""
    machine.has(1)
    looker = machine.check()
    await machine.look(looker)
    await machine.look(looker, {"init": 18})
    assert str(machine.library) not in _mapped()


@pytest.mark.parametrize("kind", ["ended", "zombie", "pod gone", "no process"])
async def test_contexts_that_are_left_over(machine: Machine, kind: str) -> None:
    machine.has(1)
    machine.lines |= {"0.held": 30 << 30}
    (machine.host.root / "var/lib/kubelet/pods").mkdir(parents=True)
    if kind != "no process":
        machine.lines["0.pid.0"] = 4321
    if kind in ("zombie", "pod gone"):
        state = "Z" if kind == "zombie" else "S"
        write(machine.host.proc / "4321/stat", f"4321 (train (it)) {state} 1 1\n")
        pod = POD.replace("-", "_")
        write(machine.host.proc / "4321/cgroup", f"0::/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-1.scope\n")
    looker = machine.check()
    looks = [await machine.look(looker) for _ in range(4)]
    assert [said(found) for found in looks] == [[], [], [], [("gpu", FIRST, "leftover-context", 1)]]


async def test_only_running_pods_may_compute(machine: Machine) -> None:
    machine.has(1)
    machine.lines |= {"0.held": 30 << 30, "0.pid.0": 4321}
    (machine.host.root / f"var/lib/kubelet/pods/{POD}").mkdir(parents=True)
    write(machine.host.proc / "4321/stat", "4321 (python) R 1 1\n")
    write(machine.host.proc / "4321/cgroup", f"0::/kubepods/burstable/pod{POD}/abcdef\n")
    looker = machine.check()
    assert [found for _ in range(5) for found in await machine.look(looker)] == []
    write(machine.host.proc / "77/stat", "77 (a.out) R 1 1\n")
    write(machine.host.proc / "77/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    found = [each for _ in range(5) for each in await machine.look(looker, {"0.pid.1": 77})]
    assert said(found) == [("gpu", FIRST, "foreign-context", 1)]
    assert "77" in found[0].message


@pytest.mark.parametrize(
    ("file", "text"), [("2/comm", "pause\n"), ("self/status", "NSpid:\t4711\t7\n"), ("self/status", "")]
)
@pytest.mark.parametrize("process", [{}, {"0.pid.0": 4321}])
async def test_an_agent_that_cannot_see_the_hosts_processes_accuses_none(
    machine: Machine, process: dict[str, object], file: str, text: str
) -> None:
    machine.has(1)
    machine.lines |= {"0.held": 30 << 30, **process}
    write(machine.host.proc / file, text)
    looker = machine.check()
    assert [found for _ in range(6) for found in await machine.look(looker)] == []


async def test_garbage_counters_cause_no_finding(machine: Machine) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker, {"0.ecc.1.2": 0, "0.rows.corrected": "!999", "0.link.0": "!2", "0.throttle": "!999"})
    assert await machine.look(looker, {"0.ecc.1.2": "!999"}) == []
    assert await machine.look(looker, {"0.ecc.1.2": 2**64 - 1}) == []
    assert await machine.look(looker, {"0.ecc.1.2": 0}) == []


@pytest.mark.parametrize("answer", ["!999", 2**64 - 1])
async def test_errors_that_came_while_a_counter_did_not_answer_are_not_lost(machine: Machine, answer: object) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker, {"0.ecc.1.2": 5})
    await machine.look(looker, {"0.ecc.1.2": answer})
    assert said(await machine.look(looker, {"0.ecc.1.2": 8})) == [("ecc", FIRST, "uncorrected-dram", 3)]


async def test_more_gpus_than_there_can_be_are_not_asked_one_by_one(machine: Machine) -> None:
    machine.has(1)
    looker = machine.check()
    await machine.look(looker, {"count": 2**32 - 1})
    assert said(await machine.look(looker)) == [("gpu", "", "nvml", 1)]


HANGING = """
#include <unistd.h>
__attribute__((WHEN)) static void never_ends(void) { for (;;) sleep(1000); }
"""
AGENT = """
import asyncio, json, os, sys
from pathlib import Path
import msgspec
from muster.agent.check import Host, Setup
from muster.agent.checks.gpu import make
from muster.agent.runner import Runner
from muster.kube.progress import Progress

class Ticks:
    name, period_s, timeout_s, cost, looks = "ticks", 0.05, 5.0, "cheap", 0
    async def look(self, now_s):
        Ticks.looks += 1
        return []

async def main():
    hung = asyncio.Event()
    def sink(findings):
        for each in findings:
            print(each.check, each.component, each.code, flush=True)
            if each.code == "hung":
                hung.set()
    options = msgspec.Raw(json.dumps({"libraries": [sys.argv[1]]}).encode())
    root = Path(sys.argv[2])
    host = Host(root=root, sys=root / "sys", proc=root / "proc")
    gpus = make(Setup(node="n", host=host, period_s=0.1, timeout_s=0.3, options=options))
    running = asyncio.create_task(Runner("n", [gpus, Ticks()], sink, Progress()).run())
    await hung.wait()
    before = Ticks.looks
    while Ticks.looks < before + 3:
        await asyncio.sleep(0.01)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["constructor", "destructor"])
def test_a_library_that_never_ends_loading_or_unloading_is_a_finding_and_stops_no_other(
    when: str, tmp_path: Path, libraries: Path
) -> None:
    """Another process: loading a library beside one that hangs would wait for it."""
    build_nvml(libraries)  # skips the test where there is no compiler
    source, library = tmp_path / "hangs.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(HANGING.replace("WHEN", when))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    plug_gpu(tmp_path / "sys", 0)
    command = [sys.executable, "-c", AGENT, str(library), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "agent gpu hung" in done.stdout.splitlines()


# A dcgm-exporter's page.


class Exporter:
    """Serves whatever page it is given."""

    def __init__(self) -> None:
        self.page: str | bytes = ""
        self.status = 200
        self.url = ""

    async def metrics(self, _: web.Request) -> web.Response:
        body = self.page if isinstance(self.page, bytes) else self.page.encode()
        return web.Response(status=self.status, body=body, content_type="text/plain")


@pytest.fixture
async def exporter() -> AsyncIterator[Exporter]:
    exporter = Exporter()
    app = web.Application()
    app.router.add_get("/metrics", exporter.metrics)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    exporter.url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    yield exporter
    await runner.cleanup()


def page(**fields: object) -> str:
    """A page about two GPUs; the second has these values."""
    lines = []
    for name, value in {"SM_CLOCK": 1980, **fields}.items():
        lines += [f"# HELP DCGM_FI_DEV_{name} words {{}}", f"# TYPE DCGM_FI_DEV_{name} gauge"]
        for index, shown in enumerate((1980 if name == "SM_CLOCK" else 0, value)):
            labels = (
                f'gpu="{index}",UUID="GPU-{index}",pci_bus_id="00000000:0{index + 1}:00.0",device="nvidia{index}",'
                'modelName="NVIDIA H100 80GB HBM3",Hostname="n",DCGM_FI_DRIVER_VERSION="550.54",err_msg="a \\"b\\" }"'
            )
            lines.append(f"DCGM_FI_DEV_{name}{{{labels}}} {shown}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("field", "check", "code"),
    [
        ("ECC_DBE_VOL_TOTAL", "ecc", "uncorrected-dram"),
        ("ECC_SBE_VOL_TOTAL", "ecc", "corrected-dram"),
        ("UNCORRECTABLE_REMAPPED_ROWS", "rows", "remapped"),
        ("RETIRED_DBE", "rows", "retired"),
        ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "nvlink", "recovery"),
        ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "nvlink", "crc"),
    ],
)
async def test_counters_of_a_page(machine: Machine, exporter: Exporter, field: str, check: str, code: str) -> None:
    looker = machine.check(dcgmUrl=exporter.url)
    exporter.page = page(**{field: 4})
    assert await machine.look(looker) == []
    exporter.page = page(**{field: 6})
    assert said(await machine.look(looker)) == [(check, SECOND, code, 2)]


@pytest.mark.parametrize(
    ("field", "value", "check", "code"),
    [
        ("ROW_REMAP_FAILURE", 1, "rows", "failed"),
        ("ROW_REMAP_PENDING", 1, "rows", "pending"),
        ("CLOCK_THROTTLE_REASONS", 72, "throttle", "hw-thermal"),
        ("CLOCKS_EVENT_REASONS", 128, "throttle", "hw-power-brake"),
    ],
)
async def test_states_of_a_page(
    machine: Machine, exporter: Exporter, field: str, value: int, check: str, code: str
) -> None:
    exporter.page = page(**{field: value})
    assert said(await machine.look(machine.check(dcgmUrl=exporter.url))) == [(check, SECOND, code, 1)]


async def test_xids_of_a_page_are_reported_only_if_the_log_is_not_read(machine: Machine, exporter: Exporter) -> None:
    with_log, without = machine.check(dcgmUrl=exporter.url), machine.check(dcgmUrl=exporter.url, xids=True)
    for xid, expected in ((0, []), (79, [("xid", SECOND, "79", 1)]), (79, []), (31, [("xid", SECOND, "31", 1)])):
        exporter.page = page(XID_ERRORS=xid)
        assert await machine.look(with_log) == []
        assert said(await machine.look(without)) == expected


async def test_a_gpu_that_is_missing_from_the_page(machine: Machine, exporter: Exporter) -> None:
    looker = machine.check(dcgmUrl=exporter.url)
    exporter.page = page()
    await machine.look(looker)
    exporter.page = "\n".join(line for line in page().splitlines() if "GPU-1" not in line)
    await machine.look(looker)
    assert said(await machine.look(looker)) == [("gpu", "", "count", 1)]


@pytest.mark.parametrize("kind", ["refused", "500", "empty", "garbage", "too long"])
async def test_a_page_that_cannot_be_had_is_said(machine: Machine, exporter: Exporter, kind: str) -> None:
    machine.plug(0)
    looker = machine.check(dcgmUrl="http://127.0.0.1:9/metrics" if kind == "refused" else exporter.url)
    exporter.status = 500 if kind == "500" else 200
    exporter.page = {"garbage": random.Random(1).randbytes(3000), "too long": b"x" * (5 << 20)}.get(kind, "")
    await machine.look(looker)
    assert said(await machine.look(looker)) == [("gpu", "", "dcgm", 1)]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3", "9223372036854775794", "2147483632", "words", "1e400", ""])
async def test_values_that_are_none_are_passed_over(machine: Machine, exporter: Exporter, value: str) -> None:
    looker = machine.check(dcgmUrl=exporter.url)
    for shown in (0, value, 0):
        exporter.page = page(ECC_DBE_VOL_TOTAL=shown, ROW_REMAP_FAILURE=value)
        assert await machine.look(looker) == []


@pytest.mark.parametrize("options", [{"expected": -1}, {"expected": "eight"}, {"libraries": 3}])
def test_settings_that_do_not_fit_are_refused(machine: Machine, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\."):
        machine.check(**options)

"""The check `disk` on real file systems, where root may mount some, and on samples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from muster.agent.check import Host, Setup
from muster.agent.checks.disk import DiskCheck, make
from muster.agent.checks.disks import CODES
from muster.fleet.health.finding import Finding
from tests.unit.agent.checks.conftest import write

Mounter = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounter]:
    """Mount something at a folder of the test; gone at its end."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    places: list[Path] = []

    def mounted(name: str, *arguments: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        done = subprocess.run(["mount", *arguments, place], capture_output=True, text=True, timeout=60)
        if done.returncode:
            pytest.skip(f"root may not mount here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mounted
    for place in reversed(places):
        subprocess.run(["umount", "--lazy", place], check=True, timeout=60)


@pytest.fixture
def mounts_here(tmp_path: Path) -> Host:
    """This machine with its mounts, but without its disks: these are at work, while the tests invent the time."""
    write(tmp_path / "proc" / "diskstats", "")
    (tmp_path / "proc" / "1").symlink_to("/proc/self")
    return Host(proc=tmp_path / "proc")


def looker(host: Host, **options: object) -> DiskCheck:
    return make(Setup(node="n", host=host, options=msgspec.Raw(json.dumps(options).encode())))


async def looks(check: DiskCheck, count: int, start_s: float = 1000.0) -> list[Finding]:
    found = [each for number in range(count) for each in await check.look(start_s + 30 * number)]
    assert {(each.check, each.code) for each in found} <= CODES
    return found


def said(findings: list[Finding], under: Path | str = "") -> list[tuple[str, str, str]]:
    return [(each.check, each.component, each.code) for each in findings if each.component.startswith(str(under))]


async def test_a_file_system_that_is_full(mount: Mounter, mounts_here: Host) -> None:
    place = mount("full", "-t", "tmpfs", "-o", "size=8m,nr_inodes=100", "none")
    check = looker(mounts_here, places=[str(place)])
    assert said(await looks(check, 1), place) == []
    (place / "file").write_bytes(b"x" * (8 << 20))
    found = await looks(check, 30, 1030)
    assert {(each.component, each.code, each.first_s) for each in found} == {(str(place), "space", 1030.0)}
    (place / "file").unlink()
    assert said(await looks(check, 1, 5000), place) == []


async def test_a_file_system_without_inodes(mount: Mounter, mounts_here: Host) -> None:
    place = mount("inodes", "-t", "tmpfs", "-o", "size=8m,nr_inodes=100", "none")
    for number in range(98):
        (place / str(number)).touch()
    assert said(await looks(looker(mounts_here, places=[str(place)]), 1), place) == [("disk", str(place), "inodes")]


@pytest.mark.parametrize("watched", [True, False])
async def test_a_remount_read_only(mount: Mounter, mounts_here: Host, watched: bool) -> None:
    """Of a path that has to be writable; whatever else a user mounts read-only is his affair."""
    place = mount("ro dir", "-t", "tmpfs", "none")
    check = looker(mounts_here, places=[], writable=[str(place / "below")] if watched else [])
    assert said(await looks(check, 1), place) == []
    _run("mount", "-o", "remount,ro", place)
    expected = [("filesystem", str(place), "read-only")] if watched else []
    assert said(await looks(check, 1, 1030), place) == expected


async def test_ext4_after_an_error(mount: Mounter, mounts_here: Host, tmp_path: Path) -> None:
    """The kernel makes it read-only, as after an error of the disk; also seen by an agent that began later."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 on PATH")
    image = tmp_path / "image"
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    _run("mkfs.ext4", "-q", "-F", image)
    place = mount("ext4", "-o", "loop,errors=remount-ro", str(image))
    check = looker(mounts_here, places=[])
    assert said(await looks(check, 1), place) == []
    source = Path(next(line.split()[-2] for line in _mountinfo() if f" {place} " in line))
    _fail_ext4(source.name)
    assert said(await looks(check, 1, 1030), place) == [("filesystem", str(place), "read-only")]
    assert said(await looks(looker(mounts_here, places=[]), 1), place) == [("filesystem", str(place), "read-only")]


def _run(*command: object) -> None:
    subprocess.run([str(each) for each in command], check=True, timeout=60)


def _fail_ext4(device: str) -> None:
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip("this kernel cannot be asked to fail an ext4")
    trigger.write_text("made by a test")


def _mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


ROOT = "30 1 259:2 / / {mount},relatime shared:1 - ext4 /dev/nvme0n1p2 {all},discard"
VOLUME = "90 30 8:16 / /var/lib/kubelet/pods/1/volumes/v rw shared:9 - ext4 /dev/sdb {all}"


async def mounts(host: Host, check: DiskCheck, *lines: str, now_s: float = 1000.0) -> list[tuple[str, str, str]]:
    write(host.proc / "1/mountinfo", "\n".join(lines) + "\n")
    return said(list(await check.look(now_s)))


async def test_a_root_that_always_was_read_only_is_meant_so(host: Host) -> None:
    check = looker(host, places=[], writable=[])
    assert await mounts(host, check, ROOT.format(mount="ro", all="ro")) == []


async def test_a_root_that_becomes_read_only(host: Host) -> None:
    check = looker(host, places=[], writable=[])
    assert await mounts(host, check, ROOT.format(mount="rw", all="rw")) == []
    assert await mounts(host, check, ROOT.format(mount="ro", all="ro"), now_s=1030) == [
        ("filesystem", "/", "read-only")
    ]


async def test_volumes_of_pods_are_not_the_nodes(host: Host) -> None:
    check = looker(host, places=[], writable=[])
    assert await mounts(host, check, VOLUME.format(all="rw")) == []
    assert await mounts(host, check, VOLUME.format(all="ro"), now_s=1030) == []


def diskstats(*rows: tuple[str, int, int, int]) -> str:
    """(name, requests, ms they took, under way)."""
    lines = [
        f" 259 {index} {name} {done} 0 0 {took} 0 0 0 0 {way} 0 0 0 0 0 0 0 0"
        for index, (name, done, took, way) in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


async def stats(host: Host, check: DiskCheck, texts: list[str]) -> list[list[tuple[str, str, str]]]:
    found = []
    for number, text in enumerate(texts):
        write(host.proc / "diskstats", text)
        found.append(said(list(await check.look(1000 + 30 * number))))
    return found


async def test_a_disk_that_is_slow_for_a_while(host: Host) -> None:
    samples = [diskstats(("nvme0n1", 100 * n, 90_000 * n, 0), ("nvme1n1", 100 * n, 200 * n, 3)) for n in range(5)]
    assert await stats(host, looker(host), samples) == [[], [], [], [("disk", "nvme0n1", "slow")], []]


async def test_one_slow_moment_is_nothing(host: Host) -> None:
    times = [0, 90_000, 90_100, 180_100, 180_200]
    samples = [diskstats(("sda", 100 * n, took, 0)) for n, took in enumerate(times)]
    assert await stats(host, looker(host), samples) == [[]] * 5


async def test_a_disk_that_does_nothing_more(host: Host) -> None:
    samples = [diskstats(("sda", 100, 100, way), ("sda1", 100, 100, way)) for way in (2, 2, 2, 2)]
    assert await stats(host, looker(host), samples) == [[], [], [("disk", "sda", "stuck")], []]


async def test_an_idle_disk_is_not_stuck(host: Host) -> None:
    assert await stats(host, looker(host), [diskstats(("sda", 100, 100, 0))] * 4) == [[]] * 4


async def test_wrapped_or_reset_counters_are_not_latency(host: Host) -> None:
    end = 2**32 - 50
    samples = [diskstats(("sda", 100 * n, took, 0)) for n, took in enumerate((end, (end + 100) % 2**32, 150, 250, 350))]
    fresh = [diskstats(("sda", 5, 2, 0)), diskstats(("sda", 100, 30, 0))]
    assert await stats(host, looker(host), samples + fresh) == [[]] * 7


@pytest.mark.parametrize(
    "text", ["", "garbage\n\n", " 8 0 sda x y z\n", "\x00\xff\n" * 9, " 8 0 sda" + " 9" * 10 + "\n"]
)
async def test_garbage_causes_no_finding(host: Host, text: str) -> None:
    write(host.proc / "diskstats", text)
    write(host.proc / "1/mountinfo", text)
    assert await looks(looker(host), 3) == []


@pytest.mark.parametrize("options", [{"spaceFreePercent": 101}, {"slowMs": 0}, {"places": "/"}])
def test_settings_that_do_not_fit_are_refused(host: Host, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\."):
        looker(host, **options)

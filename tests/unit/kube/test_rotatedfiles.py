"""Files that are replaced while a program runs: the last good content stays until the new one can be used."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from muster.embedded.kubelet.containers.atomic_folder import write_atomically
from muster.kube import rotatedfiles
from muster.kube.connection.credentials import bearer
from muster.kube.errors import ConfigError
from muster.kube.rotatedfiles import RotatedFiles
from tests.support.waiting import until

SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotatedfiles, "SETTLE_S", 0.0)


def token(content: Mapping[str, bytes]) -> str:
    return bearer(content["tokenFile"])


@asynccontextmanager
async def following(files: RotatedFiles[str]) -> AsyncIterator[list[str]]:
    """Read the files all the time. Yields the values that came into use."""
    used = list[str]()
    task = asyncio.create_task(files.run(used.append))
    yield used
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def followed(path: Path) -> RotatedFiles[str]:
    return RotatedFiles("the token", {"tokenFile": path}, token, 0.001)


async def test_token_that_the_kubelet_replaces_comes_into_use_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_atomically(tmp_path, {"token": (b"first\n", 0o600)})
    files = followed(tmp_path / "token")
    assert files.value == "Bearer first"
    async with following(files) as used:
        write_atomically(tmp_path, {"token": (f"{SECRET}\n".encode(), 0o600)})
        await until("the new token is in use", lambda: files.reloads == 1)
        write_atomically(tmp_path, {"token": (b"third\n", 0o600)})
        await until("the next token is in use", lambda: files.reloads == 2)
    assert used == [f"Bearer {SECRET}", "Bearer third"]
    assert (files.value, files.problem) == ("Bearer third", "")
    assert caplog.text.count("loaded the token") == 2
    assert SECRET not in caplog.text


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"\n")


def _binary(path: Path) -> None:
    path.write_bytes(SECRET.encode() + b"\xff\x00")


def _two_lines(path: Path) -> None:
    path.write_bytes(f"{SECRET}\r\nX-Scope-OrgID: other".encode())


def _large(path: Path) -> None:
    path.write_bytes(b"x" * (5 << 20))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [_remove, _empty, _binary, _two_lines, _large, _pipe])
async def test_last_good_content_stays_while_a_file_cannot_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    files = followed(path)
    async with following(files) as used:
        damage(path)
        await until("the damage is found", lambda: files.problem)
        assert (files.value, used, files.reloads) == ("Bearer first", [], 0)
        assert "tokenFile" in files.problem
        path.unlink(missing_ok=True)
        path.write_text("second")
        await until("the file can be used again", lambda: used == ["Bearer second"])
        await until("the problem ends", lambda: not files.problem)
    assert SECRET not in caplog.text
    assert caplog.text.count("stays in use") >= 1


async def test_problem_that_lasts_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, looks = tmp_path / "token", 0
    path.write_text("first")

    def counted(content: Mapping[str, bytes]) -> str:
        nonlocal looks
        looks += 1
        return token(content)

    files = RotatedFiles("the token", {"tokenFile": path}, counted, 0.001)
    async with following(files):
        path.write_text("")
        await until("it was read several times", lambda: looks > 5)
    assert caplog.text.count("stays in use") == 1


async def test_content_that_a_program_still_writes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a token looks like a token."""
    contents = iter([b"first", b"sec", b"second", b"second", b"second"])
    monkeypatch.setattr(rotatedfiles, "read_regular", lambda path, field: next(contents, b"second"))
    files = followed(Path("token"))
    async with following(files) as used:
        await until("the whole token is in use", lambda: files.reloads)
    assert used == ["Bearer second"]


async def test_value_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    files, refused = followed(tmp_path / "token"), list[str]()

    def use(value: str) -> None:
        refused.append(value)
        if len(refused) == 1:
            raise ValueError("not now")

    task = asyncio.create_task(files.run(use))
    (tmp_path / "token").write_text("second")
    await until("it is tried again", lambda: files.reloads)
    task.cancel()
    assert refused == ["Bearer second"] * 2


async def test_event_loop_is_free_while_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("first")
    files, reading, go_on = followed(tmp_path / "token"), threading.Event(), threading.Event()

    def slow(path: Path, field: str) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return b"second"

    monkeypatch.setattr(rotatedfiles, "read_regular", slow)
    async with following(files) as used:
        await until("a slow file is read, and the loop runs", reading.is_set)
        assert files.value == "Bearer first"
        go_on.set()
        await until("the content is in use", lambda: used == ["Bearer second"])


def test_first_content_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenFile: .* cannot be read"):
        followed(tmp_path / "token")
    (tmp_path / "token").write_text("")
    with pytest.raises(ConfigError, match=r"tokenFile: .*it is empty"):
        followed(tmp_path / "token")
    with pytest.raises(ConfigError, match=r"tokenFile: '/a\\x00b' is not possible as a path"):
        followed(Path("/a\0b"))

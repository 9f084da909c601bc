"""Issue 17 A3: the configuration is read again when it changes, and a bad one never comes into use."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.api.configtext import ConfigTextError
from muster.kube.errors import BadConfig, ConfigError
from muster.kube.regularfile import BYTES_MAX
from muster.telemetry.guard import configfile
from muster.telemetry.guard.config import GuardConfig, parse_config
from muster.telemetry.guard.configfile import ConfigFile, Loaded
from tests.support.waiting import until

TEXT = "upstream: {url: http://prometheus:9090}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "guard.yaml"
    path.write_text(TEXT)
    return path


def test_change_is_applied_once(path: Path) -> None:
    file, applied = ConfigFile(path), list[Loaded]()
    file.check(applied.append)
    assert applied == []
    path.write_text(TEXT + "dryRun: true\n")
    file.check(applied.append)
    file.check(applied.append)
    assert [each.config.dry_run for each in applied] == [True]
    assert (file.reloads, file.problem, file.loaded) == (1, "", applied[0])


@pytest.mark.parametrize("text", [TEXT, TEXT + "dryRun: true\n", "upstream: {url: x}\n"])
def test_text_is_parsed_once(path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file, parsed = ConfigFile(path), list[str]()

    def counted(text: str, file: str) -> GuardConfig:
        parsed.append(text)
        return parse_config(text, file)

    monkeypatch.setattr(configfile, "parse_config", counted)
    path.write_text(text)
    problems = set()
    for _ in range(3):
        file.check(lambda _: None)
        problems.add(file.problem)
    assert parsed == [text] * (text != TEXT)
    assert len(problems) == 1


def test_event_loop_is_free_while_a_text_is_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()

    def slowly(text: str, file: str) -> GuardConfig:
        parsing.set()
        assert go_on.wait(20)
        return parse_config(text, file)

    async def changed(file: ConfigFile) -> None:
        applied: list[Loaded] = []
        task = asyncio.create_task(file.run(applied.append))
        await until("it is parsed", parsing.is_set)
        go_on.set()
        await until("it is applied", lambda: len(applied) == 1)
        task.cancel()

    file = ConfigFile(path)
    monkeypatch.setattr(configfile, "CHECK_S", 0.01)
    monkeypatch.setattr(configfile, "parse_config", slowly)
    path.write_text(TEXT + "dryRun: true\n")
    asyncio.run(changed(file))


@pytest.mark.parametrize("bad", ["upstream: {url: x}\n", "{", TEXT + "dryRn: true\n", "", TEXT.replace("9090", "9091")])
def test_bad_change_is_shown_and_the_old_configuration_stays(path: Path, bad: str) -> None:
    file, applied = ConfigFile(path), list[Loaded]()
    before = file.loaded
    path.write_text(bad)
    file.check(applied.append)
    assert file.problem
    assert (file.loaded, applied) == (before, [])
    path.write_text(TEXT)
    file.check(applied.append)
    assert (file.problem, applied) == ("", [])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_path_that_is_not_a_file_neither_blocks_nor_comes_into_use(path: Path, make: Callable[[Path], None]) -> None:
    file, applied = ConfigFile(path), list[Loaded]()
    path.unlink()
    make(path)
    file.check(applied.append)
    assert str(path) in file.problem
    assert applied == []


def test_change_that_cannot_be_applied_is_tried_again(path: Path) -> None:
    file, before = ConfigFile(path), ConfigFile(path).loaded
    path.write_text(TEXT + "dryRun: true\n")

    def refuse(_: Loaded) -> None:
        raise BadConfig("needs an API server")

    file.check(refuse)
    assert (file.problem, file.loaded) == ("needs an API server", before)
    applied: list[Loaded] = []
    file.check(applied.append)
    assert (file.problem, len(applied)) == ("", 1)


def test_authorities_are_read_again(path: Path, tmp_path: Path) -> None:
    authorities = tmp_path / "ca.crt"
    authorities.write_bytes(b"one")
    path.write_text(f"{TEXT}callers: {{certificates: {{caFile: '{authorities}'}}}}\n")
    file, applied = ConfigFile(path), list[Loaded]()
    assert file.loaded.authorities_pem == b"one"
    authorities.write_bytes(b"two")
    file.check(applied.append)
    assert [each.authorities_pem for each in applied] == [b"two"]
    authorities.unlink()
    file.check(applied.append)
    assert "callers.certificates.caFile" in file.problem
    path.write_text(TEXT + 'callers: {certificates: {caFile: "/a\\0b"}}\n')
    file.check(applied.append)
    assert "is not possible as a path" in file.problem
    assert file.loaded.authorities_pem == b"two"


def test_file_that_vanishes_changes_nothing(path: Path) -> None:
    file = ConfigFile(path)
    path.unlink()
    file.check(lambda _: None)
    assert "--config" in file.problem
    with pytest.raises(ConfigError, match="cannot be read"):
        ConfigFile(path)


def test_first_file_must_be_valid(path: Path) -> None:
    path.write_text("upstream: {url: x}\n")
    with pytest.raises(ConfigTextError, match=r"guard.yaml:1:\d+: upstream.url"):
        ConfigFile(path)
    path.write_text(" " * (BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger"):
        ConfigFile(path)

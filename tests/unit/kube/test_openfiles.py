"""The limit of open files."""

from __future__ import annotations

import resource

import pytest

from muster.kube.openfiles import raise_limit


def test_connections_are_limited_by_the_files_that_may_be_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert raise_limit(3000) == 3000
    assert limits[-1] == (4096, 4096)
    assert not caplog.text
    assert raise_limit(20_000) == 4096 - 256
    assert "ulimit -Hn" in caplog.text
    assert len(limits) == 2

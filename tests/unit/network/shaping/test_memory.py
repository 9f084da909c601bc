"""The file with the newest limits: damaged content means the static share, not the end of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.network.shaping.memory import NOTHING, Memory


@pytest.mark.parametrize(
    "content",
    [b"", b"\x83", b"\x83\xa4boot\xa2\xff\xfe\xa5end_s\x01\xa5rates\xc0", b"not limits"],
    ids=["empty", "cut off", "not UTF-8", "text"],
)
def test_damaged_limits_are_not_used(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(content)
    assert Memory(path, "b1").load() == NOTHING

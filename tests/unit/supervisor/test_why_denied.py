"""Issue 11.3: why py-spy may not trace a rank, and what would allow it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.trainingjobs.supervisor.ranks import stacks


@pytest.mark.parametrize(
    ("scope", "capability", "reason"),
    [
        ("1", False, "is 1, and the container lacks the capability SYS_PTRACE"),
        ("2", False, "is 2, and the container lacks the capability SYS_PTRACE"),
        ("3", True, "is 3, which forbids all tracing"),
        ("1", True, "a security module or a seccomp profile of the container forbids it"),
        ("0", False, "a security module or a seccomp profile of the container forbids it"),
        ("", False, "a security module or a seccomp profile of the container forbids it"),
    ],
)
def test_yama_is_named_where_it_forbids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, capability: bool, reason: str
) -> None:
    """This kernel may have no Yama: the file with its setting is a stand-in; an empty scope is a missing file."""
    file = tmp_path / "ptrace_scope"
    if scope:
        file.write_text(f"{scope}\n")
    monkeypatch.setattr(stacks, "YAMA", str(file))
    monkeypatch.setattr(stacks, "_may_trace", lambda: capability)
    said = stacks._why_denied(os.getpid())
    assert said.endswith(reason)
    assert (str(file) in said) == ("forbids it" not in said)

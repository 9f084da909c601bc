"""Issue 11.24: each node finds out before the attempt whether it can execute what the attempt needs."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from muster.trainingjobs.supervisor.attempts.launchers import mpi_program
from muster.trainingjobs.supervisor.attempts.programs import (
    HANDLERS,
    CannotStart,
    check_length,
    check_program,
    most_bytes,
)


def made(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return f"./{path.name}"


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        ("#!/bin/sh\n", 0o644, errno.EACCES),
        ("#!/no/such/interpreter -x\n", 0o755, errno.ENOENT),
        pytest.param(
            "echo hello\n",
            0o755,
            errno.ENOEXEC,
            marks=pytest.mark.skipif(
                os.path.isdir(HANDLERS) and bool(set(os.listdir(HANDLERS)) - {"register", "status"}),
                reason="this kernel executes other kinds of files",
            ),
        ),
    ],
)
def test_program_that_cannot_be_executed_is_named_with_its_errno(
    tmp_path: Path, text: str, mode: int, error: int
) -> None:
    name = made(tmp_path / "train.sh", text, mode)
    with pytest.raises(CannotStart) as found:
        check_program(name, {}, str(tmp_path))
    assert found.value.error == error


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("pythn", "./train.sh", "/no/such/python"):
        with pytest.raises(CannotStart, match="not found") as found:
            check_program(name, {"PATH": str(tmp_path)}, str(tmp_path))
        assert (found.value.error, found.value.program) == (errno.ENOENT, name)
    with pytest.raises(CannotStart) as found:
        mpi_program({"PATH": str(tmp_path)})
    assert (found.value.error, found.value.program) == (errno.ENOENT, "mpiexec")


def test_executable_or_unknown_programs_pass(tmp_path: Path) -> None:
    check_program("sh", {"PATH": "/usr/bin:/bin"}, str(tmp_path))
    check_program("pythn", {"PATH": "bin:/usr/bin"}, str(tmp_path))  # relative to where it starts
    check_program("pythn", {}, str(tmp_path))
    check_program(made(tmp_path / "train.sh", "#!/bin/sh\n"), {}, str(tmp_path))


def test_the_longest_argument_that_the_kernel_executes_passes_and_one_more_byte_is_refused() -> None:
    longest = "x" * (32 * os.sysconf("SC_PAGE_SIZE") - 1)
    check_length(["true", longest], {})
    subprocess.run(["true", longest], env={"PATH": os.environ["PATH"]}, check=True)
    with pytest.raises(OSError, match="too long") as refused:
        subprocess.run(["true", longest + "x"], check=True)
    assert refused.value.errno == errno.E2BIG
    with pytest.raises(CannotStart, match=f"has {len(longest) + 1} bytes") as found:
        check_length(["true", longest + "x"], {})
    assert (found.value.error, found.value.program) == (errno.E2BIG, "true")


def test_arguments_that_are_too_long_together_with_the_environment_are_refused() -> None:
    long = ["x" * 100_000] * (most_bytes() // 150_000)
    check_length(["true", *long], {})
    with pytest.raises(CannotStart, match="the command and the environment") as found:
        check_length(["true", *long], {f"A{number}": text for number, text in enumerate(long)})
    assert found.value.error == errno.E2BIG

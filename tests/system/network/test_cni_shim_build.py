"""How the CNI plugin's shim is built: for every processor, and with code that runs before Go's runtime."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


def test_shim_is_built_for_every_processor_and_without_a_dynamic_loader(tmp_path: Path) -> None:
    """Whatever the environment asks of Go: its first code runs before Go's runtime checks the processor."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    build = Path(__file__).parents[3] / "tools" / "build-go"
    asked = {"MUSTER_CACHE_DIR": str(tmp_path), "GOFLAGS": "-buildmode=pie", "GOAMD64": "v3"}
    built = subprocess.run(
        [str(build), "cni-shim"], env=os.environ | asked, capture_output=True, text=True, check=True, timeout=600
    )
    program = Path(built.stdout.strip(), "cni-shim").read_bytes()
    kind = int.from_bytes(program[16:18], "little")
    assert kind == 2, "not ET_EXEC, see elf(5)"
    if program[18] == 62:  # EM_X86_64
        assert b"build\tGOAMD64=v1\n" in program


def test_code_that_runs_before_gos_runtime_calls_only_itself_and_system_calls(tmp_path: Path) -> None:
    """A compiler may call the runtime to copy, clear or allocate memory.

    Panics are not reached. Write barriers are off until a collection of garbage begins.
    """
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    source, program = Path(__file__).parents[3] / "tools" / "cni-shim", str(tmp_path / "shim")
    env = os.environ | {"CGO_ENABLED": "0", "GOARCH": "amd64", "GOAMD64": "v1", "GOFLAGS": ""}
    build = ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-E main.start", "-o", program, "."]
    subprocess.run(build, cwd=source, env=env, check=True, timeout=600)
    listing = ["go", "tool", "objdump", "-s", r"^main\.", program]
    text = subprocess.run(listing, cwd=source, capture_output=True, text=True, check=True, timeout=600).stdout
    bodies = {name: body for name, _, body in (each.partition("(SB)") for each in text.split("TEXT ")[1:])}
    todo, called = ["main.begin"], {"main.begin"}
    while todo:
        body = bodies[todo.pop()]
        assert not re.search(r"\bCALL [^a-z]", body), "the address is in a register, so it is not known"
        targets = set(re.findall(r"\b(?:CALL|JMP) ([a-z].*)\(SB\)", body))
        todo += [each for each in targets - called if each.startswith("main.")]
        called |= targets
    outside = {each for each in called if not each.startswith("main.")}
    assert {"syscall.RawSyscall", "syscall.RawSyscall6"} <= outside
    allowed = re.compile(r"syscall\.RawSyscall6?|runtime\.gcWriteBarrier\d|runtime\.panic(Bounds|unsafeslice\w+)")
    assert [each for each in sorted(outside) if not allowed.fullmatch(each)] == []

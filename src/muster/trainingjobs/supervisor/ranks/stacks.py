"""`stacks [--rank N]`: prints the stacks of this pod's ranks, one JSON object per line.

`run` also logs them at a stall.

A rank that registered a handler (`hook.py`) is signalled and writes the stacks of its threads itself. No other process
is ever signalled: the default action of the signal would end it. For other processes py-spy is used, if the image has
it and the kernel allows tracing. Otherwise the output has what /proc shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import Any, Iterator

from ..basics import UsageError, log
from ..processes import parent, process_state, start_ticks
from .hook import FOLDER, HANDLER, NAME, STACKS, TAKEN
from .rank import rank_number

WAIT_S = 3.0
QUIET_S = 0.15  # a file that has not grown for this long is complete
PY_SPY_S = 15.0
PROCESSES_MAX = 4  # most processes of one rank: there may be several below a shell
LOG_LINES_MAX = 400  # most lines of one node at a stall
LINES_MAX, LINE_CHARS, THREADS_MAX = 60, 300, 16
YAMA = "/proc/sys/kernel/yama/ptrace_scope"  # Linux, Documentation/admin-guide/LSM/Yama.rst
DENIED = re.compile("permission denied|not permitted", re.IGNORECASE)
STATES = {"R": "running", "S": "sleeping", "D": "in a system call that signals do not interrupt", "Z": "zombie",
          "T": "stopped", "t": "stopped by a tracer", "": "gone"}  # fmt: skip


def command_stacks(arguments: list[str]) -> int:
    """Run `stacks [--rank N]`; `muster stacks` runs it in the pod."""
    wanted = None
    if arguments:
        if len(arguments) != 2 or arguments[0] != "--rank" or not arguments[1].isdigit():
            raise UsageError("usage: supervisor.py stacks [--rank N]")
        wanted = int(arguments[1])
    for each in collect(os.environ.get("POD_UID", ""), wanted):
        sys.stdout.write(json.dumps(each) + "\n")
    return 0


def collect(pod_uid: str, wanted: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield each rank of the pod, or the given one: {rank, pid, command, state, source, why, threads: [[line]]}."""
    found = _ranks(pod_uid)
    for rank in sorted(found):
        if wanted in (None, rank):
            for pid, folder in _chosen(found[rank]):
                yield _described(rank, pid, folder)


def log_in_background(pod_uid: str) -> None:
    """Write the stacks of this node's ranks into the log, in a separate thread."""

    def write() -> None:
        left = LOG_LINES_MAX
        try:
            for each in collect(pod_uid):
                why = f" ({each['why']})" if each["why"] else ""
                lines = [
                    f"stack of rank {each['rank']}, process {each['pid']}, {each['state']}, by {each['source']}{why}"
                ]
                for thread in each["threads"]:
                    lines += ["  thread:", *(f"    {line}" for line in thread)]
                for line in lines[: max(0, left)]:
                    log(line)
                left -= len(lines)
        except Exception as error:  # an error here must not end the attempt
            log(f"the stacks could not be collected ({type(error).__name__}: {error})")

    threading.Thread(target=write, name="stacks", daemon=True).start()


def _ranks(pod_uid: str) -> dict[int, list[tuple[int, str]]]:
    """Returns for each rank its processes and the folder of their hook, the oldest first.

    Every rank leads a session. What Python starts below it has no hook; what a shell starts below it has one. If the
    kernel hides the environment of a rank, the environment of its parent names the rank.
    """
    found: dict[int, list[tuple[int, str]]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError, ValueError):
            try:
                env, shim = _environment(pid), False
            except PermissionError:
                env, shim = _environment(parent(pid)), True
            if env.get("POD_UID") != pod_uid or "MUSTER_ATTEMPT" not in env or ("MUSTER_RANK_SOCKET" in env) != shim:
                continue
            folder = os.path.join(os.path.dirname(env["MUSTER_RANK_SOCKET"]), NAME) if shim else env.get(FOLDER, "")
            number = rank_number(env) if shim else env.get("RANK")
            if number is not None and (os.getsid(pid) == pid or (folder and not shim)):
                found.setdefault(int(number), []).append((pid, folder))
    return found


def _environment(pid: int) -> dict[str, str]:
    """The environment that the process began with."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (part.partition("=") for part in file.read().decode("utf-8", "surrogateescape").split("\0"))
        return {name: value for name, _, value in pairs}


def _chosen(processes: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns the processes that registered a handler; if none did, the newest ones."""
    registered = [each for each in processes if _handler(*each)[0]]
    return (registered or processes)[-PROCESSES_MAX:]


def _described(rank: int, pid: int, folder: str) -> dict[str, Any]:
    state = process_state(pid)
    signal, why = _handler(pid, folder)
    threads, source = [], "handler"
    if state in ("T", "t", "Z", ""):
        why = f"the process is {STATES[state]}"
    elif signal:
        threads = _by_signal(pid, folder, signal)
        why = "" if threads else f"it did not answer the signal within {WAIT_S:.0f} s"
    if not threads and state not in ("Z", ""):
        threads, problem = _by_py_spy(pid)
        source, why = "py-spy", f"{why}; {problem}" if problem else why
    if not threads:
        threads, source = [list(_by_proc(pid))], "proc"
    command = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:LINE_CHARS]
    return {
        "rank": rank, "pid": pid, "command": command, "state": STATES.get(state, state), "source": source, "why": why,
        "threads": [[_short(line) for line in thread[:LINES_MAX]] for thread in threads[:THREADS_MAX]],
    }  # fmt: skip


def _handler(pid: int, folder: str) -> tuple[int, str]:
    """Return the signal for which the process has our handler, by its note and by the kernel; or 0 and the reason."""
    none = "it registered no handler: it is not Python, or began with -S, -I or -E, or runs another program now"
    try:
        with open(os.path.join(folder, f"{HANDLER}{pid}"), encoding="ascii") as file:
            started, number = file.read().split()
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = {line[:6]: int(line.split()[1], 16) for line in file if line.startswith(("SigCgt:", "SigBlk:"))}
        bit = 1 << (int(number) - 1) if int(number) else 0
        caught, blocked = masks["SigCgt"], masks["SigBlk"]
    except (OSError, ValueError, KeyError):
        return 0, none
    if start_ticks(pid) != started:
        return 0, none
    if (
        int(number) == TAKEN or blocked & bit
    ):  # a process that blocks the signal may wait for it (sigwait(3), signalfd(2))
        return 0, "the program uses the signal for stacks itself"
    return (int(number), "") if caught & bit else (0, none)


def _by_signal(pid: int, folder: str, number: int) -> list[list[str]]:
    """Returns the stacks that the process writes about itself, the main thread first; empty if it does not."""
    path = os.path.join(folder, f"{STACKS}{pid}")
    try:
        os.truncate(path, 0)
        os.kill(pid, number)
        deadline, size, since = time.monotonic() + WAIT_S, 0, time.monotonic()
        while time.monotonic() < deadline and (not size or time.monotonic() - since < QUIET_S):
            time.sleep(0.02)
            now = os.stat(path).st_size
            if now != size:
                size, since = now, time.monotonic()
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError:
        return []
    return _blocks(text, ("Thread 0x", "Current thread 0x"))[::-1]  # the main thread is the oldest


def _by_py_spy(pid: int) -> tuple[list[list[str]], str]:
    """Returns the stacks from py-spy, or none and the reason."""
    program = shutil.which("py-spy")
    if program is None:
        return [], "the image has no py-spy"
    try:
        result = subprocess.run(
            [program, "dump", "--pid", str(pid)], stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"py-spy: {error}"
    threads = _blocks(result.stdout.decode("utf-8", "replace"), ("Thread ",)) if result.returncode == 0 else []
    if threads:
        return threads, ""
    said = result.stderr.decode("utf-8", "replace").strip()
    if DENIED.search(said):
        return [], f"py-spy may not trace it: {_why_denied(pid)}"
    return [], f"py-spy: {(said.splitlines() or ['no stack'])[0][:LINE_CHARS]}"


def _why_denied(pid: int) -> str:
    """Returns what forbids tracing the process (ptrace(2), "Ptrace access mode checking"), and what would allow it."""
    scope = _first_line(YAMA)
    if scope == "3":
        return f"{YAMA} is 3, which forbids all tracing"
    if scope in ("1", "2") and not _may_trace():
        return f"{YAMA} is {scope}, and the container lacks the capability SYS_PTRACE"
    try:
        os.readlink(f"/proc/{pid}/exe")  # needs the same rights as tracing, apart from security modules
    except PermissionError:
        return "it has other rights or hides itself, and the container lacks the capability SYS_PTRACE"
    except OSError:
        return "it is gone"
    return "a security module or a seccomp profile of the container forbids it"


def _may_trace() -> bool:
    """Returns whether this process has the capability SYS_PTRACE, number 19 (capabilities(7))."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return any(line.startswith("CapEff:") and int(line.split()[1], 16) >> 19 & 1 for line in file)


def _by_proc(pid: int) -> Iterator[str]:
    """Yields what the kernel shows about the process (proc_pid_wchan(5), proc_pid_syscall(5), proc_pid_stack(5))."""
    yield f"state: {STATES.get(process_state(pid), process_state(pid))}"
    for name in ("wchan", "syscall"):
        said = _first_line(f"/proc/{pid}/{name}")
        if said not in ("", "0"):
            yield f"{name}: {said}"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stack", encoding="ascii", errors="replace") as file:
        for line in file.read(1 << 16).splitlines():
            yield f"kernel: {line.partition('] ')[2] or line}"


def _blocks(text: str, heads: tuple[str, ...]) -> list[list[str]]:
    """Return the lines after each header line."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(heads):
            found.append([])
        elif found and line.strip():
            found[-1].append(line.strip())
    return [each for each in found if each]


def _short(line: str) -> str:
    """Shorten paths below the ranks' folder, because the folder differs between nodes of a test cluster."""
    folder = os.environ.get("MUSTER_WORKDIR", "")
    return (line.replace(folder.rstrip("/") + "/", "") if folder else line)[:LINE_CHARS]


def _first_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.readline().strip()
    return ""

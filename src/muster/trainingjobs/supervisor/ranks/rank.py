"""`rank -- COMMAND`: the process between a launcher and one rank."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from typing import Mapping

from ..basics import PR_SET_PDEATHSIG, UsageError, log, prctl, socket_name, write_all
from ..exits import outcome_of, signal_group
from .hook import FOLDER, NAME
from .messages import receive_message, send_message

NOT_FOUND_CODES = (126, 127)  # exit codes of shells for a command that they cannot execute or find
LINGER_S = 3.0


def command_rank(arguments: list[str]) -> int:
    """Run one rank's command, report its exit to the pod's supervisor, and exit in the same way."""
    if len(arguments) < 2 or arguments[0] != "--":
        raise UsageError("usage: supervisor.py rank -- COMMAND...")
    # If the launcher is killed, the kernel kills this process too. The rank itself continues: the supervisor becomes
    # its parent as subreaper, ends it if needed, and learns how it ended.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    env = dict(os.environ)

    def first(*names: str) -> str | None:
        return next((env[name] for name in names if env.get(name)), None)

    numbers = {
        "RANK": rank_number(env),
        "WORLD_SIZE": first("MUSTER_WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"),
        "LOCAL_RANK": first("MUSTER_LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"),
        "LOCAL_WORLD_SIZE": first("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
    }
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_name(env["MUSTER_RANK_SOCKET"]) as name:
            door.connect(name)
        send_message(door, {"attempt": env.get("MUSTER_ATTEMPT"), "rank": numbers["RANK"] or 0})
        reply, fds = receive_message(door)
    except (KeyError, OSError) as error:
        raise UsageError(f"rank works only below a supervisor (MUSTER_RANK_SOCKET: {error})") from error
    if reply is None:
        log("rank {}: its attempt is over".format(numbers["RANK"]))
        return 143
    env.update({name: value for name, value in reply["env"].items() if name not in numbers and value is not None})
    env.update({name: numbers[name] or reply["env"].get(name, "0") for name in numbers})
    env[FOLDER] = os.path.join(os.path.dirname(env["MUSTER_RANK_SOCKET"]), NAME)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (env[FOLDER], env.get("PYTHONPATH", "")) if part)
    for name in ("MUSTER_RANK", "MUSTER_WORLD_SIZE", "MUSTER_LOCAL_RANK", "MUSTER_RANK_SOCKET"):
        env.pop(name, None)
    child: subprocess.Popen[bytes] | None = None
    forwarded: list[int] = []

    def forward(number: int, frame: object) -> None:
        forwarded.append(number)
        if child is not None:
            signal_group(child.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, forward)
    try:
        # close_fds=False: the rank needs the launcher's descriptors (PMI_FD). Python's own are not inheritable.
        child = subprocess.Popen(
            arguments[1:], env=env, cwd=reply["cwd"], stdin=subprocess.DEVNULL, stdout=fds[0], stderr=fds[1],
            close_fds=False, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        write_all(fds[1], (f"muster: cannot start {shlex.quote(arguments[1])}: {error}\n").encode())
        code = 127 if error.errno == errno.ENOENT else 126
        send_message(door, {"status": code << 8, "errno": error.errno or 0})
        return code
    finally:
        os.close(fds[0])
        os.close(fds[1])
    send_message(door, {"pid": child.pid})
    threading.Thread(target=rank_watch, args=(door, child.pid), daemon=True).start()
    _, status = os.waitpid(child.pid, 0)
    child.returncode = status
    with contextlib.suppress(OSError):
        send_message(door, {"status": status, "stopped": signal.SIGTERM in forwarded})
    code, killed_by = outcome_of(status)
    if code in NOT_FOUND_CODES and reply.get("lingers"):
        linger(forwarded)
    if killed_by:  # end in the same way, so that the launcher reports it
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(killed_by, signal.SIG_DFL)
        os.kill(os.getpid(), killed_by)
    return code


def linger(forwarded: list[int]) -> None:
    """Delay the end of the other ranks by mpiexec: whether they lack the command too decides who is at fault."""
    deadline = time.monotonic() + LINGER_S
    while time.monotonic() < deadline and not forwarded:
        time.sleep(0.05)


def rank_number(env: Mapping[str, str]) -> str | None:
    """Return the rank's number from the launcher's environment variables; None without one."""
    names = ("MUSTER_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK")
    return next((env[name] for name in names if env.get(name)), None)


def rank_watch(door: socket.socket, pid: int) -> None:
    """Kill the rank when the supervisor is gone; runs in a thread."""
    try:
        while door.recv(64):
            pass
    except OSError:
        pass
    signal_group(pid, signal.SIGKILL)

"""`dial HOST PORT`: ssh's ProxyCommand. Waits until this attempt's sshd answers, and passes the socket to ssh."""

from __future__ import annotations

import signal
import socket
import struct
import time
from typing import Any

from ..basics import PR_SET_PDEATHSIG, UsageError, prctl
from .rsh import patiently, shell_config
from .wire import HANDSHAKE_S, SSHD_MARK, ShellRefused


def command_dial(arguments: list[str]) -> int:
    """Returns 0 after ssh has received the socket (ProxyUseFdpass), 255 if the connection failed."""
    if len(arguments) != 2:
        raise UsageError("usage: supervisor.py dial HOST PORT")
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    config, host, port = shell_config(), arguments[0], int(arguments[1])
    sock = patiently(host, lambda: connect(config, host, port))
    if sock is None:
        return 255
    with sock, socket.socket(fileno=1) as ssh:
        ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", sock.fileno()))])
    return 0


def connect(config: dict[str, Any], host: str, port: int) -> socket.socket:
    """Connect to the sshd of this attempt, without consuming its greeting. Raises ShellRefused or OSError."""
    sock = socket.create_connection((host, port), timeout=HANDSHAKE_S)
    try:
        wanted, deadline = SSHD_MARK.format(config["attempt"]).encode(), time.monotonic() + HANDSHAKE_S
        seen = b""
        while b"\n" not in seen and len(seen) < 256:  # RFC 4253, section 4.2: at most 255 bytes
            seen = sock.recv(256, socket.MSG_PEEK)
            if not seen or time.monotonic() > deadline:
                raise ShellRefused("closed before it said what it is", again=True)
            if b"\n" not in seen:
                time.sleep(0.01)
        line = seen.partition(b"\n")[0].rstrip()
        if not (line.startswith(b"SSH-") and line.endswith(wanted)):
            sock.recv(256)  # otherwise the close would be a reset, which the other side logs
            raise ShellRefused("not running that attempt", again=True)
        sock.settimeout(None)
        return sock
    except BaseException:
        sock.close()
        raise

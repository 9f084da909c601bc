"""`session SOCKET ATTEMPT`: started by sshd. Asks the supervisor to run the session's command with its pipes."""

from __future__ import annotations

import os
import signal
import socket

from ..basics import PR_SET_PDEATHSIG, UsageError, log, prctl, socket_name
from ..ranks.messages import receive_message, send_message


def command_session(arguments: list[str]) -> int:
    """Returns the command's exit code; 255 if it could not run."""
    if len(arguments) != 2:
        raise UsageError("usage: supervisor.py session SOCKET ATTEMPT")
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # when the connection ends, sshd ends, and this process with it
    command = os.environ.get("SSH_ORIGINAL_COMMAND")
    if not command:
        raise UsageError("a remote command is needed: this sshd gives no login shell")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        with socket_name(arguments[0]) as name:
            door.connect(name)
        send_message(door, {"session": int(arguments[1]), "command": command}, (0, 1, 2))
        reply, _ = receive_message(door)
    if reply is None or "code" not in reply:
        log("remote command not run: {}".format((reply or {}).get("error", "the supervisor is gone")))
        return 255
    return int(reply["code"])

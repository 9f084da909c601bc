"""`rsh HOST COMMAND`: the client of the remote shell, which mpiexec uses instead of ssh."""

from __future__ import annotations

import hmac
import json
import os
import random
import secrets
import select
import signal
import socket
import time
from typing import Any, Callable, TypeVar

from ..basics import PR_SET_PDEATHSIG, UsageError, log, prctl, write_all
from .wire import (
    COMMAND,
    EXIT,
    HANDSHAKE_S,
    STDERR,
    STDIN,
    STDIN_END,
    STDOUT,
    Channel,
    ShellRefused,
    read_line,
    send_line,
    shell_mac,
)

T = TypeVar("T")
SHELL_WAIT_S = 120.0  # longest wait for a node that has not received its `run` directive yet


def command_rsh(arguments: list[str]) -> int:
    """Run `rsh [ssh options] HOST COMMAND...` as ssh does.

    Returns the command's exit code; 255 if the connection fails.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in "BbcDEeFIiJLlmOopQRSWw" and rest:  # ssh options with a value
            rest.pop(0)
    if len(rest) < 2:
        raise UsageError("usage: supervisor.py rsh HOST COMMAND...")
    config, host, command = shell_config(), rest[0].rpartition("@")[2], " ".join(rest[1:])
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if "ssh" in config:
        os.execv(config["ssh"][0], [*config["ssh"], host, command])
    channel = patiently(host, lambda: shell_connect(config, host))
    if channel is None:
        return 255
    try:
        return shell_client(channel, command)
    except OSError as error:
        log(f"remote shell to {host}: connection lost: {error}")
        return 255


def shell_config() -> dict[str, Any]:
    """Returns the settings that node rank 0's supervisor wrote for this attempt; UsageError if there are none."""
    try:
        with open(os.environ["MUSTER_SHELL_CONFIG"], encoding="utf-8") as file:
            config: dict[str, Any] = json.load(file)
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"this works only below a supervisor's mpiexec (MUSTER_SHELL_CONFIG: {error})") from error
    return config


def patiently(host: str, connect: Callable[[], T]) -> T | None:
    """Connect, with retries while the node may not have received `run` yet. Logs a failure and returns None."""
    deadline, pause = time.monotonic() + SHELL_WAIT_S, 0.02
    while True:
        try:
            result = connect()
            break
        except (ShellRefused, OSError, ValueError) as error:
            again = error.again if isinstance(error, ShellRefused) else isinstance(error, OSError)
            if not again or time.monotonic() > deadline:
                log(f"remote shell to {host}: {error}")
                return None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)
    return result


def shell_connect(config: dict[str, Any], host: str) -> Channel:
    """Connect to a node's supervisor with mutual authentication. Raises ShellRefused or OSError."""
    port = {entry["address"]: entry["shellPort"] for entry in config["hosts"]}.get(host)
    if port is None:
        raise ShellRefused(f"{host} is not a node of this attempt")
    key = bytes.fromhex(config["key"])
    sock = socket.create_connection((host, port), timeout=HANDSHAKE_S)
    try:
        deadline = time.monotonic() + HANDSHAKE_S
        server_nonce = str(read_line(sock, deadline).get("nonce"))
        nonce = secrets.token_hex(32)
        about = (config["jobUID"], config["attempt"], host, server_nonce, nonce)
        mac = shell_mac(key, "client", *about)
        send_line(sock, {"attempt": config["attempt"], "nonce": nonce, "mac": mac})
        answer = read_line(sock, deadline)
        if "error" in answer:
            begun = answer.get("attempt", config["attempt"])  # an older attempt: the node has not received `run` yet
            raise ShellRefused(f"{host}: {answer['error']}", again=int(begun) < config["attempt"])
        if not hmac.compare_digest(shell_mac(key, "server", *about), str(answer.get("mac"))):
            raise ShellRefused(f"{host} does not hold this attempt's key")
        return Channel(sock, key, "client", f"{server_nonce} {nonce}")
    except BaseException:
        sock.close()
        raise


def shell_client(channel: Channel, command: str) -> int:
    """Run the command through the channel with this process's stdin, stdout and stderr. Returns its exit code."""
    channel.send(COMMAND, command.encode())
    readers: list[Any] = [channel.sock, 0]
    while True:
        readable, _, _ = select.select(readers, [], [])
        if 0 in readable:
            data = os.read(0, 65536)
            channel.send(STDIN, data) if data else channel.send(STDIN_END)
            if not data:
                readers.remove(0)
        for kind, payload in channel.receive() if channel.sock in readable else []:
            if kind in (STDOUT, STDERR):
                write_all(1 if kind == STDOUT else 2, payload)
            elif kind == EXIT:
                return int(json.loads(payload)["code"])

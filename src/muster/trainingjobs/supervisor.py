#!/usr/bin/env python3
"""Muster's rank supervisor: process 1 of every worker pod. One file, standard library only, Python 3.8+.

    supervisor.py install DIR        copy this file to DIR/supervisor.py and the SDK to DIR/sdk/muster (init container)
    supervisor.py run                a worker's main: join the controller, run what it directs, keep nothing alive after
    supervisor.py rank -- COMMAND    one rank: started by mpiexec, torchrun or `run`, tells `run` how the command ended
    supervisor.py rsh HOST COMMAND   the ssh role for mpiexec: run COMMAND below the supervisor of HOST

Sections: settings and code | controller link | remote shell | processes and output | ranks | launchers | supervisor |
sub-commands. The wire formats are in docs/dev/ARCHITECTURE.md, section "Supervisor protocol".
"""

from __future__ import annotations

import sys

# Run as a script from the source tree, its neighbours (secrets.py) must not shadow the library's.
# ruff: noqa: E402
sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]

import base64
import collections
import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import queue
import random
import re
import secrets
import select
import selectors
import shlex
import shutil
import signal
import socket
import ssl
import stat
import struct
import subprocess
import tarfile
import tempfile
import threading
import time
import traceback
import urllib.parse
import urllib.request
from typing import Any, Callable, Mapping, NoReturn

PROTOCOL = 1
GRACE_S = 30.0  # before the controller has said another
HANDSHAKE_S = 10.0  # a remote-shell peer proves who it is within this
SHELL_WAIT_S = 120.0  # a node that has not been told `run` yet is waited for this long
MAX_SHELLS = 64
ORPHAN_EXIT_S = 0.2  # a rank whose launcher has stopped it may still end by itself (MPI_Abort) in this time
ORPHAN_KILL_S = 5.0
# MPI libraries end a rank so when the launcher's connection closes (Open MPI, MPICH); MPICH says so who aborted.
LAUNCHER_GONE = (14, 15)
ABORT = re.compile(r"\bAbort\((-?\d+)\) on node \d+ \(rank \d+ in comm \d+\)")
TAIL_LINES = 20
TAIL_LINE_CHARS = 400
MAX_FRAME_BYTES = 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SIOCGIFADDR = 0x8915  # linux/sockios.h
THIS_FILE = os.path.abspath(__file__)
SELF = [sys.executable or "python3", "-I", "-S", THIS_FILE]  # -I -S: no user site, nothing that shadows the library
_output_lock = threading.Lock()


class UsageError(Exception):
    """Something the user or the pod's maker must change; the message says what."""


def log(message: str) -> None:
    """Write one line about Muster itself to the container's stderr."""
    write_all(2, ("muster: " + message + "\n").encode("utf-8", "replace"))


def write_all(fd: int, data: bytes) -> None:
    """Write to the container's log; a log nobody reads any more is no reason to stop training."""
    with _output_lock:
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            pass


def prctl(option: int, value: int) -> None:
    """The Linux call."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


# ---- settings and code -----------------------------------------------------------------------------------------------


class Settings:
    """What the pod's environment says; UsageError names every variable that is missing or wrong."""

    REQUIRED = (
        "MUSTER_URL", "MUSTER_CA_DATA", "MUSTER_TOKEN_FILE", "MUSTER_NAMESPACE", "MUSTER_JOB", "MUSTER_JOB_UID",
        "MUSTER_SLOT", "POD_NAME", "POD_UID", "POD_IP",
    )  # fmt: skip

    def __init__(self, env: Mapping[str, str]) -> None:
        missing = [name for name in self.REQUIRED if not env.get(name)]
        if missing:
            raise UsageError(
                "missing in the environment: {}. A TrainingJob's pods carry them; was this pod made by Muster?".format(
                    ", ".join(missing)
                )
            )
        self.url = urllib.parse.urlsplit(env["MUSTER_URL"])
        if self.url.scheme != "https" or not self.url.hostname:
            raise UsageError("MUSTER_URL must be https://HOST[:PORT], not {!r}".format(env["MUSTER_URL"]))
        try:
            self.ca = base64.b64decode(env["MUSTER_CA_DATA"], validate=True).decode("ascii")
            self.tls = ssl.create_default_context(cadata=self.ca)
        except (ValueError, ssl.SSLError) as error:
            raise UsageError(f"MUSTER_CA_DATA must be base64 of PEM certificates: {error}") from error
        self.token_file = env["MUSTER_TOKEN_FILE"]
        try:
            self.address = str(ipaddress.ip_address(env["POD_IP"]))
        except ValueError as error:
            raise UsageError(f"POD_IP: {error}") from error
        self.job = env["MUSTER_NAMESPACE"] + "/" + env["MUSTER_JOB"]
        self.job_uid = env["MUSTER_JOB_UID"]
        self.workdir = os.path.abspath(env.get("MUSTER_WORKDIR") or os.getcwd())
        self.code_archive = env.get("MUSTER_CODE_ARCHIVE", "")
        self.code_url = env.get("MUSTER_CODE_URL", "")
        self.code_sha256 = env.get("MUSTER_CODE_SHA256", "").lower()
        if self.code_url and not re.fullmatch("[0-9a-f]{64}", self.code_sha256):
            raise UsageError("MUSTER_CODE_URL needs MUSTER_CODE_SHA256, 64 hex digits")


def install_code(settings: Settings) -> None:
    """Put the job's code below the working directory, once per archive; raises UsageError where that cannot be."""
    os.makedirs(settings.workdir, exist_ok=True)
    if not (settings.code_archive or settings.code_url):
        return
    path = settings.code_archive or download(settings.code_url, settings.code_sha256)
    try:
        digest = file_sha256(path)
        mark = os.path.join(settings.workdir, ".muster-code-" + digest[:16])
        if not os.path.exists(mark):
            unpack(path, settings.workdir)
            with open(mark, "w", encoding="ascii") as file:
                file.write(digest + "\n")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"cannot unpack the code archive {path}: {error}") from error
    finally:
        if not settings.code_archive:
            os.unlink(path)


def download(url: str, sha256: str, attempts: int = 6) -> str:
    """Fetch the code archive into a temporary file and check its digest; retries, then raises UsageError."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"MUSTER_CODE_URL must be http(s), not {url!r}")
    for attempt in range(1, attempts + 1):
        handle, path = tempfile.mkstemp(prefix="muster-code-")
        try:
            with os.fdopen(handle, "wb") as file, urllib.request.urlopen(url, timeout=30) as response:
                shutil.copyfileobj(response, file)
        except (OSError, http.client.HTTPException) as error:
            os.unlink(path)
            if attempt == attempts:
                raise UsageError(f"cannot fetch the code from {url}: {error}") from error
            log(f"fetching the code from {url} failed ({error}), trying again")
            time.sleep(min(30.0, 2.0**attempt) * random.uniform(0.5, 1.0))
            continue
        if file_sha256(path) == sha256:
            return path
        os.unlink(path)
        raise UsageError(f"the code at {url} does not have the SHA-256 that the job names ({sha256})")
    raise AssertionError


def file_sha256(path: str) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def unpack(path: str, folder: str) -> None:
    """Extract a tar.gz below `folder`; UsageError, with nothing written, where a member is a link or lies outside."""
    root = os.path.realpath(folder)

    def inside(name: str) -> bool:
        return os.path.realpath(os.path.join(root, name)).startswith(root + os.sep) or name in ("", ".")

    with tarfile.open(path, "r:gz") as archive:
        members = archive.getmembers()
        for member in members:
            target = os.path.normpath(member.name)
            if os.path.isabs(target) or target.split(os.sep)[0] == ".." or not (member.isreg() or member.isdir()):
                raise UsageError(f"the code archive may only hold plain files and folders inside it: {member.name!r}")
        for member in members:
            if not inside(member.name):  # through a link that was there before
                raise UsageError(f"the code archive would write outside the working directory: {member.name!r}")
            target = os.path.join(root, member.name)
            if member.isdir():
                os.makedirs(target, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None
            with source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)
            os.chmod(target, 0o755 if member.mode & stat.S_IXUSR else 0o644)


# ---- controller link -------------------------------------------------------------------------------------------------


class ControllerLink(threading.Thread):
    """The long poll: `report()` replaces what is reported and cuts a waiting poll short.

    Directives go to `on_directive`. It retries for ever: ranks run whether the controller is there or not.
    """

    def __init__(self, settings: Settings, on_directive: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(name="controller-link", daemon=True)
        self._settings, self._on_directive = settings, on_directive
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._cut = False
        self._body: dict[str, Any] = {}
        self._waiting: socket.socket | None = None
        self._connection: http.client.HTTPSConnection | None = None
        self._revision, self._poll_s = 0, 20.0
        self._failures, self._complained_at = 0, float("-inf")

    def report(self, body: dict[str, Any]) -> None:
        """Say this from now on, beginning at once."""
        with self._lock:
            self._body = body
            self._changed.set()
            if self._waiting is not None:
                self._cut = True
                with contextlib.suppress(OSError):  # below TLS: wakes the reader, whose the TLS object is
                    socket.socket.shutdown(self._waiting, socket.SHUT_RDWR)

    def run(self) -> None:
        """Poll for ever."""
        while True:
            reused = self._connection is not None
            try:
                status, retry_after, answer = self._poll()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._disconnect()
                if self._cut:  # by report()
                    self._cut = False
                elif not reused:  # else an idle connection was closed: a fresh one may do
                    self._pause(None, f"{type(error).__name__}: {error}")
                continue
            if status == 200 and isinstance(answer.get("revision"), int):
                if self._failures:
                    log("the controller answers again")
                self._failures, self._complained_at = 0, float("-inf")
                self._revision = answer["revision"]
                poll_s = answer.get("pollS")
                self._poll_s = min(max(float(poll_s), 1.0), 300.0) if isinstance(poll_s, (int, float)) else 20.0
                self._on_directive(answer)
            else:
                self._disconnect()  # the next connection may reach the replica that leads
                self._pause(retry_after, f"HTTP {status} {str(answer.get('message', ''))[:200]}")

    def _poll(self) -> tuple[int, str | None, dict[str, Any]]:
        url = self._settings.url
        if self._connection is None:
            connection = http.client.HTTPSConnection(
                url.hostname or "", url.port or 443, timeout=HANDSHAKE_S, context=self._settings.tls
            )
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._connection = connection
        with open(self._settings.token_file, encoding="ascii") as file:
            token = file.read().strip()
        connection = self._connection
        with self._lock:
            self._changed.clear()
            self._cut = False
            body = json.dumps(dict(self._body, protocol=PROTOCOL, revision=self._revision)).encode()
            self._waiting = connection.sock
        try:
            connection.sock.settimeout(self._poll_s + 10.0)
            headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
            connection.request("POST", url.path.rstrip("/") + "/v1/supervise", body, headers)
            response = connection.getresponse()
            data = response.read(4 << 20)
            try:
                answer = json.loads(data or b"{}")
            except ValueError:
                answer = {"message": data[:200].decode("utf-8", "replace")}
            return response.status, response.headers.get("Retry-After"), answer if isinstance(answer, dict) else {}
        finally:
            with self._lock:
                self._waiting = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pause(self, retry_after: str | None, why: str) -> None:
        self._failures += 1
        delay = min(15.0, 0.25 * 2.0 ** min(self._failures, 6))
        if retry_after is not None and retry_after.isdigit():
            delay = min(max(float(retry_after), 0.2), 30.0)
        if self._failures > 1 and time.monotonic() - self._complained_at > 60:
            self._complained_at = time.monotonic()
            log(f"no directive from the controller ({why}); ranks go on, trying again")
        self._changed.wait(delay * random.uniform(0.5, 1.0))  # a change is worth one try at once
        self._changed.clear()


# ---- remote shell ----------------------------------------------------------------------------------------------------
# Handshake, one JSON line each: server {"nonce"}; client {"attempt", "nonce", "mac"}; server {"mac"} or {"error"}.
# A mac is HMAC-SHA256(attempt key, role, job UID, attempt, address called, both nonces): each side proves that it
# holds the key, for this pod's address, and nothing can be replayed. Then frames, each with the mac of its number and
# content.

COMMAND, STDIN, STDIN_END, STDOUT, STDERR, EXIT = range(6)


class ShellRefused(Exception):
    """The peer would not, or could not prove who it is; `again` where a later try may do."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


def shell_mac(key: bytes, *parts: object) -> str:
    """Hex HMAC-SHA256 over the parts, unambiguously joined."""
    return hmac.new(key, json.dumps([str(part) for part in parts]).encode(), hashlib.sha256).hexdigest()


def read_line(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """One JSON line of a handshake, byte by byte so that nothing behind it is taken."""
    line = b""
    while not line.endswith(b"\n"):
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > 4096 or time.monotonic() > deadline:
            raise ShellRefused("handshake broken off", again=not line)
        line += byte
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ShellRefused("handshake: not an object")
    return message


def send_line(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one JSON line of a handshake."""
    sock.sendall(json.dumps(message).encode() + b"\n")


class Channel:
    """Framed, authenticated bytes over a socket after the handshake."""

    def __init__(self, sock: socket.socket, key: bytes, role: str, nonces: str) -> None:
        self.sock = sock
        sock.settimeout(60.0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a vanished node is noticed within 45 s
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6), ("TCP_NODELAY", 1)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        other = "client" if role == "server" else "server"
        self._out, self._in = (bytes.fromhex(shell_mac(key, "frames", side, nonces)) for side in (role, other))
        self._sent = self._received = 0
        self._buffer = b""

    def _frame_mac(self, key: bytes, number: int, frame: bytes) -> bytes:
        return hmac.new(key, struct.pack(">Q", number) + frame, hashlib.sha256).digest()[:16]

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send one frame."""
        frame = struct.pack(">BI", kind, len(payload)) + payload
        self.sock.sendall(frame + self._frame_mac(self._out, self._sent, frame))
        self._sent += 1

    def receive(self) -> list[tuple[int, bytes]]:
        """Frames that have come; blocks for at least some bytes. ConnectionError at the end or where one is forged."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        self._buffer += data
        frames = []
        while len(self._buffer) >= 5:
            kind, size = struct.unpack(">BI", self._buffer[:5])
            if size > MAX_FRAME_BYTES:
                raise ConnectionError("frame too large")
            if len(self._buffer) < 5 + size + 16:
                break
            frame, mac = self._buffer[: 5 + size], self._buffer[5 + size : 21 + size]
            if not hmac.compare_digest(mac, self._frame_mac(self._in, self._received, frame)):
                raise ConnectionError("a frame is not the peer's")
            self._received += 1
            self._buffer = self._buffer[21 + size :]
            frames.append((kind, frame[5:]))
        return frames


class ShellServer(threading.Thread):
    """Accepts the commands of node rank 0's mpiexec.

    `current()` gives the newest attempt begun here and its key, or no key when no commands may run; `start(command)`
    has one run by the main thread, and `ended(child, lost)` is told when its session is over.
    """

    def __init__(
        self,
        settings: Settings,
        current: Callable[[], tuple[int, bytes]],
        start: Callable[[str], Child],
        ended: Callable[[Child, bool], None],
    ) -> None:
        super().__init__(name="shell-server", daemon=True)
        self._settings, self._current, self._start, self._ended = settings, current, start, ended
        self._slots = threading.BoundedSemaphore(MAX_SHELLS)
        family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.bind((settings.address, 0))
        except OSError as error:
            raise UsageError(f"cannot listen on POD_IP {settings.address}: {error}") from error
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]

    def run(self) -> None:
        """Accept for ever; at most MAX_SHELLS at once, the others wait in the listen queue."""
        while True:
            self._slots.acquire()
            try:
                sock, peer = self._socket.accept()
            except OSError as error:
                self._slots.release()
                log(f"remote shell: accept failed: {error}")
                time.sleep(1.0)
                continue
            threading.Thread(target=self._serve, args=(sock, peer[0]), name="shell", daemon=True).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            with sock:
                channel = self._handshake(sock)
                frames = channel.receive()
                while not frames:
                    frames = channel.receive()
                if frames[0][0] != COMMAND:
                    raise ShellRefused("no command")
                child = self._start(frames[0][1].decode())
                lost = True
                try:
                    self._forward(channel, child, frames[1:])
                    lost = False
                finally:
                    self._ended(child, lost)
        except ShellRefused as error:
            if not error.again:
                log(f"remote shell from {peer} refused: {error}")
        except (OSError, ValueError) as error:
            log(f"remote shell from {peer} broke off: {error}")
        finally:
            self._slots.release()

    def _handshake(self, sock: socket.socket) -> Channel:
        deadline = time.monotonic() + HANDSHAKE_S
        nonce = secrets.token_hex(32)
        send_line(sock, {"muster-shell": 1, "nonce": nonce})
        hello = read_line(sock, deadline)
        attempt, key = self._current()
        if not key or hello.get("attempt") != attempt:
            send_line(sock, {"error": "not running that attempt", "attempt": attempt})
            raise ShellRefused(f"not running attempt {hello.get('attempt')!r}", again=True)
        about = (self._settings.job_uid, attempt, self._settings.address, nonce, hello.get("nonce"))
        if not hmac.compare_digest(shell_mac(key, "client", *about), str(hello.get("mac"))):
            send_line(sock, {"error": "wrong key, attempt or address"})
            raise ShellRefused("wrong key, attempt or address")
        send_line(sock, {"mac": shell_mac(key, "server", *about)})
        return Channel(sock, key, "server", "{} {}".format(nonce, hello.get("nonce")))

    def _forward(self, channel: Channel, child: Child, frames: list[tuple[int, bytes]]) -> None:
        """Carry bytes both ways until the command has ended and its output was sent; OSError where the peer is lost."""
        pipes = child.popen
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        assert pipes.stderr is not None
        stdin, pending, stdin_over = pipes.stdin.fileno(), bytearray(), False
        os.set_blocking(stdin, False)
        outputs = {pipes.stdout.fileno(): STDOUT, pipes.stderr.fileno(): STDERR}
        ended_at: float | None = None
        while True:
            for kind, payload in frames:
                if kind == STDIN:
                    pending += payload
                stdin_over = stdin_over or kind == STDIN_END
            if stdin_over and not pending and not pipes.stdin.closed:
                pipes.stdin.close()
            readers: list[Any] = [*outputs] + ([channel.sock] if len(pending) < MAX_FRAME_BYTES else [])
            if not child.ended.is_set():
                readers.append(child.ended_pipe)
            writers = [stdin] if pending and not pipes.stdin.closed else []
            readable, writable, _ = select.select(readers, writers, [], 0.1 if ended_at is not None else None)
            if writable:
                try:
                    del pending[: os.write(stdin, bytes(pending[:65536]))]
                except OSError:  # nobody reads it any more
                    pending.clear()
                    pipes.stdin.close()
            for fd in [fd for fd in outputs if fd in readable]:
                data = os.read(fd, 65536)
                if data:
                    channel.send(outputs[fd], data)
                else:
                    del outputs[fd]
            frames = channel.receive() if channel.sock in readable else []
            if child.ended.is_set() and ended_at is None:
                ended_at = time.monotonic()
            # a background process may hold the pipes for as long as it likes
            if ended_at is not None and (not outputs or time.monotonic() - ended_at > 1.0):
                channel.send(EXIT, json.dumps(dict(zip(("code", "signal"), child.outcome()))).encode())
                return


def shell_connect(config: dict[str, Any], host: str) -> Channel:
    """Connect to a node's supervisor and prove both sides; ShellRefused or OSError."""
    port = {entry["address"]: entry["shellPort"] for entry in config["hosts"]}.get(host)
    if port is None:
        raise ShellRefused(f"{host} is no node of this attempt")
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
            begun = answer.get("attempt", config["attempt"])  # an older one: it has not been told to run yet
            raise ShellRefused(f"{host}: {answer['error']}", again=int(begun) < config["attempt"])
        if not hmac.compare_digest(shell_mac(key, "server", *about), str(answer.get("mac"))):
            raise ShellRefused(f"{host} does not hold this attempt's key")
        return Channel(sock, key, "client", f"{server_nonce} {nonce}")
    except BaseException:
        sock.close()
        raise


def command_rsh(arguments: list[str]) -> int:
    """`rsh [ssh options] HOST COMMAND...`: as ssh does it; exit code of the command, 255 where the connection fails."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in "BbcDEeFIiJLlmOopQRSWw" and rest:  # ssh options that take a value
            rest.pop(0)
    if len(rest) < 2:
        raise UsageError("usage: supervisor.py rsh HOST COMMAND...")
    try:
        with open(os.environ["MUSTER_SHELL_CONFIG"], encoding="utf-8") as file:
            config = json.load(file)
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"rsh works only below a supervisor's mpiexec (MUSTER_SHELL_CONFIG: {error})") from error
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    host, command = rest[0].rpartition("@")[2], " ".join(rest[1:])
    deadline, pause = time.monotonic() + SHELL_WAIT_S, 0.02
    while True:
        try:
            channel = shell_connect(config, host)
            break
        except (ShellRefused, OSError, ValueError) as error:
            again = error.again if isinstance(error, ShellRefused) else isinstance(error, OSError)
            if not again or time.monotonic() > deadline:
                log(f"remote shell to {host}: {error}")
                return 255
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)
    try:
        return shell_client(channel, command)
    except OSError as error:
        log(f"remote shell to {host}: connection lost: {error}")
        return 255


def shell_client(channel: Channel, command: str) -> int:
    """Run the command through the channel with this process's stdin, stdout and stderr; returns its exit code."""
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


# ---- processes and output --------------------------------------------------------------------------------------------


def outcome_of(status: int) -> tuple[int, int]:
    """(code, signal) of a wait status: code is the exit code, or 128 + signal as shells and Kubernetes say it."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def signal_group(pid: int, number: int) -> None:
    """Signal a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def oom_kills(folder: str = "/sys/fs/cgroup") -> int:
    """How often the kernel has killed a process of this container for memory (cgroup v2, else v1); 0 where unknown."""
    for name in ("memory.events", "memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="ascii") as file:
            match = re.search(r"^oom_kill (\d+)$", file.read(), re.MULTILINE)
            if match:
                return int(match.group(1))
    return 0


def descendants(root: int) -> list[int]:
    """Every live process below `root`, from /proc. With the child-subreaper flag no double fork gets away from it."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                children[int(fields[1])].append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Child:
    """A process started by the main thread, reaped by it."""

    def __init__(self, popen: subprocess.Popen[bytes], on_exit: Callable[[Child], None]) -> None:
        self.popen, self.pid, self.on_exit = popen, popen.pid, on_exit
        self.status = 0
        self.ended = threading.Event()
        self.ended_pipe, self._ended_write = os.pipe()

    def finish(self, status: int) -> None:
        """Called once by the reaper."""
        self.status, self.popen.returncode = status, status  # Popen must not wait for a pid that may be somebody else's
        self.ended.set()
        os.close(self._ended_write)
        self.on_exit(self)

    def outcome(self) -> tuple[int, int]:
        """(code, signal)."""
        return outcome_of(self.status)

    def close(self) -> None:
        """Close this side's pipes; after the process has ended and nobody looks at them."""
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):
                    pipe.close()
        os.close(self.ended_pipe)


class Stream:
    """One output pipe of a rank or launcher: copied to the container's log, its last lines kept."""

    def __init__(self, fd: int, sink: int, prefix: bytes) -> None:
        self.fd, self.sink, self.prefix = fd, sink, prefix
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.closed = threading.Event()
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Take bytes; with a prefix only whole lines are written, so that ranks do not cut into each other's."""
        if not self.prefix:
            write_all(self.sink, data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > 16384:
            lines.append(self._partial)
            self._partial = b""
        if lines:
            if self.prefix:
                write_all(self.sink, b"".join(self.prefix + line + b"\n" for line in lines))
            self.tail.extend(line.decode("utf-8", "replace")[:TAIL_LINE_CHARS] for line in lines)

    def close(self) -> None:
        """The last writer is gone."""
        if self._partial:
            self.feed(b"\n" if self.prefix else b"")
        if self._partial:
            self.tail.append(self._partial.decode("utf-8", "replace")[:TAIL_LINE_CHARS])
        os.close(self.fd)
        self.closed.set()


class OutputPump(threading.Thread):
    """Copies every rank's output to the container's log, in a thread: a slow log must not stop the protocol."""

    def __init__(self) -> None:
        super().__init__(name="output", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._added: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def pipe(self, sink: int, prefix: str) -> tuple[Stream, int]:
        """A new stream and the write end for the process."""
        read, write = os.pipe()
        stream = Stream(read, sink, prefix.encode())
        self._added.put(stream)
        os.write(self._wake_write, b".")
        return stream, write

    def run(self) -> None:
        """Copy for ever."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    while not self._added.empty():
                        stream = self._added.get()
                        self._selector.register(stream.fd, selectors.EVENT_READ, stream)
                    continue
                data = os.read(key.fd, 65536)
                if data:
                    key.data.feed(data)
                else:
                    self._selector.unregister(key.fd)
                    key.data.close()


# ---- ranks -----------------------------------------------------------------------------------------------------------


def send_message(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """One JSON message between a rank's `rank` process and `run`, with file descriptors where given."""
    data = json.dumps(message).encode()
    data = struct.pack(">I", len(data)) + data
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    sent = sock.sendmsg([data], rights)
    sock.sendall(data[sent:])


def receive_message(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its file descriptors; None at the end."""
    data = b""
    fds: list[int] = []
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        want = 4 - len(data) if len(data) < 4 else 4 + struct.unpack(">I", data[:4])[0] - len(data)
        part, ancillary, _, _ = sock.recvmsg(want, socket.CMSG_SPACE(8 * 4))
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds += struct.unpack(f"{len(value) // 4}i", value[: len(value) // 4 * 4])
        if not part:
            return None, fds
        data += part
    message: dict[str, Any] = json.loads(data[4:])
    return message, fds


class Rank:
    """One rank on this node, as `run` sees it."""

    def __init__(self, number: int, out: Stream, err: Stream) -> None:
        self.number, self.out, self.err = number, out, err
        self.pid = 0  # also its process group
        self.alive = True
        self.signalled = False  # by us, or stopped by the launcher: how it ends then is no failure of its own
        self.orphaned_at: float | None = None  # when its `rank` process was stopped by the launcher

    def signal(self, number: int) -> None:
        """Signal the rank's process group."""
        if self.alive and self.pid:
            self.signalled = True
            signal_group(self.pid, number)

    def tail(self) -> list[str]:
        """The last lines it wrote: stderr, or stdout where it wrote no errors."""
        deadline = time.monotonic() + 0.5  # what was written before the exit is in the pipe already
        for stream in (self.err, self.out):
            stream.closed.wait(max(0.0, deadline - time.monotonic()))
        return list(self.err.tail) or list(self.out.tail)


class RankDoor(threading.Thread):
    """The unix socket where `rank` processes report; calls back in the main thread through `post`."""

    def __init__(self, path: str, post: Callable[[Callable[[], None]], None], supervisor: Supervisor) -> None:
        super().__init__(name="rank-door", daemon=True)
        self._post, self._supervisor = post, supervisor
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen(256)

    def run(self) -> None:
        """Accept for ever; a thread for each rank of this node."""
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), name="rank", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        rank: Rank | None = None
        with sock:
            try:
                hello, _ = receive_message(sock)
                answer: queue.SimpleQueue[tuple[Rank, dict[str, Any], tuple[int, int]] | None] = queue.SimpleQueue()
                self._post(lambda: answer.put(self._supervisor.rank_begins(hello or {})))
                accepted = answer.get()
                if accepted is None:
                    return
                rank, reply, fds = accepted
                try:
                    send_message(sock, reply, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                while True:
                    message, _ = receive_message(sock)
                    if message is None:
                        break
                    if "pid" in message:
                        rank.pid = int(message["pid"])
                    if "status" in message:
                        rank.signalled = rank.signalled or bool(message.get("stopped"))
                        self._post(functools.partial(self._supervisor.rank_ended, rank, int(message["status"])))
                        return
            except OSError:
                pass
        if rank is not None:
            self._post(functools.partial(self._supervisor.rank_orphaned, rank))


def command_rank(arguments: list[str]) -> int:
    """`rank -- COMMAND...`: run one rank's command, report its exit to this pod's supervisor, and end the same way."""
    if len(arguments) < 2 or arguments[0] != "--":
        raise UsageError("usage: supervisor.py rank -- COMMAND...")
    # A launcher that is killed takes this process with it. The rank itself carries no such signal: the supervisor, its
    # subreaper, becomes its parent, learns how it ends, and sees to it that it does.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    env = dict(os.environ)

    def first(*names: str) -> str | None:
        return next((env[name] for name in names if env.get(name)), None)

    numbers = {
        "RANK": first("MUSTER_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK"),
        "WORLD_SIZE": first("MUSTER_WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"),
        "LOCAL_RANK": first("MUSTER_LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"),
        "LOCAL_WORLD_SIZE": first("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"),
    }
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.connect(env["MUSTER_RANK_SOCKET"])
        send_message(door, {"attempt": env.get("MUSTER_ATTEMPT"), "rank": numbers["RANK"] or 0})
        reply, fds = receive_message(door)
    except (KeyError, OSError) as error:
        raise UsageError(f"rank works only below a supervisor (MUSTER_RANK_SOCKET: {error})") from error
    if reply is None:
        log("rank {}: its attempt is over".format(numbers["RANK"]))
        return 143
    env.update({name: value for name, value in reply["env"].items() if name not in numbers and value is not None})
    env.update({name: numbers[name] or reply["env"].get(name, "0") for name in numbers})
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
        # close_fds=False: the launcher's own descriptors (PMI_FD) must reach the rank; Python's are not inheritable.
        child = subprocess.Popen(
            arguments[1:], env=env, cwd=reply["cwd"], stdin=subprocess.DEVNULL, stdout=fds[0], stderr=fds[1],
            close_fds=False, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        write_all(fds[1], (f"muster: cannot start {shlex.quote(arguments[1])}: {error}\n").encode())
        code = 127 if error.errno == errno.ENOENT else 126
        send_message(door, {"status": code << 8})
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
    if killed_by:  # end as it did, so that the launcher says so too
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(killed_by, signal.SIG_DFL)
        os.kill(os.getpid(), killed_by)
    return code


def rank_watch(door: socket.socket, pid: int) -> None:
    """Kill the rank when the supervisor is gone."""
    try:
        while door.recv(64):
            pass
    except OSError:
        pass
    signal_group(pid, signal.SIGKILL)


# ---- launchers -------------------------------------------------------------------------------------------------------


class CannotStart(Exception):
    """The attempt cannot start on this node; the message says what to change."""


class Attempt:
    """What a `run` directive asks of this node, and how far it has come. ValueError, KeyError where malformed."""

    def __init__(self, directive: dict[str, Any]) -> None:
        run = directive["run"]
        self.number, self.launcher = int(directive["attempt"]), str(run["launcher"])
        self.command = [str(part) for part in run["command"]]
        self.ranks_per_node, self.node_rank, self.nodes = (int(run[k]) for k in ("ranksPerNode", "nodeRank", "nodes"))
        self.key = bytes.fromhex(run["key"])
        self.master_address, self.master_port = str(run.get("masterAddress", "")), int(run.get("masterPort") or 0)
        self.hosts: list[dict[str, Any]] = list(run.get("hosts") or [])
        self.extra_arguments = [str(part) for part in run.get("mpiArgs") or []]
        checkpoint = run.get("checkpoint") or {}
        self.checkpoint = str(checkpoint.get("path", ""))
        self.env = {str(name): str(value) for name, value in (run.get("env") or {}).items()}
        self.env["MUSTER_ATTEMPT"] = str(self.number)
        self.env["MUSTER_CHECKPOINT"] = self.checkpoint
        self.env["MUSTER_CHECKPOINT_STEP"] = str(checkpoint.get("step", "")) if self.checkpoint else ""
        if self.launcher not in ("mpi", "torchrun", "none") or not self.command or len(self.key) < 16:
            raise ValueError("launcher, command or key")
        self.ranks: list[Rank] = []
        self.roots: dict[Child, list[Stream]] = {}  # launcher, remote commands or `rank` processes; their output
        self.began = False  # it has had a root
        self.oom_kills = oom_kills()
        self.exit: dict[str, Any] | None = None
        # a launcher's failure, told where no rank of this node turns out to be the reason
        self.launcher_exit: tuple[tuple[int, int], str, list[str]] | None = None
        self.launcher_exit_due = 0.0

    def launcher_failed(self, outcome: tuple[int, int], reason: str, tail: list[str]) -> None:
        """Note how the launcher ended; a rank's own exit, if there is one, is known soon."""
        if self.launcher_exit is None or reason == "launcher exited":  # which says more than a lost connection
            self.launcher_exit, self.launcher_exit_due = (outcome, reason, tail), time.monotonic() + 5.0

    def rank_env(self) -> dict[str, str]:
        """What each of this node's ranks gets beyond the pod's environment and the numbers from its launcher."""
        env = {"NODE_RANK": str(self.node_rank), "LOCAL_WORLD_SIZE": str(self.ranks_per_node)}
        if self.launcher != "torchrun":  # which sets its own
            env.update(MASTER_ADDR=self.master_address, MASTER_PORT=str(self.master_port))
        return env

    def prefix(self, rank: int) -> str:
        """What begins each line of a rank in the log."""
        return f"[rank {rank}] " if self.launcher == "mpi" or self.ranks_per_node > 1 else ""


def which(name: str, env: Mapping[str, str]) -> str | None:
    """The program on the pod's PATH."""
    return shutil.which(name, path=env.get("PATH"))


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address; CannotStart where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    raise CannotStart(f"launcher mpi: no network interface has POD_IP {address}")


def mpi_command(attempt: Attempt, settings: Settings, folder: str, env: dict[str, str]) -> list[str]:
    """The mpiexec command line that starts `supervisor.py rank` on every node through `supervisor.py rsh`.

    -genvnone: a rank has the environment of its own pod, which its node's supervisor gives to the remote command, not
    that of rank 0's. -localhost: an address the others reach; a pod's host name often has no DNS record.
    """
    program = next((path for path in (which(n, env) for n in ("mpiexec.hydra", "mpiexec", "mpirun")) if path), None)
    if program is None:
        raise CannotStart("launcher mpi: no mpiexec or mpirun on PATH; the image needs MPICH, Intel MPI or Open MPI")
    try:
        version = subprocess.run(
            [program, "--version"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=20, check=False,
        ).stdout.decode("utf-8", "replace")  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(f"launcher mpi: {program} --version: {error}") from error
    open_mpi = re.search(r"(?:Open MPI|OpenRTE|PRRTE|prterun)\D*(\d+)", version)
    files = {name: os.path.join(folder, name) for name in ("shell.json", "hosts", "agent")}
    config = {"attempt": attempt.number, "jobUID": settings.job_uid, "key": attempt.key.hex(), "hosts": attempt.hosts}
    slots = "{} slots={}\n" if open_mpi else "{}:{}\n"
    agent = '#!/bin/sh\nexec {} rsh "$@"\n'.format(" ".join(shlex.quote(part) for part in SELF))
    texts = {
        "shell.json": json.dumps(config),
        "hosts": "".join(slots.format(host["address"], host["ranks"]) for host in attempt.hosts),
        "agent": agent,
    }
    for name, path in files.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(texts[name])
        os.chmod(path, 0o700 if name == "agent" else 0o600)
    env["MUSTER_SHELL_CONFIG"] = files["shell.json"]
    total = sum(int(host["ranks"]) for host in attempt.hosts)
    rank = [*SELF, "rank", "--", *attempt.command]
    if open_mpi:
        env.update({name + "_ALLOW_RUN_AS_ROOT" + end: "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")})
        family, kind = ("--prtemca", "plm_ssh") if int(open_mpi.group(1)) >= 5 else ("--mca", "plm_rsh")
        return [
            program, "--hostfile", files["hosts"], family, kind + "_agent", files["agent"],
            family, kind + "_no_tree_spawn", "1", "--leave-session-attached", "--bind-to", "none", "--map-by", "slot",
            *attempt.extra_arguments, "-np", str(total), *rank,
        ]  # fmt: skip
    interface = []
    if all(ipaddress.ip_address(host["address"]).is_loopback for host in attempt.hosts):
        interface = ["-iface", "lo"]
    elif "Intel" in version:  # whose -localhost does not reach its bootstrap proxies
        interface = ["-iface", interface_of(settings.address)]
    return [
        program, "-launcher", "ssh", "-launcher-exec", files["agent"], "-f", files["hosts"],
        "-localhost", settings.address, *interface, "-genvnone",
        *attempt.extra_arguments, "-n", str(total), *rank,
    ]  # fmt: skip


def torchrun_command(attempt: Attempt, env: dict[str, str]) -> list[str]:
    """Torchrun with fixed nodes and no restarts of its own. Underscored options: PyTorch before 2.0 knows no others."""
    program = which("torchrun", env)
    if program is None:
        raise CannotStart("launcher torchrun: no torchrun on PATH; the image needs PyTorch")
    return [
        program, "--nnodes", str(attempt.nodes), "--nproc_per_node", str(attempt.ranks_per_node),
        "--node_rank", str(attempt.node_rank), "--master_addr", attempt.master_address,
        "--master_port", str(attempt.master_port), "--max_restarts", "0",
        "--no_python", *SELF, "rank", "--", *attempt.command,
    ]  # fmt: skip


# ---- supervisor ------------------------------------------------------------------------------------------------------
# state     what happens                            next
# idle      hold of attempt a                       idle; reports a: nothing of an older attempt lives here
# idle      run of a newer attempt than any before  running
# running   hold or run of a newer attempt          stopping, then idle, then what is directed
# running   hold or run of this or an older one     running (a restarted controller is still gathering its pods)
# running   a rank fails (torchrun, none)           stopping, then finished; its exit is reported at once
# running   a rank fails (mpi)                      running until mpiexec has stopped the rest; reported at once
# running   all ended, or could not start           finished
# finished  hold or run of a newer attempt          idle, then what is directed
# any       exit of this or a newer attempt         stopping, then this process exits with exitCode
# any       SIGTERM                                 stopping, then this process exits with 143
# stopping: SIGTERM to the ranks, graceS later SIGKILL; mpiexec and shells; every descendant until /proc shows none.


class Supervisor:
    """The state machine. Everything here runs in the main thread; other threads hand it functions through `post`."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self.settings, self.folder = settings, folder
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.post = self.events.put
        self.children: dict[int, Child] = {}
        self.state, self.held, self.grace_s = "idle", 0, GRACE_S
        self.attempt: Attempt | None = None  # of states running, stopping and finished
        self.last: Attempt | None = None  # the newest that ran here; its exit is told until another runs
        self.directive: dict[str, Any] = {}
        self.then, self.exit_code = "", 0  # what follows stopping
        self.stop_deadline, self.kill_deadline = 0.0, float("inf")
        self.over = False
        self.output = OutputPump()
        self.door = RankDoor(os.path.join(folder, "ranks"), self.post, self)
        self.shells = ShellServer(settings, self.shell_key, self.shell_start, self.shell_ended)
        self.link = ControllerLink(settings, lambda directive: self.post(lambda: self.directed(directive)))

    def run(self) -> int:
        """Serve until told to exit; returns the exit code."""
        self.report()
        for thread in (self.output, self.door, self.shells, self.link):
            thread.start()
        while not self.over:
            busy = self.state == "stopping" or any(r.orphaned_at and r.alive for r in self.ranks())
            with contextlib.suppress(queue.Empty):
                self.events.get(timeout=0.05 if busy else 1.0)()
            self.reap()
            self.tick(time.monotonic())
        return self.exit_code

    def report(self) -> None:
        """Tell the controller what is so now."""
        attempt = self.attempt.number if self.attempt else self.held
        body = {
            "state": self.state,
            "attempt": attempt,
            "shellPort": self.shells.port,
            "address": self.settings.address,
        }
        if self.last is not None and self.last.exit is not None:
            body["exit"] = self.last.exit
        self.link.report(body)

    def ranks(self) -> list[Rank]:
        """Of the current attempt."""
        return self.attempt.ranks if self.attempt else []

    # -- directives

    def directed(self, directive: dict[str, Any]) -> None:
        """Take the controller's newest directive."""
        self.directive = directive
        try:
            self.grace_s = max(0.0, float(directive.get("graceS", GRACE_S)))
            self.follow()
        except (KeyError, TypeError, ValueError) as error:
            log(f"the controller's directive cannot be understood ({type(error).__name__}: {error})")

    def follow(self) -> None:
        """Do what the newest directive asks and the table allows."""
        if not self.directive or (self.state == "stopping" and self.then == "exit"):
            return
        desired, number = self.directive["desired"], int(self.directive["attempt"])
        ours = self.attempt.number if self.attempt else self.held
        if desired == "exit" and number >= ours:
            self.exit_code = int(self.directive.get("exitCode", 0))
            self.stop("exit", self.grace_s)
        elif number > ours and self.state == "running":
            self.stop("idle", self.grace_s)
        elif number > ours and self.state == "stopping":
            self.then = "idle"
        elif desired in ("hold", "run") and (number > ours or self.state == "idle"):
            begin = desired == "run" and number >= ours and (self.last is None or number > self.last.number)
            attempt = Attempt(self.directive) if begin else None
            if attempt is not None:
                self.begin(attempt)
            elif number > ours:
                self.state, self.attempt, self.held = "idle", None, number
                self.report()

    def begin(self, attempt: Attempt) -> None:
        """Start the attempt's part of this node."""
        self.state, self.attempt, self.last, self.held = "running", attempt, attempt, attempt.number
        self.banner(
            f"attempt {attempt.number}: node {attempt.node_rank} of {attempt.nodes}, {attempt.launcher}, "
            f"from {attempt.checkpoint or 'the beginning'}"
        )
        self.report()
        env = self.environment(attempt)
        try:
            if attempt.launcher == "mpi":
                if attempt.node_rank == 0:  # the others serve its remote shells
                    self.launch(attempt, mpi_command(attempt, self.settings, self.folder, env), env, "[mpiexec] ")
            elif attempt.launcher == "torchrun":
                self.launch(attempt, torchrun_command(attempt, env), env, "[torchrun] ")
            else:
                for local in range(attempt.ranks_per_node):
                    numbers = {
                        "MUSTER_RANK": str(attempt.node_rank * attempt.ranks_per_node + local),
                        "MUSTER_LOCAL_RANK": str(local),
                        "MUSTER_WORLD_SIZE": str(attempt.nodes * attempt.ranks_per_node),
                    }
                    self.launch(attempt, [*SELF, "rank", "--", *attempt.command], dict(env, **numbers), "")
        except (CannotStart, OSError) as error:
            self.fail(attempt, -1, (127, 0), f"could not start: {error}", [str(error)])
            self.stop("finished", 0.0)

    def environment(self, attempt: Attempt) -> dict[str, str]:
        """The pod's own environment with what the attempt adds; what launchers and remote commands get."""
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **attempt.env}  # what a killed rank printed last must be seen
        sdk = os.path.join(os.path.dirname(THIS_FILE), "sdk")
        if not os.path.isdir(sdk):  # not installed: run from the source tree
            sdk = os.path.dirname(os.path.dirname(os.path.dirname(THIS_FILE)))
        env["PYTHONPATH"] = os.pathsep.join(part for part in (env.get("PYTHONPATH", ""), sdk) if part)
        env["MUSTER_RANK_SOCKET"] = os.path.join(self.folder, "ranks")
        return env

    # -- processes

    def spawn(self, argv: list[str], env: dict[str, str], on_exit: Callable[[Child], None], **pipes: int) -> Child:
        """Start a process in a session of its own."""
        popen: subprocess.Popen[bytes] = subprocess.Popen(
            argv, env=env, cwd=self.settings.workdir, start_new_session=True, **pipes  # type: ignore[call-overload]
        )  # fmt: skip
        child = self.children[popen.pid] = Child(popen, on_exit)
        return child

    def launch(self, attempt: Attempt, argv: list[str], env: dict[str, str], prefix: str) -> None:
        """Start a launcher, or a rank of launcher none."""
        (out, out_end), (err, err_end) = self.output.pipe(1, prefix), self.output.pipe(2, prefix)
        try:
            child = self.spawn(argv, env, self.launcher_ended, stdin=subprocess.DEVNULL, stdout=out_end, stderr=err_end)
        finally:
            os.close(out_end)
            os.close(err_end)
        attempt.roots[child], attempt.began = [out, err], True

    def reap(self) -> None:
        """Collect every process that has ended: ours, and what became ours when its parent died."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                child.finish(status)
            for rank in self.ranks():
                if rank.pid == pid:
                    self.rank_ended(rank, status, orphan=True)

    def launcher_ended(self, child: Child) -> None:
        """mpiexec, torchrun or the parent of a rank has ended."""
        child.close()
        attempt = self.attempt
        if attempt is None or child not in attempt.roots:
            return
        out, err = attempt.roots.pop(child)
        if child.status != 0 and attempt.exit is None and self.state == "running":
            err.closed.wait(0.5)
            attempt.launcher_failed(child.outcome(), "launcher exited", list(err.tail) or list(out.tail))

    # -- ranks

    def rank_begins(self, hello: dict[str, Any]) -> tuple[Rank, dict[str, Any], tuple[int, int]] | None:
        """A `rank` process asks for its environment and output."""
        attempt = self.attempt
        if attempt is None or self.state != "running" or str(hello.get("attempt")) != str(attempt.number):
            return None
        try:
            number = int(hello["rank"])
        except (KeyError, TypeError, ValueError):
            return None
        prefix = attempt.prefix(number)
        (out, out_end), (err, err_end) = self.output.pipe(1, prefix), self.output.pipe(2, prefix)
        rank = Rank(number, out, err)
        attempt.ranks.append(rank)
        return rank, {"env": attempt.rank_env(), "cwd": self.settings.workdir}, (out_end, err_end)

    def rank_ended(self, rank: Rank, status: int, orphan: bool = False) -> None:
        """A rank has ended by itself or was stopped; the first failure of this node is the one to tell."""
        attempt = self.attempt
        if not rank.alive or attempt is None or rank not in attempt.ranks:
            return
        rank.alive = False
        if (status == 0 and not orphan) or attempt.exit is not None or self.state != "running":
            return
        ended_at, tail, outcome, mpi = time.time(), rank.tail(), outcome_of(status), attempt.launcher == "mpi"
        abort = next(filter(None, (ABORT.search(line) for line in reversed(tail))), None)
        if mpi and abort is not None:
            code = int(abort.group(1)) & 255 or 1
            self.fail(attempt, rank.number, (code, 0), "rank called MPI_Abort", tail, ended_at)
        elif orphan or rank.signalled or (mpi and outcome[0] in LAUNCHER_GONE):
            attempt.launcher_failed((255, 0), "ranks stopped by their launcher", tail)
        else:
            memory = outcome[1] == signal.SIGKILL and oom_kills() > attempt.oom_kills
            reason = "rank exited: out of memory, killed by the kernel" if memory else "rank exited"
            self.fail(attempt, rank.number, outcome, reason, tail, ended_at)
            if attempt.launcher != "mpi":
                self.stop("finished", self.grace_s)

    def rank_orphaned(self, rank: Rank) -> None:
        """A rank's parent was killed by the launcher: the rank is ours now."""
        if rank.alive and rank.orphaned_at is None:
            rank.orphaned_at = time.monotonic()
            if self.attempt is not None:
                self.attempt.launcher_failed((255, 0), "ranks stopped by their launcher", [])

    def fail(
        self, attempt: Attempt, rank: int, outcome: tuple[int, int], reason: str, tail: list[str], at: float = 0.0
    ) -> None:
        """Note this node's first failure and tell it at once."""
        attempt.exit = {
            "attempt": attempt.number, "rank": rank, "code": outcome[0], "signal": outcome[1],
            "time": at or time.time(), "tail": tail, "reason": reason,
        }  # fmt: skip
        who = f"rank {rank}" if rank >= 0 else "the node"
        how = f"was killed by signal {outcome[1]}" if outcome[1] else f"ended with exit code {outcome[0]}"
        self.banner(f"attempt {attempt.number}: {who} {how} ({reason})")
        self.report()

    # -- remote shell (called from its threads)

    def shell_key(self) -> tuple[int, bytes]:
        """The newest attempt begun here, and its key while it may run commands."""
        attempt = self.last
        if attempt is None:
            return 0, b""
        return attempt.number, attempt.key if self.state == "running" and attempt.launcher == "mpi" else b""

    def shell_start(self, command: str) -> Child:
        """Run a remote command; waits for the main thread to start it."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def start() -> None:
            attempt = self.attempt
            if attempt is None or not self.shell_key()[1]:
                answer.put(ShellRefused("the attempt is over"))
                return
            pipe = subprocess.PIPE
            try:
                argv, env = ["/bin/sh", "-c", command], self.environment(attempt)
                child = self.spawn(argv, env, lambda child: None, stdin=pipe, stdout=pipe, stderr=pipe)
            except OSError as error:
                answer.put(error)
                return
            attempt.roots[child], attempt.began = [], True
            answer.put(child)

        self.post(start)
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Child)
        return result

    def shell_ended(self, child: Child, lost: bool) -> None:
        """A remote command's session is over; where the connection was lost its process group goes too."""

        def end() -> None:
            attempt = self.attempt
            if not child.ended.is_set():
                signal_group(child.pid, signal.SIGKILL)
                child.on_exit = Child.close
            else:
                child.close()
            ours = attempt is not None and attempt.roots.pop(child, None) is not None
            if attempt is not None and ours and lost and self.state == "running":
                attempt.launcher_failed((255, 0), "launcher connection lost", [])

        self.post(end)

    # -- stopping

    def stop(self, then: str, grace_s: float) -> None:
        """Begin to stop everything of the attempt; afterwards `then`: idle, finished or exit."""
        self.then = then
        deadline = time.monotonic() + grace_s
        if self.state == "stopping":
            self.stop_deadline = min(self.stop_deadline, deadline)
            return
        quiet = then == "finished" and grace_s == 0
        self.state, self.stop_deadline, self.kill_deadline = "stopping", deadline, float("inf")
        for rank in self.ranks():
            rank.signal(signal.SIGTERM)
        if not quiet:
            self.report()

    def tick(self, now: float) -> None:
        """Whatever is due."""
        attempt, alive = self.attempt, [rank for rank in self.ranks() if rank.alive]
        for rank in alive:
            if rank.orphaned_at is not None and self.state == "running":
                self.tick_orphan(rank, now - rank.orphaned_at)
        if self.state == "running" and attempt is not None:
            ended = attempt.began and not attempt.roots and not alive
            if attempt.exit is None and attempt.launcher_exit and (ended or now > attempt.launcher_exit_due):
                self.fail(attempt, -1, *attempt.launcher_exit)
            if ended:
                self.stop("finished", 0.0)
        if self.state != "stopping":
            return
        roots = list(attempt.roots) if attempt else []
        if self.kill_deadline == float("inf"):
            if alive and now < self.stop_deadline:
                return
            for rank in alive:
                rank.signal(signal.SIGKILL)
            # mpiexec ends its remote side when asked; torchrun would only log how it was interrupted
            ask = attempt is not None and attempt.launcher == "mpi" and bool(roots)
            for child in roots if ask else []:
                signal_group(child.pid, signal.SIGTERM)
            self.kill_deadline = now + (2.0 if ask else 0.0)
        if roots and now < self.kill_deadline:
            return
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.reap()
        if left or self.children:
            if now > self.kill_deadline + 10.0:
                self.kill_deadline = now
                log(f"processes that SIGKILL does not end (a device that hangs?): {left}")
            return
        self.stopped()

    def tick_orphan(self, rank: Rank, age_s: float) -> None:
        """Its launcher wanted it stopped: after a moment for an exit of its own, see to it."""
        try:
            os.kill(rank.pid, 0) if rank.pid else None
        except ProcessLookupError:
            rank.alive = False  # its status went with its parent
            return
        if not rank.pid:
            rank.alive = False  # had not started; the sweep at the end finds what there is
        elif age_s > ORPHAN_KILL_S:
            rank.signal(signal.SIGKILL)
        elif age_s > ORPHAN_EXIT_S and not rank.signalled:
            rank.signal(signal.SIGTERM)

    def stopped(self) -> None:
        """Nothing of the attempt lives."""
        attempt = self.attempt
        if attempt is not None:
            for rank in attempt.ranks:
                rank.alive = False
            attempt.roots.clear()
            if self.then == "finished" and attempt.exit is None:
                attempt.exit = {
                    "attempt": attempt.number, "rank": -1, "code": 0, "signal": 0, "time": time.time(), "tail": [],
                    "reason": "all ranks exited",
                }  # fmt: skip
            self.banner(f"attempt {attempt.number}: over on this node")
        if self.then == "exit":
            self.over = True
            return
        self.state = self.then
        if self.then == "idle":
            self.attempt, self.held = None, max(self.held, int(self.directive["attempt"]))
        self.report()
        self.directed(self.directive)

    def terminate(self) -> None:
        """SIGTERM: the pod is to go."""
        self.exit_code = 143
        again = self.state == "stopping" and self.then == "exit"
        self.stop("exit", 0.0 if again else self.grace_s)

    def banner(self, text: str) -> None:
        """Mark an attempt's boundary in the log."""
        write_all(1, (f"--- muster: {text} ---\n").encode("utf-8", "replace"))


# ---- sub-commands ----------------------------------------------------------------------------------------------------


def thread_failed(details: threading.ExceptHookArgs) -> None:
    """End at once: a supervisor that is deaf on one side is worse than a pod that fails."""
    traceback.print_exception(details.exc_type, details.exc_value, details.exc_traceback)
    os._exit(70)


def command_run(arguments: list[str]) -> int:
    """`run`: a worker's main."""
    if arguments:
        raise UsageError("usage: supervisor.py run (everything comes from the environment)")

    def leave(number: int, frame: object) -> NoReturn:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)  # process 1 has no default action
    signal.signal(signal.SIGINT, leave)
    settings = Settings(os.environ)
    install_code(settings)
    threading.excepthook = thread_failed
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    parent = tempfile.gettempdir()  # a unix socket's path holds 107 bytes
    folder = tempfile.mkdtemp(prefix="muster-", dir=parent if len(parent) <= 80 else "/tmp")
    try:
        supervisor = Supervisor(settings, folder)
        signal.signal(signal.SIGCHLD, lambda number, frame: supervisor.post(lambda: None))
        signal.signal(signal.SIGTERM, lambda number, frame: supervisor.post(supervisor.terminate))
        signal.signal(signal.SIGINT, lambda number, frame: supervisor.post(supervisor.terminate))
        return supervisor.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def command_install(arguments: list[str]) -> int:
    """`install DIR`: the init container's work."""
    if len(arguments) != 1:
        raise UsageError("usage: supervisor.py install DIR")
    folder, package = arguments[0], os.path.dirname(os.path.dirname(THIS_FILE))
    target = os.path.join(folder, "sdk", "muster")
    os.makedirs(os.path.join(target, "sdk"), exist_ok=True)
    for source in ["__init__.py", *(os.path.join("sdk", name) for name in os.listdir(os.path.join(package, "sdk")))]:
        if source.endswith(".py"):
            shutil.copyfile(os.path.join(package, source), os.path.join(target, source))
    own = os.path.join(folder, "supervisor.py")
    shutil.copyfile(THIS_FILE, own + ".new")
    os.chmod(own + ".new", 0o755)
    os.replace(own + ".new", own)
    return 0


def main() -> int:
    """Dispatch; returns the exit code."""
    commands = {"install": command_install, "run": command_run, "rank": command_rank, "rsh": command_rsh}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        log("usage: supervisor.py install DIR | run | rank -- COMMAND... | rsh HOST COMMAND...")
        return 2
    try:
        return commands[sys.argv[1]](sys.argv[2:])
    except (UsageError, OSError) as error:
        log(str(error))
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait in the kernel must not hold up the exit

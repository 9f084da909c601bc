"""The shim: a separate program that is the parent of a container's main process, and leaves no process behind.

The shim uses only the standard library. It is a child subreaper, so every process of the container stays its
descendant, even after double forks and in new sessions. It kills all its descendants when the main process ends,
when the kubelet requests it, or when the kubelet is gone.

Shim and kubelet exchange JSON lines. The first line of stdin describes the process to run. Later lines are
`{"signal": N}` (for the main process) or `{"kill": true}` (for all processes). stdout gets `{"started": PID}` or
`{"startError": TEXT}`, then `{"exited": {"code", "signal", "time"}}`. The end of stdin means that the kubelet died.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import re
import selectors
import signal
import sys
import termios
import time
import warnings  # noqa: F401 -- os.execvpe imports it: too late as a container's user, who may not read the library

TYPE_CHECKING = False  # a shim starts for each container: `typing` would be a sixth of its CPU time
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_CHUNK_BYTES = 65536
_PART_BYTES = 16384
_ROTATED = r"\.\d{8}-\d{6}(\.\d{6})?(\.gz)?"
_KILL_DEADLINE_S = 10.0
_DRAIN_DEADLINE_S = 2.0
_EXIT_START_ERROR = 128  # what containerd reports for a container that could not be started


def process_table() -> dict[int, tuple[int, int]]:
    """Return all processes of this machine: pid -> (parent's pid, start time in clock ticks), from /proc/PID/stat."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                table[int(name)] = (int(fields[1]), int(fields[19]))
    return table


def descendants(roots: set[int], table: dict[int, tuple[int, int]]) -> set[int]:
    """Return the descendants of `roots`, without the roots themselves."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    front = list(roots)
    while front:
        for pid in children.get(front.pop(), ()):
            if pid not in found and pid not in roots:
                found.add(pid)
                front.append(pid)
    return found


def kill_process(pid: int, started: int) -> None:
    """Send SIGKILL to the process with this pid and start time, but not to a later process with the same pid."""
    with contextlib.suppress(ProcessLookupError, OSError):
        handle = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[19]) == started:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def rotated_logs(log: str) -> list[str]:
    """Return the rotated files of a log, oldest first: `N.log.YYYYmmdd-HHMMSS`, with `.gz` if it is compressed.

    The names are the same as with a real kubelet (kubernetes, pkg/kubelet/logs). If several files are rotated
    within a second, the names of the later ones also have a fraction of the second: `N.log.YYYYmmdd-HHMMSS.ffffff`.
    """
    folder, name = os.path.split(log)
    try:
        names = [each for each in os.listdir(folder) if re.fullmatch(re.escape(name) + _ROTATED, each)]
    except FileNotFoundError:
        return []
    return [os.path.join(folder, each) for each in sorted(names, key=lambda each: each.removesuffix(".gz"))]


class LogFile:
    """A container's log on disk. Rotation limits its size, and an error of the disk does not end the writer.

    When the file reaches `max_bytes`, it is renamed. If there are more than `max_files` files, the oldest is
    removed. If the file cannot be renamed, it is emptied, so its size stays limited. Lines that cannot be written
    are dropped. When the disk works again, a line reports how much was dropped.
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lost_bytes = 0
        self._lost_why = ""
        self._rotated_us = 0
        self._file = self._open()
        self._size = os.fstat(self._file).st_size

    def append(self, stream: bytes, lines: list[tuple[bytes, bytes]]) -> None:
        """Write lines with the time and the name of the stream.

        Each line has a text, and F (whole line) or P (part).
        """
        head = _stamp() + b" " + stream + b" "
        if self._lost_bytes:
            lost = f"--- muster: {self._lost_bytes} bytes of output were lost: {self._lost_why}\n"
            if self._write(head + b"F " + lost.encode()):
                self._lost_bytes = 0
        batch: list[bytes] = []
        size = 0
        for line, tag in lines:
            record = head + tag + b" " + line + b"\n"
            if batch and self._size + size + len(record) > self._max_bytes:
                self._write_or_count(b"".join(batch))
                batch, size = [], 0
            if self._size and self._size + size + len(record) > self._max_bytes:
                self._rotate()
            batch.append(record)
            size += len(record)
        self._write_or_count(b"".join(batch))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _write_or_count(self, data: bytes) -> None:
        if not self._write(data):
            self._lost_bytes += len(data)

    def _write(self, data: bytes) -> bool:
        """Append all of `data` or nothing. Returns whether it was written."""
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # otherwise a partly written record would damage the next one
            self._lost_why = error.strerror or str(error)
            return False
        self._size += len(data)
        return True

    def _rotate(self) -> None:
        """Begin a new file, and keep `max_files` with it."""
        target = self._rotated_name()
        try:
            os.rename(self._path, target)
            try:
                fresh = self._open()
            except OSError:
                os.rename(target, self._path)
                raise
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
        else:
            os.close(self._file)
            self._file = fresh
        self._size = 0
        rotated = rotated_logs(self._path)
        for path in rotated[: max(len(rotated) - (self._max_files - 1), 0)]:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _rotated_name(self) -> str:
        """Return a name that sorts after all earlier names, even if the clock was set back."""
        second = 1_000_000
        now_us = time.time_ns() // 1000
        if now_us // second > self._rotated_us // second:
            self._rotated_us = now_us // second * second
        else:
            self._rotated_us = max(now_us, self._rotated_us + 1)
        seconds, fraction = divmod(self._rotated_us, second)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
        return f"{self._path}.{stamp}" + (f".{fraction:06d}" if fraction else "")


class LineLog:
    """Appends the output of a stream to a log.

    Each line has the time, the stream, F (whole) or P (part), and the text.
    """

    def __init__(self, file: LogFile, stream: str) -> None:
        self._file = file
        self._stream = stream.encode()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that were read. A line without its end waits for the rest, up to 16 KiB."""
        *lines, rest = (self._rest + data).split(b"\n")
        whole = [(line, b"F") for line in lines]
        if len(rest) > _PART_BYTES:
            whole.append((rest, b"P"))
            rest = b""
        if whole:
            self._file.append(self._stream, whole)
        self._rest = rest

    def close(self) -> None:
        """Write the last line if it has no end."""
        if self._rest:
            self._file.append(self._stream, [(self._rest, b"P")])
            self._rest = b""


def _stamp() -> bytes:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z").encode()


class Shim:
    """Runs one main process. process.py describes the fields of `spec`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, LineLog] = {}
        self._control = b""
        self._kubelet_gone = False
        self._main = 0

    def run(self) -> None:
        """Start the main process, wait for its end, kill its leftover processes, and report how it ended."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self._spec["parent"]:
            return
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_parent_death)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.set_blocking(0, False)
        try:
            if self._spec.get("netns"):
                self._enter_network(self._spec["netns"])
            self._start()
        except OSError as error:
            _emit({"startError": error.strerror or str(error), "errno": error.errno})
            return
        _emit({"started": self._main})
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(wake_read, selectors.EVENT_READ)
        status = self._wait(wake_read)
        finished = time.time()
        self._kill_descendants()
        self._drain()
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + ended_by if ended_by else os.WEXITSTATUS(status)
        _emit({"exited": {"code": code, "signal": ended_by, "time": finished}})

    def _on_parent_death(self, *_: object) -> None:
        self._kubelet_gone = True

    def _enter_network(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if self._libc.setns(handle, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the network namespace {path}: {os.strerror(number)}")
        os.close(handle)

    def _start(self) -> None:
        """Fork and execute the program. Raises OSError with the reason if it cannot be run."""
        stdio, readers = self._stdio()
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        shim = os.getpid()
        self._main = os.fork()
        if self._main == 0:
            try:
                self._become(shim, stdio)
            except OSError as error:
                os.write(error_write, json.dumps([error.errno, _what(error, self._spec)]).encode())
            finally:
                os._exit(_EXIT_START_ERROR)
        os.close(error_write)
        for handle in set(stdio):
            os.close(handle)
        with open(error_read, "rb") as file:
            failure = file.read()
        if failure:
            os.waitpid(self._main, 0)
            number, text = json.loads(failure)
            raise OSError(number, text)
        for handle, stream in readers:
            os.set_blocking(handle, False)
            self._streams[handle] = stream
            self._selector.register(handle, selectors.EVENT_READ)

    def _stdio(self) -> tuple[list[int], list[tuple[int, LineLog]]]:
        """Return the three standard files of the main process, and the files from which the shim reads its output."""
        if self._spec.get("stdio"):
            return list(self._spec["stdio"]), []
        log = LogFile(self._spec["log"], self._spec["log_max_bytes"], self._spec["log_max_files"])
        if self._spec.get("tty"):
            ours, theirs = pty.openpty()
            return [theirs, theirs, theirs], [(ours, LineLog(log, "stdout"))]
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return [null, out_write, err_write], [(out_read, LineLog(log, "stdout")), (err_read, LineLog(log, "stderr"))]

    def _become(self, shim: int, stdio: list[int]) -> None:
        spec = self._spec
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != shim:
            os._exit(_EXIT_START_ERROR)
        os.setsid()
        for path in spec.get("cgroups", ()):
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        for target, handle in enumerate([os.dup(handle) for handle in stdio]):
            os.dup2(handle, target)
        for handle in set(stdio):
            if handle > 2:
                os.close(handle)  # all other open files are closed at exec
        if spec.get("tty"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(spec["cwd"])
        if spec.get("groups") is not None:
            os.setgroups(spec["groups"])
        if spec.get("gid") is not None:
            os.setgid(spec["gid"])
        if spec.get("uid") is not None:
            os.setuid(spec["uid"])
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # cleared by a change of user
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o022)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])

    def _wait(self, wake: int) -> int:
        """Wait for the end of the main process, and return its wait status. Until then, forward signals and output."""
        while True:
            while True:  # reap all processes that have ended: the main process, or processes that it left to the shim
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return 9
                if pid == self._main:
                    return status
                if pid == 0:
                    break
            if self._kubelet_gone:
                self._kill_everything()
            for key, _ in self._selector.select():
                if key.fd == 0:
                    self._read_control()
                elif key.fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                else:
                    self._read_output(key.fd)

    def _read_control(self) -> None:
        try:
            data = os.read(0, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(0)
            self._kubelet_gone = True
            return
        *lines, self._control = (self._control + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request.get("kill"):
                self._kill_everything()
            elif request.get("signal"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._main, request["signal"])  # it is not reaped yet, so no other process has its pid

    def _read_output(self, handle: int) -> bool:
        """Read one chunk. Returns False at the end of the stream, or if there is nothing to read now."""
        try:
            data = os.read(handle, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # reading a terminal fails with EIO after its last close
                raise
            data = b""
        if data:
            self._streams[handle].feed(data)
            return True
        self._selector.unregister(handle)
        self._streams.pop(handle).close()
        os.close(handle)
        return False

    def _kill_everything(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._main, signal.SIGKILL)

    def _kill_descendants(self) -> None:
        """Send SIGKILL until the shim has no descendants."""
        deadline = time.monotonic() + _KILL_DEADLINE_S
        while time.monotonic() < deadline:
            table = process_table()
            below = descendants({os.getpid()}, table)
            for pid in below:
                kill_process(pid, table[pid][1])
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not below:
                return
            time.sleep(0.002)

    def _drain(self) -> None:
        """Read the rest of the output. This ends, because all writers are gone."""
        deadline = time.monotonic() + _DRAIN_DEADLINE_S
        while self._streams and time.monotonic() < deadline:
            for handle in list(self._streams):
                while self._read_output(handle):
                    pass
        for stream in self._streams.values():
            stream.close()


def _what(error: OSError, spec: dict[str, Any]) -> str:
    if error.filename == spec["cwd"]:
        return f'cannot change to workingDir "{spec["cwd"]}": {error.strerror}'
    if error.errno == errno.ENOENT and "/" not in spec["argv"][0]:
        return f'exec: "{spec["argv"][0]}": executable file not found in $PATH'
    return f'exec: "{spec["argv"][0]}": {(error.strerror or str(error)).lower()}'


def _emit(event: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a kubelet that is gone needs no answer
        os.write(1, json.dumps(event).encode() + b"\n")


def main() -> None:
    """Read what to run from stdin and run it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    Shim(json.loads(line)).run()

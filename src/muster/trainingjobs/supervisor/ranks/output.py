"""Copies the output of ranks and launchers to the container's log, and keeps the last lines."""

from __future__ import annotations

import collections
import os
import queue
import re
import selectors
import threading
import time

from ..basics import write_all

TAIL_LINES = 20
TAIL_LINE_CHARS = 400
TRACEBACK = "Traceback (most recent call last):"
_PYTORCH = re.compile(r"\[rank\d+\]: ")
"""PyTorch 2 writes the rank before each line of an uncaught exception (torch.distributed.init_process_group)."""


class Stream:
    """Copies one output pipe of a rank or launcher to the container's log, and keeps its last lines."""

    def __init__(self, fd: int, sink: int, prefix: bytes) -> None:
        self.fd, self.sink, self.prefix = fd, sink, prefix
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.closed = threading.Event()
        self.trace: list[str] = []  # the newest Python traceback
        self._tracing: collections.deque[str] | None = None
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Copy bytes. With a prefix only whole lines are written, so that lines of ranks are not mixed."""
        if not self.prefix:
            write_all(self.sink, data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > 16384:
            lines.append(self._partial)
            self._partial = b""
        if lines:
            if self.prefix:
                write_all(self.sink, b"".join(self.prefix + line + b"\n" for line in lines))
            text = [_text(line) for line in lines]
            self.tail.extend(text)
            if self._tracing is not None or any(line.startswith(TRACEBACK) for line in text):
                self._trace(text)

    def _trace(self, lines: list[str]) -> None:
        """Store a traceback: from its first line to the next line without indentation, which names the exception."""
        for line in lines:
            if line.startswith(TRACEBACK):
                self._tracing = collections.deque([line], maxlen=TAIL_LINES)
            elif self._tracing is not None:
                self._tracing.append(line)
                if line and not line[0].isspace():
                    self.trace, self._tracing = list(self._tracing), None

    def close(self) -> None:
        """End the stream: all writers are gone."""
        if self._partial:
            self.feed(b"\n" if self.prefix else b"")
        if self._partial:
            self.tail.append(_text(self._partial))
        os.close(self.fd)
        self.closed.set()


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    if text.startswith("[rank"):
        text = _PYTORCH.sub("", text, count=1)
    return text[:TAIL_LINE_CHARS]


class Streams:
    """Both outputs of a rank or launcher."""

    def __init__(self, out: Stream, err: Stream) -> None:
        self.out, self.err = out, err

    def trace(self) -> list[str]:
        """The newest traceback in the output; empty if there is none."""
        return self.err.trace or self.out.trace

    def last_lines(self) -> list[str]:
        """The last lines of stderr; those of stdout if stderr is empty."""
        deadline = time.monotonic() + 0.5  # all output before the exit is in the pipe already
        for stream in (self.err, self.out):
            stream.closed.wait(max(0.0, deadline - time.monotonic()))
        return list(self.err.tail) or list(self.out.tail)


class OutputPump(threading.Thread):
    """Copies the output of all ranks to the container's log, in a thread: a slow log must not block the protocol."""

    def __init__(self) -> None:
        super().__init__(name="output", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._added: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def pipe(self, sink: int, prefix: str) -> tuple[Stream, int]:
        """Create a stream, and return it with the write end for the process."""
        read, write = os.pipe()
        stream = Stream(read, sink, prefix.encode())
        self._added.put(stream)
        os.write(self._wake_write, b".")
        return stream, write

    def run(self) -> None:
        """Copy output for ever."""
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

"""Protocol of the node cache's sockets: frames, operations, and error codes. The client and the daemon use it.

A frame is a 4-byte big-endian length and a JSON object. Descriptors travel beside the first byte of a frame
(SCM_RIGHTS). The client sends a request `{"op": NAME, ...}`, and the daemon answers each one in order: an object with
`"ok": true`, or `{"error": CODE, "message": TEXT}`. Only `done` has no answer. While it works on a
request, the daemon sends `{"pending": true}` every second.

A connection is one reader of one job in one object store. It begins with `hello`. Its leases and its credentials end
with it.

- `hello`: `version`, `store {url, endpoint, region}`, `credentials {NAME: value}`, `ticket` (content of the file at
  MUSTER_CACHE_TICKET; absent without).
  Answer: `version`, `node`, `state` ("ok" or "bypass"), `job`.
- `credentials`: `credentials`, which replace those of `hello`.
- `block`: `key`, `etag`, `size` (of the object), `index`, `deadline_s`.
  Answer: a read-only descriptor, `length`, `sha256`, `source` ("disk", "peer" or "bucket"), `lease`.
- `done`: `leases`. No answer.
- `warm`: as `block`. Answer: `length`, `source`; no descriptor.
- `head`: `key`. Answer: `size`, `etag`, `version`, `modified`.
- `list`: `prefix`, `after` (the last key of the previous page).
  Answer: `objects` (each `key`, `size`, `etag`, `modified`), `more`.
- `put`: `key`, `size`, `create_only`. Answer: `ready`; then the client sends `size` raw bytes.
  Second answer: `size`, `etag`, `version`.
- `delete`: `key`.
- `status`, also without `hello`. Answer: the fields of `STATUS`.

A connection that begins with `join` has no store. It makes the node a member of the job's gang while it is open:

- `join`: `ticket` as in `hello`. Answer: `job`.
- `keep`, with the descriptor of a checkpoint shard's file beside it: `key`, `sha256`, `size`, `checkpoint`, `step`.
  If `copy` is true, the partner gets a copy. `confirmed`: the newest confirmed checkpoint, or "".
- `kept`: the same fields of a shard, the `attempt` that saved it, and `deadline_s`.
  Answer: a read-only descriptor, `length`, `source` ("disk" or "peer").
- `confirm`: `checkpoint`, which the controller has confirmed: older ones are dropped.

The control socket (`control.sock` in the state folder, mode 0600) has the same operations. It also has these, which
need no `hello`:

- `status` has the figures of all jobs.
- `ls`: `prefix`, `after` (0, then `next` of the previous page, on the same connection).
  Answer: `objects` (each `store`, `key`, `etag`, `size`, `blocks`, `cached_bytes`, `in_use`), `more`, `next`.
- `evict`: `store` (as `ls` writes it), `prefix`; "" means all. Answer: `blocks`, `bytes`, `kept` (blocks in use).
- `rate`: `job`, `bytes_per_s` (0: no limit).
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from typing import Any, Callable, Dict, Iterator, NamedTuple, Sequence

VERSION = 1
BLOCK_BYTES = 32 << 20
_ADDRESS_BYTES = 107
MAX_FRAME_BYTES = 1 << 20
MAX_DESCRIPTORS = 1  # of a frame

Message = Dict[str, Any]

STATUS = (
    "node",
    "address",  # IP:PORT for peers; "" without
    "state",  # ok, or bypass
    "reason",  # why the disk is not used; "" for ok
    "size_bytes",  # the limit
    "used_bytes",
    "protected_bytes",  # of used_bytes: checkpoint shards
    "blocks",
    "free_bytes",  # of the file system
    "floor_bytes",  # the cache leaves this much free
    "hits",  # requests for blocks that were on the disk
    "misses",
    # [{job, name, mark, rate_bytes_per_s, readers, bytes: {bucket, peer, disk}}]; without control only the caller's job
    "jobs",
)
"""Fields of the answer to `status`."""


class ErrorCode:
    """Values of `error` in an answer."""

    BAD_REQUEST = "bad-request"  # a field is missing or malformed; the message names it
    BUSY = "busy"  # a limit is reached; the bucket is still there
    BYPASS = "bypass"  # the disk is slow, full or broken
    CHANGED = "changed"  # the object has another ETag or size
    EXISTS = "exists"  # a create-only put found the object
    FORBIDDEN = "forbidden"  # the store refused these credentials
    MISSING = "missing"  # the store has no such object
    NOT_PERMITTED = "not-permitted"  # only on the control socket
    REFUSED = "refused"  # the store refused for another reason, which the message names
    UNAVAILABLE = "unavailable"  # the store did not answer in time
    WRONG_STORE = "wrong-store"  # bucket, region, endpoint or credentials do not fit, or the daemon refuses them


class Answer(NamedTuple):
    """An answer, its descriptor (-1 without), and a function that ends a lease of it."""

    message: Message
    descriptor: int
    end_lease: Callable[[int], None]


class CacheUnavailable(Exception):
    """The node cache did not give the bytes; the bucket may.

    Attributes:
        code: one of `ErrorCode`; "" if the cache did not answer.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


class Piece(NamedTuple):
    """The range of an object that a block holds."""

    start: int
    length: int


def block_count(size_bytes: int) -> int:
    """Number of blocks of an object. An empty object has none."""
    return -(-size_bytes // BLOCK_BYTES)


def block_range(size_bytes: int, index: int) -> Piece:
    """The range of a block. Raises ValueError if the object has no such block."""
    start = index * BLOCK_BYTES
    if not 0 <= start < size_bytes:
        raise ValueError(f"an object of {size_bytes} bytes has no block {index}")
    return Piece(start, min(BLOCK_BYTES, size_bytes - start))


def encode(message: Message) -> bytes:
    """Return the message as a frame. Raises ProtocolError if it is too large."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is longer than {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(body)) + body


def body_length(header: bytes) -> int:
    """Return the length in a frame's first 4 bytes. Raises ProtocolError if it is too large."""
    length = int(struct.unpack(">I", header)[0])
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {length} bytes is longer than {MAX_FRAME_BYTES}")
    return length


def decode(body: bytes) -> Message:
    """Return the message of a frame's body. Raises ProtocolError if it is not a JSON object."""
    try:
        message = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"a frame is not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a frame is not a JSON object")
    return message


def send(connection: socket.socket, message: Message) -> None:
    """Send a frame on a blocking socket; its timeout applies to each part. Raises OSError, ProtocolError."""
    connection.sendall(encode(message))


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Receive a frame and its descriptors, which the caller closes, from a blocking socket.

    The socket's timeout applies to each part. Raises ProtocolError, EOFError at the end of the connection, and OSError.
    """
    descriptors: list[int] = []
    try:
        header = _exactly(connection, 4, descriptors)
        return decode(_exactly(connection, body_length(header), descriptors)), descriptors
    except BaseException:
        close_all(descriptors)
        raise


@contextlib.contextmanager
def short_address(path: str) -> Iterator[str]:
    """Yield an address of the Unix socket `path` that is short: an address may have only 107 bytes (unix(7)).

    A short path is its own address: a process that has changed its user may not look into /proc/self/fd.

    Raises OSError if the socket's folder does not exist.
    """
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        yield path
        return
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, whether or not they are valid."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def ancillary_bytes() -> int:
    """Size of the buffer for the descriptors of a frame."""
    return socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


def take_descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors of received ancillary data."""
    taken = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            taken.frombytes(data[: len(data) - len(data) % taken.itemsize])
    return list(taken)


def give_descriptors(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """Return the ancillary data that carries descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())] if descriptors else []


def _exactly(connection: socket.socket, count: int, descriptors: list[int]) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        data, ancillary, _, _ = connection.recvmsg(count, ancillary_bytes(), socket.MSG_CMSG_CLOEXEC)
        descriptors += take_descriptors(ancillary)
        if not data:
            raise EOFError("the node cache closed the connection")
        parts.append(data)
        count -= len(data)
    return b"".join(parts)

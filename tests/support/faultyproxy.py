"""An HTTP proxy before a real object store, which breaks chosen requests.

    with faulty_proxy("http://127.0.0.1:5000") as proxy:
        proxy.add(Fault(method="GET", times=2, status=503, headers={"Retry-After": "1"}))
        store = open_store("s3://bucket", Access(proxy.address, "us-east-1"))

The first fault that matches a request and has uses left is applied. `proxy.requests` lists what arrived.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.threadedserver import ThreadedServer

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Fault:
    """What to break, and for which requests.

    Attributes:
        method: HTTP method; "" for all.
        path: text in the path and query; "" for all.
        authorization: text in the header Authorization, such as the ID of an access key; "" for all.
        times: how many requests; None for all.
        status: answer with this status, `headers` and `body` instead of asking the store.
        delay_s: wait before the answer.
        drop_request_headers: names of headers that the store does not see.
        drop_response_headers: names of headers that the client does not see.
        cut_after: close the connection after this many bytes of the answer's body.
        lose_answer: the store does as it is asked, but the connection closes without an answer.
        refuse: close the connection without asking the store.
        drip_bytes_per_s: send the answer's body at this rate.
        flip_bit_at: invert a bit of this byte of the answer's body.
    """

    method: str = ""
    path: str = ""
    authorization: str = ""
    times: int | None = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay_s: float = 0.0
    drop_request_headers: tuple[str, ...] = ()
    drop_response_headers: tuple[str, ...] = ()
    cut_after: int | None = None
    lose_answer: bool = False
    refuse: bool = False
    drip_bytes_per_s: int = 0
    flip_bit_at: int | None = None


@dataclass(frozen=True)
class Request:
    """A request that arrived: header names are in lower case, and `at` is from time.monotonic()."""

    method: str
    path: str
    headers: dict[str, str]
    body_bytes: int
    at: float


class FaultyProxy:
    """Counts requests and applies faults. Thread-safe."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.address = ""
        self.requests: list[Request] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Break requests from now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Break no more requests, and forget the old ones."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def count(self, method: str = "", path: str = "") -> int:
        """How many requests with this method and this text in the path arrived."""
        with self._lock:
            return sum(method in ("", each.method) and path in each.path for each in self.requests)

    def arrived(self, request: Request) -> Fault:
        """Note a request and return its fault."""
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.times != 0 and _matches(fault, request):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return Fault()


def _matches(fault: Fault, request: Request) -> bool:
    return (
        fault.method in ("", request.method)
        and fault.path in request.path
        and fault.authorization in request.headers.get("authorization", "")
    )


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Yield a proxy on loopback, which listens until the end."""
    proxy = FaultyProxy(upstream)

    class Handler(_Handler):
        owner = proxy

    server = ThreadedServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="faulty-proxy", daemon=True)
    thread.start()
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FaultyProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = self.owner.arrived(Request(self.command, self.path, headers, len(body), time.monotonic()))
        if fault.refuse:
            self._hang_up()
            return
        if fault.status:
            status, answer_headers, answer = fault.status, dict(fault.headers), fault.body
        else:
            for name in fault.drop_request_headers:
                headers.pop(name.lower(), None)
            status, answer_headers, answer = self._ask(headers, body)
        if fault.lose_answer:
            self._hang_up()
            return
        time.sleep(fault.delay_s)
        with contextlib.suppress(OSError):  # the client has given up
            self._answer(status, answer_headers, answer, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _ask(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.owner.upstream.netloc, timeout=60)
        try:
            headers = {name: value for name, value in headers.items() if name != "connection"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            found = dict(answer.getheaders())
            if self.command == "HEAD":
                found["X-Length"] = found.get("Content-Length", "0")
            return answer.status, found, content
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: Fault) -> None:
        length = headers.pop("X-Length", str(len(body)))
        dropped = {name.lower() for name in fault.drop_response_headers} | _HOP_BY_HOP
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.flip_bit_at is not None and fault.flip_bit_at < len(body):
            changed = bytearray(body)
            changed[fault.flip_bit_at] ^= 1
            body = bytes(changed)
        if fault.cut_after is not None:
            self.wfile.write(body[: fault.cut_after])
            self._hang_up()
        elif fault.drip_bytes_per_s:
            step = max(1, fault.drip_bytes_per_s // 20)
            for start in range(0, len(body), step):
                self.wfile.write(body[start : start + step])
                time.sleep(step / fault.drip_bytes_per_s)
        else:
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

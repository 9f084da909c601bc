"""A small S3 server on loopback that enforces rights by access key, counts requests, and misbehaves on request.

It replaces what moto cannot do: refuse by key, drip, and count. It speaks S3's protocol as far as obstore uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from xml.sax.saxutils import escape

from tests.support.threadedserver import ThreadedServer

KEY_OF = re.compile(r"Credential=([^/]+)/")


class BucketServer:
    """Objects, rights and counts of a server.

    Attributes:
        objects: bytes by path, "BUCKET/KEY".
        rights: paths that an access key may use begin with one of these prefixes; a key that is absent may use none.
        counts: requests by "METHOD PATH".
        before: called with each request before it is answered; it may wait or return a status instead.
        sent_bytes: bytes of object bodies sent, counted before their reader has them.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.rights: dict[str, tuple[str, ...]] = {}
        self.counts: Counter[str] = Counter()
        self.before: Callable[[str, str, str], int | None] = lambda method, path, key: None
        self.sent_bytes = 0
        self.lock = threading.Lock()
        self.address = ""


def etag_of(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@contextlib.contextmanager
def bucket_server() -> Iterator[BucketServer]:
    """Serve while the context is open."""
    state = BucketServer()
    server = ThreadedServer(("127.0.0.1", 0), _handler(state))
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(state: BucketServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            self._handle()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def _handle(self) -> None:
            parts = urllib.parse.urlsplit(self.path)
            path = urllib.parse.unquote(parts.path).strip("/")
            query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = KEY_OF.search(self.headers.get("Authorization", ""))
            key = found[1] if found else ""
            with state.lock:
                state.counts[f"{self.command} {path}"] += 1
            status = state.before(self.command, path, key)
            if status is None and not path.startswith(state.rights.get(key, ())):
                status = 403
            if status is not None:
                self._reply(status, b"<Error><Code>AccessDenied</Code></Error>" if status == 403 else b"")
            elif "list-type" in query:
                self._list(path, query)
            elif self.command == "POST" or "uploadId" in query:
                self._part(path, query, body)
            elif self.command == "PUT":
                self._put(path, body)
            elif self.command == "DELETE":
                state.objects.pop(path, None)
                self._reply(204, b"")
            else:
                self._get(path)

        def _put(self, path: str, body: bytes) -> None:
            if self.headers.get("If-None-Match") == "*" and path in state.objects:
                self._reply(412, b"")
                return
            state.objects[path] = body
            self._reply(200, b"", ETag=f'"{etag_of(body)}"')

        def _part(self, path: str, query: dict[str, str], body: bytes) -> None:
            """A multipart upload: begin, parts, and completion."""
            if "uploads" in query:
                state.parts[path] = {}
                self._reply(200, b"<R><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></R>")
            elif "partNumber" in query:
                state.parts[path][int(query["partNumber"])] = body
                self._reply(200, b"", ETag=f'"{etag_of(body)}"')
            elif self.command == "POST":
                parts = state.parts.pop(path)
                state.objects[path] = b"".join(parts[number] for number in sorted(parts))
                tag = etag_of(state.objects[path])
                self._reply(
                    200, f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>".encode()
                )
            else:
                self._reply(204, b"")

        def _get(self, path: str) -> None:
            data = state.objects.get(path)
            if data is None:
                self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            etag = f'"{etag_of(data)}"'
            if self.headers.get("If-Match", etag) != etag:
                self._reply(412, b"")
                return
            modified = {"ETag": etag, "Last-Modified": "Wed, 01 Oct 2025 10:00:00 GMT"}
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted is None:
                self._reply(200, data, **modified)
                return
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            self._reply(206, data[start:end], **{"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, **modified)

        def _list(self, bucket: str, query: dict[str, str]) -> None:
            prefix, after = query.get("prefix", ""), query.get("start-after", "")
            keys = [path[len(bucket) + 1 :] for path in sorted(state.objects) if path.startswith(f"{bucket}/")]
            rows = [
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>&quot;{etag_of(data)}&quot;</ETag>"
                "<LastModified>2025-10-01T10:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
                for key in keys
                if key.startswith(prefix) and key > after
                for data in [state.objects[f"{bucket}/{key}"]]
            ]
            text = (
                '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>{bucket}</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
                f"{''.join(rows)}</ListBucketResult>"
            )
            self._reply(200, text.encode())

        def _reply(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                with state.lock:
                    state.sent_bytes += len(body)
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

    return Handler

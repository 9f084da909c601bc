"""Issue 14: 100,000 small objects are listed in bounded memory, from a server that makes up its pages."""

from __future__ import annotations

import bisect
import http.server
import threading
import tracemalloc
import urllib.parse
from collections.abc import Callable, Iterator

import pytest

from muster.sdk.data import Access, Store, WrongStore
from tests.support.threadedserver import ThreadedServer

OpenStore = Callable[..., Store]
TOTAL, PAGE = 100_000, 1000


class Lists(http.server.BaseHTTPRequestHandler):
    """Answers ListObjectsV2 for keys run/00000000.tar and so on; one request in ten fails."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pages = 0
    requests = 0
    backwards = False

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        cls = type(self)
        cls.requests += 1
        if cls.requests % 10 == 5:
            self.answer(500, b"")
            return
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        after = query.get("start-after", "")
        first = int(query.get("continuation-token") or 0)
        if after and not query.get("continuation-token"):
            first = bisect.bisect_right(range(TOTAL), after, key=lambda number: f"run/{number:08d}.tar")
        cls.pages += 1
        numbers = range(first, min(first + PAGE, TOTAL))
        end = numbers[-1] + 1 if numbers else TOTAL
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
        contents = "".join(
            f"<Contents><Key>run/{number:08d}.tar</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{number:x}&quot;</ETag><Size>{number}</Size></Contents>"
            for number in (reversed(numbers) if cls.backwards else numbers)
        )
        flags = more if end < TOTAL else "<IsTruncated>false</IsTruncated>"
        self.answer(200, f"<ListBucketResult>{contents}{flags}</ListBucketResult>".encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[type[Lists]]:
    handler = type("OwnLists", (Lists,), {})
    server = ThreadedServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    handler.address = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield handler
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def store(server: type[Lists], opened: OpenStore, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    return opened("s3://bucket/run", Access(server.address), 20)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_100_000_objects_are_listed_page_by_page(store: Store, server: type[Lists]) -> None:
    number = -1
    for number, found in enumerate(store.list()):
        if number % 997 == 0:
            assert (found.key, found.size_bytes, found.etag) == (f"{number:08d}.tar", number, f"{number:x}")
        if number == 30_000:
            tracemalloc.start()
        if number == 50_000:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert number + 1 == TOTAL
    assert peak_bytes < 4 << 20  # 20,000 objects need at least twice that
    assert server.requests < 1.3 * TOTAL / PAGE


def test_listing_ends_after_its_prefix(store: Store, server: type[Lists]) -> None:
    assert [found.key for found in store.list("0000000")] == [f"{number:08d}.tar" for number in range(10)]
    assert server.pages <= 2
    assert next(iter(store.list())).key == "00000000.tar"


def test_lists_in_another_order_are_refused(store: Store, server: type[Lists]) -> None:
    server.backwards = True
    with pytest.raises(WrongStore, match="does not list in the order of keys") as error:
        list(store.list())
    assert error.value.reason == "UnorderedLists"

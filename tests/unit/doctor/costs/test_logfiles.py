"""Audit logs and request logs are read line by line, whatever their state."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest

from muster.doctor.costs.logfiles import read_requests
from muster.kube.loglines import LINE_MAX_BYTES, LogFileError, Reading
from muster.kube.requestlog import RequestLine, RequestLog
from tests.support.auditevents import START, event, text


def read(*files: Path) -> tuple[list[RequestLine], Reading]:
    reading = Reading()
    return list(read_requests(files, reading)), reading


def test_event_of_a_bound_token_has_pod_node_and_query(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    query = {"labelSelector": "a=b", "resourceVersion": "0", "limit": "500", "fieldSelector": "spec.nodeName=n1"}
    path.write_bytes(text([event("list", "pods", 5, pod="telemetry-1", node="n1", query=query, seconds=0.5)]))
    (line,), reading = read(path)
    assert (line.pod, line.node, line.user) == ("telemetry-1", "n1", "system:serviceaccount:monitoring:telemetry")
    assert (line.verb, line.resource, line.namespace) == ("list", "pods", "")
    assert (line.label_selector, line.field_selector) == ("a=b", "spec.nodeName=n1")
    assert (line.resource_version, line.limit, line.continued) == ("0", 500, False)
    assert line.seconds == pytest.approx(0.5)
    assert line.time == pytest.approx(START + 5.5)
    assert (reading.lines, reading.broken) == (1, 0)


def test_stages_that_add_nothing_and_requests_without_resource_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    health = event("get", "pods", 1).replace('"objectRef"', '"ignored"')
    path.write_bytes(
        text(
            [
                event("list", "pods", 1, stage="RequestReceived"),
                event("list", "pods", 1, stage="ResponseStarted"),
                health,
                event("list", "pods", 1, stage="Panic", code=500),
            ]
        )
    )
    lines, reading = read(path)
    assert [line.code for line in lines] == [500]
    assert reading.broken == 0


def test_broken_lines_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    good = [event("get", "nodes", at, name="n") for at in range(3)]
    half = event("get", "nodes", 9)[:200].encode()
    other = b'{"auditID": 5, "stage": {}}\n'
    path.write_bytes(
        text(good[:1]) + b"\xff\xfe\x00 not json\n\n" + other + text(good[1:2]) + half + b"\n" + text(good[2:]) + half
    )
    lines, reading = read(path)
    assert len(lines) == 3
    assert reading.broken == 4


def test_line_that_is_too_long_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with path.open("wb") as file:
        file.write(text([event("get", "nodes", 1, name="n")]))
        for _ in range(5):
            file.write(b"x" * LINE_MAX_BYTES)
        file.write(b"\n" + text([event("get", "nodes", 2, name="n")]))
    tracemalloc.start()
    try:
        lines, reading = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(lines) == 2
    assert reading.broken == 1
    assert peak < 4 * LINE_MAX_BYTES  # the line is five times as long


def test_rotated_and_compressed_files_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    times = list(range(30))
    names = ["audit.log", "audit-2024-12-11T10-00-00.000.log.gz", "audit-2024-12-11T11-00-00.000.log"]
    parts = {names[1]: times[:10], names[2]: times[10:20], names[0]: times[20:]}
    for name, part in parts.items():
        data = text([event("get", "nodes", at, name="n") for at in part])
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    random.Random(1).shuffle(names)
    lines, _ = read(*(tmp_path / name for name in names))
    assert [round(line.time - START) for line in lines] == times


def test_gzip_file_that_was_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "audit.log.gz"
    rng = random.Random(1)
    whole = gzip.compress(text([event("get", "nodes", at, name=f"n{rng.random()}") for at in range(2000)]))
    path.write_bytes(whole[: len(whole) // 2])
    lines, reading = read(path)
    assert 0 < len(lines) < 2000
    assert reading.broken in (1, 2)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogFileError, match=r"cannot read .*missing.log: No such file"):
        read(tmp_path / "missing.log")
    with pytest.raises(LogFileError, match="Is a directory"):
        read(tmp_path)


def test_request_log_of_the_read_cache_is_read_beside_an_audit_log(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "requests.log")
    log.write(RequestLine(time=START + 3, verb="list", resource="pods", user="u", bytes=17, code=200))
    log.close()
    (tmp_path / "audit.log").write_bytes(text([event("get", "nodes", 1, name="n")]))
    lines, reading = read(tmp_path / "requests.log", tmp_path / "audit.log")
    assert [(line.verb, line.bytes) for line in lines] == [("get", -1), ("list", 17)]
    assert reading.broken == 0


def test_request_log_keeps_at_most_its_files_and_bytes(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "r.log", max_bytes=1000, files=3)
    for number in range(200):
        log.write(RequestLine(time=float(number), verb="get", resource="pods"))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["r.log", "r.log.1", "r.log.2"]
    assert all(file.stat().st_size <= 1000 for file in files)
    lines, reading = read(*files)
    assert lines[-1].time == 199
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert reading.broken == 0


def test_request_log_is_readable_only_by_its_owner_and_continues_after_a_restart(tmp_path: Path) -> None:
    for time in (1.0, 2.0):
        log = RequestLog(tmp_path / "r.log", max_bytes=1000, files=1)
        log.write(RequestLine(time=time))
        log.close()
    assert (tmp_path / "r.log").stat().st_mode & 0o777 == 0o600
    assert [line.time for line in read(tmp_path / "r.log")[0]] == [1.0, 2.0]


def test_request_log_drops_lines_that_it_cannot_write_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RequestLog(folder / "r.log", max_bytes=100, files=1)
    log.write(RequestLine(time=1.0))
    (folder / "r.log").unlink()
    folder.rmdir()
    for number in range(50):
        log.write(RequestLine(time=float(number), user="u" * 90))
    assert log.dropped == 50
    folder.mkdir()
    log.write(RequestLine(time=99.0))
    log.close()
    assert [line.time for line in read(folder / "r.log")[0]] == [99.0]

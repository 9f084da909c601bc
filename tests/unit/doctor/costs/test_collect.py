"""What the doctor says about a log that shows no requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.api.reader import Reader
from muster.doctor.costs.collect import collect_usage
from muster.doctor.rule import Context, Options
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from tests.support.auditevents import event, text


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (b"", "is empty"),
        (b"noise\nmore\n", "2 of 2 lines of"),
        (text([event("list", "pods", 1)]) + b"torn", "1 of 2 lines of"),
        (text([event("list", "pods", 1)]), ""),
    ],
)
async def test_empty_or_broken_log_is_named_as_not_examined(tmp_path: Path, content: bytes, missing: str) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(content)
    async with Client(ClusterConfig("http://127.0.0.1:1"), retry_for_s=0) as client:
        reader = Reader(client)
        await collect_usage(Context(reader, Options(audit_log=(path,)), 0, (), {}))
    said = [each.why for each in reader.unseen if str(path) in each.why]
    assert len(said) == bool(missing)
    assert all(missing in why for why in said)

"""Issue 11.4: logs of a cluster's own programs are bounded while the programs keep them open."""

from __future__ import annotations

from pathlib import Path

from muster.embedded.programlogs import bound_logs


def test_large_log_is_emptied_and_its_end_is_kept(tmp_path: Path) -> None:
    log, small = tmp_path / "apiserver.log", tmp_path / "node-0.log"
    small.write_bytes(b"small")
    with log.open("ab", buffering=0) as program:
        for number in range(3000):
            program.write(b"line %07d\n" % number)
        bound_logs(tmp_path, 10_000)
        program.write(b"after\n")
        assert log.read_bytes() == b"after\n"
        kept = (tmp_path / "apiserver.log.1").read_bytes()
        assert len(kept) == 10_000
        assert kept.endswith(b"line 0002999\n")
        for number in range(3000):
            program.write(b"more %07d\n" % number)
        bound_logs(tmp_path, 10_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000 + len(b"small")
    assert small.read_bytes() == b"small"


def test_log_is_emptied_even_where_its_end_cannot_be_kept(tmp_path: Path) -> None:
    log = tmp_path / "controller.log"
    log.write_bytes(b"x" * 20_000)
    (tmp_path / "controller.log.1").mkdir()
    bound_logs(tmp_path, 10_000)
    assert log.read_bytes() == b""

"""The last lines and the newest traceback of a rank's output."""

from __future__ import annotations

import os

from muster.trainingjobs.supervisor.ranks.output import Stream


def fed(*chunks: bytes) -> Stream:
    stream = Stream(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY), b"[rank 3] ")
    for chunk in chunks:
        stream.feed(chunk)
    os.close(stream.sink)
    stream.close()
    return stream


def test_traceback_is_found_in_output_that_arrives_in_pieces() -> None:
    stream = fed(b"step 1\nTraceback (most rec", b"ent call last):\n  File x\nValue", b"Error: bad\nlater\n")
    assert stream.trace == ["Traceback (most recent call last):", "  File x", "ValueError: bad"]
    assert stream.tail[-1] == "later"


def test_traceback_with_the_prefix_of_pytorch_2_is_found() -> None:
    """Issue 11.3: torch.distributed writes the rank before each line of an uncaught exception."""
    stream = fed(b"[rank3]: Traceback (most recent call last):\n[rank3]:   File x\n[rank3]: ValueError: bad")
    assert list(stream.tail) == ["Traceback (most recent call last):", "  File x", "ValueError: bad"]
    stream = fed(b"[rank3]: Traceback (most recent call last):\n[rank3]:   File x\n[rank3]: ValueError: bad\n")
    assert stream.trace == ["Traceback (most recent call last):", "  File x", "ValueError: bad"]


def test_other_brackets_stay() -> None:
    assert list(fed(b"[rank 1] a\n[ranks]: b\n[1]: c\n").tail) == ["[rank 1] a", "[ranks]: b", "[1]: c"]


def test_long_lines_are_cut() -> None:
    assert [len(line) for line in fed(b"x" * 5000 + b"\n").tail] == [400]

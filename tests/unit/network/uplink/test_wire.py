from __future__ import annotations

import asyncio

import msgspec
import pytest

from muster.kube.frames import FrameTooLong, frame
from muster.network.uplink import streams, wire
from muster.network.uplink.streams import BadFrame
from muster.network.uplink.wire import Applied, Hello, Pair, PodDemand, Rates, Refused, Report

DEMAND = PodDemand(1, 2, 3, 4)
MESSAGES = (
    Hello(1, "node-1", "secret"),
    Report(3, Pair(10, 20), {"uid": DEMAND}),
    Applied("epoch", 4, Pair(1, 2)),
)
ANSWERS = (
    wire.Welcome("epoch", 5.0, 15.0),
    Refused(wire.Reason.BUSY, "too many", 2.0),
    Rates(1, "epoch", 3, 30.0, 60.0, {"uid": Pair(5, 6)}, Pair(1, 1), Pair(2, 2), True),
    wire.Renewal(1, 3),
)


def body(message: wire.FromAgent | wire.FromHub) -> bytes:
    return streams.encode(message)[4:]


def test_messages_arrive_as_they_were_sent() -> None:
    assert tuple(streams.decode_from_agent(body(each)) for each in MESSAGES) == MESSAGES
    assert tuple(streams.decode_from_hub(body(each)) for each in ANSWERS) == ANSWERS


@pytest.mark.parametrize("message", ANSWERS)
def test_hub_does_not_take_messages_of_a_hub(message: wire.FromHub) -> None:
    with pytest.raises(BadFrame):
        streams.decode_from_agent(body(message))


@pytest.mark.parametrize(
    "what",
    [
        b"",
        b"\xc1",
        b"\x91" * 2000,
        msgspec.msgpack.encode([2, 1, [1, 1], {"uid": [-1, 0, 0, 0]}]),
        msgspec.msgpack.encode([2, 1, [1, 1], {"uid": [2**60, 0, 0, 0]}]),
        msgspec.msgpack.encode([2, 1, [1, 1], {f"uid-{i}": [0, 0, 0, 0] for i in range(wire.PODS_MAX + 1)}]),
        msgspec.msgpack.encode([2, 1, [1, 1], {"x" * 254: [0, 0, 0, 0]}]),
        msgspec.msgpack.encode([1, 1, "n" * 254, "token"]),
    ],
)
def test_bad_frames_are_refused(what: bytes) -> None:
    with pytest.raises(BadFrame):
        streams.decode_from_agent(what)


def test_the_largest_report_fits_a_frame() -> None:
    large = PodDemand(2**53, 2**53, 2**53, 2**53)
    pods = {f"{i:08}-0000-0000-0000-000000000000": large for i in range(wire.PODS_MAX)}
    assert len(body(Report(1, Pair(2**53, 2**53), pods))) <= wire.FRAME_BYTES_MAX


async def test_long_frame_is_refused_before_it_is_read() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frame(b"x" * 100))
    with pytest.raises(FrameTooLong):
        await streams.receive_from_agent(reader, 99)


def test_token_is_not_shown() -> None:
    assert "secret" not in repr(MESSAGES[0])


def test_total_is_the_sum_of_all_limits() -> None:
    rates = Rates(1, "e", 1, 1.0, 1.0, {"a": Pair(1, 2), "b": Pair(3, 4)}, Pair(5, 6), Pair(0, 0))
    assert rates.total == Pair(9, 12)

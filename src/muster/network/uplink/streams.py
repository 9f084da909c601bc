"""The bytes of the messages between an agent and the hub: MessagePack in length-prefixed frames."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from muster.kube.frames import frame, read_frame
from muster.network.uplink.wire import FRAME_BYTES_MAX, FromAgent, FromHub


class BadFrame(Exception):
    """The peer sent something that is not a frame of this protocol. The message says what."""


_encoder: Final = msgspec.msgpack.Encoder()
_from_agent: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(FromAgent)
_from_hub: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(FromHub)


def encode(message: FromAgent | FromHub) -> bytes:
    """Return the frame of a message."""
    return frame(_encoder.encode(message))


def decode_from_agent(body: bytes) -> FromAgent:
    """Return the message in the body of a frame. Raises BadFrame."""
    return _decode(_from_agent, body)  # type: ignore[no-any-return]


def decode_from_hub(body: bytes) -> FromHub:
    """Return the message in the body of a frame. Raises BadFrame."""
    return _decode(_from_hub, body)  # type: ignore[no-any-return]


async def receive_from_hub(reader: asyncio.StreamReader) -> FromHub:
    """Return the hub's next message. Raises BadFrame, FrameTooLong, IncompleteReadError, OSError."""
    return decode_from_hub(await read_frame(reader, FRAME_BYTES_MAX))


async def receive_from_agent(reader: asyncio.StreamReader, limit_bytes: int = FRAME_BYTES_MAX) -> FromAgent:
    """Return the agent's next message. Raises BadFrame, FrameTooLong, IncompleteReadError, OSError."""
    return decode_from_agent(await read_frame(reader, limit_bytes))


def _decode(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(str(error)) from None

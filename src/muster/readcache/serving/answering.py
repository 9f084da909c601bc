"""Writes answers that end: whole if they are small, else in slices and compressed if the client accepts that."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Iterator

from muster.kube.http1.heads import CACHE_CONTROL
from muster.readcache.request import Answer
from muster.readcache.serving.exchange import Exchange
from muster.readcache.serving.settings import ServingSettings

_SLICE_BYTES = 64 << 10
_GZIP = 16 + zlib.MAX_WBITS


def accepts_gzip(header: str) -> bool:
    """Returns whether kube-apiserver would compress: it looks for the bare word."""
    return any(token.strip() == "gzip" for token in header.split(","))


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Cut and join pieces, so that each slice is about as large as the others."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _SLICE_BYTES:
            joined = b"".join(waiting)
            waiting, size = [], 0
            for start in range(0, len(joined), 2 * _SLICE_BYTES):
                yield joined[start : start + 2 * _SLICE_BYTES]
    if waiting:
        yield b"".join(waiting)


async def write_answer(exchange: Exchange, answer: Answer, settings: ServingSettings) -> None:
    """Send an answer. Other clients are served between the slices of a large one."""
    headers = [CACHE_CONTROL, *answer.headers]
    slices = _slices(answer.body)
    first: list[bytes] = []
    size = 0
    for one in slices:
        first.append(one)
        size += len(one)
        if size > settings.gzip_bytes_min:
            break
    else:
        exchange.respond(answer.status, answer.content_type, b"".join(first), headers)
        return
    headers.append(("Content-Type", answer.content_type))
    compressor = None
    if accepts_gzip(",".join(exchange.request.headers_of("accept-encoding")[:1])):
        compressor = zlib.compressobj(settings.gzip_level, zlib.DEFLATED, _GZIP)
        headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
    exchange.begin(answer.status, headers)
    for one in first:
        exchange.send(compressor.compress(one) if compressor is not None else one)
    del first
    for one in slices:
        await asyncio.sleep(0)
        await exchange.room()
        exchange.send(compressor.compress(one) if compressor is not None else one)
    if compressor is not None:
        exchange.send(compressor.flush())
    exchange.finish()

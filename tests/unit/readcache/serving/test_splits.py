"""However the bytes of requests are cut, the responses are the same."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.readcache.request import Answer
from tests.unit.readcache.serving.stand_ins import JSON, serving

BIG = b"z" * 300_000
REQUESTS = (
    (b"GET /cached/x HTTP/1.1\r\nHost: c\r\n\r\n", b"{}"),
    (b"GET /cached/big HTTP/1.1\r\nHost: c\r\n\r\n", BIG),
    (b"POST /x HTTP/1.1\r\nHost: c\r\nContent-Length: 7\r\n\r\nGET / H", b"not cached: 7"),
    (
        b"PUT /x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
        b"not cached: 5",
    ),
    (b"GET /cached/x HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\n\r\nbody", b"{}"),
    (b"GET /x HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", b"not cached: 0"),
)


@settings(max_examples=40)
@given(st.data())
def test_cuts_do_not_matter(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=8))
    text = b"".join(request for request, _ in chosen)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    async def check() -> None:
        async with serving() as served:
            served.reads.answers = {
                "/cached/x": Answer(200, JSON, (b"{}",)),
                "/cached/big": Answer(200, JSON, (BIG[:1000], BIG[1000:])),
            }
            one = await served.connect()

            async def send() -> None:
                for piece in pieces:
                    await one.send(piece)
                    await asyncio.sleep(0)

            sending = asyncio.create_task(send())
            assert [(await one.reply()).body for _ in chosen] == [body for _, body in chosen]
            await sending
            await one.close()

    asyncio.run(check())

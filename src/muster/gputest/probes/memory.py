"""Tests GPU memory and host memory with patterns (patterns.py), and measures the bandwidth."""

from __future__ import annotations

import os

from muster.gputest.backend import Array, Backend, Device
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.figures import GB
from muster.gputest.patterns import BASIC, Pattern, patterns

WORD_BYTES = 8
_HOST_CHUNK_BYTES = 64 << 20


def run(context: Context) -> None:
    """Measure each GPU's bandwidth, then test nearly all memory with every pattern, repeated while there is time."""
    for device in context.backend.devices():
        _bandwidth(context, device)
    context.each_gpu(lambda device: _test(context, device))


def run_on_host(context: Context) -> None:
    """Test the host's memory with the basic patterns, chunk by chunk: as time allows, up to a quarter of it."""
    from muster.gputest.reference import ReferenceBackend

    host, tested = ReferenceBackend(1), list[Array]()
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    while not tested or (context.time_left() and (len(tested) + 1) * _HOST_CHUNK_BYTES < available // 4):
        tested.append(host.words(0, _HOST_CHUNK_BYTES // WORD_BYTES))  # kept, so that the next one has another place
        context.say(None, f"chunk {len(tested)}")
        if not all(_holds(context, host, None, tested[-1:], pattern) for pattern in BASIC):
            break
    context.figure(None, "host_memory_tested_bytes", len(tested) * _HOST_CHUNK_BYTES)


def _bandwidth(context: Context, device: Device) -> None:
    backend = context.backend
    chunk = min(context.sizes.chunk_bytes, backend.condition(device.index).memory_free_bytes // 4)
    context.say(device, "bandwidth")
    pair = [backend.words(device.index, chunk // WORD_BYTES) for _ in range(2)]
    backend.fill(device.index, pair[0], Pattern("zeros", 0))
    copied = context.rate([device.index], 2 * chunk / GB, lambda: backend.copy(device.index, pair[1], pair[0]))
    context.figure(device, "memory_bandwidth_gb_per_s", copied)  # each byte is read and written
    context.say(device, "")


def _test(context: Context, device: Device) -> None:
    backend, sizes = context.backend, context.sizes
    backend.release()  # cached memory of the earlier copies would not be tested
    free = backend.condition(device.index).memory_free_bytes
    chunk = min(sizes.chunk_bytes, free // 4)
    count = max(2, int(free * sizes.memory_share) // chunk)
    chunks = [backend.words(device.index, chunk // WORD_BYTES) for _ in range(count)]
    context.figure(device, "memory_tested_bytes", count * chunk)
    first = True
    while first or context.time_left():
        for pattern in patterns(context.setup.level):
            context.say(device, pattern.name)
            if not _holds(context, backend, device, chunks, pattern):
                return  # one wrong word is enough: the next pattern would find the same
            if not first and not context.time_left():
                return
        first = False


def _holds(context: Context, backend: Backend, device: Device | None, chunks: list[Array], pattern: Pattern) -> bool:
    tested = device.index if device else 0
    starts = [chunk * len(words) for chunk, words in enumerate(chunks)]
    for start, words in zip(starts, chunks, strict=True):
        backend.fill(tested, words, pattern, start)
    for start, words in zip(starts, chunks, strict=True):
        wrong = backend.check(words, pattern, start)
        if wrong is not None:
            index = start + wrong.index
            expected, found = pattern.word(index), wrong.found % (1 << 64)
            context.fail(
                device,
                Code.WRONG_WORD,
                f"{pattern.name}: {wrong.count} words wrong, the first at "
                f"{backend.address(words) + wrong.index * WORD_BYTES:#x} (byte {index * WORD_BYTES} of those tested): "
                f"{expected:#018x} written, {found:#018x} read, bits {expected ^ found:#x}",
            )
            return False
    return True

"""Tests copies between the host's memory and each GPU, one GPU after the other: content and speed."""

from __future__ import annotations

import os

from muster.gputest.backend import HOST, Array, Device
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.figures import GB
from muster.gputest.patterns import Pattern
from muster.gputest.probes.memory import WORD_BYTES

THERE = Pattern("up", 0x0123456789ABCDEF, 0x9E3779B97F4A7C15)
BACK = Pattern("down", 0x7B5BAD595E238E31, 0x9E3779B97F4A7C15)


def run(context: Context) -> None:
    """Test one GPU at a time, from the nearest host memory, because GPUs behind one PCIe switch share its link."""
    allowed = os.sched_getaffinity(0)
    # Kept to the end: freed memory could be reused at the same place for the next GPU.
    kept: list[Array] = []
    try:
        for device in context.backend.devices():
            context.say(device, "copies")
            os.sched_setaffinity(0, context.backend.local_cpus(device.index) & allowed or allowed)
            kept.append(_test(context, device))
            context.say(device, "")
    finally:
        os.sched_setaffinity(0, allowed)


def _test(context: Context, device: Device) -> Array:
    """Test one GPU. Returns the host memory that was used."""
    backend, size = context.backend, context.sizes.copy_bytes
    host, there = (backend.words(place, size // WORD_BYTES) for place in (HOST, device.index))

    backend.fill(HOST, host, THERE)
    rate = context.rate([device.index], size / GB, lambda: backend.copy(device.index, there, host))
    context.figure(device, "host_to_device_gb_per_s", rate)
    _compare(context, device, "host to device", there, THERE)

    backend.fill(device.index, there, BACK)
    rate = context.rate([device.index], size / GB, lambda: backend.copy(device.index, host, there))
    context.figure(device, "device_to_host_gb_per_s", rate)
    _compare(context, device, "device to host", host, BACK)
    return host


def _compare(context: Context, device: Device, way: str, words: object, pattern: Pattern) -> None:
    wrong = context.backend.check(words, pattern)
    if wrong is not None:
        expected, found = pattern.word(wrong.index), wrong.found % (1 << 64)
        context.fail(
            device,
            Code.WRONG_COPY,
            f"{way}: {wrong.count} words wrong, the first is word {wrong.index}: "
            f"{expected:#018x} sent, {found:#018x} arrived",
        )

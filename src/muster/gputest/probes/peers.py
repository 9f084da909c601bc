"""Tests copies between each pair of GPUs: their content, and the speed of each GPU's slowest connection."""

from __future__ import annotations

from muster.gputest.backend import Device
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.figures import GB
from muster.gputest.probes.memory import WORD_BYTES
from muster.gputest.probes.transfers import THERE


def run(context: Context) -> None:
    """Test one pair at a time, so that a slow link is not hidden behind others."""
    devices = context.backend.devices()
    if len(devices) < 2:
        context.skip("there is one GPU only")
        return
    for source in devices:
        rates = [_pair(context, source, target) for target in devices if target != source]
        context.figure(source, "peer_slowest_gb_per_s", min(rates))


def _pair(context: Context, source: Device, target: Device) -> float:
    backend, size = context.backend, context.sizes.copy_bytes
    context.say(source, f"to {target.uuid}")
    sent, arrived = (backend.words(device.index, size // WORD_BYTES) for device in (source, target))
    backend.fill(source.index, sent, THERE)
    both = [source.index, target.index]
    rate = context.rate(both, size / GB, lambda: backend.copy(source.index, arrived, sent))
    wrong = backend.check(arrived, THERE)
    if wrong is not None:
        message = f"to {target.uuid}: {wrong.count} words wrong, the first is word {wrong.index}"
        context.fail(source, Code.WRONG_COPY, message)
    context.say(source, "")
    return rate

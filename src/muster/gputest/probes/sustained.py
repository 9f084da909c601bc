"""Tests all GPUs at full load for a while: clocks, power and temperature must hold, and results must not change."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

from muster.gputest.backend import Device, Sample
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.operands import random

_PREFERRED = ("bf16", "fp16")
_BATCHES = 100  # batches in the work time, but no batch is longer than this:
_BATCH_S_MAX = 0.5
_TRIED = 4
_TERA = 1e12
_SEED = 40


def run(context: Context) -> None:
    """Test all GPUs concurrently, because power and cooling are shared by the node."""
    n = context.sizes.load_n
    backend = context.backend
    precisions = {d.index: _precision(backend.precisions(d.index)) for d in backend.devices()}
    operands = {name: [random(n, name, _SEED + i) for i in (1, 2)] for name in set(precisions.values())}
    context.each_gpu(
        lambda device: _load(context, device, precisions[device.index], operands[precisions[device.index]])
    )


def _precision(have: tuple[str, ...]) -> str:
    return next(name for name in (*_PREFERRED, *have) if name in have)


def _load(context: Context, device: Device, precision: str, operands: list[Any]) -> None:
    backend, index = context.backend, device.index
    a, b = backend.operands(index, operands[0], operands[1], precision)
    first = backend.multiply(index, a, b, precision)
    # The shortest of several: the first one may have waited for other threads of this process.
    one_s = min(backend.timed([index], lambda: backend.multiply(index, a, b, precision)) for _ in range(_TRIED))
    batch = max(1, round(min(_BATCH_S_MAX, context.request.work_s / _BATCHES) / one_s))
    flop = 2.0 * len(operands[0]) ** 3 * batch / _TERA
    rates: list[float] = []
    samples: list[Sample] = []
    last = first

    def work() -> None:
        nonlocal last
        for _ in range(batch):
            last = backend.multiply(index, a, b, precision)
        sample = backend.sample(index)  # while the device works: the request was sent, and its end is not awaited yet
        if sample is not None:
            samples.append(sample)

    began = time.monotonic()
    while not rates or context.time_left():
        rates.append(flop / backend.timed([index], work))
        context.say(device, f"{time.monotonic() - began:.0f} s, {rates[-1]:.3g} Tflop/s")
        if not backend.same_bits(index, first, last):
            message = f"{precision}: a product differed after {time.monotonic() - began:.0f} s of load"
            context.fail(device, Code.NOT_REPEATABLE, message)
            break
    _report(context, device, rates, samples)


def _report(context: Context, device: Device, rates: list[float], samples: list[Sample]) -> None:
    quarter = max(1, len(rates) // 4)
    begin, end = fmean(rates[:quarter]), fmean(rates[-quarter:])
    context.figure(device, "sustained_tflop_per_s", fmean(rates))
    context.figure(device, "sustained_drop_percent", 100 * (begin - end) / begin)
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    powers = [sample.power_w for sample in samples if sample.power_w is not None]
    temperatures = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
    if clocks:
        context.figure(device, "sustained_sm_clock_mhz", fmean(clocks))
    if powers:
        context.figure(device, "sustained_power_w", fmean(powers))
    if temperatures:
        context.figure(device, "temperature_max_c", max(temperatures))
    for reason in sorted({reason for sample in samples for reason in sample.slowdowns}):
        share = sum(reason in sample.slowdowns for sample in samples) / len(samples)
        context.fail(device, Code.THROTTLED, f"{reason} in {share:.0%} of {len(samples)} samples under load")

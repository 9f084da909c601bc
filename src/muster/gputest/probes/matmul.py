"""Tests matrix products in every precision: right, repeatable, the same on every GPU, and fast (operands.py)."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from muster.gputest.backend import Array, Device
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.operands import Matrix, Projection, difference, known, random

_SEED = 20
_TERA = 1e12
_ROUNDS_MIN = 3


class _Work(NamedTuple):
    precision: str
    a: Matrix
    b: Matrix
    projection: Projection


class _Tested(NamedTuple):
    digest: bytes
    a: Array
    b: Array


def run(context: Context) -> None:
    """Test one precision after the other, on all GPUs concurrently."""
    devices = context.backend.devices()
    n = context.sizes.matrix_n
    exact = known(n, _SEED)
    have = {device.index: context.backend.precisions(device.index) for device in devices}
    names = sorted({name for each in have.values() for name in each})
    for done, precision in enumerate(names, 1):
        a, b = (random(n, precision, _SEED + i) for i in (1, 2))
        work = _Work(precision, a, b, Projection(a, b, precision, _SEED + 3))
        until = done / len(names)
        able = [device for device in devices if precision in have[device.index]]
        tested: list[_Tested] = context.each_gpu(partial(_test, context, exact, work, until), able)
        for device, each in zip(able, tested, strict=True):
            _rate(context, precision, device, each)
        _compare(context, precision, {device: each.digest for device, each in zip(able, tested, strict=True)})


def _rate(context: Context, precision: str, device: Device, tested: _Tested) -> None:
    """Measure the speed of one GPU at a time: threads would wait for each other and seem slower."""
    backend, index = context.backend, device.index
    context.say(device, f"{precision}, speed")
    tera = 2 * tested.a.shape[0] ** 3 / _TERA
    rate = context.rate([index], tera, lambda: backend.multiply(index, tested.a, tested.b, precision))
    context.figure(device, f"matmul_{precision}_tflop_per_s", rate)
    context.say(device, "")


def _test(context: Context, exact: tuple[Matrix, Matrix, Matrix], work: _Work, until: float, device: Device) -> _Tested:
    """Test products on one GPU. Returns a digest for comparison between GPUs, and its operands on the device."""
    backend, precision, index = context.backend, work.precision, device.index
    context.say(device, f"{precision}, known product")
    product = backend.multiply(index, *backend.operands(index, exact[0], exact[1], precision), precision)
    wrong = difference(backend.download(product), exact[2])
    if wrong is not None:
        context.fail(
            device,
            Code.WRONG_PRODUCT,
            f"{precision}: {wrong.number} elements wrong, the first at row {wrong.row}, column {wrong.column}: "
            f"{wrong.expected!r} expected, {wrong.found!r} computed",
        )

    context.say(device, f"{precision}, random product")
    a, b = backend.operands(index, work.a, work.b, precision)
    first = backend.multiply(index, a, b, precision)
    host = backend.download(first)
    row, times = work.projection.worst(host)
    if times > 1:
        context.fail(
            device, Code.WRONG_PRODUCT, f"{precision}: row {row} is {times:.3g} times further off than rounding can be"
        )

    context.say(device, f"{precision}, repeated")
    rounds = 0
    while rounds < _ROUNDS_MIN or context.time_left(until):
        rounds += 1
        if not backend.same_bits(index, first, backend.multiply(index, a, b, precision)):
            context.fail(device, Code.NOT_REPEATABLE, f"{precision}: the product differed in round {rounds}")
            break
    return _Tested(blake2b(host.tobytes()).digest(), a, b)


def _compare(context: Context, precision: str, digests: dict[Device, bytes]) -> None:
    """Compare GPUs of one model. If most agree, the others are wrong; otherwise the wrong ones are not known."""
    models: defaultdict[str, dict[Device, bytes]] = defaultdict(dict)
    for device, digest in digests.items():
        models[device.name][device] = digest
    for name, those in models.items():
        (common, votes), *others = Counter(those.values()).most_common()
        if not others:
            continue
        if votes * 2 > len(those):
            for device, digest in those.items():
                if digest != common:
                    message = f"{precision}: the product differs from that of {votes} other GPUs"
                    context.fail(device, Code.GPUS_DISAGREE, message)
        else:
            message = f"{precision}: {len(those)} GPUs ({name}) have {len(others) + 1} products of the same operands"
            context.fail(None, Code.GPUS_DISAGREE, message)

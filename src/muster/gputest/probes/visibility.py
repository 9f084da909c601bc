"""Tests whether all GPUs are there, the driver matches its library, and no earlier program left anything behind.

It runs first: it looks for contexts of other processes before this process has any.
"""

from __future__ import annotations

from collections import Counter

from muster.gputest.backend import Condition, Device
from muster.gputest.codes import Code
from muster.gputest.context import Context

_FREE_SHARE_MIN = 0.95
"""Memory in use on an idle GPU; the driver itself holds some hundred MiB of it."""


def run(context: Context) -> None:
    """Check everything that can be queried without computing."""
    backend = context.backend
    devices = backend.devices()
    for device in devices:
        context.say(device, "condition")
        _judge(context, device, backend.condition(device.index))
        context.say(device, "")
    _count(context, devices)
    _versions(context, backend.versions())
    identities = [(device.uuid, "UUID") for device in devices] + [(device.pci_address, "address") for device in devices]
    for (identity, kind), times in Counter(identities).items():
        if times > 1:
            context.fail(None, Code.DUPLICATE_GPU, f"{times} GPUs have the {kind} {identity}")
    computing = backend.computing_uuids()
    if set(computing) != {device.uuid for device in devices}:
        message = f"the driver shows {len(devices)} GPUs, the library that computes {len(computing)}"
        lacking = sorted({device.uuid for device in devices} - set(computing))
        context.fail(None, Code.GPU_COUNT, message + (f"; it lacks {', '.join(lacking)}" if lacking else ""))


def _count(context: Context, devices: tuple[Device, ...]) -> None:
    expected = context.setup.expect_gpus
    if expected is not None:
        if len(devices) != expected:
            context.fail(None, Code.GPU_COUNT, f"{expected} GPUs expected, the driver shows {len(devices)}")
        return
    missing = sorted(set(context.backend.bus_addresses()) - {device.pci_address for device in devices})
    for address in missing:
        context.fail(None, Code.GPU_COUNT, f"the GPU at {address} is on the bus, but the driver does not show it")


def _versions(context: Context, versions: dict[str, str]) -> None:
    module, library = versions.get("kernel_module"), versions.get("driver")
    if module and library and module != library:
        context.fail(None, Code.DRIVER_MISMATCH, f"the kernel module is {module}, the library {library}")


def _judge(context: Context, device: Device, condition: Condition) -> None:
    if condition.processes:
        pids = ", ".join(str(pid) for pid in condition.processes)
        context.fail(device, Code.LEFTOVER_PROCESS, f"processes hold contexts: {pids}")
    elif condition.memory_free_bytes < device.memory_bytes * _FREE_SHARE_MIN:
        taken = device.memory_bytes - condition.memory_free_bytes
        context.fail(device, Code.MEMORY_TAKEN, f"{taken} bytes are in use, but by no visible process")
    if condition.ecc_enabled is False:
        context.fail(device, Code.ECC_OFF, "ECC is off")
    if condition.ecc_pending != condition.ecc_enabled:
        context.fail(device, Code.ECC_PENDING, f"ECC will be {'on' if condition.ecc_pending else 'off'} after a reset")
    if condition.remap_pending:
        context.fail(device, Code.ROW_REMAP_PENDING, "a row of memory waits to be remapped")
    if condition.remap_failed:
        context.fail(device, Code.ROW_REMAP_FAILED, "a row of memory could not be remapped")
    if condition.retirement_pending:
        context.fail(device, Code.PAGE_RETIREMENT_PENDING, "a page of memory waits to be retired")

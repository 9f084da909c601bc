"""The codes of failures, and what to do about each."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Codes of failures. They are stable, because policies refer to them."""

    NO_GPU = "no-gpu"
    NOT_INSTALLED = "not-installed"
    GPU_COUNT = "gpu-count"
    DUPLICATE_GPU = "duplicate-gpu"
    DRIVER_MISMATCH = "driver-mismatch"
    LEFTOVER_PROCESS = "leftover-process"
    MEMORY_TAKEN = "memory-taken"
    ECC_OFF = "ecc-off"
    ECC_PENDING = "ecc-pending"
    ROW_REMAP_PENDING = "row-remap-pending"
    ROW_REMAP_FAILED = "row-remap-failed"
    PAGE_RETIREMENT_PENDING = "page-retirement-pending"
    WRONG_WORD = "wrong-word"
    WRONG_COPY = "wrong-copy"
    WRONG_PRODUCT = "wrong-product"
    NOT_REPEATABLE = "not-repeatable"
    GPUS_DISAGREE = "gpus-disagree"
    WRONG_SUM = "wrong-sum"
    RANK_FAILED = "rank-failed"
    THROTTLED = "throttled"
    BELOW_FLOOR = "below-floor"
    SLOWER_THAN_PEERS = "slower-than-peers"
    WRONG_DIGEST = "wrong-digest"
    WRONG_DATA = "wrong-data"
    DISK_FULL = "disk-full"
    HUNG = "hung"
    CRASHED = "crashed"


_CORRUPTS = "Take the node out of service: it corrupts data. Reset the GPU and test again; replace it if that fails."
_SLOW = "Reset the GPU and test again; check PCIe width, NVLink and power; replace it if it stays slow."
_HOST_CORRUPTS = "Take the node out of service: its host corrupts data. Replace the node."

REMEDIES: dict[Code, str] = {
    Code.NO_GPU: "Install or reload the driver; look for Xid 79 (fallen off the bus) in the kernel log.",
    Code.NOT_INSTALLED: "Put `muster[gputest-nvidia]` into the image, and have NVIDIA's container runtime run it; "
    "`--backend cpu` needs neither. This failure says nothing about the node.",
    Code.GPU_COUNT: "Look for Xid 79 (fallen off the bus) in the kernel log, reboot, and replace the node if need be.",
    Code.DUPLICATE_GPU: "Reboot; if two GPUs still answer to one identity, replace the node.",
    Code.DRIVER_MISMATCH: "Reboot, so that the kernel module and the library come from the same driver version.",
    Code.LEFTOVER_PROCESS: "End the process; if the memory is not freed, reset the GPU.",
    Code.MEMORY_TAKEN: "Reset the GPU: memory is held without a process that could be ended.",
    Code.ECC_OFF: "Enable ECC (`nvidia-smi -e 1`) and reset the GPU.",
    Code.ECC_PENDING: "Reset the GPU, so that the ECC mode that was asked for takes effect.",
    Code.ROW_REMAP_PENDING: "Reset the GPU: rows are remapped only then.",
    Code.ROW_REMAP_FAILED: "Replace the GPU: it has no spare rows left.",
    Code.PAGE_RETIREMENT_PENDING: "Reset the GPU: pages are retired only then.",
    Code.WRONG_WORD: "Reset the GPU and test again; replace it if a word is wrong once more.",
    Code.WRONG_COPY: _CORRUPTS,
    Code.WRONG_PRODUCT: _CORRUPTS,
    Code.NOT_REPEATABLE: _CORRUPTS,
    Code.GPUS_DISAGREE: _CORRUPTS,
    Code.WRONG_SUM: "Take the node out of service: reset its GPUs and NVLink switches; replace it if sums stay wrong.",
    Code.RANK_FAILED: "Read the error of the communication library; check NVLink, the fabric manager and the network.",
    Code.THROTTLED: "Check cooling and power of the node: hardware held the clocks down.",
    Code.BELOW_FLOOR: _SLOW,
    Code.SLOWER_THAN_PEERS: _SLOW,
    Code.WRONG_DIGEST: _HOST_CORRUPTS,
    Code.WRONG_DATA: _HOST_CORRUPTS,
    Code.DISK_FULL: "Free space on the disk, or name another folder with `--scratch`.",
    Code.HUNG: "Read the kernel log; reset the GPU that did not answer, or reboot where the host did not.",
    Code.CRASHED: "Read the message: a library or the driver ended the test. Reboot and test again.",
}

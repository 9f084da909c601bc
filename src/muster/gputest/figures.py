"""The figures that tests measure: their test, their better direction, and the normal spread."""

from __future__ import annotations

from typing import Literal, NamedTuple

GB = 1e9
"""Bytes. Rates are decimal, as in data sheets and in nccl-tests."""


class Figure(NamedTuple):
    """A figure. `margin`: the share of the median by which it may be worse without being an outlier.

    Attributes:
        better: empty if neither direction is better (for example power).
        sized: it depends on the sizes of a level's work, so it is compared only between levels with equal sizes.
    """

    test: str
    better: Literal["higher", "lower", ""]
    margin: float
    sized: bool = False


PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")

FIGURES: dict[str, Figure] = {
    "memory_bandwidth_gb_per_s": Figure("memory", "higher", 0.05),
    "memory_tested_bytes": Figure("memory", "", 0),
    "host_to_device_gb_per_s": Figure("transfers", "higher", 0.1),
    "device_to_host_gb_per_s": Figure("transfers", "higher", 0.1),
    "peer_slowest_gb_per_s": Figure("peers", "higher", 0.1),
    **{f"matmul_{name}_tflop_per_s": Figure("matmul", "higher", 0.07, sized=True) for name in PRECISIONS},
    "sustained_tflop_per_s": Figure("sustained", "higher", 0.07),
    "sustained_drop_percent": Figure("sustained", "", 0),
    "sustained_sm_clock_mhz": Figure("sustained", "higher", 0.07),
    "sustained_power_w": Figure("sustained", "", 0),
    "temperature_max_c": Figure("sustained", "lower", 0.2, sized=True),
    "all_reduce_bus_gb_per_s": Figure("all-reduce", "higher", 0.05, sized=True),
    "cross_node_all_reduce_bus_gb_per_s": Figure("all-reduce-nodes", "higher", 0.1, sized=True),
    "host_memory_tested_bytes": Figure("host-memory", "", 0),
    "cpu_slowest_core_mb_per_s": Figure("cpu", "higher", 0.3),
    "disk_write_mb_per_s": Figure("disk", "higher", 0.5),
    "disk_read_mb_per_s": Figure("disk", "higher", 0.5),
}

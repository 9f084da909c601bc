"""Reads a page of dcgm-exporter's metrics as a sample of GPUs.

Names of fields: dcgm-exporter's default counters, DCGM's field identifiers. Metrics that a site's list of counters
omits are not checked. `xid` needs DCGM_FI_DEV_XID_ERRORS, which has only the last Xid: two equal ones in a row count as
one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from muster.agent.checks.gpusample import Gpu
from muster.fleet.health.patterns import pci_address

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "ECC_DBE_VOL_DEV": ("ecc", "uncorrected-dram"),
    "ECC_SBE_VOL_DEV": ("ecc", "corrected-dram"),
    "UNCORRECTABLE_REMAPPED_ROWS": ("rows", "remapped"),
    "CORRECTABLE_REMAPPED_ROWS": ("rows", "remapped"),
    "RETIRED_SBE": ("rows", "retired"),
    "RETIRED_DBE": ("rows", "retired"),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("nvlink", "replay"),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("nvlink", "recovery"),
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("nvlink", "crc"),
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("nvlink", "crc"),
}
_TOTALS: Final[Mapping[str, tuple[str, str]]] = {
    "ECC_DBE_VOL_TOTAL": ("ecc", "uncorrected-dram"),
    "ECC_SBE_VOL_TOTAL": ("ecc", "corrected-dram"),
}
"""Total over all memories: used if the single memories are not reported."""
_STATES: Final[Mapping[str, tuple[str, str]]] = {
    "ROW_REMAP_FAILURE": ("rows", "failed"),
    "ROW_REMAP_PENDING": ("rows", "pending"),
    "RETIRED_PENDING": ("rows", "pending"),
}
_THROTTLE: Final = ("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS")
_XID: Final = "XID_ERRORS"
_PARTS: Final = {name: number for number, name in enumerate((*_COUNTERS, *_TOTALS))}

_LINE: Final = re.compile(r"^DCGM_FI_DEV_(\w+)\{(.*)\}\s+(\S+)(?:\s+-?\d+)?\s*$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BLANK_32: Final = range(2147483632, 2147483648)
_BLANK_64: Final = 9223372036854775792
"""Values from here on mean "not known" in DCGM."""
GPUS_MAX: Final = 64


def gpus_of_page(text: str) -> tuple[Gpu, ...]:
    """Parse a page. Lines that are not samples of a GPU, and values that are not numbers, are skipped."""
    values: dict[str, dict[str, int]] = {}
    for field, labels_text, value_text in _LINE.findall(text):
        value = _number(value_text)
        labels = dict(_LABEL.findall(labels_text))
        component = _component(labels)
        if value is None or not component or (component not in values and len(values) >= GPUS_MAX):
            continue
        of_gpu = values.setdefault(component, {})
        of_gpu[field] = max(value, of_gpu.get(field, 0))  # parts of a GPU (MIG) repeat the values of the whole GPU
    return tuple(_gpu(component, of_gpu) for component, of_gpu in sorted(values.items()))


def _gpu(component: str, values: Mapping[str, int]) -> Gpu:
    totals = {total: sign for total, sign in _TOTALS.items() if total.replace("_TOTAL", "_DEV") not in values}
    names = {**_COUNTERS, **totals}
    counters = {(*sign, _PARTS[name]): values[name] for name, sign in names.items() if name in values}
    states = {sign: f"DCGM_FI_DEV_{name} is {values[name]}" for name, sign in _STATES.items() if values.get(name)}
    throttle = next((values[name] for name in _THROTTLE if name in values), 0)
    return Gpu(component, counters, states, throttle, xid=values.get(_XID, 0))


def _component(labels: Mapping[str, str]) -> str:
    address = labels.get("pci_bus_id", "")
    return pci_address(address) if address.count(":") >= 1 else labels.get("UUID", labels.get("uuid", ""))


def _number(text: str) -> int | None:
    try:
        value = float(text)
        number = int(value)
    except (ValueError, OverflowError):  # NaN, Inf, words
        return None
    known = 0 <= number < _BLANK_64 and number not in _BLANK_32
    return number if known else None

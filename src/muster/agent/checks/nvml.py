"""Calls NVIDIA's management library through ctypes: only the few functions that the agent needs, to save memory.

Names, structures and numbers: NVML API Reference Guide.

A session is short, because an open one prevents the reset of GPUs and the replacement of the driver. The library is
unloaded after it, so that the next session loads the installed version.

Loading and unloading may block forever too: they run the library's code, from a disk that may be faulty.
During that, ctypes would hold the interpreter's lock and block all other threads. So dlopen and dlclose are
called as foreign functions, which release the lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from types import TracebackType
from typing import Any, Final

LIBRARIES: Final = ("libnvidia-ml.so.1",)

OK: Final = 0
INSUFFICIENT_SIZE: Final = 7
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
_LIBRARY_NOT_FOUND: Final = 12
_UNKNOWN: Final = 999

CORRECTED, UNCORRECTED = 0, 1
_VOLATILE: Final = 0
DRAM, SRAM = 2, 7
REPLAY, RECOVERY, CRC_FLIT, CRC_DATA = 0, 1, 2, 3
LINKS_MAX: Final = 18
GPUS_MAX: Final = 64
_SINGLE_BIT, _DOUBLE_BIT = 0, 1
_PROCESSES_MAX: Final = 256
_TEXT: Final = 96

_PROGRAM: Final = ctypes.CDLL(None)
_dlopen: Final = ctypes.CFUNCTYPE(c_void_p, c_char_p, c_int)(("dlopen", _PROGRAM))
_dlclose: Final = ctypes.CFUNCTYPE(c_int, c_void_p)(("dlclose", _PROGRAM))
_dlerror: Final = ctypes.CFUNCTYPE(c_char_p)(("dlerror", _PROGRAM))


class NvmlError(Exception):
    """A call failed; `code` is NVML's."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"NVML: {what}")
        self.code = code


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("pci_device", c_uint),
        ("pci_subsystem", c_uint), ("bus_id", c_char * 32),
    )  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = (
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong),
        ("used", c_ulonglong),
    )  # fmt: skip


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class _Rows(ctypes.Structure):
    _fields_ = tuple((name, c_uint) for name in ("max", "high", "partial", "low", "none"))


class _Sram(ctypes.Structure):
    _fields_ = (("version", c_uint), ("counts", c_ulonglong * 11), ("exceeded", c_uint))


def _version(kind: type[ctypes.Structure], number: int) -> int:
    return ctypes.sizeof(kind) | number << 24


class Nvml:
    """A session with the library, for use in `with`.

    Args:
        libraries: names or paths; the first that loads is used.

    Raises:
        NvmlError: the library is missing, broken, of another version than the driver, or does not find a driver.
    """

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._library = _load(libraries)
        try:
            self._call("nvmlInit_v2")
        except NvmlError:
            self._let_go()
            raise

    def __enter__(self) -> Nvml:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(NvmlError):  # the library is unloaded in any case
            self._call("nvmlShutdown")
        self._let_go()

    def driver(self) -> str:
        """The driver's version as the library reports it."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """Return the number of the driver's GPUs. Raises NvmlError if it is impossibly large."""
        count = self._number("nvmlDeviceGetCount_v2")
        if count > GPUS_MAX:
            raise NvmlError(_UNKNOWN, f"nvmlDeviceGetCount_v2: {count} GPUs are not possible")
        return count

    def device(self, index: int) -> c_void_p:
        """Return the handle of a GPU."""
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def uuid(self, device: c_void_p) -> str:
        """Return the GPU's UUID, which stays the same in another machine."""
        return self._text("nvmlDeviceGetUUID", device)

    def pci_address(self, device: c_void_p) -> str:
        """Return its PCI address in NVML's format."""
        info = _PciInfo()
        self._call("nvmlDeviceGetPciInfo_v3", device, byref(info))
        return bytes(info.bus_id).decode(errors="replace")

    def memory_errors(self, device: c_void_p, kind: int, place: int) -> int:
        """Return the number of errors since the last start of the driver or reset of the GPU."""
        value = c_ulonglong()
        place_of, kind_of = c_int(place), c_int(kind)
        self._call("nvmlDeviceGetMemoryErrorCounter", device, kind_of, c_int(_VOLATILE), place_of, byref(value))
        return value.value

    def sram_threshold_exceeded(self, device: c_void_p) -> bool:
        """Return whether there were more errors within the chip than NVIDIA allows."""
        status = _Sram(version=_version(_Sram, 1))
        self._call("nvmlDeviceGetSramEccErrorStatus", device, byref(status))
        return bool(status.exceeded)

    def remapped_rows(self, device: c_void_p) -> tuple[int, bool, bool]:
        """Return (rows replaced so far, whether one waits for the next reset, whether a replacement failed)."""
        values = [c_uint() for _ in range(4)]
        self._call("nvmlDeviceGetRemappedRows", device, *(byref(value) for value in values))
        return values[0].value + values[1].value, bool(values[2].value), bool(values[3].value)

    def banks_without_spare_rows(self, device: c_void_p) -> int:
        """Return how many banks of memory have no spare row left."""
        rows = _Rows()
        self._call("nvmlDeviceGetRowRemapperHistogram", device, byref(rows))
        return int(rows.none)

    def retired_pages(self, device: c_void_p) -> tuple[int, bool]:
        """Return (pages retired so far, whether one waits for the next reset)."""
        pages = 0
        for cause in (_SINGLE_BIT, _DOUBLE_BIT):
            count = c_uint()
            try:
                self._call("nvmlDeviceGetRetiredPages", device, c_int(cause), byref(count), None)
            except NvmlError as error:
                # No space for addresses was given, because only their number is needed.
                if error.code != INSUFFICIENT_SIZE:
                    raise
            pages += count.value
        return pages, bool(self._number("nvmlDeviceGetRetiredPagesPendingStatus", device))

    def throttle_reasons(self, device: c_void_p) -> int:
        """Return the bits of the reasons that limit the clocks now."""
        value = c_ulonglong()
        # Called ...ClocksEventReasons in newer libraries, which still have this one.
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device, byref(value))
        return value.value

    def link_is_active(self, device: c_void_p, link: int) -> bool:
        """Return whether an NVLink is up."""
        return bool(self._number("nvmlDeviceGetNvLinkState", device, c_uint(link)))

    def link_errors(self, device: c_void_p, link: int, counter: int) -> int:
        """Return the value of one of an NVLink's counters."""
        value = c_ulonglong()
        self._call("nvmlDeviceGetNvLinkErrorCounter", device, c_uint(link), c_int(counter), byref(value))
        return value.value

    def processes(self, device: c_void_p) -> tuple[int, ...]:
        """Return the IDs of processes that compute on the GPU; host IDs if the agent sees the host's processes."""
        count, infos = c_uint(_PROCESSES_MAX), (_Process * _PROCESSES_MAX)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, byref(count), infos)
        return tuple(int(each.pid) for each in infos[: min(count.value, _PROCESSES_MAX)])

    def memory_held_bytes(self, device: c_void_p) -> int:
        """Return the memory that programs hold, without the driver's own."""
        memory = _Memory(version=_version(_Memory, 2))
        self._call("nvmlDeviceGetMemoryInfo_v2", device, byref(memory))
        return int(memory.used)

    def _number(self, name: str, *arguments: Any) -> int:
        value = c_uint()
        self._call(name, *arguments, byref(value))
        return value.value

    def _text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call(name, *arguments, buffer, c_uint(_TEXT))
        return buffer.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, f"{name} is not in this library") from None
        function.restype = c_int
        code = function(*arguments)
        if code != OK:
            raise NvmlError(code, f"{name}: {self._words(code)}")

    def _words(self, code: int) -> str:
        try:
            words = self._library.nvmlErrorString
        except AttributeError:
            return f"error {code}"
        words.restype, words.argtypes = ctypes.c_char_p, (c_int,)
        text = words(code)
        return text.decode(errors="replace") if text else f"error {code}"

    def _let_go(self) -> None:
        _dlclose(self._library._handle)


def _load(libraries: Sequence[str]) -> ctypes.CDLL:
    problems = []
    for name in libraries:
        handle = _dlopen(os.fsencode(name), os.RTLD_NOW | os.RTLD_LOCAL)
        if handle:
            return ctypes.CDLL(name, handle=handle)
        problems.append((_dlerror() or b"unknown error").decode(errors="replace"))
    raise NvmlError(_LIBRARY_NOT_FOUND, "; ".join(problems))

"""NVIDIA's management library by way of ctypes: the few calls the agent needs, without the Python package's size.

Names, structures and numbers: NVML API Reference Guide. A session is short: an open one keeps GPUs from being reset and
the driver from being replaced, and the library is let go with it, so that the next one loads what is installed then.

Loading and letting go may take for ever as any other call: they run what the library has to say at its beginning and
end, off a disk that may be sick. ctypes holds the interpreter's lock meanwhile, so that nothing else would run, and is
gone around: called as functions, dlopen and dlclose let go of it.
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
NOT_SUPPORTED: Final = 3
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
    """A call failed: `code` is NVML's."""

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
    """A session with the library; use it with `with`.

    Args:
        libraries: names or paths, the first that can be loaded is taken.

    Raises:
        NvmlError: the library is missing, broken, of another version than the driver, or finds no driver.
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
        with contextlib.suppress(NvmlError):  # it is let go all the same
            self._call("nvmlShutdown")
        self._let_go()

    def driver(self) -> str:
        """Version of the driver, as the library sees it."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """How many GPUs the driver has. Raises NvmlError also where it says more than a machine can have."""
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
        """Return what NVIDIA calls the GPU wherever it is built in."""
        return self._text("nvmlDeviceGetUUID", device)

    def pci_address(self, device: c_void_p) -> str:
        """Return its place on the bus, as NVML writes it."""
        info = _PciInfo()
        self._call("nvmlDeviceGetPciInfo_v3", device, byref(info))
        return bytes(info.bus_id).decode(errors="replace")

    def memory_errors(self, device: c_void_p, kind: int, place: int) -> int:
        """Return errors since the driver or the GPU started anew."""
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
        """Return (rows replaced so far, whether one waits for the next reset, whether one could not be replaced)."""
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
                if error.code != INSUFFICIENT_SIZE:  # no room for addresses was given: the number is all we want
                    raise
            pages += count.value
        return pages, bool(self._number("nvmlDeviceGetRetiredPagesPendingStatus", device))

    def throttle_reasons(self, device: c_void_p) -> int:
        """Return the bits of what holds the clocks down now."""
        value = c_ulonglong()
        # Called ...ClocksEventReasons in newer libraries, which still have this one.
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device, byref(value))
        return value.value

    def link_is_active(self, device: c_void_p, link: int) -> bool:
        """Return whether an NVLink is up."""
        return bool(self._number("nvmlDeviceGetNvLinkState", device, c_uint(link)))

    def link_errors(self, device: c_void_p, link: int, counter: int) -> int:
        """Return how far one of an NVLink's counters is."""
        value = c_ulonglong()
        self._call("nvmlDeviceGetNvLinkErrorCounter", device, c_uint(link), c_int(counter), byref(value))
        return value.value

    def processes(self, device: c_void_p) -> tuple[int, ...]:
        """Return who computes on the GPU: process numbers, those of the host where the agent sees them."""
        count, infos = c_uint(_PROCESSES_MAX), (_Process * _PROCESSES_MAX)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, byref(count), infos)
        return tuple(int(each.pid) for each in infos[: min(count.value, _PROCESSES_MAX)])

    def memory_held_bytes(self, device: c_void_p) -> int:
        """Return what programs hold; what the driver keeps for itself is not in it."""
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
        said = words(code)
        return said.decode(errors="replace") if said else f"error {code}"

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

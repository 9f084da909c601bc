"""Reads GPUs from NVIDIA's driver through nvidia-ml-py (module `pynvml`), without creating contexts.

Function names and meanings: NVML API Reference Guide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.gputest.backend import BackendError, Condition, Device, Sample
from muster.gputest.codes import Code

_BUS = Path("/sys/bus/pci/devices")
_MODULE = Path("/proc/driver/nvidia/version")
_VENDOR = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers


class Nvml:
    """An open NVML session. Raises BackendError if the driver or GPU is missing, lost, or of another version."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise BackendError(Code.NOT_INSTALLED, f"nvidia-ml-py is not installed ({error})") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            code = {
                pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Code.DRIVER_MISMATCH,
                # Container runtimes put the driver's library beside each GPU: without it, the runtime is misconfigured.
                pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Code.NOT_INSTALLED,
            }.get(error.value, Code.NO_GPU)
            raise BackendError(code, f"NVML: {error}") from error
        if not count:
            raise BackendError(Code.NO_GPU, "NVML: the driver shows no GPU")
        self._handles = [self._handle(index) for index in range(count)]

    def devices(self) -> tuple[Device, ...]:
        """Return all GPUs in the driver's order (the order on the bus)."""
        nvml = self._nvml
        return tuple(
            Device(
                index=index,
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                name=_text(nvml.nvmlDeviceGetName(handle)),
                pci_address=_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:],
                memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            )
            for index, handle in enumerate(self._handles)
        )

    def versions(self) -> dict[str, str]:
        """Return versions of the driver, the library, the driver's CUDA, and the kernel module if readable."""
        nvml = self._nvml
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        versions = {
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "nvml": _text(nvml.nvmlSystemGetNVMLVersion()),
            "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        module = _module_version()
        return {**versions, "kernel_module": module} if module else versions

    def condition(self, device: int) -> Condition:
        """Return what is stored about the GPU, and its users."""
        nvml, handle = self._nvml, self._handles[device]
        ecc = self._known(nvml.nvmlDeviceGetEccMode, handle)
        remaps = self._known(nvml.nvmlDeviceGetRemappedRows, handle)
        return Condition(
            ecc_enabled=bool(ecc[0]) if ecc else None,
            ecc_pending=bool(ecc[1]) if ecc else None,
            remap_pending=bool(remaps and remaps[2]),
            remap_failed=bool(remaps and remaps[3]),
            retirement_pending=bool(self._known(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)),
            processes=tuple(p.pid for p in self._known(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()),
            memory_free_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).free,
        )

    def sample(self, device: int) -> Sample:
        """Return clocks, power, temperature, and reasons for slowdowns."""
        nvml, handle = self._nvml, self._handles[device]
        # Called ...ClocksEventReasons from driver 535 on, which still has this one.
        reasons = self._known(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        power = self._known(nvml.nvmlDeviceGetPowerUsage, handle)
        names = {
            nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
            nvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
            nvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        }
        return Sample(
            sm_clock_mhz=self._known(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            power_w=None if power is None else power / 1000,
            temperature_c=self._known(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            slowdowns=tuple(name for bit, name in names.items() if reasons & bit),
        )

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:  # it existed when the driver started
            raise BackendError(Code.GPU_COUNT, f"NVML: GPU {index}: {error}") from error

    def _known(self, ask: Any, *arguments: Any) -> Any:
        """Return the answer; None if the model does not support the query, or the driver is older than it."""
        try:
            return ask(*arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return None


def bus_addresses() -> tuple[str, ...]:
    """Return the addresses of NVIDIA GPUs on the PCI bus, with or without a driver."""
    found = []
    for device in sorted(_BUS.glob("*")):
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        if vendor == _VENDOR and kind.startswith(_DISPLAY_CLASSES):
            found.append(device.name.lower())
    return tuple(found)


def local_cpus(pci_address: str) -> frozenset[int]:
    """Return the CPUs that the kernel calls local to a device ("0-31,64-95"); empty if not known."""
    path = _BUS / pci_address / "local_cpulist"
    ranges = [part.partition("-") for part in path.read_text().strip().split(",") if part] if path.exists() else []
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _module_version() -> str:
    """Return the loaded kernel module's version: the first word of its line with the form of a version."""
    if not _MODULE.exists():
        return ""
    words = _MODULE.read_text().partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

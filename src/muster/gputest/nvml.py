"""What NVIDIA's driver says of its GPUs, through nvidia-ml-py (module `pynvml`): no context is made by asking.

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
    """The library, opened. Raises BackendError without driver or GPU, or with one that does not match or is lost."""

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
                # Container runtimes put the driver's library beside each GPU: one that did not is set up wrongly.
                pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Code.NOT_INSTALLED,
            }.get(error.value, Code.NO_GPU)
            raise BackendError(code, f"NVML: {error}") from error
        if not count:
            raise BackendError(Code.NO_GPU, "NVML: the driver shows no GPU")
        self._handles = [self._handle(index) for index in range(count)]

    def devices(self) -> tuple[Device, ...]:
        """All GPUs, by the driver's index (the order on the bus)."""
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
        """Driver, library, CUDA that the driver has, and the kernel module where it can be read."""
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
        """What is stored about the GPU, and who uses it."""
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
        """Clocks, power, temperature, and what slows the GPU down."""
        nvml, handle = self._nvml, self._handles[device]
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        names = {
            nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
            nvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
            nvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        }
        return Sample(
            sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            slowdowns=tuple(name for bit, name in names.items() if reasons & bit),
        )

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:  # it was there when the driver started
            raise BackendError(Code.GPU_COUNT, f"NVML: GPU {index}: {error}") from error

    def _known(self, ask: Any, handle: Any) -> Any:
        """The answer, or None from models that do not have what is asked for."""
        try:
            return ask(handle)
        except self._nvml.NVMLError_NotSupported:
            return None


def bus_addresses() -> tuple[str, ...]:
    """NVIDIA GPUs on the PCI bus, whether or not a driver knows them."""
    found = []
    for device in sorted(_BUS.glob("*")):
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        if vendor == _VENDOR and kind.startswith(_DISPLAY_CLASSES):
            found.append(device.name.lower())
    return tuple(found)


def local_cpus(pci_address: str) -> frozenset[int]:
    """CPUs that the kernel calls local to a device ("0-31,64-95"); none where it does not say."""
    path = _BUS / pci_address / "local_cpulist"
    ranges = [part.partition("-") for part in path.read_text().strip().split(",") if part] if path.exists() else []
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _module_version() -> str:
    """Of the loaded kernel module: the first word of its line that is a version."""
    if not _MODULE.exists():
        return ""
    words = _MODULE.read_text().partition("\n")[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

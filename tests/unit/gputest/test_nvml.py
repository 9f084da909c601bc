"""What is made of NVML's answers. The library is nvidia-ml-py's in name only: there is no driver here to ask."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from muster.gputest import nvml
from muster.gputest.backend import BackendError
from muster.gputest.codes import Code
from muster.gputest.nvidia import NvidiaBackend
from muster.gputest.nvml import Nvml, bus_addresses, local_cpus
from muster.gputest.wire import Opened


class NVMLError(Exception):
    def __init__(self, value: int, text: str = ""):
        super().__init__(text)
        self.value = value


class NVMLError_NotSupported(NVMLError):
    def __init__(self) -> None:
        super().__init__(3, "Not Supported")


class NVMLError_FunctionNotFound(NVMLError):
    def __init__(self) -> None:
        super().__init__(13, "Function Not Found")


def fails(error: NVMLError) -> Any:
    def ask(*_: Any) -> Any:
        raise error

    return ask


ANSWERS = {
    "nvmlInit": None,
    "nvmlDeviceGetCount": 2,
    "nvmlDeviceGetUUID": b"GPU-7",
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:8D:00.0"),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150, free=149),
    "nvmlSystemGetCudaDriverVersion_v2": 13010,
    "nvmlSystemGetDriverVersion": "580.159.04",
    "nvmlSystemGetNVMLVersion": "13.580.159.04",
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetRemappedRows": (4, 1, 1, 0),
    "nvmlDeviceGetRetiredPagesPendingStatus": fails(NVMLError_NotSupported()),
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4711)],
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetPowerUsage": 700_500,
    "nvmlDeviceGetTemperature": 71,
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("pynvml")
    for name, answer in ANSWERS.items():
        setattr(module, name, answer if callable(answer) else lambda *_, answer=answer: answer)
    vars(module).update(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NVMLError_NotSupported,
        NVMLError_FunctionNotFound=NVMLError_FunctionNotFound,
        NVML_ERROR_LIB_RM_VERSION_MISMATCH=18,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksEventReasonHwSlowdown=0x8,
        nvmlClocksEventReasonSwThermalSlowdown=0x20,
        nvmlClocksEventReasonHwThermalSlowdown=0x40,
        nvmlClocksEventReasonHwPowerBrakeSlowdown=0x80,
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_gpus_are_known_by_the_address_that_the_bus_has(library: ModuleType) -> None:
    first, second = Nvml().devices()
    assert (first.uuid, first.pci_address, first.memory_bytes) == ("GPU-7", "0000:8d:00.0", 150)
    assert second.index == 1


def test_features_missing_from_a_model_are_not_faults(library: ModuleType) -> None:
    condition = Nvml().condition(0)
    assert (condition.ecc_enabled, condition.ecc_pending) == (True, False)
    assert (condition.remap_pending, condition.remap_failed, condition.retirement_pending) == (True, False, False)
    assert condition.processes == (4711,)
    library.nvmlDeviceGetEccMode = fails(NVMLError_NotSupported())  # type: ignore[attr-defined]
    assert Nvml().condition(0).ecc_enabled is None


def test_power_cap_is_not_a_slowdown_and_heat_is(library: ModuleType) -> None:
    sample = Nvml().sample(0)
    assert sample.slowdowns == ("hardware thermal slowdown",)
    assert (sample.power_w, sample.sm_clock_mhz, sample.temperature_c) == (700.5, 1980, 71)


@pytest.mark.parametrize("error", [NVMLError_NotSupported(), NVMLError_FunctionNotFound()])
@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"slowdowns": ()}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz": None}),
        ("nvmlDeviceGetPowerUsage", {"power_w": None}),  # virtual GPUs
        ("nvmlDeviceGetTemperature", {"temperature_c": None}),
    ],
)
def test_a_query_that_a_driver_lacks_hides_no_other_value(
    library: ModuleType, name: str, lacking: dict[str, Any], error: NVMLError
) -> None:
    whole = Nvml().sample(0)
    setattr(library, name, fails(error))
    assert Nvml().sample(0) == msgspec.structs.replace(whole, **lacking)


@pytest.mark.parametrize(
    ("name", "answer", "code"),
    [
        ("nvmlInit", fails(NVMLError(9, "Driver Not Loaded")), Code.NO_GPU),
        ("nvmlInit", fails(NVMLError(18, "Driver/library version mismatch")), Code.DRIVER_MISMATCH),
        ("nvmlInit", fails(NVMLError(12, "NVML Shared Library Not Found")), Code.NOT_INSTALLED),
        ("nvmlDeviceGetCount", lambda: 0, Code.NO_GPU),
        ("nvmlDeviceGetHandleByIndex", fails(NVMLError(15, "GPU is lost")), Code.GPU_COUNT),
    ],
)
def test_no_driver_is_not_a_broken_one(library: ModuleType, name: str, answer: Any, code: Code) -> None:
    setattr(library, name, answer)
    with pytest.raises(BackendError, match="NVML") as raised:
        Nvml()
    assert raised.value.code == code


def test_bus_lists_gpus_and_the_cpus_near_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, vendor, kind in (
        ("0000:8D:00.0", "0x10de", "0x030200"),
        ("0000:8e:00.0", "0x10de", "0x068000"),  # an NVSwitch
        ("0000:8f:00.0", "0x15b3", "0x020700"),
    ):
        folder = tmp_path / address
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    (tmp_path / "0000:8f:00.0" / "local_cpulist").write_text("0-2,64,66-67\n")
    monkeypatch.setattr(nvml, "_BUS", tmp_path)
    assert bus_addresses() == ("0000:8d:00.0",)
    assert local_cpus("0000:8f:00.0") == {0, 1, 2, 64, 66, 67}
    assert local_cpus("0000:8d:00.0") == frozenset()


def test_pytorch_version_is_reported_as_plain_text(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first real GPU, the report of every test failed at `torch.__version__`, a subclass of str."""

    class TorchVersion(str):
        __slots__ = ()

    torch = MagicMock(__version__=TorchVersion("2.11.0+cu130"))
    torch.version.cuda = "13.0"
    monkeypatch.setitem(sys.modules, "torch", torch)
    versions = NvidiaBackend().versions()
    sent = msgspec.json.encode(Opened("nvidia", 1.0, (), versions))
    assert msgspec.json.decode(sent, type=Opened).versions | {"torch": "2.11.0+cu130", "cuda": "13.0"} == versions

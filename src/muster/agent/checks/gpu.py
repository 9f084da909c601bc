"""The check `gpu`: finds NVIDIA's GPUs on the PCI bus, and reads their state with NVML or from dcgm-exporter's page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from muster.agent.aside import Aside
from muster.agent.check import Cost, Setup
from muster.agent.checks.contexts import Contexts
from muster.agent.checks.dcgm import gpus_of_page
from muster.agent.checks.gpusample import GpuHistory, Gpus
from muster.agent.checks.http import HttpError, check_url, get
from muster.agent.checks.nvml import LIB_RM_VERSION_MISMATCH, LIBRARIES, Nvml, NvmlError
from muster.agent.checks.nvmlsample import sample
from muster.agent.checks.sights import Findings
from muster.fleet.health.finding import Finding
from muster.kube.smallfiles import names_in, text_of

NAME: Final = "gpu"
PERIOD_S: Final = 30.0
"""Change it only together with the policy's rule `throttled-long`.

That rule needs 60 throttled samples in 30 minutes, which is every sample at this period.
"""
TIMEOUT_S: Final = 25.0
_VENDOR: Final = "0x10de"
_CLASSES: Final = ("0x0300", "0x0302")
"""VGA and 3D controllers."""
_GONE: Final = b"\xff\xff"
_ELSEWHERE: Final = ("vfio-pci", "pci-stub")
"""Drivers of GPUs that are passed to virtual machines."""


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of the check.

    Attributes:
        expected: how many GPUs the node must have; None: the highest number seen, on the bus or with the driver.
        libraries: names or paths of NVML's library; the first that loads is used.
        dcgm_url: the page of a dcgm-exporter, such as `http://127.0.0.1:9400/metrics`. If it is set, the check reads
            this page and does not load NVML.
        xids: report Xids from the page of `dcgm_url`. Enable it only if the agent does not read the kernel's log;
            otherwise each Xid is reported twice.
    """

    expected: Annotated[int, msgspec.Meta(ge=0, le=64)] | None = None
    libraries: tuple[str, ...] = LIBRARIES
    dcgm_url: str = ""
    xids: bool = False


class GpuCheck:
    """Checks a node's GPUs."""

    name = NAME
    cost: Cost = "moderate"

    def __init__(self, setup: Setup, options: Options) -> None:
        self.period_s = setup.period_s or PERIOD_S
        self.timeout_s = setup.timeout_s or TIMEOUT_S
        self._options = options
        self._sys = setup.host.sys
        self._contexts = Contexts(setup.host)
        self._history = GpuHistory(options.expected)
        self._findings = Findings(NAME, self.period_s)
        self._aside = Aside(NAME)

    async def look(self, now_s: float) -> Sequence[Finding]:
        """Query all GPUs once."""
        gpus = await self._aside.run(self._by_page if self._options.dcgm_url else self._by_nvml)
        return self._findings.take(self._history.take(gpus), now_s)

    def _by_nvml(self) -> Gpus:
        on_bus, off_bus = _gpus_on_bus(self._sys)
        try:
            with Nvml(self._options.libraries) as nvml:
                gpus = tuple(sample(nvml, on_bus, self._contexts.judge))
        except NvmlError as error:
            code = "driver-mismatch" if error.code == LIB_RM_VERSION_MISMATCH else "nvml"
            return Gpus((), on_bus, off_bus, (code, str(error)))
        return Gpus(gpus, on_bus, off_bus)

    def _by_page(self) -> Gpus:
        on_bus, off_bus = _gpus_on_bus(self._sys)
        try:
            answer = get(self._options.dcgm_url, self.timeout_s / 2)
        except HttpError as error:
            return Gpus((), on_bus, off_bus, ("dcgm", str(error)))
        gpus = gpus_of_page(answer.text) if answer.status == 200 else ()
        if not gpus:
            message = f"{self._options.dcgm_url}: status {answer.status}, and no GPU on the page"
            return Gpus((), on_bus, off_bus, ("dcgm", message))
        if not self._options.xids:
            gpus = tuple(gpu._replace(xid=None) for gpu in gpus)
        return Gpus(gpus, on_bus, off_bus)


def make(setup: Setup) -> GpuCheck:
    """Create the check.

    On a node that has never shown a GPU, the check reports nothing, unless `expected` is set. If a node had GPUs and
    all are lost, it reports that.

    Raises:
        ValueError: a setting is wrong.
    """
    options = setup.options_as(Options)
    if options.dcgm_url:
        check_url(options.dcgm_url)
    return GpuCheck(setup, options)


def _gpus_on_bus(sys: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return two tuples of PCI addresses: all GPUs for NVIDIA's driver, and those that no longer respond.

    The files are described in the kernel's ABI document sysfs-bus-pci.
    """
    bus = sys / "bus/pci/devices"
    found, silent = [], []
    for name in names_in(bus):
        device = bus / name
        if text_of(device / "vendor") != _VENDOR or not (text_of(device / "class") or "").startswith(_CLASSES):
            continue
        if os.path.basename(os.path.realpath(device / "driver")) in _ELSEWHERE:
            continue
        found.append(name.lower())
        try:
            with (device / "config").open("rb", buffering=0) as config:
                if config.read(len(_GONE)) == _GONE:  # a read returns all ones if the device does not respond
                    silent.append(name.lower())
        except OSError:
            continue  # not readable: the state is not known
    return tuple(found), tuple(silent)

"""The result in at most 4 KiB, for a container's termination message (Kubernetes: "Termination message").

The message arrives with the pod's status through the existing watch. It is available even if the node no longer
answers; a log has to be fetched from the node.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.gputest.report import Report

SUMMARY_SCHEMA = "gputest.muster.dev/summary-v1"
BYTES_MAX = 4096
FAILURES_MAX = 32


class GpuRow(msgspec.Struct, frozen=True, array_like=True):
    """One GPU. Its model is an index into `Summary.models`; its figures are in the order of `Summary.names`."""

    uuid: str
    model: int
    pci_address: str
    figures: tuple[float | None, ...]


class FailureRow(msgspec.Struct, frozen=True, array_like=True):
    """One failure. Its GPU is an index into `Summary.gpus`, or -1 for the node itself."""

    test: str
    code: str
    gpu: int
    message: str


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compact form of a Report.

    Attributes:
        models: names of the GPUs' models.
        names: names of figures; they end in their units.
        failures: the first failures.
        left_out: the number of further ones.
        cut: whether texts, figures or versions were left out.
    """

    schema: str
    level: int
    backend: str
    passed: bool
    injected: str = ""
    versions: dict[str, str] = {}
    models: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    gpus: tuple[GpuRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    left_out: int = 0
    cut: bool = False


def summary(report: Report, bytes_max: int = BYTES_MAX) -> bytes:
    """Return the report as JSON within a byte limit. Texts are cut first, then figures; never the result."""
    last = b""
    for each in _ever_less(report):
        last = msgspec.json.encode(each)
        if len(last) <= bytes_max:
            return last
    return last


def read(text: str | bytes) -> Summary:
    """Parse what `summary` wrote. Raises ValueError if it is not a summary."""
    found = msgspec.json.decode(text, type=Summary)
    if found.schema != SUMMARY_SCHEMA:
        raise ValueError(f"schema {found.schema!r}, not {SUMMARY_SCHEMA}")
    return found


def _ever_less(report: Report) -> Iterator[Summary]:
    yield _make(report, text_max=200)
    yield _make(report, text_max=60, cut=True)
    yield _make(report, text_max=60, failures_max=8, cut=True)
    yield _make(report, text_max=30, failures_max=8, figures=False, cut=True)
    yield Summary(
        schema=SUMMARY_SCHEMA,
        level=report.level,
        backend=report.backend[:40],
        passed=report.passed,
        injected=report.injected,
        cut=True,
    )


def _make(
    report: Report, *, text_max: int, failures_max: int = FAILURES_MAX, figures: bool = True, cut: bool = False
) -> Summary:
    models = tuple(dict.fromkeys(gpu.name for gpu in report.gpus))
    names = tuple(dict.fromkeys(name for gpu in report.gpus for name in gpu.figures)) if figures else ()
    places = {gpu.uuid: place for place, gpu in enumerate(report.gpus)}
    return Summary(
        schema=SUMMARY_SCHEMA,
        level=report.level,
        backend=report.backend,
        passed=report.passed,
        injected=report.injected,
        versions={name: text[:text_max] for name, text in report.versions.items()},
        models=models,
        names=names,
        gpus=tuple(
            GpuRow(
                gpu.uuid,
                models.index(gpu.name),
                gpu.pci_address,
                tuple(_short(gpu.figures[name]) if name in gpu.figures else None for name in names),
            )
            for gpu in report.gpus
        ),
        failures=tuple(
            FailureRow(each.test, each.code, places.get(each.gpu, -1), each.message[:text_max])
            for each in report.failures[:failures_max]
        ),
        left_out=max(0, len(report.failures) - failures_max),
        cut=cut,
    )


def _short(value: float) -> float:
    """Round to four significant digits: smaller differences do not matter."""
    return float(f"{value:.4g}")

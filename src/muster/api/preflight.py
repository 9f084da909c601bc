"""Preflight: the result of a node's tests, and the node, boot and driver that were tested."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

GPUS_MAX = 64
FAILURES_MAX = 32


class GpuFigures(KubeStruct):
    """Measurements of one GPU."""

    uuid: Annotated[str, Meta(description="UUID of the GPU.")]
    name: Annotated[str, Meta(description="Its model.")] = ""
    pci_address: Annotated[str, Meta(description="Its PCI address.")] = ""
    figures: Annotated[dict[str, float], Meta(description="Values by name; each name ends in its unit.")] = field(
        default_factory=dict
    )


class PreflightFailure(KubeStruct):
    """One failed check."""

    test: Annotated[str, Meta(description="The test that failed.")]
    code: Annotated[str, Meta(description="What was wrong.")]
    gpu: Annotated[str, Meta(description="UUID of the GPU; empty if the failure is not about one GPU.")] = ""
    message: Annotated[str, Meta(max_length=512, description="The failure as text.")] = ""


class PassedTest(KubeStruct):
    """A test that the node passed. It clears findings that require its level or a lower one."""

    level: Annotated[int, Meta(ge=1, le=3, description="Level of the test.")]
    time: Annotated[
        datetime, Meta(description="When the test ended. It clears findings that were last seen before that.")
    ]


class PreflightSpec(KubeStruct, kw_only=True):
    """The newest result. It is valid only while the node has the same UID, boot and driver."""

    node_uid: Annotated[str, Meta(description="UID of the node that was tested.")] = field(name="nodeUID")
    boot_id: Annotated[str, Meta(description="ID of the boot in which the node was tested.")] = field(name="bootID")
    driver: Annotated[str, Meta(description="Version of the GPU driver at the test; empty: no GPUs.")] = ""
    level: Annotated[int, Meta(ge=1, le=3, description="Level of the tests.")]
    passed: Annotated[bool, Meta(description="Whether the node passed all tests.")]
    time: Annotated[datetime, Meta(description="When they ended.")]
    revoked_time: Annotated[
        datetime | None,
        Meta(
            description="When the controller stopped trusting the node because its driver changed. Earlier findings"
            " that the test cleared stay cleared."
        ),
    ] = None
    last_pass: Annotated[
        PassedTest | None,
        Meta(
            description="If this test failed: the last test that this node passed. Findings that it cleared stay "
            "cleared."
        ),
    ] = None
    versions: Annotated[dict[str, str], Meta(description="Versions of libraries and drivers, by name.")] = field(
        default_factory=dict
    )
    figures: Annotated[tuple[GpuFigures, ...], Meta(max_length=GPUS_MAX, description="Measurements of each GPU.")] = ()
    failures: Annotated[tuple[PreflightFailure, ...], Meta(max_length=FAILURES_MAX, description="What was wrong.")] = ()


class Preflight(KubeObject, kw_only=True):
    """The newest result of the tests of the node of the same name. Only Muster's controller may write it."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="preflights", kind="Preflight", namespaced=False
    )

    spec: PreflightSpec


def last_pass(spec: PreflightSpec) -> PassedTest | None:
    """Return the newest passed test in a record: the record's own test, or an earlier one of the same node."""
    return PassedTest(level=spec.level, time=spec.time) if spec.passed else spec.last_pass

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
    figures: Annotated[dict[str, float], Meta(description="By name; names end in their units.")] = field(
        default_factory=dict
    )


class PreflightFailure(KubeStruct):
    """One failed check."""

    test: Annotated[str, Meta(description="The test that found it.")]
    code: Annotated[str, Meta(description="What was wrong.")]
    gpu: Annotated[str, Meta(description="UUID of the GPU; empty: the node's.")] = ""
    message: Annotated[str, Meta(max_length=512, description="The same for people.")] = ""


class PassedTest(KubeStruct):
    """A test that the node passed. It clears findings that ask for its level or a lower one."""

    level: Annotated[int, Meta(ge=1, le=3, description="Level of the test.")]
    time: Annotated[datetime, Meta(description="When it ended: what was last seen before is cleared.")]


class PreflightSpec(KubeStruct, kw_only=True):
    """The newest result. It says something of a node only where UID, boot and driver are the node's own."""

    node_uid: Annotated[str, Meta(description="UID of the node that was tested.")] = field(name="nodeUID")
    boot_id: Annotated[str, Meta(description="The boot in which it was tested.")] = field(name="bootID")
    driver: Annotated[str, Meta(description="Version of the GPU driver it was tested with; empty: no GPUs.")] = ""
    level: Annotated[int, Meta(ge=1, le=3, description="Level of the tests.")]
    passed: Annotated[bool, Meta(description="Whether all of them were passed.")]
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
        Meta(description="If this test was not passed: the last one that this node passed. What it cleared stays so."),
    ] = None
    versions: Annotated[dict[str, str], Meta(description="Versions of what took part, by name.")] = field(
        default_factory=dict
    )
    figures: Annotated[tuple[GpuFigures, ...], Meta(max_length=GPUS_MAX, description="What each GPU reached.")] = ()
    failures: Annotated[tuple[PreflightFailure, ...], Meta(max_length=FAILURES_MAX, description="What was wrong.")] = ()


class Preflight(KubeObject, kw_only=True):
    """The newest result of the tests of the node of the same name. Only Muster's controller may write it."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="preflights", kind="Preflight", namespaced=False
    )

    spec: PreflightSpec


def last_pass(spec: PreflightSpec) -> PassedTest | None:
    """Return the newest passed test that a record knows of: its own, or an earlier one of the same node."""
    return PassedTest(level=spec.level, time=spec.time) if spec.passed else spec.last_pass

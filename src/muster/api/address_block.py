"""AddressPool and AddressBlock: ranges of pod addresses, and the blocks of them that nodes hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

SKIPPED_MAX = 64


class AddressPoolSpec(KubeStruct):
    """A range, the size of its blocks, and the nodes that take blocks of it."""

    cidr: Annotated[
        str, Meta(min_length=1, max_length=64, description="The range, such as 10.16.0.0/12. It cannot be changed.")
    ]
    block_prefix: Annotated[
        int,
        Meta(
            ge=8,
            le=128,
            description="Length of the prefix of a block: 28 gives blocks of 16 addresses. It cannot be changed.",
        ),
    ]
    pod_prefix: Annotated[
        int,
        Meta(
            ge=0,
            le=128,
            description="Length of the prefix that pods configure. 0: the full length, so that each pod is routed on "
            "its own.",
        ),
    ] = 0
    gateway: Annotated[
        str, Meta(max_length=64, description="The next hop of pods. Empty: their node. Pods do not get this address.")
    ] = ""
    skipped: Annotated[
        tuple[str, ...], Meta(max_length=SKIPPED_MAX, description="More addresses that pods do not get.")
    ] = ()
    node_selector: Annotated[
        Mapping[str, str], Meta(description="Labels of the nodes that take blocks. Empty: all nodes.")
    ] = field(default_factory=dict)


class AddressPool(KubeObject, kw_only=True):
    """A range of pod addresses, from which nodes take blocks (provider `static`)."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="addresspools", kind="AddressPool", namespaced=False
    )

    spec: AddressPoolSpec


class AddressBlockSpec(KubeStruct):
    """The block and its node. Nothing of it changes; another node's claim is another object."""

    cidr: Annotated[str, Meta(min_length=1, max_length=64, description="The addresses.")]
    pool: Annotated[str, Meta(min_length=1, max_length=253, description="Name of the AddressPool.")]
    node_name: Annotated[str, Meta(min_length=1, max_length=253, description="The node that holds the block.")]
    node_uid: Annotated[
        str, Meta(max_length=64, description="UID of the node; a recreated node of the same name has another.")
    ] = field(default="", name="nodeUID")


class AddressBlock(KubeObject, kw_only=True):
    """A block of pod addresses that one node holds.

    Its name is made from the addresses, so two nodes cannot hold the same block.
    """

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="addressblocks", kind="AddressBlock", namespaced=False
    )

    spec: AddressBlockSpec

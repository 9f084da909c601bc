"""Six writers of taints race on one node, on both API servers."""

from __future__ import annotations

import itertools
import uuid

from muster.kube.client import Client
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeSpec
from tests.support.racing import FOREIGN, check_end, differing, race
from tests.support.waiting import until


async def test_no_writer_loses_a_taint_of_another(client: Client) -> None:
    name = f"raced-{uuid.uuid4().hex[:8]}"
    node = await client.create(Node(metadata=ObjectMeta(name=name), spec=NodeSpec(taints=(FOREIGN,))))
    try:
        await race(lambda: client, name)
        end = await client.get(Node, name)
        check_end(end)
        versions = [node]
        watch = client.watch(
            Node, field_selector=f"metadata.name={name}", resource_version=node.metadata.resource_version, timeout_s=30
        )
        async for event in watch:
            versions.append(event.object)
            if event.object.metadata.resource_version == end.metadata.resource_version:
                break
        for before, after in itertools.pairwise(versions):
            ours = {each for each in differing(before, after) if each.startswith("muster.dev/")}
            assert len(ours) <= 1, "a write changed what belongs to another user"
            assert FOREIGN in after.spec.taints
    finally:
        await client.delete(Node, name)
        await until("the node is gone", lambda: _gone(client, name))


async def _gone(client: Client, name: str) -> bool:
    return name not in {node.name for node in (await client.list(Node)).items}

"""Makes priority classes that pods can name at once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, Forbidden
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.scheduling import PriorityClass
from tests.support.waiting import until


async def make_priority_class(client: Client, name: str, value: int, **options: Any) -> None:
    """Make a class where it is not, and wait until the API server takes pods of it.

    It hears of classes a moment after their creation, and refuses pods that name them until then.
    """
    with suppress(AlreadyExists):
        await client.create(PriorityClass(metadata=ObjectMeta(name=name), value=value, description="test", **options))
    spec = {"priorityClassName": name, "containers": [{"name": "c", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec}

    async def taken() -> bool:
        await client.create(pod, dry_run=True)
        return True

    await until(f"pods may name class {name}", taken, ignoring=(Forbidden,))

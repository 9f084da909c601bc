"""Asks the API server whether it would accept a manifest, without storing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.kube.client import Client

FIELD_MANAGER: Final = "muster-doctor"
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML


async def dry_run(client: Client, objects: tuple[Mapping[str, Any], ...], namespace: str) -> None:
    """Apply each object on the server as a dry run (`dryRun=All`): defaults, validation and admission.

    Args:
        client: the cluster.
        objects: objects as plain data.
        namespace: for namespaced objects that name none.

    Raises:
        ApiError: the API server would refuse an object. Its notes name the object.
    """
    for each in objects:
        metadata = each["metadata"]
        resource = await client.resource(each["apiVersion"], each["kind"])
        path = resource.object_path(
            metadata.get("namespace") or namespace if resource.namespaced else None, metadata["name"]
        )
        params = {"dryRun": "All", "fieldManager": FIELD_MANAGER, "force": "true"}
        await client.request(
            "PATCH", path, params=params, body=msgspec.json.encode(each), headers={"Content-Type": _APPLY}
        )

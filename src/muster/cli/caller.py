"""The name of the caller in the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.kube.client import Client


async def caller_name(client: Client) -> str:
    """Return the caller's user name, as the API server sees it (SelfSubjectReview). Raises ApiError."""
    review: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.create(review)
    return str(answer["status"]["userInfo"]["username"])

"""Reads from the API server for a doctor: cheap requests, counted, and what could not be read is recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from muster.api.finding import Unseen
from muster.kube.client import Client
from muster.kube.errors import ApiError, Forbidden, NotFound, Unauthorized
from muster.kube.objects.struct import decode

_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
USER_AGENT = "muster-doctor"
PAGE = 100
"""Objects in one page of a list."""


class OwnCost(msgspec.Struct):
    """What the doctor itself cost: requests, and bytes of their answers."""

    requests: int = 0
    bytes: int = 0


class Listed(msgspec.Struct, frozen=True):
    """Objects of a limited list, as plain data.

    Attributes:
        items: the objects.
        remaining: number of objects that were not read.
        size_bytes: size of the answers.
        version: resourceVersion of the list.
    """

    items: tuple[Mapping[str, Any], ...] = ()
    remaining: int = 0
    size_bytes: int = 0
    version: str = ""

    @property
    def bytes_each(self) -> float:
        """Mean size of an object; 0 without objects."""
        return self.size_bytes / len(self.items) if self.items else 0.0


class Reader:
    """Reads from one cluster. Refusals do not raise: they become entries of `unseen`.

    Args:
        client: the API server.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cost = OwnCost()
        self.unseen: list[Unseen] = []

    async def read(
        self,
        path: str,
        *,
        what: str,
        right: str,
        params: Mapping[str, str] | None = None,
        accept: str = "",
        client: Client | None = None,
        optional: bool = False,
    ) -> bytes | None:
        """Return the body of a GET; None if the API server refuses it or has no such path.

        Args:
            path: below the server's URL.
            what: what is examined with it, for `unseen`.
            right: the RBAC right that it needs, such as `get nonResourceURL /metrics`.
            params: query parameters.
            accept: Accept header, JSON by default.
            client: another API server of the cluster.
            optional: it need not exist.

        Raises:
            Unauthorized: the credentials are not valid.
        """
        headers = {"Accept": accept} if accept else {}
        self.cost.requests += 1
        try:
            body = await (client or self.client).request("GET", path, params=params, headers=headers)
        except Unauthorized:
            raise
        except Forbidden as error:
            self.note(what, error.message, right)
            return None
        except NotFound:
            if not optional:
                self.note(what, f"the API server does not serve {path}")
            return None
        except ApiError as error:
            self.note(what, error.message)
            return None
        self.cost.bytes += len(body)
        return body

    async def list(
        self,
        path: str,
        *,
        what: str,
        limit: int = PAGE,
        pages: int = 1,
        params: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        sample: bool = False,
    ) -> Listed | None:
        """Return at most `limit` x `pages` objects of a collection; None if it cannot be read.

        Never sends a list without a limit: on a large cluster that would be the problem that the doctor looks for.

        Args:
            path: of the collection.
            what: what is examined with it, for `unseen`.
            limit: objects in a page.
            pages: most pages.
            params: query parameters.
            metadata_only: leave out spec and status.
            sample: some objects suffice. Otherwise `unseen` says that there were more.
        """
        right = list_right(path)
        items: list[Mapping[str, Any]] = []
        token, version, size, remaining = "", "", 0, 0
        for _ in range(pages):
            query = {**(params or {}), "limit": str(limit), **({"continue": token} if token else {})}
            body = await self.read(
                path, what=what, right=right, params=query, accept=_METADATA if metadata_only else ""
            )
            if body is None:
                return None
            listing = decode(body, dict)
            items += listing.get("items") or ()
            size += len(body)
            meta = listing.get("metadata") or {}
            token, remaining = meta.get("continue", ""), int(meta.get("remainingItemCount") or 0)
            version = meta.get("resourceVersion", "")
            if not token:
                break
        if token and not sample:
            self.note(what, f"only {len(items)} objects of {path} were read, to stay cheap")
        return Listed(tuple(items), max(remaining, 1 if token else 0), size, version)

    async def get(self, path: str, *, what: str, right: str, optional: bool = False) -> Mapping[str, Any] | None:
        """Return one object; None if it cannot be read. The arguments are those of `read`."""
        body = await self.read(path, what=what, right=right, optional=optional)
        return decode(body, dict) if body is not None else None

    def note(self, what: str, why: str, right: str = "") -> None:
        """Record that something could not be examined, once."""
        entry = Unseen(what, why, right)
        if entry not in self.unseen:
            self.unseen.append(entry)


def list_right(path: str) -> str:
    """Return the RBAC right that a list of `path` needs, such as `list daemonsets.apps`."""
    match = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+/(?:namespaces/([^/]+)/)?([^/]+)", path)
    if match is None:
        raise ValueError(f"{path} is not the path of a collection")
    group, namespace, plural = match.groups()
    resource = f"{plural}.{group}" if group else plural
    return f"list {resource} in namespace {namespace}" if namespace else f"list {resource}"

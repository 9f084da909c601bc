"""The requests of the cache about one kind in one media type."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec

from muster.kube.connection.transport import Transport
from muster.kube.errors import ApiError, Status, error_from_status
from muster.kube.objects.struct import KubeStruct
from muster.kube.protobuf import WireError
from muster.readcache.kinds import CachedKind
from muster.readcache.upstream.settings import FollowSettings
from muster.readcache.wire.format import ERROR, Frame, ListMeta, WireFormat, parse_version

_NO_OBJECT: Final = "muster-version-probe"
"""A name for requests about the version alone. With it, kube-apiserver looks up one key (storage, MatchesSingle)."""

_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class _Meta(KubeStruct):
    name: str
    resource_version: str
    namespace: str = ""


class _Object(KubeStruct):
    metadata: _Meta


class _ListMeta(KubeStruct):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _Identities(KubeStruct):
    metadata: _ListMeta
    items: list[_Object]


_status = msgspec.json.Decoder(Status)
_identities = msgspec.json.Decoder(_Identities)


class Source:
    """Reads one kind from the API server.

    Every method raises ApiError (see muster.kube.errors), ConfigError without usable credentials, and WireError for
    bytes that the API server does not send.

    Args:
        transport: sends the requests.
        kind: the kind.
        wire: its media type.
        settings: deadlines.
        on_bytes: called whenever bytes arrive.
    """

    def __init__(
        self,
        transport: Transport,
        kind: CachedKind,
        wire: WireFormat,
        settings: FollowSettings,
        on_bytes: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._resource = kind.resource
        self._path = kind.resource.path()
        self._wire = wire
        self._settings = settings
        self._on_bytes = on_bytes

    async def watch(
        self, version: int | None, *, timeout_s: float, stall_s: float, on_open: Callable[[], None]
    ) -> AsyncGenerator[list[Frame], None]:
        """Yields frames that arrived together, from after `version`.

        Args:
            version: None for a WatchList: the newest state first, and a bookmark at its end.
            timeout_s: the server ends the watch after this time.
            stall_s: longest time without a byte; then ServerTimeout is raised.
            on_open: called when the server has accepted the watch.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(timeout_s))),
        }
        if version is None:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            params["resourceVersion"] = str(version)
        headers = {"Accept": self._wire.watch_media_type}
        decoder = self._wire.decoder()
        async with self._transport.chunks(self._path, params=params, headers=headers, stall_s=stall_s) as chunks:
            self._on_bytes()
            on_open()
            async for chunk in chunks:
                self._on_bytes()
                frames = decoder.feed(chunk)
                for frame in frames:
                    if frame.type == ERROR:
                        raise _carried(frame.data)
                if frames:
                    yield frames

    async def page(self, limit: int, token: str = "") -> tuple[ListMeta, list[bytes]]:
        """Returns one page of the newest state; `limit` 0 for the whole."""
        params = {"limit": str(limit)} if limit else {}
        if token:
            params["continue"] = token
        return await self._list(self._path, params, self._settings.request_timeout_s)

    async def newest_version(self, timeout_s: float) -> int:
        """Returns a version at which the server is now: not older than anything that was written before the call.

        Such a list also makes kube-apiserver's watch cache catch up with etcd (storage/cacher, delegator and progress).
        """
        path = self._resource.path("default")
        meta, _ = await self._list(path, {"fieldSelector": f"metadata.name={_NO_OBJECT}"}, timeout_s)
        return meta.version

    async def identities(self) -> AsyncGenerator[tuple[int, list[tuple[str, str, str]]], None]:
        """Yields the newest state in pages of one snapshot.

        Each page is the version of the snapshot, and namespace, name and resourceVersion of each object.
        """
        token = ""
        while True:
            params = {"limit": str(self._settings.page)} | ({"continue": token} if token else {})
            body = await self._get(self._path, params, _METADATA, self._settings.request_timeout_s)
            try:
                page = _identities.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise WireError(f"not a list of metadata: {error}") from None
            metas = [each.metadata for each in page.items]
            found = [(meta.namespace, meta.name, meta.resource_version) for meta in metas]
            yield parse_version(page.metadata.resource_version), found
            token = page.metadata.continue_
            if not token:
                return

    async def _list(self, path: str, params: dict[str, str], timeout_s: float) -> tuple[ListMeta, list[bytes]]:
        return self._wire.split_list(await self._get(path, params, self._wire.media_type, timeout_s))

    async def _get(self, path: str, params: dict[str, str], accept: str, timeout_s: float) -> bytes:
        answer = await self._transport.request(
            "GET", path, params=params, body=None, headers={"Accept": accept}, timeout_s=timeout_s
        )
        self._on_bytes()
        if answer.status != 200:
            raise answer.error()
        return answer.body


def _carried(status: bytes) -> ApiError:
    try:
        return error_from_status(_status.decode(status))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"not a Status: {error}") from None

"""Opens object stores by URL."""

from __future__ import annotations

import os

from muster.sdk.data.access import Access
from muster.sdk.data.errors import ObstoreMissing
from muster.sdk.data.location import parse_location
from muster.sdk.data.store import Store

DEADLINE_S = 600.0
CACHE_SOCKET_VARIABLE = "MUSTER_CACHE_SOCKET"


def open_store(
    url: str, access: Access | None = None, deadline_s: float = DEADLINE_S, cache: str | None = None
) -> Store:
    """Open s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, memory://NAME, file:///PATH or a path.

    No request is sent yet. If obstore is not installed, the node cache sends the requests.

    Args:
        url: of the bucket, or of a prefix in it; keys are relative to it.
        access: endpoint, region and credentials; by default those of the environment.
        deadline_s: time for each call, with its retries.
        cache: path of the node cache's socket; by default MUSTER_CACHE_SOCKET. Used only without obstore.

    Raises:
        WrongStore: the URL, the endpoint or the folder of credentials cannot be used.
        ObstoreMissing: obstore is not installed, and there is no node cache.
    """
    location = parse_location(url)
    access = access or Access()
    if location.scheme == "file":
        from muster.sdk.data.file_store import FileStore

        return FileStore(location.prefix)
    try:
        import obstore  # noqa: F401
    except ImportError:
        socket = os.environ.get(CACHE_SOCKET_VARIABLE, "") if cache is None else cache
    else:
        from muster.sdk.data.obstore_store import ObstoreStore

        return ObstoreStore(location, access, deadline_s)
    if not socket:
        raise ObstoreMissing(
            f"{location.url}: the package obstore is not installed in this image. Install it (pip install "
            "'muster[data]', Python 3.11 or newer), or let the operator enable the node cache",
            location.url,
        )
    from muster.sdk.data.cached_store import CachedStore

    return CachedStore(location.url, access, socket, deadline_s)

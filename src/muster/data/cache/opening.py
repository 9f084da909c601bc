"""Opens a reader's store with the reader's credentials alone, and names it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from muster.data.cache.addresses import may_connect
from muster.data.cache.blocks import StoreIdentity
from muster.kube.addresses import is_address
from muster.sdk.data.access import Access
from muster.sdk.data.credentials import Given
from muster.sdk.data.errors import WrongStore
from muster.sdk.data.location import parse_location
from muster.sdk.data.store import Store
from muster.sdk.data.stores import open_store

SCHEMES: Final = ("s3", "gs", "az")
_ANONYMOUS: Final = {"s3": "AWS_SKIP_SIGNATURE", "gs": "GOOGLE_SKIP_SIGNATURE", "az": "AZURE_SKIP_SIGNATURE"}
_AMBIENT: Final = ("AWS_", "GOOGLE_", "AZURE_")
_REGION: Final = re.compile(r"[a-z0-9-]{0,64}")
_ACCOUNT: Final = re.compile(r"[a-z0-9]{0,63}")
_ENDPOINT: Final = re.compile(r"[!-~]{0,1024}")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,221}")


class Place(NamedTuple):
    """A store as a reader names it: the identity, and the prefix of its keys in the bucket."""

    identity: StoreIdentity
    prefix: str

    def full(self, key: str) -> str:
        """The key in the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def relative(self, full: str) -> str:
        """The key below the prefix."""
        return full[len(self.prefix) + 1 :] if self.prefix else full


def drop_ambient_credentials() -> None:
    """Remove credentials from this process' environment, so that no reader's request can use them."""
    for name in [name for name in os.environ if name.startswith(_AMBIENT)]:
        del os.environ[name]


def place_of(store: Mapping[str, str], credentials: Mapping[str, str], schemes: frozenset[str]) -> Place:
    """Check a reader's store and name it. Raises WrongStore with what to change."""
    url, endpoint, region = store.get("url", ""), store.get("endpoint", ""), store.get("region", "")
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        raise WrongStore(f"the node cache serves {', '.join(sorted(schemes))}, not {parts.scheme or url!r}", url)
    if parts.scheme == "file":
        return Place(StoreIdentity("file", "", "", "", parts.path.rstrip("/")), "")
    if parts.username or parts.password or parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise WrongStore("the URL of a store is SCHEME://BUCKET/PREFIX, without credentials or a query", parts.netloc)
    if not _REGION.fullmatch(region):
        raise WrongStore(f"the region {region!r} is not a name such as us-east-1", url)
    account = credentials.get("AZURE_STORAGE_ACCOUNT_NAME", "") if parts.scheme == "az" else ""
    if not _ACCOUNT.fullmatch(account):
        raise WrongStore("AZURE_STORAGE_ACCOUNT_NAME is not the name of a storage account", url)
    identity = StoreIdentity(parts.scheme, _endpoint(endpoint, url), region, account, parts.netloc)
    return Place(identity, parts.path.strip("/"))


def open_place(place: Place, credentials: Mapping[str, str], deadline_s: float, proxy_url: str = "") -> Store:
    """Open the whole bucket with these credentials, or without any: never with those of the node.

    May import and connect, so it runs in a thread. Raises StoreError.
    """
    identity = place.identity
    if identity.scheme == "file":
        return open_store(identity.bucket)
    from muster.sdk.data.obstore_store import ObstoreStore

    given = dict(credentials) if any(credentials.values()) else {_ANONYMOUS[identity.scheme]: "true"}
    location = parse_location(f"{identity.scheme}://{identity.bucket}")
    return ObstoreStore(location, Access(identity.endpoint, identity.region), deadline_s, Given(given), proxy_url)


def _endpoint(endpoint: str, url: str) -> str:
    """Return the endpoint in the form that names it, or raise WrongStore."""
    if not endpoint:
        return ""
    if not _ENDPOINT.fullmatch(endpoint):
        raise WrongStore("the endpoint of a store has only visible ASCII characters", url)
    parts = urlsplit(endpoint)
    try:
        port = parts.port
    except ValueError:
        port = 0
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or port == 0:
        raise WrongStore("the endpoint of a store is http(s)://HOST[:PORT], without credentials or a query", url)
    if is_address(parts.hostname) and not may_connect(parts.hostname, loopback=True):
        raise WrongStore("the node cache does not connect to this address: services there trust the node itself", url)
    return endpoint.rstrip("/").lower()

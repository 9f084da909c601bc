"""Names of what is cached: stores, and blocks of objects."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from muster.sdk.data.wire import block_range


class Block(NamedTuple):
    """A block of one version of an object.

    Attributes:
        store: the store's identity, from `StoreIdentity.text`.
        key: the object's key in the bucket.
        version: its ETag, or its version ID.
        size_bytes: of the object. It is part of the name, so a wrong size never yields the bytes of another block.
        number: of the block, from 0.
        scope: the job that alone may read it; "" for a block that came from the store itself.
    """

    store: str
    key: str
    version: str
    size_bytes: int
    number: int
    scope: str = ""

    @property
    def name(self) -> str:
        """The file name: a hash of all fields, so it has no characters of the key."""
        return hashlib.sha256(json.dumps(list(self)).encode()).hexdigest()

    @property
    def start(self) -> int:
        """Offset of the block's first byte in the object."""
        return block_range(self.size_bytes, self.number).start

    @property
    def length(self) -> int:
        """Number of bytes."""
        return block_range(self.size_bytes, self.number).length

    def scoped(self, job: str) -> Block:
        """The same block, as a file that only this job may read."""
        return self._replace(scope=job)

    @property
    def object(self) -> tuple[str, str, str]:
        """The object's version: its store, key and version. Rights are granted for it."""
        return (self.store, self.key, self.version)


class StoreIdentity(NamedTuple):
    """A bucket, as its server names it. Two readers share blocks only if all fields are equal.

    Attributes:
        scheme: s3, gs, az or file.
        endpoint: URL of the service; "" for the cloud's own.
        region: it selects the cloud's partition, and so the server.
        account: of Azure, where two accounts may have containers of the same name.
        bucket: bucket or container; the folder for `file`.
    """

    scheme: str
    endpoint: str
    region: str
    account: str
    bucket: str

    @property
    def text(self) -> str:
        """Unique text of the store, for names of blocks and for `muster data ls`."""
        place = f"{self.scheme}://{self.bucket}"
        named = (("endpoint", self.endpoint), ("region", self.region), ("account", self.account))
        return " ".join([place, *(f"{name}={value}" for name, value in named if value)])  # no value has a space

    @classmethod
    def parse(cls, text: str) -> StoreIdentity:
        """Return the store with this `text`. Raises ValueError if it has another form."""
        place, *named = text.split(" ")
        scheme, found, bucket = place.partition("://")
        values = dict(each.partition("=")[::2] for each in named)
        if not found or not values.keys() <= {"endpoint", "region", "account"}:
            raise ValueError(f"{text!r} does not name a store")
        return cls(scheme, values.get("endpoint", ""), values.get("region", ""), values.get("account", ""), bucket)

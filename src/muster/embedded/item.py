"""A stored object at one version."""

from __future__ import annotations

from muster.embedded.objects import Obj, decode, encode, items, section
from muster.readcache.hub.item import Item as HubItem


class Item(HubItem):
    """An object at one version, with the uids of its owners, and whether it is being deleted."""

    __slots__ = ("owners", "terminating")

    def __init__(self, key: str, data: bytes, obj: Obj, fields: dict[str, str]) -> None:
        """Describe `obj`, whose JSON is `data`."""
        meta = section(obj, "metadata")
        super().__init__(
            key,
            int(meta["resourceVersion"]),
            data,
            namespace=meta.get("namespace") or "",
            name=meta.get("name") or "",
            uid=meta.get("uid") or "",
            labels=meta.get("labels") or {},
            fields=fields,
        )
        self.owners = tuple(owner.get("uid", "") for owner in items(meta, "ownerReferences"))
        self.terminating = "deletionTimestamp" in meta

    def object(self) -> Obj:
        """Decode the object to a new dictionary, which the caller may change."""
        return decode(self.data)

    def at(self, version: int) -> Item:
        """Return the same object with another resourceVersion."""
        data = at_version(self.data, version)
        return Item(self.key, data, decode(data), dict(self.fields))


def at_version(data: bytes, version: int) -> bytes:
    """Return an object's JSON with another resourceVersion."""
    obj = decode(data)
    obj["metadata"]["resourceVersion"] = str(version)
    return encode(obj)

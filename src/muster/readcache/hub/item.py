"""An object at one version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

NOTHING: Mapping[str, str] = {}


class Head(Protocol):
    """The fields that are read from an object's bytes."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace, "" for a kind without namespaces."""
        ...

    @property
    def uid(self) -> str:
        """Its uid."""
        ...

    @property
    def version(self) -> int:
        """Its resourceVersion."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        ...

    @property
    def fields(self) -> Mapping[str, str]:
        """The values of its selectable fields."""
        ...


class Item:
    """An object at one version: its bytes, and what selectors read.

    Attributes:
        key: `NAMESPACE/NAME`, or `NAME` for a kind without namespaces. Keys have the order of etcd's keys.
        version: the resourceVersion.
        data: the bytes as the server sent them.
        fields: the values of selectable fields and indexes.
    """

    __slots__ = ("data", "fields", "key", "labels", "name", "namespace", "uid", "version")

    def __init__(
        self,
        key: str,
        version: int,
        data: bytes,
        *,
        namespace: str = "",
        name: str = "",
        uid: str = "",
        labels: Mapping[str, str] = NOTHING,
        fields: Mapping[str, str] = NOTHING,
    ) -> None:
        self.key = key
        self.version = version
        self.data = data
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.labels = labels
        self.fields = fields

    def __repr__(self) -> str:
        return f"Item({self.key!r}, {self.version})"


def item_of(head: Head, data: bytes) -> Item:
    """Return the item of an object whose head was read from `data`."""
    namespace, name = head.namespace, head.name
    return Item(
        f"{namespace}/{name}" if namespace else name,
        head.version,
        data,
        namespace=namespace,
        name=name,
        uid=head.uid,
        labels=head.labels,
        fields=head.fields,
    )


def share(item: Item, old: Item) -> None:
    """Reuse the strings and dictionaries of the object's earlier version where they are equal, to save memory."""
    item.key, item.namespace, item.name = old.key, old.namespace, old.name
    if item.uid == old.uid:
        item.uid = old.uid
    if item.labels == old.labels:
        item.labels = old.labels
    if item.fields == old.fields:
        item.fields = old.fields

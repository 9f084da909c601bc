"""The objects that a list or a watch selects."""

from __future__ import annotations

from dataclasses import dataclass

from muster.kube.objects.selectors import EVERYTHING, Selector
from muster.readcache.hub.item import Item

NAME, NAMESPACE = "metadata.name", "metadata.namespace"
FieldTerm = tuple[str, bool, str]  # (field, whether it must be equal, value)
Bucket = tuple[str, str] | None


def value_of(item: Item, field: str) -> str:
    """Return the value of a field that selectors may use."""
    if field == NAME:
        return item.name
    if field == NAMESPACE:
        return item.namespace
    return item.fields.get(field, "")


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of a namespace (or all) that match the labels and all field terms.

    Attributes:
        namespace: "" for all.
        indexes: fields for which the store has an index; only they can be the bucket.
    """

    namespace: str = ""
    labels: Selector = EVERYTHING
    fields: tuple[FieldTerm, ...] = ()
    indexes: tuple[str, ...] = ()

    @property
    def bucket(self) -> Bucket:
        """The smallest bucket with all selected objects: (field, value), or None for all objects."""
        wanted = self._wanted()
        for index in self.indexes:
            if index in wanted:
                return index, wanted[index]
        if NAME in wanted:
            return NAME, wanted[NAME]
        namespace = self.namespace or wanted.get(NAMESPACE)
        return (NAMESPACE, namespace) if namespace else None

    @property
    def only_namespace(self) -> str | None:
        """The namespace of all selected objects, None if they may be in several."""
        return self.namespace or self._wanted().get(NAMESPACE)

    @property
    def only_name(self) -> str | None:
        """The name of all selected objects, None if they may have several."""
        return self._wanted().get(NAME)

    @property
    def everything(self) -> bool:
        """Returns whether only the namespace narrows the selection."""
        return not self.labels.requirements and not self.labels.nothing and not self.fields

    def matches(self, item: Item) -> bool:
        """Returns whether the object is selected."""
        if self.namespace and item.namespace != self.namespace:
            return False
        for field, equal, value in self.fields:
            if (value_of(item, field) == value) is not equal:
                return False
        labels = self.labels
        return (not labels.requirements and not labels.nothing) or labels.matches(item.labels)

    def _wanted(self) -> dict[str, str]:
        return {field: value for field, equal, value in self.fields if equal}


ALL = Selection()

"""Converts a request's label and field selectors to a selection, for which the store can use its indexes."""

from __future__ import annotations

import dataclasses
import functools

from muster.embedded.apiserver.status import bad_request
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.objects import Obj, items, section
from muster.embedded.watchhub import Bucket, Item
from muster.kube.objects.selectors import (
    EVERYTHING,
    NOTHING,
    FieldSelector,
    Requirement,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_selector,
)


@functools.lru_cache(maxsize=4096)
def _labels(text: str) -> Selector:
    return parse_selector(text)


@functools.lru_cache(maxsize=4096)
def _fields(text: str) -> FieldSelector:
    return parse_field_selector(text)


FieldTerm = tuple[str, bool, str]  # (field, whether it must be equal, value)


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """Objects of a namespace (or all) that match the labels and all field terms."""

    namespace: str = ""
    labels: Selector = EVERYTHING
    fields: tuple[FieldTerm, ...] = ()
    indexes: tuple[str, ...] = ()

    @functools.cached_property
    def bucket(self) -> Bucket:
        """The smallest bucket with all selected objects: of an indexed field, one object, or a namespace."""
        wanted = {field: value for field, equal, value in self.fields if equal}
        for index in self.indexes:
            if index in wanted:
                return (index, wanted[index])
        name, namespace = wanted.get("metadata.name"), self.namespace or wanted.get("metadata.namespace")
        if name and namespace:
            return ("key", f"{namespace}/{name}")
        return ("metadata.namespace", namespace) if namespace else None

    @property
    def everything(self) -> bool:
        """Returns whether only the namespace narrows the selection."""
        return not self.labels.requirements and not self.fields

    def matches(self, item: Item) -> bool:
        """Returns whether the object is selected."""
        if self.namespace and item.namespace != self.namespace:
            return False
        for field, equal, value in self.fields:
            if field == "metadata.name":
                actual = item.name
            elif field == "metadata.namespace":
                actual = item.namespace
            else:
                actual = item.fields.get(field, "")
            if (actual == value) is not equal:
                return False
        return self.labels.matches(item.labels)


_EVENTS_V1 = {"reportingController": "reportingComponent", "regarding": "involvedObject"}


def select(resource: ResourceType, namespace: str, labels: str, fields: str) -> Selected:
    """Make the selection of a list, watch or deletecollection.

    Raises:
        StatusError: 400 if a selector cannot be parsed, or a field is not selectable for this kind.
    """
    try:
        label_selector, field_selector = _labels(labels), _fields(fields)
    except SelectorError as error:
        raise bad_request(f"unable to parse requirement: {error}") from None
    terms = []
    for field, equal, value in field_selector.terms:
        if resource.group == "events.k8s.io":
            head, dot, tail = field.partition(".")
            field = _EVENTS_V1.get(head, head) + dot + tail
        if field not in ("metadata.name", "metadata.namespace") and field not in resource.fields:
            if resource.known_fields_message and not resource.custom:
                known = 'only "metadata.name", "metadata.namespace"'
                raise bad_request(f'"{field}" is not a known field selector: {known}')
            raise bad_request(f"field label not supported: {field}")
        terms.append((field, equal, value))
    return Selected(namespace, label_selector, tuple(terms), resource.indexes)


_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def label_selector_of(selector: Obj | None) -> Selector:
    """Parse a LabelSelector object. None selects no object, an empty one selects all."""
    if selector is None:
        return NOTHING
    equal = [Requirement(key, "In", (value,)) for key, value in section(selector, "matchLabels").items()]
    rules = [
        Requirement(rule.get("key", ""), rule["operator"], tuple(items(rule, "values")))
        for rule in items(selector, "matchExpressions")
        if rule.get("operator") in _OPERATORS
    ]
    return Selector((*equal, *rules))

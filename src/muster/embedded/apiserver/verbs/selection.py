"""Converts the label and field selectors of a request to a selection, for which the store can use its indexes."""

from __future__ import annotations

import functools

from muster.embedded.apiserver.status import bad_request
from muster.embedded.apiserver.types.registry import ResourceType
from muster.embedded.objects import Obj, items, section
from muster.kube.objects.selectors import (
    NOTHING,
    FieldSelector,
    Requirement,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_selector,
)
from muster.readcache.hub.selection import Selection


@functools.lru_cache(maxsize=4096)
def _labels(text: str) -> Selector:
    return parse_selector(text)


@functools.lru_cache(maxsize=4096)
def _fields(text: str) -> FieldSelector:
    return parse_field_selector(text)


_EVENTS_V1 = {"reportingController": "reportingComponent", "regarding": "involvedObject"}


def select(resource: ResourceType, namespace: str, labels: str, fields: str) -> Selection:
    """Make the selection of a list, watch or deletecollection.

    Raises:
        StatusError: 400 if a selector cannot be parsed, or a field is not selectable for this kind.
    """
    try:
        label_selector = _labels(labels)
    except SelectorError as error:
        raise bad_request(f"unable to parse requirement: {error}") from None
    try:
        field_selector = _fields(fields)
    except SelectorError as error:
        raise bad_request(str(error)) from None
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
    return Selection(namespace, label_selector, tuple(terms), resource.indexes)


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

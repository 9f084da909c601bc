"""Label and field selectors of a request, as a selection that the store and the watch hub can index."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

from muster.embedded.apiserver.registry import ResourceType
from muster.embedded.apiserver.status import bad_request
from muster.embedded.watchhub import Bucket, Item

LabelTest = Callable[[dict[str, str]], bool]
_SET = re.compile(r"^([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)$")
_COMPARE = re.compile(r"^([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)$")
_EXISTS = re.compile(r"^(!?)\s*([^\s!=,()]+)$")


def _split(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^()]*\))", text)]


@functools.lru_cache(maxsize=4096)
def parse_labels(text: str) -> tuple[LabelTest, ...]:
    """Parse a label selector into tests that must all hold.

    Raises:
        StatusError: 400 where it cannot be parsed.
    """
    return tuple(_label_test(part) for part in _split(text)) if text.strip() else ()


def _label_test(part: str) -> LabelTest:
    if found := _SET.match(part):
        key, operator, values = found[1], found[2], frozenset(value.strip() for value in found[3].split(","))
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _COMPARE.match(part):
        key, value = found[1], found[3]
        if found[2] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(part):
        key = found[2]
        if found[1]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: {part}")


FieldTerm = tuple[str, bool, str]  # field, wanted equal, value


@functools.lru_cache(maxsize=4096)
def parse_fields(text: str) -> tuple[FieldTerm, ...]:
    """Parse a field selector: `a=b,c!=d`.

    Raises:
        StatusError: 400 where it cannot be parsed.
    """
    terms = []
    for part in filter(None, text.split(",")):
        for operator in ("!=", "==", "="):
            left, found, right = part.partition(operator)
            if found:
                terms.append((left, operator != "!=", right))
                break
        else:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
    return tuple(terms)


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """Objects of a namespace (or all) that match all label tests and field terms."""

    namespace: str = ""
    labels: tuple[LabelTest, ...] = ()
    fields: tuple[FieldTerm, ...] = ()
    indexes: tuple[str, ...] = ()

    @functools.cached_property
    def bucket(self) -> Bucket:
        """The narrowest bucket: an indexed field, one object, a namespace."""
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
        """Whether nothing but the namespace narrows this."""
        return not self.labels and not self.fields

    def matches(self, item: Item) -> bool:
        """Whether the object is selected."""
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
        return all(test(item.labels) for test in self.labels)


_EVENTS_V1 = {"reportingController": "reportingComponent", "regarding": "involvedObject"}


def select(resource: ResourceType, namespace: str, labels: str, fields: str) -> Selected:
    """Make the selection of a list, watch or deletecollection.

    Raises:
        StatusError: 400 where a selector cannot be parsed or a field is not selectable for this kind.
    """
    terms = []
    for field, equal, value in parse_fields(fields):
        if resource.group == "events.k8s.io":
            head, dot, tail = field.partition(".")
            field = _EVENTS_V1.get(head, head) + dot + tail
        if field not in ("metadata.name", "metadata.namespace") and field not in resource.fields:
            if resource.known_fields_message and not resource.custom:
                known = 'only "metadata.name", "metadata.namespace"'
                raise bad_request(f'"{field}" is not a known field selector: {known}')
            raise bad_request(f"field label not supported: {field}")
        terms.append((field, equal, value))
    return Selected(namespace, parse_labels(labels), tuple(terms), resource.indexes)

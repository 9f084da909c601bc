"""The shape of a request: what its cost depends on, without the parts that differ between callers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from muster.doctor.costs.owners import SERVICE_ACCOUNT
from muster.kube.requestlog import RequestLine

_TERM = re.compile(r"\s*([^=!,]+?)\s*(==|!=|=)\s*([^,]*)")
READS = frozenset({"get", "list", "watch"})


class Shape(NamedTuple):
    """A class of requests.

    Attributes:
        verb: verb of RBAC.
        resource: resource with group and subresource, such as `pods/status` or `leases.coordination.k8s.io`.
        scope: `all` (every namespace), `own` (the namespace of the service account), `namespace` (another one) or
            `one` (an object by name).
        selector: `` (none), `node` (a value is the name of a node), `one` (an object by name) or `some`.
        version: of a read: `` (most recent), `0` (any) or `N` (at least or exactly a version).
        limited: a list in pages.
        initial: a watch that asks for the state first.
    """

    verb: str
    resource: str
    scope: str
    selector: str = ""
    version: str = ""
    limited: bool = False
    initial: bool = False

    @property
    def objects(self) -> str:
        """The resource without its subresource."""
        return self.resource.partition("/")[0]

    @property
    def words(self) -> str:
        """The shape as users read it: `lists all pods, no limit, resourceVersion ""`."""
        verb = {"deletecollection": "deletes collections of"}.get(self.verb, _third_person(self.verb))
        which = {"all": "all", "own": "its namespace's", "namespace": "a namespace's", "one": "one of the"}[self.scope]
        if self.selector == "one":
            which = "one of the"
        text = f"{verb} {which} {self.resource}"
        if self.selector == "node":
            text += " of its node"
        elif self.selector == "some":
            text += " with a selector"
        if self.verb not in READS:
            return text
        if self.verb == "list":
            text += ", in pages" if self.limited else ", without limit"
        version = {"": 'resourceVersion ""', "0": 'resourceVersion "0"', "N": "from a resourceVersion"}[self.version]
        return f"{text}, {version}"


def _third_person(verb: str) -> str:
    return verb + ("es" if verb.endswith(("ch", "sh", "s")) else "s")


def shape_of(line: RequestLine, is_node: Callable[[str], bool]) -> Shape:
    """Classify a request. `is_node` says whether a text is the name of a node."""
    group = f".{line.group}" if line.group else ""
    below = f"/{line.subresource}" if line.subresource else ""
    named = bool(line.name) or line.verb == "get"
    return Shape(
        verb=line.verb,
        resource=f"{line.resource}{group}{below}",
        scope="one" if named and line.verb != "watch" else _scope(line),
        selector=_selector(line, is_node),
        version=_version(line) if line.verb in READS else "",
        limited=line.limit > 0 or line.continued,
        initial=line.initial,
    )


def _scope(line: RequestLine) -> str:
    if not line.namespace:
        return "all"
    return "own" if line.user.startswith(f"{SERVICE_ACCOUNT}{line.namespace}:") else "namespace"


def _version(line: RequestLine) -> str:
    if line.continued:
        return "N"
    return line.resource_version if line.resource_version in ("", "0") else "N"


def _selector(line: RequestLine, is_node: Callable[[str], bool]) -> str:
    if line.verb not in ("list", "watch", "deletecollection"):
        return ""
    terms = [
        (match[1], match[2], match[3].strip())
        for text in (line.field_selector, line.label_selector)
        for match in _TERM.finditer(text)
    ]
    if any(operator != "!=" and (value == line.node or is_node(value)) for _, operator, value in terms if value):
        return "node"
    if line.name or any(key == "metadata.name" and operator != "!=" for key, operator, _ in terms):
        return "one"
    return "some" if line.field_selector or line.label_selector else ""

"""Rules about our kinds beyond their schemas: each as CEL for the API server, and as a function for the embedded one.

Both forms stand side by side in one table, so that both servers enforce the same. The embedded server finds a rule by
its CEL text in the stored CustomResourceDefinition; it does not evaluate other CEL.
Rules that compare with the old object: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#transition-rules
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from muster.api import store_url
from muster.api.names import JOB_NAME_MAX
from muster.api.training_job import DNS_LABEL, MUTABLE_FIELDS, TrainingJobSpec
from muster.api.training_job_status import LEFT_OUT_MAX
from muster.api.validate import NO_CLAIMS
from muster.kube.addresses import is_address

Json = dict[str, Any]


class Rule(NamedTuple):
    """One rule about an object, or about its spec.

    Attributes:
        cel: the rule; `self` is the object or the spec, `oldSelf` is its value before the update.
        message: the text for the user: what to change.
        holds: the same rule as a function of `self` and `oldSelf`.
        transition: the rule reads `oldSelf`, so it applies to updates only.
        field: the path from `self` to the field that errors name; "" for `self` itself.
    """

    cel: str
    message: str
    holds: Callable[[Json, Json], bool]
    transition: bool = False
    field: str = ""


def _same(path: str) -> str:
    """CEL: the optional field is unchanged."""
    new, old = f"self.{path}", f"oldSelf.{path}"
    return f"has({new}) == has({old}) && (!has({new}) || {new} == {old})"


_MAY_CHANGE: Final = (
    "self.spec.suspend || !has(oldSelf.status) || !has(oldSelf.status.attempt) || oldSelf.status.attempt == 0"
)


def _may_change(new: Json, old: Json) -> bool:
    """Returns whether the whole spec may change: the job is or becomes suspended, or has not begun."""
    return bool(_section(new, "spec").get("suspend")) or not _section(old, "status").get("attempt")


def _fixed(field: str) -> Rule:
    """A rule for a field that may change only while the job is suspended or has not begun."""

    def holds(new: Json, old: Json) -> bool:
        return _may_change(new, old) or _section(new, "spec").get(field) == _section(old, "spec").get(field)

    return Rule(
        f"{_MAY_CHANGE} || ({_same(f'spec.{field}')})",
        f"{field} cannot change while the job is active: set suspend to true, change it, then set suspend to false",
        holds,
        transition=True,
        field=f".spec.{field}",
    )


def _section(obj: Json, name: str) -> Json:
    found = obj.get(name)
    return found if isinstance(found, dict) else {}


def _has_good_name(new: Json, _: Json) -> bool:
    name = str(_section(new, "metadata").get("name", ""))
    return len(name) <= JOB_NAME_MAX and re.search(DNS_LABEL, name) is not None


def _is_bounded(spec: Json, _: Json) -> bool:
    fewest, all_of_them = spec.get("minReplicas"), spec.get("replicas", 0)
    return fewest is None or (fewest <= all_of_them and all_of_them - fewest <= LEFT_OUT_MAX)


TRAINING_JOB: Final = (
    Rule(
        f"size(self.metadata.name) <= {JOB_NAME_MAX} && self.metadata.name.matches('{DNS_LABEL}')",
        f"the name must be at most {JOB_NAME_MAX} lower-case letters, digits and dashes: its pods are named after it",
        _has_good_name,
    ),
    *(
        _fixed(each.encode_name)
        for each in msgspec.structs.fields(TrainingJobSpec)
        if each.encode_name not in MUTABLE_FIELDS
    ),
)
"""Rules about a TrainingJob as a whole. All fields that MUTABLE_FIELDS does not name are fixed, also new fields."""

TRAINING_JOB_SPEC: Final = (
    Rule(
        "has(self.minReplicas) == (has(self.noSpare) && self.noSpare == 'Shrink')",
        "minReplicas and noSpare: Shrink go together: set both or neither",
        lambda spec, _: ("minReplicas" in spec) == (spec.get("noSpare") == "Shrink"),
    ),
    Rule(
        f"!has(self.minReplicas) || (self.minReplicas <= self.replicas && "
        f"self.replicas - self.minReplicas <= {LEFT_OUT_MAX})",
        f"minReplicas must be at most replicas, and at most {LEFT_OUT_MAX} fewer",
        _is_bounded,
    ),
    Rule(
        "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.resourceClaims) || "
        "size(self.template.spec.resourceClaims) == 0",
        f"template.spec.resourceClaims {NO_CLAIMS}",
        lambda spec, _: not _section(_section(spec, "template"), "spec").get("resourceClaims"),
    ),
)


def _cel(pattern: str) -> str:
    """A regular expression as a CEL string."""
    return "'" + pattern.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _without_secret(section: str, field: str) -> Rule:
    """A rule for a URL in the spec: it contains no credentials."""

    def holds(spec: Json, _: Json) -> bool:
        return not store_url.has_secret(str(_section(spec, section).get(field, "")))

    path = f"self.{section}.{field}"
    return Rule(
        f"!has(self.{section}) || !has({path}) || !{path}.matches({_cel(store_url.SECRET_IN_URL)})",
        f"{section}.{field} {store_url.NO_SECRET}",
        holds,
        field=f".{section}.{field}",
    )


def _endpoint(section: str) -> Rule:
    """A rule for the endpoint of an object store."""

    def holds(spec: Json, _: Json) -> bool:
        return not store_url.endpoint_problem(str(_section(spec, section).get("endpoint", "")))

    path = f"self.{section}.endpoint"
    return Rule(
        f"!has(self.{section}) || !has({path}) || {path} == '' || {path}.matches({_cel(store_url.ENDPOINT)})",
        f"{section}.endpoint must be the URL of a service, such as http://HOST:PORT, without credentials and a query",
        holds,
        field=f".{section}.endpoint",
    )


STORES: Final = (
    Rule(
        f"!has(self.data) || self.data.url.matches({_cel(store_url.STORE_URL)}) || "
        f"self.data.url.matches({_cel(store_url.FILE_URL)})",
        "data.url must be s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///FOLDER, without "
        "credentials and a query",
        lambda spec, _: "data" not in spec or not store_url.data_problem(str(_section(spec, "data").get("url", ""))),
        field=".data.url",
    ),
    _without_secret("checkpoint", "path"),
    _endpoint("data"),
    _endpoint("checkpoint"),
    Rule(
        "!has(self.checkpoint) || !has(self.checkpoint.from) || !has(self.checkpoint.from.path) || "
        f"!self.checkpoint.from.path.matches({_cel(store_url.SECRET_IN_URL)})",
        f"checkpoint.from.path {store_url.NO_SECRET}",
        lambda spec, _: not store_url.has_secret(str(_section(_section(spec, "checkpoint"), "from").get("path", ""))),
        field=".checkpoint.from.path",
    ),
)
"""Rules of the spec about object stores."""

NODE_REMEDIATION_SPEC: Final = (
    Rule(
        "self.node == oldSelf.node && self.nodeUID == oldSelf.nodeUID",
        "the node of a remediation never changes",
        lambda new, old: all(new.get(field) == old.get(field) for field in ("node", "nodeUID")),
        transition=True,
    ),
)


def _is_network(text: object) -> bool:
    try:
        ipaddress.ip_network(str(text))
    except ValueError:
        return False
    return True


def _holds_blocks(spec: Json, _: Json) -> bool:
    if not _is_network(spec.get("cidr")):
        return True  # another rule says so
    network = ipaddress.ip_network(str(spec["cidr"]))
    return network.prefixlen <= int(spec.get("blockPrefix", 0)) <= network.max_prefixlen


ADDRESS_POOL_SPEC: Final = (
    Rule(
        "isCIDR(self.cidr) && cidr(self.cidr) == cidr(self.cidr).masked()",
        "cidr must be a network without host bits, such as 10.16.0.0/12",
        lambda spec, _: _is_network(spec.get("cidr")),
    ),
    Rule(
        "!isCIDR(self.cidr) || (cidr(self.cidr).prefixLength() <= self.blockPrefix && "
        "self.blockPrefix <= (cidr(self.cidr).ip().family() == 4 ? 32 : 128))",
        "blockPrefix must be at least the prefix length of cidr, and at most 32 for IPv4 or 128 for IPv6",
        _holds_blocks,
    ),
    Rule(
        "!has(self.gateway) || self.gateway == '' || isIP(self.gateway)",
        "gateway must be an IP address",
        lambda spec, _: not spec.get("gateway") or is_address(str(spec["gateway"])),
    ),
    Rule(
        "self.cidr == oldSelf.cidr && self.blockPrefix == oldSelf.blockPrefix",
        "cidr and blockPrefix never change, because nodes hold blocks of them: create another pool",
        lambda new, old: all(new.get(field) == old.get(field) for field in ("cidr", "blockPrefix")),
        transition=True,
    ),
)

ADDRESS_BLOCK_SPEC: Final = (
    Rule("self == oldSelf", "an AddressBlock never changes", lambda new, old: new == old, transition=True),
)

BY_CEL: Final = {
    rule.cel: rule
    for rule in (
        *TRAINING_JOB,
        *TRAINING_JOB_SPEC,
        *STORES,
        *NODE_REMEDIATION_SPEC,
        *ADDRESS_POOL_SPEC,
        *ADDRESS_BLOCK_SPEC,
    )
}

"""Decodes Kubernetes' protobuf bodies, in which kubectl sends its typed creates and evictions. Answers are JSON.

Field numbers come from the `generated.proto` files of k8s.io/api and k8s.io/apimachinery. Only the kinds that kubectl
sends are listed. Others are refused with 415, and the answer names the accepted formats.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from muster.embedded.apiserver.status import bad_request, unsupported_media_type
from muster.embedded.objects import Obj, micro_timestamp, timestamp
from muster.kube.protobuf import varint

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# One line a message: `number name type`. Types: s string, i integer, B boolean, b bytes, T Time, M MicroTime,
# Q Quantity, I IntOrString, else a message. `*` is a list, `%` a map from strings, `?` keeps zero values (pointers).
_MESSAGES = """
ObjectMeta: 1 name s; 2 generateName s; 3 namespace s; 5 uid s; 6 resourceVersion s; 11 labels %s; 12 annotations %s;\
 13 ownerReferences *OwnerReference; 14 finalizers *s
OwnerReference: 5 apiVersion s; 1 kind s; 3 name s; 4 uid s; 6 controller ?B; 7 blockOwnerDeletion ?B
DeleteOptions: 1 gracePeriodSeconds ?i; 2 preconditions Preconditions; 3 orphanDependents ?B; 4 propagationPolicy s;\
 5 dryRun *s
Preconditions: 1 uid s; 2 resourceVersion s
LabelSelector: 1 matchLabels %s; 2 matchExpressions *LabelSelectorRequirement
LabelSelectorRequirement: 1 key s; 2 operator s; 3 values *s
Namespace: 1 metadata ObjectMeta; 2 spec NamespaceSpec
NamespaceSpec: 1 finalizers *s
ConfigMap: 1 metadata ObjectMeta; 4 immutable ?B; 2 data %s; 3 binaryData %b
Secret: 1 metadata ObjectMeta; 5 immutable ?B; 2 data %b; 4 stringData %s; 3 type s
ServiceAccount: 1 metadata ObjectMeta; 2 secrets *ObjectReference; 3 imagePullSecrets *LocalObjectReference;\
 4 automountServiceAccountToken ?B
ObjectReference: 1 kind s; 2 namespace s; 3 name s; 4 uid s; 5 apiVersion s; 6 resourceVersion s; 7 fieldPath s
LocalObjectReference: 1 name s
ResourceQuota: 1 metadata ObjectMeta; 2 spec ResourceQuotaSpec; 3 status ResourceQuotaStatus
ResourceQuotaSpec: 1 hard %Q; 2 scopes *s; 3 scopeSelector ScopeSelector
ResourceQuotaStatus: 1 hard %Q; 2 used %Q
ScopeSelector: 1 matchExpressions *ScopedResourceSelectorRequirement
ScopedResourceSelectorRequirement: 1 scopeName s; 2 operator s; 3 values *s
Service: 1 metadata ObjectMeta; 2 spec ServiceSpec
ServiceSpec: 1 ports *ServicePort; 2 selector %s; 3 clusterIP s; 18 clusterIPs *s; 4 type s; 5 externalIPs *s;\
 7 sessionAffinity s; 10 externalName s; 13 publishNotReadyAddresses B
ServicePort: 1 name s; 2 protocol s; 6 appProtocol s; 3 port i; 4 targetPort I; 5 nodePort i
Binding: 1 metadata ObjectMeta; 2 target ObjectReference
Event: 1 metadata ObjectMeta; 2 involvedObject ObjectReference; 3 reason s; 4 message s; 5 source EventSource;\
 6 firstTimestamp T; 7 lastTimestamp T; 8 count i; 9 type s; 10 eventTime M; 11 series EventSeries; 12 action s;\
 13 related ObjectReference; 14 reportingComponent s; 15 reportingInstance s
EventSource: 1 component s; 2 host s
EventSeries: 1 count i; 2 lastObservedTime M
PriorityClass: 1 metadata ObjectMeta; 2 value i; 3 globalDefault B; 4 description s; 5 preemptionPolicy s
Role: 1 metadata ObjectMeta; 2 rules *PolicyRule
ClusterRole: 1 metadata ObjectMeta; 2 rules *PolicyRule; 3 aggregationRule AggregationRule
AggregationRule: 1 clusterRoleSelectors *LabelSelector
RoleBinding: 1 metadata ObjectMeta; 2 subjects *Subject; 3 roleRef RoleRef
ClusterRoleBinding: 1 metadata ObjectMeta; 2 subjects *Subject; 3 roleRef RoleRef
PolicyRule: 1 verbs *s; 2 apiGroups *s; 3 resources *s; 4 resourceNames *s; 5 nonResourceURLs *s
RoleRef: 1 apiGroup s; 2 kind s; 3 name s
Subject: 1 kind s; 2 apiGroup s; 3 name s; 4 namespace s
TokenRequest: 1 metadata ObjectMeta; 2 spec TokenRequestSpec
TokenRequestSpec: 1 audiences *s; 4 expirationSeconds ?i; 3 boundObjectRef BoundObjectReference
BoundObjectReference: 1 kind s; 2 apiVersion s; 3 name s; 4 uid s
TokenReview: 1 metadata ObjectMeta; 2 spec TokenReviewSpec
TokenReviewSpec: 1 token s; 2 audiences *s
SelfSubjectReview: 1 metadata ObjectMeta
SelfSubjectAccessReview: 1 metadata ObjectMeta; 2 spec AccessReviewSpec
SubjectAccessReview: 1 metadata ObjectMeta; 2 spec AccessReviewSpec
LocalSubjectAccessReview: 1 metadata ObjectMeta; 2 spec AccessReviewSpec
AccessReviewSpec: 1 resourceAttributes ResourceAttributes; 2 nonResourceAttributes NonResourceAttributes; 3 user s;\
 4 groups *s; 6 uid s
ResourceAttributes: 1 namespace s; 2 verb s; 3 group s; 4 version s; 5 resource s; 6 subresource s; 7 name s
NonResourceAttributes: 1 path s; 2 verb s
SelfSubjectRulesReview: 1 metadata ObjectMeta; 2 spec RulesReviewSpec
RulesReviewSpec: 1 namespace s
PodDisruptionBudget: 1 metadata ObjectMeta; 2 spec PodDisruptionBudgetSpec
PodDisruptionBudgetSpec: 1 minAvailable ?I; 2 selector ?LabelSelector; 3 maxUnavailable ?I;\
 4 unhealthyPodEvictionPolicy s
Eviction: 1 metadata ObjectMeta; 2 deleteOptions DeleteOptions
Lease: 1 metadata ObjectMeta; 2 spec LeaseSpec
LeaseSpec: 1 holderIdentity ?s; 2 leaseDurationSeconds ?i; 3 acquireTime M; 4 renewTime M; 5 leaseTransitions ?i
"""

Field = tuple[str, str]


def _tables() -> dict[str, dict[int, Field]]:
    tables: dict[str, dict[int, Field]] = {}
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(": ")
        table = tables[name] = {}
        for field in fields.split(";"):
            number, label, kind = field.split()
            table[int(number)] = (label, kind)
    return tables


_TABLES = _tables()


def decode_body(body: bytes) -> Obj:
    """Decode a request body in Kubernetes' protobuf envelope.

    Raises:
        StatusError: 400 if it is malformed, 415 for a kind that is not supported.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        head = dict(_fields(_bytes(envelope.get(1, b""))))
        api_version, kind = _bytes(head.get(1, b"")).decode(), _bytes(head.get(2, b"")).decode()
        if kind not in _TABLES or (kind == "Event" and api_version != "v1"):
            raise unsupported_media_type(["application/json"])
        return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), kind)}
    except (IndexError, ValueError) as error:
        raise bad_request(f"the protobuf body is malformed: {error}") from None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = varint(data, position)
        wire = tag & 7
        if wire == 0:
            value, position = varint(data, position)
            yield tag >> 3, value
        elif wire == 2:
            length, position = varint(data, position)
            if position + length > len(data):
                raise ValueError("a field is cut short")
            yield tag >> 3, data[position : position + length]
            position += length
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} is unknown")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong wire type")
    return value


def _message(data: bytes, name: str) -> Obj:
    table = _TABLES[name]
    found: Obj = {}
    for number, raw in _fields(data):
        if number not in table:
            continue
        label, kind = table[number]
        if kind[0] == "*":
            found.setdefault(label, []).append(_value(raw, kind[1:]))
        elif kind[0] == "%":
            entry = dict(_fields(_bytes(raw)))
            key = _bytes(entry.get(1, b"")).decode()
            found.setdefault(label, {})[key] = _value(entry.get(2, b""), kind[1:])
        else:
            value = _value(raw, kind.lstrip("?"))
            if kind[0] == "?" or value not in ("", 0, None, {}):
                found[label] = value
    return found


def _value(raw: int | bytes, kind: str) -> Any:
    if kind == "s":
        return _bytes(raw).decode()
    if kind == "i":
        number = int(raw) if isinstance(raw, int) else 0
        return number - (1 << 64) if number >= 1 << 63 else number
    if kind == "B":
        return bool(raw)
    if kind == "b":
        return base64.b64encode(_bytes(raw)).decode()
    if kind in ("T", "M"):
        parts = dict(_fields(_bytes(raw)))
        if not parts:
            return None
        seconds = int(parts.get(1, 0)) + int(parts.get(2, 0)) / 1e9
        return timestamp(seconds) if kind == "T" else micro_timestamp(seconds)
    if kind == "Q":
        return _bytes(dict(_fields(_bytes(raw))).get(1, b"0")).decode()
    if kind == "I":
        parts = dict(_fields(_bytes(raw)))
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _value(parts.get(2, 0), "i")
    return _message(_bytes(raw), kind)

"""Requests that ask the API server about identity and rights. These objects are created, never stored."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

POD_NAME = "authentication.kubernetes.io/pod-name"
"""`UserInfo.extra` key of a bound service account token: the pod's name."""
POD_UID = "authentication.kubernetes.io/pod-uid"
"""`UserInfo.extra` key of a bound service account token: the pod's UID."""
NODE_NAME = "authentication.kubernetes.io/node-name"
"""`UserInfo.extra` key of a service account token of a pod: the node of the pod (Kubernetes 1.32: KEP-4193)."""


class UserInfo(KubeStruct):
    """An authenticated user."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewSpec(KubeStruct):
    """The token in question; never shown in a repr."""

    token: str = ""
    audiences: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"TokenReviewSpec(audiences={self.audiences!r})"


class TokenReviewStatus(KubeStruct):
    """The answer."""

    authenticated: bool = False
    user: UserInfo = msgspec.field(default_factory=UserInfo)
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(KubeObject):
    """authentication.k8s.io/v1 TokenReview: whose token is this?"""

    RESOURCE: ClassVar[Resource] = Resource(
        "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
    )

    spec: TokenReviewSpec = msgspec.field(default_factory=TokenReviewSpec)
    status: TokenReviewStatus = msgspec.field(default_factory=TokenReviewStatus)


class SelectorAttributes(KubeStruct):
    """A selector of a request, as it is in the query. The API server parses it as it does that of a request."""

    raw_selector: str = ""


class ResourceAttributes(KubeStruct):
    """What a user wants to do with objects."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    field_selector: SelectorAttributes | None = None
    label_selector: SelectorAttributes | None = None


class SubjectAccessReviewSpec(KubeStruct):
    """The user and the request in question."""

    resource_attributes: ResourceAttributes = msgspec.field(default_factory=ResourceAttributes)
    user: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    uid: str = ""


class SubjectAccessReviewStatus(KubeStruct):
    """The answer. `denied` means that an authorizer forbade it, rather than that none allowed it."""

    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SubjectAccessReview(KubeObject):
    """authorization.k8s.io/v1 SubjectAccessReview: may this user do this?"""

    RESOURCE: ClassVar[Resource] = Resource(
        "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
    )

    spec: SubjectAccessReviewSpec = msgspec.field(default_factory=SubjectAccessReviewSpec)
    status: SubjectAccessReviewStatus = msgspec.field(default_factory=SubjectAccessReviewStatus)


class BoundObjectReference(KubeStruct):
    """The pod that a token is bound to. The token becomes invalid when the pod is deleted."""

    kind: str = ""
    api_version: str = ""
    name: str = ""
    uid: str = ""


class TokenRequestSpec(KubeStruct):
    """The requested token."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(KubeStruct):
    """The token; never shown in a repr."""

    token: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return f"TokenRequestStatus(expiration_timestamp={self.expiration_timestamp!r})"


class TokenRequest(KubeObject):
    """authentication.k8s.io/v1 TokenRequest: create it at the `token` subresource of a ServiceAccount."""

    RESOURCE: ClassVar[Resource] = Resource("authentication.k8s.io", "v1", "tokenrequests", "TokenRequest")

    spec: TokenRequestSpec = msgspec.field(default_factory=TokenRequestSpec)
    status: TokenRequestStatus = msgspec.field(default_factory=TokenRequestStatus)

"""Finds the pod to which a service account token is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from muster.api.names import TOKEN_AUDIENCE
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.objects.auth import POD_NAME, POD_UID, UserInfo
from muster.kube.tokenreview import TokenReviewer

_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


class PodIdentity(NamedTuple):
    """The pod to which a token is bound."""

    namespace: str
    name: str
    uid: str


def pod_reviewer(client: Client, clock: Callable[[], float] = steady_time) -> TokenReviewer[PodIdentity]:
    """Return a reviewer of pods' tokens for the controller of training jobs."""
    return TokenReviewer(client, TOKEN_AUDIENCE, pod_identity, clock)


def pod_identity(user: UserInfo) -> PodIdentity | None:
    """Return the pod of an authenticated user; None if it is not a pod."""
    name, uid = (next(iter(user.extra.get(key, ())), "") for key in (POD_NAME, POD_UID))
    if not name or not uid or not user.username.startswith(_SERVICE_ACCOUNT):
        return None
    return PodIdentity(user.username[len(_SERVICE_ACCOUNT) :].partition(":")[0], name, uid)

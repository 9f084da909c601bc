"""Waits until an API server knows the rights of an account.

It hears of roles and bindings a moment after their creation, and refuses requests until then.
"""

from __future__ import annotations

import json
from typing import Any

from muster.controlplane.clusteraccess import ClusterAccess, KubectlError
from muster.kube.client import Client
from tests.support.apiserver import Api
from tests.support.waiting import eventually, until

_GROUP = "authorization.k8s.io/v1"
_PATH = f"/apis/{_GROUP}/selfsubjectaccessreviews"


async def until_allowed(client: Client, rule: dict[str, Any], namespace: str = "") -> None:
    """Wait until the account of the client has the first right of a rule of a Role or ClusterRole."""
    asked = {
        "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": rule["resources"][0],
        "name": rule.get("resourceNames", [""])[0], "namespace": namespace,
    }  # fmt: skip
    kind = {"apiVersion": _GROUP, "kind": "SelfSubjectAccessReview"}
    body = json.dumps({**kind, "spec": {"resourceAttributes": asked}}).encode()

    async def allowed() -> bool:
        answer = json.loads(await client.request("POST", _PATH, body=body))
        return bool(answer["status"]["allowed"])

    await until(f"the API server allows {asked}", allowed)


def until_granted(access: ClusterAccess, user: str, *asked: str) -> None:
    """Wait until the API server grants a user what `kubectl auth can-i` asks: a verb, a resource and options."""

    def granted() -> bool:
        try:
            access.kubectl("auth", "can-i", *asked, f"--as={user}", "--quiet")
        except KubectlError:
            return False
        return True

    eventually(f"{user} may {' '.join(asked)}", granted)


def until_user_may(api: Api, user: str, asked: dict[str, str]) -> None:
    """Wait until an administrator's review says that a user has a right, as resource attributes."""
    review = {"apiVersion": _GROUP, "kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": asked}}
    path = f"/apis/{_GROUP}/subjectaccessreviews"
    eventually(f"{user} may {asked}", lambda: api.create(path, review)["status"]["allowed"])

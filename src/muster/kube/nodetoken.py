"""The node that a service account token is bound to."""

from __future__ import annotations

import base64
from typing import Any

import msgspec


def node_of_token(authorization: str) -> tuple[str, str]:
    """Return (name, UID) of the node that a service account token is bound to, "" for what it does not contain.

    Tokens of pods contain it (Kubernetes: KEP-4193, claims `kubernetes.io.node`), so agents do not need the right to
    read nodes. The token is read but not verified, because the API server verifies it.
    """
    parts = authorization.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return "", ""
    try:
        claims: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=="))
        node = claims["kubernetes.io"]["node"]
        return str(node.get("name", "")), str(node.get("uid", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""

"""Who asks: the administrator's bearer token, or a service account's."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from muster.embedded.apiserver.request import ADMIN, User


class Authenticator:
    """Turns an Authorization header into a user."""

    def __init__(self, admin_token: str) -> None:
        self._admin = admin_token.encode()

    def user(self, headers: Mapping[str, str]) -> User | None:
        """Return who asks, None where the token is missing or wrong."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        if hmac.compare_digest(token.strip().encode(), self._admin):
            return ADMIN
        return None

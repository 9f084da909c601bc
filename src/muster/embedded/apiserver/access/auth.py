"""Authenticates requests: the administrator's bearer token, or a service account's."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from muster.embedded.apiserver.access.tokens import InvalidToken, TokenAuthority
from muster.embedded.apiserver.request import ADMIN, User


class Authenticator:
    """Finds the user of an Authorization header."""

    def __init__(self, admin_token: str, tokens: TokenAuthority | None = None) -> None:
        self._admin = admin_token.encode()
        self._tokens = tokens

    def user(self, headers: Mapping[str, str]) -> User | None:
        """Return the user; None if the token is missing or not valid."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        if hmac.compare_digest(token.strip().encode(), self._admin):
            return ADMIN
        if self._tokens is None:
            return None
        try:
            return self._tokens.check(token.strip()).user
        except InvalidToken:
            return None

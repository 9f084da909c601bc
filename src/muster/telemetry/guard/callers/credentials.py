"""Reads tokens from requests. They are never logged, and never part of an error."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.telemetry.guard.callers.caller import NotIdentified
from muster.telemetry.guard.callers.config import TokenCaller


@dataclass(frozen=True, slots=True)
class Token:
    """A token in a request.

    Attributes:
        text: the token.
        user: the user name of basic authentication; None for a bearer token.
    """

    text: str = field(repr=False)
    user: str | None = None


def token_of(values: Sequence[str]) -> Token | None:
    """Return the token in the Authorization headers, None without one.

    Basic authentication is accepted since many clients know nothing else: the password is the token, and the user name
    is the caller's.

    Raises:
        NotIdentified: there are several, or they are of another kind.
    """
    if not values:
        return None
    scheme, _, rest = values[0].strip().partition(" ")
    text = rest.strip()
    if len(values) > 1 or not text:
        raise rejected()
    if scheme.lower() == "bearer":
        return Token(text)
    if scheme.lower() != "basic":
        raise rejected()
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise rejected() from None
    if not colon or not password:
        raise rejected()
    return Token(password, user)


def rejected() -> NotIdentified:
    """Return the refusal of credentials. It does not say what is wrong with them."""
    return NotIdentified(401, "bad_credentials", "the credentials are not valid; check the token or the certificate")


class StaticTokens:
    """Tokens whose digests are in the configuration.

    A lookup by digest needs no comparison in constant time: a caller cannot choose the digest of a guess.
    """

    def __init__(self, callers: Sequence[TokenCaller]) -> None:
        self._callers = {caller.sha256: caller for caller in callers}

    def __bool__(self) -> bool:
        return bool(self._callers)

    def caller(self, token: Token) -> TokenCaller | None:
        """Return the caller of a token, None if the token is not known."""
        digest = hashlib.sha256(token.text.encode("utf-8", "surrogateescape")).hexdigest()
        caller = self._callers.get(digest)
        if caller is None or token.user not in (None, caller.name):
            return None
        return caller

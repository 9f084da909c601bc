"""Reads the credentials of a request. They are never logged, and never part of an error."""

from __future__ import annotations

from typing import Final

from muster.readcache.request import Refusal, Request

_WEBSOCKET_TOKEN: Final = "base64url.bearer.authorization.k8s.io."
# Unicode's White_Space, which Go's strings.TrimSpace removes; str.strip() would also remove U+001C to U+001F.
_SPACE: Final = "\t\n\v\f\r \x85\xa0"


def unauthorized() -> Refusal:
    """The refusal of credentials that are not valid. Like kube-apiserver's, it does not say what is wrong."""
    return Refusal(401, "Unauthorized", "Unauthorized")


def bearer_token(request: Request) -> str:
    """Return the bearer token, "" without one.

    Follows k8s.io/apiserver, pkg/authentication/request/bearertoken.

    Raises:
        Refusal: the request has a kind of credentials that the cache does not take.
    """
    if any(_WEBSOCKET_TOKEN in value for value in request.headers_of("sec-websocket-protocol")):
        raise unauthorized()
    header = request.header("authorization").strip(_SPACE)
    if not header:
        return ""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "bearer":
        raise unauthorized()
    return rest.partition(" ")[0]

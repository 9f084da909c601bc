"""Reads the headers of impersonation, and the rights that they need.

Source: k8s.io/apiserver, pkg/endpoints/filters/impersonation. These are the checks of the verb `impersonate`. The API
server knows more ways to allow an impersonation (KEP-5284), so a request that fails here is forwarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from muster.kube.objects.auth import UserInfo
from muster.readcache.access.attributes import Attributes
from muster.readcache.access.user import ANONYMOUS, UNAUTHENTICATED, with_authenticated_group
from muster.readcache.request import Forward, Request

_USER: Final = "impersonate-user"
_UID: Final = "impersonate-uid"
_GROUP: Final = "impersonate-group"
_EXTRA: Final = "impersonate-extra-"
_VERB: Final = "impersonate"
_AUTHENTICATION: Final = "authentication.k8s.io"
_ACCOUNT: Final = re.compile(
    r"system:serviceaccount:(?P<namespace>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?):"
    r"(?P<name>(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*)"
)
_ESCAPES: Final = re.compile(r"(?:[^%]|%[0-9a-f]{2})*")


class Impersonation(NamedTuple):
    """A wish to act as another user.

    Attributes:
        user: the other user.
        checks: what the caller must be allowed to do.
    """

    user: UserInfo
    checks: tuple[Attributes, ...]


def impersonation_of(request: Request) -> Impersonation | Forward | None:
    """Return the impersonation that a request asks for, None if it asks for none.

    Returns Forward if kube-apiserver refuses the headers, or reads them as a text that is not ASCII.
    """
    headers = [(key, value) for key, value in request.headers if key.startswith("impersonate-")]
    if not headers:
        return None
    if any(not value.isascii() for _, value in headers):
        return Forward("impersonation")
    name, uid, groups = request.header(_USER), request.header(_UID), tuple(request.headers_of(_GROUP))
    extra: dict[str, tuple[str, ...]] = {}
    for key, value in headers:
        if key.startswith(_EXTRA):
            unescaped = _unescaped(key[len(_EXTRA) :])
            if unescaped is None:
                return Forward("impersonation")
            extra[unescaped] = (*extra.get(unescaped, ()), value)
    if not name:
        return Forward("impersonation") if uid or groups or extra else None
    checks = tuple(_checks(name, uid, groups, extra))
    account = _ACCOUNT.fullmatch(name)
    if account is not None and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account['namespace']}")
    user = UserInfo(username=name, uid=uid, groups=groups, extra=extra)
    return Impersonation(_in_fixed_groups(user), checks)


def _checks(name: str, uid: str, groups: tuple[str, ...], extra: dict[str, tuple[str, ...]]) -> Iterator[Attributes]:
    account = _ACCOUNT.fullmatch(name)
    if account is not None:
        yield Attributes(_VERB, "", "v1", "serviceaccounts", "", account["namespace"], account["name"])
    else:
        yield Attributes(_VERB, "", "v1", "users", name=name)
    if uid:
        yield Attributes(_VERB, _AUTHENTICATION, "v1", "uids", name=uid)
    for group in groups:
        yield Attributes(_VERB, "", "v1", "groups", name=group)
    for key, values in extra.items():
        for value in values:
            yield Attributes(_VERB, _AUTHENTICATION, "v1", "userextras", key, name=value)


def _in_fixed_groups(user: UserInfo) -> UserInfo:
    """Add system:unauthenticated to the anonymous user, and system:authenticated to every other one."""
    if user.username != ANONYMOUS:
        return with_authenticated_group(user)
    if UNAUTHENTICATED in user.groups:
        return user
    return UserInfo(username=user.username, uid=user.uid, groups=(*user.groups, UNAUTHENTICATED), extra=user.extra)


def _unescaped(key: str) -> str | None:
    """Return the key of an extra; None if it is not ASCII. A key with invalid escapes is taken as it is."""
    lower = key.lower()
    if not _ESCAPES.fullmatch(lower):
        return lower
    try:
        return unquote_to_bytes(lower).decode("ascii")
    except UnicodeDecodeError:
        return None

"""Authenticated users, and the groups that Kubernetes defines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster.kube.objects.auth import UserInfo

ANONYMOUS: Final = "system:anonymous"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"

_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, eq=False)
class User:
    """An authenticated user.

    Attributes:
        info: as an access review describes it.
        key: equal for equal users; a digest, so that caches do not hold the description.
    """

    info: UserInfo
    key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        info = self.info
        parts = (info.username, info.uid, info.groups, sorted(info.extra.items()))
        object.__setattr__(self, "key", hashlib.blake2b(_encoder.encode(parts), digest_size=16).digest())

    @property
    def name(self) -> str:
        """The user's name, such as `system:node:NAME`."""
        return self.info.username


def with_authenticated_group(info: UserInfo) -> UserInfo:
    """Add the group of all authenticated users, as k8s.io/apiserver's AuthenticatedGroupAdder does."""
    if info.username == ANONYMOUS or AUTHENTICATED in info.groups or UNAUTHENTICATED in info.groups:
        return info
    return msgspec.structs.replace(info, groups=(*info.groups, AUTHENTICATED))

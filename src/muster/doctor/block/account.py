"""Accounts that can be blocked: service accounts and users, and which ones are protected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final, Self

import msgspec

from muster.kube.objects.flowcontrol import FlowSubject, NamedSubject, ServiceAccountSubject

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PREFIX: Final = "system:serviceaccount:"
_SUBDOMAIN_MAX: Final = 253
_USER_MAX: Final = 1024


class AccountError(ValueError):
    """The account's name cannot be one. The message says what to write."""


class Account(msgspec.Struct, frozen=True):
    """A service account, or a user if `namespace` is "".

    Attributes:
        namespace: namespace of the service account.
        name: its name, or the user's.
    """

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, default_namespace: str) -> Self:
        """Read `NAMESPACE/NAME` or `NAME` of a service account. Raises AccountError."""
        namespace, _, name = text.rpartition("/")
        account = cls(namespace or default_namespace, name)
        if not _NAMESPACE.fullmatch(account.namespace) or not _is_name(account.name):
            raise AccountError(f"{text!r} is not a service account: write NAMESPACE/NAME")
        return account

    @classmethod
    def of_user(cls, user: str) -> Self:
        """Return the account of a user name; a service account has one too (`system:serviceaccount:NS:NAME`)."""
        if not user.strip() or user == "*" or len(user) > _USER_MAX or not user.isprintable():
            raise AccountError(f"{user!r} is not the name of one user: write the name that the API server knows")
        if user.startswith(_PREFIX):
            namespace, _, name = user.removeprefix(_PREFIX).partition(":")
            return cls.parse(f"{namespace}/{name}", namespace)
        return cls("", user)

    @property
    def user(self) -> str:
        """The API server's name of the account."""
        return f"{_PREFIX}{self.namespace}:{self.name}" if self.namespace else self.name

    @property
    def shown(self) -> str:
        """The account in messages."""
        return f"service account {self.namespace}/{self.name}" if self.namespace else f"user {self.name}"

    @property
    def groups(self) -> frozenset[str]:
        """Groups that it certainly has. A user may have more, from its certificate or token."""
        if not self.namespace:
            return frozenset({"system:authenticated"})
        own = f"system:serviceaccounts:{self.namespace}"
        return frozenset({"system:authenticated", "system:serviceaccounts", own})

    @property
    def object_name(self) -> str:
        """The name of its FlowSchema. No other account has the same one, as a namespace has no dots."""
        plain = f"muster-block.sa.{self.namespace}.{self.name}"
        if self.namespace and len(plain) <= _SUBDOMAIN_MAX:
            return plain
        return f"muster-block.user.{hashlib.sha256(self.user.encode()).hexdigest()[:32]}"

    @property
    def subject(self) -> FlowSubject:
        """The account in a FlowSchema."""
        if self.namespace:
            account = ServiceAccountSubject(namespace=self.namespace, name=self.name)
            return FlowSubject(kind="ServiceAccount", service_account=account)
        return FlowSubject(kind="User", user=NamedSubject(name=self.name))


def account_of(subject: FlowSubject) -> Account | None:
    """Return the account that a subject names; None for groups and for `*`."""
    if subject.service_account is not None:
        name = subject.service_account.name
        return Account(subject.service_account.namespace, name) if name != "*" else None
    return Account("", subject.user.name) if subject.user is not None and subject.user.name != "*" else None


def why_protected(account: Account, namespaces: Collection[str], caller: str) -> str:
    """Return why a block of this account would harm more than it helps; "" if it is not protected.

    Args:
        account: the account to block.
        namespaces: namespaces of Muster.
        caller: the API server's name of the user who blocks; "" if not known.
    """
    if caller and account.user == caller:
        return "it is the account that you use: you could not remove the block"
    if account.name.startswith("system:node:") and not account.namespace:
        return "it is a node: its pods would be evicted"
    if not account.namespace and account.name.startswith("system:"):
        return "it is a part of Kubernetes"
    if account.namespace == "kube-system":
        return "accounts of kube-system run the cluster, such as its controllers and network"
    if account.namespace in namespaces:
        return "it is an account of Muster, which removes expired blocks"
    return ""


def _is_name(name: str) -> bool:
    return len(name) <= _SUBDOMAIN_MAX and _NAME.fullmatch(name) is not None

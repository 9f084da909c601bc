"""Admits requests: who is the caller, may it act as someone else, and may that user read this?"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from muster.kube.client import Client
from muster.kube.clientcertificates import InvalidCertificate
from muster.readcache.access.attributes import Attributes, attributes_of
from muster.readcache.access.certificates import ClusterAuthorities, cluster_authorities
from muster.readcache.access.counters import AccessCounters
from muster.readcache.access.credentials import bearer_token, unauthorized
from muster.readcache.access.decisions import Decisions
from muster.readcache.access.impersonation import impersonation_of
from muster.readcache.access.reviews import Reviews
from muster.readcache.access.settings import AccessSettings
from muster.readcache.access.texts import forbidden
from muster.readcache.access.tokens import Tokens
from muster.readcache.access.user import User
from muster.readcache.request import Forward, Request, Target


class Admitted(NamedTuple):
    """The request may be answered from the cache, as this user."""

    user: User


class Access:
    """Authenticates and authorizes requests with the decisions of the API server.

    It gives no right that the API server does not give. Where only the API server can know the answer, it returns
    Forward: the request goes there with the caller's own credentials.

    Args:
        client: the API server, with the right to create tokenreviews and subjectaccessreviews.
        settings: ages and limits.
        authorities: whose client certificates are accepted; see `AuthoritiesFollower`.
        clock: seconds; never jumps.
    """

    def __init__(
        self,
        client: Client,
        settings: AccessSettings | None = None,
        authorities: ClusterAuthorities | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings or AccessSettings()
        self._authorities = authorities or cluster_authorities()
        self.counters = AccessCounters()
        reviews = Reviews(client, self._settings, self.counters)
        self._tokens = Tokens(reviews, self._settings, self.counters, clock)
        self._decisions = Decisions(reviews, self._settings, self.counters, clock)

    async def admit(self, target: Target, request: Request) -> Admitted | Forward:
        """Check a request for objects of a cached kind.

        Raises:
            Refusal: the credentials are not valid, the user may not read this, or a review failed.
        """
        attributes = attributes_of(target, request)
        if isinstance(attributes, Forward):
            return attributes
        caller = await self._caller(request)
        if isinstance(caller, Forward):
            return caller
        wish = impersonation_of(request)
        if isinstance(wish, Forward):
            return wish
        if wish is None:
            return await self._admit(caller, attributes)
        if len(wish.checks) > self._settings.impersonation_checks_max:
            return Forward("impersonation")
        for check in wish.checks:
            if not (await self._decisions.decide(caller, check)).allowed:
                return Forward("impersonation")
        user = User(wish.user)
        allowed = (await self._decisions.decide(user, attributes)).allowed
        return Admitted(user) if allowed else Forward("impersonation")

    async def _caller(self, request: Request) -> User | Forward:
        """Return the caller. A valid certificate has precedence over a token, as in kube-apiserver."""
        certified: User | None = None
        rejected = False
        if request.certificate is not None and self._authorities.pem:
            try:
                certified = self._authorities.identify(request.certificate)
            except InvalidCertificate:
                rejected = True
        if certified is not None:
            return certified
        token = bearer_token(request)
        if not token:
            if rejected:
                raise unauthorized()
            return Forward("no credentials")
        user = await self._tokens.user(token, request.peer)
        if user is None:
            raise unauthorized()
        return user

    async def _admit(self, user: User, attributes: Attributes) -> Admitted | Forward:
        decision = await self._decisions.decide(user, attributes)
        if decision.allowed:
            return Admitted(user)
        if decision.failed:
            return Forward("authorizer failed")
        raise forbidden(user.name, attributes, decision.reason)

"""Identifies the caller of a request by its certificate, its token, or a header of a configured peer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from time import time
from typing import Final

import msgspec

from muster.kube.client import Client
from muster.kube.clientcertificates import ClientAuthorities, InvalidCertificate
from muster.kube.clock import steady_time
from muster.kube.errors import ApiError, BadConfig
from muster.kube.objects.auth import UserInfo
from muster.kube.reviewgate import Gate, GateLimits, TooManyInvalidTokens
from muster.kube.tokenreview import TokenReviewer
from muster.telemetry.guard.callers.caller import Caller, NotIdentified, Peer
from muster.telemetry.guard.callers.certificates import matching, names_of
from muster.telemetry.guard.callers.config import ClusterCaller
from muster.telemetry.guard.callers.credentials import StaticTokens, Token, rejected, token_of
from muster.telemetry.guard.callers.peers import Headers, Peers
from muster.telemetry.guard.config import GuardConfig

_REVIEW_S: Final = 10.0
"""Deadline of a review by the API server."""
_REVIEWED_S: Final = 60.0
"""How long a token that was revoked may still be accepted."""
_REMEMBERED: Final = 1024
"""Callers that are remembered, by everything that decides who they are."""


_Facts = tuple[str | Caller | tuple[str, ...] | None, ...]


class Callers:
    """Finds the caller of a request. Create it on the event loop that uses it.

    Credentials that are wrong are refused, also where callers without credentials are allowed. A valid certificate of
    a configured caller has precedence over a token.

    Args:
        config: who is known.
        client: the API server, which reviews tokens; None if `callers.cluster` has no callers.
        authorities_pem: content of `callers.certificates.caFile`.
        wall_clock: seconds since the epoch, for certificates.
        steady_clock: the same without jumps, for tokens: a clock that is set back must not keep a revoked one.
        gate: limits of invalid tokens that the API server reviews.

    Raises:
        BadConfig: see `replace`.

    Attributes:
        authorities: whose client certificates are accepted; `pem` is what the TLS layer must trust.
        refused: how many requests were refused because they were not identified, by reason.
    """

    def __init__(
        self,
        config: GuardConfig,
        client: Client | None = None,
        authorities_pem: bytes = b"",
        wall_clock: Callable[[], float] = time,
        steady_clock: Callable[[], float] = steady_time,
        gate: GateLimits | None = None,
    ) -> None:
        self._client = client
        self._steady_clock = steady_clock
        self._gate = Gate(gate or GateLimits())
        self.authorities = ClientAuthorities(names_of, wall_clock)
        self.refused: Counter[str] = Counter()
        self._audience = ""
        self._reviewer: TokenReviewer[UserInfo] | None = None
        self.replace(config, authorities_pem)

    def replace(self, config: GuardConfig, authorities_pem: bytes = b"") -> None:
        """Use this configuration for the requests that follow.

        Raises:
            BadConfig: the authorities cannot be read, or tokens of the cluster are accepted without a cluster. The
                configuration before stays in use.
        """
        callers = config.callers
        if callers.cluster.callers and self._client is None:
            raise BadConfig("callers.cluster needs an API server; start the guard in a pod, or with --kubeconfig")
        try:
            self.authorities.replace(authorities_pem)
        except ValueError as error:
            raise BadConfig(f"callers.certificates.caFile cannot be read: {error}; write PEM certificates") from None
        if not callers.cluster.callers:
            self._reviewer = None
        elif self._client is not None and (self._reviewer is None or self._audience != callers.cluster.audience):
            self._audience = callers.cluster.audience
            self._reviewer = TokenReviewer(
                self._client,
                self._audience,
                lambda user: user,
                self._steady_clock,
                self._gate,
                max_age_s=_REVIEWED_S,
                opaque_age_s=_REVIEWED_S,
            )
        self._config = config
        self._tokens = StaticTokens(callers.tokens)
        self._peers = Peers(callers.peers)
        self._deciding = (*(each.user_header for each in callers.peers), config.upstream.tenant_header)
        self._remembered: dict[_Facts, Caller] = {}

    async def identify(self, peer: Peer, headers: Headers) -> Caller:
        """Return the caller of a request.

        Raises:
            NotIdentified: it has no valid credentials, names a user or tenant that it may not, or the API server did
                not review its token.
        """
        try:
            return await self.identify_again(peer, headers)
        except NotIdentified as error:
            self.count(error)
            raise

    def count(self, error: NotIdentified) -> None:
        """Count a request that is refused."""
        self.refused[error.reason] += 1

    async def identify_again(self, peer: Peer, headers: Headers) -> Caller:
        """Return the caller of a request that is served already, and count nothing. Raises NotIdentified."""
        known = await self._by_credentials(peer, headers)
        if self._config.upstream.pass_authorization:
            return self._named(peer, known, headers)  # nothing keeps the credentials of callers
        facts = (peer.address, known, *[tuple(headers.getall(name, ())) for name in self._deciding])
        found = self._remembered.get(facts)
        if found is None:
            found = self._named(peer, known, headers)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[facts] = found
        return found

    def _named(self, peer: Peer, known: Caller | None, headers: Headers) -> Caller:
        """Return the caller that the credentials and headers name, from the facts of `identify_again` alone."""
        caller = self._peers.caller(peer.address, known, headers)
        if caller is None:
            anonymous = self._config.callers.anonymous
            if not anonymous:
                raise NotIdentified(401, "no_credentials", "send a token, as `Authorization: Bearer TOKEN`")
            caller = Caller("anonymous", "anonymous", anonymous, "anonymous", self._config.callers.anonymous_tenant)
        return self._with_upstream_headers(caller, headers)

    async def _by_credentials(self, peer: Peer, headers: Headers) -> Caller | None:
        """Return the caller that the credentials prove, None without credentials."""
        unknown = False
        if peer.certificate is not None and self.authorities.pem:
            try:
                names = self.authorities.identify(peer.certificate)
            except InvalidCertificate:
                unknown = True
            else:
                found = matching(names, self._config.callers.certificates.callers)
                if found is not None:
                    return Caller(found.name, "certificate", found.group, found.name, found.tenant)
                unknown = True
        values = headers.getall("Authorization", [])
        if self._passes_unknown_credentials():
            values = []
        token = token_of(values)
        if token is not None:
            return await self._by_token(token, peer.address)
        if unknown:
            raise rejected()
        return None

    async def _by_token(self, token: Token, address: str) -> Caller:
        static = self._tokens.caller(token)
        if static is not None:
            return Caller(static.name, "token", static.group, static.name, static.tenant)
        if self._reviewer is None:
            raise rejected()
        try:
            async with asyncio.timeout(_REVIEW_S):
                user = await self._reviewer.identify(token.text, address)
        except TooManyInvalidTokens as error:
            raise NotIdentified(429, "too_many_bad_tokens", f"the guard got {error}", retry_after_s=1) from None
        except (ApiError, TimeoutError):
            message = "the API server did not review the token; the guard needs the right to create tokenreviews"
            raise NotIdentified(503, "no_review", message, retry_after_s=1) from None
        if user is None:
            raise rejected()
        found = _cluster_caller(user, self._config.callers.cluster.callers)
        if found is None or token.user not in (None, found.name):
            raise NotIdentified(403, "unknown_user", "this user of the cluster is not in callers.cluster.callers")
        return Caller(found.name, "token", found.group, found.name, found.tenant)

    def _passes_unknown_credentials(self) -> bool:
        """Return whether the upstream alone checks tokens: the guard knows none, and passes them on."""
        config = self._config
        return config.upstream.pass_authorization and not self._tokens and self._reviewer is None

    def _with_upstream_headers(self, caller: Caller, headers: Headers) -> Caller:
        """Add what is sent upstream. A request that names a tenant which is not that of its caller is refused."""
        name = self._config.upstream.tenant_header
        wanted = headers.getall(name, [])
        if any(not caller.tenant or value.strip() != caller.tenant for value in wanted):
            message = f"{name} is fixed for each caller by the guard's configuration; remove this header"
            raise NotIdentified(403, "other_tenant", message)
        sent = [(name, caller.tenant)] if caller.tenant else []
        if self._config.upstream.pass_authorization:
            values = headers.getall("Authorization", [])
            if len(values) > 1:
                raise rejected()
            sent += [("Authorization", value) for value in values]
        return msgspec.structs.replace(caller, headers=tuple(sent), credentials_key=_digest(sent))


def _cluster_caller(user: UserInfo, callers: tuple[ClusterCaller, ...]) -> ClusterCaller | None:
    for caller in callers:
        if user.username in caller.users or not set(caller.groups).isdisjoint(user.groups):
            return caller
    return None


def _digest(headers: list[tuple[str, str]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for pair in headers:
        for text in pair:
            data = text.encode("utf-8", "surrogateescape")
            digest.update(len(data).to_bytes(4, "big") + data)
    return digest.digest()

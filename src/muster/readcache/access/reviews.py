"""Asks the API server whose a token is, and what a user may do."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeVar

from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Forbidden, TooManyRequests, Unauthorized
from muster.kube.objects.auth import (
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
    TokenReview,
    TokenReviewSpec,
    UserInfo,
)
from muster.readcache.access.attributes import Attributes
from muster.readcache.access.counters import AccessCounters
from muster.readcache.access.settings import AccessSettings
from muster.readcache.access.texts import unavailable
from muster.readcache.access.user import ANONYMOUS
from muster.readcache.request import Refusal

log = logging.getLogger(__name__)

TOKEN: Final = "token"
ACCESS: Final = "access"
_ALLOWED, _DENIED, _FAILED = "allowed", "denied", "failed"

R = TypeVar("R", TokenReview, SubjectAccessReview)


class Reviews:
    """Creates reviews with the credentials of the cache. Its rights to do so are the only ones that it needs here.

    Args:
        client: the API server.
        settings: audiences, deadline and limit of reviews under way.
        counters: count the reviews.
    """

    def __init__(self, client: Client, settings: AccessSettings, counters: AccessCounters) -> None:
        self._client = client
        self._settings = settings
        self._counters = counters
        self._places = asyncio.Semaphore(settings.reviews_max)
        self._problem = ""

    async def token(self, token: str) -> UserInfo | None:
        """Return the user of a token, None if the token is not valid here.

        Raises:
            Refusal: the API server did not answer.
        """
        audiences = self._settings.audiences
        spec = TokenReviewSpec(token=token, audiences=audiences)
        status = (await self._create(TokenReview(spec=spec), TOKEN)).status
        valid = status.authenticated and status.user.username not in ("", ANONYMOUS)
        if audiences and not set(audiences) & set(status.audiences):
            valid = False  # an authenticator that ignores audiences leaves them out
        self._counters.reviews[TOKEN, _ALLOWED if valid else _DENIED] += 1
        return status.user if valid else None

    async def access(self, user: UserInfo, attributes: Attributes) -> SubjectAccessReviewStatus:
        """Return what the authorizers of the API server decide.

        Raises:
            Refusal: the API server did not answer.
        """
        spec = SubjectAccessReviewSpec(
            resource_attributes=attributes.reviewed(),
            user=user.username,
            groups=user.groups,
            extra=user.extra,
            uid=user.uid,
        )
        status = (await self._create(SubjectAccessReview(spec=spec), ACCESS)).status
        self._counters.reviews[ACCESS, _ALLOWED if status.allowed else _DENIED] += 1
        return status

    async def _create(self, review: R, what_for: str) -> R:
        what = review.RESOURCE.plural
        try:
            async with asyncio.timeout(self._settings.review_timeout_s), self._places:
                answer = await self._client.create(review, retry_lost=True)
        except (ApiError, ConfigError, TimeoutError) as error:
            self._counters.reviews[what_for, _FAILED] += 1
            raise self._refusal(what, error) from None  # the request, which holds a token, stays out of tracebacks
        self._problem = ""
        return answer

    def _refusal(self, what: str, error: Exception) -> Refusal:
        problem = f"{what}: {_cause(error)}"
        if problem != self._problem:
            log.warning("the API server does not answer reviews: %s", problem)
            self._problem = problem
        if isinstance(error, TooManyRequests):
            wait_s = max(1, round(error.retry_after_s or 1))
            return Refusal(429, "TooManyRequests", "the API server has too many requests", retry_after_s=wait_s)
        if isinstance(error, Forbidden | Unauthorized):
            return unavailable(f"its service account needs the right to create {what}")
        return unavailable("the API server does not answer")


def _cause(error: Exception) -> str:
    """Describe a failure without the text of the answer: a proxy in between may repeat the request in it."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, ApiError):
        return f"{error.reason or type(error).__name__} (HTTP {error.status})"
    return "no answer in time"

"""Finds out which jobs were deleted while no replica led, so that their supervisors exit.

A new leader has no directive for such a job. Its cache is not proof, because it may lag behind a new job. So the API
server decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ClassVar, Final, TypeVar

import msgspec

from muster.api.training_job import TrainingJob
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, NotFound
from muster.kube.objects.meta import KubeObject, Resource

T = TypeVar("T")

log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0
_AGAIN_S: Final = 2.0
"""Least time between two requests about one job."""
_AT_ONCE: Final = 8
"""Most open requests. The client has few connections, and a new leader needs them for its writes."""
_JOBS_MAX: Final = 4096


class _Existing(KubeObject, kw_only=True):
    """A job with its metadata only: another version of Muster may have written fields that this one cannot read."""

    RESOURCE: ClassVar[Resource] = TrainingJob.RESOURCE


class GoneJobs:
    """Jobs that do not exist any more, by UID.

    Args:
        client: the API server.
        clock: seconds since the epoch.
    """

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._gone: dict[str, None] = {}  # oldest first; a UID never comes back
        self._asked_at: dict[str, float] = {}
        self._open = 0

    async def is_gone(self, key: str, uid: str) -> bool:
        """Return whether the API server has shown that a job does not exist.

        Without an answer, if it was asked a moment ago, and while too many requests are open, return False.

        Args:
            key: namespace/name of the job.
            uid: of the job. Another job may have its name now.
        """
        if uid in self._gone:
            return True
        now = self._clock()
        if self._open >= _AT_ONCE or now - self._asked_at.get(uid, float("-inf")) < _AGAIN_S:
            return False
        _remember(self._asked_at, uid, now)
        self._open += 1
        try:
            absent = await self._is_absent(key, uid)
        finally:
            self._open -= 1
        if not absent:
            return False
        self._asked_at.pop(uid, None)
        _remember(self._gone, uid, None)
        log.info("job %s was deleted while no replica led, so its supervisors exit", key)
        return True

    async def _is_absent(self, key: str, uid: str) -> bool:
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = await self._client.get(_Existing, name, namespace=namespace)
        except NotFound as error:
            return error.reason == "NotFound"  # otherwise the page of a proxy
        except (ApiError, ConfigError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("the API server did not answer whether job %s exists: %s", key, error)
            return False
        return found.key == key and found.uid not in ("", uid)  # otherwise it is not the API server's answer


def _remember(kept: dict[str, T], uid: str, value: T) -> None:
    kept.pop(uid, None)
    kept[uid] = value
    if len(kept) > _JOBS_MAX:
        del kept[next(iter(kept))]

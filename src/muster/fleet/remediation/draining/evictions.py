"""Evictions that are under way, and the API server's answers to refused ones.

The API server counts each eviction in a write to the disruption budget. If that write conflicts with another eviction
or with the budget's controller, it waits half a second (Kubernetes: `EvictionsRetry`). So only a few pods of a gang are
evicted at once: one by one would be slow, and all at once would mostly conflict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Self

from prometheus_client import Counter

from muster.fleet.remediation.snapshot import PodView
from muster.kube.client import Client
from muster.kube.errors import ApiError, ConfigError, Conflict, NotFound, ServerTimeout, TooManyRequests, Unavailable

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 15.0
"""Kubernetes itself tries for 10 s."""
AT_ONCE = 64
"""Requests in flight; most of them wait."""
OF_A_GANG = 4
"""The most evictions in flight for pods of one request."""
REFUSED_S = 5.0
"""Delay before a refused eviction is retried, unless the API server names another delay."""
REFUSED_MAX_S = 30.0
_UNDER_WAY = float("inf")
_WORDS_MAX = 512


class Answer(NamedTuple):
    """The state of a pod's eviction.

    Attributes:
        words: why it was refused; "" if it was not.
        retry_at: when to retry at the earliest, in seconds since the epoch.
        hopeless: it will be refused until a user changes something.
        granted: the pod is being deleted, even if the pod was last seen without that.
    """

    words: str
    retry_at: float
    hopeless: bool = False
    granted: bool = False


class Evictions:
    """Evicts pods in the background; leaving `async with` cancels the evictions that are under way.

    Args:
        client: the API server.
        clock: seconds since the epoch.
        changed: called when all pods of one request have an answer.
        outcomes: counts outcomes, with the labels `Eviction` and the outcome.
    """

    def __init__(
        self, client: Client, clock: Callable[[], float], *, changed: Callable[[], None], outcomes: Counter
    ) -> None:
        self._client = client
        self._clock = clock
        self._changed = changed
        self._outcomes = outcomes
        self._pace = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[str, Answer] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, pods: Sequence[PodView]) -> None:
        """Evict these pods, a few at a time. Pods whose eviction is under way are skipped."""
        fresh = [pod for pod in pods if self.answer(pod.uid).retry_at < _UNDER_WAY]
        if not fresh:
            return
        self._answers |= {pod.uid: Answer("", _UNDER_WAY) for pod in fresh}
        task = asyncio.create_task(self._all(fresh))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer(self, uid: str) -> Answer:
        """Return the state of a pod's eviction."""
        return self._answers.get(uid, Answer("", 0.0))

    def keep(self, uids: Collection[str]) -> None:
        """Forget pods that are not among these, unless their eviction is under way."""
        gone = self._answers.keys() - uids
        for uid in gone:
            if self._answers[uid].retry_at < _UNDER_WAY:
                del self._answers[uid]

    async def _all(self, pods: Sequence[PodView]) -> None:
        left = iter(pods)

        async def evict_on() -> None:
            for pod in left:
                async with self._pace:
                    outcome, self._answers[pod.uid] = await self._evict(pod)
                self._outcomes.labels("Eviction", outcome).inc()

        await asyncio.gather(*(evict_on() for _ in range(min(OF_A_GANG, len(pods)))))
        self._changed()

    async def _evict(self, pod: PodView) -> tuple[str, Answer]:
        """Evict one pod. Returns the outcome for the metric, and the state to remember."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._client.evict(pod.name, namespace=pod.namespace, uid=pod.uid)
        except (NotFound, Conflict):
            return "gone", self._again(0.0)
        except (Unavailable, ServerTimeout, TimeoutError, ConfigError) as error:
            log.warning("evicting %s/%s: %s", pod.namespace, pod.name, str(error) or "no answer in time")
            return "unanswered", self._again(0.0)
        except TooManyRequests as error:
            return "refused", self._again(max(REFUSED_S, error.retry_after_s or 0.0), error.in_full)
        except ApiError as error:
            # Kubernetes' answer if several budgets cover one pod. It repeats until an operator deletes one of them.
            hopeless = error.status == 500 and "PodDisruptionBudget" in error.message
            log.warning("evicting %s/%s: %s", pod.namespace, pod.name, error)
            return "impossible" if hopeless else "refused", self._again(REFUSED_MAX_S, error.in_full, hopeless)
        again = self._again(REFUSED_MAX_S)  # the watch reports the pod's end long before that
        return "evicted", again._replace(granted=True)

    def _again(self, wait_s: float, words: str = "", hopeless: bool = False) -> Answer:
        return Answer(words[:_WORDS_MAX], self._clock() + min(REFUSED_MAX_S, wait_s), hopeless)

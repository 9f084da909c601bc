"""Evictions that are under way, and what the API server said of those it refused.

The API server counts each against the disruption budget that covers it in a write of its own; one that meets another
there, or the controller that keeps the budget's status, waits half a second (Kubernetes: `EvictionsRetry`). So a few of
a gang's pods go side by side: one after another they would mostly wait, all at once they would mostly meet.
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
"""Requests under way; most of them wait."""
OF_A_GANG = 4
"""Of those, for pods that were asked for together."""
REFUSED_S = 5.0
"""A refused eviction is tried again after this, or when the API server says."""
REFUSED_MAX_S = 30.0
_UNDER_WAY = float("inf")
_WORDS_MAX = 512


class Answer(NamedTuple):
    """What is known of a pod's eviction.

    Attributes:
        words: why it was refused; "" where it was not.
        retry_at: not to be asked for again before, in seconds since the epoch.
        hopeless: it is refused until somebody changes something.
        granted: the pod is being deleted, whatever was seen of it last.
    """

    words: str
    retry_at: float
    hopeless: bool = False
    granted: bool = False


class Evictions:
    """Evicts; `async with` ends what is still under way.

    Args:
        client: the API server.
        clock: seconds since the epoch.
        changed: called whenever all that was asked for together has been answered.
        outcomes: counts them, by `Eviction` and a word.
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
        """Evict these pods, a few at a time; those that are under way already are left out."""
        fresh = [pod for pod in pods if self.answer(pod.uid).retry_at < _UNDER_WAY]
        if not fresh:
            return
        self._answers |= {pod.uid: Answer("", _UNDER_WAY) for pod in fresh}
        task = asyncio.create_task(self._all(fresh))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer(self, uid: str) -> Answer:
        """What is known of a pod's eviction."""
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
        """Return what came of it in a word, and what is to be known of it."""
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
            # Kubernetes' words where several cover one pod; it answers so each time, until somebody takes one away.
            hopeless = error.status == 500 and "PodDisruptionBudget" in error.message
            log.warning("evicting %s/%s: %s", pod.namespace, pod.name, error)
            return "impossible" if hopeless else "refused", self._again(REFUSED_MAX_S, error.in_full, hopeless)
        again = self._again(REFUSED_MAX_S)  # long before that it is seen to end
        return "evicted", again._replace(granted=True)

    def _again(self, wait_s: float, words: str = "", hopeless: bool = False) -> Answer:
        return Answer(words[:_WORDS_MAX], self._clock() + min(REFUSED_MAX_S, wait_s), hopeless)

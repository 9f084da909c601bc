"""A bounded cache of answers, with one question under way for each key."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Keeps answers up to an age, counted from the moment in which the question was asked.

    Callers with an equal key share one question. If it fails, all of them get the error, and nothing is kept.

    Args:
        max_age_s: returns the greatest age of an answer, in seconds; 0: it is not kept.
        entries_max: limit of answers. The answer that was used least recently is dropped first.
        clock: seconds; never jumps.
    """

    def __init__(self, max_age_s: Callable[[V], float], entries_max: int, clock: Callable[[], float]) -> None:
        self._max_age_s = max_age_s
        self._entries_max = entries_max
        self._clock = clock
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: K) -> V | None:
        """Return the answer that is young enough, None without one."""
        entry = self._answers.get(key)
        if entry is None:
            return None
        if self._clock() >= entry[0]:
            del self._answers[key]
            return None
        self._answers.move_to_end(key)
        return entry[1]

    async def ask(self, key: K, question: Callable[[], Awaitable[V]], *, shared: bool = True) -> V:
        """Ask the question, or wait for the same question of another caller.

        Args:
            key: identifies the question.
            question: gets the answer.
            shared: whether the answer to a question that was asked earlier will do.

        Raises:
            Exception: what the question raised.
        """
        task = self._asking.get(key) if shared else None
        if task is None:
            task = asyncio.ensure_future(self._answer(key, question))
            if shared:
                self._asking[key] = task
            task.add_done_callback(functools.partial(self._answered, key))
        return await asyncio.shield(task)

    def _answered(self, key: K, task: asyncio.Task[V]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]
        if not task.cancelled():
            task.exception()  # every caller may have given up: an error that is not read would be logged

    async def _answer(self, key: K, question: Callable[[], Awaitable[V]]) -> V:
        asked_at = self._clock()
        answer = await question()
        expires_at = asked_at + self._max_age_s(answer)
        if expires_at > self._clock():
            self._answers[key] = (expires_at, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > self._entries_max:
                self._answers.popitem(last=False)
        else:
            self._answers.pop(key, None)
        return answer

"""Runs a function for many items in a few threads."""

from __future__ import annotations

import threading
from typing import Callable, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
WORKERS = 4


def each(function: Callable[[Item], Result], items: Sequence[Item], workers: int = WORKERS) -> list[Result]:
    """Apply the function to all items, and return the results in order. Raises the first error.

    The caller's thread works too. Python refuses new threads while it exits, and then this thread does all the work.
    """
    results: list[Result | None] = [None] * len(items)
    errors: list[BaseException] = []
    indices = iter(range(len(items)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(indices, None)
            if index is None or errors:
                return
            try:
                results[index] = function(items[index])
            except BaseException as error:
                errors.append(error)

    helpers = []
    for _ in range(min(workers, len(items)) - 1):
        helper = threading.Thread(target=work, name="muster-shards", daemon=True)
        try:
            helper.start()
        except RuntimeError:
            break
        helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return results  # type: ignore[return-value]

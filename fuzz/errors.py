"""Invariant: no controller raises an exception that it does not expect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuzz.checks import Violated

UNEXPECTED = "no controller raises an exception that it does not expect"


class _Watch(logging.Handler):
    """Reports logged exceptions. Controllers log an exception with its traceback only if they do not expect it."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        super().__init__(logging.WARNING)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        """Report the exception of a log record, if it has one."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._fail(Violated(f"{UNEXPECTED}: {type(error).__name__}: {error} ({record.name})"))


@contextmanager
def no_unexpected_errors(fail: Callable[[BaseException], None]) -> Iterator[None]:
    """In this context, log nothing below WARNING, and call `fail` for each logged exception.

    A retry would hide such an exception: the run would fail later for another reason, or not at all.
    """
    root, watch = logging.getLogger(), _Watch(fail)
    quiet = logging.root.manager.disable
    logging.disable(logging.INFO)
    handlers, root.handlers = root.handlers, [watch]
    try:
        yield
    finally:
        root.handlers = handlers
        logging.disable(quiet)

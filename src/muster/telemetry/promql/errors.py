"""The error of text that is not PromQL."""

from __future__ import annotations


class BadQuery(ValueError):
    """The expression, selector or duration cannot be parsed. The message says why."""

"""Whether a simulation caught a mutant by an invariant that the mutant breaks."""

from __future__ import annotations

from fuzz.errors import UNEXPECTED
from fuzz.run import BROKEN, CRASHED

_ERRORS = (BROKEN, CRASHED, UNEXPECTED)


def is_caught(violation: str) -> bool:
    """Return whether an invariant did not hold. A mutant that only raises an exception fails the test.

    Such a mutant no longer fits the code that it replaces, and does not show that a checker works.
    """
    assert not violation.startswith(_ERRORS), f"the mutant itself fails: {violation}"
    return bool(violation)

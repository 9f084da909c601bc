"""Users: whose usage counts in the order `fair`."""

from __future__ import annotations

User = tuple[str, str]
"""("user", name of the submitter) or ("namespace", name)."""


def users_of(namespace: str, submitter: str) -> tuple[User, ...]:
    """Return whose usage a gang counts as. The first is the user by whom the queue is ordered.

    A gang also counts for its namespace. So a job without a submitter never counts as less than the named jobs beside
    it, and leaving the submitter out has no advantage.
    """
    by_namespace: User = ("namespace", namespace)
    return (("user", submitter), by_namespace) if submitter else (by_namespace,)

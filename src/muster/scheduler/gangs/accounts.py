"""Accounts: to whom the usage of gangs is charged, for the order `fair`."""

from __future__ import annotations

Account = tuple[str, str]
"""("user", name of the submitter) or ("namespace", name)."""


def accounts_of(namespace: str, submitter: str) -> tuple[Account, ...]:
    """Return the accounts to which a gang is charged. The first is its user, by whom the queue is ordered.

    Each gang is also charged to its namespace, which is the user of jobs without a submitter. So such a job never has
    less usage than the named jobs beside it, and leaving the submitter out has no advantage.
    """
    by_namespace: Account = ("namespace", namespace)
    return (("user", submitter), by_namespace) if submitter else (by_namespace,)

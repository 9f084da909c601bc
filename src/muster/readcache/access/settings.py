"""Settings of authentication and authorization."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.kube.reviewgate import GateLimits


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """How long decisions are kept, and how much may be asked.

    Attributes:
        audiences: a token must have one of these audiences; empty: one of the API server's own.
        decision_max_age_s: greatest age of a decision in seconds; 0: every request is reviewed.
        rejection_max_age_s: greatest age of the answer that a token is not valid. It is short, since a new token may
            reach the cache before the API server knows the object to which it is bound.
        review_timeout_s: deadline of one review.
        entries_max: limit of tokens, and of decisions, that are kept.
        gate: limits of invalid tokens.
        reviews_max: limit of reviews under way.
        impersonation_checks_max: an impersonation that needs more reviews is forwarded.
    """

    audiences: tuple[str, ...] = ()
    decision_max_age_s: float = 10.0
    rejection_max_age_s: float = 1.0
    review_timeout_s: float = 10.0
    entries_max: int = 50_000
    gate: GateLimits = field(default_factory=GateLimits)
    reviews_max: int = 256
    impersonation_checks_max: int = 32

"""Operations whose answers must be the same on the embedded and the real API server."""

from __future__ import annotations

from tests.scenarios.apiserver import (
    cases_cluster,
    cases_custom,
    cases_eviction,
    cases_objects,
    cases_pods,
    cases_reading,
    cases_rules,
)

CASES = [
    *cases_objects.CASES,
    *cases_pods.CASES,
    *cases_eviction.CASES,
    *cases_cluster.CASES,
    *cases_custom.CASES,
    *cases_reading.CASES,
    *cases_rules.CASES,
]

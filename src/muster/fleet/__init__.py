"""The life of nodes: joining, tests before use, health, remediation, scaling and balloons."""

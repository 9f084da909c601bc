"""Evidence against nodes: findings, failed tests, deaths, and faults that many nodes share."""

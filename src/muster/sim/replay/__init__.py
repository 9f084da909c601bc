"""Weeks of a cluster in seconds: a trace, or a model of one, through the scheduler's own decide, in virtual time."""

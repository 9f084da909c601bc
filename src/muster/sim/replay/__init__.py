"""Replays weeks of a cluster in seconds: jobs of a trace or a model, with the real scheduler, in virtual time."""

"""Replay advisor: predicts how long Prometheus replays its log, how much memory that takes, and what helps."""

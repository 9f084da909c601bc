"""Queues of waiting gangs, reservations for the head, and backfill."""

"""The ladder: which rung a session is on, and how its status is written and read."""

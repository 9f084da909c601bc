"""The ladder of remediation: its rungs, the next step of a session, and how a session is written and read."""

"""`muster teams` and `muster capacity`."""

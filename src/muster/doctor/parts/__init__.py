"""Evidence that metrics do not have: each module reads one part of it with a few limited requests."""

"""`muster health`: findings, and the texts of the policy."""

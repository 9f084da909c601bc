"""Seeded runs of the real controllers in a simulated cluster where things go wrong, with checkers on every state."""

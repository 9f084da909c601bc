"""Figures, always with the peer in the same run."""

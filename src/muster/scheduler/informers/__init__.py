"""Informers of the kinds that the scheduler reads besides pods and nodes."""

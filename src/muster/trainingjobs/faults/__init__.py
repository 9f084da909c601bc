"""Attributes faults: evidence, the fault table, and the effect of a fault on a job."""

"""Measures the effect of a join of many nodes on the API server, all at once and at Muster's pace."""

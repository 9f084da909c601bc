"""Nodes over their life: joins, balloons, scaling."""

"""Balloons: low-priority pods that keep nodes from looking idle and leave at once for real work."""

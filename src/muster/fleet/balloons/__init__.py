"""Balloons: low-priority pods that keep nodes from looking idle and are preempted at once by real work."""

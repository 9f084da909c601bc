"""Nodes: classes, free room, topology domains, pools and trust."""

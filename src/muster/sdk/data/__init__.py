"""Data for training programs: shards and checkpoints in object stores. Standard library only, Python 3.8+.

Access to object stores uses the package `obstore` (extra `muster[data]`), which is imported on first use.
"""

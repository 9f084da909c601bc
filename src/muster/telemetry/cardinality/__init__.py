"""Cardinality: which metrics, labels and targets grow with nodes or pods, and their cost when the cluster grows."""

"""Kubernetes objects as typed structs: the fields that Muster reads or writes, quantities, selectors and taints."""

"""Kubernetes objects as typed structs with the fields that Muster uses; quantities, selectors and taints."""

"""Kubernetes as Muster uses it: typed objects, quantities, selectors, a client, informers, a work queue, leases."""

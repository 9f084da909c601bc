"""`muster etcd`: settings for etcd at a planned size."""

"""Measures the data path against a local S3 server: streaming, the node cache, checkpoints, each beside its peers."""

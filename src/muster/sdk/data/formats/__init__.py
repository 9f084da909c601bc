"""Formats of shards: tar files in the layout of WebDataset, plain files, and the interface for others."""

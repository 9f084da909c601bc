"""The data path of a node: the cache of object blocks, and its peers."""

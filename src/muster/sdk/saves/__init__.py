"""The checkpoint contract: shards, a manifest with checksums, confirmation by the controller, and retention."""

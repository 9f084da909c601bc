"""Reads the folder of a Prometheus database: segments, checkpoint, chunks of the head, snapshot (tsdb/docs/format)."""

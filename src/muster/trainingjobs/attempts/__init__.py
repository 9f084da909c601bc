"""The life of an attempt: its pods, start, record, checkpoint and end, and the start of the next attempt."""

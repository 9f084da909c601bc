"""The node agent: checks its own node and writes the findings into the node's NodeHealth. Docs: docs/health.md."""

"""The node agent: looks at its own node, and writes what it saw into the node's NodeHealth. Docs: docs/health.md."""

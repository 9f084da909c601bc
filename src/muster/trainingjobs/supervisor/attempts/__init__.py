"""An attempt on this node: checks, checkpoints, the launcher, and leftover shared memory."""

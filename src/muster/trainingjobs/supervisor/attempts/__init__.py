"""An attempt on this node: its checks, checkpoints and launcher, and what it leaves behind."""

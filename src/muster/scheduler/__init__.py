"""Gang scheduling: which pods belong together, where each goes, and why something waits."""

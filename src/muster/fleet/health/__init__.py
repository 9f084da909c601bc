"""What is wrong with a node, and what the policy says to do about it."""

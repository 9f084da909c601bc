"""What an attempt needs from its first pod to its end, and how the next one begins."""

"""What callers may cost: at once and per minute, for each caller, each group and in all."""

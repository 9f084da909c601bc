"""What Prometheus costs with and without the guard, what the guard costs, and whether its estimates are right."""

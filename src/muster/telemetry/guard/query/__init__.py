"""The request to a Prometheus API as one typed operation."""

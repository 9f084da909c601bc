"""The HTTP side of the guard: requests of clients, and the requests that it sends to Prometheus."""

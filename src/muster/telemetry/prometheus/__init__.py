"""A client of the HTTP API of Prometheus and of servers that speak it: bounded in time and bytes, typed answers."""

"""HTTP/1.1 over sockets on the event loop: what the read cache and the guard of Prometheus share."""

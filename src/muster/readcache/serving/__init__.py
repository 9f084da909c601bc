"""The HTTPS server of the read cache: answers, pushed watches, and requests that it forwards to the API server."""

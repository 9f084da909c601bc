"""Finds the API server, proves who we are, and sends it requests: kubeconfigs, credentials, TLS, HTTP."""

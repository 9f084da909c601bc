"""Checks of the cluster's DNS and addresses through the API server."""

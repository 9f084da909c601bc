"""Checks of the network: on a node, and of the cluster's DNS. Evidence in, problems with their fix out."""

"""Answers get, list and watch from the stores as kube-apiserver's watch cache does, or says what must be forwarded."""

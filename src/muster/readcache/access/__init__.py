"""Decides who may read from the cache: tokens, client certificates, impersonation and access reviews."""

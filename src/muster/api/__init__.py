"""Muster's own kinds (group muster.dev/v1alpha1); CRDs, JSON schemas and reference pages are generated from them."""

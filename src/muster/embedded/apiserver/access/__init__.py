"""Authentication: tokens, certificates and reviews."""

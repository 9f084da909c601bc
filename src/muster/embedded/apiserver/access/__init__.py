"""Who asks: tokens, certificates and reviews."""

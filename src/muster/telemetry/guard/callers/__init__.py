"""Who asks: tokens, client certificates, and names in headers of configured peers."""

"""What gives nodes: `base` says what scaling asks of a provider, a module each is one of them."""

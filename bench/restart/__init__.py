"""How long a gang is away after a fault, and what the way back costs the API server: Muster beside JobSet."""

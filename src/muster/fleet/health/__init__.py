"""Node health: reads findings from logs and checks, and decides by the health policy what to do about a node."""

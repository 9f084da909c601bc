"""What a join of many nodes does to the API server, all at once and at our pace."""

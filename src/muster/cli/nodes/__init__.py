"""`muster nodes`: how nodes are, why, and what people ask for them."""

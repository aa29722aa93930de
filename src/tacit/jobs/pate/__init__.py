"""tacit.pate: teachers on disjoint data, a noisy vote, and a student that learns from it."""

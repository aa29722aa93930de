"""tacit.train: one model across the parties of a federation."""

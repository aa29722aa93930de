"""`tacit.boost`: training across parties."""

"""The pages of `tacit ui`."""

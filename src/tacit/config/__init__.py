"""Declared options, job files, and what cannot be combined."""

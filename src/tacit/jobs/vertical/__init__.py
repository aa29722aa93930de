"""Parties that hold different columns of the same people: private set intersection, split networks,
regression, transfer.
"""

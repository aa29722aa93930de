"""Numbers only: no party, no message, no file. Secrets come in as bytes the caller drew from the operating
system.
"""

"""Cryptographic primitives on numbers and bytes: no parties, messages or files. Secrets are passed in as
bytes that the caller drew from the operating system.
"""

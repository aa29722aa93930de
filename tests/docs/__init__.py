"""Tests of the documentation: every snippet runs, every link resolves, the reference says what the code
says.
"""

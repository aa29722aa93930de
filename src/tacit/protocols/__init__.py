"""One protocol, one file: a program per party, and what they compute together as a plain function."""

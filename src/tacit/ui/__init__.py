"""A live web page over a directory of runs and, with a kit, over a federation: `tacit ui`.

It reads what runs write and what the owner's commands record; it keeps nothing of its own. Without
`--control` it changes nothing.
"""

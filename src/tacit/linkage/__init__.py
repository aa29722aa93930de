"""Record linkage: fields of people's records, how they are compared, and how strongly each comparison speaks.

Tables in, numbers out: nothing here sends anything. `mpc/linked.py` compares what `fields.py` encodes on
secret shares, and `plain.py` is the same computation in the clear.
"""

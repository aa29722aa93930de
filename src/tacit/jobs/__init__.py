"""The jobs: the only place that composes rooms. Each takes plain values, checks them all before it starts,
and gives a result.

One job, one file; `tacit` itself is where users find them. Nothing is imported here, so that a table can be
anonymized without torch.
"""

"""Statistics across parties: programs of sums (stats/) on a runtime (runtimes/), with their ledger."""

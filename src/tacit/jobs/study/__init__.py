"""tacit study: tables of training runs, declared in a file."""

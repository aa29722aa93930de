"""The numeric engine: a model as a function of one flat vector, stacks of clients, written-out gradients,
evaluation.
"""

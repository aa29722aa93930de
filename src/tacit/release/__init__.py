"""A trained model in use: the files that hold it with its preparation, scoring, and export.

`release.py` is what a model needs besides its weights, `load.py` reads a run directory, `score.py` applies
a model to new rows, `onnx_file.py` and `torch_file.py` write it for other programs.
"""

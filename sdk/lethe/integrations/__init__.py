"""Bridges to other libraries: scikit-learn, PyTorch, MLflow, and tables of any kind.

Each module imports its library when a function is called. If a library is missing, the error names everything
that has to be installed.
"""

"""A package, so that tests/test_conformance.py and tests/data/test_conformance.py are two modules to
pytest.
"""

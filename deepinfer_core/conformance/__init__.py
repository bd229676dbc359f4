"""The shipped test kit: a backend written anywhere gets its whole suite from here.

Start at ``suites.py`` (what is checked), ``implementations.py`` (what is run), ``compare.py`` (what is equal).
No module of the kit names a backend.
"""

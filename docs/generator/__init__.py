"""Pages of the documentation that are made from the code; ``docs/generate.py`` writes and checks them."""

"""Pictures of the documentation, as functions that return SVG; ``docs/generate.py`` writes them."""

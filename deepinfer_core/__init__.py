"""DeepInfer core: op contracts, model graph, caches, engine, CPU backend and conformance kit."""
__version__ = "0.1.0"

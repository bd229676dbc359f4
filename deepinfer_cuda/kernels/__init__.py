"""Kernels, one per file, named after what they compute."""

"""DeepInfer backend for NVIDIA GPUs."""

"""DeepInfer backend for Huawei Ascend NPUs."""

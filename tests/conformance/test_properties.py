"""Rows, padding and memory layout change nothing they should not."""

from deepinfer_core.conformance.plugin import suite_test

test_properties = suite_test("properties")

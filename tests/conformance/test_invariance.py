"""Declared row invariance: the same bits wherever a row stands."""

from deepinfer_core.conformance.plugin import suite_test

test_invariance = suite_test("invariance")

"""Invalid calls are refused by the contract check, in words."""

from deepinfer_core.conformance.plugin import suite_test

test_errors = suite_test("errors")

"""No call asks for more memory than its implementation states."""

from deepinfer_core.conformance.plugin import suite_test

test_workspace = suite_test("workspace")

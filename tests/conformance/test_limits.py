"""What a backend refuses is refused at binding; required cases are not refused."""

from deepinfer_core.conformance.plugin import suite_test

test_limits = suite_test("limits")

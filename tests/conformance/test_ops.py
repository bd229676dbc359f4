"""Every op, every case, every implementation, against the reference."""

from deepinfer_core.conformance.plugin import suite_test

test_ops = suite_test("ops")

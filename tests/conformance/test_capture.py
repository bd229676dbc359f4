"""Steps that are recorded once and replayed with other inputs."""

from deepinfer_core.conformance.plugin import suite_test

test_capture = suite_test("capture")

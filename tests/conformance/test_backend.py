"""The backend and its device, one check for each sentence of the protocols."""

from deepinfer_core.conformance.plugin import suite_test

test_backend = suite_test("backend")

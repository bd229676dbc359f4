"""The ops themselves: complete declarations, valid cases, repeatable references."""

from deepinfer_core.conformance.plugin import suite_test

test_declarations = suite_test("declarations")

"""Structured output: the form that a request asks for, compiled, matched and turned into token masks."""

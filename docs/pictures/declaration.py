"""The picture of one op: what a declaration holds and who reads it."""

from __future__ import annotations

from pictures.svg import Sheet

_PART, _READER, _BACKEND = "#eef2ff", "#ecfdf5", "#fff7ed"


def declaration_picture() -> str:
    """The declaration and a backend's table at the left, their readers at the right."""
    sheet = Sheet(960, 420, "An op's declaration and a backend's table, and who reads them")
    sheet.area(10, 10, 330, 270, "core: the declaration of an op, in one file", _PART)
    for y, title, line in (
        (40, "contract: the signature", "tensors, shapes, types, attributes"),
        (100, "meaning: the docstring", "padding, ties, rounding"),
        (160, "reference: the body", "plain torch, any device"),
        (220, "cases", "valid calls and invalid ones"),
    ):
        sheet.box(30, y, 290, 48, title, [line])
    sheet.area(10, 295, 330, 115, "backend: one table", _BACKEND)
    sheet.box(30, 325, 290, 64, "Implementation", ["run, pack, plan", "limits: data with a reason in words"])
    for y, title, lines in (
        (25, "binder", ["one callable per call site, once, at load:", "native, decomposed or reference"]),
        (125, "conformance kit", ["every case, every way to run it,", "every refusal, every property"]),
        (225, "error messages", ["N=48: N must be 64 or 128"]),
        (325, "support matrix, op pages", ["these documents"]),
    ):
        sheet.area(560, y, 390, 80, "", _READER)
        sheet.box(575, y + 8, 360, 64, title, lines)
    for source in (145, 352):
        sheet.line((340, source), (450, source))
    sheet.line((450, 65), (450, 365))
    for target in (65, 165, 265, 365):
        sheet.arrow((450, target), (556, target))
    sheet.text(350, 137, "read by", size=11)
    return sheet.svg()

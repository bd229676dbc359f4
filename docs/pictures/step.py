"""The picture of one step: from a request to its next token."""

from __future__ import annotations

from pictures.svg import Sheet

_HOST, _RUNTIME, _DEVICE = "#eef2ff", "#ecfdf5", "#fff7ed"


def step_picture() -> str:
    """Integers on top, tensors in the middle, ops and caches at the bottom."""
    sheet = Sheet(960, 480, "One step: request, plan, inputs, bound graph, sampler, apply")
    sheet.area(10, 10, 940, 130, "engine and scheduler: requests, text, integers", _HOST)
    sheet.area(10, 150, 940, 110, "runtime: integers to tensors and back", _RUNTIME)
    sheet.area(10, 270, 940, 200, "model graph: ops, bound once, at load", _DEVICE, label_below=True)
    _boxes(sheet)
    _arrows(sheet)
    return sheet.svg()


def _boxes(sheet: Sheet) -> None:
    sheet.box(30, 50, 170, 60, "LLM.generate", ["prompts to token ids"])
    sheet.box(250, 50, 190, 60, "Scheduler.plan", ["which rows run now"])
    sheet.box(520, 50, 190, 60, "Scheduler.apply", ["records tokens, frees blocks"])
    sheet.box(760, 50, 170, 60, "RequestOutput", ["text, no half character"])
    sheet.box(250, 185, 190, 56, "runtime.batch", ["StepPlan to StepInputs"])
    sheet.box(520, 185, 190, 56, "runtime.sampler", ["logits to tokens"])
    sheet.box(60, 310, 200, 60, "ModelGraph.begin", ["slots, indices, plans"])
    sheet.box(320, 310, 320, 60, "ModelGraph.forward", ["embed, layers (engram, attention, experts), norm"])
    sheet.box(700, 310, 200, 60, "ModelGraph.logits", ["of the rows that sample"])
    sheet.box(320, 405, 320, 50, "KVCaches", ["blocks and state slots: bytes, for cache ops"])


def _arrows(sheet: Sheet) -> None:
    sheet.arrow((200, 80), (248, 80))
    sheet.arrow((345, 110), (345, 183), label="StepPlan", at=(352, 136))
    sheet.arrow((250, 213), (160, 213), (160, 308), label="StepInputs", at=(168, 250))
    sheet.arrow((260, 340), (318, 340))
    sheet.arrow((640, 340), (698, 340))
    sheet.arrow((480, 372), (480, 403))
    sheet.arrow((520, 405), (520, 372))
    sheet.arrow((800, 310), (800, 213), (712, 213), label="logits", at=(808, 250))
    sheet.arrow((615, 185), (615, 112), label="tokens", at=(622, 136))
    sheet.arrow((710, 80), (758, 80))
    sheet.arrow((520, 80), (442, 80), label="next step", at=(452, 72))

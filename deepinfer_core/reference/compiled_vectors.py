"""The innermost step of a product of few rows: one vector of sums, as wide as a panel, stays in registers.

Numba's own vectorising reads and writes the sums again for every few channels. Here the step is written in the
compiler's vector language, which has no instruction set in it: LLVM cuts a vector into what the processor has.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer_core.reference.compiled import HAS_NUMBA

if TYPE_CHECKING:
    from collections.abc import Callable

PANEL = 32
"""Outputs that are summed together."""
GROUP = 32
"""Channels with one scale."""
E4M3_BIAS, E2M1_BIAS = 120, 126
"""A code in the place of a float32 number's leading bits reads as its value over two to this power."""
_CACHE_LINE = 64
_CHANNELS_AT_ONCE = 4
_BYTES_AHEAD = 1024
"""What is fetched early: about the time that memory takes to answer."""
_E4M3_BITS, _E2M1_BITS = 0x87F00000 - (1 << 32), 0x81C00000 - (1 << 32)


def codes_per_item(items: Any) -> int:
    """Channels that one item of a panel holds: e2m1 codes lie two to an ``int8``."""
    return 2 if items.dtype == np.int8 else 1


def add_products(sums: Any, row: Any, channel: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any) -> None:
    """Add the products of ``count`` channels of a row and a panel's numbers to the panel's sums, in order.

    Each product is added by one multiply-add where the processor has it, as ``compiled_products`` explains.

    Args:
        sums: ``[PANEL]`` float32, changed.
        row: Float32 channels.
        channel: The first one to use.
        items: Numbers of panels, flat, the outputs of a channel beside each other: float32, int16 bits of bf16, uint8
            codes of e4m3, or int8 with the e2m1 codes of an even channel (low) and the next one.
        item: The first one to use.
        scales: For codes, bytes whose power of two (``byte - 127 + bias``) the code is multiplied by; all channels
            given belong to one group. They must leave that power a normal number.
        scale: The first one to use.
        count: Channels, a multiple of what an item holds and at least one item.
    """
    per_item = codes_per_item(items)
    for step in range(count):
        start = item + step // per_item * PANEL
        numbers = _values(items[start : start + PANEL], scales[scale : scale + PANEL], step % per_item)
        for output in range(PANEL):
            sums[output] += row[channel + step] * numbers[output]


def read_numbers(result: Any, at: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any) -> None:
    """Put the numbers of ``count`` channels of a panel into ``result``, flat float32, from the place ``at`` on.

    The other arguments are those of :func:`add_products`.
    """
    per_item = codes_per_item(items)
    for step in range(count):
        start, place = item + step // per_item * PANEL, at + step * PANEL
        result[place : place + PANEL] = _values(
            items[start : start + PANEL], scales[scale : scale + PANEL], step % per_item
        )


def add_dense_products(
    sums: Any, rows: Any, row: Any, other: Any, numbers: Any, place: Any, stride: Any, count: Any
) -> None:
    """Add the products of ``count`` channels of two rows and ``PANEL`` dense numbers to the sums of both, in order.

    Args:
        sums: ``[2 * PANEL]`` float32, changed: those of the first row, then those of the other.
        rows: Float32, flat.
        row: The first channel of the first row.
        other: The same of the other row, which may be the same.
        numbers: Float32, flat, the outputs of a channel beside each other.
        place: The first number to use.
        stride: From the numbers of one channel to those of the next.
        count: Channels.
    """
    for step in range(count):
        start = place + step * stride
        for half, first in enumerate((row, other)):
            for output in range(PANEL):
                sums[half * PANEL + output] += rows[first + step] * numbers[start + output]


def _values(items: Any, scales: Any, place: int) -> Any:
    """Numbers of one channel of a panel."""
    if items.dtype == np.float32:
        return items
    if items.dtype == np.int16:
        return (items.astype(np.int32) << 16).view(np.float32)
    bias = E4M3_BIAS if items.dtype == np.uint8 else E2M1_BIAS
    factors = (scales.astype(np.int32) + bias << 23).view(np.float32)
    codes = items.astype(np.int32)
    if items.dtype == np.uint8:
        return ((codes << 24 >> 4) & _E4M3_BITS).astype(np.int32).view(np.float32) * factors
    return ((codes << 28 - 4 * place >> 6) & _E2M1_BITS).astype(np.int32).view(np.float32) * factors


if HAS_NUMBA:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic, overload

    _BYTE, _INT, _LONG, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
    _INTS, _FLOATS = ir.VectorType(_INT, PANEL), ir.VectorType(_FLOAT, PANEL)
    _FUSED = ("contract",)

    def _everywhere(value: int) -> Any:
        return ir.Constant(_INTS, [value] * PANEL)

    def _load(builder: Any, pointer: Any, item: Any) -> Any:
        """A vector of items that lie anywhere."""
        value = builder.load(builder.bitcast(pointer, ir.VectorType(item, PANEL).as_pointer()))
        value.align = 1
        return value

    def _data(context: Any, builder: Any, signature: Any, arguments: Any, number: int) -> Any:
        """Where the numbers of an array argument begin."""
        return context.make_array(signature.args[number])(context, builder, arguments[number]).data

    def _spread(builder: Any, value: Any) -> Any:
        """The same number for every output."""
        none = ir.Constant(_FLOATS, ir.Undefined)
        one = builder.insert_element(none, value, ir.Constant(_INT, 0))
        return builder.shuffle_vector(one, none, ir.Constant(_INTS, [0] * PANEL))

    def _fetch_early(builder: Any, pointer: Any) -> None:
        name, text = "llvm.prefetch.p0i8", _BYTE.as_pointer()
        shape = ir.FunctionType(ir.VoidType(), [text, _INT, _INT, _INT])
        function = builder.module.globals.get(name) or ir.Function(builder.module, shape, name)
        ahead = builder.gep(builder.bitcast(pointer, text), [ir.Constant(_LONG, _BYTES_AHEAD)])
        builder.call(function, [ahead, *(ir.Constant(_INT, number) for number in (0, 3, 1))])

    def _from_bf16(builder: Any, items: Any, factors: Any, place: int) -> Any:
        return builder.bitcast(builder.shl(items, _everywhere(16)), _FLOATS)

    def _from_e4m3(builder: Any, items: Any, factors: Any, place: int) -> Any:
        moved = builder.ashr(builder.shl(items, _everywhere(24)), _everywhere(4))
        return builder.fmul(builder.bitcast(builder.and_(moved, _everywhere(_E4M3_BITS)), _FLOATS), factors)

    def _from_e2m1(builder: Any, items: Any, factors: Any, place: int) -> Any:
        moved = builder.ashr(builder.shl(items, _everywhere(28 - 4 * place)), _everywhere(6))
        return builder.fmul(builder.bitcast(builder.and_(moved, _everywhere(_E2M1_BITS)), _FLOATS), factors)

    def _from_float(builder: Any, items: Any, factors: Any, place: int) -> Any:
        return builder.bitcast(items, _FLOATS)

    def _factors(builder: Any, pointer: Any, bias: int) -> Any:
        exponents = builder.add(builder.zext(_load(builder, pointer, _BYTE), _INTS), _everywhere(bias))
        return builder.bitcast(builder.shl(exponents, _everywhere(23)), _FLOATS)

    def _loop(
        builder: Any, states: list[Any], start: Any, stop: Any, step: int, work: Callable[[Any, list[Any]], list[Any]]
    ) -> tuple[list[Any], Any]:
        """Work on ``step`` channels at a time while so many are left; the states and the next channel then.

        ``work`` takes the channel and the states, vectors of float32, and returns the new states.
        """
        before, head = builder.block, builder.append_basic_block("head")
        body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        at, old = builder.phi(_LONG), [builder.phi(_FLOATS) for _ in states]
        following = builder.add(at, ir.Constant(_LONG, step))
        builder.cbranch(builder.icmp_signed("<=", following, stop), body, after)
        builder.position_at_end(body)
        new = work(at, old)
        for value, first, later in zip((at, *old), (start, *states), (following, *new), strict=True):
            value.add_incoming(first, before)
            value.add_incoming(later, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return old, at

    def _add_product(builder: Any, total: Any, factor: Any, numbers: Any) -> Any:
        """The total and one more product, rounded once where the processor can."""
        return builder.fadd(total, builder.fmul(_spread(builder, factor), numbers, flags=_FUSED), flags=_FUSED)

    class _Kind:
        """The intrinsics for one kind of item."""

        def __init__(self, item_bits: int, per_item: int, bias: int, values: Callable[..., Any]) -> None:
            self._item, self._bytes, self._per_item = (
                _INT if item_bits == 32 else ir.IntType(item_bits),
                item_bits // 8,
                per_item,
            )
            self._bias, self._values = bias, values
            self.add, self.read = self._make_add(), self._make_read()

        def _numbers(self, builder: Any, items: Any, channel: Any, factors: Any, number: int) -> Any:
            """Vectors of the numbers of ``number`` channels from a channel on."""
            whole = builder.sdiv(channel, ir.Constant(_LONG, self._per_item))
            here = builder.gep(items, [builder.mul(whole, ir.Constant(_LONG, PANEL))])
            for line in range(0, number * PANEL * self._bytes // self._per_item, _CACHE_LINE):
                _fetch_early(builder, builder.gep(here, [ir.Constant(_LONG, line // self._bytes)]))
            for step in range(0, number, self._per_item):
                place = builder.gep(here, [ir.Constant(_LONG, step // self._per_item * PANEL)])
                wide = _load(builder, builder.bitcast(place, self._item.as_pointer()), self._item)
                wide = wide if self._item is _INT else builder.zext(wide, _INTS)
                for inner in range(self._per_item):
                    yield self._values(builder, wide, factors, inner)

        def _factors(self, builder: Any, pointer: Any) -> Any:
            return _factors(builder, pointer, self._bias) if self._bias else None

        def _make_add(self) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                places = (0, 1, 3, 5)
                sums, row, items, scales = (_data(context, builder, signature, arguments, place) for place in places)
                row, items = builder.gep(row, [arguments[2]]), builder.gep(items, [arguments[4]])
                factors = self._factors(builder, builder.gep(scales, [arguments[6]]))

                def work(channel: Any, states: list[Any], number: int) -> list[Any]:
                    (total,) = states
                    for step, numbers in enumerate(self._numbers(builder, items, channel, factors, number)):
                        place = builder.gep(row, [builder.add(channel, ir.Constant(_LONG, step))])
                        total = _add_product(builder, total, builder.load(place), numbers)
                    return [total]

                states, at = [_load(builder, sums, _FLOAT)], ir.Constant(_LONG, 0)
                for number in (_CHANNELS_AT_ONCE // self._per_item, self._per_item):
                    states, at = _loop(builder, states, at, arguments[7], number, partial(work, number=number))
                builder.store(states[0], builder.bitcast(sums, _FLOATS.as_pointer())).align = 4
                return context.get_dummy_value()

            @intrinsic
            def add(
                context: Any, sums: Any, row: Any, at: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any
            ) -> Any:
                places = types.intp
                return types.void(sums, row, places, items, places, scales, places, places), generate

            return add

        def _make_read(self) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                result, items, scales = (_data(context, builder, signature, arguments, place) for place in (0, 2, 4))
                result, items = builder.gep(result, [arguments[1]]), builder.gep(items, [arguments[3]])
                factors = self._factors(builder, builder.gep(scales, [arguments[5]]))

                def work(channel: Any, states: list[Any]) -> list[Any]:
                    for step, numbers in enumerate(self._numbers(builder, items, channel, factors, self._per_item)):
                        place = builder.mul(builder.add(channel, ir.Constant(_LONG, step)), ir.Constant(_LONG, PANEL))
                        pointer = builder.bitcast(builder.gep(result, [place]), _FLOATS.as_pointer())
                        builder.store(numbers, pointer).align = 4
                    return states

                _loop(builder, [], ir.Constant(_LONG, 0), arguments[6], self._per_item, work)
                return context.get_dummy_value()

            @intrinsic
            def read(
                context: Any, result: Any, at: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any
            ) -> Any:
                places = types.intp
                return types.void(result, places, items, places, scales, places, places), generate

            return read

    _KINDS = {
        types.float32: _Kind(32, 1, 0, _from_float),
        types.int16: _Kind(16, 1, 0, _from_bf16),
        types.uint8: _Kind(8, 1, E4M3_BIAS, _from_e4m3),
        types.int8: _Kind(8, 2, E2M1_BIAS, _from_e2m1),
    }

    def _add_to_both(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """:func:`add_dense_products`."""
        sums, rows, numbers = (_data(context, builder, signature, arguments, place) for place in (0, 1, 4))
        both = [builder.gep(rows, [arguments[place]]) for place in (2, 3)]
        halves = [builder.gep(sums, [ir.Constant(_LONG, start)]) for start in (0, PANEL)]
        numbers = builder.gep(numbers, [arguments[5]])

        def work(channel: Any, totals: list[Any], number: int) -> list[Any]:
            for step in range(number):
                at = builder.add(channel, ir.Constant(_LONG, step))
                here = _load(builder, builder.gep(numbers, [builder.mul(at, arguments[6])]), _FLOAT)
                factors = [builder.load(builder.gep(row, [at])) for row in both]
                totals = [_add_product(builder, *pair, here) for pair in zip(totals, factors, strict=True)]
            return totals

        totals, at = [_load(builder, half, _FLOAT) for half in halves], ir.Constant(_LONG, 0)
        for number in (_CHANNELS_AT_ONCE, 1):
            totals, at = _loop(builder, totals, at, arguments[7], number, partial(work, number=number))
        for half, total in zip(halves, totals, strict=True):
            builder.store(total, builder.bitcast(half, _FLOATS.as_pointer())).align = 4
        return context.get_dummy_value()

    @intrinsic
    def _dense_step(
        context: Any, sums: Any, rows: Any, row: Any, other: Any, numbers: Any, place: Any, stride: Any, count: Any
    ) -> Any:
        places = types.intp
        return types.void(sums, rows, places, places, numbers, places, places, places), _add_to_both

    @overload(add_dense_products, inline="always")
    def _compile_add_dense_products(
        sums: Any, rows: Any, row: Any, other: Any, numbers: Any, place: Any, stride: Any, count: Any
    ) -> Any:
        step: Any = _dense_step

        def generate(
            sums: Any, rows: Any, row: Any, other: Any, numbers: Any, place: Any, stride: Any, count: Any
        ) -> Any:
            return step(sums, rows, row, other, numbers, place, stride, count)

        return generate

    @overload(add_products, inline="always")
    def _compile_add_products(
        sums: Any, row: Any, channel: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any
    ) -> Any:
        step: Any = _KINDS[items.dtype].add

        def generate(
            sums: Any, row: Any, channel: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any
        ) -> Any:
            return step(sums, row, channel, items, item, scales, scale, count)

        return generate

    @overload(read_numbers, inline="always")
    def _compile_read_numbers(result: Any, at: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any) -> Any:
        step: Any = _KINDS[items.dtype].read

        def generate(result: Any, at: Any, items: Any, item: Any, scales: Any, scale: Any, count: Any) -> Any:
            return step(result, at, items, item, scales, scale, count)

        return generate

    @overload(codes_per_item, inline="always")
    def _compile_codes_per_item(items: Any) -> Any:
        number = 2 if items.dtype == types.int8 else 1

        def generate(items: Any) -> Any:
            return number

        return generate

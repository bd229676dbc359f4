"""Which tokens a filter keeps: a prefix of a row's tokens, best first, found by bisection on a list of candidates.

Tokens are in the order of :mod:`deepinfer_cuda.kernels.vocabulary_rows`, so a prefix is named by its last token: order
key and id. ``scan`` bundles what every function needs of a row: pointers to its logits and to the list of ids
(ascending), the length of the list, the largest logit (float64) and the inverse temperature (float64).
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_cuda.kernels.vocabulary_rows import HIGHEST_KEY, LOWEST_KEY, fixed_point, from_order_key, order_key

SUM_BITS = tl.constexpr(40)
"""As in ``deepinfer_core.ops.sampling.fixed_point``."""


@triton.jit
def token_weight(x, largest, inverse_temperature):
    """Fixed-point exponential relative to the best token (int64)."""
    return fixed_point(tl.exp((x.to(tl.float64) - largest) * inverse_temperature), SUM_BITS)


@triton.jit
def is_kept(key, token, last_key, last_id):
    """Whether tokens do not come after the last one that is kept."""
    return (key > last_key) | ((key == last_key) & (token <= last_id))


@triton.jit
def list_candidates(row_ptr, list_ptr, cut, VOCAB: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Write the ids of all logits that are not below ``cut`` (float64), ascending; returns how many."""
    num_listed = tl.load(row_ptr).to(tl.int32, bitcast=True) * 0
    for start in tl.range(0, VOCAB, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < VOCAB, other=float("-inf"))
        is_candidate = ((column < VOCAB) & (x.to(tl.float64) >= cut)).to(tl.int32)
        count = tl.sum(is_candidate, 0)
        if count > 0:
            place = num_listed + tl.cumsum(is_candidate, 0) - 1
            tl.store(list_ptr + place, column, mask=is_candidate != 0)
            num_listed += count
    tl.debug_barrier()
    return num_listed


@triton.jit
def _listed(scan, start, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Some of the listed tokens: order key, id, what each counts (its weight, or 1), and which lanes have one."""
    place = start + tl.arange(0, BLOCK)
    inside = place < scan[2]
    token = tl.load(scan[1] + place, mask=inside, other=0)
    x = tl.load(scan[0] + token, mask=inside, other=float("-inf"))
    amount = token_weight(x, scan[3], scan[4]) if BY_MASS else inside.to(tl.int64)
    return order_key(x), token, amount, inside


@triton.jit
def kept_mass(scan, last_key, last_id, least, BLOCK: tl.constexpr):
    """Mass of the listed tokens that are kept and weigh ``least`` (float64) or more, and the lowest key of these."""
    total = tl.zeros((BLOCK,), tl.int64)
    lowest = tl.full((BLOCK,), HIGHEST_KEY, tl.int32)
    for start in range(0, scan[2], BLOCK):
        key, token, weight, inside = _listed(scan, start, True, BLOCK)
        counted = inside & is_kept(key, token, last_key, last_id) & (weight.to(tl.float64) >= least)
        total += tl.where(counted, weight, 0)
        lowest = tl.where(counted, tl.minimum(lowest, key), lowest)
    return tl.sum(total, 0), tl.min(lowest, 0)


@triton.jit
def _split(scan, middle, last_key, last_id, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The listed tokens that are kept so far, split at a key.

    Returns number or mass of those above it, the highest key that is not above it, and the lowest that is.
    """
    total = tl.zeros((BLOCK,), tl.int64)
    highest_below = tl.full((BLOCK,), LOWEST_KEY, tl.int32)
    lowest_above = tl.full((BLOCK,), HIGHEST_KEY, tl.int32)
    for start in range(0, scan[2], BLOCK):
        key, token, amount, inside = _listed(scan, start, BY_MASS, BLOCK)
        counted = inside & is_kept(key, token, last_key, last_id)
        is_above = counted & (key > middle)
        total += tl.where(is_above, amount, 0)
        lowest_above = tl.where(is_above & (key < lowest_above), key, lowest_above)
        highest_below = tl.where(counted & (key <= middle) & (key > highest_below), key, highest_below)
    return tl.sum(total, 0), tl.max(highest_below, 0), tl.min(lowest_above, 0)


@triton.jit
def last_within(scan, cut, bound, last_key, last_id, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The last token that comes after at most ``bound`` (number or mass) of the listed tokens kept so far.

    The key is found by bisection, from one key that a token has to another. Tokens that share it count one after the
    other, in order of ids. ``cut`` is a logit that every listed token reaches.
    """
    low = order_key(cut.to(tl.float32)).to(tl.int64)
    high = order_key(scan[3].to(tl.float32)).to(tl.int64)
    while low < high:
        middle = (low + high) >> 1
        above, highest_below, lowest_above = _split(scan, middle, last_key, last_id, BY_MASS, BLOCK)
        is_within = above.to(tl.float64) <= bound
        high = tl.where(is_within, tl.maximum(highest_below.to(tl.int64), low), high)
        low = tl.where(is_within, low, lowest_above.to(tl.int64))
    above, _, _ = _split(scan, high, last_key, last_id, BY_MASS, BLOCK)
    last = tl.minimum(last_id, -1)
    for start in range(0, scan[2], BLOCK):
        key, token, amount, inside = _listed(scan, start, BY_MASS, BLOCK)
        equal = inside & (key == high) & is_kept(key, token, last_key, last_id)
        amount = tl.where(equal, amount, 0)
        before = above + tl.cumsum(amount, 0) - amount
        last = tl.maximum(last, tl.max(tl.where(equal & (before.to(tl.float64) <= bound), token, -1), 0))
        above += tl.sum(amount, 0)
    return high.to(tl.int32), last


@triton.jit
def top_k_cut(best, largest, top_k):
    """A logit (float64) that at least ``top_k`` tokens reach: the ``top_k``-th largest of the lanes' maxima."""
    keys = order_key(best)
    high = order_key(largest).to(tl.int64)
    low = tl.minimum(high, LOWEST_KEY)
    while low < high:
        middle = (low + high) >> 1
        is_above = keys > middle
        is_within = tl.sum(is_above.to(tl.int32), 0) < top_k
        highest_below = tl.max(tl.where(is_above, LOWEST_KEY, keys), 0).to(tl.int64)
        lowest_above = tl.min(tl.where(is_above, keys, HIGHEST_KEY), 0).to(tl.int64)
        high = tl.where(is_within, tl.maximum(highest_below, low), high)
        low = tl.where(is_within, low, lowest_above)
    return from_order_key(tl.maximum(high.to(tl.int32), order_key(float("-inf")))).to(tl.float64)

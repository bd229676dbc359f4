"""Constants of the n-gram hash, derived from a model's architecture (spec model/06 section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from deepinfer_core.config.architecture import EngramArchitecture
from deepinfer_core.config.engram_geometry import engram_offsets, engram_primes, engram_rows
from deepinfer_core.model.pcg64 import uniform_integers

_SEED_PER_LAYER = 10007
_LARGEST_PRODUCT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramTables:
    """What hashes a context to table rows, one entry per engram layer in the order of the config.

    Columns of a layer have the n-gram size outside and the hash head inside.

    Attributes:
        layer_ids: Layers that read a table.
        primes: Per layer, how many rows each column hashes into.
        offsets: Per layer, the first row of each column.
        multipliers: Per layer, one odd factor for each place of a context; up to 63 bits, so never as a double.
        num_rows: Per layer, rows of the table.
    """

    layer_ids: tuple[int, ...]
    primes: tuple[tuple[int, ...], ...]
    offsets: tuple[tuple[int, ...], ...]
    multipliers: tuple[tuple[int, ...], ...]
    num_rows: tuple[int, ...]


def engram_tables(architecture: EngramArchitecture) -> EngramTables:
    """The constants of every engram layer; multipliers depend on the compressed vocabulary's size."""
    primes = engram_primes(architecture)
    return EngramTables(
        layer_ids=architecture.layer_ids,
        primes=tuple(tuple(chain.from_iterable(layer)) for layer in primes),
        offsets=tuple(engram_offsets(layer) for layer in primes),
        multipliers=tuple(_multipliers(layer_id, architecture) for layer_id in architecture.layer_ids),
        num_rows=engram_rows(architecture),
    )


def _multipliers(layer_id: int, architecture: EngramArchitecture) -> tuple[int, ...]:
    """Odd factors so small that the largest id times a factor stays below 2^63."""
    bound = _LARGEST_PRODUCT // architecture.compressed_vocab_size // 2
    return tuple(2 * draw + 1 for draw in uniform_integers(_SEED_PER_LAYER * layer_id, bound, architecture.max_ngram))

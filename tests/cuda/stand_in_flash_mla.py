"""A stand-in for FlashMLA 1.0 on SM100: the checks of spec dependencies 3.2, and the numbers in float32 on the CPU."""
# ruff: noqa: PLR0913, PLR0917 - the signatures are the library's

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.cuda.stand_in_deep_gemm import E2M1_VALUES

_WIDTH = 512
_RECORD_BYTES = {528: "fp8", 288: "fp4"}


@dataclass
class Schedule:
    """What ``get_mla_metadata`` returns; filled by the first call, good for calls of the same shapes only."""

    shapes: tuple[object, ...] = field(default=())


def records_of(pages: Tensor, slots: Tensor) -> Tensor:
    """Values ``[..., 512]`` of flat slots; -1 gives anything."""
    blocks, rows, _, record = pages.shape
    bytes_of_slot = pages[:, :, 0][slots.clamp_min(0).long() // rows, slots.clamp_min(0).long() % rows]
    assert int(slots.max()) < blocks * rows
    if record == 528:
        values = bytes_of_slot[..., :_WIDTH].view(torch.float8_e4m3fn).float()
        factors = 2.0 ** (bytes_of_slot[..., _WIDTH:].float() - 127.0)
    else:
        packed = bytes_of_slot[..., : _WIDTH // 2]
        values = E2M1_VALUES[torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2).long()]
        factors = bytes_of_slot[..., _WIDTH // 2 :].view(torch.float8_e4m3fn).float()
    return values * factors.repeat_interleave(_WIDTH // factors.shape[-1], -1)


class FlashMla:
    """What the adapters call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def flash_mla_sparse_fwd(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        sm_scale: float,
        d_v: int = 512,
        attn_sink: Tensor | None = None,
        topk_length: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.calls.append("flash_mla_sparse_fwd")
        _check_query(q, d_v, attn_sink)
        assert kv.dtype == torch.bfloat16
        assert kv.shape[1:] == (1, _WIDTH)
        assert kv.is_contiguous()
        assert len(kv)
        assert indices.dtype == torch.int32
        assert indices.shape[:2] == (len(q), 1)
        assert indices.shape[2] % 128 == 0
        assert attn_sink is not None
        assert topk_length is None
        listed = indices[:, 0]
        valid = (listed >= 0) & (listed < len(kv))
        keys = kv[:, 0].float()[torch.where(valid, listed, 0).long()]
        return _attend(q, keys, valid, attn_sink, sm_scale)

    def get_mla_metadata(self) -> tuple[Schedule, None]:
        return Schedule(), None

    def flash_mla_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor | None,
        cache_seqlens: Tensor | None,
        head_dim_v: int,
        tile_scheduler_metadata: Schedule,
        num_splits: None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        is_fp8_kvcache: bool = True,
        indices: Tensor | None = None,
        attn_sink: Tensor | None = None,
        extra_k_cache: Tensor | None = None,
        extra_indices_in_kvcache: Tensor | None = None,
        topk_length: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        enable_batch_invariant: bool = False,
    ) -> tuple[Tensor, Tensor]:
        self.calls.append("flash_mla_with_kvcache")
        assert block_table is None
        assert cache_seqlens is None
        assert enable_batch_invariant
        assert q.dim() == 4
        assert not causal
        assert is_fp8_kvcache
        assert num_splits is None
        assert topk_length is None
        assert extra_topk_length is None
        assert softmax_scale is not None
        assert indices is not None
        assert attn_sink is not None
        _check_query(q[:, 0], head_dim_v, attn_sink)
        assert _RECORD_BYTES[_checked_record(k_cache)] == "fp8"
        shapes = (q.shape, indices.shape, None if extra_k_cache is None else extra_k_cache.shape)
        assert tile_scheduler_metadata.shapes in ((), shapes)
        tile_scheduler_metadata.shapes = shapes
        keys, valid = _listed(k_cache, indices, len(q))
        assert (extra_k_cache is None) == (extra_indices_in_kvcache is None)
        if extra_k_cache is not None and extra_indices_in_kvcache is not None:
            _checked_record(extra_k_cache)
            more, more_valid = _listed(extra_k_cache, extra_indices_in_kvcache, len(q))
            keys, valid = torch.cat((keys, more), 1), torch.cat((valid, more_valid), 1)
        result, _, lse = _attend(q[:, 0], keys, valid, attn_sink, softmax_scale)
        return result.unsqueeze(1), lse.unsqueeze(-1)


def _check_query(q: Tensor, d_v: int, sink: Tensor | None) -> None:
    assert q.dtype == torch.bfloat16
    assert q.dim() == 3
    assert q.shape[1] in (64, 128)
    assert q.shape[2] == d_v == _WIDTH
    assert q.stride(-1) == 1
    assert len(q)
    assert sink is not None
    assert (sink.dtype, sink.shape, sink.is_contiguous()) == (torch.float32, (q.shape[1],), True)


def _checked_record(pages: Tensor) -> int:
    """Bytes of a record, once the cache is laid out as the kernels address it."""
    record = pages.shape[3]
    assert pages.dtype == torch.uint8
    assert pages.dim() == 4
    assert pages.shape[2] == 1
    assert record in _RECORD_BYTES
    assert (pages.stride(1), pages.stride(3)) == (record, 1), "the whole block must be contiguous"
    assert pages.stride(0) % record == 0
    assert pages.data_ptr() % 16 == 0
    return record


def _listed(pages: Tensor, indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    assert indices.dtype == torch.int32
    assert indices.shape[:2] == (num_rows, 1)
    assert indices.shape[2] % 128 == 0
    assert int(indices.min()) >= -1, "invalid is exactly -1"
    return records_of(pages, indices[:, 0]), indices[:, 0] >= 0


def _attend(q: Tensor, keys: Tensor, valid: Tensor, sink: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output, maxima and log-sum-exp; the sink acts on the output only, as the factor that the library states."""
    logits = (q.float() @ keys.transpose(1, 2)) * scale
    logits = logits.masked_fill(~valid.unsqueeze(1), -torch.inf)
    maxima, lse = logits.amax(-1), logits.logsumexp(-1)
    weights = (logits - maxima.nan_to_num(neginf=0.0).unsqueeze(-1)).exp()
    total = weights.sum(-1, keepdim=True)
    clean = torch.where(valid.unsqueeze(-1), keys, 0.0)
    mean = weights.to(torch.bfloat16).float() @ clean / total
    result = mean * torch.sigmoid(lse - sink).unsqueeze(-1)
    has_key = valid.any(-1)[:, None]
    return (
        torch.where(has_key.unsqueeze(-1), result, 0.0).to(torch.bfloat16),
        maxima,
        torch.where(has_key, lse, torch.inf),
    )

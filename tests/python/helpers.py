"""What several test files need."""

from __future__ import annotations

import torch

import mx8.torch as mt


def sqnr(got: torch.Tensor, want: torch.Tensor) -> float:
    """Signal over noise in dB; infinite for equal tensors."""
    got, want = got.detach().double(), want.detach().double()
    noise = (got - want).norm()
    return float("inf") if noise == 0 else float(20 * torch.log10(want.norm() / noise))


def make_ends(sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def multiply_groups(
    x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """grouped_mm in high precision, differentiable, rows past the last end zero; w (E, N, K)."""
    parts, start = [], 0
    for e, end in enumerate(ends.tolist()):
        part = x[start:end].float() @ w[e].float().T
        parts.append(part if bias is None else part + bias.float())
        start = end
    parts.append(x.new_zeros(x.shape[0] - start, w.shape[1], dtype=torch.float32))
    return torch.cat(parts)


def run_grouped(x, w, ends, dy, bias=None, **options):
    """Output and gradients of mt.grouped_mm: y, dx, dw, dbias."""
    leaves = [t.detach().requires_grad_() if t is not None else None for t in (x, w, bias)]
    y = mt.grouped_mm(leaves[0], leaves[1].transpose(-2, -1), ends, leaves[2], **options)
    y.backward(dy.to(y.dtype))
    return (y.detach(), *(leaf.grad if leaf is not None else None for leaf in leaves))


def run_reference(x, w, ends, dy, bias=None):
    leaves = [t.detach().float().requires_grad_() if t is not None else None for t in (x, w, bias)]
    y = multiply_groups(leaves[0], leaves[1], ends, leaves[2])
    y.backward(dy.float())
    return (y.detach(), *(leaf.grad if leaf is not None else None for leaf in leaves))

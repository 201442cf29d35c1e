"""A Llama4-style MoE model as torchtitan writes it: names, routing, and experts through torch._grouped_mm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, self.head_dim) for f in (self.wq, self.wk, self.wv))
        q, k = (rotate(t, freqs).transpose(1, 2) for t in (q, k))
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


def rotate(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs[: x.shape[1], None]).flatten(3).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GroupedExperts(nn.Module):
    def __init__(self, dim: int, hidden: int, n_experts: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(n_experts, hidden, dim))
        self.w2 = nn.Parameter(torch.empty(n_experts, dim, hidden))
        self.w3 = nn.Parameter(torch.empty(n_experts, hidden, dim))
        for w in self.parameters():
            nn.init.normal_(w, std=0.05)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        h = F.silu(torch._grouped_mm(x, self.w1.transpose(-2, -1), offs=offs))
        h = h * torch._grouped_mm(x, self.w3.transpose(-2, -1), offs=offs)
        return torch._grouped_mm(h, self.w2.transpose(-2, -1), offs=offs)


class Router(nn.Module):
    def __init__(self, dim: int, n_experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)


class MoE(nn.Module):
    def __init__(self, dim: int, hidden: int, options: dict) -> None:
        super().__init__()
        n_experts = options["num_experts"]
        self.options = options
        self.top_k = options.get("top_k", 1)
        self.router = Router(dim, n_experts)
        self.experts = GroupedExperts(dim, hidden, n_experts)
        self.shared_experts = FeedForward(dim, hidden) if options.get("num_shared_experts", 1) else None
        self.balance = options.get("load_balance_coeff", 1e-3)
        if self.balance is not None:
            self.register_buffer("expert_bias", torch.zeros(n_experts))
        self.counts = torch.zeros(n_experts)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.router.gate(x).float()
        scores = logits.softmax(1) if self.options.get("score_func") == "softmax" else logits.sigmoid()
        biased = scores + self.expert_bias if self.balance is not None else scores
        chosen = torch.topk(biased, self.top_k, dim=1).indices
        weights = scores.gather(1, chosen)
        if self.options.get("route_norm"):
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.options.get("route_scale", 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        chosen, weights = self.route(x)
        order = torch.argsort(chosen.view(-1), stable=True)
        counts = torch.bincount(chosen.view(-1), minlength=self.options["num_experts"])
        self.counts = counts.float()
        tokens, factors = order // self.top_k, weights.view(-1)[order, None]
        rows, first = x[tokens], self.options.get("score_before_experts", True)
        if first:
            rows = (rows.float() * factors).to(x.dtype)
        rows = self.experts(rows, counts)
        if not first:
            rows = (rows.float() * factors).to(x.dtype)
        out = self.shared_experts(x) if self.shared_experts is not None else torch.zeros_like(x)
        return out.index_add(0, tokens, rows).view(shape)

    @torch.no_grad()
    def update_bias(self) -> None:
        if self.balance is not None:
            step = self.balance * torch.sign(self.counts.mean() - self.counts)
            self.expert_bias += step - step.mean()


class Block(nn.Module):
    def __init__(self, config: dict, hidden: int, moe: dict | None) -> None:
        super().__init__()
        dim = config["dim"]
        self.attention = Attention(dim, config["n_heads"], config["n_kv_heads"])
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)
        self.moe = MoE(dim, hidden, moe) if moe else None
        self.feed_forward = None if moe else FeedForward(dim, hidden)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + (self.moe or self.feed_forward)(self.ffn_norm(x))


class Transformer(nn.Module):
    """config, moe: as in the parity fixtures; hidden: ffn width of each layer."""

    def __init__(self, config: dict, moe: dict, hidden: list[int]) -> None:
        super().__init__()
        self.config = config
        every = config.get("interleave_moe_layer_step", 1)
        self.tok_embeddings = nn.Embedding(config["vocab_size"], config["dim"])
        self.layers = nn.ModuleList(
            Block(config, width, moe if (i + 1) % every == 0 else None) for i, width in enumerate(hidden)
        )
        self.norm = nn.RMSNorm(config["dim"], eps=1e-5)
        self.output = nn.Linear(config["dim"], config["vocab_size"], bias=False)

    def get_freqs(self, length: int) -> torch.Tensor:
        head_dim = self.config["dim"] // self.config["n_heads"]
        freqs = 1.0 / self.config["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(length).float(), freqs)
        return torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, freqs = self.tok_embeddings(tokens), self.get_freqs(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, freqs)
        return self.output(self.norm(x))

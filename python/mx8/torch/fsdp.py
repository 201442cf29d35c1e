"""FSDP2's all-gather of converted weights as MXFP8 codes: each rank quantizes its own shard, once for both passes.

convert(..., fsdp_gather_dtype="mxfp8") makes the parameters of converted modules ShardedWeights. fully_shard cuts them
as any other parameter; what it gathers is then codes and scales of both orientations, and what the modules see between
gathering and freeing is a WeightCodes: a tensor of the weight's shape and dtype that holds codes and no values.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from .. import lib
from . import _run
from ._table import RULES_OF, Rule
from .recipes import Recipe, get_recipe

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch without distributed, or older than 2.5

    class DTensor:  # type: ignore[no-redef]
        """No tensor is one."""


aten = torch.ops.aten
Style = tuple[str, int, int]  # scale_rule, scale_group and tile_rows of a weight
CODES = torch.float8_e4m3fn
CARRIER = torch.bfloat16  # the dtype in which codes and scales travel: that of the parameters beside them


def get_style(recipe: str | Recipe, device: torch.device) -> Style:
    """How the products of a recipe quantize a weight on a device."""
    options = get_recipe(recipe).get_options(device)
    return options["scale_rule"], options["weight_scale_group"], options["weight_tile_rows"]


# ---- what is gathered ----


class WeightCodes(torch.Tensor):
    """A gathered weight (N, K) or (E, N, K): codes and scales in blocks along K ("rows") and along N ("cols").

    Only MXFP8 products made for the same scales take it; its gradient is a plain tensor. `turned` says that the last
    two dimensions appear exchanged: blocks along K are then the cols.
    """

    PARTS = ("rows", "row_scales", "cols", "col_scales")
    rows: torch.Tensor  # (.., N, K)
    row_scales: torch.Tensor  # (.., N, K/32)
    cols: torch.Tensor  # (.., K, N)
    col_scales: torch.Tensor  # (K, N/32), of experts (E, N/32, K)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, parts: tuple[torch.Tensor, ...], style: Style, dtype: torch.dtype, turned: bool) -> WeightCodes:
        shape = (parts[2] if turned else parts[0]).shape
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=parts[0].device)
        for name, part in zip(cls.PARTS, parts):
            setattr(self, name, part)
        self.style, self.turned = style, turned
        return self  # type: ignore[no-any-return]

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        return tuple(getattr(self, name) for name in self.PARTS)

    def turn(self) -> WeightCodes:
        return WeightCodes(self.parts, self.style, self.dtype, not self.turned)

    def along_depth(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales in blocks along the last dimension, as the forward pass reads them."""
        if not self.turned:
            return self.rows, self.row_scales
        return self.cols, self.col_scales.transpose(-2, -1).contiguous() if self.dim() == 3 else self.col_scales

    def along_lines(self) -> tuple[torch.Tensor, torch.Tensor]:
        """In blocks along the one before it, as the input's gradient reads them."""
        codes, scales = (self.rows, self.row_scales) if self.turned else (self.cols, self.col_scales)
        if self.dim() == 2:
            return codes, scales
        return codes.transpose(-2, -1), scales.transpose(-2, -1).contiguous() if self.turned else scales

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return list(self.PARTS), (self.style, self.dtype, self.turned)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> WeightCodes:
        style, dtype, turned = context
        return WeightCodes(tuple(inner[name] for name in WeightCodes.PARTS), style, dtype, turned)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"WeightCodes({tuple(self.shape)}, dtype={self.dtype}, device={self.device}, style={self.style})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func in _products:
            return _products[func](func, args)
        self = args[0]
        if func in _SAME or (func in _SAME_SIZE and tuple(args[1]) == tuple(self.shape)):
            return WeightCodes(self.parts, self.style, self.dtype, self.turned)
        last_two = {self.dim() - 2, self.dim() - 1}
        if func is aten.t.default or (func is aten.transpose.int and {d % self.dim() for d in args[1:]} == last_two):
            return self.turn()
        raise lib.Unsupported(
            f"mx8: {func} of a weight {tuple(self.shape)} that was gathered as MXFP8 codes, expected the product of a "
            'converted module; leave the module out of convert, or fsdp_gather_dtype="mxfp8" of it'
        )


_SAME = (aten.detach.default, aten.alias.default)
_SAME_SIZE = (aten.as_strided.default, aten.view.default)  # FSDP's own view, with the strides there are


class _Substitute:
    """Calls a product with a weight's codes in the place of the weight."""

    def __init__(self, rule: Rule) -> None:
        self.backward, self.n_tensors = rule.backward, len(rule.names)
        self.weight = rule.names.index("w")
        self.codes = rule.names.index("wq_t" if rule.backward else "wq")
        self.option = [option.name for option in rule.options].index
        self.defaults = (None,) * self.n_tensors + tuple(option.default for option in rule.options)

    def __call__(self, func: Any, args: tuple) -> Any:
        given = [*args, *self.defaults[len(args) :]]
        w = given[self.weight]
        options = given[self.n_tensors :]
        style = tuple(options[self.option(n)] for n in ("scale_rule", "weight_scale_group", "weight_tile_rows"))
        if style != w.style or options[self.option("precision")] != "mxfp8":
            raise lib.InvalidArgument(f"mx8: a weight gathered as codes of {w.style} is multiplied as {style}")
        given[self.weight] = None
        given[self.codes : self.codes + 2] = w.along_lines() if self.backward else w.along_depth()
        return func(*given)


_products = {
    getattr(torch.ops.mx8, name).default: _Substitute(RULES_OF[name])
    for name in ("linear", "linear_backward", "grouped_linear", "grouped_linear_backward")
}


# ---- what is sharded ----


# Of a shard these make another; the results of all other operators are plain tensors.
_KEPT = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.view.default,
    aten.as_strided.default,
    aten._to_copy.default,
    aten._pin_memory.default,
}


class ShardedWeight(torch.Tensor):
    """A weight, or a rank's shard of it, that FSDP2 gathers as codes. Everything else sees the plain tensor inside."""

    plain: torch.Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, plain: torch.Tensor, label: str, recipe: str | Recipe) -> ShardedWeight:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            plain.shape,
            strides=plain.stride(),
            storage_offset=plain.storage_offset(),
            dtype=plain.dtype,
            device=plain.device,
            requires_grad=plain.requires_grad,
        )
        self.plain, self.label, self.recipe = plain, label, recipe
        return self  # type: ignore[no-any-return]

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["plain"], (self.label, self.recipe)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> ShardedWeight:
        return ShardedWeight(inner["plain"], *context)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"ShardedWeight({self.plain!r}, label={self.label!r}, recipe={self.recipe!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        plain_args, plain_kwargs = tree_map_only(ShardedWeight, lambda t: t.plain, (args, kwargs or {}))
        results = func(*plain_args, **plain_kwargs)
        if not isinstance(first, ShardedWeight):
            return results
        if func in _KEPT:
            return tree_map_only(torch.Tensor, lambda t: ShardedWeight(t, first.label, first.recipe), results)
        return first if results is first.plain else results

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: torch.Size, outer_stride: tuple[int, ...], module: Any, mp_policy: Any
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """What this rank contributes; the second value, given to fsdp_post_all_gather, says whether it is codes."""
        style = get_style(self.recipe, self.device)
        dtype = mp_policy.param_dtype or self.dtype
        reason = find_obstacle(self.plain, mesh.size(), outer_size, dtype, style)
        if reason:
            _warn_once(self.label, reason)
            return (_pad(self.plain, mesh.size(), outer_size, dtype),), None
        if mesh.size() == 1:  # nothing travels: the shard is quantized to where the products read it
            return (self.plain.new_empty(0, dtype=CARRIER),), (style, self.plain)
        return tuple(_pack(part) for part in quantize_shard(self.plain, style)), (style, None)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[torch.Tensor, ...],
        metadata: tuple[Style, torch.Tensor | None] | None,
        param_dtype: torch.dtype,
        *,
        out: torch.Tensor | None = None,
    ) -> Any:
        """The weight from all ranks' contributions, and the tensors of it that FSDP has to free and allocate."""
        if metadata is None:
            return None if out is not None else (all_gather_outputs[0], ())
        style, shard = metadata
        codes = out._local_tensor if isinstance(out, DTensor) else out
        if codes is not None:
            if shard is not None:
                quantize_shard(shard, style, codes.parts)
            else:
                _refill(codes, all_gather_outputs)
            return None
        if shard is not None:
            parts = owned = quantize_shard(shard, style)
        else:
            parts, owned = _unpack(all_gather_outputs, self.shape)
        return WeightCodes(parts, style, param_dtype, False), owned


def find_obstacle(
    shard: torch.Tensor, world: int, whole: torch.Size, dtype: torch.dtype, style: Style
) -> str | None:
    """Why a shard of a weight cannot be quantized as the whole would be; None where it can."""
    if dtype is not CARRIER:
        return f"modules compute in {dtype}, expected param_dtype=torch.bfloat16 of the MixedPrecisionPolicy"
    if tuple(shard.shape[1:]) != tuple(whole[1:]) or shard.shape[0] * world != whole[0]:
        return f"{tuple(whole)} on {world} ranks is not cut into equal parts of its first dimension"
    unit = max(lib.BLOCK, *style[1:]) if len(whole) == 2 and world > 1 else 1
    if shard.shape[0] % unit:
        return f"{shard.shape[0]} rows a rank are no multiple of the {unit} that share scales"
    return None


_warned: set[str] = set()


def _warn_once(name: str, reason: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"mx8: {name} is gathered unquantized: {reason}", stacklevel=2)


def quantize_shard(
    shard: torch.Tensor, style: Style, parts: tuple[torch.Tensor, ...] | None = None
) -> tuple[torch.Tensor, ...]:
    """Rows, row scales, cols and col scales as WeightCodes has them, of values rounded to bf16, in one read: new ones,
    or those that a call for the same shape gave."""
    rule = RULES_OF["quantize_both" if shard.dim() == 2 else "quantize_experts"]
    given = dict(zip(("scale_rule", "scale_group", "tile_rows"), style)) | {"via_bf16": True}
    options = tuple(given.get(option.name, option.default) for option in rule.options)
    tensors = (shard, None)[: len(rule.names)]
    outputs = None
    if parts is not None:
        outputs = (*parts, parts[1]) if shard.dim() == 2 else parts  # ends, which are not computed
    results = _run.run(rule, tensors, (), options, outputs)[:4]
    if parts is not None:
        return parts
    return (*results[:2], results[2] if shard.dim() == 2 else results[2].transpose(-2, -1), results[3])


def _pad(shard: torch.Tensor, world: int, whole: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A shard as FSDP would have it without us: of `dtype`, as long as the longest of all ranks."""
    rows = shard.shape[0] if shard.shape[1:] != whole[1:] else -(-whole[0] // world)
    if shard.shape[0] >= rows:
        return shard.to(dtype)
    padded = shard.new_zeros(rows, *shard.shape[1:], dtype=dtype)
    padded[: shard.shape[0]].copy_(shard)
    return padded


def _pack(part: torch.Tensor) -> torch.Tensor:
    """Codes and scales as CARRIER: FSDP copies tensors of one dtype in large pieces and of several byte by byte. Two
    E4M3 codes are never a NaN of bf16 (a NaN tile is 0x7F throughout, and 0x7F7F is finite), and scales travel as
    numbers: a copy that goes through arithmetic does not change either."""
    return part.view(CARRIER) if part.dtype == CODES else part.to(CARRIER)


def _regroup(cols: torch.Tensor, depth: int) -> torch.Tensor:
    """Column codes or scales (ranks * K, n) of a matrix, as a view (K, ranks, n)."""
    return cols.view(-1, depth, cols.shape[-1]).transpose(0, 1)


def _unpack(outputs: tuple[torch.Tensor, ...], shard: torch.Size) -> tuple[tuple, tuple]:
    rows, row_scales, cols, col_scales = outputs
    if len(shard) == 2 and cols.shape[0] != shard[1]:
        cols, col_scales = (_regroup(t, shard[1]).reshape(shard[1], -1) for t in (cols, col_scales))
    owned = [t.to(torch.uint8) for t in (row_scales, col_scales)]
    parts = (rows.view(CODES), owned[0], cols.view(CODES), owned[1])
    return parts, (*owned, cols) if cols is not outputs[2] else tuple(owned)


def _refill(codes: WeightCodes, outputs: tuple[torch.Tensor, ...]) -> None:
    """Once more into the tensors that _unpack made; those that are views of `outputs` are filled already."""
    _, row_scales, cols, col_scales = outputs
    whole = codes.shape
    targets, sources = [codes.row_scales, codes.col_scales], [row_scales, col_scales]
    if len(whole) == 2 and cols.shape[0] != whole[1]:
        targets[1] = targets[1].view(whole[1], -1, col_scales.shape[1])
        sources[1] = _regroup(col_scales, whole[1])
        wide = torch.int64  # eight codes at once
        sources.append(_regroup(cols.view(wide), whole[1]))
        targets.append(codes.cols.view(wide).view(sources[-1].shape))
    with torch.autograd._unsafe_preserve_version_counter(tuple(targets)):
        for target, source in zip(targets, sources):
            target.copy_(source)


# ---- parameters of modules ----


def shard_as_codes(model: nn.Module, places: Iterable[tuple[nn.Module, str, str]], recipe: str | Recipe) -> list[str]:
    """Makes parameters ShardedWeights: (module, parameter's name, qualified name) of each. Returns the qualified names
    of those that stay as they are: used by several modules, of which others would see no values, or distributed
    already."""
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    left = []
    for module, name, label in places:
        parameter = module._parameters[name]
        assert parameter is not None
        if owners[id(parameter)] > 1 or isinstance(parameter, DTensor):
            left.append(label)
            continue
        if not hasattr(module, "mx8_gathered"):
            module.mx8_gathered = {}  # type: ignore[assignment]
            module.register_state_dict_post_hook(_save_plain)
            module.register_load_state_dict_post_hook(_wrap_loaded)
        module.mx8_gathered[name] = (label, recipe)  # type: ignore[index, operator]
        _wrap(module, name)
    return left


def _wrap(module: nn.Module, name: str) -> None:
    parameter = module._parameters[name]
    assert parameter is not None
    data = parameter.detach()
    if isinstance(data, ShardedWeight):
        data = data.plain
    label, recipe = module.mx8_gathered[name]  # type: ignore[index]
    wrapped = nn.Parameter(ShardedWeight(data, label, recipe), requires_grad=parameter.requires_grad)
    module._parameters[name] = wrapped


def _save_plain(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """A state_dict holds plain tensors, and DTensors of plain ones; with keep_vars, the parameters themselves."""
    for name in module.mx8_gathered:  # type: ignore[union-attr]
        value = state_dict.get(prefix + name)
        if isinstance(value, nn.Parameter):
            continue
        if isinstance(value, ShardedWeight):
            state_dict[prefix + name] = value.plain
        elif isinstance(value, DTensor) and isinstance(value._local_tensor, ShardedWeight):
            state_dict[prefix + name] = DTensor.from_local(
                value._local_tensor.plain,
                value.device_mesh,
                value.placements,
                run_check=False,
                shape=value.shape,
                stride=value.stride(),
            )


def _wrap_loaded(module: nn.Module, incompatible_keys: Any) -> None:
    """load_state_dict(assign=True) puts plain tensors in place of the parameters."""
    for name, (label, recipe) in module.mx8_gathered.items():  # type: ignore[union-attr, operator]
        parameter = module._parameters[name]
        if isinstance(parameter, DTensor):
            if not isinstance(parameter._local_tensor, ShardedWeight):
                parameter._local_tensor = ShardedWeight(parameter._local_tensor, label, recipe)
        elif not isinstance(parameter, ShardedWeight):
            _wrap(module, name)

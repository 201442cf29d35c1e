"""DTensor sharding rules of torch.ops.mx8.*, the quantizers of expert weights included.

An axis of an operator is a letter, as in _table.py. Sharding a letter shards every tensor that has it, leaves the
others whole, and makes an output that lacks it a partial sum. A letter whose blocks or tiles would be cut
is left whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._table import RULES_OF, Rule

try:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding
except ImportError:  # a torch without distributed, or older than 2.6: no rules, everything else works
    register_sharding = None  # type: ignore[assignment]

Shardings = list[tuple[list[Any], list[Any]]]  # output placements, input placements
Units = dict[str, Callable[[dict[str, Any]], int]]  # of a letter: how many elements must stay together


def _one(options: dict[str, Any]) -> int:
    return 1


def _group(options: dict[str, Any]) -> int:
    return options["scale_group"]


def _either(options: dict[str, Any]) -> int:
    return max(options["scale_group"], options["tile_rows"], options.get("col_tile_rows", 0))


def _tile(options: dict[str, Any]) -> int:
    return options["tile_rows"]


def _product(options: dict[str, Any]) -> int:
    return max(options["scale_group"], options["weight_scale_group"], options["weight_tile_rows"], options["tile_rows"])


PRODUCT: Units = {"N": _product, "K": _product}

# Letters of each output, and what may be sharded. Rows of groups never are: offsets count them all.
RULES: dict[str, tuple[tuple[str, ...], Units]] = {
    "quantize_rows": (("MK", "MK"), {"M": _tile, "K": _group}),
    "quantize_cols": (("KM", "KM", ""), {"M": _group, "K": _tile}),
    "quantize_both": (("MK", "MK", "KM", "KM", ""), {"M": _either, "K": _either}),
    "quantize_3d": (("ENK", "ENK"), {"E": _one, "N": _group, "K": _tile}),
    "quantize_experts": (("ENK", "ENK", "ENK", "ENK"), {"E": _one, "N": _either, "K": _either}),
    "group_pad": (("PK", "", ""), {"K": _one}),
    "linear": (("MN",), PRODUCT | {"M": _one}),
    "linear_backward": (("MK", "NK", "N"), PRODUCT | {"M": _one}),
    "grouped_linear": (("MN",), PRODUCT),
    "grouped_linear_backward": (("MK", "ENK", "N"), PRODUCT),
}


def _get_placements(tensors: list[tuple[str, Any]], letter: str) -> list[Any]:
    """None for what is no tensor, else the shard of its axis `letter`, or whole."""
    return [
        None if spec is None else Shard(letters.index(letter)) if letter in letters else Replicate()
        for letters, spec in tensors
    ]


def _find_size(tensors: list[tuple[str, Any]], letter: str) -> int:
    return next(
        spec.tensor_meta.shape[letters.index(letter)]
        for letters, spec in tensors
        if spec is not None and letter in letters
    )


def _find_computed(name: str, tensors: list[tuple[str, Any]], options: dict[str, Any]) -> tuple[bool, ...]:
    """Which outputs are more than an empty tensor."""
    if name.endswith("_backward"):
        return tensors[2][1] is not None, tensors[1][1] is not None, options["bias_grad"]
    return (True,) * len(RULES[name][0])


def _place_output(letters: str, is_computed: bool, letter: str) -> Any:
    if not is_computed or not letters:
        return Replicate()
    return Shard(letters.index(letter)) if letter in letters else Partial()


def list_shardings(name: str, rule: Rule, args: tuple) -> Shardings:
    """Acceptable (output placements, input placements) of a call on one mesh axis."""
    outputs, units = RULES[name]
    n = len(rule.inputs)
    args += (None,) * (n - len(args)) + tuple(option.default for option in rule.options)[max(len(args) - n, 0) :]
    options = dict(zip((option.name for option in rule.options), args[n:]))
    tensors = list(zip((letters or "" for letters in rule.inputs), args[:n]))
    others = [None] * len(rule.options)
    computed = _find_computed(name, tensors, options)
    found: Shardings = [([Replicate()] * len(outputs), _get_placements(tensors, "?") + others)]
    grouped_columns = name in ("quantize_cols", "quantize_both") and args[1] is not None
    n_operands = {"linear": 3, "linear_backward": 3, "grouped_linear": 4, "grouped_linear_backward": 4}.get(name, n)
    if any(spec is not None for _, spec in tensors[n_operands:]):
        return found  # given codes come in many orientations: whole
    mesh = next(spec.mesh for _, spec in tensors if spec is not None)
    for letter, unit in units.items():
        if grouped_columns and letter == "M":
            continue
        if not any(spec is not None and letter in letters for letters, spec in tensors):
            continue
        if _find_size(tensors, letter) % (unit(options) * mesh.size()):
            continue
        if letter == "K" and name in ("linear", "grouped_linear") and tensors[n_operands - 1][1] is not None:
            continue  # every shard would add the bias
        results = [_place_output(*output, letter) for output in zip(outputs, computed)]
        if name.endswith("_backward") and letter == "K":
            results[2] = Replicate()  # dy is whole on every shard, and so is its column sum
        found.append((results, _get_placements(tensors, letter) + others))
    return found


def _list_dequantize(codes: Any, scales: Any, *options: Any) -> Shardings:
    shape, mesh = codes.tensor_meta.shape, codes.mesh
    others = [None] * len(options)
    found: Shardings = [([Replicate()], [Replicate(), Replicate(), *others])]
    for axis, size in enumerate(shape):
        if size % ((32 if axis == len(shape) - 1 else 1) * mesh.size()) == 0:
            found.append(([Shard(axis)], [Shard(axis), Shard(axis), *others]))
    return found


def _list_block_scales(scales: Any, offsets: Any = None, layout: str = "plain") -> Shardings:
    others = [None if offsets is None else Replicate(), None]
    found: Shardings = [([Replicate(), Replicate()], [Replicate(), *others])]
    if layout == "per_expert":
        found.append(([Shard(0), Replicate()], [Shard(0), *others]))
    return found


def _register() -> None:
    for name in RULES:
        op = getattr(torch.ops.mx8, name).default

        def shard(*args: Any, name: str = name) -> list:
            return list_shardings(name, RULES_OF[name], args)

        register_sharding(op)(shard)
    register_sharding(torch.ops.mx8.dequantize.default)(_list_dequantize)
    register_sharding(torch.ops.mx8.block_scales.default)(_list_block_scales)


if register_sharding is not None:
    _register()

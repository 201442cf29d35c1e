"""convert(): turns the linear layers and experts of a model to MXFP8 in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Union

from torch import nn

from .. import lib
from .fsdp import shard_as_codes
from .modules import Experts, GroupedMM, Linear, check_sizes, get_experts_class, teach_compiler
from .recipes import Recipe, get_recipe

Filter = Union[Callable[[nn.Module, str], bool], str, Iterable[str]]

GATHER_DTYPES = ("bf16", "mxfp8")

# Too sensitive (the output head), too small to gain (wk, wv), or no multiple of 32 (a router's 16 outputs).
SKIPPED = ("output", "router.gate", "wk", "wv")


def all_linear_except(*names: str) -> Callable[[nn.Module, str], bool]:
    """Filter of every nn.Linear whose name contains none of `names`; without any, of torchtitan's usual four."""
    skipped = names or SKIPPED
    return lambda module, name: isinstance(module, nn.Linear) and not any(part in name for part in skipped)


def _match(filter: Filter) -> Callable[[nn.Module, str], bool]:
    if callable(filter):
        return filter
    parts = (filter,) if isinstance(filter, str) else tuple(filter)
    return lambda module, name: any(part in name for part in parts)


def _find_linear(model: nn.Module, filter: Filter) -> Iterator[tuple[str, nn.Linear]]:
    match = _match(filter)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and match(module, name):
            yield name or type(module).__name__, module


def _list_matrices(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters(recurse=False) if p.dim() == 3}


def _find_experts(model: nn.Module, filter: Filter) -> Iterator[tuple[str, nn.Module]]:
    match = _match(filter)
    for name, module in model.named_modules():
        if _list_matrices(module) and match(module, name):
            yield name or type(module).__name__, module


def _check_linear(name: str, module: nn.Linear) -> None:
    if type(module) not in (nn.Linear, Linear):
        raise lib.InvalidArgument(
            f"convert: {name} is a {type(module).__name__}, expected a plain nn.Linear; convert before fully_shard, "
            "and leave out layers that are quantized already"
        )
    check_sizes(f"convert: {name}", module.weight)


def convert(
    model: nn.Module,
    *,
    linear: Filter | None = None,
    experts: Filter | None = None,
    recipe: str | Recipe = "mxfp8",
    fsdp_gather_dtype: str = "bf16",
    verbose: bool = True,
) -> nn.Module:
    """Converts nn.Linear layers and expert modules of `model` in place and returns it.

    linear, experts: which ones; a function of (module, qualified name), or one or several texts of which the name must
    contain one; None for none. Experts are modules with parameters (E, N, K) or (E, K, N) of their own that their
    forward gives to torch._grouped_mm (torch.nn.functional.grouped_mm) with offs. recipe: a name of RECIPES or a
    Recipe.

    Parameters stay the plain ones they are, so state_dict, optimizers and checkpoints do not change; biases are kept
    and get their gradients. Convert before fully_shard and torch.compile. Prints what it converted. Raises
    InvalidArgument (a ValueError) when a filter matches nothing, when a matched layer's sizes are no multiples of 32,
    or when a matched layer is no plain nn.Linear; then the model is unchanged.

    fsdp_gather_dtype: "bf16" leaves FSDP2's all-gather alone. With "mxfp8" every rank quantizes its shards of the
    converted weights, and codes and scales are gathered: the same bits in every loss and gradient, without the bf16
    copy. The parameters are then new ones, mx8.torch.fsdp.ShardedWeight, to be given to an optimizer afterwards;
    state_dict and gradients stay plain. It needs MixedPrecisionPolicy(param_dtype=torch.bfloat16), experts whose number
    the ranks divide and linear rows that they divide into whole scale blocks; weights without that are gathered in
    param_dtype, and a warning says so at the first gathering.
    """
    get_recipe(recipe)
    if fsdp_gather_dtype not in GATHER_DTYPES:
        raise lib.InvalidArgument(
            f"convert: fsdp_gather_dtype is {fsdp_gather_dtype!r}, expected one of {', '.join(GATHER_DTYPES)}"
        )
    layers = list(_find_linear(model, linear)) if linear is not None else []
    modules = list(_find_experts(model, experts)) if experts is not None else []
    if linear is not None and not layers:
        raise lib.InvalidArgument("convert: the filter `linear` matches no nn.Linear of the model")
    if experts is not None and not modules:
        raise lib.InvalidArgument("convert: the filter `experts` matches no module with parameters of three dimensions")
    for name, layer in layers:
        _check_linear(name, layer)
    for name, module in modules:
        for parameter_name, parameter in _list_matrices(module).items():
            check_sizes(f"convert: {name}.{parameter_name}", parameter)

    for _, layer in layers:
        layer.__class__ = Linear
        layer.recipe = recipe  # type: ignore[assignment]
    for _, module in modules:
        if not isinstance(module, Experts):
            cls: Any = type(module)
            module.__class__ = get_experts_class(cls)
        module.mx8_mode = GroupedMM(recipe)  # type: ignore[assignment]
        module.mx8_compiles = teach_compiler()  # type: ignore[assignment]
    left = []
    if fsdp_gather_dtype == "mxfp8":
        places = [(layer, "weight", f"{name}.weight") for name, layer in layers]
        places += [(module, key, f"{name}.{key}") for name, module in modules for key in _list_matrices(module)]
        left = shard_as_codes(model, places, recipe)
    if verbose:
        _print_report(layers, modules, recipe)
        for name in left:
            print(f"  {name}: shared or distributed, FSDP gathers it as it would without mx8")
    return model


def _print_report(
    layers: list[tuple[str, nn.Linear]], modules: list[tuple[str, nn.Module]], recipe: str | Recipe
) -> None:
    print(f"mx8: {len(layers)} linear layers and {len(modules)} expert modules converted, recipe {recipe}")
    for name, layer in layers:
        print(f"  {name}: weight {tuple(layer.weight.shape)}{', bias' if layer.bias is not None else ''}")
    for name, module in modules:
        print(f"  {name}: " + ", ".join(f"{key} {tuple(p.shape)}" for key, p in _list_matrices(module).items()))

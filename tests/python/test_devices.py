"""What depends on the device, without one: the warning of slow GPUs, the geometry of fast ones, threads and contexts."""

from __future__ import annotations

import threading
import types
import warnings

import pytest
import torch

import mx8
import mx8.lib
import mx8.torch as mt
from helpers import make_ends
from mx8.torch import _run, recipes


def test_a_gpu_without_a_fast_path_is_named_once(monkeypatch):
    context = types.SimpleNamespace(backend="cuda-sm80", reason="A card, compute capability 8.0: exact path (no wgmma)")
    monkeypatch.setattr(_run.lib, "Context", lambda *args, **options: context)
    monkeypatch.setattr(_run, "_warned", set())
    with pytest.warns(UserWarning, match=r"cuda:0 has no fast MXFP8 path here.*compute capability 8.0"):
        _run._open_context(torch.device("cuda:0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _run._open_context(torch.device("cuda:0"))
        context.backend = "cuda-sm90"
        _run._open_context(torch.device("cuda:1"))


def test_hopper_gets_the_geometry_that_it_multiplies(monkeypatch):
    monkeypatch.setattr(recipes, "_is_hopper", lambda ordinal: True)
    chosen = mt.RECIPES["mxfp8"].get_options(torch.device("cuda:0"))
    assert (chosen["scale_group"], chosen["weight_scale_group"], chosen["weight_tile_rows"]) == (256, 256, 32)
    by_hand = mt.RECIPES["mxfp8_32"].get_options(torch.device("cuda:0"))
    assert (by_hand["scale_group"], by_hand["weight_scale_group"], by_hand["weight_tile_rows"]) == (32, 32, 1)
    assert mt.RECIPES["mxfp8"].get_options(torch.device("cpu"))["scale_group"] == 32


def test_threads_have_contexts_of_their_own():
    """Contexts belong to one thread; calls from several at once give the same bits."""
    x, w, ends = torch.randn(200, 64), torch.randn(2, 96, 64), make_ends([90, 110])
    want = mt.grouped_mm(x, w.transpose(1, 2), ends)
    results, contexts = [], [_run.get_context(x.device)]

    def work():
        for _ in range(5):
            results.append(mt.grouped_mm(x, w.transpose(1, 2), ends))
        contexts.append(_run.get_context(x.device))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(context) for context in contexts}) == 5
    assert len(results) == 20 and all(torch.equal(got, want) for got in results)


def test_plans_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(_run, "MAX_PLANS", 8)
    monkeypatch.setattr(_run, "_plans", {})
    for rows in range(40):
        mt.quantize_rows(torch.zeros(rows, 32))
    assert len(_run._plans) <= 8


def test_a_failure_has_a_status():
    with pytest.raises(mx8.InvalidArgument) as caught:
        mx8.lib.Context(isa="sse")
    assert caught.value.status == mx8.lib.Status.INVALID_ARGUMENT and isinstance(caught.value, ValueError)

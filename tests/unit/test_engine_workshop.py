"""Kernels of one layer are compiled and loaded side by side, the largest first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jit_kernels import CountingCompiler

import humming
from humming.engine import Site, Workshop
from humming.errors import LaunchError
from humming.expert_kernels import combine_spec
from humming.jit import Cache, KernelLibrary
from humming.jit import library as library_module

SPECS = [combine_spec(humming.number_format("bf16"), wide, True, "sm_80") for wide in (False, True)]


class Runtime:
    """Calls something for each binary that it loads."""

    name = "fake"

    def __init__(self, load: Callable[[bytes], object]) -> None:
        self.load_one, self.loaded = load, 0

    def load(self, binary: bytes, entry: str) -> object:
        assert entry == "combine_rows"
        self.loaded += 1
        return self.load_one(binary)


def made(
    tmp_path: Path, load: Callable[[bytes], object]
) -> tuple[Workshop, Site, CountingCompiler, Runtime]:
    compiler, runtime = CountingCompiler(), Runtime(load)
    workshop = Workshop(KernelLibrary(Cache(tmp_path), compiler))
    site = Site(runtime, torch.device("cpu"))  # type: ignore[arg-type]
    return workshop, site, compiler, runtime


def test_two_are_loaded_at_once_and_each_handle_is_of_its_own_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "default_threads", lambda: 2)
    both = threading.Barrier(2, timeout=20)

    def load(binary: bytes) -> bytes:
        both.wait()  # BrokenBarrierError if they come one by one
        return binary

    workshop, site, compiler, runtime = made(tmp_path, load)
    handles = workshop.load_all([*SPECS, SPECS[0]], site)
    programs = [workshop.program(spec, "cubin") for spec in SPECS]
    assert handles[:2] == [compiler.binary(program).data for program in programs]
    assert handles[2] is handles[0]
    assert workshop.load_all(SPECS, site) == handles[:2]
    assert (runtime.loaded, len(compiler.compiled)) == (2, 2)


def test_the_last_is_begun_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "default_threads", lambda: 1)
    workshop, site, compiler, _ = made(tmp_path, lambda binary: binary)
    workshop.load_all(SPECS, site)
    assert compiler.compiled == [spec.name for spec in reversed(SPECS)]


def test_what_can_not_be_loaded_is_tried_again(tmp_path: Path) -> None:
    def refuse(binary: bytes) -> object:
        raise LaunchError("combine_rows", "loading", "no device")

    workshop, site, compiler, runtime = made(tmp_path, refuse)
    for turn in (1, 2):
        with pytest.raises(LaunchError, match="no device"):
            workshop.load_all(SPECS, site)
        assert (runtime.loaded, len(compiler.compiled)) == (2 * turn, 2)
    runtime.load_one = lambda binary: binary
    assert len(set(workshop.load_all(SPECS, site))) == 2

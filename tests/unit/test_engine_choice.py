"""Which kernel a problem gets: buckets, measured rows, the cheapest, and what is said about it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import ClassVar

import core_oracle as oracle
import pytest
import torch
from fake_engine import A100, fake
from fake_kernels import FakeBackend, FakeTuning

from humming import plugins
from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.engine import CONDITIONS, Planner, bucket, buckets, choose
from humming.engine.choice import _choose
from humming.engine.measured import tuning_of, use_of
from humming.errors import ConfigError, ProfileError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.layer import prepare
from humming.profiles import DeviceProfile, TuningRow

__all__ = ["fake"]

LAYER = LayerConfig(
    n=12,
    k=64,
    weight=WeightScheme.parse("u4-g16-f16"),
    activation=ActivationScheme.parse("f16"),
    output=number_format("f16"),
)
DENSE = ComputeConfig()


def profile(*rows: tuple[dict, dict]) -> DeviceProfile:
    known = plugins.profiles()["nvidia-a100"]
    tuning = tuple(TuningRow(when=when, use=use, source="test.json") for when, use in rows)
    return dataclasses.replace(known, tuning={"fake": tuning})


def chosen(m: int, *rows: tuple[dict, dict], compute: ComputeConfig = DENSE, **layer):
    backend = FakeBackend(profile(*rows))
    return choose(backend, dataclasses.replace(LAYER, **layer), compute, Problem(m=m))


# -- buckets ---------------------------------------------------------------------------------------

EDGES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
         4096, 6144, 8192]  # fmt: skip


def test_every_size_belongs_to_the_next_edge():
    assert buckets() == EDGES
    for m in range(1, 8193):
        assert bucket(m) == next(edge for edge in EDGES if edge >= m)
    assert bucket(300_000) == 393_216
    assert buckets([5, 0, 17, 6]) == [8, 24]


# -- the cheapest ----------------------------------------------------------------------------------


def test_the_cheapest_candidate_is_chosen_and_all_are_listed():
    few, many = chosen(1), chosen(64)
    assert few.tuning == FakeTuning(threads=32, splits=2)
    assert many.tuning == FakeTuning(threads=64, splits=1)
    assert few.why == "cheapest of 4"
    costs = [cost for cost, _ in few.shortlist]
    assert costs == sorted(costs)
    assert len({tuning for _, tuning in few.shortlist}) == 4


def test_a_size_is_chosen_for_by_its_bucket():
    planner = Planner(FakeBackend(profile()), LAYER, DENSE)
    assert planner.tuning(Problem(m=3)) == chosen(4).tuning
    assert planner.tuning(Problem(m=17)) == chosen(24).tuning
    assert planner.tunings() == [
        FakeTuning(threads=32, splits=2), FakeTuning(threads=32), FakeTuning(threads=64)
    ]  # fmt: skip
    assert planner.tunings(range(9, 17)) == [FakeTuning(threads=32)]
    assert planner.tunings([]) == []


def test_a_backend_without_a_candidate_is_named(monkeypatch):
    monkeypatch.setattr(FakeBackend, "candidates", lambda *_: [])
    with pytest.raises(UnsupportedError, match=r"fake has no kernel for \[3, 64\].*m=7"):
        chosen(7, n=3)


# -- measured rows ---------------------------------------------------------------------------------

USE = {"threads": 64, "splits": 2}


def test_the_first_measured_row_that_matches_is_chosen():
    rows = [({"m": [5, 9]}, USE), ({"m": [1, 16]}, {"splits": 2, "threads": 32})]
    assert chosen(8, *rows).tuning == FakeTuning(threads=64, splits=2)
    assert chosen(8, *rows).why == "measured, test.json"
    assert chosen(10, *rows).tuning == FakeTuning(threads=32, splits=2)
    assert chosen(17, *rows).why == "cheapest of 4"


@pytest.mark.parametrize(
    ("condition", "other"),
    [
        ({"a": "f16"}, {"a": "bf16"}),
        ({"activation": "f16"}, {"activation": "s8-token-f32"}),
        ({"w": "u4"}, {"w": "s4"}),
        ({"weight": "u4-g16-f16"}, {"weight": "u4"}),
        ({"output": "f16"}, {"output": "f32"}),
        ({"n": 12}, {"n": [13, 99]}),
        ({"k": [64, 64]}, {"k": 63}),
        ({"experts": 0}, {"experts": [1, 256]}),
        ({"gemm": "dense"}, {"gemm": "indexed"}),
        ({"accumulate": ""}, {"accumulate": "f16"}),
        ({"m": 1}, {"m": [2, 4]}),
        ({"top_k": 1}, {"top_k": [2, 8]}),
    ],
)
def test_each_condition_is_about_what_it_says(condition, other):
    assert chosen(1, (condition, USE)).tuning == FakeTuning(threads=64, splits=2)
    assert chosen(1, (other, USE)).why == "cheapest of 4"
    assert condition.keys() <= CONDITIONS.keys()


def test_what_a_row_uses_can_be_a_key_of_a_set():
    """TOML has lists and tables; tunings are compared and hashed."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Tuning(FakeTuning):
        tile: tuple[tuple[int, int], ...] = ()
        how: object = None

    class Backend(FakeBackend):
        tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {"only": Tuning}

    row = TuningRow(when={}, use={"tile": [[1, 2], [3, 4]], "how": {"a": [5]}}, source="")
    tuning = tuning_of(Backend, row)
    assert tuning == Tuning(tile=((1, 2), (3, 4)), how={"a": (5,)})


def test_a_row_says_which_kind_of_tuning_it_means_where_there_are_several():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(TuningConfig):
        width: int = 1

    class Backend(FakeBackend):
        tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {"fake": FakeTuning, "other": Other}

    def meant(**use: object) -> TuningConfig:
        return tuning_of(Backend, TuningRow(when={}, use=use, source=""))

    assert meant(pipeline="other", width=3) == Other(width=3)
    assert meant(pipeline="fake", splits=2) == FakeTuning(splits=2)
    assert use_of(Backend, Other(width=3)) == {"pipeline": "other", "width": 3}
    assert meant(**use_of(Backend, FakeTuning(splits=2))) == FakeTuning(splits=2)
    assert use_of(FakeBackend, FakeTuning()) == dataclasses.asdict(FakeTuning())
    with pytest.raises(ConfigError, match="one of fake, other"):
        meant(width=3)
    with pytest.raises(TypeError, match="width"):
        meant(pipeline="fake", width=3)
    with pytest.raises(ConfigError, match="a FakeTuning or Other, for fake"):
        Planner(Backend(profile()), LAYER, DENSE, TuningConfig())


def test_a_measured_row_does_not_break_a_promise():
    strict = ComputeConfig(batch_invariant=True)
    assert chosen(1, ({"m": [1, 16]}, USE), compute=strict).tuning.splits == 1


def test_rows_that_make_no_sense_are_all_named():
    rows = [({"mm": 1}, {}), ({}, {"thread": 32}), ({"m": 1}, {"threads": 33})]
    with pytest.raises(ProfileError) as caught:
        chosen(1, *rows)
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    assert "tuning.fake[0].when.mm: expected one of a, activation, w" in text
    assert "tuning.fake[1].use: " in text
    assert "tuning.fake[2].use: threads=33: expected a multiple of 32" in text


# -- HUMMING_EXPLAIN -------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.usefixtures("fake")
def test_a_choice_is_explained_once_per_problem_if_that_is_asked(monkeypatch, caplog):
    _choose.cache_clear()
    weight = oracle.random_weight("u4-g16-f16", 12, 64)
    x = torch.randn(3, 64).half()
    caplog.set_level(logging.INFO, "humming.engine")
    prepare(weight, torch.float16, backend="fake", device=A100).run(x)
    assert not caplog.records
    _choose.cache_clear()
    monkeypatch.setenv("HUMMING_EXPLAIN", "1")
    for m in (3, 4, 3):
        prepare(weight, torch.float16, backend="fake", device=A100).run(x[:m])
    (record,) = [record for record in caplog.records if record.name == "humming.engine"]
    lines = record.getMessage().splitlines()
    assert lines[0].startswith("fake on NVIDIA A100")
    assert "m=4: FakeTuning(threads=32, splits=2, row_tile=4) (cheapest of 4)" in lines[0]
    assert len(lines) == 5
    assert lines[1].split()[:2] == ["1.00", "us"]
    assert [line.endswith("<--") for line in lines[1:]] == [True, False, False, False]
    _choose.cache_clear()


def test_an_explanation_is_seen_without_any_setting_of_logging(monkeypatch, capsys):
    logger = logging.getLogger("humming.engine")
    monkeypatch.setattr(logger, "hasHandlers", lambda: False)
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setenv("HUMMING_EXPLAIN", "1")
    logger.manager._clear_cache()
    _choose.cache_clear()
    compute = ComputeConfig(gemm=GemmKind.INDEXED)
    choose(FakeBackend(profile()), dataclasses.replace(LAYER, experts=2), compute,
           Problem(m=8, top_k=2))  # fmt: skip
    logger.manager._clear_cache()
    _choose.cache_clear()
    said = "2 x [12, 64] u4-g16-f16 x f16 -> f16, indexed, m=8, top_k=2: "
    assert said in capsys.readouterr().err

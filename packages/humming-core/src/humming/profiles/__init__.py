"""Device profiles: the facts about one device, read strictly from TOML; and matching."""

from humming.profiles.model import (
    DeviceIdentity,
    DeviceProfile,
    Features,
    Limits,
    Match,
    Rates,
    Target,
    TuningRow,
    best_matches,
)
from humming.profiles.reader import load_folder, load_profile

__all__ = [
    "DeviceIdentity",
    "DeviceProfile",
    "Features",
    "Limits",
    "Match",
    "Rates",
    "Target",
    "TuningRow",
    "best_matches",
    "load_folder",
    "load_profile",
]

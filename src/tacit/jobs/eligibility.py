"""When a device takes part: the [eligible] table of a party's policy.toml.

    [eligible] charging = true, unmetered = true, idle = 0.5, command = ["/usr/local/bin/may-train"]

A device that is not eligible is asked for nothing: it joins a training run, and says after each answer that
it can be asked again, only while it is. The server goes on with others (`--over-select`, `--deadline`) and
learns nothing but that the device is not free. Bonawitz et al., "Towards Federated Learning at Scale" (2019),
ask devices that are idle, charging and on an unmetered network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..config import toml
from ..errors import BadParameter
from ..parameters import flag, from_fields, real

log = logging.getLogger("tacit.party")
POWER = Path("/sys/class/power_supply")
LONGEST = 10.0  # seconds that a command may take


@dataclass(frozen=True)
class Eligibility:
    """The [eligible] table of policy.toml; without entries a party always takes part."""

    charging: bool = flag(False, doc="only while on external power; a machine without a battery always is")
    unmetered: bool = flag(False, doc="only while NetworkManager says that no connection is metered")
    idle: float | None = real(
        None, above=0, none=True, doc="only while the load of the last minute is at most this, for each core"
    )
    command: tuple[str, ...] = ()  # only while this command ends with 0; what it prints is the reason
    look_again: float = real(10.0, above=0, doc="seconds between two looks while the device is not eligible")

    def problems(self) -> list[str]:
        """Return what cannot be found out on this machine."""
        found: list[str] = []
        if self.charging and not POWER.is_dir():
            found.append(f"charging cannot be read here: there is no {POWER}. Use command.")
        if self.unmetered and shutil.which("nmcli") is None:
            found.append("unmetered cannot be read here: there is no nmcli (NetworkManager). Use command.")
        if self.command and shutil.which(self.command[0]) is None:
            found.append(f"command: there is no program {self.command[0]!r}.")
        return found

    def why_not(self) -> str:
        """Return "" if the device may take part now, else why not."""
        try:
            if self.charging and _is_on_battery():
                return "it runs on its battery (charging)"
        except OSError as error:  # a supply that was unplugged at this moment
            return f"its power supplies cannot be read: {error} (charging)"
        if self.idle is not None and (load := os.getloadavg()[0] / (os.cpu_count() or 1)) > self.idle:
            return f"its load is {load:.2f} for each core, above {self.idle:g} (idle)"
        if self.unmetered and (why := _metered()):
            return why
        return _ask(self.command) if self.command else ""

    async def wait(self, party: str) -> None:
        """Return as soon as the device may take part."""
        last = ""
        while why := await asyncio.to_thread(self.why_not):
            if why != last:
                log.info("party %r takes no part for now: %s", party, why)
            last = why
            await asyncio.sleep(self.look_again)


def read_eligibility(kit: Path | None) -> Eligibility:
    """Read the [eligible] table of policy.toml in the kit; without it, the party always takes part."""
    place = None if kit is None else kit / "policy.toml"
    if place is None or not place.is_file():
        return Eligibility()
    where = f"{place}, eligible"
    rule = from_fields(toml.read(place).get("eligible", {}), Eligibility, where, "a policy has no key")
    if problems := rule.problems():
        raise BadParameter("\n".join(f"{where}: {p}" for p in problems))
    return rule


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _is_on_battery() -> bool:
    """Whether there is a battery, and neither external power nor a battery that is being charged."""
    supplies = [(_read(s / "type"), s) for s in POWER.iterdir()]
    batteries = [s for kind, s in supplies if kind == "Battery" and _read(s / "scope") != "Device"]
    powered = any(_read(s / "online") == "1" for kind, s in supplies if kind != "Battery")
    charged = any(_read(s / "status") in ("Charging", "Full", "Not charging") for s in batteries)
    return bool(batteries) and not powered and not charged


def _metered() -> str:
    """Return why the network counts as metered, or ""."""
    try:
        answer = subprocess.run(
            ["nmcli", "-g", "GENERAL.METERED", "device", "show"],
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"nmcli does not say whether the network is metered: {error} (unmetered)"
    if any(line.strip().startswith("yes") for line in answer.splitlines()):
        return "its network is metered (unmetered)"
    return ""


def _ask(command: tuple[str, ...]) -> str:
    """Run the owner's command; return "" if it ends with 0, else the first line that it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"its command failed: {error} (command)"
    if done.returncode == 0:
        return ""
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()[:1]
    return f"{said[0] if said else f'its command ended with {done.returncode}'} (command)"

"""The code that a party's owner approves: jobs between real parties may name it, and no other code is run.

KIT/policy.toml   [code]
                  "fedexp:FedExP" = "9f2c…"      # the digest that `tacit code fedexp:FedExP` prints
KIT/code/         where the code may lie, besides the installed packages
"""

from __future__ import annotations

from pathlib import Path

from ..config import toml
from ..own_code import Approved, is_code
from ..parameters import refuse

FOLDER = "code"


def read_approved(kit: Path | None) -> Approved:
    """Read the [code] table of policy.toml in the kit; without it, nothing is approved."""
    place = None if kit is None else kit / "policy.toml"
    if kit is None or place is None or not place.is_file():
        return Approved()
    table = toml.table(str(place), "code", toml.read(place).get("code", {}))
    refuse(
        *(
            (
                not is_code(name) or not isinstance(digest, str) or len(digest) != 64,
                f'{place}, code: "{name}" = {digest!r}; write "package.module:name" = "the digest of 64 '
                'digits that `tacit code` prints".',
            )
            for name, digest in table.items()
        )
    )
    folder = kit / FOLDER
    return Approved(table, (folder.resolve(),) if folder.is_dir() else (), str(place))

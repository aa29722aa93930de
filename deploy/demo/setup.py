"""Write the kits of a federation and the table of each hospital: python setup.py FEDERATION.toml DIR."""

import sys
import tomllib
from pathlib import Path

from tacit import cli, data


def main(federation: str, directory: str) -> int:
    place = Path(directory)
    status = cli.main(["provision", federation, "-o", str(place / "kits")])
    if status:
        return status
    clients = tomllib.loads(Path(federation).read_text())["clients"]
    patients = data.heart_disease().table.frame
    for name in clients:
        own = patients[patients["hospital"] == name].drop(columns="hospital")
        own.to_csv(place / f"{name}.csv", index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

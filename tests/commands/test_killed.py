"""tacit psi and tacit split between real parties, one of which is killed: the other names it, says what to do, and
writes nothing.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.cli.shell import Role, provision

IDS = 60_000  # half a minute of Diffie-Hellman on one core: a kill always strikes before the end
SPLIT = """
[split]
epochs = 1000000
every = 1000000
[parties.a]
id = "id"
label = "y"
bottom = [4]
[parties.b]
id = "id"
bottom = [4]
"""


@pytest.mark.parametrize("verb", ["psi", "split"])
def test_the_other_side_of_a_killed_party_ends_with_its_name(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    count = IDS if verb == "psi" else 100
    Path("a.csv").write_text("id,x,y\n" + "".join(f"{k},{k % 7},{k % 2}\n" for k in range(count)))
    Path("b.csv").write_text("id,z\n" + "".join(f"{k},{k % 5}\n" for k in range(count)))
    Path("job.toml").write_text(SPLIT)
    words = ["psi", "--id", "id", "--method", "dh"] if verb == "psi" else ["split", "job.toml"]
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    roles: dict[str, Role] = {}
    try:
        hub.wait_for("listens on")  # the parties' patience of 1 s is not for its start
        for name in "ab":
            roles[name] = Role(
                tmp_path,
                name,
                *words,
                "--kit",
                f"kits/{name}",
                "--file",
                f"{name}.csv",
                "--out",
                f"out-{name}" + (".csv" if verb == "psi" else ""),
                "--patience",
                "1",
            )
        roles["a"].wait_for("the encrypted channel with 'b' is open")
        time.sleep(random.Random(verb).uniform(0.0, 0.3))
        os.kill(roles["b"].process.pid, signal.SIGKILL)
        assert roles["a"].wait() == 2, roles["a"].log.read_text()
        said = roles["a"].log.read_text()
        assert "party 'b' has been disconnected for" in said
        assert "and party 'a' waits for" in said
        assert "Check that party, and start again at all parties." in said
        assert not list(tmp_path.glob("out-*"))
    finally:
        for role in (*roles.values(), hub):
            if role.process.poll() is None:
                role.process.kill()
            role.wait()

"""The files under deploy/: linted, and their commands run as plain processes.

There is no container runtime, cluster or running systemd here: images are not built, and pods and units are
not started.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tacit
from tacit.cli import _parser
from tests import warm
from tests.cli.shell import Role
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tacit"


def render(text: str, values: dict[str, Any], release: str) -> str:
    """Fill in `{{ .Values.a.b }}` and `{{ .Release.Name }}`, the only expressions that the chart uses."""

    def value(found: re.Match[str]) -> str:
        where = found[1].split(".")[1:]
        if where == ["Release", "Name"]:
            return release
        assert where[0] == "Values", found[0]
        at: Any = values
        for key in where[1:]:
            at = at[key]
        return str(at)

    return re.sub(r"{{ (\.[A-Za-z.]+) }}", value, text)


def manifests() -> list[dict[str, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = []
    for file in sorted((CHART / "templates").glob("*.yaml")):
        text = render(file.read_text(), values, "hearts")
        assert "{{" not in text, file
        found += list(yaml.safe_load_all(text))
    return found


def tacit_commands() -> dict[str, list[str]]:
    """Return the arguments of every tacit command in the files."""
    found: dict[str, list[str]] = {}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        if "entrypoint" not in service:
            found[f"compose {name}"] = service["command"]
    for file in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(file.read_text().replace("\\\n", ""))
        found.update(_of_shell(f"systemd {file.stem}", unit["Service"]["ExecStart"]))
    for each in manifests():
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            name = f"helm {each['metadata']['name']}"
            if "args" in container:
                found[name] = container["args"]
            else:
                found.update(_of_shell(name, shlex.join(container["command"])))
    return found


def _of_shell(name: str, line: str) -> dict[str, list[str]]:
    """Return the commands of `tacit …`, or of `sh -c 'if …; then set -- A; else set -- B; fi; exec tacit … "$@"'`."""
    words = shlex.split(line)
    if Path(words[0]).name == "tacit":
        return {name: words[1:]}
    script = words[2]
    (command,) = re.findall(r'exec (?:/opt/tacit/bin/)?tacit (.*) "\$@"', script)
    ways = re.findall(r"set -- (.*?);", script)
    assert len(ways) == 2, script
    return {f"{name} ({i})": [*shlex.split(command), *shlex.split(way)] for i, way in enumerate(ways)}


COMMANDS = tacit_commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_files_is_one_that_tacit_takes(name: str) -> None:
    assert len(COMMANDS) == 4 + 1 + 4 + 3  # nothing was overlooked: compose, systemd and the chart
    args = _parser().parse_args([str(word) for word in COMMANDS[name]])
    assert args.kit


def test_the_commands_of_compose_train_a_model(tmp_path: Path) -> None:
    """setup, hub, server and three hospitals in their containers' commands, with other paths and another port."""
    demo = tmp_path / "demo"
    shutil.copytree(DEPLOY / "demo", demo)
    port = free_port()
    charter = (demo / "federation.toml").read_text()
    charter = charter.replace("hub:8443", f"127.0.0.1:{port}").replace("0.0.0.0:8443", f"127.0.0.1:{port}")
    (demo / "federation.toml").write_text(charter)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    def here(words: list[str]) -> list[str]:
        words = [w.replace("/work", str(tmp_path)).replace("/demo/", f"{demo}/") for w in words]
        return [str(free_port()) if w == "9100" else w for w in words]

    python, *setup = here(services["setup"]["entrypoint"])
    assert python == "python"
    made = warm.run([sys.executable, *setup], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    roles = {
        name: Role(tmp_path, name, *here(s["command"])) for name, s in services.items() if "command" in s
    }
    try:
        assert [roles[n].wait() for n in ("server", "cleveland", "hungarian", "va")] == [0, 0, 0, 0], {
            name: role.log.read_text()[-600:] for name, role in roles.items()
        }
    finally:
        for role in roles.values():
            role.process.kill()
            role.wait()
    assert (tmp_path / "runs" / "demo" / "report.html").exists()
    assert "accuracy" in roles["server"].log.read_text()


def test_the_image_and_the_units_pass_their_linters(tmp_path: Path) -> None:
    """hadolint for the Dockerfile, systemd-analyze for the units with a tacit where they expect it."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    if (analyze := shutil.which("systemd-analyze")) is None:
        return  # not a machine with systemd
    for file in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = tmp_path / file.name
        unit.write_text(file.read_text().replace("/opt/tacit/bin/tacit", "/bin/true"))
        done = subprocess.run(
            [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_what_the_image_needs_reaches_its_build() -> None:
    """`.dockerignore` lets through what the Dockerfile copies, and no more than the package."""
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert set(" ".join(copied).split()) == let_through
    assert all((ROOT / name).exists() for name in let_through)


def test_nothing_runs_as_root_or_with_more_rights_than_it_needs() -> None:
    assert re.search(r"^USER 10001:10001$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for each in manifests():
        pod = each.get("spec", {}).get("template", {}).get("spec")
        if pod is not None:
            assert pod["securityContext"]["runAsNonRoot"]
            assert not pod["automountServiceAccountToken"]
            for container in pod["containers"]:
                rights = container["securityContext"]
                assert rights["readOnlyRootFilesystem"]
                assert not rights["allowPrivilegeEscalation"]
                assert rights["capabilities"] == {"drop": ["ALL"]}
                names = {v["name"] for v in pod["volumes"]}
                assert {m["name"] for m in container["volumeMounts"]} <= names


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == tacit.__version__

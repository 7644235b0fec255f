"""The compose file."""

import json
import pathlib
import subprocess
import sys

import jsonschema
import yaml

from problems import Problems

FILE = pathlib.Path("deploy/compose/compose.yaml")


def check_compose(problems: Problems) -> None:
    compose = yaml.safe_load(FILE.read_text())
    schema = pathlib.Path(sys.prefix) / "compose_spec.json"
    if schema.exists():
        validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))
        # The name of a project came into the format later than this schema.
        known = {key: value for key, value in compose.items() if key != "name"}
        for error in validator.iter_errors(known):
            problems.expect(False, f"{FILE}: {error.json_path}: {error.message}")
        print(f"{FILE}: the schema of compose files")
    # A reader of such files resolves it; what it would start is not needed for that.
    reader = pathlib.Path(sys.prefix) / "bin/podman-compose"
    asked = [reader, "--podman-path", "/bin/echo", "--file", FILE, "config"]
    read = subprocess.run(asked, capture_output=True, text=True)
    problems.expect(read.returncode == 0, f"{FILE}: {read.stderr}")
    resolved = yaml.safe_load(read.stdout) or {}
    services = resolved.get("services", {})
    problems.expect(
        set(services) == set(compose["services"]), f"{FILE}: services are lost when it is read"
    )
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source.startswith("."):
                there = (FILE.parent / source).exists()
                problems.expect(there, f"{FILE}: {name} mounts {source}, which is not there")
            elif not source.startswith("/"):
                known = source in compose.get("volumes", {})
                problems.expect(known, f"{FILE}: {name} mounts {source}, which is no volume")
    print(f"{FILE}: {len(services)} services, read and resolved")

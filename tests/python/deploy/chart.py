"""The Helm chart: linted and rendered by Helm's library, judged by the API's schemas."""

import tomllib
from typing import Any, Iterator

import helm_python as helm
import kubernetes_validate
import yaml

from problems import Problems

CHART = "deploy/helm/volley"
# The oldest that the chart speaks to, and the newest that is known here.
KUBERNETES = ["1.27", kubernetes_validate.latest_version()]
# Kinds that no Kubernetes has by itself.
FOREIGN = {("monitoring.coreos.com/v1", "PodMonitor")}
VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "everything on": {
        "image": {"repository": "registry.example/volley", "tag": "1.2.3"},
        "security": {"bootstrapKeySecret": "key", "nodesTls": True},
        "coordinators": {"replicas": 5, "storageClass": "fast", "extraConfig": "[requests]\nmax_concurrent = 5\n"},
        "workers": {
            "replicas": 4,
            "extraConfig": '[onnx]\ndevice = "cuda"\n',
            "nodeSelector": {"gpu": "yes"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "runtimeClassName": "nvidia",
        },
        "podMonitor": {"enabled": True},
        "networkPolicy": {"enabled": True},
    },
    "a pod's volume was lost": {"coordinators": {"ids": {"0": 4}}},
    "everything off": {
        "coordinators": {"bootstrap": 1, "replicas": 1},
        "workers": {"replicas": 1},
        "networkPolicy": {"enabled": False},
    },
}


def check_chart(problems: Problems) -> None:
    linted = helm.lint(CHART, strict=True)
    for error in linted["errors"]:
        problems.expect(False, f"{CHART}: {error}")
    # 1 is advice.
    for message in linted["messages"]:
        problems.expect(message["severity"] < 2, f"{CHART}: {message}")
    print(f"{CHART}: linted by Helm {helm.helm_sdk_version()}")
    for name, values in VALUES.items():
        with helm.Chart.load(CHART) as chart:
            rendered = chart.render(values, name="demo", namespace="prod")
        manifests = [
            manifest
            for text in rendered.values()
            for manifest in yaml.safe_load_all(text)
            if manifest is not None
        ]
        check_manifests(manifests, name, problems)
        check_ids(manifests, values.get("coordinators", {}).get("ids", {}), name, problems)
        print(f"{CHART}, {name}: {len(manifests)} manifests for Kubernetes {' and '.join(KUBERNETES)}")


def check_manifests(manifests: list[dict[str, Any]], name: str, problems: Problems) -> None:
    for manifest in manifests:
        kind = (manifest["apiVersion"], manifest["kind"])
        if kind in FOREIGN:
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except Exception as error:  # Whatever it is, the manifest is not as it should be.
                where = manifest["metadata"]["name"]
                problems.expect(False, f"{name}: {kind[1]} {where} for {version}: {error}")
    pods = {
        set_["metadata"]["name"]: set_["spec"]["template"]
        for set_ in manifests
        if set_["kind"] == "StatefulSet"
    }
    problems.expect(len(pods) == 2, f"{name}: {sorted(pods)} instead of two sets")
    for manifest in manifests:
        for selector in selectors(manifest):
            chosen = [pod for pod in pods.values() if chooses(selector, pod)]
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            problems.expect(bool(chosen), f"{name}: {what} chooses no pod: {selector}")
        if manifest["kind"] == "Service":
            check_ports(manifest, pods, name, problems)
        if manifest["kind"] == "ConfigMap":
            check_files(manifest, manifests, name, problems)
    for pod in pods.values():
        check_pod(pod, manifests, name, problems)


def check_ids(manifests: list[Any], ids: dict[str, int], name: str, problems: Problems) -> None:
    """A pod whose volume was lost has its new id and a directory of that id, and waits to be let in."""
    config = next(one for one in manifests if one["kind"] == "ConfigMap")
    for file, text in config["data"].items():
        read = tomllib.loads(text)
        role, ordinal = file.removesuffix(".toml").split("-")[-2:]
        if role != "coordinator":
            continue
        replaced = ids.get(ordinal)
        wanted = replaced or int(ordinal) + 1
        problems.expect(read["node"]["id"] == wanted, f"{name}: {file} has id {read['node']['id']}")
        waits = read["cluster"].get("await_invitation", False)
        problems.expect(waits == bool(replaced), f"{name}: {file}: await_invitation is {waits}")
        problems.expect(read["version"] == 1, f"{name}: {file} has version {read['version']}")
        own = read["node"]["data_dir"].endswith(f"coordinator-{replaced}")
        problems.expect(own == bool(replaced), f"{name}: {file} keeps {read['node']['data_dir']}")


def selectors(manifest: dict[str, Any]) -> Iterator[dict[str, str]]:
    spec = manifest.get("spec", {})
    for selector in (spec.get("selector"), spec.get("podSelector")):
        if selector:
            yield selector.get("matchLabels", selector)


def chooses(selector: dict[str, str], pod: dict[str, Any]) -> bool:
    labels = pod["metadata"]["labels"]
    return all(labels.get(label) == value for label, value in selector.items())


def check_ports(service: Any, pods: Any, name: str, problems: Problems) -> None:
    chosen = [pod for pod in pods.values() if chooses(service["spec"]["selector"], pod)]
    for port in service["spec"]["ports"]:
        target = port.get("targetPort", port["port"])
        known = [
            value
            for pod in chosen
            for container in pod["spec"]["containers"]
            for there in container["ports"]
            for value in (there["name"], there["containerPort"])
        ]
        what = f"{name}: Service {service['metadata']['name']}"
        problems.expect(target in known, f"{what} leads to {target}, which no pod has")


def check_files(config: Any, manifests: list[Any], name: str, problems: Problems) -> None:
    """Each pod finds its file, and the file is TOML that names the pod's own address."""
    sets = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    wanted = {
        f"{set_['metadata']['name']}-{ordinal}.toml": set_["spec"]["serviceName"]
        for set_ in sets
        for ordinal in range(set_["spec"]["replicas"])
    }
    files = config["data"]
    problems.expect(set(files) == set(wanted), f"{name}: files {sorted(files)}, pods {sorted(wanted)}")
    services = {one["metadata"]["name"] for one in manifests if one["kind"] == "Service"}
    for file, text in files.items():
        try:
            read = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            problems.expect(False, f"{name}: {file}: {error}\n{text}")
            continue
        service = wanted.get(file, "")
        own = f"{file.removesuffix('.toml')}.{service}.prod.svc"
        host = read["listen"]["advertise"].split(":")[0]
        problems.expect(host == own, f"{name}: {file} advertises {host}, and is {own}")
        problems.expect(service in services, f"{name}: there is no Service {service}")


def check_pod(pod: Any, manifests: list[Any], name: str, problems: Problems) -> None:
    spec = pod["spec"]
    claims = {
        claim["metadata"]["name"]
        for set_ in manifests
        for claim in set_.get("spec", {}).get("volumeClaimTemplates", [])
        if set_["spec"]["template"] is pod
    }
    volumes = {volume["name"] for volume in spec["volumes"]} | claims
    maps = {one["metadata"]["name"] for one in manifests if one["kind"] == "ConfigMap"}
    for volume in spec["volumes"]:
        if "configMap" in volume:
            known = volume["configMap"]["name"] in maps
            problems.expect(known, f"{name}: a volume of {volume['configMap']['name']}")
    for container in spec["containers"]:
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        problems.expect(mounted <= volumes, f"{name}: mounts {mounted - volumes} without volumes")
        ports = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            port = container[probe]["httpGet"]["port"]
            problems.expect(port in ports, f"{name}: {probe} at {port}")
        security = container["securityContext"]
        safe = security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        problems.expect(safe, f"{name}: a container may do more than it must")
    drain = 30
    problems.expect(
        drain < spec["terminationGracePeriodSeconds"], f"{name}: pods are killed while they drain"
    )

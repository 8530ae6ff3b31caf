#!/usr/bin/env python3
"""deploy/kubernetes: the output of `kubectl kustomize` has the fields of the Kubernetes API, and no other; its parts fit
together; the programs know its flags.

    kubernetes_test.py SOURCE_TREE [unittest arguments]

Skipped without python3-yaml. Without kubectl it reads the files that kustomization.yaml lists, and reports it.
"""

import copy
import json
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    print("kubernetes_test: skipped: there is no python3-yaml (deploy/setup.sh --tests)")
    sys.exit(77)

SOURCE = Path(sys.argv.pop(1)).resolve()
FOLDER = SOURCE / "deploy/kubernetes"
HELP = SOURCE / "tests/integration/help"
# models.json, from npm packages (read_models.mjs), and JobSet. No package has its schema: these fields were written by hand from the Go types of its
# version v1alpha2. So a field that this table lacks is refused, and a wrong name here would pass.
MODELS = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8")) | {
    "JobSet": {"apiVersion!": "string", "kind!": "string", "metadata!": "V1ObjectMeta", "spec!": "JobSetSpec"},
    "JobSetSpec": {"replicatedJobs!": "Array<ReplicatedJob>", "network": "JobSetNetwork", "successPolicy": "JobSetSuccessPolicy",
                   "failurePolicy": "JobSetFailurePolicy", "startupPolicy": "JobSetStartupPolicy", "suspend": "boolean", "managedBy": "string",
                   "ttlSecondsAfterFinished": "number"},
    "ReplicatedJob": {"name!": "string", "template!": "V1JobTemplateSpec", "replicas": "number"},
    "JobSetNetwork": {"enableDNSHostnames": "boolean", "subdomain": "string", "publishNotReadyAddresses": "boolean"},
    "JobSetSuccessPolicy": {"operator!": "string", "targetReplicatedJobs": "Array<string>"},
    "JobSetFailurePolicy": {"maxRestarts": "number", "restartStrategy": "string", "rules": "Array<JobSetFailurePolicyRule>"},
    "JobSetFailurePolicyRule": {"name!": "string", "action!": "string", "onJobFailureReasons": "Array<string>", "targetReplicatedJobs": "Array<string>"},
    "JobSetStartupPolicy": {"startupPolicyOrder!": "string"},
}
KINDS = {("apps/v1", "StatefulSet"): "V1StatefulSet", ("v1", "Service"): "V1Service", ("v1", "Secret"): "V1Secret", ("v1", "ConfigMap"): "V1ConfigMap",
         ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget", ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
         ("monitoring.coreos.com/v1", "ServiceMonitor"): "ServiceMonitor", ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobSet"}
PLAIN = {"string": str, "number": (int, float), "boolean": bool, "IntOrString": (int, str), "any": object, "Date": object}
KUBECTL = shutil.which("kubectl")
NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")


def faults_of(value, kind, where):
    """Yields a sentence for each field that is unknown, missing, or of another type."""
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (kind != "boolean" and kind not in ("any", "Date") and isinstance(value, bool)):
            yield f"{where}: {value!r} is no {kind}"
    elif match := re.fullmatch(r"(Array|Map|Set)<(.*)>", kind):
        is_map = match.group(1) == "Map"
        if not isinstance(value, dict if is_map else list):
            yield f"{where}: {value!r} is no {kind}"
            return
        for key, one in value.items() if is_map else enumerate(value):
            yield from faults_of(one, match.group(2), f"{where}[{key}]")
    else:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no {kind}"
            return
        fields = {name.rstrip("!"): one for name, one in MODELS[kind].items()}
        for name in MODELS[kind]:
            if name.endswith("!") and name[:-1] not in value:
                yield f"{where}: {name[:-1]} is missing"
        for name, one in value.items():
            if name not in fields:
                yield f"{where}: {kind} has no field {name}"
            else:
                yield from faults_of(one, fields[name], f"{where}.{name}")


def faults_of_object(one):
    kind = KINDS.get((one.get("apiVersion"), one.get("kind")))
    if kind is None:
        return [f"unknown kind {one.get('apiVersion')} {one.get('kind')}"]
    return list(faults_of(one, kind, one["kind"]))


def listed(folder):
    """Returns the objects of the files that the folder's kustomization.yaml lists."""
    names = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return [one for name in names for one in yaml.safe_load_all((FOLDER / folder / name).read_text(encoding="utf-8"))]


def built(folder):
    """Returns the output of `kubectl kustomize`, or the listed files where there is no kubectl."""
    if not KUBECTL:
        return listed(folder)
    ended = subprocess.run([KUBECTL, "kustomize", FOLDER / folder], capture_output=True, text=True, timeout=120, check=True)
    return list(yaml.safe_load_all(ended.stdout))


OBJECTS = {folder: built(folder) for folder in ("base", "example")}


def one_of(folder, kind):
    found = [one for one in OBJECTS[folder] if one["kind"] == kind]
    assert len(found) == 1, found
    return found[0]


def shards():
    return one_of("base", "StatefulSet")


def worker_job():
    return one_of("example", "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]


def container_of(template):
    (container,) = template["spec"]["containers"]
    return container


def flags_of(container):
    """Returns the value of each flag of the form --name=value."""
    return dict(re.fullmatch(r"--([\w-]+)=(.*)", one).groups() for one in container["args"])


def matches(selector, labels):
    return selector["matchLabels"].items() <= labels.items()


class SchemaTest(unittest.TestCase):
    def test_EveryObjectHasTheFieldsOfTheApi(self):
        self.assertEqual(sorted(one["kind"] for one in OBJECTS["base"]),
                         ["NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceMonitor", "StatefulSet"])
        self.assertEqual(sorted(one["kind"] for one in OBJECTS["example"]), ["JobSet", "Service", "ServiceMonitor"])
        for one in OBJECTS["base"] + OBJECTS["example"]:
            self.assertEqual(faults_of_object(one), [])
            self.assertRegex(one["metadata"]["name"], NAME)

    def test_FaultsAreFound(self):
        def changed(change):
            one = copy.deepcopy(shards())
            change(one["spec"])
            return faults_of_object(one)

        self.assertEqual(changed(lambda spec: spec.update(replica=2)), ["StatefulSet.spec: V1StatefulSetSpec has no field replica"])
        self.assertEqual(changed(lambda spec: spec.update(replicas="2")), ["StatefulSet.spec.replicas: '2' is no number"])
        self.assertEqual(changed(lambda spec: spec.pop("selector")), ["StatefulSet.spec: selector is missing"])
        self.assertEqual(changed(lambda spec: container_of(spec["template"])["readinessProbe"]["httpGet"].pop("port")),
                         ["StatefulSet.spec.template.spec.containers[0].readinessProbe.httpGet: port is missing"])
        self.assertEqual(changed(lambda spec: container_of(spec["template"]).update(args=[2])),
                         ["StatefulSet.spec.template.spec.containers[0].args[0]: 2 is no string"])
        monitor = copy.deepcopy(one_of("base", "ServiceMonitor"))
        monitor["spec"]["endpoints"][0].update(scrapeTimeouts="1s", metricRelabelings=[{"sourceLabel": "job"}])
        self.assertEqual(faults_of_object(monitor), ["ServiceMonitor.spec.endpoints[0].metricRelabelings[0]: MonitorRelabelConfig has no field sourceLabel",
                                                     "ServiceMonitor.spec.endpoints[0]: MonitorEndpoint has no field scrapeTimeouts"])
        self.assertEqual(faults_of_object({"apiVersion": "v2", "kind": "Service"}), ["unknown kind v2 Service"])

    @unittest.skipUnless(KUBECTL, "there is no kubectl")
    def test_KustomizeChangesNothing(self):
        def key(one):
            return one["kind"]

        for folder, objects in OBJECTS.items():
            self.assertEqual(sorted(objects, key=key), sorted(listed(folder), key=key))


class FitTest(unittest.TestCase):
    def test_SelectorsMeetTheirPods(self):
        shard, worker = shards()["spec"]["template"]["metadata"]["labels"], worker_job()["template"]["metadata"]["labels"]
        self.assertTrue(matches(shards()["spec"]["selector"], shard))
        self.assertTrue(matches(one_of("base", "PodDisruptionBudget")["spec"]["selector"], shard))
        self.assertFalse(matches(one_of("base", "PodDisruptionBudget")["spec"]["selector"], worker))
        for folder, labels, other in (("base", shard, worker), ("example", worker, shard)):
            service = one_of(folder, "Service")
            self.assertTrue(matches({"matchLabels": service["spec"]["selector"]}, labels))
            self.assertFalse(matches({"matchLabels": service["spec"]["selector"]}, other))
            monitor = one_of(folder, "ServiceMonitor")["spec"]
            self.assertTrue(matches(monitor["selector"], service["metadata"]["labels"]))
            self.assertLessEqual({one["port"] for one in monitor["endpoints"]}, {one["name"] for one in service["spec"]["ports"]})
            self.assertTrue(all(one["honorLabels"] for one in monitor["endpoints"]))
            for one in monitor["endpoints"]:  # one name a job, over all namespaces
                self.assertEqual(one["metricRelabelings"], [{"sourceLabels": ["namespace", "job"], "separator": "/", "targetLabel": "job"}])

    def test_TheScrapeJobsAreThoseOfTheAlerts(self):
        jobs = {one["job_name"] for one in yaml.safe_load((SOURCE / "monitoring/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]}
        for folder in OBJECTS:
            label = one_of(folder, "ServiceMonitor")["spec"]["jobLabel"]
            self.assertIn(one_of(folder, "Service")["metadata"]["labels"][label], jobs)

    def test_PortsOfServicesPoliciesAndProbesAreThoseOfTheContainer(self):
        container = container_of(shards()["spec"]["template"])
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        flags = flags_of(container)
        self.assertEqual(flags["listen"], f"0.0.0.0:{ports['messages']}")
        self.assertEqual(flags["http"], f"0.0.0.0:{ports['http']}")
        self.assertEqual({one["name"]: (one["port"], one["targetPort"]) for one in one_of("base", "Service")["spec"]["ports"]},
                         {name: (port, name) for name, port in ports.items()})
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            self.assertEqual(container[probe]["httpGet"], {"path": path, "port": "http"})
        policy = one_of("base", "NetworkPolicy")["spec"]
        self.assertTrue(matches(policy["podSelector"], shards()["spec"]["template"]["metadata"]["labels"]))
        table_port = int(flags["table"].rsplit(":", 1)[1])
        self.assertIn(table_port, [one["port"] for rule in policy["egress"] for one in rule["ports"]])

    def test_ThePolicyOpensOnlyTheNecessaryPorts(self):
        policy = one_of("base", "NetworkPolicy")["spec"]
        shard, worker = shards()["spec"]["template"]["metadata"]["labels"], worker_job()["template"]["metadata"]["labels"]
        prometheus, other = {"app.kubernetes.io/name": "prometheus"}, {"app.kubernetes.io/name": "other"}

        def ports(rules, side, labels, *, same_namespace=True):
            """Returns the ports that the rules of one direction open between the shards and a pod with these labels."""
            return {port["port"] for rule in rules for peer in rule[side] for port in rule["ports"]
                    if matches(peer["podSelector"], labels) and (same_namespace or "namespaceSelector" in peer)}

        # Each shard asks the others' HTTP ports for its page (deploy/OPERATING.md), and `millrace doctor` in its pod does.
        expected = {"shard": (shard, {"messages", "http"}), "worker": (worker, {"messages"}), "prometheus": (prometheus, {"http"}), "other": (other, set())}
        for name, (labels, opened) in expected.items():
            self.assertEqual(ports(policy["ingress"], "from", labels), opened, name)
        self.assertEqual(ports(policy["egress"], "to", shard), {"messages", "http"})
        for labels in (worker, prometheus, other):
            self.assertEqual(ports(policy["egress"], "to", labels), set())
        self.assertEqual(ports(policy["ingress"], "from", prometheus, same_namespace=False), {"http"})
        for labels in (shard, worker):
            self.assertEqual(ports(policy["ingress"], "from", labels, same_namespace=False), set())

    def test_NumbersThatAreWrittenTwiceAreEqual(self):
        spec = shards()["spec"]
        flags = flags_of(container_of(spec["template"]))
        self.assertEqual(flags["shards"], str(spec["replicas"]))
        self.assertEqual(spec["serviceName"], one_of("base", "Service")["metadata"]["name"])
        self.assertEqual(flags["advertise"], f"$(POD_NAME).{spec['serviceName']}:7600")
        job = worker_job()
        worker = flags_of(container_of(job["template"]))
        self.assertEqual((job["parallelism"], job["completions"], job["completionMode"]), (int(worker["workers"]), int(worker["workers"]), "Indexed"))
        self.assertEqual(worker["servers"].split(","),
                         [f"{shards()['metadata']['name']}-{one}.{spec['serviceName']}:7600" for one in range(spec["replicas"])])
        self.assertGreater(spec["template"]["spec"]["terminationGracePeriodSeconds"], 10)  # --drain

    def test_KeysAreMountedWhereTheFlagsLookForThem(self):
        def sources(template):
            """Returns the Secret or ConfigMap of each mounted folder, and its mode."""
            volumes = {one["name"]: one for one in template["spec"]["volumes"]}
            for mount in container_of(template)["volumeMounts"]:
                volume = volumes[mount["name"]]
                if "secret" in volume or "configMap" in volume:
                    self.assertIs(mount["readOnly"], True)
                    secret = volume.get("secret", {})
                    yield mount["mountPath"], (secret.get("secretName") or volume["configMap"]["name"], secret.get("defaultMode"))

        shard, worker = shards()["spec"]["template"], worker_job()["template"]
        self.assertEqual(dict(sources(shard)), {"/keys/cluster": ("millrace-cluster-key", 0o440), "/keys/allowed": ("millrace-allowed-keys", None)})
        self.assertEqual(dict(sources(worker)), {"/keys": ("millrace-worker-key", 0o440)})
        flags = flags_of(container_of(shard))
        self.assertEqual((flags["key"], flags["allowed-keys"]), ("/keys/cluster/cluster.key", "/keys/allowed"))
        flags = flags_of(container_of(worker))
        self.assertEqual((flags["key"], flags["server-key"]), ("/keys/worker.key", "/keys/cluster.pub"))
        made = (FOLDER / "README.md").read_text(encoding="utf-8")
        for name, files in (("secret generic millrace-cluster-key", ["cluster.key"]), ("configmap millrace-allowed-keys", ["worker.pub"]),
                            ("secret generic millrace-worker-key", ["worker.key", "cluster.pub"])):
            self.assertIn(f"kubectl create {name} " + " ".join(f"--from-file=keys/{one}" for one in files), made)

    def test_TheProgramsKnowTheFlags(self):
        for container, page in ((container_of(shards()["spec"]["template"]), "millrace-server.txt"),
                                (container_of(worker_job()["template"]), "millrace_train.txt")):
            text = (HELP / page).read_text(encoding="utf-8")
            for flag in flags_of(container):
                self.assertRegex(text, rf"--{flag}[ =\n]")

    def test_PodsHaveNoRightsThatTheyDoNotNeed(self):
        for template in (shards()["spec"]["template"], worker_job()["template"]):
            self.assertIs(template["spec"]["automountServiceAccountToken"], False)
            self.assertIs(template["spec"]["securityContext"]["runAsNonRoot"], True)
            security = container_of(template)["securityContext"]
            self.assertEqual((security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"], security["capabilities"]),
                             (False, True, {"drop": ["ALL"]}))
            mounts = {one["name"] for one in container_of(template)["volumeMounts"]}
            self.assertEqual(mounts, {one["name"] for one in template["spec"]["volumes"]})

    def test_TheImageHasNoRegistry(self):
        # The user names the registry; a name here would be of an image that does not exist.
        for template in (shards()["spec"]["template"], worker_job()["template"]):
            self.assertEqual(container_of(template)["image"], "millrace")


if __name__ == "__main__":
    if not KUBECTL:
        print("kubernetes_test: skipped in part: there is no kubectl (Debian's kubernetes-client), so Kustomize built nothing")
    unittest.main()

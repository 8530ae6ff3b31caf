#!/usr/bin/env python3
"""deploy/kubernetes: the output of `kubectl kustomize` has the fields of the Kubernetes API, and no other; its parts fit
together; the programs know its flags.

    kubernetes_test.py SOURCE_TREE [unittest arguments]

Skipped without python3-yaml. Without kubectl of 1.21 or later it reads the files that kustomization.yaml lists, skips the
components, and reports it.
"""

import copy
import json
import re
import shutil
import subprocess
import sys
import tempfile
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
NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")


def usable_kubectl():
    """Returns kubectl, if its Kustomize knows components: Debian 12's 1.20 does not."""
    program = shutil.which("kubectl")
    if not program:
        return None
    said = subprocess.run([program, "kustomize", "--help"], capture_output=True, text=True, timeout=120, check=False)
    return program if "--load-restrictor" in said.stdout else None


KUBECTL = usable_kubectl()


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


def kustomized(folder):
    ended = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return list(yaml.safe_load_all(ended.stdout))


def built(folder):
    """Returns the output of `kubectl kustomize`, or the listed files where there is no kubectl."""
    return kustomized(FOLDER / folder) if KUBECTL else listed(folder)


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


SECRET_FILES = {"keys/cluster.key": "millrace-cluster-key", "keys/worker.key": "millrace-worker-key", "keys/cluster.pub": "millrace-worker-key",
                "http/tls.crt": "millrace-http-tls", "http/tls.key": "millrace-http-tls", "http/ca.crt": "millrace-http-tls",
                "http/token": "millrace-http-token"}
PLAIN_FILES = {"keys/worker.pub": "millrace-allowed-keys", "policy": "millrace-policy"}


@unittest.skipUnless(KUBECTL, "there is no kubectl of 1.21 or later")
class SecureTest(unittest.TestCase):
    """The components, as secure/ puts them together, and on the example."""

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="kubernetes")
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name) / "kubernetes"
        shutil.copytree(FOLDER, cls.folder)
        for name in [*SECRET_FILES, *PLAIN_FILES]:
            path = cls.folder / "secure" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"text of {name}\n", encoding="utf-8")
        cls.secure = kustomized(cls.folder / "secure")
        cls.example = cls.with_component("example", "http-tls")

    @classmethod
    def with_component(cls, base, component):
        overlay = cls.folder / f"{base}-{component}"
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(f"resources: [../{base}]\ncomponents: [../components/{component}]\n", encoding="utf-8")
        return kustomized(overlay)

    def named(self, kind, name):
        (found,) = [one for one in self.secure if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def pods(self):
        """Returns the pod templates of shards, spares and workers."""
        (jobs,) = [one for one in self.example if one["kind"] == "JobSet"]
        return {"shards": self.named("StatefulSet", "millrace-shards")["spec"]["template"],
                "spares": self.named("StatefulSet", "millrace-spares")["spec"]["template"],
                "workers": jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]}

    @staticmethod
    def bare(container):
        """Returns the container's flags, those without a value as well."""
        return {(parts := one.removeprefix("--").split("=", 1))[0]: parts[1] if len(parts) > 1 else "" for one in container["args"]}

    def test_EveryObjectHasTheFieldsOfTheApi(self):
        for one in self.secure + self.example:
            self.assertEqual(faults_of_object(one), [])

    def test_NoHttpPortIsOpen(self):
        for name, template in self.pods().items():
            with self.subTest(name):
                flags = self.bare(container_of(template))
                self.assertNotIn("http-insecure", flags)
                self.assertEqual(flags["http-tls"], "/keys/http/tls.crt,/keys/http/tls.key")
                self.assertEqual(flags["http-token-file"], "/keys/token/token")
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    self.assertEqual(container_of(template).get(probe, {"httpGet": {"scheme": "HTTPS"}})["httpGet"]["scheme"], "HTTPS")
        for name in ("shards", "spares"):
            self.assertEqual(self.bare(container_of(self.pods()[name]))["http-ca"], "/keys/http/ca.crt")
        for monitor in [one for one in self.secure + self.example if one["kind"] == "ServiceMonitor"]:
            (endpoint,) = monitor["spec"]["endpoints"]
            self.assertEqual((endpoint["scheme"], endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]),
                             ("https", {"name": "millrace-http-tls", "key": "ca.crt"}, {"name": "millrace-http-token", "key": "token"}))
            self.assertEqual(endpoint["tlsConfig"]["serverName"], "millrace")

    def test_EveryFileOfAFlagIsInAMountedSecretOrConfigMap(self):
        keys = {(one["metadata"]["name"], key) for one in self.secure if one["kind"] in ("Secret", "ConfigMap") for key in one["data"]}
        self.assertEqual(keys, {(kind, Path(name).name) for name, kind in (SECRET_FILES | PLAIN_FILES).items()})
        files = {"shards": ("key", "policy", "http-tls", "http-token-file", "http-ca"), "spares": ("key", "policy", "http-tls", "http-token-file", "http-ca"),
                 "workers": ("key", "server-key", "http-tls", "http-token-file")}
        for name, template in self.pods().items():
            volumes = {one["name"]: one for one in template["spec"]["volumes"]}
            folders = {}
            for mount in container_of(template)["volumeMounts"]:
                volume = volumes[mount["name"]]
                folders[mount["mountPath"]] = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
                if "secret" in volume:
                    self.assertEqual(volume["secret"]["defaultMode"], 0o440)
            flags = self.bare(container_of(template))
            for path in [Path(path) for flag in files[name] for path in flags[flag].split(",")]:
                self.assertIn((folders[str(path.parent)], path.name), keys, f"{name}: {path}")

    def test_ASpareIsAShardWithoutANumber(self):
        shard, spare = self.pods()["shards"], self.pods()["spares"]
        flags, of_shard = self.bare(container_of(spare)), self.bare(container_of(shard))
        self.assertEqual(flags.pop("spare"), "")
        self.assertEqual(flags, {name: value for name, value in of_shard.items() if name not in ("shard", "shards")})
        for name in ("terminationGracePeriodSeconds", "volumes", "securityContext", "automountServiceAccountToken"):
            self.assertEqual(spare["spec"][name], shard["spec"][name])
        for name in ("image", "ports", "resources", "volumeMounts", "securityContext", "startupProbe", "livenessProbe"):
            self.assertEqual(container_of(spare)[name], container_of(shard)[name])
        self.assertNotIn("readinessProbe", container_of(spare), "/readyz of a spare that waits says no")
        # The names that both advertise are of the Service; the StatefulSets and the PodDisruptionBudget go by the component.
        labels, of_spares = spare["metadata"]["labels"], self.named("StatefulSet", "millrace-spares")["spec"]
        self.assertTrue(matches({"matchLabels": self.named("Service", "millrace-shards")["spec"]["selector"]}, labels))
        self.assertEqual(of_spares["serviceName"], "millrace-shards")
        self.assertEqual(of_spares["updateStrategy"], {"type": "OnDelete"}, "one that has a number is a shard")
        self.assertTrue(matches(of_spares["selector"], labels))
        self.assertFalse(matches(shards()["spec"]["selector"], labels))
        self.assertFalse(matches(self.named("PodDisruptionBudget", "millrace-shards")["spec"]["selector"], labels), "a spare that waits is not ready")
        policy = self.named("NetworkPolicy", "millrace-shards")["spec"]
        self.assertTrue(matches(policy["podSelector"], labels))
        for rule, side in [(rule, "from") for rule in policy["ingress"]] + [(rule, "to") for rule in policy["egress"]]:
            for peer in rule[side]:
                self.assertEqual(matches(peer["podSelector"], shard["metadata"]["labels"]), matches(peer["podSelector"], labels))

    def test_TheProgramsKnowTheFlags(self):
        for name, template in self.pods().items():
            text = (HELP / ("millrace_train.txt" if name == "workers" else "millrace-server.txt")).read_text(encoding="utf-8")
            for flag in self.bare(container_of(template)):
                self.assertRegex(text, rf"--{flag}[ =\n]")

    def test_AnotherFirstArgumentIsAnError(self):
        path = self.folder / "base/shards.yaml"
        text = path.read_text(encoding="utf-8")
        self.addCleanup(path.write_text, text, encoding="utf-8")
        path.write_text(text.replace("- --http-insecure=true", "- --quiet=true"), encoding="utf-8")
        with self.assertRaisesRegex(AssertionError, "test"):
            kustomized(self.folder / "secure")


if __name__ == "__main__":
    if not KUBECTL:
        print("kubernetes_test: skipped in part: there is no kubectl of 1.21 or later, so Kustomize built nothing, and no component was tested")
    unittest.main()

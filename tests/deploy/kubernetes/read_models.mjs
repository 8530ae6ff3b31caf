// Writes models.json: the fields of the Kubernetes objects that deploy/kubernetes uses, each with its type, from the npm
// packages @kubernetes/client-node (Apache-2.0) and @kubernetes-models/prometheus-operator (MIT). In a folder of its own:
//
//   npm install @kubernetes/client-node @kubernetes-models/prometheus-operator && node read_models.mjs >models.json
//
// By model: by field its type; a name that ends in `!` is required. No package of npm or Debian has JobSet: its fields are
// in kubernetes_test.py.
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {dirname, join} from 'node:path';

const ROOTS = ['V1StatefulSet', 'V1Service', 'V1PodDisruptionBudget', 'V1NetworkPolicy', 'V1Secret', 'V1ConfigMap',
               'V1ServiceAccount', 'V1JobTemplateSpec', 'V1ObjectMeta', 'V1LabelSelector'];
const folder = join(dirname(createRequire(join(process.cwd(), 'x.js')).resolve('@kubernetes/client-node')), 'gen/models');
const models = {};
const pending = [...ROOTS];
while (pending.length > 0) {
  const name = pending.pop();
  if (name in models) continue;
  models[name] = {};
  for (const [, field, optional, type] of readFileSync(join(folder, name + '.d.ts'), 'utf8').matchAll(/^ {4}'(\$?\w+)'(\??): ([^;]+);/gm)) {
    const map = type.match(/^\{\s*\[key: string\]: (.*)$/s);
    models[name][field.replace(/^_/, '') + (optional ? '' : '!')] = map ? `Map<${map[1]}>` : type;
    pending.push(...(type.match(/\b(V[12]\w+|\w+V1\w*)\b/g) ?? []));
  }
}

// ServiceMonitor and its parts, as interfaces. Names of the parts begin with `Monitor`.
const monitors = join(process.cwd(), 'node_modules/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1');
const OWN = /\bI?ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1(\w+)/g;
const kubernetesName = {ObjectMeta: 'V1ObjectMeta', LabelSelector: 'V1LabelSelector', SecretKeySelector: 'V1SecretKeySelector',
                        ConfigMapKeySelector: 'V1ConfigMapKeySelector', IntOrString: 'IntOrString', Quantity: 'IntOrString', Time: 'Date'};

function sourceOf(name) {
  return readFileSync(join(monitors, name + '.d.ts'), 'utf8').replace(/\/\*\*[\s\S]*?\*\//g, '');
}

function typeOf(text) {
  const type = text.replace(/\bIIoK8s\w*?(ObjectMeta|LabelSelector|SecretKeySelector|ConfigMapKeySelector|IntOrString|Quantity|Time)\b/g,
                            (_, name) => kubernetesName[name])
                   .replace(/^\{\s*\[key: string\]: ([\s\S]*?);\s*\}$/, 'Map<$1>')
                   .replace(/"[^"]*"( \| "[^"]*")*/g, 'string');
  return type.replace(OWN, (_, name) => {
    const alias = sourceOf(name).match(/^export type I\w+ = ([^;]+);/m);
    return alias ? typeOf(alias[1]) : monitor(name);
  });
}

function fieldsOf(name) {
  const [, parents, body] = sourceOf(name).match(/^export interface I\w+(?: extends ([^{]*))? \{\n([\s\S]*?)^\}/m);
  const fields = {};
  for (const [, parent] of (parents ?? '').matchAll(OWN)) Object.assign(fields, fieldsOf(parent));
  for (const [, field, optional, type] of body.matchAll(/^ {4}"(\w+)"(\??): ([\s\S]*?);$(?=\s*(?:^ {4}"|$(?![\s\S])))/gm))
    fields[field + (optional ? '' : '!')] = typeOf(type);
  return fields;
}

function monitor(name) {
  const key = name.startsWith('ServiceMonitor') ? name : 'Monitor' + name;
  if (key in models) return key;
  models[key] = {};  // a part may contain itself
  models[key] = fieldsOf(name);
  return key;
}

monitor('ServiceMonitor');
const lines = Object.keys(models).sort().map(name => `${JSON.stringify(name)}: ${JSON.stringify(models[name])}`);
process.stdout.write('{\n' + lines.join(',\n') + '\n}\n');

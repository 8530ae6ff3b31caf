// Writes models.json: the fields of the Kubernetes objects that deploy/kubernetes uses, each with its type, from the npm
// package @kubernetes/client-node (Apache-2.0).
//
//   npm install @kubernetes/client-node && node read_models.mjs >models.json    in a folder of its own
//
// By model: by field its type; a name that ends in `!` is required. JobSet and ServiceMonitor are of other packages: their
// fields are in kubernetes_test.py.
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
const lines = Object.keys(models).sort().map(name => `${JSON.stringify(name)}: ${JSON.stringify(models[name])}`);
process.stdout.write('{\n' + lines.join(',\n') + '\n}\n');

'use strict';
// Values only ever become text nodes and attributes: no name of a job can become markup.
const POLL_MS = 2000, CHART_MS = 600000, RATE_MS = 12000, SVG = document.getElementById('svg').namespaceURI;
const TITLE = document.title, DASH = '–';

// ---- nodes
const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null && value !== '') node.setAttribute(name, value);
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ''));
  return node;
};
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
// Makes `old` like `next` and keeps the nodes that stay: focus, selection and open details survive.
const morph = (old, next) => {
  for (const {name} of [...old.attributes]) if (!next.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  for (const {name, value} of [...next.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = [...next.childNodes];
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
  wanted.forEach((child, at) => {
    const present = old.childNodes[at];
    if (!present) old.append(child);
    else if (present.nodeName !== child.nodeName || present.id !== child.id) present.replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) { if (present.data !== child.data) present.data = child.data; }
    else morph(present, child);
  });
};
const setText = (id, text) => {
  const node = document.getElementById(id);
  if (node.textContent !== text) node.textContent = text;
  return node;
};

// ---- words for values
const number = (v, digits) => v.toLocaleString('en', {maximumFractionDigits: digits});
const brief = v => typeof v !== 'number' ? DASH : Math.abs(v) >= 100 ? number(v, 0) : Math.abs(v) >= 10 ? number(v, 1) : number(v, 2);
const bytes = v => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; ++i) v /= 1024;
  return number(v, i ? 1 : 0) + ' ' + units[i];
};
const duration = ms => {
  if (ms < 1000) return number(ms, 1) + ' ms';
  const s = ms / 1000;
  if (s < 120) return number(s, 1) + ' s';
  if (s < 7200) return number(s / 60, 1) + ' min';
  return number(s / 3600, 1) + ' h';
};
const ratio = (dense, sent) => dense > 0 && sent > 0 ? dense / sent : undefined;
const steps = v => number(v, 0) + (v === 1 ? ' step' : ' steps');
const times = v => v === undefined ? DASH : brief(v) + '×';

// ---- any status, by its shape (workers, switches, ranks; the details of a shard)
const isObject = v => v !== null && typeof v === 'object' && !Array.isArray(v);
const isTable = v => Array.isArray(v) && v.length > 0 && v.every(isObject);
const isPlain = v => !isObject(v) && !isTable(v);
const label = name => {
  const words = name.replace(/_(bytes|ms|seconds)(?=_max$|$)/, '').replace(/_/g, ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};
const show = (name, v) => {
  if (v === null || v === undefined || v === '') return DASH;
  if (Array.isArray(v)) return v.length ? v.map(x => isPlain(x) ? show('', x) : JSON.stringify(x)).join(', ') : 'none';
  if (typeof v === 'boolean') return v ? 'yes' : 'no';
  if (typeof v !== 'number') return String(v);
  if (/_bytes(_max)?$/.test(name)) return bytes(v);
  if (/_ms(_max)?$/.test(name)) return duration(v);
  if (/_seconds(_max)?$/.test(name)) return duration(1000 * v);
  return /(^|_)(incarnation|id|job)$/.test(name) ? String(v) : number(v, 4);
};
const isNote = name => /(^|_)(because|reason|error|warning)$/.test(name);
const meter = (what, v, most) => typeof v === 'number' && typeof most === 'number' && most > 0
  ? (() => {
    const bar = make('i');
    bar.style.width = Math.min(100, 100 * v / most) + '%';
    return make('span', {class: 'meter', role: 'meter', 'aria-label': what, 'aria-valuemin': 0, 'aria-valuemax': most, 'aria-valuenow': Math.min(v, most)}, bar);
  })() : null;
const card = (name, text, extra) => make('div', {class: 'card'}, make('div', {class: 'name'}, name),
  make('div', {class: text.length > 24 ? 'value long' : 'value'}, text, extra && extra.of ? make('span', {class: 'of'}, ' of ' + extra.of) : null), extra && extra.meter);
const fieldCard = (name, object) => {
  const most = object[name + '_max'], v = object[name], m = meter(label(name), v, most);
  return card(label(name), show(name, v), m ? {of: show(name, most), meter: m} : undefined);
};
// columns: [heading, class, row => text or node]; the first one heads its row.
const table = (caption, columns, rows) => make('div', {class: 'scroll'}, make('table', {class: 'rows', role: 'table'}, make('caption', {}, caption),
  make('thead', {role: 'rowgroup'}, make('tr', {role: 'row'}, columns.map(([name, kind]) => make('th', {scope: 'col', role: 'columnheader', class: kind}, name)))),
  make('tbody', {role: 'rowgroup'}, rows.map(row => make('tr', {role: 'row'}, columns.map(([name, kind, cell], at) => {
    const value = cell(row);
    const inside = typeof value === 'string' ? value : make('span', {}, value);
    return at === 0 ? make('th', {scope: 'row', role: 'rowheader'}, inside) : make('td', {role: 'cell', class: kind, 'data-label': name}, inside);
  }))))));
const anyTable = (name, rows) => {
  const names = [...new Set(rows.flatMap(row => Object.keys(row)))];
  const text = (row, c) => isPlain(row[c]) ? show(c, row[c]) : JSON.stringify(row[c]);
  return table(label(name), names.map(c => [label(c), rows.every(row => typeof row[c] === 'number') ? 'number'
    : rows.some(row => text(row, c).length > 40) ? 'long' : '', row => text(row, c)]), rows);
};
const section = (name, v, depth) => {
  const heading = make(depth ? 'h3' : 'h2', {}, label(name));
  if (isObject(v)) return [heading, ...content(v, depth + 1)];
  if (v.every(row => Object.values(row).every(isPlain)) && !v.some(row => Object.keys(row).some(isNote))) return [heading, anyTable(name, v)];
  return [heading, ...v.map(row => make('div', {class: 'box'}, make('h2', {}, show('name', row.name ?? row.id ?? '')), content(row, depth + 1)))];
};
const content = (object, depth) => {
  const names = Object.keys(object), cards = make('div', {class: 'cards'}), notes = [];
  for (const name of names) {
    const v = object[name];
    if (!isPlain(v) || (depth && name === 'name') || (name.endsWith('_max') && name.slice(0, -4) in object)) continue;
    if (!isNote(name)) cards.append(fieldCard(name, object));
    else if (v) notes.push(note(label(name) + ': ' + show(name, v)));
  }
  return [...notes, cards, ...names.filter(name => !isPlain(object[name])).flatMap(name => section(name, object[name], depth))];
};
const note = text => make('div', {class: 'note'}, text);

// ---- charts of [age in ms, value], the oldest first
const points = series => {
  const most = Math.max(...series.map(([, v]) => v), 0) || 1;
  return {most, text: series.map(([age, v]) => (600 - 600 * age / CHART_MS).toFixed(1) + ',' + (100 - 96 * v / most).toFixed(1)).join(' ')};
};
const picture = (series, attributes) => {
  const {text} = points(series), x = at => text.split(' ').at(at).split(',')[0];
  return draw('svg', {viewBox: '0 0 600 100', preserveAspectRatio: 'none', ...attributes}, draw('line', {class: 'grid', x1: 0, x2: 600, y1: 100, y2: 100}),
    series.length > 1 ? [draw('polygon', {points: x(0) + ',100 ' + text + ' ' + x(-1) + ',100'}), draw('polyline', {points: text})] : []);
};
const chart = (name, series, words) => {
  const last = series.length ? words(series.at(-1)[1]) : DASH, values = series.map(([, v]) => v);
  const spoken = series.length ? `${name}, last ten minutes: now ${last}, least ${words(Math.min(...values))}, most ${words(Math.max(...values))}` : `${name}: no values yet`;
  return make('figure', {}, make('figcaption', {}, name, make('b', {}, last)), picture(series, {role: 'img', 'aria-label': spoken}),
    make('div', {class: 'axis', 'aria-hidden': 'true'}, make('span', {}, '10 min ago'), make('span', {}, series.length ? 'top ' + words(Math.max(...values)) : ''), make('span', {}, 'now')));
};

// ---- history: samples {at, steps, behind, sent, memory} by job, of the shard that serves the page where it is one; for
// rates, {at, steps, rounds, exchange, select, encode, wait, apply} by job and worker
const history = new Map(), past = new Map(), sources = new Map();
let ownShard = null;
const remember = (map, key, sample, span) => {
  const samples = map.get(key) ?? [];
  if (samples.length && sample.steps < samples.at(-1).steps) samples.length = 0;
  samples.push(sample);
  while (samples[0].at < sample.at - span) samples.shift();
  map.set(key, samples);
};
const seed = (said, now) => {
  const at = said.columns.reduce((all, name, i) => ({...all, [name]: i}), {});
  ownShard = said.shard;
  for (const {job, samples} of said.jobs) history.set(job, samples.map(row => ({at: now - row[at.age_ms], steps: row[at.steps_decided],
    behind: row[at.steps_behind], sent: row[at.contribution_bytes], memory: row[at.memory_bytes]})));
};
const rateOf = (samples, field, span) => {
  if (!samples || samples.length < 2) return undefined;
  const last = samples.at(-1), first = samples.find(one => one.at >= last.at - span && one !== last) ?? samples.at(-2);
  return last.at > first.at ? Math.max(0, last[field] - first[field]) * 1000 / (last.at - first.at) : undefined;
};
const rates = (samples, field, now) => (samples ?? []).slice(1).map((one, i) => [now - one.at, Math.max(0, one[field] - samples[i][field]) * 1000 / Math.max(1, one.at - samples[i].at)]);

// ---- one view of a job out of all shards' reports
const jobsOf = cluster => {
  const jobs = new Map();
  for (const shard of cluster.shards) for (const said of shard.status?.jobs ?? []) {
    const job = jobs.get(said.job) ?? {...said, shards: 0, memory_bytes: 0, because: [], byWorker: new Map(), sent: 0, dense: 0, of: new Map(), steps_decided: Infinity, steps_decided_max: 0};
    job.shards += 1;
    const takesPart = said.parts > 0;  // a shard without a part of the job decides no steps
    if (takesPart) job.steps_decided = Math.min(job.steps_decided, said.steps_decided);
    job.steps_decided_max = Math.max(job.steps_decided_max, said.steps_decided_max);
    job.memory_bytes += said.memory_bytes;
    if (takesPart) job.of.set(shard.shard, {steps: said.steps_decided, memory: said.memory_bytes, behind: Math.max(0, ...said.members.map(one => one.steps_behind)),
      sent: said.members.reduce((sum, one) => sum + one.contribution_bytes, 0)});
    job.recovering ||= said.recovering;
    if (said.waiting_because) job.because.push({shard: shard.shard, text: said.waiting_because, ms: said.waiting_ms});
    for (const member of said.members) {
      const all = job.byWorker.get(member.worker) ?? {...member, steps_applied: Infinity, steps_behind: 0, silent_ms: 0, contribution_bytes: 0, dense_bytes: 0, connected: true};
      all.steps_behind = Math.max(all.steps_behind, member.steps_behind);
      if (takesPart) all.steps_applied = Math.min(all.steps_applied, member.steps_applied);
      all.silent_ms = Math.max(all.silent_ms, member.silent_ms);
      all.connected &&= member.connected;
      all.joining ||= member.joining;
      all.contribution_bytes += member.contribution_bytes;
      all.dense_bytes += member.dense_bytes;
      job.sent += member.contribution_bytes;
      job.dense += member.dense_bytes;
      job.byWorker.set(member.worker, all);
    }
    jobs.set(said.job, job);
  }
  for (const job of jobs.values()) {
    if (job.steps_decided === Infinity) job.steps_decided = 0;
    for (const row of job.byWorker.values()) if (row.steps_applied === Infinity) row.steps_applied = 0;
    job.rows = [...job.byWorker.values()].sort((a, b) => a.worker - b.worker);
    job.behind = Math.max(0, ...job.rows.map(row => row.steps_behind));
    for (const row of job.rows) {
      row.own = cluster.workers.find(({status}) => status && status.job === job.name && status.worker === row.worker)?.status;
      row.residual = row.own?.residual_norm;
    }
  }
  return [...jobs.values()].sort((a, b) => a.job - b.job);
};
const note_samples = (jobs, at) => {
  for (const job of jobs) {
    remember(past, 'job ' + job.job, {at, steps: job.steps_decided}, RATE_MS);
    const last = history.get(job.job)?.at(-1);
    const all = {steps: job.steps_decided, behind: job.behind, sent: job.sent, memory: job.memory_bytes};
    if (!sources.has(job.job)) sources.set(job.job, job.of.has(ownShard) ? ownShard : null);
    const source = sources.get(job.job);  // one shard, or all, for the whole chart
    const sample = source === null ? all : job.of.get(source);
    if (sample && (!last || at - last.at > 4500)) remember(history, job.job, {at, ...sample}, CHART_MS);
    for (const row of job.rows)
      remember(past, job.job + ' ' + row.worker + ' ' + row.incarnation, {at, steps: row.steps_applied, rounds: row.own?.rounds, exchange: row.own?.communication_seconds,
        select: row.own?.select_seconds, encode: row.own?.encode_seconds, wait: row.own?.blocked_seconds, apply: row.own?.apply_seconds}, RATE_MS);
  }
};

// ---- the cluster
const chip = (kind, text) => make('span', {class: kind}, text);
const jobHref = name => '#job=' + encodeURIComponent(name);
const jobState = job => !job.started ? chip('warn', 'waits for workers') : job.recovering ? chip('warn', 'recovers')
  : job.because.some(one => one.ms > 2000) ? chip('bad', 'blocked') : chip('good', 'runs');
const shardState = row => row.state === 'serving' && row.problem ? chip('warn', 'serves, no status here') : row.status?.shutting_down ? chip('warn', 'shuts down')
  : {serving: chip('good', 'serves'), draining: chip('warn', 'drains'), gone: chip('bad', 'gone'), never_started: chip('bad', 'never started')}[row.state] ?? row.state;
const clusterView = (cluster, jobs) => {
  const up = cluster.shards.filter(row => row.state === 'serving').length, rows = jobs.flatMap(job => job.rows);
  const refusals = cluster.shards.flatMap(row => (row.status?.refusals ?? []).map(one => ({shard: row.shard, ...one})));
  const ended = new Map(cluster.shards.flatMap(row => (row.status?.ended_jobs ?? []).map(one => [one.job, one])));
  return [
    cluster.age_ms > 5000 ? note('These values are ' + duration(cluster.age_ms) + ' old: a process answers late') : null,
    cluster.shards.some(row => row.state === 'serving' && !row.status) ? note('Sums leave out the shards without a status.') : null,
    cluster.table_problem ? note('Membership table: ' + cluster.table_problem) : null,
    make('div', {class: 'cards'}, card('Shards that serve', String(up), {of: String(cluster.shards.length)}), card('Spares', String(cluster.spares.length)),
      card('Jobs', String(jobs.length)), card('Workers', String(rows.filter(row => row.connected).length), {of: String(jobs.reduce((sum, job) => sum + job.workers, 0))})),
    make('h2', {id: 'jobs'}, 'Jobs'),
    jobs.length ? table('Jobs of the cluster', [
      ['Job', '', job => make('a', {href: jobHref(job.name)}, job.name)], ['State', '', jobState],
      ['Workers', 'number', job => `${job.rows.filter(row => !row.joining).length} of ${job.workers}`],
      ['Steps per second', 'number', job => brief(rateOf(past.get('job ' + job.job), 'steps', RATE_MS))],
      ['Last 10 min', '', job => picture(rates(history.get(job.job), 'steps', Date.now()), {class: 'spark', 'aria-hidden': 'true'})],
      ['Steps', 'number', job => number(job.steps_decided, 0)], ['Largest lag', 'number', job => steps(job.behind)],
      ['Dense / sent', 'number', job => times(ratio(job.dense, job.sent))], ['Memory', 'number', job => bytes(job.memory_bytes)]], jobs) : make('p', {class: 'soft'}, 'No job is open.'),
    jobs.flatMap(job => job.because.filter(one => one.ms > 2000).slice(0, 1).map(one => note(`${job.name}: ${one.text} (for ${duration(one.ms)}, shard ${one.shard})`))),
    make('h2', {id: 'shards'}, 'Shards'),
    table('Shards of the cluster', [
      ['Shard', '', row => String(row.shard)], ['State', '', shardState], ['Page', '', row => row.http || DASH], ['For workers', '', row => row.address.replace('tcp://', '') || DASH],
      ['Start', 'number', row => row.status ? String(row.status.incarnation) : DASH],
      ['Memory', 'number', row => row.status ? [bytes(row.status.memory_bytes), meter('Memory of shard ' + row.shard, row.status.memory_bytes, row.status.memory_bytes_max)] : DASH],
      ['Version', '', row => row.status?.software || row.software || DASH], ['Remark', 'long', row => row.problem || row.status?.table_error || '']], cluster.shards),
    cluster.spares.length ? [make('h2', {}, 'Spares'), table('Spares that wait', [['Address', '', row => row.address.replace('tcp://', '')], ['Page', '', row => row.http || DASH], ['Version', '', row => row.software]], cluster.spares)] : [],
    ended.size ? [make('h2', {}, 'Ended jobs'), anyTable('ended_jobs', [...ended.values()])] : [],
    refusals.length ? [make('h2', {}, 'Refusals'), anyTable('refusals', refusals.slice(0, 50))] : [],
    cluster.shards.filter(row => row.status).map(row => lazy('shard-' + row.shard, 'All values of shard ' + row.shard, () => content(row.status, 1)))];
};
const lazy = (id, text, inside) => {
  const open = document.getElementById(id)?.open;
  return make('details', {id}, make('summary', {}, text), open ? inside() : []);
};

// ---- a job
// Exchanges of a step's buckets overlap: their sum is no time of the step, so the mean is of a bucket.
const phases = (key, own) => {
  const samples = past.get(key);
  if (!own || !samples || samples.length < 2) return DASH;
  const blocked = rateOf(samples, 'wait', RATE_MS), exchange = rateOf(samples, 'exchange', RATE_MS), rounds = rateOf(samples, 'rounds', RATE_MS);
  if (!Number.isFinite(blocked)) return DASH;
  const text = `blocked ${number(Math.min(100, 100 * blocked), 0)} %, ` + (rounds > 0 ? `exchange of a bucket ${duration(1000 * exchange / rounds)}` : 'no step');
  return [text, meter('Share of the time in which the worker is blocked', Math.min(1, blocked), 1)];
};
// The mean time of each phase of a step, of the last steps.
const PHASES = ['select', 'encode', 'wait', 'apply'];
const stepTimes = (key, own) => {
  const rate = own ? rateOf(past.get(key), 'steps', RATE_MS) : 0;
  const said = rate > 0 ? PHASES.map(name => [name, 1000 * rateOf(past.get(key), name, RATE_MS) / rate]).filter(([, ms]) => Number.isFinite(ms)) : [];
  return said.length ? said.map(([name, ms]) => name + ' ' + (ms < 1 ? number(1000 * ms, ms < 0.01 ? 2 : 0) + ' µs' : duration(ms))).join(', ') : DASH;
};
const workerState = row => row.joining ? chip('warn', 'joins') : !row.connected ? chip('bad', 'not connected') : row.finishing ? chip('good', 'finishes') : chip('good', 'in step');
const jobView = (job, cluster, now) => {
  const samples = history.get(job.job), absent = cluster.workers.filter(one => one.problem);
  const missing = [...Array(Math.min(job.workers, 4096)).keys()].filter(worker => !job.byWorker.has(worker));
  const source = sources.get(job.job) ?? null, whose = source === null ? '' : ', shard ' + source;
  const key = row => job.job + ' ' + row.worker + ' ' + row.incarnation;
  return [
    job.because.slice(0, 4).map(one => one.ms > 1000 ? note(`Shard ${one.shard}, for ${duration(one.ms)}: ${one.text}`) : null),
    job.shards < cluster.shards.length ? note(`${cluster.shards.length - job.shards} of ${cluster.shards.length} shards do not report on this job`) : null,
    make('div', {class: 'cards'}, make('div', {class: 'card'}, make('div', {class: 'name'}, 'State'), make('div', {class: 'value'}, jobState(job))),
      card('Steps per second', brief(rateOf(past.get('job ' + job.job), 'steps', RATE_MS))), card('Steps', number(job.steps_decided, 0)),
      card('Workers in step', String(job.rows.filter(row => !row.joining && row.connected).length), {of: String(job.workers)}), card('Largest lag', steps(job.behind)),
      card('Dense / sent', times(ratio(job.dense, job.sent))), card('Mode', job.mode), card('Memory, all shards', bytes(job.memory_bytes))),
    make('h2', {id: 'charts'}, 'Last ten minutes'),
    make('div', {class: 'charts'}, chart('Steps per second' + whose, rates(samples, 'steps', now), brief),
      chart('Largest lag in steps' + whose, (samples ?? []).map(one => [now - one.at, one.behind]), v => number(v, 0)),
      chart('Contributions per second' + whose, rates(samples, 'sent', now), bytes), chart('Memory' + whose, (samples ?? []).map(one => [now - one.at, one.memory]), bytes)),
    make('h2', {id: 'workers'}, 'Workers'),
    table('Workers of the job', [
      ['Worker', '', row => String(row.worker)], ['State', '', workerState], ['Lag', 'number', row => steps(row.steps_behind)],
      ['Steps per second', 'number', row => brief(rateOf(past.get(key(row)), 'steps', RATE_MS))], ['Time', 'number', row => phases(key(row), row.own)], ['Mean of a step', 'long', row => stepTimes(key(row), row.own)],
      ['Dense / sent', 'number', row => times(ratio(row.dense_bytes, row.contribution_bytes))], ['Sent', 'number', row => bytes(row.contribution_bytes)],
      ['Residual', 'number', row => brief(row.residual)], ['Silent for', 'number', row => duration(row.silent_ms)], ['Start', 'number', row => String(row.incarnation)]], job.rows),
    missing.length ? note('Not in the job: worker ' + missing.slice(0, 64).join(', ')) : null,
    absent.length ? note('Workers without an answer: ' + absent.slice(0, 8).map(one => one.http + ' (' + one.problem + ')').join('; ')) : null,
    job.rows.some(row => !row.own) ? make('p', {class: 'soft'}, 'Time and residual come from the workers’ own ports: name them with --page-workers of the shard that serves this page.') : null,
    job.disagreements?.length ? [make('h2', {}, 'Disagreements'), anyTable('disagreements', job.disagreements)] : []];
};

// ---- asking
const clusterless = document.body.dataset.of !== 'cluster';
let cluster = null, single = null, last = 0, seeded = false, refused = false;
// Of this tab; of this page alone where the browser refuses storage.
let token = '';
try { token = sessionStorage.getItem('millrace-token') ?? ''; } catch { /* refused */ }
const keep = text => {
  token = text;
  try { sessionStorage.setItem('millrace-token', text); } catch { /* refused */ }
};
const ask = async path => {
  // A header takes no other characters, and a token has none.
  const answer = await fetch(path, {cache: 'no-store', headers: token ? {Authorization: 'Bearer ' + token.replace(/[^!-~]/g, '?')} : {}});
  if (answer.status === 401 || answer.status === 403) throw Object.assign(new Error('no token, or a wrong one'), {refused: true});
  return answer;
};
const login = () => {
  const input = make('input', {id: 'token', type: 'password', autocomplete: 'off', required: 'required'});
  const form = make('form', {id: 'login'}, make('div', {}, make('label', {for: 'token'}, 'Token of this port'), input), make('button', {type: 'submit'}, 'Show the page'));
  form.addEventListener('submit', event => {
    event.preventDefault();
    keep(document.getElementById('token').value.trim());
    poll();
  });
  return form;
};
const route = () => new URLSearchParams(location.hash.slice(1)).get('job');
const state = (kind, text) => { setText('state', text).className = kind; };
const render = () => {
  const next = make('div', {id: 'content', tabindex: '-1'}), name = route();
  let title = TITLE;
  if (refused) {
    if (document.getElementById('login')) return;
    next.append(login());
  } else if (cluster) {
    const jobs = jobsOf(cluster), job = name === null ? undefined : jobs.find(one => one.name === name);
    title = name === null ? 'Millrace cluster' : 'Job ' + name;
    if (name !== null) fill(next, {}, [make('nav', {'aria-label': 'Breadcrumb'}, make('a', {href: '#'}, 'Cluster'), ' › ', make('span', {'aria-current': 'page'}, name))]);
    fill(next, {}, [name === null ? clusterView(cluster, jobs) : job ? jobView(job, cluster, Date.now()) : note('No shard has an open job of this name.')].flat(3));
  } else if (single) {
    fill(next, {}, content(single, 0));
  } else {
    return;
  }
  morph(document.getElementById('content'), next);
  setText('title', title);
  document.title = title === TITLE ? TITLE : title + ' – ' + TITLE;
};
const refresh = async () => {
  const health = await ask('/healthz'), why = (await health.text()).trim();
  const now = Date.now();
  if (!clusterless) {
    const said = await (await ask('/cluster')).json();
    if (said.collecting) return state('warn', 'collects');
    if (!seeded) seed(await (await ask('/history')).json(), now);
    seeded = true;
    cluster = {shards: [], spares: [], workers: [], ...said};
    note_samples(jobsOf(cluster), now);
  }
  if (clusterless) single = await (await ask('/status')).json();
  last = now;
  state(health.ok ? 'good' : 'bad', health.ok ? 'healthy' : 'not healthy: ' + why);
};
let timer = 0;
const poll = async () => {
  clearTimeout(timer);
  try {
    if (!document.hidden || !last) {
      await refresh();
      refused = false;
    }
  } catch (error) {
    refused = Boolean(error.refused);
    state('bad', !refused ? 'no answer' : token ? 'asks for another token' : 'asks for a token');
  }
  render();
  setText('age', last ? 'as of ' + new Date(last).toLocaleTimeString() : '');
  timer = setTimeout(poll, cluster || single || refused ? POLL_MS : 300);
};
window.addEventListener('hashchange', () => {
  if (location.hash === '#content') return;
  render();
  window.scrollTo(0, 0);
});
document.getElementById('skip').addEventListener('click', event => {
  event.preventDefault();
  document.getElementById('content').focus();
});
document.addEventListener('toggle', () => render(), true);
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
poll();

#include "monitoring/http/status_page.h"

namespace millrace::monitoring {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>)";

constexpr std::string_view kStyle = R"(</title>
<style>
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1b2430; --soft: #637083; --line: #dfe4ea;
  --accent: #0b6e99; --bar: #cfe6f0; --good: #1c7c43; --bad: #b3261e; --note: #fff6dd; --note-line: #e5c766; }
@media (prefers-color-scheme: dark) {
  :root { --page: #11161d; --card: #19212b; --text: #e3e8ee; --soft: #93a1b2; --line: #2b3643; --accent: #63b8dc;
    --bar: #23475a; --good: #5fc98a; --bad: #ff8a80; --note: #322b16; --note-line: #6b5a22; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 18px; }
h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 26px 0 10px; }
h3 { font-size: 14px; margin: 16px 0 6px; color: var(--soft); font-weight: 600; }
#state { font-weight: 600; }
#state.good { color: var(--good); } #state.bad { color: var(--bad); }
#age, footer { color: var(--soft); font-size: 13px; }
footer { margin-top: 32px; } footer a { color: var(--accent); margin-right: 14px; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 10px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 13px; min-width: 0; }
.card .name { color: var(--soft); font-size: 12.5px; }
.card .value { font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.card .value.long { font-size: 14px; font-weight: 500; }
.of { color: var(--soft); white-space: nowrap; font-weight: 400; font-size: 13px; }
.meter { height: 5px; border-radius: 3px; background: var(--bar); margin-top: 6px; overflow: hidden; }
.meter i { display: block; height: 100%; background: var(--accent); }
.box { border: 1px solid var(--line); border-radius: 10px; padding: 4px 14px 14px; margin: 0 0 12px; }
.box > h2 { margin: 10px 0; }
.note { background: var(--note); border: 1px solid var(--note-line); border-radius: 8px; padding: 8px 12px;
  margin: 10px 0; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 13px; border-top: 1px solid var(--line); white-space: nowrap; }
thead th { border-top: 0; color: var(--soft); font-weight: 600; font-size: 12.5px; }
td.number, th.number { text-align: right; }
td.long { white-space: normal; min-width: 22em; overflow-wrap: anywhere; }
.none { color: var(--soft); }
</style>
</head>
<body>
<main>
<header><h1>)";

constexpr std::string_view kScript = R"(</h1> <span id="state">&hellip;</span> <span id="age"></span></header>
<div id="status"></div>
<footer><a href="/metrics">metrics</a><a href="/healthz">health</a>
<a href="/readyz">readiness</a><a href="/status">status as JSON</a></footer>
</main>
<script>
'use strict';
const POLL_MS = 1000;
// Values only ever become text nodes: no name of a job can become markup.
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const isObject = v => v !== null && typeof v === 'object' && !Array.isArray(v);
const isTable = v => Array.isArray(v) && v.length > 0 && v.every(isObject);
const isPlain = v => !isObject(v) && !isTable(v);
const label = name => {
  const words = name.replace(/_(bytes|ms|seconds)(?=_max$|$)/, '').replace(/_/g, ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};
const number = (v, digits) => v.toLocaleString('en', {maximumFractionDigits: digits});
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
const show = (name, v) => {
  if (v === null || v === undefined || v === '') return '–';
  if (Array.isArray(v)) return v.length ? v.map(x => isPlain(x) ? show('', x) : JSON.stringify(x)).join(', ') : 'none';
  if (typeof v === 'boolean') return v ? 'yes' : 'no';
  if (typeof v !== 'number') return String(v);
  if (/_bytes(_max)?$/.test(name)) return bytes(v);
  if (/_ms(_max)?$/.test(name)) return duration(v);
  if (/_seconds(_max)?$/.test(name)) return duration(1000 * v);
  return /(^|_)(incarnation|id|job)$/.test(name) ? String(v) : number(v, 4);
};
const isNote = name => /(^|_)(because|reason|error|warning)$/.test(name);
const card = (name, object) => {
  const node = make('div', 'card'), v = object[name], most = object[name + '_max'];
  const text = show(name, v);
  const value = make('div', text.length > 24 ? 'value long' : 'value', text);
  node.append(make('div', 'name', label(name)), value);
  if (typeof v === 'number' && typeof most === 'number' && most > 0) {
    value.append(make('span', 'of', ' of ' + show(name, most)));
    const meter = make('div', 'meter'), fill = make('i');
    fill.style.width = Math.min(100, 100 * v / most) + '%';
    meter.append(fill);
    node.append(meter);
  }
  return node;
};
const table = rows => {
  const columns = [...new Set(rows.flatMap(row => Object.keys(row)))];
  const side = c => rows.every(row => typeof row[c] === 'number') ? 'number' : '';
  const node = make('table'), head = make('tr'), top = make('thead'), body = make('tbody');
  for (const c of columns) head.append(make('th', side(c), label(c)));
  for (const row of rows) {
    const line = make('tr');
    for (const c of columns) {
      const text = isPlain(row[c]) ? show(c, row[c]) : JSON.stringify(row[c]);
      line.append(make('td', text.length > 40 ? 'long' : side(c), text));
    }
    body.append(line);
  }
  top.append(head);
  node.append(top, body);
  const scroll = make('div', 'scroll');
  scroll.append(node);
  return scroll;
};
const section = (name, v, depth) => {
  const nodes = [make(depth ? 'h3' : 'h2', '', label(name))];
  if (isObject(v)) return nodes.concat(content(v, depth + 1));
  if (v.every(row => Object.values(row).every(isPlain)) && !v.some(row => Object.keys(row).some(isNote))) {
    return nodes.concat(table(v));
  }
  for (const row of v) {
    const box = make('div', 'box');
    box.append(make('h2', '', show('name', row.name ?? row.id ?? '')), ...content(row, depth + 1));
    nodes.push(box);
  }
  return nodes;
};
const content = (object, depth) => {
  const names = Object.keys(object), nodes = [], cards = make('div', 'cards');
  for (const name of names) {
    const v = object[name];
    if (!isPlain(v) || (depth && name === 'name') || (name.endsWith('_max') && name.slice(0, -4) in object)) continue;
    if (isNote(name)) {
      if (v) nodes.push(make('div', 'note', label(name) + ': ' + show(name, v)));
    } else {
      cards.append(card(name, object));
    }
  }
  nodes.push(cards);
  for (const name of names) if (!isPlain(object[name])) nodes.push(...section(name, object[name], depth));
  return nodes;
};
let last = 0;
const state = (good, text) => {
  const node = document.getElementById('state');
  node.className = good ? 'good' : 'bad';
  node.textContent = text;
};
const poll = async () => {
  try {
    const health = await fetch('/healthz', {cache: 'no-store'});
    const why = (await health.text()).trim();
    const status = await (await fetch('/status', {cache: 'no-store'})).json();
    document.getElementById('status').replaceChildren(...content(status, 0));
    state(health.ok, health.ok ? 'healthy' : 'not healthy: ' + why);
    last = Date.now();
  } catch (error) {
    state(false, 'no answer');
  }
  document.getElementById('age').textContent = last ? 'as of ' + new Date(last).toLocaleTimeString() : '';
  setTimeout(poll, POLL_MS);
};
poll();
</script>
</body>
</html>
)";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string status_page(std::string_view title) {
  const std::string escaped = escape_html(title);
  std::string page;
  for (const std::string_view piece : {kHead, std::string_view(escaped), kStyle, std::string_view(escaped), kScript}) {
    page += piece;
  }
  return page;
}

}  // namespace millrace::monitoring

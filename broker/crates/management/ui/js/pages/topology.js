// The exchanges, queues and bindings of a virtual host as a graph.
import { html } from '../dom.js';
import { pageOf, path, withQuery } from '../client.js';
import { VhostChoice, useVhosts } from '../fields.js';
import * as format from '../format.js';
import { useView } from '../list.js';
import { Link, Problem, Table } from '../parts.js';
import { to } from '../places.js';
import { useData } from '../session.js';
import { inPath } from './bindings.js';

/** Maximum number of bindings that are drawn. More would be neither readable nor fast. */
const MAX_BINDINGS = 300;

const BOX = { width: 190, height: 28, across: 150, down: 14, margin: 8 };
const MAX_LABEL = 26;

const keyOf = (type, name) => `${type} ${name}`;

/**
 * Positions of exchanges and queues: those that are bound to an exchange stand right of it, and queues in the last column. Returns
 * {nodes: [{type, name, column, row}], edges: [{from, to, labels}], columns, rows}. Bindings of the default exchange are omitted.
 */
export function layout(bindings) {
  const nodes = new Map();
  const edges = new Map();
  const node = (type, name) => {
    const key = keyOf(type, name);
    if (!nodes.has(key)) nodes.set(key, { key, type, name, column: 0, row: 0 });
    return nodes.get(key);
  };
  for (const b of bindings) {
    if (b.source === '') continue;
    const [from, target] = [node('exchange', b.source), node(b.destination_type, b.destination)];
    const key = `${from.key} > ${target.key}`;
    if (!edges.has(key)) edges.set(key, { key, from, to: target, labels: [] });
    edges.get(key).labels.push(b.routing_key);
  }
  // Each pass moves a destination to the right of its source. Exchanges that are bound in a circle end this at the number of exchanges.
  const exchanges = [...nodes.values()].filter(({ type }) => type === 'exchange').length;
  for (let pass = 0; pass < exchanges; pass += 1) {
    let moved = false;
    for (const { from, to: target } of edges.values()) {
      if (target.type === 'exchange' && target !== from && target.column <= from.column && from.column + 1 < exchanges) {
        target.column = from.column + 1;
        moved = true;
      }
    }
    if (!moved) break;
  }
  const all = [...nodes.values()];
  const last = Math.max(0, ...all.filter(({ type }) => type === 'exchange').map(({ column }) => column)) + 1;
  for (const one of all) if (one.type === 'queue') one.column = last;
  // In each column, boxes are in the order of the boxes that they are bound to, so that few lines cross.
  let rows = 0;
  for (let column = 0; column <= last; column += 1) {
    const weight = (one) => {
      const sources = [...edges.values()].filter((edge) => edge.to === one && edge.from.column < column).map((edge) => edge.from.row);
      return sources.length === 0 ? 0 : sources.reduce((sum, row) => sum + row, 0) / sources.length;
    };
    const inColumn = all.filter((one) => one.column === column).map((one) => [weight(one), one]);
    inColumn.sort(([a, x], [b, y]) => a - b || (x.name < y.name ? -1 : 1));
    for (const [row, [, one]] of inColumn.entries()) one.row = row;
    rows = Math.max(rows, inColumn.length);
  }
  return { nodes: all, edges: [...edges.values()], columns: last + 1, rows };
}

const shortened = (text, most = MAX_LABEL) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Graph({ vhost, bindings }) {
  const { nodes, edges, columns, rows } = layout(bindings);
  const x = (column) => BOX.margin + column * (BOX.width + BOX.across);
  const y = (row) => BOX.margin + row * (BOX.height + BOX.down);
  const width = x(columns - 1) + BOX.width + BOX.margin;
  const height = y(rows - 1) + BOX.height + BOX.margin;
  const middle = (one) => y(one.row) + BOX.height / 2;
  const curve = ({ from, to: target }) => {
    const [x1, y1, x2, y2] = [x(from.column) + BOX.width, middle(from), x(target.column), middle(target)];
    const bend = Math.max(40, (x2 - x1) / 2);
    return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
  };
  const label = ({ labels }) => shortened(labels.length === 1 ? labels[0] : `${labels.length} bindings`, 20);
  const place = ({ type, name }) => (type === 'queue' ? ['queues', vhost, name] : ['exchanges', vhost, inPath(name)]);
  return html`<div class="scroll graph" tabindex="0" role="region" aria-label="Graph of the bindings"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}>
    <title>Exchanges and the queues and exchanges that are bound to them</title>
    ${edges.map(
      (edge) => html`<g key=${edge.key}><path class="edge" d=${curve(edge)} />
      <text class="label" text-anchor="end" x=${x(edge.to.column) - 6} y=${middle(edge.to) - 5 - 11 * Math.min(1, edges.filter((other) => other.to === edge.to).indexOf(edge))}>${label(edge)}
        <title>${`${edge.from.name} to ${edge.to.name}: ${edge.labels.map((key) => `"${key}"`).join(', ')}`}</title></text></g>`,
    )}
    ${nodes.map(
      (one) => html`<a key=${one.key} href=${to(...place(one))}><title>${`${one.type} ${one.name}`}</title>
      <rect class=${`box ${one.type}`} x=${x(one.column)} y=${y(one.row)} width=${BOX.width} height=${BOX.height} rx=${one.type === 'queue' ? 3 : 14} />
      <text class="name" x=${x(one.column) + 10} y=${middle(one) + 4}>${shortened(one.name)}</text></a>`,
    )}
  </svg></div>
  <p class="faint">Exchanges are round, queues have corners.</p>`;
}

const COLUMNS = [
  { title: 'From', cell: (b) => html`<${Link} place=${['exchanges', b.vhost, inPath(b.source)]}>${b.source}</${Link}>` },
  { title: 'Routing key', cell: (b) => b.routing_key },
  {
    title: 'To',
    cell: (b) =>
      html`<${Link} place=${[b.destination_type === 'queue' ? 'queues' : 'exchanges', b.vhost, inPath(b.destination)]}>${b.destination}</${Link}> <span class="faint">${b.destination_type}</span>`,
  },
  { title: 'Arguments', wide: true, cell: (b) => (Object.keys(b.arguments).length === 0 ? '' : format.value(b.arguments)) },
];

export function Topology() {
  const vhosts = useVhosts();
  const [view, set] = useView('topology');
  const vhost = view.vhost || (vhosts?.includes('/') || !vhosts ? '/' : vhosts[0]);
  // In this order the bindings of the default exchange, which are not drawn, come last.
  const query = { page: 1, page_size: MAX_BINDINGS, sort: 'source', sort_reverse: true };
  const { data, error } = useData(vhost === undefined ? null : withQuery(path('bindings', vhost), query));
  const all = (pageOf(data)?.items ?? []).filter((b) => b.source !== '');
  const drawn = all.filter((b) => b.source.includes(view.name) || b.destination.includes(view.name));
  const isPart = all.length === MAX_BINDINGS;
  return html`<h1>Topology</h1>
    <div class="bar">
      <${VhostChoice} vhosts=${vhosts} value=${view.vhost} onChange=${(to) => set((now) => ({ ...now, vhost: to }))} />
      <label>Filter by name <input type="search" value=${view.name} spellcheck="false" autocapitalize="none" aria-label="Filter exchanges and queues by name"
        onInput=${(event) => {
          const name = event.currentTarget.value;
          set((now) => ({ ...now, name }));
        }} /></label>
      <span class="faint found" role="status">${data ? `bindings: ${format.count(drawn.length)}` : ''}</span>
    </div>
    <${Problem} error=${error} />
    ${isPart && html`<p class="problem" role="status">The graph has only ${format.count(MAX_BINDINGS)} bindings. Those of other exchanges are on the pages of these exchanges.</p>`}
    ${
      data &&
      (drawn.length === 0
        ? html`<p class="faint">No exchange of virtual host ${vhost} has bindings${view.name === '' ? '' : ' that match the filter'}. The default exchange, which is bound to every queue, is not drawn.</p>`
        : html`<${Graph} vhost=${vhost} bindings=${drawn} />
          <h2>Bindings</h2>
          <${Table} caption="Bindings" rows=${drawn} keyOf=${(b) => `${b.source} ${b.destination_type} ${b.destination} ${b.properties_key}`} columns=${COLUMNS} />`)
    }`;
}

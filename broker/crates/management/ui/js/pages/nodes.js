// Nodes: what they use, and what can be done to them.
import { html } from '../dom.js';
import { path } from '../client.js';
import * as format from '../format.js';
import { Action, Facts, Folded, Link, Problem, Section, State, Table, Tag, Used } from '../parts.js';
import { Form } from '../form.js';
import { client, notify, useData } from '../session.js';

const stateOf = (node) => (node.running ? 'running' : 'down');

const Alarms = ({ node }) => html`<span class="tags">
  ${node.mem_alarm && html`<${Tag} kind="bad">memory</${Tag}>`}
  ${node.disk_free_alarm && html`<${Tag} kind="bad">disk</${Tag}>`}
  ${node.being_drained && html`<${Tag}>maintenance</${Tag}>`}
</span>`;

const Memory = ({ node }) =>
  html`<${Used} part=${node.mem_used} whole=${node.mem_limit} text=${`${format.bytes(node.mem_used)} of ${format.bytes(node.mem_limit)}`} />`;
const Descriptors = ({ node }) =>
  html`<${Used} part=${node.fd_used} whole=${node.fd_total} text=${`${format.count(node.fd_used)} of ${format.count(node.fd_total)}`} />`;
const Disk = ({ node }) => `${format.bytes(node.disk_free)} free, alarm below ${format.bytes(node.disk_free_limit)}`;

export const NodeTable = ({ nodes }) =>
  html`<${Table} caption="Nodes" rows=${nodes} keyOf=${(node) => node.name} columns=${[
    { title: 'Name', cell: (node) => html`<${Link} place=${['nodes', node.name]}>${node.name}</${Link}>` },
    { title: 'State', cell: (node) => html`<${State} of=${stateOf(node)} /> <${Alarms} node=${node} />` },
    {
      title: 'Memory',
      cell: (node) => (node.mem_used === undefined ? html`<span class="faint">ask it itself</span>` : html`<${Memory} node=${node} />`),
    },
    { title: 'Disk', cell: (node) => (node.disk_free === undefined ? '' : html`<${Disk} node=${node} />`) },
    { title: 'Descriptors', wide: true, cell: (node) => (node.fd_used === undefined ? '' : html`<${Descriptors} node=${node} />`) },
    { title: 'Clients', number: true, wide: true, cell: (node) => (node.sockets_used === undefined ? '' : format.count(node.sockets_used)) },
    { title: 'Votes', wide: true, cell: (node) => (node.voter ? 'yes' : 'no') },
    { title: 'Up for', number: true, wide: true, cell: (node) => (node.uptime === undefined ? '' : format.duration(node.uptime)) },
  ]} />`;

const rebalance = async () => {
  const { leaders_moved: moved } = await client.post('rebalance/queues');
  notify('good', `${moved} leaders move.`);
};

export function Nodes({ can }) {
  const { data, error } = useData('nodes');
  return html`<h1>Nodes</h1><${Problem} error=${error} />
    ${data && html`<${NodeTable} nodes=${data} />`}
    ${can.administrator && html`<p><${Action} does=${rebalance} ask=${{ title: 'Move leaders?', text: 'Leaders of quorum queues move so that each node has its share. Publishers and consumers of these queues wait for a moment.', verb: 'Rebalance' }}>Rebalance queue leaders</${Action}></p>`}`;
}

function LogLevels({ name }) {
  const of = path('nodes', name, 'log-levels');
  const { data, error } = useData(of);
  if (error || !data) return html`<${Problem} error=${error} />`;
  return html`<${Facts} of=${Object.entries(data)} />
    <${Form} label="Log level" verb="Set" done="The level is set, until the node ends." submit=${(values) => client.put(of, values.category === '' ? { level: values.level } : values)} fields=${[
      { name: 'category', label: 'Category', type: 'select', options: [['', 'all'], ...Object.keys(data).map((key) => [key, key])] },
      {
        name: 'level',
        label: 'Level',
        type: 'select',
        value: 'info',
        options: ['debug', 'info', 'warning', 'error', 'none'].map((level) => [level, level]),
      },
    ]} />`;
}

/** What only a node itself can do. */
function Itself({ node }) {
  const maintenance = path('nodes', node.name, 'maintenance');
  const drain = async () => {
    const { state, leaders } = await client.put(maintenance);
    notify('good', state === 'drained' ? `${node.name} is drained.` : `${node.name} drains: ${leaders} queue leaders are still to move.`);
  };
  return html`
    <${Section} title="Maintenance">
      ${
        node.being_drained
          ? html`<p>It takes no clients and leads no queues. <${Action} does=${() => client.delete(maintenance)} done=${`${node.name} is back.`}>End maintenance</${Action}></p>`
          : html`<p>Before it is stopped, its listeners close, its clients go elsewhere, and other nodes lead its queues. <${Action} does=${drain} kind="danger" ask=${{ title: `Drain ${node.name}?`, text: `All client connections to ${node.name} are closed, also this page's if it comes through such a listener; its queue leaders move to other nodes.`, verb: 'Drain' }}>Begin maintenance</${Action}></p>`
      }
    </${Section}>
    <${Folded} title="Log levels"><${LogLevels} name=${node.name} /></${Folded}>
    <${Folded} title="Memory alarm">
      <${Form} label="Memory alarm" verb="Set" done="The watermark is set, until the node ends." submit=${(values) => client.put(path('nodes', node.name, 'memory-watermark'), { relative: Number(values.relative) })} fields=${[
        {
          name: 'relative',
          label: 'Share of memory',
          type: 'text',
          value: '0.6',
          required: true,
          hint: 'From 0.0 to 1.0: publishers wait while the node uses more than that.',
        },
      ]} />
    </${Folded}>`;
}

const OF = { grow: 'Add a replica on it', shrink: 'Remove the replicas on it', evacuate: 'Move the replicas on it elsewhere' };

function Replicas({ node }) {
  const submit = async (values) => {
    const { what, ...body } = values;
    const changed = await client.post(
      path('queues', 'quorum', 'replicas', 'on', node.name, what),
      what === 'grow' ? body : { vhost_pattern: body.vhost_pattern, queue_pattern: body.queue_pattern },
    );
    const not = changed.filter((one) => one.result !== 'ok');
    if (not.length > 0) throw new Error(`${changed.length - not.length} queues changed, ${not.length} did not: ${not[0].name}: ${not[0].reason}`);
    return `${changed.length} queues changed.`;
  };
  const ask = (values) => ({
    title: `${OF[values.what]}?`,
    text: `Every quorum queue that fits ${values.queue_pattern} in virtual hosts that fit ${values.vhost_pattern} gets or loses a replica on ${node.name}.`,
    verb: 'Change members',
  });
  return html`<${Form} label="Replicas of quorum queues" verb="Change members" submit=${submit} ask=${ask} danger fields=${[
    { name: 'what', label: 'Do', type: 'select', options: Object.entries(OF) },
    { name: 'vhost_pattern', label: 'Virtual hosts', value: '.*', hint: 'A regular expression.' },
    { name: 'queue_pattern', label: 'Queues', value: '.*', hint: 'A regular expression.' },
    {
      name: 'strategy',
      label: 'Which',
      type: 'select',
      options: [
        ['all', 'all queues'],
        ['even', 'those with an even number of members'],
      ],
      when: (values) => values.what === 'grow',
    },
  ]} />`;
}

const forget = (name) => async () => {
  const state = await client.delete(path('nodes', name));
  notify(
    'good',
    state?.state === 'moving' ? `${state.queues} queues move away from ${name} first; ask again when they have.` : `${name} is forgotten.`,
  );
};

export function Node({ given: [name], can }) {
  const { data: node, error } = useData(path('nodes', name));
  const overview = useData('overview', { once: true });
  const itself = overview.data?.node === name;
  return html`<h1>Node ${name}</h1><${Problem} error=${error} />
    ${
      node &&
      html`
      <${Facts} of=${[
        ['State', html`<${State} of=${stateOf(node)} /> <${Alarms} node=${node} />`],
        ['Votes on metadata', node.voter ? 'yes' : 'no'],
        ['Address', node.address],
        ['Zone', node.zone],
        ['Memory', node.mem_used !== undefined && html`<${Memory} node=${node} />`],
        ['Disk', node.disk_free !== undefined && html`<${Disk} node=${node} />`],
        ['File descriptors', node.fd_used !== undefined && html`<${Descriptors} node=${node} />`],
        ['Clients', node.sockets_used !== undefined && `${format.count(node.sockets_used)} of ${format.count(node.sockets_total)}`],
        ['Threads', node.proc_used !== undefined && format.count(node.proc_used)],
        ['Processors', node.processors !== undefined && format.count(node.processors)],
        ['Up for', node.uptime !== undefined && format.duration(node.uptime)],
      ].filter(([, value]) => value !== false)} />
      ${!itself && overview.data && html`<p class="faint">This page comes from ${overview.data.node}: what ${name} uses of its machine, its maintenance and its log are to be seen at ${name} itself.</p>`}
      ${
        can.administrator &&
        html`
        ${itself && html`<${Itself} node=${node} />`}
        <${Folded} title="Replicas of quorum queues on this node"><${Replicas} node=${node} /></${Folded}>
        ${!node.running && html`<${Section} title="Forget it"><p>A node that will not come back: its replicas are made elsewhere, then it is no member any more. <${Action} kind="danger" does=${forget(name)} ask=${{ title: `Forget ${name}?`, text: `${name} will not be able to come back with its data.`, verb: 'Forget' }}>Forget ${name}</${Action}></p></${Section}>`}`
      }`
    }`;
}

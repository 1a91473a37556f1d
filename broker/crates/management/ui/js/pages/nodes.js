// Nodes: resource usage and operations.
import { html } from '../dom.js';
import { path, withQuery } from '../client.js';
import * as format from '../format.js';
import { Action, Facts, Folded, Link, Problem, Section, State, Table, Tag, Used } from '../parts.js';
import { Form } from '../form.js';
import { Bytes, Levels, RangeChoice, Rates, useRange } from '../plot.js';
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
const Disk = ({ node }) => html`<span class="figure">${format.bytes(node.disk_free)} free, alarm below ${format.bytes(node.disk_free_limit)}</span>`;

export const NodeTable = ({ nodes }) =>
  html`<${Table} caption="Nodes" rows=${nodes} keyOf=${(node) => node.name} columns=${[
    { title: 'Name', cell: (node) => html`<${Link} place=${['nodes', node.name]}>${node.name}</${Link}>` },
    { title: 'State', cell: (node) => html`<${State} of=${stateOf(node)} /> <${Alarms} node=${node} />` },
    {
      title: 'Memory',
      cell: (node) => (node.mem_used === undefined ? html`<span class="faint">unknown</span>` : html`<${Memory} node=${node} />`),
    },
    { title: 'Disk', cell: (node) => (node.disk_free === undefined ? '' : html`<${Disk} node=${node} />`) },
    { title: 'Descriptors', wide: true, cell: (node) => (node.fd_used === undefined ? '' : html`<${Descriptors} node=${node} />`) },
    { title: 'Clients', number: true, wide: true, cell: (node) => (node.sockets_used === undefined ? '' : format.count(node.sockets_used)) },
    { title: 'Voter', wide: true, cell: (node) => (node.voter ? 'yes' : 'no') },
    { title: 'Uptime', number: true, wide: true, cell: (node) => (node.uptime === undefined ? '' : format.duration(node.uptime)) },
  ]} />`;

const rebalance = async () => {
  const { leaders_moved: moved } = await client.post('rebalance/queues');
  notify('good', `${moved} leaders are being moved.`);
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
    <${Form} label="Log level" verb="Set" done="The level is set until the node restarts." submit=${(values) => client.put(of, values.category === '' ? { level: values.level } : values)} fields=${[
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

/** Operations that only the node itself can perform. */
function LocalOperations({ node }) {
  const maintenance = path('nodes', node.name, 'maintenance');
  const drain = async () => {
    const { state, leaders } = await client.put(maintenance);
    notify('good', state === 'drained' ? `${node.name} is drained.` : `${node.name} is draining: ${leaders} queue leaders still have to move.`);
  };
  return html`
    <${Section} title="Maintenance">
      ${
        node.being_drained
          ? html`<p>The node accepts no clients and leads no queues. <${Action} does=${() => client.delete(maintenance)} done=${`${node.name} has left maintenance mode.`}>End maintenance</${Action}></p>`
          : html`<p>Prepares the node for a stop: it closes its listeners and client connections and transfers its queue leaders to other nodes. <${Action} does=${drain} kind="danger" ask=${{ title: `Drain ${node.name}?`, text: `All client connections to ${node.name} are closed, possibly including the one of this page. Its queue leaders move to other nodes.`, verb: 'Drain' }}>Begin maintenance</${Action}></p>`
      }
    </${Section}>
    <${Folded} title="Log levels"><${LogLevels} name=${node.name} /></${Folded}>
    <${Folded} title="Memory alarm">
      <${Form} label="Memory alarm" verb="Set" done="The watermark is set until the node restarts." submit=${(values) => client.put(path('nodes', node.name, 'memory-watermark'), { relative: Number(values.relative) })} fields=${[
        {
          name: 'relative',
          label: 'Share of memory',
          type: 'text',
          value: '0.6',
          required: true,
          hint: 'From 0.0 to 1.0: publishers are blocked while the node uses more than that.',
        },
      ]} />
    </${Folded}>`;
}

const ACTIONS = { grow: 'Add replicas on this node', shrink: 'Remove the replicas on this node', evacuate: 'Move the replicas on this node to other nodes' };

function Replicas({ node }) {
  const submit = async (values) => {
    const { what, ...body } = values;
    const changed = await client.post(
      path('queues', 'quorum', 'replicas', 'on', node.name, what),
      what === 'grow' ? body : { vhost_pattern: body.vhost_pattern, queue_pattern: body.queue_pattern },
    );
    const failed = changed.filter((one) => one.result !== 'ok');
    if (failed.length > 0) throw new Error(`${changed.length - failed.length} queues changed, ${failed.length} did not: ${failed[0].name}: ${failed[0].reason}`);
    return `${changed.length} queues changed.`;
  };
  const ask = (values) => ({
    title: `${ACTIONS[values.what]}?`,
    text: `Every quorum queue that matches ${values.queue_pattern} in virtual hosts that match ${values.vhost_pattern} gets or loses a replica on ${node.name}.`,
    verb: 'Change members',
  });
  return html`<${Form} label="Replicas of quorum queues" verb="Change members" submit=${submit} ask=${ask} danger fields=${[
    { name: 'what', label: 'Action', type: 'select', options: Object.entries(ACTIONS) },
    { name: 'vhost_pattern', label: 'Virtual hosts', value: '.*', hint: 'A regular expression.' },
    { name: 'queue_pattern', label: 'Queues', value: '.*', hint: 'A regular expression.' },
    {
      name: 'strategy',
      label: 'Strategy',
      type: 'select',
      options: [
        ['all', 'all queues'],
        ['even', 'queues with an even number of members'],
      ],
      when: (values) => values.what === 'grow',
    },
  ]} />`;
}

const forget = (name) => async () => {
  const state = await client.delete(path('nodes', name));
  notify(
    'good',
    state?.state === 'moving' ? `${state.queues} queues are being moved from ${name}. Repeat this when they have moved.` : `${name} is forgotten.`,
  );
};

const CHURN = [
  ['connection_created', 'connections opened'],
  ['connection_closed', 'connections closed'],
  ['channel_created', 'channels opened'],
  ['channel_closed', 'channels closed'],
];

/** Resource usage over time. Every node samples that of all nodes. */
const Charts = ({ node }) => html`<${RangeChoice} />
  <div class="plots">
    <${Bytes} title="Memory" stats=${node} names=${[['mem_used', 'used']]} />
    <${Bytes} title="Disk" stats=${node} names=${[['disk_free', 'free']]} />
    <${Levels} title="Descriptors and clients" stats=${node} names=${[
      ['fd_used', 'descriptors'],
      ['sockets_used', 'clients'],
    ]} />
    <${Rates} title="Connections and channels" stats=${node} names=${CHURN} />
  </div>`;

export function Node({ given: [name], can }) {
  const range = useRange();
  const { data: node, error } = useData(withQuery(path('nodes', name), { ...range.node, ...range.data }));
  const overview = useData('overview', { once: true });
  const isLocal = overview.data?.node === name;
  return html`<h1>Node ${name}</h1><${Problem} error=${error} />
    ${
      node &&
      html`
      ${node.mem_used === undefined ? html`<p class="faint">The node does not answer, or its version does not report its resource usage to other nodes.</p>` : html`<${Charts} node=${node} />`}
      <${Facts} of=${[
        ['State', html`<${State} of=${stateOf(node)} /> <${Alarms} node=${node} />`],
        ['Metadata voter', node.voter ? 'yes' : 'no'],
        ['Address', node.address],
        ['Zone', node.zone],
        ['Memory', node.mem_used !== undefined && html`<${Memory} node=${node} />`],
        ['Disk', node.disk_free !== undefined && html`<${Disk} node=${node} />`],
        ['File descriptors', node.fd_used !== undefined && html`<${Descriptors} node=${node} />`],
        ['Clients', node.sockets_used !== undefined && `${format.count(node.sockets_used)} of ${format.count(node.sockets_total)}`],
        ['Threads', node.proc_used !== undefined && format.count(node.proc_used)],
        ['Processors', node.processors !== undefined && format.count(node.processors)],
        ['Uptime', node.uptime !== undefined && format.duration(node.uptime)],
      ].filter(([, value]) => value !== false)} />
      ${
        can.administrator &&
        html`
        ${isLocal ? html`<${LocalOperations} node=${node} />` : overview.data && html`<p class="faint">Node ${overview.data.node} serves this page. Maintenance, log levels and the memory alarm of ${name} can be changed on a page that ${name} serves, or with posthorn ctl on its host.</p>`}
        <${Folded} title="Replicas of quorum queues on this node"><${Replicas} node=${node} /></${Folded}>
        ${!node.running && html`<${Section} title="Forget node"><p>For a node that will not return: its replicas are created on other nodes, then it is removed from the cluster. <${Action} kind="danger" does=${forget(name)} ask=${{ title: `Forget ${name}?`, text: `${name} cannot rejoin the cluster with its data.`, verb: 'Forget' }}>Forget ${name}</${Action}></p></${Section}>`}`
      }`
    }`;
}

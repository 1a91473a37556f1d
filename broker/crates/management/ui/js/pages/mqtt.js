// MQTT: connections, and sessions, subscriptions and retained messages of each node.
import { html } from '../dom.js';
import { path } from '../client.js';
import { VhostList, useVhosts } from '../fields.js';
import * as format from '../format.js';
import { Link, Problem, Section, State, Table } from '../parts.js';
import { useData } from '../session.js';

const perSecond = (details) => `${format.bytes(details?.rate)}/s`;
const number = (title, key, more) => ({ title, number: true, cell: (row) => format.count(row[key]), ...more });

const NODE_COLUMNS = [
  { title: 'Node', cell: (row) => html`<${Link} place=${['nodes', row.node]}>${row.node}</${Link}>` },
  number('Connected', 'connected_sessions'),
  number('Offline', 'offline_sessions'),
  number('Expired', 'expired_sessions', { wide: true }),
  number('Subscriptions', 'subscriptions'),
  number('Retained', 'retained_messages'),
  { title: 'Retained bytes', number: true, wide: true, cell: (row) => format.bytes(row.retained_bytes) },
  number('Wills', 'wills', { wide: true }),
  number('Dropped', 'dropped_messages', { wide: true }),
  number('Not kept', 'messages_not_kept', { wide: true }),
];

const CONNECTION_COLUMNS = [
  { title: 'Client identifier', sort: 'client_properties.client_id', cell: (c) => html`<${Link} place=${['connections', c.name]}>${c.client_properties.client_id || c.name}</${Link}>` },
  { title: 'Virtual host', sort: 'vhost', wide: true, cell: (c) => c.vhost },
  { title: 'User', sort: 'user', cell: (c) => c.user },
  { title: 'State', sort: 'state', cell: (c) => html`<${State} of=${c.state} />` },
  { title: 'Protocol', sort: 'protocol', wide: true, cell: (c) => `${c.protocol}${c.ssl ? ', TLS' : ''}` },
  { title: 'Keep alive', sort: 'timeout', number: true, wide: true, cell: (c) => `${format.count(c.timeout)} s` },
  { title: 'Node', sort: 'node', wide: true, cell: (c) => c.node },
  { title: 'Received', sort: 'recv_oct_details.rate', number: true, cell: (c) => perSecond(c.recv_oct_details) },
  { title: 'Sent', sort: 'send_oct_details.rate', number: true, cell: (c) => perSecond(c.send_oct_details) },
];

function Nodes() {
  const { data, error } = useData('mqtt/nodes');
  return html`<${Problem} error=${error} />
    ${data && html`<${Table} caption="MQTT sessions of each node" rows=${data} keyOf=${(row) => row.node} columns=${NODE_COLUMNS} />`}
    <p class="faint">Every node stores all retained messages. "Dropped" counts QoS 0 messages that clients did not read in time, and "Not kept" messages for offline sessions without space.</p>`;
}

export function Mqtt({ can }) {
  const vhosts = useVhosts();
  return html`<h1>MQTT</h1>
    ${can.monitor && html`<${Section} title="Sessions, subscriptions and retained messages"><${Nodes} /></${Section}>`}
    <${Section} title="Connections"><${VhostList} vhosts=${vhosts} at=${(vhost) => path('mqtt', 'connections', ...(vhost === undefined ? [] : [vhost]))} noun="MQTT connections" keyOf=${(c) => c.name} columns=${CONNECTION_COLUMNS} /></${Section}>`;
}

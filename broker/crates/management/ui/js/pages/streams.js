// Streams: clients of the stream protocol, super streams, and the parts of a queue's page that only streams have.
import { html } from '../dom.js';
import { pageOf, path, withQuery } from '../client.js';
import { VhostList, useVhosts, vhostField } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Action, Facts, Folded, Link, Problem, Section, State, Table } from '../parts.js';
import { client, useData } from '../session.js';

/** Maximum number of consumers and stored offsets shown on a stream's page. */
const MAX_ROWS = 200;

const within = (list, vhost) => (vhost === undefined ? path('stream', list) : path('stream', list, vhost));
const streamLink = (row) => html`<${Link} place=${['queues', row.queue.vhost, row.queue.name]}>${row.queue.name}</${Link}>`;
const connectionLink = (row) => html`<${Link} place=${['connections', row.connection_details.name]}>${row.connection_details.name}</${Link}>`;
const clientKey = (id) => (row) => `${row.connection_details.node} ${row.connection_details.name} ${row[id]}`;

const CONNECTION_COLUMNS = [
  { title: 'Name', sort: 'name', cell: (c) => html`<${Link} place=${['connections', c.name]}>${c.name}</${Link}>` },
  { title: 'Virtual host', sort: 'vhost', wide: true, cell: (c) => c.vhost },
  { title: 'User', sort: 'user', cell: (c) => c.user },
  { title: 'State', sort: 'state', cell: (c) => html`<${State} of=${c.state} />` },
  { title: 'TLS', wide: true, cell: (c) => (c.ssl ? 'yes' : 'no') },
  { title: 'Node', sort: 'node', wide: true, cell: (c) => c.node },
];

const PUBLISHER_COLUMNS = [
  { title: 'Stream', cell: streamLink },
  { title: 'Virtual host', wide: true, cell: (p) => p.queue.vhost },
  { title: 'Connection', wide: true, cell: connectionLink },
  { title: 'Id', number: true, wide: true, cell: (p) => p.publisher_id },
  { title: 'Reference', wide: true, cell: (p) => p.reference },
  { title: 'Published', number: true, cell: (p) => format.count(p.published) },
  { title: 'Confirmed', number: true, cell: (p) => format.count(p.confirmed) },
  { title: 'Errored', number: true, cell: (p) => format.count(p.errored) },
];

const CONSUMER_COLUMNS = [
  { title: 'Stream', cell: streamLink },
  { title: 'Virtual host', wide: true, cell: (c) => c.queue.vhost },
  { title: 'Connection', wide: true, cell: connectionLink },
  { title: 'Id', number: true, wide: true, cell: (c) => c.subscription_id },
  { title: 'Name', wide: true, cell: (c) => c.properties?.name ?? '–' },
  { title: 'Status', cell: (c) => html`<${State} of=${c.activity_status} />` },
  { title: 'Offset', number: true, cell: (c) => format.count(c.offset) },
  { title: 'Lag', number: true, cell: (c) => format.count(c.offset_lag) },
  { title: 'Consumed', number: true, wide: true, cell: (c) => format.count(c.consumed) },
  { title: 'Credits', number: true, wide: true, cell: (c) => format.count(c.credits) },
];

/** The body of a request for a super stream. Empty fields are omitted. */
export function superStreamOf({ kind, partitions, keys, max_age, max_length_bytes, segment_bytes, replicas }) {
  const values = [
    ['max-age', max_age],
    ['max-length-bytes', max_length_bytes],
    ['stream-max-segment-size-bytes', segment_bytes],
    ['initial-cluster-size', replicas],
  ];
  const given = Object.fromEntries(values.filter(([, value]) => value !== undefined && value !== ''));
  return kind === 'keys' ? { 'binding-keys': keys, arguments: given } : { partitions: Number(partitions), arguments: given };
}

function AddSuperStream({ vhosts }) {
  const submit = ({ vhost, name, ...values }) => client.put(path('stream', 'super-streams', vhost, name), superStreamOf(values));
  return html`<${Form} label="Add a super stream" verb="Add super stream" submit=${submit} done="The super stream is created." fields=${[
    vhostField(vhosts),
    { name: 'name', label: 'Name', required: true, hint: 'The exchange has this name. The streams have it with the number or key of their partition.' },
    {
      name: 'kind',
      label: 'Partitions',
      type: 'select',
      options: [
        ['number', 'numbered: clients hash a key of each message'],
        ['keys', 'one for each binding key'],
      ],
    },
    { name: 'partitions', label: 'Number of partitions', type: 'number', min: 1, max: 1000, value: '3', required: true, when: (values) => values.kind !== 'keys' },
    { name: 'keys', label: 'Binding keys', required: true, hint: 'Separated by commas.', when: (values) => values.kind === 'keys' },
    { name: 'max_age', label: 'Maximum age', hint: 'A number with a unit: Y, M, D, h, m or s, such as 7D. Older segments are deleted.' },
    { name: 'max_length_bytes', label: 'Maximum size of each stream in bytes', type: 'number', min: 1 },
    { name: 'segment_bytes', label: 'Size of segment files in bytes', type: 'number', min: 1 },
    { name: 'replicas', label: 'Replicas of each stream', type: 'number', min: 1 },
  ]} />`;
}

function SuperStreams({ vhosts }) {
  const remove = (s) =>
    html`<${Action} kind="small danger" label=${`Delete super stream ${s.name}`} done=${`${s.name} is deleted.`} does=${() => client.delete(path('stream', 'super-streams', s.vhost, s.name))}
      ask=${{ title: `Delete ${s.name}?`, text: `Super stream ${s.name} in virtual host ${s.vhost} is deleted with its ${format.count(s.partition_count)} streams and their messages. This cannot be undone.`, verb: 'Delete' }}>Delete</${Action}>`;
  const streams = (s) =>
    s.partitions.map((partition, at) => html`<span key=${partition.name}>${at > 0 && ', '}<${Link} place=${['queues', s.vhost, partition.name]}>${partition.name}</${Link}></span>`);
  return html`<${VhostList} vhosts=${vhosts} at=${(vhost) => within('super-streams', vhost)} noun="super streams" keyOf=${(s) => `${s.vhost} ${s.name}`} columns=${[
    { title: 'Virtual host', sort: 'vhost', wide: true, cell: (s) => s.vhost },
    { title: 'Name', sort: 'name', cell: (s) => html`<${Link} place=${['exchanges', s.vhost, s.name]}>${s.name}</${Link}>` },
    { title: 'Partitions', sort: 'partition_count', number: true, cell: (s) => format.count(s.partition_count) },
    { title: 'Streams', wide: true, cell: streams },
    { title: '', cell: remove },
  ]} />
    ${vhosts !== undefined && html`<${Folded} title="Add a super stream"><${AddSuperStream} vhosts=${vhosts} /></${Folded}>`}`;
}

export function Streams() {
  const vhosts = useVhosts();
  return html`<h1>Streams</h1>
    <${Section} title="Super streams"><${SuperStreams} vhosts=${vhosts} /></${Section}>
    <${Section} title="Consumers"><${VhostList} vhosts=${vhosts} at=${(vhost) => within('consumers', vhost)} noun="stream consumers" scope="consumers." keyOf=${clientKey('subscription_id')} columns=${CONSUMER_COLUMNS} /></${Section}>
    <${Section} title="Publishers"><${VhostList} vhosts=${vhosts} at=${(vhost) => within('publishers', vhost)} noun="stream publishers" scope="publishers." keyOf=${clientKey('publisher_id')} columns=${PUBLISHER_COLUMNS} /></${Section}>
    <${Section} title="Connections"><${VhostList} vhosts=${vhosts} at=${(vhost) => within('connections', vhost)} noun="stream connections" scope="connections." keyOf=${(c) => c.name} columns=${CONNECTION_COLUMNS} /></${Section}>`;
}

/** Publishers and consumers of a connection of the stream protocol. */
export function StreamClients({ connection: c }) {
  const of = path('stream', 'connections', c.vhost, c.name);
  const publishers = useData(`${of}/publishers`);
  const consumers = useData(`${of}/consumers`);
  const without = (columns, ...titles) => columns.filter(({ title }) => !titles.includes(title));
  return html`<${Section} title="Publishers"><${Problem} error=${publishers.error} />
      <${Table} caption="Publishers" rows=${publishers.data ?? []} keyOf=${(p) => p.publisher_id} columns=${without(PUBLISHER_COLUMNS, 'Virtual host', 'Connection')} /></${Section}>
    <${Section} title="Consumers"><${Problem} error=${consumers.error} />
      <${Table} caption="Consumers" rows=${consumers.data ?? []} keyOf=${(s) => s.subscription_id} columns=${without(CONSUMER_COLUMNS, 'Virtual host', 'Connection')} /></${Section}>`;
}

/** The value in force: a policy takes precedence over the queue's argument. */
export const inForce = (queue, key) => queue.effective_policy_definition?.[key] ?? queue.arguments?.[`x-${key}`];

/** Facts about a stream, from its queue and from the status of its replicas. */
export function streamFacts(queue, replicas) {
  const leader = replicas?.find((replica) => replica.role === 'writer');
  const bytes = (key, absent) => {
    const value = inForce(queue, key);
    return value === undefined ? absent : format.bytes(Number(value));
  };
  return [
    ['First offset', leader && format.count(leader.first_offset)],
    ['Last committed offset', leader && leader.committed_offset >= 0 && format.count(leader.committed_offset)],
    ['Segments', leader && `${format.count(leader.segments)} with ${format.count(leader.chunks)} chunks`],
    ['Readers', replicas && format.count(replicas.reduce((sum, replica) => sum + (replica.readers ?? 0), 0))],
    ['Maximum age', inForce(queue, 'max-age') ?? 'no limit'],
    ['Maximum size', bytes('max-length-bytes', 'no limit')],
    ['Size of segment files', bytes('stream-max-segment-size-bytes', 'default')],
  ].filter(([, value]) => value !== undefined && value !== null && value !== false);
}

function StreamConsumers({ queue: q }) {
  const query = { page: 1, page_size: MAX_ROWS, name: q.name };
  const { data, error } = useData(withQuery(path('stream', 'consumers', q.vhost), query));
  // The filter of the API also finds names that contain this one.
  const rows = (pageOf(data)?.items ?? []).filter((consumer) => consumer.queue.name === q.name);
  const columns = CONSUMER_COLUMNS.filter(({ title }) => title !== 'Stream' && title !== 'Virtual host');
  return html`<${Problem} error=${error} />${data && html`<${Table} caption="Consumers of the stream protocol" rows=${rows} keyOf=${clientKey('subscription_id')} columns=${columns} empty="The stream has no consumers of the stream protocol." />`}`;
}

function Tracking({ queue: q }) {
  const { data, error } = useData(path('stream', q.vhost, q.name, 'tracking'));
  const rowsOf = (kind, values) => Object.entries(values ?? {}).map(([name, value]) => ({ kind, name, value }));
  const rows = [...rowsOf('offset', data?.offsets), ...rowsOf('writer', data?.writers)];
  const reset = (name) =>
    html`<${Action} kind="small danger" label=${`Reset the offset of ${name}`} done=${`The stored offset of ${name} is 0.`} does=${() => client.delete(path('stream', q.vhost, q.name, 'tracking', name))}
      ask=${{ title: `Reset the offset of ${name}?`, text: `Consumers with the name ${name} read stream ${q.name} from its first message when they start again.`, verb: 'Reset' }}>Reset</${Action}>`;
  return html`<${Problem} error=${error} />
    ${
      data &&
      html`<${Table} caption="Stored offsets and publishing ids" rows=${rows.slice(0, MAX_ROWS)} keyOf=${(row) => `${row.kind} ${row.name}`} empty="No consumer has stored an offset, and no publisher has a name." columns=${[
        { title: 'Type', cell: (row) => (row.kind === 'offset' ? 'offset of a consumer' : 'publishing id of a publisher') },
        { title: 'Name', cell: (row) => row.name },
        { title: 'Value', number: true, cell: (row) => format.count(row.value) },
        { title: '', cell: (row) => row.kind === 'offset' && reset(row.name) },
      ]} />`
    }
    ${rows.length > MAX_ROWS && html`<p class="faint">${format.count(rows.length - MAX_ROWS)} more are not shown.</p>`}`;
}

/** The sections of a queue's page that only streams have. */
export function Stream({ queue: q }) {
  const { data, error } = useData(path('stream', q.vhost, q.name, 'status'));
  return html`<${Section} title="Log and replicas"><${Problem} error=${error} />
      <${Facts} of=${streamFacts(q, data)} />
      ${
        data &&
        html`<${Table} caption="Replicas" rows=${data} keyOf=${(replica) => replica.node} columns=${[
          { title: 'Node', cell: (replica) => html`<${Link} place=${['nodes', replica.node]}>${replica.node}</${Link}>` },
          { title: 'State', cell: (replica) => html`<${State} of=${replica.state} />` },
          { title: 'Role', cell: (replica) => (replica.role === 'writer' ? 'leader' : 'follower') },
          { title: 'Last offset', number: true, cell: (replica) => format.count(replica.offset) },
          { title: 'Lag', number: true, cell: (replica) => format.count(replica.lag) },
          { title: 'Segments', number: true, wide: true, cell: (replica) => format.count(replica.segments) },
          { title: 'Size', number: true, wide: true, cell: (replica) => format.bytes(replica.bytes) },
          { title: 'Readers', number: true, wide: true, cell: (replica) => format.count(replica.readers) },
        ]} />`
      }
    </${Section}>
    <${Section} title="Consumers of the stream protocol"><${StreamConsumers} queue=${q} /></${Section}>
    <${Section} title="Stored offsets"><${Tracking} queue=${q} /></${Section}>`;
}

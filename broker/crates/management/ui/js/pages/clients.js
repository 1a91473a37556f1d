// Connections and channels.
import { html } from '../dom.js';
import { headerText, words } from '../values.js';
import { path, withQuery } from '../client.js';
import { VhostList, useVhosts } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Facts, Link, Pairs, Problem, Section, State, Table } from '../parts.js';
import { to } from '../places.js';
import { RangeChoice, Rates, TRAFFIC, useRange } from '../plot.js';
import { byteCeiling } from '../samples.js';
import { client, useData } from '../session.js';
import { StreamClients } from './streams.js';

const OCTETS = [
  ['recv_oct', 'received'],
  ['send_oct', 'sent'],
];
const perSecond = (value) => `${format.bytes(value)}/s`;
const rateOf = (of, key) => of?.[`${key}_details`]?.rate;

export function Connections() {
  const vhosts = useVhosts();
  return html`<h1>Connections</h1>
    <${VhostList} vhosts=${vhosts} at=${(vhost) => (vhost === undefined ? 'connections' : path('vhosts', vhost, 'connections'))} noun="connections" keyOf=${(c) => c.name} columns=${[
      {
        title: 'Name',
        sort: 'name',
        cell: (c) =>
          html`<${Link} place=${['connections', c.name]}>${c.name}</${Link}>${c.user_provided_name && html`<br /><span class="faint">${c.user_provided_name}</span>`}`,
      },
      { title: 'Virtual host', sort: 'vhost', wide: true, cell: (c) => c.vhost },
      { title: 'User', sort: 'user', cell: (c) => c.user },
      { title: 'State', sort: 'state', cell: (c) => html`<${State} of=${c.state} />` },
      { title: 'Protocol', sort: 'protocol', wide: true, cell: (c) => `${c.protocol}${c.ssl ? ', TLS' : ''}` },
      { title: 'Node', sort: 'node', wide: true, cell: (c) => c.node },
      { title: 'Channels', sort: 'channels', number: true, wide: true, cell: (c) => format.count(c.channels) },
      { title: 'Received', sort: 'recv_oct_details.rate', number: true, cell: (c) => perSecond(rateOf(c, 'recv_oct')) },
      { title: 'Sent', sort: 'send_oct_details.rate', number: true, cell: (c) => perSecond(rateOf(c, 'send_oct')) },
    ]} />`;
}

const channelColumns = [
  { title: 'Channel', sort: 'name', cell: (c) => html`<${Link} place=${['channels', c.name]}>${c.name}</${Link}>` },
  { title: 'Virtual host', sort: 'vhost', wide: true, cell: (c) => c.vhost },
  { title: 'User', sort: 'user', wide: true, cell: (c) => c.user },
  { title: 'State', sort: 'state', cell: (c) => html`<${State} of=${c.state} />` },
  { title: 'Mode', wide: true, cell: (c) => words(`${c.confirm ? 'confirms' : ''} ${c.transactional ? 'transactions' : ''}`).join(', ') },
  { title: 'Prefetch', sort: 'prefetch_count', number: true, wide: true, cell: (c) => format.count(c.prefetch_count) },
  { title: 'Unacknowledged', sort: 'messages_unacknowledged', number: true, cell: (c) => format.count(c.messages_unacknowledged) },
  { title: 'Unconfirmed', sort: 'messages_unconfirmed', number: true, cell: (c) => format.count(c.messages_unconfirmed) },
  { title: 'Published', sort: 'message_stats.publish_details.rate', number: true, cell: (c) => format.rate(rateOf(c.message_stats, 'publish')) },
  {
    title: 'Delivered',
    sort: 'message_stats.deliver_get_details.rate',
    number: true,
    cell: (c) => format.rate(rateOf(c.message_stats, 'deliver_get')),
  },
];

/** A filter's value: a text, a list, or a map as a list of keys and values. */
function filterText(value) {
  if (!Array.isArray(value)) return String(value);
  return value.map((v) => (v?.key === undefined ? filterText(v) : `${v.key} = ${filterText(v.value)}`)).join(', ');
}

const linkColumns = (terminus, more) => [
  { title: 'Handle', number: true, cell: (l) => l.handle },
  { title: 'Link', cell: (l) => l.link_name },
  { title: terminus, cell: (l) => l.target_address ?? l.source_address ?? '–' },
  ...more,
  { title: 'Largest message', number: true, wide: true, cell: (l) => (l.max_message_size === 'unlimited' ? 'no limit' : format.bytes(l.max_message_size)) },
  { title: 'Delivery count', number: true, wide: true, cell: (l) => l.delivery_count },
  { title: 'Credit', number: true, cell: (l) => format.count(l.credit) },
];
const incomingColumns = linkColumns('Target', [
  { title: 'Settle mode', wide: true, cell: (l) => l.snd_settle_mode },
  { title: 'Unconfirmed', number: true, cell: (l) => format.count(l.unconfirmed_messages) },
]);
const outgoingColumns = linkColumns('Source', [
  { title: 'Queue', wide: true, cell: (l) => l.queue_name },
  { title: 'Settled', cell: (l) => (l.send_settled ? 'yes' : 'no') },
  { title: 'Filters', wide: true, cell: (l) => l.filter.map((f) => `${f.name}: ${filterText(f.value)}`).join(', ') || '–' },
]);

/** The sessions of an AMQP 1.0 connection with their links. */
function Sessions({ of }) {
  const { data: sessions, error } = useData(path('connections', of, 'sessions'));
  return html`<${Problem} error=${error} />${(sessions ?? []).map(
    (s) => html`<${Section} key=${s.channel_number} title=${`Session ${s.channel_number}`}>
      <${Facts} of=${[
        ['Incoming window', format.count(s.incoming_window)],
        ['Incoming window of the client', format.count(s.remote_incoming_window)],
        ['Next incoming transfer', s.next_incoming_id],
        ['Next outgoing transfer', s.next_outgoing_id],
        ['Unsettled deliveries', format.count(s.outgoing_unsettled_deliveries)],
      ]} />
      <h3>Links from the client</h3>
      <${Table} caption="Links from the client" columns=${incomingColumns} rows=${s.incoming_links} keyOf=${(l) => l.handle} />
      <h3>Links to the client</h3>
      <${Table} caption="Links to the client" columns=${outgoingColumns} rows=${s.outgoing_links} keyOf=${(l) => l.handle} />
    </${Section}>`,
  )}`;
}

export function Connection({ given: [name] }) {
  const range = useRange();
  const { data: c, error } = useData(withQuery(path('connections', name), range.data));
  const close = async (values) => {
    const reason = headerText(values.reason);
    await client.delete(path('connections', name), { headers: reason === '' ? {} : { 'X-Reason': reason } });
    window.location.hash = to('connections');
  };
  return html`<h1>Connection ${name}</h1><${Problem} error=${error} />
    ${
      c &&
      html`
      <${RangeChoice} />
      <div class="plots"><${Rates} title="Bytes" stats=${c} names=${OCTETS} show=${perSecond} top=${byteCeiling} /></div>
      <${Facts} of=${[
        ['State', html`<${State} of=${c.state} />`],
        ['Client-provided name', c.user_provided_name],
        ['User', c.user],
        ['Virtual host', html`<${Link} place=${['vhosts', c.vhost]}>${c.vhost}</${Link}>`],
        ['Node', c.node],
        ['Protocol', c.protocol],
        ['TLS', c.ssl ? 'yes' : 'no'],
        ['Connected at', format.time(c.connected_at)],
        ['Heartbeat', `${format.count(c.timeout)} s`],
        ['Maximum frame size', format.bytes(c.frame_max)],
        ['Channels', `${format.count(c.channels)} of ${format.count(c.channel_max)}`],
        ['Received from client', format.bytes(c.recv_oct)],
        ['Sent to client', format.bytes(c.send_oct)],
        ['Send buffer', format.bytes(c.send_pend)],
        ['Client properties', html`<${Pairs} of=${c.client_properties} />`],
      ]} />
      <${Section} title="Channels"><${List} path=${path('connections', name, 'channels')} noun="channels of this connection" filter=${false} columns=${channelColumns} keyOf=${(channel) => channel.name} /></${Section}>
      ${c.protocol.endsWith('AMQP 1-0') && html`<${Sessions} of=${name} />`}
      ${c.protocol === 'stream' && html`<${StreamClients} connection=${c} />`}
      <${Section} title="Close connection">
        <${Form} label="Close the connection" verb="Close connection" danger submit=${close} done="The connection is closed."
          ask=${() => ({ title: 'Close this connection?', text: `Connection ${name} of user ${c.user} is closed, and its unacknowledged messages are requeued. Most clients reconnect.`, verb: 'Close' })}
          fields=${[{ name: 'reason', label: 'Reason', hint: 'Sent to the client.' }]} />
      </${Section}>`
    }`;
}

export function Channels() {
  const vhosts = useVhosts();
  return html`<h1>Channels</h1>
    <${VhostList} vhosts=${vhosts} at=${(vhost) => (vhost === undefined ? 'channels' : path('vhosts', vhost, 'channels'))} noun="channels" keyOf=${(c) => c.name} columns=${channelColumns} />`;
}

export function Channel({ given: [name] }) {
  const range = useRange();
  const { data: c, error } = useData(withQuery(path('channels', name), range.messages));
  return html`<h1>Channel ${name}</h1><${Problem} error=${error} />
    ${
      c &&
      html`
      <${RangeChoice} />
      <div class="plots"><${Rates} title="Messages" stats=${c.message_stats} names=${TRAFFIC} /></div>
      <${Facts} of=${[
        ['Connection', html`<${Link} place=${['connections', c.connection_details.name]}>${c.connection_details.name}</${Link}>`],
        ['State', html`<${State} of=${c.state} />`],
        ['User', c.user],
        ['Virtual host', html`<${Link} place=${['vhosts', c.vhost]}>${c.vhost}</${Link}>`],
        ['Node', c.node],
        ['Publisher confirms', c.confirm ? 'yes' : 'no'],
        ['Transactions', c.transactional ? 'yes' : 'no'],
        ['Consumers', format.count(c.consumer_count)],
        ['Prefetch', `${format.count(c.prefetch_count)} per consumer, ${format.count(c.global_prefetch_count)} per channel; 0: no limit`],
        ['Unacknowledged', format.count(c.messages_unacknowledged)],
        ['Unconfirmed', format.count(c.messages_unconfirmed)],
        ['Uncommitted', `${format.count(c.messages_uncommitted)} messages, ${format.count(c.acks_uncommitted)} acknowledgements`],
      ]} />`
    }`;
}

const consumerKey = (c) => `${c.queue?.vhost} ${c.queue?.name} ${c.channel_details.name} ${c.consumer_tag}`;

const consumerColumns = [
  { title: 'Queue', sort: 'queue.name', cell: (c) => html`<${Link} place=${['queues', c.queue.vhost, c.queue.name]}>${c.queue.name}</${Link}>` },
  { title: 'Virtual host', sort: 'queue.vhost', wide: true, cell: (c) => c.queue.vhost },
  { title: 'Tag', sort: 'consumer_tag', cell: (c) => c.consumer_tag },
  {
    title: 'Channel',
    sort: 'channel_details.name',
    wide: true,
    cell: (c) => (c.channel_details.name ? html`<${Link} place=${['channels', c.channel_details.name]}>${c.channel_details.name}</${Link}>` : '–'),
  },
  { title: 'User', sort: 'channel_details.user', wide: true, cell: (c) => c.channel_details.user ?? '–' },
  { title: 'Status', sort: 'activity_status', cell: (c) => html`<${State} of=${c.activity_status} />` },
  { title: 'Ack required', sort: 'ack_required', wide: true, cell: (c) => (c.ack_required ? 'yes' : 'no') },
  { title: 'Exclusive', sort: 'exclusive', wide: true, cell: (c) => (c.exclusive ? 'yes' : 'no') },
  { title: 'Prefetch', sort: 'prefetch_count', number: true, cell: (c) => format.count(c.prefetch_count) },
  { title: 'Arguments', wide: true, cell: (c) => html`<${Pairs} of=${c.arguments} />` },
];

/** The consumers of all queues. */
export function AllConsumers() {
  const vhosts = useVhosts();
  return html`<h1>Consumers</h1>
    <${VhostList} vhosts=${vhosts} at=${(vhost) => (vhost === undefined ? 'consumers' : path('consumers', vhost))} noun="consumers" keyOf=${consumerKey} columns=${consumerColumns} />`;
}

/** Consumers of a queue. */
export const Consumers = ({ of }) =>
  html`<${Table} caption="Consumers" rows=${of} keyOf=${(c) => `${c.channel_details.name} ${c.consumer_tag}`} empty="The queue has no consumers." columns=${[
    { title: 'Tag', cell: (c) => c.consumer_tag },
    {
      title: 'Channel',
      cell: (c) => (c.channel_details.name ? html`<${Link} place=${['channels', c.channel_details.name]}>${c.channel_details.name}</${Link}>` : '–'),
    },
    { title: 'Status', cell: (c) => html`<${State} of=${c.activity_status} />` },
    { title: 'Ack required', cell: (c) => (c.ack_required ? 'yes' : 'no') },
    { title: 'Exclusive', wide: true, cell: (c) => (c.exclusive ? 'yes' : 'no') },
    { title: 'Prefetch', number: true, cell: (c) => format.count(c.prefetch_count) },
    { title: 'Arguments', wide: true, cell: (c) => html`<${Pairs} of=${c.arguments} />` },
  ]} />`;

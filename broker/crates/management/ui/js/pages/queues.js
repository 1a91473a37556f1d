// Queues.
import { html } from '../dom.js';
import { path, withQuery } from '../client.js';
import { Features, VhostList, QUEUE_ARGUMENTS, useVhosts, vhostField } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Action, Facts, Folded, Link, Pairs, Problem, Section, State, Table } from '../parts.js';
import { to } from '../places.js';
import { DEPTHS, Levels, RangeChoice, Rates, TRAFFIC, useRange } from '../plot.js';
import { client, useData } from '../session.js';
import { objectOf } from '../values.js';
import { Bind, Bindings } from './bindings.js';
import { Browse } from './browse.js';
import { Consumers } from './clients.js';
import { Get, Publish } from './messages.js';
import { Stream } from './streams.js';

/** Maximum number of consumers shown. */
const MAX_CONSUMERS = 200;

const rateOf = (queue, key) => format.rate(queue.message_stats?.[`${key}_details`]?.rate);

/** Returns true for a type whose queues are durable and stay without consumers. */
const isAlwaysDurable = (type) => type === 'quorum' || type === 'stream';

function Declare({ vhosts }) {
  const submit = ({ vhost, name, type, ...values }) => {
    const queueArguments = objectOf(values.arguments);
    if (type !== '') queueArguments['x-queue-type'] = type;
    return client.put(path('queues', vhost, name), { durable: values.durable === 'true', auto_delete: values.auto_delete, arguments: queueArguments });
  };
  return html`<${Form} label="Add a queue" verb="Add queue" submit=${submit} done="The queue is declared." fields=${[
    vhostField(vhosts),
    { name: 'name', label: 'Name', required: true },
    {
      name: 'type',
      label: 'Type',
      type: 'select',
      options: [
        ['quorum', 'quorum: replicated'],
        ['classic', 'classic: on one node'],
        ['stream', 'stream: a replicated log that consumers read by offset'],
        ['', 'default of the virtual host'],
      ],
    },
    {
      name: 'durable',
      label: 'Durability',
      type: 'select',
      options: [
        ['true', 'durable'],
        ['false', 'transient'],
      ],
      when: (values) => !isAlwaysDurable(values.type),
    },
    {
      name: 'auto_delete',
      label: 'Auto-delete',
      type: 'check',
      hint: 'The queue is deleted with its last consumer.',
      when: (values) => !isAlwaysDurable(values.type),
    },
    { name: 'arguments', label: 'Arguments', type: 'rows', known: QUEUE_ARGUMENTS },
  ]} />`;
}

export function Queues() {
  const vhosts = useVhosts();
  return html`<h1>Queues</h1>
    <${VhostList} vhosts=${vhosts} at=${(vhost) => (vhost === undefined ? 'queues' : path('queues', vhost))} noun="queues" keyOf=${(q) => `${q.vhost} ${q.name}`} columns=${[
      { title: 'Virtual host', sort: 'vhost', wide: true, cell: (q) => q.vhost },
      { title: 'Name', sort: 'name', cell: (q) => html`<${Link} place=${['queues', q.vhost, q.name]}>${q.name}</${Link}>` },
      { title: 'Type', sort: 'type', wide: true, cell: (q) => q.type },
      { title: 'Features', wide: true, cell: (q) => html`<${Features} of=${q} />` },
      { title: 'State', sort: 'state', cell: (q) => html`<${State} of=${q.state} />` },
      { title: 'Ready', sort: 'messages_ready', number: true, cell: (q) => format.count(q.messages_ready) },
      { title: 'Unacked', sort: 'messages_unacknowledged', number: true, cell: (q) => format.count(q.messages_unacknowledged) },
      { title: 'All', sort: 'messages', number: true, wide: true, cell: (q) => format.count(q.messages) },
      { title: 'Age', sort: 'head_message_age_seconds', number: true, wide: true, cell: (q) => html`<span class="figure">${format.age(q.head_message_age_seconds)}</span>` },
      { title: 'Consumers', sort: 'consumers', number: true, wide: true, cell: (q) => format.count(q.consumers) },
      { title: 'In', sort: 'message_stats.publish_details.rate', number: true, cell: (q) => rateOf(q, 'publish') },
      { title: 'Out', sort: 'message_stats.deliver_get_details.rate', number: true, cell: (q) => rateOf(q, 'deliver_get') },
      { title: 'Acked', sort: 'message_stats.ack_details.rate', number: true, wide: true, cell: (q) => rateOf(q, 'ack') },
    ]} />
    ${vhosts !== undefined && html`<${Folded} title="Add a queue"><${Declare} vhosts=${vhosts} /></${Folded}>`}`;
}

/** The members of a quorum queue or stream, and operations on them. */
function Members({ queue, can }) {
  const of = path('queues', 'quorum', queue.vhost, queue.name);
  const { data, error } = useData(`${of}/status`);
  const nodes = useData(can.administrator ? 'nodes' : null);
  const members = (data ?? []).map((member) => member['Node Name']);
  const others = (nodes.data ?? []).map((node) => node.name).filter((name) => !members.includes(name));
  const remove = (
    node,
  ) => html`<${Action} kind="small danger" done=${`The member of ${queue.name} on ${node} is removed.`} does=${() => client.post(`${of}/replicas/delete`, { node })}
    ask=${{ title: `Remove the member on ${node}?`, text: `Queue ${queue.name} loses one replica: the one on ${node} is deleted.`, verb: 'Remove' }}>Remove</${Action}>`;
  return html`<${Problem} error=${error} />
    ${
      data &&
      html`<${Table} caption="Members" rows=${data} keyOf=${(member) => member['Node Name']} columns=${[
        { title: 'Node', cell: (member) => html`<${Link} place=${['nodes', member['Node Name']]}>${member['Node Name']}</${Link}>` },
        { title: 'State', cell: (member) => html`<${State} of=${member['Raft State']} />` },
        { title: 'Membership', cell: (member) => member.Membership },
        { title: 'Last index', number: true, wide: true, cell: (member) => format.count(member['Last Log Index']) },
        { title: 'Committed', number: true, cell: (member) => format.count(member['Commit Index']) },
        { title: 'Applied', number: true, wide: true, cell: (member) => format.count(member['Last Applied']) },
        { title: 'Term', number: true, wide: true, cell: (member) => format.count(member.Term) },
        ...(can.administrator ? [{ title: '', cell: (member) => remove(member['Node Name']) }] : []),
      ]} />`
    }
    ${
      can.administrator &&
      others.length > 0 &&
      html`<${Folded} title="Add or replace a member">
      <${Form} key=${others.join()} label="Add a member" verb="Add" done="The member is added. It votes once it has caught up." submit=${(values) => client.post(`${of}/replicas/add`, values)}
        fields=${[{ name: 'node', label: 'New member on', type: 'select', options: others.map((name) => [name, name]) }]} />
      <${Form} key=${`${others.join()}/${members.join()}`} label="Replace a member" verb="Replace" danger done="The old member is removed once the new one has caught up." submit=${(values) => client.post(`${of}/replicas/replace`, values)}
        ask=${(values) => ({ title: `Replace the member on ${values.node}?`, text: `The replica of ${queue.name} on ${values.node} is deleted once the one on ${values.with} has caught up.`, verb: 'Replace' })}
        fields=${[
          { name: 'node', label: 'Replace member on', type: 'select', options: members.map((name) => [name, name]) },
          { name: 'with', label: 'With a member on', type: 'select', options: others.map((name) => [name, name]) },
        ]} />
    </${Folded}>`
    }`;
}

function Remove({ queue }) {
  const of = path('queues', queue.vhost, queue.name);
  const size = `${format.count(queue.messages)} messages`;
  const submit = async (values) => {
    await client.delete(withQuery(of, { 'if-unused': values.unused, 'if-empty': values.empty }));
    window.location.hash = to('queues');
  };
  return html`${queue.type !== 'stream' && html`<p><${Action} kind="danger" does=${() => client.delete(`${of}/contents`)} done=${`${queue.name} is purged.`}
      ask=${{ title: `Purge ${queue.name}?`, text: `All ready messages of queue ${queue.name} in virtual host ${queue.vhost} are deleted (it has ${size}). This cannot be undone.`, verb: 'Purge' }}>Purge messages</${Action}></p>`}
    <${Form} label="Delete the queue" verb="Delete queue" danger submit=${submit} done=${`${queue.name} is deleted.`}
      ask=${() => ({ title: `Delete ${queue.name}?`, text: `Queue ${queue.name} in virtual host ${queue.vhost} is deleted with its contents (${size}, ${format.count(queue.consumers)} consumers).`, verb: 'Delete' })}
      fields=${[
        { name: 'unused', label: 'Only if it has no consumers', type: 'check' },
        { name: 'empty', label: 'Only if it is empty', type: 'check' },
      ]} />`;
}

function Details({ queue: q, can }) {
  const of = path('queues', q.vhost, q.name);
  const policy = (name, place) => name && html`<${Link} place=${[place, q.vhost, name]}>${name}</${Link}>`;
  const consumers = q.consumer_details ?? [];
  return html`
    ${q.state === 'lost' && html`<p class="problem" role="alert">The only replica was on node ${q.node}, which lost its data directory. Delete the queue and declare it again.</p>`}
    ${q.state === 'down' && html`<p class="problem" role="alert">The queue is unavailable: its node, or the majority of its members, cannot be reached. <a href="#/">Problems</a></p>`}
    <${RangeChoice} />
    <div class="plots">
      <${Levels} title="Messages" stats=${q} names=${DEPTHS} />
      <${Rates} title="Rates" stats=${q.message_stats} names=${TRAFFIC.filter(([key]) => key !== 'confirm')} />
    </div>
    <${Facts} of=${[
      ['Virtual host', html`<${Link} place=${['vhosts', q.vhost]}>${q.vhost}</${Link}>`],
      ['Type', q.type],
      ['State', html`<${State} of=${q.state} />`],
      [isAlwaysDurable(q.type) ? 'Leader' : 'Node', q.leader && html`<${Link} place=${['nodes', q.leader]}>${q.leader}</${Link}>`],
      ['Members online', isAlwaysDurable(q.type) && `${q.online.length} of ${q.members.length}`],
      ['Durable', q.durable ? 'yes' : 'no'],
      ['Auto-delete', q.auto_delete ? 'yes' : 'no'],
      ['Exclusive', q.exclusive ? 'yes' : 'no'],
      ['Ready', format.count(q.messages_ready)],
      ['Ready by priority', Object.keys(q.messages_by_priority ?? {}).length > 1 && html`<${Pairs} of=${q.messages_by_priority} />`],
      ['Requeued', q.messages_ready_returned > 0 && format.count(q.messages_ready_returned)],
      ['Unacknowledged', format.count(q.messages_unacknowledged)],
      ['Bytes', format.bytes(q.message_bytes)],
      ['Dead letters in transit', q.messages_dlx > 0 && format.count(q.messages_dlx)],
      ['Age of the head', q.head_message_age_seconds !== undefined && html`<span class="figure">${format.age(q.head_message_age_seconds)}</span>`],
      ['Consumers', format.count(q.consumers)],
      ['Single active consumer', q.single_active_consumer_tag],
      ['Policy', policy(q.policy, 'policies')],
      ['Operator policy', policy(q.operator_policy, 'operator_policies')],
      ['Effective policy definition', html`<${Pairs} of=${q.effective_policy_definition} />`],
      ['Arguments', html`<${Pairs} of=${q.arguments} />`],
      ['Declared by', q.user_who_performed_action],
    ].filter(([, value]) => value !== false)} />
    ${q.type === 'stream' && html`<${Stream} queue=${q} />`}
    ${isAlwaysDurable(q.type) && html`<${Section} title="Members"><${Members} queue=${q} can=${can} /></${Section}>`}
    <${Section} title="Consumers">
      <${Consumers} of=${consumers.slice(0, MAX_CONSUMERS)} />
      ${consumers.length > MAX_CONSUMERS && html`<p class="faint">${format.count(consumers.length - MAX_CONSUMERS)} more are not shown.</p>`}
    </${Section}>
    <${Section} title="Bindings"><${Bindings} at=${`${of}/bindings`} noun="bindings of this queue" end="destination" /></${Section}>
    <${Folded} title="Add a binding"><${Bind} vhost=${q.vhost} to=${{ type: 'queue', name: q.name }} /></${Folded}>
    <${Folded} title="Publish a message"><${Publish} vhost=${q.vhost} exchange="" to=${q.name} /></${Folded}>
    ${q.type !== 'stream' && html`<${Folded} title="Browse messages"><${Browse} vhost=${q.vhost} queue=${q.name} /></${Folded}>`}
    ${q.type !== 'stream' && html`<${Folded} title="Get messages"><${Get} vhost=${q.vhost} queue=${q.name} /></${Folded}>`}
    <${Folded} title=${q.type === 'stream' ? 'Delete' : 'Purge or delete'}><${Remove} queue=${q} /></${Folded}>`;
}

export function Queue({ given: [vhost, name], can }) {
  const range = useRange();
  const { data, error } = useData(withQuery(path('queues', vhost, name), { ...range.lengths, ...range.messages }));
  return html`<h1>Queue ${name}</h1><${Problem} error=${error} />${data && html`<${Details} queue=${data} can=${can} />`}`;
}

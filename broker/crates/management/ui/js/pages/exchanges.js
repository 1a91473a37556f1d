// Exchanges.
import { html } from '../dom.js';
import { path, withQuery } from '../client.js';
import { EXCHANGE_ARGUMENTS, Features, VhostList, useVhosts, vhostField } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Action, Facts, Folded, Link, Pairs, Problem, Section } from '../parts.js';
import { to } from '../places.js';
import { RangeChoice, Rates, useRange } from '../plot.js';
import { client, useData } from '../session.js';
import { objectOf } from '../values.js';
import { Bind, Bindings, inPath } from './bindings.js';
import { Publish } from './messages.js';

const TYPES = [
  'direct',
  'fanout',
  'topic',
  'headers',
  'x-consistent-hash',
  'x-local-random',
  'x-modulus-hash',
  'x-random',
  'x-delayed-message',
];
const displayName = (exchange) => (exchange.name === '' ? '(default exchange)' : exchange.name);

function Declare({ vhosts }) {
  const submit = ({ vhost, name, ...values }) =>
    client.put(path('exchanges', vhost, name), {
      type: values.type,
      durable: values.durable === 'true',
      auto_delete: values.auto_delete,
      internal: values.internal,
      arguments: objectOf(values.arguments),
    });
  return html`<${Form} label="Add an exchange" verb="Add exchange" submit=${submit} done="The exchange is declared." fields=${[
    vhostField(vhosts),
    { name: 'name', label: 'Name', required: true },
    { name: 'type', label: 'Type', type: 'select', options: TYPES.map((type) => [type, type]) },
    {
      name: 'durable',
      label: 'Durability',
      type: 'select',
      options: [
        ['true', 'durable'],
        ['false', 'transient'],
      ],
    },
    { name: 'auto_delete', label: 'Auto-delete', type: 'check', hint: 'The exchange is deleted with its last binding.' },
    { name: 'internal', label: 'Internal', type: 'check', hint: 'Clients cannot publish to it, other exchanges can.' },
    { name: 'arguments', label: 'Arguments', type: 'rows', known: EXCHANGE_ARGUMENTS },
  ]} />`;
}

export function Exchanges() {
  const vhosts = useVhosts();
  return html`<h1>Exchanges</h1>
    <${VhostList} vhosts=${vhosts} at=${(vhost) => (vhost === undefined ? 'exchanges' : path('exchanges', vhost))} noun="exchanges" keyOf=${(x) => `${x.vhost} ${x.name}`} columns=${[
      { title: 'Virtual host', sort: 'vhost', wide: true, cell: (x) => x.vhost },
      { title: 'Name', sort: 'name', cell: (x) => html`<${Link} place=${['exchanges', x.vhost, inPath(x.name)]}>${displayName(x)}</${Link}>` },
      { title: 'Type', sort: 'type', cell: (x) => x.type },
      { title: 'Features', wide: true, cell: (x) => html`<${Features} of=${x} />` },
      {
        title: 'In',
        sort: 'message_stats.publish_in_details.rate',
        number: true,
        cell: (x) => format.rate(x.message_stats?.publish_in_details?.rate),
      },
      {
        title: 'Out',
        sort: 'message_stats.publish_out_details.rate',
        number: true,
        cell: (x) => format.rate(x.message_stats?.publish_out_details?.rate),
      },
    ]} />
    ${vhosts !== undefined && html`<${Folded} title="Add an exchange"><${Declare} vhosts=${vhosts} /></${Folded}>`}`;
}

export function Exchange({ given: [vhost, name] }) {
  const of = path('exchanges', vhost, name);
  const range = useRange();
  const { data: x, error } = useData(withQuery(of, range.messages));
  const isDefault = name === 'amq.default';
  const remove = async () => {
    await client.delete(of);
    window.location.hash = to('exchanges');
  };
  return html`<h1>Exchange ${x ? displayName(x) : name}</h1><${Problem} error=${error} />
    ${
      x &&
      html`
      <${RangeChoice} />
      <div class="plots"><${Rates} title="Messages" stats=${x.message_stats} names=${[
        ['publish_in', 'in'],
        ['publish_out', 'out to queues'],
      ]} /></div>
      <${Facts} of=${[
        ['Virtual host', html`<${Link} place=${['vhosts', vhost]}>${vhost}</${Link}>`],
        ['Type', x.type],
        ['Durable', x.durable ? 'yes' : 'no'],
        ['Features', html`<${Features} of=${x} />`],
        ['Arguments', html`<${Pairs} of=${x.arguments} />`],
        ['Declared by', x.user_who_performed_action],
      ]} />
      ${
        isDefault
          ? html`<p>The default exchange is bound to every queue with the queue name as routing key. These bindings cannot be changed.</p>`
          : html`<${Section} title="Bindings from this exchange"><${Bindings} at=${`${of}/bindings/source`} noun="bindings from this exchange" end="source" /></${Section}>
          <${Section} title="Bindings to this exchange"><${Bindings} at=${`${of}/bindings/destination`} noun="bindings to this exchange" end="destination" /></${Section}>
          <${Folded} title="Add a binding from this exchange"><${Bind} vhost=${vhost} from=${name} /></${Folded}>
          <${Folded} title="Add a binding to this exchange"><${Bind} vhost=${vhost} to=${{ type: 'exchange', name }} /></${Folded}>`
      }
      ${!x.internal && html`<${Folded} title="Publish a message"><${Publish} vhost=${vhost} exchange=${name} /></${Folded}>`}
      ${!isDefault && !name.startsWith('amq.') && html`<p><${Action} kind="danger" does=${remove} done="The exchange is deleted." ask=${{ title: `Delete exchange ${name}?`, text: `Exchange ${name} in virtual host ${vhost} and all its bindings are deleted.`, verb: 'Delete' }}>Delete exchange</${Action}></p>`}`
    }`;
}

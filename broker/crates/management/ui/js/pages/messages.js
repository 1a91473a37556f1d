// Publishing a message, and looking at messages of a queue or taking them.
import { html, useState } from '../dom.js';
import { path } from '../client.js';
import { PROPERTIES } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Facts, Pairs } from '../parts.js';
import { client } from '../session.js';
import { objectOf } from '../values.js';
import { inPath } from './bindings.js';

/** Bytes of a payload that are asked for. */
const SHOWN = 50_000;

/** `to` is offered as the routing key. */
export function Publish({ vhost, exchange, to = '' }) {
  const submit = async (values) => {
    const properties = objectOf(values.properties);
    const headers = objectOf(values.headers);
    if (Object.keys(headers).length > 0) properties.headers = headers;
    if (values.persistent) properties.delivery_mode = 2;
    const { routed } = await client.post(path('exchanges', vhost, inPath(exchange), 'publish'), {
      routing_key: values.routing_key,
      properties,
      payload: values.payload,
      payload_encoding: values.payload_encoding,
    });
    if (!routed) throw new Error('The message went to no queue: none is bound for it.');
    return 'The message is published, and every queue that it went to has it safe.';
  };
  return html`<${Form} label="Publish a message" verb="Publish" submit=${submit} stays fields=${[
    { name: 'routing_key', label: 'Routing key', value: to },
    { name: 'payload', label: 'Payload', type: 'area' },
    {
      name: 'payload_encoding',
      label: 'Payload is',
      type: 'select',
      options: [
        ['string', 'text'],
        ['base64', 'Base64'],
      ],
    },
    { name: 'persistent', label: 'Persistent', type: 'check', value: true },
    { name: 'headers', label: 'Headers', type: 'rows' },
    { name: 'properties', label: 'Properties', type: 'rows', known: PROPERTIES },
  ]} />`;
}

const MODES = [
  ['ack_requeue_true', 'look at them: they stay in the queue'],
  ['ack_requeue_false', 'take them: they are gone'],
  ['reject_requeue_true', 'give them back as failed deliveries'],
  ['reject_requeue_false', 'reject them: they die, or go to the dead letter exchange'],
];

function Message({ of, number }) {
  const { headers, ...properties } = of.properties;
  return html`<article class="message"><h3>Message ${number}</h3>
    <${Facts} of=${[
      ['Exchange', of.exchange === '' ? 'the default exchange' : of.exchange],
      ['Routing key', of.routing_key],
      ['Redelivered', of.redelivered ? 'yes' : 'no'],
      ['Properties', html`<${Pairs} of=${properties} />`],
      ['Headers', html`<${Pairs} of=${headers} />`],
      ['Payload', `${format.bytes(of.payload_bytes)}${of.payload_encoding === 'base64' ? ', as Base64' : ''}`],
    ]} />
    <pre tabindex="0">${of.payload}</pre></article>`;
}

export function Get({ vhost, queue }) {
  const [got, set] = useState(null);
  const submit = async (values) => {
    set(null);
    set(
      await client.post(path('queues', vhost, queue, 'get'), {
        count: Number(values.count),
        ackmode: values.ackmode,
        encoding: values.encoding,
        truncate: SHOWN,
      }),
    );
  };
  const ask = (values) => {
    if (values.ackmode === 'ack_requeue_true') return null;
    const means = MODES.find(([mode]) => mode === values.ackmode)[1];
    return { title: `Messages of ${queue}`, text: `${values.count} messages at most: ${means}.`, verb: 'Go on' };
  };
  return html`<${Form} label="Get messages" verb="Get messages" submit=${submit} ask=${ask} stays fields=${[
    {
      name: 'ackmode',
      label: 'What',
      type: 'select',
      options: MODES,
      hint: 'Whoever looks gets the messages and gives them back: they count as redelivered, and may come a little later to consumers.',
    },
    { name: 'count', label: 'Messages', type: 'number', min: 1, max: 1000, value: '1', required: true },
    {
      name: 'encoding',
      label: 'Payload',
      type: 'select',
      options: [
        ['auto', 'as text where it is text'],
        ['base64', 'as Base64'],
      ],
    },
  ]} />
    <div aria-live="polite">${got && (got.length === 0 ? html`<p>The queue has no message that is ready.</p>` : got.map((one, at) => html`<${Message} key=${at} of=${one} number=${at + 1} />`))}</div>`;
}

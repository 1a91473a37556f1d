// Publishing a message, and getting messages of a queue.
import { html, useState } from '../dom.js';
import { path } from '../client.js';
import { PROPERTIES } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Facts, Pairs } from '../parts.js';
import { client } from '../session.js';
import { objectOf } from '../values.js';
import { inPath } from './bindings.js';

/** Maximum number of payload bytes to request. */
const MAX_PAYLOAD = 50_000;

/** `to` is the suggested routing key. */
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
    if (!routed) throw new Error('The message was not routed: no queue is bound with this routing key.');
    return 'The message is published and confirmed by every queue that it was routed to.';
  };
  return html`<${Form} label="Publish a message" verb="Publish" submit=${submit} stays fields=${[
    { name: 'routing_key', label: 'Routing key', value: to },
    { name: 'payload', label: 'Payload', type: 'area' },
    {
      name: 'payload_encoding',
      label: 'Payload encoding',
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
  ['ack_requeue_true', 'inspect: requeue the messages'],
  ['ack_requeue_false', 'consume: remove the messages from the queue'],
  ['reject_requeue_true', 'reject and requeue: count a failed delivery'],
  ['reject_requeue_false', 'reject: drop or dead-letter the messages'],
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
  const [messages, setMessages] = useState(null);
  const submit = async (values) => {
    setMessages(null);
    setMessages(
      await client.post(path('queues', vhost, queue, 'get'), {
        count: Number(values.count),
        ackmode: values.ackmode,
        encoding: values.encoding,
        truncate: MAX_PAYLOAD,
      }),
    );
  };
  const ask = (values) => {
    if (values.ackmode === 'ack_requeue_true') return null;
    const effect = MODES.find(([mode]) => mode === values.ackmode)[1];
    return { title: `Get messages of ${queue}?`, text: `At most ${values.count} messages: ${effect}.`, verb: 'Get messages' };
  };
  return html`<${Form} label="Get messages" verb="Get messages" submit=${submit} ask=${ask} stays fields=${[
    {
      name: 'ackmode',
      label: 'Acknowledgement',
      type: 'select',
      options: MODES,
      hint: 'Inspected messages are delivered and requeued: they are marked as redelivered, and may reach consumers a little later.',
    },
    { name: 'count', label: 'Messages', type: 'number', min: 1, max: 1000, value: '1', required: true },
    {
      name: 'encoding',
      label: 'Payload',
      type: 'select',
      options: [
        ['auto', 'text if it is valid UTF-8, otherwise Base64'],
        ['base64', 'Base64'],
      ],
    },
  ]} />
    <div aria-live="polite">${messages && (messages.length === 0 ? html`<p>The queue has no ready messages.</p>` : messages.map((one, at) => html`<${Message} key=${at} of=${one} number=${at + 1} />`))}</div>`;
}

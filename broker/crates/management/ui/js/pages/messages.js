// Publishing a message, and the browser for the messages of a queue.
import { html, useState } from '../dom.js';
import { path } from '../client.js';
import { PROPERTIES } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Facts, Folded, Pairs } from '../parts.js';
import { bytesOf, contains, dump, indented, isShortened } from '../payload.js';
import { save } from '../save.js';
import { client } from '../session.js';
import { objectOf } from '../values.js';
import { inPath } from './bindings.js';

/** Maximum number of payload bytes to request. */
export const MAX_PAYLOAD = 50_000;

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

const VIEWS = [
  ['auto', 'JSON if possible, otherwise text'],
  ['text', 'text'],
  ['hex', 'hexadecimal'],
];

/** A payload in one of the views. */
export function shownPayload(message, view) {
  const isText = message.payload_encoding !== 'base64';
  if (view === 'hex') return dump(bytesOf(message));
  if (view === 'auto' && isText) return indented(message.payload) ?? message.payload;
  return message.payload;
}

function Headers({ of }) {
  const headers = Object.entries(of ?? {});
  if (headers.length === 0) return html`<span class="faint">none</span>`;
  return html`<table class="headers"><thead><tr><th scope="col">Header</th><th scope="col">Type</th><th scope="col">Value</th></tr></thead>
    <tbody>${headers.map(([key, value]) => html`<tr key=${key}><td>${key}</td><td class="faint">${Array.isArray(value) ? 'array' : typeof value}</td><td>${format.value(value)}</td></tr>`)}</tbody></table>`;
}

/** The choice of the view of payloads. */
export const ViewChoice = ({ view, set }) =>
  html`<label>View <select value=${view} onChange=${(event) => set(event.currentTarget.value)}>${VIEWS.map(([key, label]) => html`<option key=${key} value=${key}>${label}</option>`)}</select></label>`;

/** A message; `facts` come first, and `children` are further operations. */
export function Message({ of, number, view, queue, facts = [], children }) {
  const { headers, ...properties } = of.properties;
  const isCut = isShortened(of);
  const notes = [
    format.bytes(of.payload_bytes),
    of.payload_encoding === 'base64' && view !== 'hex' && 'as Base64',
    isCut && `the first ${format.bytes(bytesOf(of).length)} are shown`,
  ];
  const download = () => save(`${queue}-${number}${indented(of.payload) === null ? '.bin' : '.json'}`, bytesOf(of), 'application/octet-stream');
  return html`<article class="message"><h3>Message ${number}</h3>
    <${Facts} of=${[
      ...facts,
      ['Exchange', of.exchange === '' ? 'the default exchange' : of.exchange],
      ['Routing key', of.routing_key],
      ['Redelivered', of.redelivered ? 'yes' : 'no'],
      ['Properties', html`<${Pairs} of=${properties} />`],
      ['Payload', notes.filter((note) => note).join(', ')],
    ]} />
    <h4>Headers</h4><div class="scroll"><${Headers} of=${headers} /></div>
    <h4>Payload</h4>
    <pre tabindex="0" aria-label=${`Payload of message ${number}`}>${shownPayload(of, view)}</pre>
    <button type="button" class="action small" disabled=${isCut} aria-label=${`Download the payload of message ${number}`} onClick=${download}>Download</button> ${children}</article>`;
}

/** Publishes copies of messages, with their properties, to another queue. */
function Copy({ vhost, messages }) {
  const submit = async ({ queue }) => {
    if (messages.some(isShortened)) throw new Error('A payload is not complete here, because it is too long. No message was copied.');
    let copied = 0;
    for (const { payload, payload_encoding, properties } of messages) {
      const body = { routing_key: queue, payload, payload_encoding, properties };
      const { routed } = await client.post(path('exchanges', vhost, 'amq.default', 'publish'), body);
      if (!routed) throw new Error(`Virtual host ${vhost} has no queue ${queue}. ${copied} messages were copied.`);
      copied += 1;
    }
    return `${format.count(copied)} messages are copied to ${queue}.`;
  };
  return html`<${Folded} title=${`Copy these ${format.count(messages.length)} messages to another queue`}>
    <${Form} label="Copy messages" verb="Copy" submit=${submit} fields=${[{ name: 'queue', label: 'Queue', required: true, hint: 'The copies have the properties and headers of the messages.' }]} /></${Folded}>`;
}

/** The messages of a response, with a search. */
function Messages({ vhost, queue, messages }) {
  const [view, setView] = useState('auto');
  const [text, setText] = useState('');
  if (messages.length === 0) return html`<p>The queue has no ready messages.</p>`;
  const found = messages.map((message, at) => ({ message, number: at + 1 })).filter(({ message }) => contains(message, text));
  const kept = found.map(({ message }) => message);
  return html`<div class="bar">
      <${ViewChoice} view=${view} set=${setView} />
      <label>Search <input type="search" value=${text} spellcheck="false" autocapitalize="none" aria-label="Search the messages" onInput=${(event) => setText(event.currentTarget.value)} /></label>
      <button type="button" class="action" disabled=${kept.length === 0} onClick=${() => save(`${queue}.json`, `${JSON.stringify(kept, null, 2)}\n`)}>Download all as JSON</button>
      <span class="faint" role="status">${found.length} of ${messages.length} messages</span>
    </div>
    ${kept.length > 0 && html`<${Copy} vhost=${vhost} messages=${kept} />`}
    ${found.map(({ message, number }) => html`<${Message} key=${number} of=${message} number=${number} view=${view} queue=${queue} />`)}`;
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
    <div aria-live="polite">${messages && html`<${Messages} vhost=${vhost} queue=${queue} messages=${messages} />`}</div>`;
}

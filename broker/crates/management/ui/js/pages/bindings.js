// Bindings of a queue or exchange.
import { html } from '../dom.js';
import { path } from '../client.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Link, Pairs } from '../parts.js';
import { client } from '../session.js';
import { objectOf } from '../values.js';

/** The name of an exchange in API paths. */
export const inPath = (exchange) => (exchange === '' ? 'amq.default' : exchange);

const between = (b) => path('bindings', b.vhost, 'e', inPath(b.source), b.destination_type === 'queue' ? 'q' : 'e', inPath(b.destination));

const source = {
  title: 'From',
  cell: (b) =>
    b.source === ''
      ? html`<span class="faint">the default exchange</span>`
      : html`<${Link} place=${['exchanges', b.vhost, b.source]}>${b.source}</${Link}>`,
};
const destination = {
  title: 'To',
  cell: (b) =>
    html`<${Link} place=${[b.destination_type === 'queue' ? 'queues' : 'exchanges', b.vhost, b.destination]}>${b.destination}</${Link}> <span class="faint">${b.destination_type}</span>`,
};

/** `end` is the side of the binding that the page shows: 'source' or 'destination'. */
export function Bindings({ at, noun, end }) {
  const unbind = (b) => ({
    title: 'Unbind?',
    text: `Messages with routing key "${b.routing_key}" are no longer routed from ${b.source} to ${b.destination_type} ${b.destination}.`,
    verb: 'Unbind',
  });
  return html`<${List} path=${at} noun=${noun} filter=${false} keyOf=${(b) => `${b.source} ${b.destination_type} ${b.destination} ${b.properties_key}`} columns=${[
    end === 'source' ? destination : source,
    { title: 'Routing key', cell: (b) => b.routing_key },
    { title: 'Arguments', cell: (b) => html`<${Pairs} of=${b.arguments} />` },
    {
      title: '',
      cell: (b) =>
        b.source === ''
          ? ''
          : html`<${Action} kind="small danger" ask=${unbind(b)} does=${() => client.delete(`${between(b)}/${path(b.properties_key)}`)} done="The binding is deleted.">Unbind</${Action}>`,
    },
  ]} />`;
}

/** A form for a binding to this queue or exchange (`to` is set) or from this exchange (`from` is set). The other end is entered. */
export function Bind({ vhost, from, to }) {
  const submit = (values) => {
    const b = { vhost, source: from ?? values.other, destination_type: to ? to.type : values.type, destination: to ? to.name : values.other };
    return client.post(between(b), { routing_key: values.routing_key, arguments: objectOf(values.arguments) });
  };
  // A page of an exchange has both forms.
  const label = from !== undefined ? 'Add a binding from this exchange' : to.type === 'exchange' ? 'Add a binding to this exchange' : 'Add a binding';
  return html`<${Form} label=${label} verb="Bind" submit=${submit} done="The binding is created." fields=${[
    { name: 'other', label: to ? 'From exchange' : 'To', required: true },
    ...(to
      ? []
      : [
          {
            name: 'type',
            label: 'Destination type',
            type: 'select',
            options: [
              ['queue', 'a queue'],
              ['exchange', 'an exchange'],
            ],
          },
        ]),
    { name: 'routing_key', label: 'Routing key' },
    { name: 'arguments', label: 'Arguments', type: 'rows', known: [['x-match', 'string']] },
  ]} />`;
}

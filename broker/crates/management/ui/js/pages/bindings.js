// Bindings of a queue or exchange.
import { html } from '../dom.js';
import { path } from '../client.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Link, Pairs } from '../parts.js';
import { client } from '../session.js';
import { objectOf } from '../values.js';

/** What paths call an exchange. */
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

/** `end` is the side that the page is of: 'source' or 'destination'. */
export function Bindings({ at, noun, end }) {
  const unbind = (b) => ({
    title: 'Unbind?',
    text: `Messages with the key "${b.routing_key}" do not go from ${b.source} to the ${b.destination_type} ${b.destination} any more.`,
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
          : html`<${Action} kind="small danger" ask=${unbind(b)} does=${() => client.delete(`${between(b)}/${path(b.properties_key)}`)} done="It is unbound.">Unbind</${Action}>`,
    },
  ]} />`;
}

/** A binding from an exchange that is named (`to` is given), or from this one (`from` is given) to something that is named. */
export function Bind({ vhost, from, to }) {
  const submit = (values) => {
    const b = { vhost, source: from ?? values.other, destination_type: to ? to.type : values.type, destination: to ? to.name : values.other };
    return client.post(between(b), { routing_key: values.routing_key, arguments: objectOf(values.arguments) });
  };
  return html`<${Form} label="Add a binding" verb="Bind" submit=${submit} done="It is bound." fields=${[
    { name: 'other', label: to ? 'From exchange' : 'To', required: true },
    ...(to
      ? []
      : [
          {
            name: 'type',
            label: 'Which is',
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

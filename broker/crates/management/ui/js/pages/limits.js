// Limits of virtual hosts and of users.
import { html } from '../dom.js';
import { path } from '../client.js';
import { Form } from '../form.js';
import { Action, Link, Pairs, Problem, Section, Table } from '../parts.js';
import { client, useData } from '../session.js';

export const VHOST_LIMITS = [
  ['max-connections', 'connections'],
  ['max-queues', 'queues'],
  ['max-channels', 'channels'],
  ['max-message-rate', 'messages per second'],
  ['max-byte-rate', 'bytes per second'],
  ['max-stored-bytes', 'bytes stored'],
];
export const USER_LIMITS = [
  ['max-connections', 'connections'],
  ['max-channels', 'channels'],
  ['max-message-rate', 'messages per second'],
  ['max-byte-rate', 'bytes per second'],
];

/** `at(limit)` is the path of a limit; `of` holds the current limits. */
export function SetLimit({ known, at, of }) {
  const limits = Object.keys(of ?? {});
  return html`<p><${Pairs} of=${of} /> ${limits.map((limit) => html`<${Action} key=${limit} kind="small danger" does=${() => client.delete(at(limit))} done="The limit is cleared." ask=${{ title: 'Clear the limit?', text: `${limit} is no longer limited.`, verb: 'Clear' }}>Clear ${limit}</${Action}>`)}</p>
    <${Form} label="Set a limit" verb="Set limit" done="The limit is set." submit=${(values) => client.put(at(values.limit), { value: Number(values.value) })} fields=${[
      { name: 'limit', label: 'Limit', type: 'select', options: known },
      { name: 'value', label: 'Value', type: 'number', min: -1, required: true, hint: '-1: no limit; 0: none allowed, except for rates.' },
    ]} />`;
}

const table = (caption, rows, key, place) =>
  html`<${Table} caption=${caption} rows=${rows} keyOf=${(row) => row[key]} empty="There are no limits." columns=${[
    { title: key === 'user' ? 'User' : 'Virtual host', cell: (row) => html`<${Link} place=${[place, row[key]]}>${row[key]}</${Link}>` },
    { title: 'Limits', cell: (row) => html`<${Pairs} of=${row.value} />` },
  ]} />`;

const set = (component, known, label) =>
  html`<${Form} label=${`Set a limit of a ${label}`} verb="Set limit" done="The limit is set." submit=${(values) => client.put(path(component, values.name, values.limit), { value: Number(values.value) })} fields=${[
    { name: 'name', label: label === 'user' ? 'User' : 'Virtual host', required: true },
    { name: 'limit', label: 'Limit', type: 'select', options: known },
    { name: 'value', label: 'Value', type: 'number', min: -1, required: true },
  ]} />`;

export function Limits({ can }) {
  const vhosts = useData('vhost-limits');
  const users = useData(can.administrator ? 'user-limits' : null);
  return html`<h1>Limits</h1>
    <${Section} title="Virtual hosts"><${Problem} error=${vhosts.error} />${vhosts.data && table('Limits of virtual hosts', vhosts.data, 'vhost', 'vhosts')}${can.administrator && set('vhost-limits', VHOST_LIMITS, 'virtual host')}</${Section}>
    ${can.administrator && html`<${Section} title="Users"><${Problem} error=${users.error} />${users.data && table('Limits of users', users.data, 'user', 'users')}${set('user-limits', USER_LIMITS, 'user')}</${Section}>`}`;
}

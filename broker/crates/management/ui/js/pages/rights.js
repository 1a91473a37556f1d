// Permissions and topic permissions of users in virtual hosts.
import { html } from '../dom.js';
import { path } from '../client.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Link } from '../parts.js';
import { client } from '../session.js';
import { inPath } from './bindings.js';

const user = { title: 'User', sort: 'user', cell: (p) => html`<${Link} place=${['users', p.user]}>${p.user}</${Link}>` };
const vhost = { title: 'Virtual host', sort: 'vhost', cell: (p) => html`<${Link} place=${['vhosts', p.vhost]}>${p.vhost}</${Link}>` };
const code = (title, key) => ({ title, sort: key, cell: (p) => html`<code>${p[key]}</code>` });

const clearButton = (p, at, what) => html`<${Action} kind="small danger" does=${() => client.delete(at)} done="The permissions are cleared."
  ask=${{ title: 'Clear the permissions?', text: `${p.user} loses its ${what} in ${p.vhost}.`, verb: 'Clear' }}>Clear</${Action}>`;

/** `of`: the kind of object that the page shows, 'user' or 'vhost'. */
export const Permissions = ({ at, noun, of }) =>
  html`<${List} path=${at} noun=${noun} filter=${false} keyOf=${(p) => `${p.vhost} ${p.user}`} columns=${[
    of === 'user' ? vhost : user,
    code('Configure', 'configure'),
    code('Write', 'write'),
    code('Read', 'read'),
    { title: '', cell: (p) => clearButton(p, path('permissions', p.vhost, p.user), 'permissions') },
  ]} />`;

export const Topics = ({ at, noun }) =>
  html`<${List} path=${at} noun=${noun} filter=${false} keyOf=${(p) => `${p.vhost} ${p.user} ${p.exchange}`} columns=${[
    user,
    vhost,
    { title: 'Exchange', sort: 'exchange', cell: (p) => (p.exchange === '' ? '(default exchange)' : p.exchange) },
    code('Write', 'write'),
    code('Read', 'read'),
    {
      title: '',
      cell: (p) =>
        clearButton(p, path('topic-permissions', p.vhost, p.user, inPath(p.exchange)), `topic permissions on ${p.exchange}, which allows all its topics`),
    },
  ]} />`;

const pattern = (name, label) => ({
  name,
  label,
  value: '.*',
  hint: name === 'configure' ? 'A regular expression for names of queues and exchanges; empty: none.' : undefined,
});

/** Either `vhost` or `name` (of a user) is set; the other is entered. */
export function SetPermissions({ vhost, name }) {
  const submit = ({ where, who, ...values }) => client.put(path('permissions', vhost ?? where, name ?? who), values);
  return html`<${Form} label="Set permissions" verb="Set permissions" submit=${submit} done="The permissions are set." fields=${[
    vhost === undefined ? { name: 'where', label: 'Virtual host', required: true, value: '/' } : { name: 'who', label: 'User', required: true },
    pattern('configure', 'Configure'),
    pattern('write', 'Write'),
    pattern('read', 'Read'),
  ]} />`;
}

export function SetTopics({ vhost, name }) {
  const submit = ({ where, who, ...values }) => client.put(path('topic-permissions', vhost ?? where, name ?? who), values);
  return html`<${Form} label="Set topic permissions" verb="Set topic permissions" submit=${submit} done="The permissions are set." fields=${[
    vhost === undefined ? { name: 'where', label: 'Virtual host', required: true, value: '/' } : { name: 'who', label: 'User', required: true },
    { name: 'exchange', label: 'Exchange', required: true, value: 'amq.topic' },
    pattern('write', 'Write'),
    pattern('read', 'Read'),
  ]} />`;
}

// Permissions of users in virtual hosts, and by topic.
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

const take = (p, at, what) => html`<${Action} kind="small danger" does=${() => client.delete(at)} done="The rights are taken away."
  ask=${{ title: 'Take the rights away?', text: `${p.user} has no ${what} in ${p.vhost} any more.`, verb: 'Take away' }}>Clear</${Action}>`;

/** `of`: what the page is of, 'user' or 'vhost'. */
export const Permissions = ({ at, noun, of }) =>
  html`<${List} path=${at} noun=${noun} filter=${false} keyOf=${(p) => `${p.vhost} ${p.user}`} columns=${[
    of === 'user' ? vhost : user,
    code('Configure', 'configure'),
    code('Write', 'write'),
    code('Read', 'read'),
    { title: '', cell: (p) => take(p, path('permissions', p.vhost, p.user), 'rights') },
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
        take(p, path('topic-permissions', p.vhost, p.user, inPath(p.exchange)), `limits by topic at ${p.exchange}, and so all topics of it`),
    },
  ]} />`;

const pattern = (name, label) => ({
  name,
  label,
  value: '.*',
  hint: name === 'configure' ? 'Regular expressions over names of queues and exchanges; empty: nothing.' : undefined,
});

/** One of `vhost` and `name` (a user's) is given, the other is asked for. */
export function SetPermissions({ vhost, name }) {
  const submit = ({ where, who, ...values }) => client.put(path('permissions', vhost ?? where, name ?? who), values);
  return html`<${Form} label="Set permissions" verb="Set permissions" submit=${submit} done="The rights are given." fields=${[
    vhost === undefined ? { name: 'where', label: 'Virtual host', required: true, value: '/' } : { name: 'who', label: 'User', required: true },
    pattern('configure', 'Configure'),
    pattern('write', 'Write'),
    pattern('read', 'Read'),
  ]} />`;
}

export function SetTopics({ vhost, name }) {
  const submit = ({ where, who, ...values }) => client.put(path('topic-permissions', vhost ?? where, name ?? who), values);
  return html`<${Form} label="Set topic permissions" verb="Set topic permissions" submit=${submit} done="The rights are given." fields=${[
    vhost === undefined ? { name: 'where', label: 'Virtual host', required: true, value: '/' } : { name: 'who', label: 'User', required: true },
    { name: 'exchange', label: 'Exchange', required: true, value: 'amq.topic' },
    pattern('write', 'Write'),
    pattern('read', 'Read'),
  ]} />`;
}

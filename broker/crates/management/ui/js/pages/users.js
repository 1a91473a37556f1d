// Users.
import { html } from '../dom.js';
import { path } from '../client.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Facts, Folded, Link, Pairs, Problem, Section, Tag } from '../parts.js';
import { to } from '../places.js';
import { client, useData } from '../session.js';
import { words } from '../values.js';
import { Permissions, SetPermissions, SetTopics, Topics } from './rights.js';
import { SetLimit, USER_LIMITS } from './limits.js';

const TAGS = 'administrator, monitoring, policymaker or management, separated by commas. Without a tag the user has no access to the HTTP API, but can connect clients.';

const password = [
  { name: 'password', label: 'Password', type: 'password', complete: 'new-password' },
  { name: 'again', label: 'Password again', type: 'password', complete: 'new-password', hint: 'Both empty: password login is disabled.' },
];

const passwordOf = (values) => {
  if (values.password !== values.again) throw new Error('The two passwords differ.');
  return values.password === '' ? { password_hash: '' } : { password: values.password };
};

export const Tags = ({ of }) =>
  html`<span class="tags">${words(Array.isArray(of) ? of.join(',') : (of ?? '')).map((tag) => html`<${Tag} key=${tag}>${tag}</${Tag}>`)}</span>`;

export function Users() {
  return html`<h1>Users</h1>
    <${List} path="users" noun="users" keyOf=${(u) => u.name} columns=${[
      { title: 'Name', sort: 'name', cell: (u) => html`<${Link} place=${['users', u.name]}>${u.name}</${Link}>` },
      { title: 'Tags', cell: (u) => html`<${Tags} of=${u.tags} />` },
      { title: 'Password', wide: true, cell: (u) => (u.password_hash === '' ? 'none' : u.hashing_algorithm) },
      { title: 'Limits', wide: true, cell: (u) => html`<${Pairs} of=${u.limits} />` },
    ]} />
    <${Folded} title="Add a user"><${Form} label="Add a user" verb="Add user" done="The user is added. It needs permissions in a virtual host." submit=${({ name, ...values }) => client.put(path('users', name), { ...passwordOf(values), tags: words(values.tags).join(',') })}
      fields=${[{ name: 'name', label: 'Name', required: true }, ...password, { name: 'tags', label: 'Tags', hint: TAGS }]} /></${Folded}>`;
}

function Change({ user: u }) {
  const of = path('users', u.name);
  // A request replaces the whole user: send the hash to keep the password.
  const unchangedPassword = { password_hash: u.password_hash, hashing_algorithm: u.hashing_algorithm };
  const remove = async () => {
    await client.delete(of);
    window.location.hash = to('users');
  };
  return html`
    <${Section} title="Permissions in virtual hosts"><${Permissions} at=${`${of}/permissions`} noun="permissions of this user" of="user" /></${Section}>
    <${Folded} title="Set permissions in a virtual host"><${SetPermissions} name=${u.name} /></${Folded}>
    <${Folded} title="Topic permissions"><${Topics} at=${`${of}/topic-permissions`} noun="topic permissions of this user" /><${SetTopics} name=${u.name} /></${Folded}>
    <${Folded} title="Limits"><${SetLimit} known=${USER_LIMITS} at=${(limit) => path('user-limits', u.name, limit)} of=${u.limits} /></${Folded}>
    <${Folded} title="Change tags"><${Form} label="Change tags" verb="Change tags" done="The tags are changed." stays submit=${(values) => client.put(of, { ...unchangedPassword, tags: words(values.tags).join(',') })}
      fields=${[{ name: 'tags', label: 'Tags', value: u.tags.join(', '), hint: TAGS }]} /></${Folded}>
    <${Folded} title="Change the password"><${Form} label="Change the password" verb="Change password" done="The password is changed." danger submit=${(values) => client.put(of, { ...passwordOf(values), tags: u.tags.join(',') })}
      ask=${(values) => (values.password === '' ? { title: 'Remove the password?', text: `${u.name} can no longer log in with a password.`, verb: 'Remove' } : null)} fields=${password} /></${Folded}>
    <p><${Action} kind="danger" does=${remove} done=${`${u.name} is deleted.`} ask=${{ title: `Delete user ${u.name}?`, text: `User ${u.name} and its permissions are deleted. It can no longer log in.`, verb: 'Delete' }}>Delete user</${Action}></p>`;
}

export function User({ given: [name] }) {
  const { data: u, error } = useData(path('users', name));
  return html`<h1>User ${name}</h1><${Problem} error=${error} />
    ${
      u &&
      html`<${Facts} of=${[
        ['Tags', html`<${Tags} of=${u.tags} />`],
        ['Password', u.password_hash === '' ? 'none' : u.hashing_algorithm],
        ['Limits', html`<${Pairs} of=${u.limits} />`],
      ]} />
      <${Change} key=${name} user=${u} />`
    }`;
}

// Virtual hosts.
import { html } from '../dom.js';
import { path, withQuery } from '../client.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Facts, Folded, Link, Problem, Section, Tag } from '../parts.js';
import { to } from '../places.js';
import { DEPTHS, Levels, RangeChoice, Rates, TRAFFIC, useRange } from '../plot.js';
import { client, useData } from '../session.js';
import { words } from '../values.js';
import { SetPermissions, SetTopics, Topics, Permissions } from './rights.js';
import { SetLimit, VHOST_LIMITS } from './limits.js';

const fields = (vhost) => [
  { name: 'description', label: 'Description', value: vhost?.description ?? '' },
  { name: 'tags', label: 'Tags', value: (vhost?.tags ?? []).join(', '), hint: 'Separated by commas.' },
  {
    name: 'default_queue_type',
    label: 'Default queue type',
    type: 'select',
    value: vhost?.default_queue_type ?? '',
    hint: 'Type of queues that are declared without x-queue-type.',
    options: [...(vhost ? [] : [['', 'default of the node']]), ['quorum', 'quorum'], ['classic', 'classic']],
  },
];

const bodyOf = ({ tags, default_queue_type: type, description }) => ({
  description,
  tags: words(tags),
  ...(type === '' ? {} : { default_queue_type: type }),
});

const Flags = ({ of }) =>
  html`<span class="tags">${of.tracing && html`<${Tag}>traced</${Tag}>`}${of.protected_from_deletion && html`<${Tag}>protected</${Tag}>`}${(of.tags ?? []).map((tag) => html`<${Tag} key=${tag}>${tag}</${Tag}>`)}</span>`;

export function Vhosts({ can }) {
  return html`<h1>Virtual hosts</h1>
    <${List} path="vhosts" noun="virtual hosts" keyOf=${(v) => v.name} columns=${[
      { title: 'Name', sort: 'name', cell: (v) => html`<${Link} place=${['vhosts', v.name]}>${v.name}</${Link}>` },
      { title: 'Description', wide: true, cell: (v) => v.description },
      { title: 'Default queue type', sort: 'default_queue_type', wide: true, cell: (v) => v.default_queue_type },
      { title: 'Flags', cell: (v) => html`<${Flags} of=${v} />` },
      { title: 'Ready', sort: 'messages_ready', number: true, cell: (v) => format.count(v.messages_ready) },
      { title: 'Unacked', sort: 'messages_unacknowledged', number: true, cell: (v) => format.count(v.messages_unacknowledged) },
      { title: 'In', sort: 'message_stats.publish_details.rate', number: true, cell: (v) => format.rate(v.message_stats?.publish_details?.rate) },
      {
        title: 'Out',
        sort: 'message_stats.deliver_get_details.rate',
        number: true,
        cell: (v) => format.rate(v.message_stats?.deliver_get_details?.rate),
      },
    ]} />
    ${
      can.administrator &&
      html`<${Folded} title="Add a virtual host"><${Form} label="Add a virtual host" verb="Add virtual host" done="The virtual host is added, and you have permissions in it."
      submit=${({ name, ...values }) => client.put(path('vhosts', name), bodyOf(values))} fields=${[{ name: 'name', label: 'Name', required: true }, ...fields()]} /></${Folded}>`
    }`;
}

function Change({ vhost: v }) {
  const of = path('vhosts', v.name);
  const trace = (on) => () => client.put(of, { tracing: on });
  const protection = `${of}/deletion/protection`;
  const remove = async () => {
    await client.delete(of);
    window.location.hash = to('vhosts');
  };
  return html`
    <${Section} title="Permissions"><${Permissions} at=${`${of}/permissions`} noun="permissions in this virtual host" of="vhost" /></${Section}>
    <${Folded} title="Set permissions of a user"><${SetPermissions} vhost=${v.name} /></${Folded}>
    <${Folded} title="Topic permissions"><${Topics} at=${`${of}/topic-permissions`} noun="topic permissions in this virtual host" /><${SetTopics} vhost=${v.name} /></${Folded}>
    <${Folded} title="Limits"><${SetLimit} known=${VHOST_LIMITS} at=${(limit) => path('vhost-limits', v.name, limit)} of=${v.limits} /></${Folded}>
    <${Folded} title="Change"><${Form} label="Change the virtual host" verb="Change" done="The virtual host is changed." stays submit=${(values) => client.put(of, bodyOf(values))} fields=${fields(v)} /></${Folded}>
    <${Section} title="Tracing"><p>${
      v.tracing
        ? html`Copies of all messages are published to exchange <${Link} place=${['exchanges', v.name, 'amq.rabbitmq.trace']}>amq.rabbitmq.trace</${Link}>. <${Action} does=${trace(false)} done="Tracing is disabled.">Disable tracing</${Action}>`
        : html`Publishes copies of all published and delivered messages to exchange amq.rabbitmq.trace, at a cost for each message. <${Action} does=${trace(true)} done="Tracing is enabled.">Enable tracing</${Action}>`
    }</p></${Section}>
    <${Section} title="Deletion"><p>${
      v.protected_from_deletion
        ? html`This virtual host is protected. <${Action} does=${() => client.delete(protection)} done="The protection is removed.">Remove protection</${Action}>`
        : html`<${Action} does=${() => client.post(protection)} done="The virtual host is protected.">Protect from deletion</${Action}>
        <${Action} kind="danger" does=${remove} done=${`${v.name} is deleted.`} ask=${{ title: `Delete virtual host ${v.name}?`, text: `All contents of ${v.name} are deleted: queues with their messages (${format.count(v.messages)}), exchanges, bindings, policies and permissions. Client connections to it are closed.`, verb: 'Delete everything' }}>Delete virtual host</${Action}>`
    }</p></${Section}>`;
}

export function Vhost({ given: [name], can }) {
  const range = useRange();
  const { data: v, error } = useData(withQuery(path('vhosts', name), { ...range.messages, ...range.lengths }));
  return html`<h1>Virtual host ${name}</h1><${Problem} error=${error} />
    ${
      v &&
      html`
      <${RangeChoice} />
      <div class="plots"><${Levels} title="Messages in queues" stats=${v} names=${DEPTHS} /><${Rates} title="Messages" stats=${v.message_stats} names=${TRAFFIC} /></div>
      <${Facts} of=${[
        ['Description', v.description],
        ['Default queue type', v.default_queue_type],
        ['Flags', (v.tracing || v.protected_from_deletion || v.tags?.length > 0) && html`<${Flags} of=${v} />`],
        ['Ready', format.count(v.messages_ready)],
        ['Unacknowledged', format.count(v.messages_unacknowledged)],
      ].filter(([, value]) => value !== false)} />
      ${can.administrator && html`<${Change} key=${name} vhost=${v} />`}`
    }`;
}

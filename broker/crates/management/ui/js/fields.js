// Fields that several forms have, and what arguments and policies may say.
import { pageOf } from './client.js';
import { html, useState } from './dom.js';
import { List } from './list.js';
import { Link, Tag } from './parts.js';
import * as format from './format.js';
import { useData } from './session.js';

/** Names of virtual hosts, or null when there are too many to choose from; they are asked for once. */
export function useVhosts() {
  const { data } = useData('vhosts?columns=name&page=1&page_size=500', { once: true });
  if (data === null) return undefined;
  const page = pageOf(data);
  return page.page_count > 1 ? null : page.items.map((vhost) => vhost.name);
}

/** The field for a virtual host: a choice, or where there are too many its name. */
export function vhostField(vhosts, { name = 'vhost', label = 'Virtual host' } = {}) {
  if (vhosts === null) return { name, label, required: true, value: '/' };
  const value = vhosts?.includes('/') ? '/' : (vhosts?.[0] ?? '');
  return { name, label, type: 'select', options: (vhosts ?? []).map((vhost) => [vhost, vhost]), value };
}

/** A list of what is in all virtual hosts, or in the one that is chosen: `at(vhost)` is its path, of all without one. */
export function VhostList({ vhosts, at, ...list }) {
  const [vhost, only] = useState('');
  const choose = (event) => only(event.currentTarget.value);
  return html`<${List} path=${vhost === '' ? at() : at(vhost)} ...${list}>
    ${vhosts === null && html`<label>Virtual host <input type="search" value=${vhost} onChange=${choose} /></label>`}
    ${
      vhosts?.length > 1 &&
      html`<label>Virtual host <select value=${vhost} onChange=${choose}>
      <option value="">all</option>${vhosts.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`
    }
  </${List}>`;
}

/** What a queue or exchange is. */
export const Features = ({ of }) => html`<span class="tags">
  ${of.durable === false && html`<${Tag} title="Does not outlive its node">transient</${Tag}>`}
  ${of.auto_delete && html`<${Tag} title="Goes when its last consumer or binding goes">auto-delete</${Tag}>`}
  ${of.exclusive && html`<${Tag} title="Belongs to one connection">exclusive</${Tag}>`}
  ${of.internal && html`<${Tag} title="Takes messages from other exchanges only">internal</${Tag}>`}
  ${Object.keys(of.arguments ?? {}).some((key) => key !== 'x-queue-type') && html`<${Tag} title=${format.value(of.arguments)}>arguments</${Tag}>`}
  ${of.policy && html`<${Link} place=${['policies', of.vhost, of.policy]}>${of.policy}</${Link}>`}
  ${of.operator_policy && html`<${Link} place=${['operator_policies', of.vhost, of.operator_policy]}>${of.operator_policy}</${Link}>`}
</span>`;

export const QUEUE_ARGUMENTS = [
  ['x-message-ttl', 'number'],
  ['x-expires', 'number'],
  ['x-max-length', 'number'],
  ['x-max-length-bytes', 'number'],
  ['x-overflow', 'string'],
  ['x-dead-letter-exchange', 'string'],
  ['x-dead-letter-routing-key', 'string'],
  ['x-dead-letter-strategy', 'string'],
  ['x-delivery-limit', 'number'],
  ['x-single-active-consumer', 'boolean'],
  ['x-max-priority', 'number'],
  ['x-quorum-initial-group-size', 'number'],
  ['x-queue-leader-locator', 'string'],
];

export const EXCHANGE_ARGUMENTS = [
  ['alternate-exchange', 'string'],
  ['hash-header', 'string'],
  ['hash-property', 'string'],
];

export const POLICY_KEYS = [
  ['message-ttl', 'number'],
  ['expires', 'number'],
  ['max-length', 'number'],
  ['max-length-bytes', 'number'],
  ['overflow', 'string'],
  ['dead-letter-exchange', 'string'],
  ['dead-letter-routing-key', 'string'],
  ['dead-letter-strategy', 'string'],
  ['delivery-limit', 'number'],
  ['queue-leader-locator', 'string'],
  ['target-group-size', 'number'],
  ['alternate-exchange', 'string'],
];

export const PROPERTIES = [
  ['content_type', 'string'],
  ['content_encoding', 'string'],
  ['correlation_id', 'string'],
  ['reply_to', 'string'],
  ['expiration', 'string'],
  ['message_id', 'string'],
  ['type', 'string'],
  ['user_id', 'string'],
  ['app_id', 'string'],
  ['priority', 'number'],
  ['timestamp', 'number'],
];

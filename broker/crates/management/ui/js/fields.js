// Form fields that several pages share, and the known arguments and policy keys.
import { pageOf } from './client.js';
import { html } from './dom.js';
import { List } from './list.js';
import { Link, Tag } from './parts.js';
import * as format from './format.js';
import { useData } from './session.js';

/** Names of virtual hosts, requested once. Null if there are too many for a select field. */
export function useVhosts() {
  const { data } = useData('vhosts?columns=name&page=1&page_size=500', { once: true });
  if (data === null) return undefined;
  const page = pageOf(data);
  return page.page_count > 1 ? null : page.items.map((vhost) => vhost.name);
}

/** The field for a virtual host: a select field, or a text field if there are too many. */
export function vhostField(vhosts, { name = 'vhost', label = 'Virtual host' } = {}) {
  if (vhosts === null) return { name, label, required: true, value: '/' };
  const value = vhosts?.includes('/') ? '/' : (vhosts?.[0] ?? '');
  return { name, label, type: 'select', options: (vhosts ?? []).map((vhost) => [vhost, vhost]), value };
}

/** Selects a virtual host. `value` '': all of them. */
export function VhostChoice({ vhosts, value, onChange }) {
  const choose = (event) => onChange(event.currentTarget.value);
  if (vhosts === null) return html`<label>Virtual host <input type="search" value=${value} onChange=${choose} /></label>`;
  if (!(vhosts?.length > 1)) return null;
  return html`<label>Virtual host <select value=${value} onChange=${choose}>
    <option value="">all</option>${vhosts.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
}

/** A list of objects in all virtual hosts or in the selected one. `at(vhost)` is its path; `at()` that for all. */
export const VhostList = ({ vhosts, ...list }) => {
  const choice = (view, set) => html`<${VhostChoice} vhosts=${vhosts} value=${view.vhost} onChange=${(vhost) => set((now) => ({ ...now, page: 1, vhost }))} />`;
  return html`<${List} ...${list} choice=${choice} />`;
};

/** Properties of a queue or exchange, as tags. */
export const Features = ({ of }) => html`<span class="tags">
  ${of.durable === false && html`<${Tag} title="Is deleted when its node stops">transient</${Tag}>`}
  ${of.auto_delete && html`<${Tag} title="Is deleted with its last consumer or binding">auto-delete</${Tag}>`}
  ${of.exclusive && html`<${Tag} title="Belongs to one connection">exclusive</${Tag}>`}
  ${of.internal && html`<${Tag} title="Accepts messages only from other exchanges">internal</${Tag}>`}
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
  ['x-max-age', 'string'],
  ['x-stream-max-segment-size-bytes', 'number'],
  ['x-stream-filter-size-bytes', 'number'],
  ['x-initial-cluster-size', 'number'],
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
  ['max-age', 'string'],
  ['stream-max-segment-size-bytes', 'number'],
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

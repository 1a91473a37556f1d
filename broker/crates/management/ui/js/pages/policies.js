// Policies and operator policies.
import { html } from '../dom.js';
import { path } from '../client.js';
import { POLICY_KEYS, useVhosts, vhostField } from '../fields.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { List } from '../list.js';
import { Action, Facts, Folded, Link, Pairs, Problem, Section } from '../parts.js';
import { to } from '../places.js';
import { client, useData } from '../session.js';
import { objectOf, rowsOf } from '../values.js';

const APPLY = [
  ['queues', 'queues'],
  ['quorum_queues', 'quorum queues'],
  ['classic_queues', 'classic queues'],
  ['exchanges', 'exchanges'],
  ['all', 'queues and exchanges'],
];
const OPERATOR_APPLY = APPLY.filter(([key]) => key.includes('queues'));

/** The two kinds of policies: API path, address in this UI, and the access check for changes. */
const USER = { api: 'policies', place: 'policies', scope: '', noun: 'policies', one: 'policy', apply: APPLY, may: (can) => can.policymaker };
const OPERATOR = {
  api: 'operator-policies',
  place: 'operator_policies',
  scope: 'operator.',
  noun: 'operator policies',
  one: 'operator policy',
  apply: OPERATOR_APPLY,
  may: (can) => can.administrator,
};

const put = (kind, vhost, name, values) =>
  client.put(path(kind.api, vhost, name), {
    pattern: values.pattern,
    'apply-to': values['apply-to'],
    priority: Number(values.priority),
    definition: objectOf(values.definition),
  });

const fields = (kind, policy) => [
  {
    name: 'pattern',
    label: 'Pattern',
    required: true,
    value: policy?.pattern ?? '',
    hint: 'A regular expression. The policy applies to objects with a matching name, unless another policy has a higher priority.',
  },
  { name: 'apply-to', label: 'Apply to', type: 'select', options: kind.apply, value: policy?.['apply-to'] ?? kind.apply[0][0] },
  { name: 'priority', label: 'Priority', type: 'number', value: String(policy?.priority ?? 0), required: true },
  { name: 'definition', label: 'Definition', type: 'rows', known: POLICY_KEYS, value: rowsOf(policy?.definition) },
];

function Kind({ kind, can, vhosts }) {
  return html`<${List} path=${kind.api} noun=${kind.noun} scope=${kind.scope} keyOf=${(p) => `${p.vhost} ${p.name}`} columns=${[
    { title: 'Virtual host', sort: 'vhost', wide: true, cell: (p) => p.vhost },
    { title: 'Name', sort: 'name', cell: (p) => html`<${Link} place=${[kind.place, p.vhost, p.name]}>${p.name}</${Link}>` },
    { title: 'Pattern', sort: 'pattern', cell: (p) => html`<code>${p.pattern}</code>` },
    { title: 'Apply to', sort: 'apply-to', wide: true, cell: (p) => p['apply-to'] },
    { title: 'Definition', cell: (p) => html`<${Pairs} of=${p.definition} />` },
    { title: 'Priority', sort: 'priority', number: true, cell: (p) => format.count(p.priority) },
  ]} />
    ${
      kind.may(can) &&
      vhosts !== undefined &&
      html`<${Folded} title=${kind === USER ? 'Add a policy' : 'Add an operator policy'}><${Form} label=${`Add: ${kind.one}`} verb=${`Add ${kind.one}`} done=${`The ${kind.one} is set.`}
      submit=${({ vhost, name, ...values }) => put(kind, vhost, name, values)} fields=${[vhostField(vhosts), { name: 'name', label: 'Name', required: true }, ...fields(kind)]} /></${Folded}>`
    }`;
}

export function Policies({ can }) {
  const vhosts = useVhosts();
  return html`<h1>Policies</h1>
    <${Kind} kind=${USER} can=${can} vhosts=${vhosts} />
    <${Section} title="Operator policies"><p class="faint">If an operator policy and a policy set the same limit for a queue, the smaller value applies.</p><${Kind} kind=${OPERATOR} can=${can} vhosts=${vhosts} /></${Section}>`;
}

function One({ kind, vhost, name, can }) {
  const of = path(kind.api, vhost, name);
  const { data: p, error } = useData(of);
  const remove = async () => {
    await client.delete(of);
    window.location.hash = to('policies');
  };
  return html`<h1>${kind === USER ? 'Policy' : 'Operator policy'} ${name}</h1><${Problem} error=${error} />
    ${
      p &&
      html`<${Facts} of=${[
        ['Virtual host', html`<${Link} place=${['vhosts', vhost]}>${vhost}</${Link}>`],
        ['Pattern', html`<code>${p.pattern}</code>`],
        ['Apply to', p['apply-to']],
        ['Priority', format.count(p.priority)],
        ['Definition', html`<${Pairs} of=${p.definition} />`],
      ]} />
      ${
        kind.may(can) &&
        html`<${Folded} title="Change"><${Form} label=${`Change: ${kind.one}`} verb="Change" done="The policy is changed." stays submit=${(values) => put(kind, vhost, name, values)} fields=${fields(kind, p)} /></${Folded}>
        <p><${Action} kind="danger" does=${remove} done=${`${name} is deleted.`} ask=${{ title: `Delete ${name}?`, text: `Objects in virtual host ${vhost} that match ${p.pattern} lose the settings of this ${kind.one} immediately.`, verb: 'Delete' }}>Delete ${kind.one}</${Action}></p>`
      }`
    }`;
}

export const Policy = ({ given: [vhost, name], can }) => html`<${One} kind=${USER} vhost=${vhost} name=${name} can=${can} />`;
export const OperatorPolicy = ({ given: [vhost, name], can }) => html`<${One} kind=${OPERATOR} vhost=${vhost} name=${name} can=${can} />`;

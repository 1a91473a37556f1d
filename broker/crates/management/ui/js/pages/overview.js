// The overview of the cluster.
import { html } from '../dom.js';
import { withQuery } from '../client.js';
import * as format from '../format.js';
import { Facts, Link, Problem, Section } from '../parts.js';
import { DEPTHS, Levels, RangeChoice, Rates, TRAFFIC, useRange } from '../plot.js';
import { useData } from '../session.js';
import { problems } from '../wrong.js';
import { NodeTable } from './nodes.js';

/** A failed check returns its findings with status 503. */
const findings = (check, list) => (check.error?.status === 503 ? (check.error.body?.[list] ?? null) : null);

function Problems({ nodes, here }) {
  const flags = useData('feature-flags');
  const critical = useData('health/checks/node-is-quorum-critical');
  const certificates = useData('health/checks/certificate-expiration/30/days');
  const found = problems({ nodes, flags: flags.data, critical: findings(critical, 'queues'), expiring: findings(certificates, 'expired'), here });
  if (nodes === null) return null;
  if (found.length === 0) return html`<p class="well" role="status">No problems: all nodes are running and no alarm is active.</p>`;
  return html`<ul class="wrong" aria-label="Problems">${found.map(
    (one) => html`<li key=${one.what} class=${one.bad ? 'bad' : 'even'}>
    <b>${one.what}</b> ${one.then} ${one.place && html`<${Link} place=${one.place}>Open page</${Link}>`}</li>`,
  )}</ul>`;
}

const Totals = ({ of }) => html`<ul class="totals">
  ${[
    ['connections', 'Connections'],
    ['channels', 'Channels'],
    ['exchanges', 'Exchanges'],
    ['queues', 'Queues'],
    ['consumers', 'Consumers'],
  ].map(
    ([key, label]) => html`<li key=${key}>
    <${Link} place=${[key]}>${label}</${Link}> <b>${format.count(of?.[key])}</b></li>`,
  )}
</ul>`;

const CHURN = [
  ['connection_created', 'connections opened'],
  ['connection_closed', 'connections closed'],
  ['channel_created', 'channels opened'],
  ['channel_closed', 'channels closed'],
];

function Monitored({ data }) {
  const nodes = useData('nodes');
  return html`
    <${Problems} nodes=${nodes.data} here=${data.node} />
    <${Totals} of=${data.object_totals} />
    <${RangeChoice} />
    <div class="plots">
      <${Levels} title="Messages in queues" stats=${data.queue_totals} names=${DEPTHS} />
      <${Rates} title="Messages" stats=${data.message_stats} names=${TRAFFIC} />
      <${Rates} title="Unroutable messages" stats=${data.message_stats} names=${[
        ['return_unroutable', 'returned'],
        ['drop_unroutable', 'dropped'],
      ]} />
      <${Rates} title="Clients" stats=${data.churn_rates} names=${CHURN} />
    </div>
    <${Section} title="Nodes"><${Problem} error=${nodes.error} />${nodes.data && html`<${NodeTable} nodes=${nodes.data} />`}</${Section}>
    <${Section} title=${`Ports of ${data.node}`}>
      <${Facts} of=${(data.listeners ?? []).map((listener) => [listener.protocol, String(listener.port)])} />
    </${Section}>`;
}

export function Overview({ can }) {
  const range = useRange();
  const { data, error } = useData(withQuery('overview', { ...range.lengths, ...range.messages, ...range.data }));
  return html`<h1>Overview</h1><${Problem} error=${error} />
    ${
      data &&
      html`
      ${
        can.monitor
          ? html`<${Monitored} data=${data} />`
          : html`<p>You see the objects of your virtual hosts: <${Link} place=${['queues']}>queues</${Link}>, <${Link} place=${['exchanges']}>exchanges</${Link}> and your own <${Link} place=${['connections']}>connections</${Link}>. Cluster statistics require the monitoring tag.</p>`
      }
      <${Section} title="Cluster"><${Facts} of=${[
        ['Name', data.cluster_name],
        ['Node', data.node],
        ['Version', `${data.product_name} ${data.product_version}`],
        ['Compatible API', `RabbitMQ ${data.management_version}`],
      ]} /></${Section}>`
    }`;
}

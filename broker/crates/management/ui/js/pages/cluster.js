// Feature flags, definitions and the cluster name.
import { html } from '../dom.js';
import { path } from '../client.js';
import { useVhosts } from '../fields.js';
import { Form } from '../form.js';
import { Action, Problem, Section, State, Table } from '../parts.js';
import { save } from '../save.js';
import { client, useData } from '../session.js';

const enable = (name) => ({
  title: name === 'all' ? 'Enable all feature flags?' : `Enable ${name}?`,
  text: 'A feature flag cannot be disabled again. Nodes whose version does not support it can no longer join.',
  verb: 'Enable',
});

export function FeatureFlags({ can }) {
  const { data, error } = useData('feature-flags');
  const deprecated = useData('deprecated-features');
  const used = useData('deprecated-features/used');
  const inUse = (used.data ?? []).map((feature) => feature.name);
  const on = (name) => () => client.put(path('feature-flags', name, 'enable'));
  return html`<h1>Feature flags</h1><${Problem} error=${error} />
    ${
      data &&
      html`<${Table} caption="Feature flags" rows=${data} keyOf=${(flag) => flag.name} columns=${[
        { title: 'Name', cell: (flag) => flag.name },
        { title: 'State', cell: (flag) => html`<${State} of=${flag.state} />` },
        { title: 'Description', cell: (flag) => flag.desc },
        { title: 'Not supported by', wide: true, cell: (flag) => flag.not_known_by.join(', ') },
        ...(can.administrator
          ? [
              {
                title: '',
                cell: (flag) =>
                  flag.state === 'disabled'
                    ? html`<${Action} kind="small" does=${on(flag.name)} done=${`${flag.name} is enabled.`} ask=${enable(flag.name)}>Enable</${Action}>`
                    : '',
              },
            ]
          : []),
      ]} />
      ${can.administrator && data.some((flag) => flag.state === 'disabled') && html`<p><${Action} does=${on('all')} done="All flags that every node supports are enabled." ask=${enable('all')}>Enable all</${Action}></p>`}`
    }
    <${Section} title="Deprecated features">${
      deprecated.data &&
      html`<${Table} caption="Deprecated features" rows=${deprecated.data} keyOf=${(feature) => feature.name} columns=${[
        { title: 'Name', cell: (feature) => feature.name },
        { title: 'Description', cell: (feature) => feature.desc },
        { title: 'In use', cell: (feature) => (inUse.includes(feature.name) ? 'yes' : 'no') },
      ]} />`
    }</${Section}>`;
}

const at = (vhost) => (vhost === '' ? 'definitions' : path('definitions', vhost));

export function Definitions() {
  const vhosts = useVhosts();
  const cluster = useData('cluster-name');
  if (vhosts === undefined) return html`<h1>Definitions</h1>`;
  const scope = {
    name: 'vhost',
    label: 'Scope',
    ...(vhosts === null
      ? { hint: 'A virtual host; empty: the whole cluster.' }
      : { type: 'select', options: [['', 'the whole cluster'], ...vhosts.map((vhost) => [vhost, `virtual host ${vhost}`])] }),
  };
  const exportDefinitions = async (values) => {
    const definitions = await client.get(at(values.vhost));
    save(`${cluster.data?.name ?? 'definitions'}-${new Date().toISOString().slice(0, 10)}.json`, `${JSON.stringify(definitions, null, 2)}\n`);
  };
  const importDefinitions = async (values) => {
    if (values.file === null) throw new Error('Choose a file first.');
    await client.post(at(values.vhost), await values.file.text());
  };
  return html`<h1>Definitions</h1>
    <p class="faint">Virtual hosts, users with their password hashes, permissions, policies, parameters, exchanges, queues and bindings; no messages. Definitions files of RabbitMQ 4 can be imported.</p>
    <${Section} title="Export"><${Form} label="Export definitions" verb="Export" submit=${exportDefinitions} stays fields=${[scope]} /></${Section}>
    <${Section} title="Import"><${Form} label="Import definitions" verb="Import" danger submit=${importDefinitions} done="The definitions are imported." fields=${[{ name: 'file', label: 'File', type: 'file', accept: '.json,application/json' }, scope]}
      ask=${(values) => values.file && { title: `Import ${values.file.name}?`, text: 'The objects in the file are declared. Existing users, policies and permissions with the same names are overwritten. Nothing is deleted.', verb: 'Import' }} /></${Section}>`;
}

export function Cluster() {
  const { data, error } = useData('cluster-name');
  return html`<h1>Cluster name</h1><${Problem} error=${error} />
    ${data && html`<${Form} key=${data.name} label="Cluster name" verb="Change name" done="The name is changed." stays submit=${(values) => client.put('cluster-name', values)} fields=${[{ name: 'name', label: 'Name', value: data.name, required: true, hint: 'Shown in this UI and in metrics.' }]} />`}`;
}

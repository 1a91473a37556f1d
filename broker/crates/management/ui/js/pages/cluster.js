// What is the whole cluster's: feature flags, definitions, its name.
import { html } from '../dom.js';
import { path } from '../client.js';
import { useVhosts } from '../fields.js';
import { Form } from '../form.js';
import { Action, Problem, Section, State, Table } from '../parts.js';
import { client, useData } from '../session.js';

const enable = (name) => ({
  title: name === 'all' ? 'Turn on all feature flags?' : `Turn on ${name}?`,
  text: 'It stays on: nodes of versions that do not know it cannot join any more.',
  verb: 'Turn on',
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
        { title: 'What it is', cell: (flag) => flag.desc },
        { title: 'Not known by', wide: true, cell: (flag) => flag.not_known_by.join(', ') },
        ...(can.administrator
          ? [
              {
                title: '',
                cell: (flag) =>
                  flag.state === 'disabled'
                    ? html`<${Action} kind="small" does=${on(flag.name)} done=${`${flag.name} is on.`} ask=${enable(flag.name)}>Turn on</${Action}>`
                    : '',
              },
            ]
          : []),
      ]} />
      ${can.administrator && data.some((flag) => flag.state === 'disabled') && html`<p><${Action} does=${on('all')} done="All flags that every node knows are on." ask=${enable('all')}>Turn on all</${Action}></p>`}`
    }
    <${Section} title="Deprecated features">${
      deprecated.data &&
      html`<${Table} caption="Deprecated features" rows=${deprecated.data} keyOf=${(feature) => feature.name} columns=${[
        { title: 'Name', cell: (feature) => feature.name },
        { title: 'What it is', cell: (feature) => feature.desc },
        { title: 'In use', cell: (feature) => (inUse.includes(feature.name) ? 'yes' : 'no') },
      ]} />`
    }</${Section}>`;
}

/** Gives the reader a file. */
function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}

const at = (vhost) => (vhost === '' ? 'definitions' : path('definitions', vhost));

export function Definitions() {
  const vhosts = useVhosts();
  const cluster = useData('cluster-name');
  if (vhosts === undefined) return html`<h1>Definitions</h1>`;
  const which = {
    name: 'vhost',
    label: 'Of',
    ...(vhosts === null
      ? { hint: 'A virtual host; empty: of all.' }
      : { type: 'select', options: [['', 'everything'], ...vhosts.map((vhost) => [vhost, `virtual host ${vhost}`])] }),
  };
  const save_ = async (values) => {
    const definitions = await client.get(at(values.vhost));
    save(`${cluster.data?.name ?? 'definitions'}-${new Date().toISOString().slice(0, 10)}.json`, `${JSON.stringify(definitions, null, 2)}\n`);
  };
  const load = async (values) => {
    if (values.file === null) throw new Error('Choose a file first.');
    await client.post(at(values.vhost), await values.file.text());
  };
  return html`<h1>Definitions</h1>
    <p class="faint">Virtual hosts, users with their password hashes, permissions, policies, parameters, exchanges, queues and bindings; no messages. Files of RabbitMQ 4 are taken.</p>
    <${Section} title="Export"><${Form} label="Export definitions" verb="Export" submit=${save_} stays fields=${[which]} /></${Section}>
    <${Section} title="Import"><${Form} label="Import definitions" verb="Import" danger submit=${load} done="The definitions are imported." fields=${[{ name: 'file', label: 'File', type: 'file', accept: '.json,application/json' }, which]}
      ask=${(values) => values.file && { title: `Import ${values.file.name}?`, text: 'What the file names is declared; users, policies and permissions that are there under the same names become as the file says. Nothing else is deleted.', verb: 'Import' }} /></${Section}>`;
}

export function Cluster() {
  const { data, error } = useData('cluster-name');
  return html`<h1>Cluster name</h1><${Problem} error=${error} />
    ${data && html`<${Form} key=${data.name} label="Cluster name" verb="Change name" done="The name is changed." stays submit=${(values) => client.put('cluster-name', values)} fields=${[{ name: 'name', label: 'Name', value: data.name, required: true, hint: 'What people and metrics call the cluster.' }]} />`}`;
}

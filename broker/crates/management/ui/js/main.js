// The application: the signed-in user, navigation, and the current page.
import { html, render, useEffect, useState } from './dom.js';
import { rights } from './client.js';
import { Form } from './form.js';
import { Question } from './parts.js';
import { find, parse, to } from './places.js';
import { client, dismiss, interval, notices, notify, question, shared } from './session.js';
import { Channel, Channels, Connection, Connections } from './pages/clients.js';
import { Cluster, Definitions, FeatureFlags } from './pages/cluster.js';
import { Exchange, Exchanges } from './pages/exchanges.js';
import { Limits } from './pages/limits.js';
import { Node, Nodes } from './pages/nodes.js';
import { Overview } from './pages/overview.js';
import { OperatorPolicy, Policies, Policy } from './pages/policies.js';
import { Queue, Queues } from './pages/queues.js';
import { Streams } from './pages/streams.js';
import { User, Users } from './pages/users.js';
import { Vhost, Vhosts } from './pages/vhosts.js';

const anyone = () => true;
const monitors = (can) => can.monitor;
const policies = (can) => can.monitor || can.policymaker;
const administrators = (can) => can.administrator;

/** Pattern of the address; the page, its access check, and its menu entry. */
const PAGES = [
  ['', { page: Overview, allows: anyone, menu: 'Overview', place: [] }],
  ['overview', { page: Overview, allows: anyone }],
  ['connections', { page: Connections, allows: anyone, menu: 'Connections' }],
  ['connections/{}', { page: Connection, allows: anyone }],
  ['channels', { page: Channels, allows: anyone, menu: 'Channels' }],
  ['channels/{}', { page: Channel, allows: anyone }],
  ['exchanges', { page: Exchanges, allows: anyone, menu: 'Exchanges' }],
  ['exchanges/{}/{}', { page: Exchange, allows: anyone }],
  ['queues', { page: Queues, allows: anyone, menu: 'Queues' }],
  ['queues/{}/{}', { page: Queue, allows: anyone }],
  ['stream', { page: Streams, allows: anyone, menu: 'Streams' }],
  ['stream/connections', { page: Streams, allows: anyone }],
  ['stream/super-streams', { page: Streams, allows: anyone }],
  ['nodes', { page: Nodes, allows: monitors, menu: 'Nodes' }],
  ['nodes/{}', { page: Node, allows: monitors }],
  ['vhosts', { page: Vhosts, allows: anyone, menu: 'Virtual hosts' }],
  ['vhosts/{}', { page: Vhost, allows: anyone }],
  ['users', { page: Users, allows: administrators, menu: 'Users' }],
  ['users/{}', { page: User, allows: administrators }],
  ['policies', { page: Policies, allows: policies, menu: 'Policies' }],
  ['policies/{}/{}', { page: Policy, allows: policies }],
  ['operator_policies/{}/{}', { page: OperatorPolicy, allows: policies }],
  ['limits', { page: Limits, allows: anyone, menu: 'Limits' }],
  ['feature-flags', { page: FeatureFlags, allows: monitors, menu: 'Feature flags' }],
  ['definitions', { page: Definitions, allows: administrators, menu: 'Definitions' }],
  ['cluster-name', { page: Cluster, allows: administrators, menu: 'Cluster name' }],
  ['admin', { page: Vhosts, allows: anyone }],
];

const signedIn = shared(null);

function useHash() {
  const [hash, setHash] = useState(window.location.hash);
  useEffect(() => {
    const onHashChange = () => {
      setHash(window.location.hash);
      notices.set(notices.get().filter((notice) => notice.kind === 'good'));
      window.scrollTo(0, 0);
    };
    window.addEventListener('hashchange', onHashChange);
    // It may have changed before the listener was added.
    setHash(window.location.hash);
    return () => window.removeEventListener('hashchange', onHashChange);
  }, []);
  return hash;
}

function Notices() {
  const all = notices.use();
  return html`<div class="notices" role="status" aria-live="polite">${all.map(
    (notice) => html`<p key=${notice.id} class=${notice.kind}>
    ${notice.text} <button type="button" class="action small" aria-label="Dismiss" onClick=${() => dismiss(notice.id)}>✕</button></p>`,
  )}</div>`;
}

function SignIn() {
  const submit = async ({ name, password }) => {
    const user = await client.signIn(name, password);
    notices.set([]);
    signedIn.set(user);
  };
  return html`<main class="sign-in"><h1>Posthorn</h1>
    <${Form} label="Sign in" verb="Sign in" submit=${submit} fields=${[
      { name: 'name', label: 'User', required: true, complete: 'username' },
      { name: 'password', label: 'Password', type: 'password', required: true, complete: 'current-password' },
    ]} /></main>`;
}

function signOut() {
  client.signOut();
  signedIn.set(null);
}

function Header({ user, can, at }) {
  const every = interval.use();
  const [open, set] = useState(false);
  useEffect(() => set(false), [at]);
  const entries = PAGES.filter(([, page]) => page.menu && page.allows(can));
  const here = (pattern) => (at?.[0] ?? '') === pattern;
  return html`<header>
    <a class="name" href="#/">Posthorn</a>
    <button type="button" class="action menu" aria-expanded=${open} aria-controls="places" onClick=${() => set(!open)}>Menu</button>
    <nav id="places" class=${open ? 'open' : ''} aria-label="Pages"><ul>${entries.map(
      ([pattern, { menu }]) => html`<li key=${pattern}>
      <a href=${pattern === '' ? '#/' : to(pattern)} aria-current=${here(pattern) ? 'page' : undefined}>${menu}</a></li>`,
    )}</ul></nav>
    <div class="who">
      <label>Refresh <select value=${every} onChange=${(event) => interval.set(Number(event.currentTarget.value))}>
        <option value="5000">every 5 s</option><option value="30000">every 30 s</option><option value="0">never</option></select></label>
      <span class="user">${user.name}</span>
      <button type="button" class="action" onClick=${signOut}>Sign out</button>
    </div>
  </header>`;
}

function Place({ user }) {
  const hash = useHash();
  const can = rights(user);
  const at = parse(hash);
  const found = find(PAGES, at);
  useEffect(() => {
    document.title = at && at.length > 0 ? `${at.at(-1)} · Posthorn` : 'Posthorn';
  }, [hash]);
  const content = () => {
    if (!can.any)
      return html`<h1>Access denied</h1><p>User ${user.name} needs one of the tags management, policymaker, monitoring and administrator.</p>`;
    if (found === null) return html`<h1>Page not found</h1><p>This address does not exist. <a href="#/">Overview</a></p>`;
    if (!found.value.allows(can)) return html`<h1>Access denied</h1><p>The tags of user ${user.name} do not allow access to this page.</p>`;
    const Page = found.value.page;
    return html`<${Page} key=${hash} given=${found.given} can=${can} />`;
  };
  return html`<${Header} user=${user} can=${can} at=${at} /><main><${Notices} />${content()}</main>`;
}

function App() {
  const user = signedIn.use();
  const pendingQuestion = question.use();
  useEffect(
    () =>
      client.onEnd((why) => {
        signedIn.set(null);
        notify('bad', why);
      }),
    [],
  );
  return html`${user ? html`<${Place} user=${user} />` : html`<${Notices} /><${SignIn} />`}<${Question} of=${pendingQuestion} />`;
}

async function start() {
  const root = document.getElementById('app');
  try {
    signedIn.set(await client.resume());
  } catch (error) {
    notify('bad', error.reason ?? error.message);
  }
  render(html`<${App} />`, root);
}

await start();

// The page: who is signed in, where they are, and what is shown there.
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
import { User, Users } from './pages/users.js';
import { Vhost, Vhosts } from './pages/vhosts.js';

const anyone = () => true;
const monitors = (can) => can.monitor;
const policies = (can) => can.monitor || can.policymaker;
const administrators = (can) => can.administrator;

/** Pattern of the place; the page, who may see it, and what its menu calls it. */
const PAGES = [
  ['', { page: Overview, who: anyone, menu: 'Overview', place: [] }],
  ['overview', { page: Overview, who: anyone }],
  ['connections', { page: Connections, who: anyone, menu: 'Connections' }],
  ['connections/{}', { page: Connection, who: anyone }],
  ['channels', { page: Channels, who: anyone, menu: 'Channels' }],
  ['channels/{}', { page: Channel, who: anyone }],
  ['exchanges', { page: Exchanges, who: anyone, menu: 'Exchanges' }],
  ['exchanges/{}/{}', { page: Exchange, who: anyone }],
  ['queues', { page: Queues, who: anyone, menu: 'Queues' }],
  ['queues/{}/{}', { page: Queue, who: anyone }],
  ['nodes', { page: Nodes, who: monitors, menu: 'Nodes' }],
  ['nodes/{}', { page: Node, who: monitors }],
  ['vhosts', { page: Vhosts, who: anyone, menu: 'Virtual hosts' }],
  ['vhosts/{}', { page: Vhost, who: anyone }],
  ['users', { page: Users, who: administrators, menu: 'Users' }],
  ['users/{}', { page: User, who: administrators }],
  ['policies', { page: Policies, who: policies, menu: 'Policies' }],
  ['policies/{}/{}', { page: Policy, who: policies }],
  ['operator_policies/{}/{}', { page: OperatorPolicy, who: policies }],
  ['limits', { page: Limits, who: anyone, menu: 'Limits' }],
  ['feature-flags', { page: FeatureFlags, who: monitors, menu: 'Feature flags' }],
  ['definitions', { page: Definitions, who: administrators, menu: 'Definitions' }],
  ['cluster-name', { page: Cluster, who: administrators, menu: 'Cluster name' }],
  ['admin', { page: Vhosts, who: anyone }],
];

const signedIn = shared(null);

function useHash() {
  const [hash, see] = useState(window.location.hash);
  useEffect(() => {
    const moved = () => {
      see(window.location.hash);
      notices.set(notices.get().filter((notice) => notice.kind === 'good'));
      window.scrollTo(0, 0);
    };
    window.addEventListener('hashchange', moved);
    // It may have changed before anybody listened.
    see(window.location.hash);
    return () => window.removeEventListener('hashchange', moved);
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
  const entries = PAGES.filter(([, page]) => page.menu && page.who(can));
  const here = (pattern) => (at?.[0] ?? '') === pattern;
  return html`<header>
    <a class="name" href="#/">Posthorn</a>
    <button type="button" class="action menu" aria-expanded=${open} aria-controls="places" onClick=${() => set(!open)}>Menu</button>
    <nav id="places" class=${open ? 'open' : ''} aria-label="Places"><ul>${entries.map(
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
  const inside = () => {
    if (!can.any)
      return html`<h1>Not for you</h1><p>The user ${user.name} has none of the tags management, policymaker, monitoring and administrator, one of which this page needs.</p>`;
    if (found === null) return html`<h1>Nothing here</h1><p>There is no such place. <a href="#/">Overview</a></p>`;
    if (!found.value.who(can)) return html`<h1>Not for you</h1><p>The tags of the user ${user.name} do not open this page.</p>`;
    const Page = found.value.page;
    return html`<${Page} key=${hash} given=${found.given} can=${can} />`;
  };
  return html`<${Header} user=${user} can=${can} at=${at} /><main><${Notices} />${inside()}</main>`;
}

function App() {
  const user = signedIn.use();
  const asked = question.use();
  useEffect(
    () =>
      client.onEnd((why) => {
        signedIn.set(null);
        notify('bad', why);
      }),
    [],
  );
  return html`${user ? html`<${Place} user=${user} />` : html`<${Notices} /><${SignIn} />`}<${Question} of=${asked} />`;
}

async function begin() {
  const root = document.getElementById('app');
  try {
    signedIn.set(await client.resume());
  } catch (error) {
    notify('bad', error.reason ?? error.message);
  }
  render(html`<${App} />`, root);
}

await begin();
